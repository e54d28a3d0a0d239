//! What of the handshakes that are answered at a time one host may take up.
//!
//! Nothing is proved of who has just connected. So a host with many connections that say nothing makes room
//! for others when all places are taken, and one that never says its last word gets half of them at most.
//! Whoever is hung up on by that tries again.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::{ACCEPTING_MAX, Incoming};
use crate::{
    control::{offer::Answer, thread::ControlThread},
    verbs::Verbs,
};

/// Handshakes of a host that nobody else makes room for.
const HOST_SHARE: usize = ACCEPTING_MAX / 4;
/// Handshakes of a host at most that have been answered, and wait for its last word.
const ANSWERED_MAX: usize = ACCEPTING_MAX / 2;
/// How long a host may be silent, where others wait.
pub(super) const SILENCE_MAX: Duration = Duration::from_millis(100);

/// A handshake that was answered and came to nothing.
pub(in crate::control) struct Abandoned {
    /// Whose it was: of which station, with which host.
    of: (u64, IpAddr),
    /// Held until the endpoint has heard so.
    held: Weak<()>,
}

impl<V: Verbs> Incoming<V> {
    fn is_silent_since(&self, moment: Instant) -> bool {
        self.answer.is_none() && self.since <= moment
    }
}

impl<V: Verbs> ControlThread<V> {
    /// Whether one more handshake may begin. It may be for a silent one that it takes the place of.
    pub(super) fn has_place(&mut self) -> bool {
        !self.is_full() || self.end_a_silent_one()
    }

    /// Whether all places are taken.
    pub(super) fn is_full(&self) -> bool {
        self.incoming.len() >= ACCEPTING_MAX
    }

    /// Ends the oldest that is silent, of those hosts that have more than their share. What lies there of it
    /// is taken before: this thread may have been held up.
    pub(super) fn end_a_silent_one(&mut self) -> bool {
        let Some(moment) = Instant::now().checked_sub(SILENCE_MAX) else {
            return false;
        };
        let mut of_host: HashMap<IpAddr, usize> = HashMap::new();
        for incoming in self.incoming.values() {
            *of_host.entry(incoming.from.ip()).or_default() += 1;
        }
        let ends = |incoming: &Incoming<V>| {
            incoming.is_silent_since(moment) && of_host[&incoming.from.ip()] > HOST_SHARE
        };
        let silent = self.incoming.iter().filter(|(_, incoming)| ends(incoming));
        let mut silent: Vec<u64> = silent.map(|(id, _)| *id).collect();
        silent.sort_unstable();
        for oldest in silent {
            self.handshake_ready(oldest);
            match self.incoming.get(&oldest) {
                Some(incoming) if !incoming.is_silent_since(moment) => {}
                Some(_) => {
                    self.drop_incoming(oldest, "it is silent, and others wait");
                    return true;
                }
                None => return true,
            }
        }
        false
    }

    /// Whether an endpoint may answer one more handshake of a host. Those count that came to nothing, and
    /// have buffers until the endpoint hears so: its application may be long in coming.
    pub(super) fn may_answer(&mut self, station: u64, host: IpAddr) -> bool {
        self.abandoned.retain(|abandoned| abandoned.held.strong_count() > 0);
        let is_of_host = |abandoned: &&Abandoned| abandoned.of == (station, host);
        let abandoned = self.abandoned.iter().filter(is_of_host).count();
        let answered = |incoming: &&Incoming<V>| {
            incoming.answer.is_some() && (incoming.station, incoming.from.ip()) == (station, host)
        };
        self.incoming.values().filter(answered).count() + abandoned < ANSWERED_MAX
    }

    /// Nothing comes of a handshake that was answered: its endpoint hears so.
    pub(super) fn abandon(&mut self, station: u64, host: IpAddr, answer: Answer<V>) {
        let Some(record) = self.stations.get(&station) else {
            return;
        };
        let share = Arc::new(());
        let held = Arc::downgrade(&share);
        if let Some(event) = answer.abandoned(share) {
            record.shared.push(event);
            self.abandoned.push(Abandoned { of: (station, host), held });
        }
    }
}

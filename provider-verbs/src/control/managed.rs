//! Connections through the connection manager: whom its events are about, and their end.
//!
//! An id is called as its handshake is, and a listening one as its station, with a bit more.

use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::event::epoll::{self, EventFlags};

use super::{
    Bound,
    thread::{ControlThread, Token},
};
use crate::{
    manager::{Happening, ManagedId, Manager, ManagerEvent},
    station::StationEvent,
    verbs::Verbs,
};

/// In the names of ids that listen.
const LISTENS: u64 = 1 << 63;
/// The timer after which peers of managed connections are asked for a sign of life, and how often
/// they are: the device has said within two seconds more that there is none.
pub(super) const PROBE: u64 = u64::MAX;
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How long the last word on a connection may take, until it is ended without: a packet that is lost
/// is repeated several times until then.
pub const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// What an id is called that listens for a station.
pub fn listener_name(station: u64) -> u64 {
    station | LISTENS
}

impl<V: Verbs> ControlThread<V> {
    /// Takes requests for a station from now on.
    pub(super) fn listen_managed(&mut self, bound: &Bound<V>) {
        if self.manager.is_none() {
            let channel = bound.manager.channel();
            #[allow(unsafe_code)]
            // SAFETY: the channel is open as long as the manager, which is kept.
            let channel = unsafe { BorrowedFd::borrow_raw(channel) };
            let watched = epoll::add(&self.epoll, channel, Token::Manager.data(), EventFlags::IN);
            if let Err(errno) = watched {
                return tracing::error!("nobody connects through rdma_cm: epoll: {errno}");
            }
            self.manager = Some(bound.manager.clone());
        }
        if let Err(error) = bound.id.listen() {
            tracing::info!("nobody connects through rdma_cm: {error}");
        }
    }

    pub(super) fn manager_readable(&mut self) {
        let Some(manager) = self.manager.clone() else {
            return;
        };
        while let Some(ManagerEvent { name, happening }) = manager.next_event() {
            self.managed_event(name, happening);
        }
    }

    fn managed_event(&mut self, name: u64, happening: Happening<super::ManagedIdOf<V>>) {
        if name & LISTENS != 0 {
            if let Happening::Asked { id, from, queue_pair, data } = happening {
                self.asked(name & !LISTENS, id, from, queue_pair, &data);
            }
        } else if self.outgoing.contains_key(&name) {
            self.outgoing_managed(name, happening);
        } else if self.incoming.contains_key(&name) {
            self.incoming_managed(name, happening);
        } else {
            match happening {
                Happening::Disconnected => self.link_disconnected(name),
                // Its device is gone.
                Happening::Failed(why) => self.link_failed(name, why),
                _ => {}
            }
        }
    }

    fn link_disconnected(&mut self, id: u64) {
        let Some(link) = self.links.get(&id) else {
            return;
        };
        if let Some(record) = self.stations.get(&link.station) {
            record.shared.push(StationEvent::Disconnected { link: id });
        }
        self.end_link(id, None);
    }

    /// The word that says how a connection ends is on its way: it must not be long.
    pub(super) fn end_link_soon(&mut self, id: u64) {
        if self.links.contains_key(&id) {
            self.set_timer(id, Some(Instant::now() + LAST_WORD_MAX));
        }
    }

    /// The last word of a handshake may be lost, and is said again after seconds: a packet on the
    /// queue pair tells as much.
    pub(super) fn queue_pair_used(&self, queue_pair: u32) {
        let is_it = |incoming: &&super::accept::Incoming<V>| incoming.awaits(queue_pair);
        if let Some(id) = self.incoming.values().find(is_it).and_then(|incoming| incoming.id()) {
            id.note_use();
        }
    }

    /// Has peers asked for signs of life from time to time.
    pub(super) fn probe_later(&mut self) {
        if !self.has_timer(PROBE) {
            self.set_timer(PROBE, Some(Instant::now() + PROBE_EVERY));
        }
    }

    pub(super) fn probe(&mut self) {
        let mut any = false;
        for link in self.links.values().filter(|link| link.line.says_little()) {
            if let Some(record) = self.stations.get(&link.station) {
                record.shared.ask_to_probe();
                any = true;
            }
        }
        if any {
            self.probe_later();
        }
    }
}

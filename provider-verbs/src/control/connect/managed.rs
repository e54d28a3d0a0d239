//! The same through the connection manager: the way to the peer, our request, its answer.
//!
//! What comes to nothing there, for whatever reason that is not the peer's own word, is tried over
//! TCP: the peer may have no connection manager, or another way may lead to it.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{Outgoing, Step, check_answer, way::STEP_WAIT};
use crate::{
    control::{
        ManagedIdOf,
        error::ConnectError,
        line::Line,
        offer::Offer,
        private::{Ask, Parties, Reply, decode_refusal},
        random,
        thread::ControlThread,
        wire::WireError,
    },
    manager::{Happening, ManagedId, Manager},
    receive_pool::BUFFER_BYTES,
    verbs::Verbs,
};

/// How long the kernel looks for a peer's hardware address at a time, and how often it does before
/// TCP is tried. It looks whether it has come only when that time is over.
const RESOLVE_WAIT: Duration = Duration::from_millis(100);
const RESOLVES_MAX: u32 = 8;

/// What was asked, and what for.
pub(super) struct Asking<V: Verbs> {
    managed: ManagedIdOf<V>,
    offer: Offer<V>,
    parties: Parties,
    request: Vec<u8>,
}

impl<V: Verbs> Outgoing<V> {
    /// The next attempt goes over TCP.
    pub(super) fn leave_manager(&mut self, why: &str) {
        tracing::debug!(to = %self.to, "TCP is tried: {why}");
        self.way.manager_failed();
    }
}

impl<V: Verbs> ControlThread<V> {
    /// Begins an attempt through the connection manager.
    pub(super) fn attempt_managed(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        let Some(bound) = &record.managed else {
            return;
        };
        let (own, marks) = (record.address, record.shared.origin.marks);
        match bound.manager.resolve(id, own, outgoing.to, marks, RESOLVE_WAIT) {
            Ok(managed) => {
                outgoing.step = Step::Resolving(managed);
                outgoing.obstacle = "no way to it is found".into();
                self.wait_for_step(id);
            }
            Err(error) => self.manager_failed(id, error.to_string()),
        }
    }

    fn wait_for_step(&mut self, id: u64) {
        if let Some(outgoing) = self.outgoing.get(&id) {
            let at = outgoing.deadline.min(Instant::now() + STEP_WAIT);
            self.wait_until(id, at);
        }
    }

    /// The connection manager cannot help.
    fn manager_failed(&mut self, id: u64, why: String) {
        if let Some(outgoing) = self.outgoing.get_mut(&id) {
            outgoing.leave_manager(&why);
            self.try_again(id, why);
        }
    }

    /// No way to the peer is found: at first since its hardware address is not known yet.
    fn unresolved(&mut self, id: u64, why: String) {
        match self.outgoing.get(&id) {
            Some(outgoing) if outgoing.attempts < RESOLVES_MAX => self.try_again(id, why),
            _ => self.manager_failed(id, why),
        }
    }

    pub(in crate::control) fn outgoing_managed(
        &mut self,
        id: u64,
        happening: Happening<ManagedIdOf<V>>,
    ) {
        let Some(Outgoing { to, step, .. }) = self.outgoing.get(&id) else {
            return;
        };
        let to = *to;
        match (happening, step) {
            (Happening::AddressResolved, Step::Resolving(managed)) => {
                match managed.resolve_route(STEP_WAIT) {
                    Ok(()) => self.wait_for_step(id),
                    Err(error) => self.manager_failed(id, error.to_string()),
                }
            }
            (Happening::RouteResolved, Step::Resolving(_)) => self.ask(id),
            (Happening::Answered { queue_pair, data }, Step::Asking(_)) => {
                self.answered(id, queue_pair, &data);
            }
            (Happening::Nobody, _) => self.nobody_listens(id),
            (Happening::Refused { data }, _) => match decode_refusal(&data) {
                Ok(reason) => self.fail(id, ConnectError::Refused { to, reason }),
                Err(WireError::OtherVersion { theirs }) => {
                    self.fail(id, ConnectError::OtherVersion { to, theirs });
                }
                Err(_) => self.let_go(id),
            },
            (Happening::Failed(why), Step::Resolving(_)) => self.unresolved(id, why),
            (Happening::Failed(why), _) => self.manager_failed(id, why),
            _ => self.manager_failed(id, "rdma_cm: an event out of turn".into()),
        }
    }

    /// Let go of without a word of ours: by an endpoint that is not enabled yet, or has no place for us now;
    /// or by somebody else, who has rdma_cm's port.
    fn let_go(&mut self, id: u64) {
        if let Some(outgoing) = self.outgoing.get_mut(&id) {
            outgoing.way.let_go();
            // Somebody is there, whatever TCP met.
            (outgoing.nobody_since, outgoing.no_route) = (None, false);
            self.try_again(id, "it hung up".into());
        }
    }

    /// The path is known: the peer can be asked.
    fn ask(&mut self, id: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        let Step::Resolving(managed) = std::mem::replace(&mut outgoing.step, Step::Pausing) else {
            return;
        };
        let to = outgoing.to;
        let Some(key) = record.keys.told().and_then(|keys| keys.get(outgoing.key)) else {
            return self.fail(id, ConnectError::Unproven { to });
        };
        let offer = match Offer::new(record) {
            Ok(offer) => offer,
            Err(source) => return self.fail(id, ConnectError::Verbs { to, source }),
        };
        let queue_pair = offer.path_end(record).queue_pair;
        let ask = Ask {
            incarnation: record.incarnation,
            port: record.address.port(),
            buffer_bytes: BUFFER_BYTES as u16,
            credit: offer.credit(),
            nonce: u64::from_le_bytes(random()),
        };
        let parties = Parties::new(record.address.ip(), to, queue_pair);
        let request = ask.encode(key.bytes(), &parties);
        outgoing.obstacle = "it does not answer".into();
        match managed.ask(queue_pair, &request) {
            Ok(()) => {
                let asking = Asking { managed, offer, parties, request };
                outgoing.step = Step::Asking(Box::new(asking));
                self.wait_for_step(id);
            }
            Err(error) => self.manager_failed(id, error.to_string()),
        }
    }

    /// The peer has joined its queue pair with ours.
    fn answered(&mut self, id: u64, queue_pair: u32, data: &[u8]) {
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let Some(record) = self.stations.get(&outgoing.station) else {
            return;
        };
        let to = outgoing.to;
        let reply = match Reply::decode(data) {
            Ok(reply) => reply,
            Err(WireError::OtherVersion { theirs }) => {
                return self.fail(id, ConnectError::OtherVersion { to, theirs });
            }
            Err(WireError::Magic) => {
                return self.manager_failed(id, "somebody else has rdma_cm's port there".into());
            }
            Err(source) => return self.fail(id, ConnectError::BadAnswer { to, source }),
        };
        let Step::Asking(asking) = std::mem::replace(&mut outgoing.step, Step::Pausing) else {
            return;
        };
        let Asking { managed, offer, parties, request } = *asking;
        let key = record.keys.told().and_then(|keys| keys.get(outgoing.key));
        let proved = key
            .is_some_and(|key| Reply::is_proved(data, key.bytes(), &parties, &request, queue_pair));
        let from = SocketAddr::new(to.ip(), reply.port);
        let is_meant = from == parties.wanted;
        let joined =
            check_answer(to, proved, is_meant, from, reply.buffer_bytes.into()).and_then(|()| {
                let origin = &record.shared.origin;
                let mtu_bytes_max = reply.mtu_bytes_max().min(origin.port.mtu_bytes);
                let joined = offer.join_managed(&managed, origin.marks, mtu_bytes_max);
                joined.map_err(|source| ConnectError::Verbs { to, source })
            });
        let joined = match joined {
            Ok(joined) => joined,
            Err(error) => return self.fail(id, error),
        };
        match managed.establish() {
            Ok(()) => self.finish(id, Line::Managed(managed), offer, reply.incarnation, joined),
            Err(error) => self.manager_failed(id, error.to_string()),
        }
    }
}

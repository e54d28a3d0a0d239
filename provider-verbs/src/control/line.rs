//! What carries a handshake, and tells of the peer's end as long as the connection stands.

use super::{ManagedIdOf, socket::Socket, thread::ControlThread};
use crate::{station::StationEvent, verbs::Verbs};

pub(super) enum Line<V: Verbs> {
    /// A TCP connection, and what came of its next message.
    Tcp(Socket, Vec<u8>),
    /// There was one, by which the peer's host is not reached any more.
    Mute,
    /// An id of the connection manager. Dropping it lets go of the peer.
    Managed(ManagedIdOf<V>),
}

impl<V: Verbs> Line<V> {
    pub fn is_managed(&self) -> bool {
        matches!(self, Line::Managed(_))
    }

    /// Whether it does not tell of a host that vanishes: the peer's device is asked for signs of life.
    pub fn says_little(&self) -> bool {
        !matches!(self, Line::Tcp(..))
    }
}

impl<V: Verbs> ControlThread<V> {
    /// TCP does not reach a peer's host any more. It may go by another network than packets do, whose device
    /// says whether the peer is there: it is asked from now on.
    pub(super) fn mute(&mut self, id: u64, reason: &str) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Line::Tcp(socket, _) = std::mem::replace(&mut link.line, Line::Mute) else { return };
        let station = link.station;
        self.close(&socket);
        if let Some(record) = self.stations.get(&station) {
            record.shared.push(StationEvent::Mute { link: id, reason: reason.into() });
        }
        self.probe_later();
    }

    /// The same of all, as a test has it.
    pub(super) fn mute_all(&mut self) {
        let all: Vec<u64> = self.links.keys().copied().collect();
        all.into_iter().for_each(|id| self.mute(id, "the test says so"));
    }
}

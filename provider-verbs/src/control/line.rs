//! What carries a handshake, and tells of the peer's end as long as the connection stands.

use super::{ManagedIdOf, socket::Socket};
use crate::verbs::Verbs;

pub(super) enum Line<V: Verbs> {
    /// A TCP connection, and what came of its next message.
    Tcp(Socket, Vec<u8>),
    /// An id of the connection manager. Dropping it lets go of the peer.
    Managed(ManagedIdOf<V>),
}

impl<V: Verbs> Line<V> {
    pub fn is_managed(&self) -> bool {
        matches!(self, Line::Managed(_))
    }
}

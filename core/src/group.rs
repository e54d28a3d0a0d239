//! What a transport knows of a multicast group: see [`crate::transport::Multicast::join`].

use crate::address::Address;

/// How a datagram gets to all who hear a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The transport carries it to them: [`crate::transport::Multicast::push_to_group`].
    Carried,
    /// The transport knows who they are, and each is sent to:
    /// [`crate::transport::Multicast::members`].
    Listed,
}

/// Who hears a group: one endpoint, and no other that was or will be at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Where it is.
    pub address: Address,
    /// What peers know it by, as `Connected` and `Incoming` tell it. Never 0.
    pub incarnation: u64,
}

//! What happens to peers.

use super::PeerIndex;
use crate::error::Cause;
use crate::{address::Address, auth_key::KeyNumber};

/// What a transport tells its engine beside packets. All of it is cold.
#[derive(Debug)]
pub enum TransportEvent {
    /// `connect` succeeded: packets can be pushed to the peer.
    Connected {
        /// The peer that `connect` named.
        peer: PeerIndex,
        /// Where its process lives, to tell a restarted peer from an old one.
        incarnation: u64,
    },
    /// `connect` failed; nothing can be pushed.
    Failed {
        /// The peer that `connect` named.
        peer: PeerIndex,
        /// Why.
        reason: Cause,
    },
    /// Somebody wants to send to us: the engine answers with `adopt`.
    Incoming {
        /// Names the offer in `adopt`.
        ticket: u64,
        /// The address that the peer goes by.
        address: Address,
        /// Its incarnation.
        incarnation: u64,
        /// The key that it has proved: of the keys that were taken, or `ONLY_KEY`.
        key: KeyNumber,
    },
    /// Somebody sends to a group that was joined: the engine answers with `recognize`.
    Overheard {
        /// Names it in `recognize`.
        ticket: u64,
        /// The address that the peer goes by.
        address: Address,
    },
    /// The peer's process is gone. What it had published is still readable.
    Died {
        /// The peer.
        peer: PeerIndex,
    },
    /// What connected us with the peer is over, without a word that this is in order; what became of the
    /// peer nobody here knows. What it had published is still readable.
    Lost {
        /// The peer.
        peer: PeerIndex,
        /// What ended it.
        reason: String,
    },
    /// The peer closed its endpoint, or its end of a lane; its process lives on.
    /// What it had published is still readable.
    Closed {
        /// The peer.
        peer: PeerIndex,
    },
    /// The peer broke the protocol; its lane is closed.
    Broken {
        /// The peer.
        peer: PeerIndex,
        /// What it did.
        reason: Cause,
    },
    /// What peers are reached through has failed for good. Each of them was lost before.
    Down {
        /// What has failed.
        reason: Cause,
        /// Nobody comes by another way.
        wholly: bool,
    },
}

impl TransportEvent {
    /// Whose `connect` it answers.
    pub fn outcome_of(&self) -> Option<PeerIndex> {
        match *self {
            TransportEvent::Connected { peer, .. } | TransportEvent::Failed { peer, .. } => {
                Some(peer)
            }
            _ => None,
        }
    }

    /// Whose end it tells.
    pub fn end_of(&self) -> Option<PeerIndex> {
        match *self {
            TransportEvent::Died { peer }
            | TransportEvent::Lost { peer, .. }
            | TransportEvent::Closed { peer }
            | TransportEvent::Broken { peer, .. } => Some(peer),
            _ => None,
        }
    }
}

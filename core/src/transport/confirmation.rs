//! What a peer is known to have.

use super::PeerIndex;

/// For transports whose packets leave this process after they are pushed. Unless one says otherwise,
/// what is pushed is in the peer's reach.
pub trait Confirmation {
    /// Whether a packet to `peer`, which is connected, may still be lost after
    /// [`super::Transport::push`] took it: if the connection fails, or this process ends.
    fn confirms(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Has the next packet to `peer` be confirmed without others behind it.
    fn confirm_next(&mut self, _peer: PeerIndex) {}

    /// How many packets were pushed to `peer`, wrapping.
    fn pushed(&self, _peer: PeerIndex) -> u32 {
        0
    }

    /// Looks for what peers have got since, for [`Self::confirmed`] to tell.
    fn look_for_confirmations(&mut self) {}

    /// How many of them the peer is known to have: nothing that happens to us takes them back.
    fn confirmed(&self, _peer: PeerIndex) -> u32 {
        0
    }

    /// What has come from `peer`, in a word for its [`Self::take_receipt`]: who leaves says so, since
    /// what would confirm it may be lost, and is not said again. 0 where nothing has to be said.
    fn receipt(&mut self, _peer: PeerIndex) -> u64 {
        0
    }

    /// `peer` says what has come to it, which [`Self::confirmed`] then tells. A word that is no receipt
    /// of the connection that stands changes nothing.
    fn take_receipt(&mut self, _peer: PeerIndex, _receipt: u64) {}
}

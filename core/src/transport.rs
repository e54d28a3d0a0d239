//! What core asks of a transport, and all that core knows of one.
//!
//! A transport belongs to one endpoint and is driven by that endpoint's engine
//! alone (`&mut self`), so nothing here needs a lock. It moves *packets*: a
//! small head, up to 48 bytes of inline content and up to one fragment of
//! payload; reliably and in order per peer. Matching, completions, flow control
//! of payload and large messages are core's.

use std::{os::fd::RawFd, time::Duration};

use crate::{
    address::Address,
    auth_key::{KeyNumber, Keyring},
    memory::Piece,
    wire::Head,
};

#[allow(unsafe_code)]
mod bell;
mod confirmation;
mod event;
mod multicast;
mod provider;
mod single_copy;
mod windows;

pub use bell::{Bell, EventBell, wait_any};
pub use confirmation::Confirmation;
pub use event::TransportEvent;
pub use multicast::Multicast;
pub use provider::{CoreClaim, Opening, Provider, Purpose};
pub use single_copy::SingleCopy;
pub use windows::Windows;

/// A peer inside one engine: a dense index, given by the engine.
pub type PeerIndex = u32;

/// Sizes that a transport works best with. Units: bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Up to this length it is not worth while to show a message to its receiver while it is copied
    /// in. At most `single`.
    pub short: usize,
    /// The largest message that always travels as one packet; up to a fragment does in a stream, and where
    /// it is shown.
    pub single: usize,
    /// The largest payload of any packet.
    pub fragment: usize,
    /// How much of a message travels without the receiver's consent.
    pub prefix: usize,
    /// A message of this length or more is left for the receiver to read, where it can.
    pub single_copy: usize,
    /// A message of this length or more is left for the receiver to read in a stream, whose receiver is
    /// busy with what came before.
    pub single_copy_streaming: usize,
    /// Packets may be faster: both are tried, and what is faster is done.
    pub contested: bool,
}

impl Limits {
    /// Whether what is long is shown to a receiver that waits for it while it is copied in.
    #[inline(always)]
    pub(crate) fn shows(&self) -> bool {
        self.short < self.single
    }

    /// From which length on a message is left for its receiver to read.
    pub(crate) fn single_copy_from(&self, streaming: bool) -> usize {
        if streaming { self.single_copy_streaming } else { self.single_copy }
    }
}

/// A packet that has arrived and is still in the transport's memory: what core
/// decides by. Its words and its payload are fetched from there as needed.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Who sent it.
    pub peer: PeerIndex,
    /// Its head, validated for form only.
    pub head: Head,
    /// The word that the head's kind gives a meaning: a tag or an operation's name.
    pub word: u64,
    /// Bytes of payload.
    pub length: usize,
    /// The payload, if it has 8 bytes and was next to the head: fetched with it, since that is
    /// what most small messages are.
    pub tiny: Option<u64>,
}

/// The audience of a registration that every peer with a window can reach, by a number that it
/// may guess.
pub const EVERYBODY: u64 = 0;

/// What the packets of an endpoint can rely on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Service {
    /// Every packet arrives, in order, or the peer is lost.
    #[default]
    Reliable,
    /// Packets may be lost, and overtake each other. Each is a message of its own.
    Datagrams,
}

/// How a packet's payload fares in [`Transport::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// No packet fits now; try again after the peer has made progress.
    Full,
    /// A packet with this much of the wanted payload fits.
    Bytes(usize),
}

/// One endpoint's way to its peers: packets, connections and bells. What only some transports can do
/// stands apart.
pub trait Transport:
    SingleCopy + Windows + Confirmation + Multicast + Send + Sized + 'static
{
    /// The address that peers insert to reach this endpoint.
    fn address(&self) -> Address;

    /// The sizes that this transport works best with.
    fn limits(&self) -> Limits;

    /// Whether `peer`, which sends to us, may speak for whoever is at `address` as well; none where
    /// that cannot be told for the moment. Cold.
    fn speaks_for(&self, _peer: PeerIndex, _address: Address) -> Option<bool> {
        Some(true)
    }

    /// From now on peers prove one of these keys, or the one that the transport was opened with, if
    /// there are none. At most once, where [`Opening::keys_follow`]. Cold.
    fn take_keys(&mut self, _keys: Option<&Keyring>) {}

    /// Which of the keys that were taken is proved to `peer` when it is connected. Cold.
    fn choose_key(&mut self, _peer: PeerIndex, _key: KeyNumber) {}

    /// Starts connecting to `address` as `peer`. Exactly one `Connected` or
    /// `Failed` follows, within the transport's deadline.
    fn connect(&mut self, peer: PeerIndex, address: Address);

    /// Takes up an `Incoming` offer as `peer`'s receiving side.
    fn adopt(&mut self, peer: PeerIndex, ticket: u64);

    /// Drops both directions of `peer`. What it published and nobody has read
    /// is lost.
    fn disconnect(&mut self, peer: PeerIndex);

    /// Drops the receiving side of `peer` alone: it belongs to an earlier incarnation.
    fn hang_up(&mut self, _peer: PeerIndex) {}

    /// Whether nothing that is still to come, event, packet or operation that is over, names `peer`,
    /// which the engine knows nothing more of: its index is another one's then. What would have
    /// named it and can be left out is. If not, the engine asks again some time. Cold.
    fn forget_peer(&mut self, _peer: PeerIndex) -> bool {
        false
    }

    /// How much of `wanted` payload bytes, besides a full inline part, one
    /// packet to `peer` can carry now.
    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room;

    /// Pushes a packet of `words` and up to a fragment of payload, which the transport may place
    /// wherever it likes, if there is room for it.
    ///
    /// `words` come first, then the payload. Returns false and does nothing if
    /// there is no room. Cost: no system call, no allocation.
    fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool;

    /// Has all that was pushed leave. A transport may keep packets back until then, so that it asks
    /// its device once for several. Called at the end of each call that pushes, but for those that
    /// announce that another follows at once (FI_MORE).
    #[inline(always)]
    fn flush(&mut self) {}

    /// Whether a packet to `peer`, pushed just before, found no room for want of something of our own,
    /// which comes back without the peer. Where not, a datagram is dropped instead of waiting for it. So
    /// what has come back since the push is left for the next one to find.
    fn waits_for_itself(&mut self, _peer: PeerIndex) -> bool {
        false
    }

    /// The peer's credit: a number that it published with `grant`.
    fn credit(&self, peer: PeerIndex) -> u64;

    /// Publishes the credit that `peer` may use.
    fn grant(&mut self, peer: PeerIndex, credit: u64);

    /// The next packet of any peer, if one is there. It stays valid until `consume`;
    /// without that it is still the next of its peer.
    fn arrival(&mut self) -> Option<Arrival>;

    /// The next packet of any peer but the one that spoke last, if one is there: it may have been
    /// sent before that one's, which a third peer's answer to it can be. For transports that hear
    /// their peers apart from each other.
    #[inline(always)]
    fn arrival_elsewhere(&mut self) -> Option<Arrival> {
        None
    }

    /// The packet that `arrival` answered stays in its lane, maybe for long: others have their turn before
    /// it comes again. For transports that would go on with it, or look at some of their peers only when
    /// no other has a packet.
    fn pass_over(&mut self) {}

    /// The next packet of `peer` alone: used to drain a lane before it closes.
    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival>;

    /// Word `index` in front of the payload of the last arrival. The peer may
    /// rewrite it: fetch once, check, use the copy.
    fn word(&self, index: usize) -> u64;

    /// How much of the payload of the last arrival is there by now: all of it, unless the transport
    /// shows messages whose sender is still copying them in, the first byte first.
    #[inline(always)]
    fn placed(&self) -> usize {
        usize::MAX
    }

    /// Copies payload of the last arrival, from byte `offset` on, over `to`: none that is not there.
    /// Panics or copies less if that is more than there is.
    fn copy_out(&self, offset: usize, to: Piece);

    /// Gives the memory of the last arrival back to its sender.
    fn consume(&mut self);

    /// Whether `event` has something. Cost: one load.
    fn has_event(&self) -> bool;

    /// The next event.
    fn event(&mut self) -> Option<TransportEvent>;

    /// Asks every peer to ring the bell when it sends, for a thread that wants to
    /// sleep. Silences the bell first.
    fn arm(&mut self);

    /// What has to lie between `arm` and `is_quiet`: one fence for as many transports of the kind as a
    /// thread has armed, since it may be a system call.
    fn fence_armed() {}

    /// Whether neither a packet nor an event is there that came before peers saw that they are asked: if one
    /// is, sleeping would be wrong.
    fn is_quiet(&mut self) -> bool;

    /// The counterpart of each `arm`: one thread sleeps no more. Peers need not ring after the last. Before that
    /// others sleep on, and a ring that was silenced may have been for them: then it asks anew as `arm` does,
    /// and answers true. `fence_armed` follows, and `ring` unless it `is_quiet`.
    fn disarm(&mut self) -> bool;

    /// Rings the bell for our own sleepers.
    fn ring(&self);

    /// What a sleeper waits for: readable when the bell rings.
    fn bell(&self) -> RawFd;

    /// Sleeps until one of `bells` is readable or `timeout` is over.
    fn sleep(bells: &[RawFd], timeout: Option<Duration>) {
        wait_any(bells, timeout);
    }
}

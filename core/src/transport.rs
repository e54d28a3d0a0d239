//! What core asks of a transport, and all that core knows of one.
//!
//! A transport belongs to one endpoint and is driven by that endpoint's engine
//! alone (`&mut self`), so nothing here needs a lock. It moves *packets*: a
//! small head, up to 48 bytes of inline content and up to one fragment of
//! payload; reliably and in order per peer. Matching, completions, flow control
//! of payload and large messages are core's.

use std::{os::fd::RawFd, sync::Arc, time::Duration};

use crate::{
    address::Address,
    auth_key::{KeyNumber, Keyring},
    group::{Member, Spread},
    memory::Piece,
    ring::claims::Claims,
    window::{
        Access, AtomicRequest, Found, Invitation, Loan, LoanWorth, OwnRegistration, Registration,
        RegistrationRequest, Request, Started, Worth,
    },
    wire::Head,
};

mod event;
mod provider;

pub use event::TransportEvent;
pub use provider::{Bell, CoreClaim, Opening, Provider};

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
    /// The same in a stream, whose receiver is busy with what came before.
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

/// Why a peer cannot be reached, or can no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The number for the error completion.
    pub errno: crate::error::Errno,
    /// The reason in words, for the log and `strerror`.
    pub reason: String,
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

/// One endpoint's way to its peers.
pub trait Transport: Send + Sized + 'static {
    /// The address that peers insert to reach this endpoint.
    fn address(&self) -> Address;

    /// The sizes that this transport works best with.
    fn limits(&self) -> Limits;

    /// Whether somebody can be reached at `address`, as far as can be told at once. Cold.
    fn finds(&self, _address: Address) -> bool {
        false
    }

    /// Whether `peer`, which sends to us, may speak for whoever is at `address` as well, as far
    /// as can be told at once. Cold.
    fn speaks_for(&self, _peer: PeerIndex, _address: Address) -> bool {
        true
    }

    /// From now on peers prove one of these keys, instead of the one that the transport was opened
    /// with. At most once, where [`Opening::keys_follow`]. Cold.
    fn take_keys(&mut self, _keys: &Keyring) {}

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

    /// Pushes a packet whose whole content is inline words and tiny payload
    /// that the transport may place wherever it likes, if there is room for it.
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

    /// Whether a packet to `peer` found no room for want of something of our own, which comes back
    /// without the peer. Where not, a datagram is dropped instead of waiting for it.
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

    /// The packet that `arrival` answered stays in its lane, and comes again with the next poll. For
    /// transports that look at some of their peers only when no other has a packet.
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

    /// Reads `length` bytes at `remote` in the peer's memory into `to`, if this
    /// transport and this peer permit it. Returns false if not.
    fn read_remote(&mut self, peer: PeerIndex, remote: u64, to: Piece) -> bool;

    /// Whether `read_remote` can work for `peer`.
    fn can_read_remote(&self, peer: PeerIndex) -> bool;

    /// Whether `peer` said that its own `read_remote` works for our memory: where it does not,
    /// no address of ours is told.
    fn is_readable_by(&self, peer: PeerIndex) -> bool;

    /// Writes all of `from` at `remote` in the peer's memory, where the peer asked for it. Returns
    /// false if that is not permitted, or has failed.
    fn write_remote(&mut self, _peer: PeerIndex, _remote: u64, _from: Piece) -> bool {
        false
    }

    /// Whether the process that `peer` sends from is known to have ended: nothing of it writes to our
    /// memory any more. May be so before `event` tells of it. Cost: a system call.
    fn has_ended(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Where we and `peer` claim blocks of the messages that it sends to us, if it can help.
    fn claims_from(&self, _peer: PeerIndex) -> Option<&Claims> {
        None
    }

    /// The same for the messages that we send to it.
    fn claims_to(&self, _peer: PeerIndex) -> Option<&Claims> {
        None
    }

    /// What goes through a window to `peer`, if any can be opened: see [`crate::window`]. All that
    /// follows, up to `finished`, is for those who answer something.
    #[inline(always)]
    fn windows_to(&self, _peer: PeerIndex) -> Option<Worth> {
        None
    }

    /// Whether the window to `peer` is open.
    fn is_window_open(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Makes our end of a window to `peer`, and says what its end has to know. The earlier one
    /// is given up.
    fn invite(&mut self, _peer: PeerIndex) -> Option<Invitation> {
        None
    }

    /// The peer's end exists: the window is open if this returns true.
    fn open_window(&mut self, _peer: PeerIndex, _theirs: Invitation) -> bool {
        false
    }

    /// Makes the end at which `peer` reaches our memory, in the ways that are permitted to all.
    fn admit(
        &mut self,
        _peer: PeerIndex,
        _theirs: Invitation,
        _permitted: Access,
    ) -> Option<Invitation> {
        None
    }

    /// For whom a registration is that `peer` asked for: those with the same number share it, and
    /// with [`EVERYBODY`] whoever has a window.
    fn audience(&self, _peer: PeerIndex) -> u64 {
        EVERYBODY
    }

    /// Registers memory of the application, for peers with a window to reach: `peer`, and those
    /// who share its registrations. The memory stays valid until the registration is dropped.
    fn register(
        &mut self,
        _peer: PeerIndex,
        _request: &RegistrationRequest,
    ) -> Option<Arc<dyn Registration>> {
        None
    }

    /// Registers memory of the application for our own adapter, which reaches `peer`, and tells what
    /// requests name it by. The memory stays valid until the registration is dropped.
    fn register_own(
        &mut self,
        _peer: PeerIndex,
        _memory: Piece,
        _written: bool,
    ) -> Option<OwnRegistration> {
        None
    }

    /// Starts an operation through the window to `peer`. Operations to one peer take effect in the
    /// order of their starts.
    fn start(&mut self, _peer: PeerIndex, _request: &Request) -> Started {
        Started::Refused
    }

    /// Starts an atomic operation through the window to `peer`, as [`Self::start`] does others. It
    /// is under way, finds no room, or is refused.
    fn start_atomic(&mut self, _peer: PeerIndex, _request: &AtomicRequest) -> Started {
        Started::Refused
    }

    /// Looks for an operation that is over. Those of a peer that was disconnected need not be told.
    fn finished(&mut self) -> Found {
        Found::Nothing
    }

    /// Ends the window to `peer`: the adapter touches no memory of ours for it when this returns.
    /// `finished` tells what was under way, as for a window that failed.
    fn close_window(&mut self, _peer: PeerIndex) {}

    /// The shortest messages that are lent to `peer`, whose adapter reads them, if any are: see
    /// [`crate::protocol::fetch`].
    fn lends_to(&self, _peer: PeerIndex) -> Option<LoanWorth> {
        None
    }

    /// Lends a message to `peer`. Its memory stays valid until the loan is dropped.
    fn lend(&mut self, _peer: PeerIndex, _message: Piece) -> Option<Loan> {
        None
    }

    /// Whether a window to `peer`, which is connected, reaches what it lends.
    fn fetches_from(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Whether a packet to `peer`, which is connected, may still be lost after [`Self::push`] took
    /// it: if the connection fails, or this process ends.
    fn confirms(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Has the next packet to `peer` be confirmed without others behind it.
    fn confirm_next(&mut self, _peer: PeerIndex) {}

    /// How many packets were pushed to `peer`, wrapping.
    fn pushed(&self, _peer: PeerIndex) -> u32 {
        0
    }

    /// How many of them the peer is known to have: nothing that happens to us takes them back.
    fn confirmed(&mut self, _peer: PeerIndex) -> u32 {
        0
    }

    /// Joins a multicast group, to hear it if `receives`. Sending takes joining as well. Whoever
    /// sends to it from when this has returned is heard. Cold.
    fn join(&mut self, group: Address, _receives: bool) -> Result<Spread, Unreachable> {
        let reason = format!("nothing carries datagrams to {group}");
        Err(Unreachable { errno: crate::error::Errno::OPNOTSUPP, reason })
    }

    /// Who hears a group that is listed, but for ourselves, if that has changed since the last
    /// call; each address once. Cost: one load if it has not.
    fn members(&mut self, _group: Address) -> Option<Vec<Member>> {
        None
    }

    /// Takes a member that is gone from the list of its group, for everybody. Cold.
    fn expel(&mut self, _group: Address, _member: Member) {}

    /// Whether certainly nobody is at `address`, where a listed member was. Cold.
    fn is_deserted(&self, _address: Address) -> bool {
        false
    }

    /// Leaves a group that was joined.
    fn leave(&mut self, _group: Address) {}

    /// Takes up a [`TransportEvent::Overheard`] as `peer`: datagrams to groups are told apart by
    /// their senders.
    fn recognize(&mut self, _peer: PeerIndex, _ticket: u64) {}

    /// Pushes a datagram to all who hear a group that is carried, but for ourselves. Returns false
    /// if there is no room now.
    fn push_to_group(
        &mut self,
        _group: Address,
        _head: Head,
        _word: u64,
        _words: &[u64],
        _payload: Piece,
    ) -> bool {
        false
    }

    /// How many such packets find room now, at least.
    fn group_room(&self) -> usize {
        usize::MAX
    }

    /// Whether `event` has something. Cost: one load.
    fn has_event(&self) -> bool;

    /// The next event.
    fn event(&mut self) -> Option<TransportEvent>;

    /// Asks every peer to ring the bell when it sends, for a thread that wants to
    /// sleep. Returns false if a packet or an event is already there, so that
    /// sleeping would be wrong. Silences the bell first.
    fn arm(&mut self) -> bool;

    /// The counterpart of each `arm`: one thread sleeps no more. Peers need not
    /// ring after the last. Before that the others sleep on: if something is
    /// there, whose ring may have been silenced, the bell rings for them.
    fn disarm(&mut self);

    /// Rings the bell for our own sleepers.
    fn ring(&self);

    /// What a sleeper waits for: readable when the bell rings.
    fn bell(&self) -> RawFd;

    /// Sleeps until one of `bells` is readable or `timeout` is over.
    fn sleep(bells: &[RawFd], timeout: Option<Duration>);
}

//! Windows: how an adapter reaches a peer's memory by itself, without the peer's processor.
//!
//! The adapter is a device, or our own thread where the kernel copies between processes for it. A
//! transport with such an adapter opens a *window* to a peer: a way of its own, beside that of the
//! packets, so that an access that is refused ends the window alone. The two ends exchange an
//! [`Invitation`] each. What the peer permits is told region by region, as a [`Lease`]: to
//! one peer that asks, or to all by a [`Publisher`].

use std::{
    fmt, ptr,
    sync::{Arc, Weak},
};

use crate::{engine::permitted::Permitted, flags::Flags, memory::Piece};

/// What one end of a window says of itself: the transport's own, carried by core.
pub type Invitation = [u64; 4];

/// Memory of the application that an adapter may reach: until the value is dropped, when nothing
/// of it is read or written any more.
pub trait Registration: Send + Sync {
    /// What a peer's adapter names it by.
    fn remote_key(&self) -> u32;

    /// Whether it is over before it was dropped, so that the drop has nothing to wait for.
    fn is_over(&self) -> bool {
        false
    }

    /// It is about to be dropped: where that waits for peers, they begin nothing more.
    fn revoke(&self) {}
}

/// Where an endpoint tells all peers with a window of its domain's regions, so that none has to ask.
pub trait Publisher: Send + Sync {
    /// What tells those peers from all other audiences of leases.
    fn audience(&self) -> u64;

    /// Tells of a region under its key, if there is room for it: until the value is dropped, as
    /// any [`Registration`]. The lease's own key is not used.
    fn publish(&self, key: u64, lease: &Lease) -> Option<Arc<dyn Registration>>;
}

/// Memory of the application for an adapter to reach.
pub struct RegistrationRequest {
    /// Where it lies.
    pub memory: Piece,
    /// What peers may do to it.
    pub access: Access,
    /// Whether our own adapter writes to it.
    pub local_write: bool,
    /// Whether the application maps nothing else there meanwhile: else a device, which goes on with the
    /// pages that memory had when it was registered, has to leave it alone.
    pub keeps_pages: bool,
}

/// Memory of the application as our own adapter knows it, until the last of these is dropped.
#[derive(Clone)]
pub struct OwnRegistration {
    local_key: u32,
    _registration: Arc<dyn Registration>,
}

impl OwnRegistration {
    /// A registration that requests name so.
    pub fn new(local_key: u32, registration: Arc<dyn Registration>) -> OwnRegistration {
        OwnRegistration { local_key, _registration: registration }
    }

    /// What requests name it by.
    pub fn local_key(&self) -> u32 {
        self.local_key
    }
}

impl fmt::Debug for OwnRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnRegistration").field(&self.local_key).finish()
    }
}

/// What lets a peer's adapter read a message of ours, until it is dropped.
pub struct Loan {
    remote_key: u32,
    by: By,
}

/// What lets the peer read.
enum By {
    /// A registration for this message alone, which ends with the loan.
    Message { _registration: Arc<dyn Registration> },
    /// One that the transport keeps for other messages, and not for this one's sake.
    Kept { registration: Weak<dyn Registration> },
    /// The lease of the region that it lies in: nothing ends with such a loan.
    Lease,
}

impl Loan {
    /// A loan by a registration for it alone.
    pub fn new(registration: Arc<dyn Registration>) -> Loan {
        let remote_key = registration.remote_key();
        Loan { remote_key, by: By::Message { _registration: registration } }
    }

    /// A loan by a registration that its transport keeps, and does not end while there are such loans
    /// unless it has to, or they are taken back ([`Windows::take_back`]).
    ///
    /// [`Windows::take_back`]: crate::transport::Windows::take_back
    pub fn kept(registration: &Arc<dyn Registration>) -> Loan {
        let remote_key = registration.remote_key();
        Loan { remote_key, by: By::Kept { registration: Arc::downgrade(registration) } }
    }

    /// A loan of what lies in a region that is leased to the peer.
    pub(crate) fn leased(lease: &Lease) -> Loan {
        Loan { remote_key: lease.remote_key, by: By::Lease }
    }

    /// Whether it is by a region's lease, which ends with the region.
    pub(crate) fn is_leased(&self) -> bool {
        matches!(self.by, By::Lease)
    }

    /// Whether it is by a registration that the transport keeps.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.by, By::Kept { .. })
    }

    /// Whether it is by that one, which the transport keeps.
    pub fn is_by<R: Registration>(&self, registration: &Arc<R>) -> bool {
        matches!(&self.by, By::Kept { registration: its }
            if ptr::addr_eq(its.as_ptr(), Arc::as_ptr(registration)))
    }

    /// What the peer's adapter names the message by.
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

/// The shortest messages that are worth lending. Units: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanWorth {
    /// One that is lent in any case.
    pub always: usize,
    /// One of a stream that is lent if that costs no registration for it alone.
    pub streaming: usize,
    /// One that goes alone, and is lent if that costs no registration for it alone, and is found to be faster than
    /// packets.
    pub contested: usize,
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({:#x})", self.remote_key())
    }
}

/// What is worth a window: no shorter operation is. Units: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth {
    /// One that nothing of ours is under way before.
    pub alone: usize,
    /// One of a stream, which the target works on at the same time if it goes as packets.
    pub streaming: usize,
    /// Packets may be faster all the same: both are tried, and what is faster is done.
    pub contested: bool,
    /// A write may carry 32 bits of data along ([`Request::data`]).
    pub carries_data: bool,
    /// The buffer of one of so many bytes is registered, unless it is ([`Request::local_key`]).
    pub registers: usize,
}

impl Worth {
    /// Every operation that has a byte is, and the buffers of those of `registers` bytes are registered.
    pub const fn always(registers: usize) -> Worth {
        Worth { alone: 1, streaming: 1, contested: false, carries_data: true, registers }
    }
}

/// What the target permits: part of its memory, by its own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The remote address of the first byte, as initiators give it.
    pub base: u64,
    /// Units: bytes.
    pub length: u64,
    /// Where that byte lies at the target.
    pub address: u64,
    /// What the target's adapter knows the memory by.
    pub remote_key: u32,
    /// What may be done.
    pub access: Access,
}

/// What peers may do to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Read it.
    pub read: bool,
    /// Write to it.
    pub write: bool,
    /// Change words of it in one step: no processor does that then.
    pub atomic: bool,
}

impl Access {
    /// What an adapter may do of what is permitted. What fetches and changes reads and writes.
    pub fn of(permitted: Permitted) -> Access {
        let (read, write) = (Flags::REMOTE_READ, Flags::REMOTE_WRITE);
        Access {
            read: permitted.rma.contains(read),
            write: permitted.rma.contains(write),
            atomic: permitted.atomics.contains(read | write),
        }
    }

    /// Whether it is any.
    pub fn is_any(self) -> bool {
        self.read || self.write || self.atomic
    }
}

/// What an adapter is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Local bytes to the target.
    Write,
    /// The target's bytes to us.
    Read,
}

/// An operation for an adapter.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back when it is over.
    pub token: u64,
    /// What is done.
    pub direction: Direction,
    /// Where, by the target's own addresses.
    pub address: u64,
    /// The target's key.
    pub remote_key: u32,
    /// Our bytes: usable until the operation is over, or the peer is disconnected.
    pub local: Piece,
    /// Of a write: what the target is told when it is done, as an arrival of
    /// [`crate::wire::Kind::Written`].
    pub data: Option<u32>,
    /// What our adapter knows our bytes by, if they are registered ([`Windows::register_own`]).
    ///
    /// [`Windows::register_own`]: crate::transport::Windows::register_own
    pub local_key: Option<u32>,
}

impl Request {
    /// In the token: its name is one of an incoming message.
    pub(crate) const FETCHED: u64 = 1 << 31;

    /// Whether it reads a message that its sender has announced.
    pub fn is_fetch(&self) -> bool {
        self.token & Self::FETCHED != 0
    }
}

/// What an adapter does to a word of the target's memory in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds this to it, modulo 2^64.
    Add(u64),
    /// Replaces it, if it is what is expected.
    Swap {
        /// What has to be there.
        expected: u64,
        /// What is there afterwards.
        value: u64,
    },
}

/// An atomic operation for an adapter.
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest {
    /// Comes back when it is over.
    pub token: u64,
    /// What is done.
    pub change: Change,
    /// To which word, by the target's own addresses: a multiple of 8.
    pub address: u64,
    /// The target's key.
    pub remote_key: u32,
}

/// What became of an attempt to start an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// It is under way. Of an injected one the local bytes are needed no more.
    Yes,
    /// It is under way, and our bytes were registered for it alone.
    Registered,
    /// It is done.
    Done,
    /// The bytes of a write are there, but the lease was over by then: its owner may have had the memory
    /// back before.
    Landed,
    /// There is no room now.
    NoRoom,
    /// The adapter cannot do it: it has to go as packets.
    Refused,
    /// The lease is over: it has to go as packets, and another lease may be had.
    Ended,
}

impl Started {
    /// Whether it goes, or has gone, by the adapter.
    pub fn is_started(self) -> bool {
        matches!(self, Started::Yes | Started::Registered | Started::Done)
    }
}

/// What a look at the operations that are under way found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// One is over.
    Finished(Finished),
    /// None is over, but one has come further.
    Progress,
    /// Nothing new.
    Nothing,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The request's.
    pub token: u64,
    /// How.
    pub end: End,
}

/// The end of an operation. But for the first the window is closed, and those that were under way
/// are told from the newest to the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is done. Of an atomic one: what was there before.
    Done(u64),
    /// Nothing of it has happened that may not happen again.
    Undone,
    /// It may have been done, or not: it fails, for the target's reason if that refuses it.
    Doubtful,
}

/// What travels for a key that is no region's: it may be one's at any moment, and its operations
/// are refused until then, so nobody remembers it.
pub const NO_REGION: [u64; 4] = [0, 0, 0, 1 << 34];

impl Lease {
    /// Where `length` bytes at remote address `at` lie at the target, if they may be reached so.
    #[inline(always)]
    pub fn locate(&self, at: u64, length: u64, direction: Direction) -> Option<u64> {
        let permitted = match direction {
            Direction::Write => self.access.write,
            Direction::Read => self.access.read,
        };
        if permitted { self.place(at, length) } else { None }
    }

    #[inline(always)]
    fn place(&self, at: u64, length: u64) -> Option<u64> {
        let offset = at.wrapping_sub(self.base);
        let inside = at >= self.base && offset <= self.length && length <= self.length - offset;
        inside.then(|| self.address.wrapping_add(offset))
    }

    /// Whether `length` bytes at the target's own address `at` may be reached so.
    pub(crate) fn reaches(&self, at: u64, length: u64, direction: Direction) -> bool {
        Lease { base: self.address, ..*self }.locate(at, length, direction).is_some()
    }

    /// Where the word at remote address `at` lies at the target, if it may be changed in one step.
    pub fn locate_word(&self, at: u64) -> Option<u64> {
        let address = self.place(at, 8)?;
        (self.access.atomic && address.is_multiple_of(8)).then_some(address)
    }

    /// As it travels.
    pub fn to_words(self) -> [u64; 4] {
        let Access { read, write, atomic } = self.access;
        let access = u64::from(read) << 32 | u64::from(write) << 33 | u64::from(atomic) << 35;
        [self.base, self.length, self.address, u64::from(self.remote_key) | access]
    }

    /// From what travelled; none if it permits nothing.
    pub fn from_words([base, length, address, word]: [u64; 4]) -> Option<Lease> {
        let access = Access {
            read: word & 1 << 32 != 0,
            write: word & 1 << 33 != 0,
            atomic: word & 1 << 35 != 0,
        };
        let remote_key = word as u32;
        let some = access.is_any();
        some.then_some(Lease { base, length, address, remote_key, access })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease {
        base: 0x1000,
        length: 100,
        address: 0x7000,
        remote_key: u32::MAX,
        access: Access { read: false, write: true, atomic: false },
    };
    const ATOMIC: Lease =
        Lease { access: Access { read: true, write: true, atomic: true }, ..LEASE };

    #[test]
    fn a_lease_travels_whole_and_one_that_permits_nothing_is_none() {
        assert_eq!(Lease::from_words(LEASE.to_words()), Some(LEASE));
        assert_eq!(Lease::from_words(ATOMIC.to_words()), Some(ATOMIC));
        assert_eq!(Lease::from_words([1, 2, 3, 4]), None);
        assert_eq!(Lease::from_words(NO_REGION), None);
    }

    #[test]
    fn what_is_not_within_or_not_permitted_is_not_located() {
        let locate = |at, length| LEASE.locate(at, length, Direction::Write);
        assert_eq!((locate(0x1000, 100), locate(0x1064, 0)), (Some(0x7000), Some(0x7064)));
        for (at, length) in [(0xfff, 1), (0x1000, 101), (0x1064, 1), (0x1001, u64::MAX)] {
            assert_eq!(locate(at, length), None);
        }
        assert_eq!(LEASE.locate(0x1000, 1, Direction::Read), None);
    }

    #[test]
    fn words_are_whole_aligned_and_for_who_may_change_them() {
        assert_eq!(ATOMIC.locate_word(0x1058), Some(0x7058));
        // The last word has 4 bytes.
        assert_eq!([0x1001, 0x1060, 0xff8].map(|at| ATOMIC.locate_word(at)), [None; 3]);
        assert_eq!(LEASE.locate_word(0x1058), None);
    }
}

//! Windows: reads and writes of a peer's memory by our own thread, by process_vm_readv(2) and
//! process_vm_writev(2). The peer's processor has no part in them.
//!
//! A window is the permit that the peer told of ([`crate::permit`]). What the peer lent to us is a word in
//! our lane to it, which is marked as in use around each copy ([`kestrel_core::ring::leases`]). What all may
//! reach is in its catalogue, and around each copy another word says which of it
//! ([`kestrel_core::ring::catalogue`]). A copy is over when its call returns. One of more than a stretch
//! goes on at later polls, so that no call takes long, and no peer that takes its memory back waits long.

use std::{
    io,
    sync::{Arc, Weak},
};

use kestrel_core::{
    memory::Piece,
    ring::{
        catalogue::{Catalogue, EntryName, Visit},
        leases::{LeaseName, Leases},
    },
    transport::{PeerIndex, Transport, Windows},
    window::{
        Access, Direction, End, Finished, Found, Invitation, Lease, Publisher, Registration,
        RegistrationRequest, Request, Started, Worth,
    },
};

use super::{Peer, ShmTransport, single_copy::succeeded};
use crate::{
    catalogue::{OwnCatalogue, PeerCatalogue},
    cma::PeerMemory,
    guest::{Guest, permit_of},
    lane::SendLane,
    memory_file::MemoryFile,
};

/// What is worth a window. Below, packets take less than the system call; in a stream they do
/// longer, since both sides copy at once. Units: bytes.
const ALONE: usize = 2 << 10;
/// The same in a stream. Units: bytes.
const STREAMING: usize = 32 << 10;
/// A copy of so many bytes or fewer goes by the file of the peer's memory. A longer one would go
/// page by page there. Units: bytes.
const BY_FILE: usize = 4 << 10;
/// Bytes that one call copies at most.
const STRETCH: usize = 1 << 20;
/// Windows to one peer that may fail, one after the other, without anything having gone through
/// them, before no more is asked for.
const FAILURES_MAX: u32 = 64;

/// Our end of a window.
pub(super) struct Window {
    /// The peer's memory, with the permit that it gave.
    memory: PeerMemory,
    /// The same as a file, if that can be had.
    file: Option<MemoryFile>,
    /// What the peer lets us reach without asking, if it tells of any.
    catalogue: Option<PeerCatalogue>,
    /// An operation is under way in it.
    is_busy: bool,
    /// Something went through it.
    worked: bool,
}

impl Window {
    /// The file by which an operation of `length` bytes is copied, if it is.
    #[inline]
    fn file_for(&self, length: usize) -> Option<&MemoryFile> {
        self.file.as_ref().filter(|_| length <= BY_FILE)
    }

    #[inline]
    fn copy(
        &self,
        file: Option<&MemoryFile>,
        direction: Direction,
        remote: u64,
        local: Piece,
    ) -> io::Result<()> {
        let (bytes, length) = (local.as_ptr(), local.len());
        // SAFETY: the piece is usable for its length; the kernel checks the other side.
        unsafe {
            match (file, direction) {
                (Some(file), Direction::Write) => file.write(remote, bytes, length),
                (Some(file), Direction::Read) => file.read(remote, bytes, length),
                (None, Direction::Write) => self.memory.write(remote, bytes, length),
                (None, Direction::Read) => self.memory.read(remote, bytes, length),
            }
        }
    }
}

/// What a copy is permitted by, as long as it lasts.
enum Leave<'a> {
    /// A lease of our own.
    Lease(&'a Leases, LeaseName),
    /// An entry that is there for all.
    Entry(&'a Catalogue, &'a Visit, EntryName),
}

impl<'a> Leave<'a> {
    /// Begins a copy to or from so many bytes at `remote`, unless what permits it is over, or all is.
    #[inline]
    fn take(
        lane: &'a SendLane,
        window: &'a Window,
        request: &Request,
        (remote, length): (u64, usize),
    ) -> Result<Leave<'a>, Reached> {
        let Some(name) = EntryName::from_key(request.remote_key) else {
            let (leases, lease) = (lane.leases(), LeaseName::from_key(request.remote_key));
            let taken = leases.take(lease).then_some(Leave::Lease(leases, lease));
            return taken.ok_or(Reached::Ended);
        };
        let (catalogue, visit) = (window.catalogue.as_ref().ok_or(Reached::Ended)?, lane.visit());
        let catalogue = catalogue.get();
        if catalogue.visit(visit, name, (remote, length as u64), request.direction) {
            return Ok(Leave::Entry(catalogue, visit, name));
        }
        // There is another permit to be had.
        Err(if visit.is_barred() { Reached::Failed } else { Reached::Ended })
    }

    /// The copy is over. False if the peer took its memory back meanwhile: it may not have waited for us.
    #[inline]
    fn give_back(self) -> bool {
        match self {
            Leave::Lease(leases, lease) => leases.give_back(lease),
            Leave::Entry(catalogue, visit, name) => catalogue.leave(visit, name),
        }
    }
}

/// An operation that takes more than one stretch.
pub(super) struct Long {
    pub(super) peer: PeerIndex,
    request: Request,
    done: usize,
}

/// How a copy went.
#[derive(Debug, PartialEq, Eq)]
enum Reached {
    /// All of it is done, up to there.
    To(usize),
    /// All of a write is written, and who took its memory back may not have waited for that.
    Landed,
    /// The lease is over.
    Ended,
    /// The kernel does not permit it, or the peer has taken its permit back.
    Failed,
}

/// Copies the next stretch of a request.
#[inline]
fn reach(lane: &SendLane, window: &Window, request: &Request, from: usize) -> Reached {
    let local = request.local.part(from, STRETCH);
    let remote = request.address.wrapping_add(from as u64);
    let leave = match Leave::take(lane, window, request, (remote, local.len())) {
        Ok(leave) => leave,
        Err(over) => return over,
    };
    let file = window.file_for(request.local.len());
    let copied = window.copy(file, request.direction, remote, local);
    let still_lent = leave.give_back();
    if !succeeded(&window.memory, copied) {
        return Reached::Failed;
    }
    let to = from + local.len();
    if still_lent {
        Reached::To(to)
    } else {
        reached_without(request.direction, file.is_some(), to, || window.memory.is_permitted())
    }
}

/// How a copy up to `to` went whose lease was taken back meanwhile, by who waits for us, but not for ever.
#[cold]
fn reached_without(
    direction: Direction,
    by_file: bool,
    to: usize,
    is_permitted: impl FnOnce() -> bool,
) -> Reached {
    match direction {
        // Who took the memory back need not have waited for a reader.
        Direction::Read => Reached::Ended,
        // Nor for a writer, who writes nothing without a permit. The file asks for none; but a permit that
        // is still there was there before, and who does not wait for us takes it away first.
        Direction::Write if by_file && !is_permitted() => Reached::Landed,
        Direction::Write => Reached::To(to),
    }
}

impl Peer {
    /// What goes through a window to it.
    #[inline(always)]
    pub(super) fn windows(&self, contested: bool) -> Option<Worth> {
        let permitted = self.send.as_ref().is_some_and(|lane| lane.peer.memory.is_some());
        let worth = Worth {
            alone: ALONE,
            streaming: STREAMING,
            contested,
            // Who copies has no way to tell.
            carries_data: false,
            registers: usize::MAX,
        };
        (permitted && self.windows_failed < FAILURES_MAX).then_some(worth)
    }

    /// Nobody reaches our memory any more who came by the lane that ends now, but is there still.
    pub(super) fn dismiss_guest(&mut self) {
        self.has_no_guest();
        self.guest = None;
    }

    /// Whether there is none any more: who is at something still is dismissed, and not gone.
    fn has_no_guest(&mut self) -> bool {
        let share = || self.receive.as_ref().and_then(|lane| lane.peer.share.clone());
        let is_gone = |guest: &Arc<Guest>| guest.dismiss(share());
        self.guest.take_if(|guest| is_gone(guest));
        self.guest.is_none()
    }

    /// Where the peer lists what all may reach, by the secret that it told. Its pool is that of the sender of
    /// the lane to us, who has to be the receiver of ours.
    fn catalogue(&self, secret: u64) -> Option<PeerCatalogue> {
        let (send, receive) = (self.send.as_ref()?, self.receive.as_ref()?);
        let one = send.peer.process == receive.peer.process
            && send.peer.incarnation == receive.peer.incarnation;
        one.then(|| PeerCatalogue::of(receive.pool(), secret)).flatten()
    }
}

impl ShmTransport {
    #[cold]
    fn end_window(&mut self, peer: PeerIndex) {
        let record = self.peer(peer);
        // Who takes its memory back from one who was stopped ends a window that was good.
        let worked = record.window.take().is_some_and(|window| window.worked);
        record.windows_failed = if worked { 0 } else { record.windows_failed + 1 };
    }
}

impl Windows for ShmTransport {
    #[inline(always)]
    fn windows_to(&self, peer: PeerIndex) -> Option<Worth> {
        self.peers.get(peer as usize)?.windows(self.limits.contested)
    }

    #[inline(always)]
    fn is_window_open(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer as usize).is_some_and(|peer| peer.window.is_some())
    }

    /// All that there is to say is that we are here.
    fn invite(&mut self, peer: PeerIndex) -> Option<Invitation> {
        self.windows_to(peer).map(|_| Invitation::default())
    }

    /// The peer's permit has come.
    fn open_window(&mut self, peer: PeerIndex, theirs: Invitation) -> bool {
        let record = self.peer(peer);
        let memory = record.send.as_ref().and_then(|lane| lane.peer.memory.as_ref());
        let (Some(memory), Some((address, nonce))) = (memory, permit_of(theirs)) else {
            return false;
        };
        let memory = memory.with_nonce(address, nonce);
        let file = MemoryFile::open(memory.pid(), address, nonce);
        let file = file.inspect_err(|error| tracing::info!(%error, "no file of a peer's memory"));
        let catalogue = record.catalogue(theirs[3]);
        let file = file.ok();
        record.window = Some(Window { memory, file, catalogue, is_busy: false, worked: false });
        true
    }

    /// Gives a peer leave to reach what it will be lent: what an earlier guest had is over.
    fn admit(&mut self, peer: PeerIndex, _: Invitation, _: Access) -> Option<Invitation> {
        let catalogue = self.catalogue.clone();
        let record = self.peer(peer);
        if !record.has_no_guest() {
            // Nobody asks in the middle of a copy, and something would be kept of each who says so.
            tracing::warn!("a peer asks for a window while it copies: it gets none");
            return None;
        }
        let lane = record.receive.as_ref()?;
        // Without a pidfd nobody tells us that a guest died in the middle of a copy.
        let life = lane.peer.life.clone()?;
        let others = catalogue.as_ref().map_or(Weak::new(), |it| Arc::downgrade(it.guests()));
        let guest = Guest::admit(lane.memory().clone(), life, others);
        let guest = guest.inspect_err(|error| tracing::info!(%error, "no window")).ok()?;
        let guest = record.guest.insert(Arc::new(guest));
        let secret = catalogue.map_or(0, |catalogue| {
            catalogue.guests().enter(guest.clone());
            catalogue.secret()
        });
        Some(guest.invitation(secret))
    }

    fn publisher(&mut self, peer: PeerIndex) -> Option<Arc<dyn Publisher>> {
        // As in `admit`: nobody else gets a window.
        self.peers.get(peer as usize)?.receive.as_ref()?.peer.life.as_ref()?;
        if self.catalogue.is_none() {
            let made = OwnCatalogue::over(self.station.pool());
            let made = made.inspect_err(|error| tracing::info!(%error, "no catalogue"));
            self.catalogue = made.ok().map(Arc::new);
        }
        self.catalogue.clone().map(|catalogue| catalogue as _)
    }

    #[inline]
    fn published(&self, peer: PeerIndex, key: u64) -> Option<Lease> {
        let window = self.peers.get(peer as usize)?.window.as_ref()?;
        window.catalogue.as_ref()?.find(key)
    }

    fn audience(&self, peer: PeerIndex) -> u64 {
        let guest = self.peers.get(peer as usize).and_then(|peer| peer.guest.as_ref());
        guest.map_or(u64::MAX, |guest| guest.number())
    }

    /// Lends memory to the one peer that asked for it. The kernel copies by addresses: whatever the
    /// memory is then.
    fn register(
        &mut self,
        peer: PeerIndex,
        _: &RegistrationRequest,
    ) -> Option<Arc<dyn Registration>> {
        let guest = self.peers.get(peer as usize)?.guest.as_ref()?;
        Some(Arc::new(guest.lend()?))
    }

    /// The lane to a peer is gone, or another: its window was for the old one.
    fn close_window(&mut self, peer: PeerIndex) {
        let record = self.peer(peer);
        (record.window, record.windows_failed) = (None, 0);
        self.long.retain(|long| long.peer != peer);
    }

    #[inline]
    fn start(&mut self, peer: PeerIndex, request: &Request) -> Started {
        let Some(Peer { send: Some(lane), window: Some(window), .. }) =
            self.peers.get_mut(peer as usize)
        else {
            return Started::Refused;
        };
        if window.is_busy {
            return Started::NoRoom;
        }
        match reach(lane, window, request, 0) {
            Reached::To(end) if end == request.local.len() => {
                window.worked = true;
                Started::Done
            }
            Reached::To(done) => {
                (window.is_busy, window.worked) = (true, true);
                self.long.push_back(Long { peer, request: *request, done });
                if self.armed > 0 {
                    // Nobody else goes on with it.
                    self.ring();
                }
                Started::Yes
            }
            Reached::Landed => Started::Landed,
            Reached::Ended => Started::Ended,
            Reached::Failed => {
                self.end_window(peer);
                Started::Refused
            }
        }
    }

    /// Copies some more of the operation whose turn it is.
    fn finished(&mut self) -> Found {
        let Some(mut long) = self.long.pop_front() else {
            return Found::Nothing;
        };
        let (peer, token) = (long.peer, long.request.token);
        let Some(Peer { send: Some(lane), window: Some(window), .. }) =
            self.peers.get_mut(peer as usize)
        else {
            return Found::Finished(Finished { token, end: End::Undone });
        };
        let end = match reach(lane, window, &long.request, long.done) {
            Reached::To(end) if end < long.request.local.len() => {
                long.done = end;
                self.long.push_back(long);
                return Found::Progress;
            }
            Reached::To(_) => End::Done(0),
            // One that goes on is too long for the file.
            Reached::Landed | Reached::Ended => End::Undone,
            Reached::Failed => {
                self.end_window(peer);
                return Found::Finished(Finished { token, end: End::Undone });
            }
        };
        window.is_busy = false;
        Found::Finished(Finished { token, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a close need not have waited for did not go well: but a write with a permit goes no other way.
    #[test]
    fn a_copy_without_its_lease_is_done_if_it_had_a_permit() {
        use Direction::{Read, Write};
        for (by_file, permitted) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(reached_without(Read, by_file, 9, || permitted), Reached::Ended);
        }
        assert_eq!(reached_without(Write, true, 9, || false), Reached::Landed);
        assert_eq!(reached_without(Write, true, 9, || true), Reached::To(9));
        assert_eq!(reached_without(Write, false, 9, || panic!("it had one")), Reached::To(9));
    }
}

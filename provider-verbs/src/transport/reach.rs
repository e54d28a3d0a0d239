//! Operations that go through a window: started, and ended by their completions.
//!
//! Short ones use a bounce buffer, or go inline. For a longer one the application's buffer is
//! registered until it is over, unless the application has registered it, or a registration is kept.

use kestrel_core::{
    memory::Piece,
    transport::PeerIndex,
    window::{AtomicRequest, Direction, End, Finished, Request, Started},
};

use super::{BUFFER_BYTES, Owner, RcTransport, window::REACHES_MAX};
use crate::{
    registrations::Holding,
    send_pool::{INLINE_BYTES_MAX, SendPool, SlotIndex},
    verbs::{
        Completion, QueuePair, Region, RemoteMemory, Segment, SendRequest, Status, Verb, Verbs,
    },
};

/// An operation under way.
pub struct UnderWay<V: Verbs> {
    /// What its completion is called: no other ever is.
    request: u64,
    pub(super) token: u64,
    /// Its bounce buffer; an inline place if it has none.
    pub(super) slot: SlotIndex,
    /// Where a read's bytes go from the bounce buffer.
    lands: Option<Piece>,
    kind: Kind,
    /// The application's buffer stays registered as long as this is there, at least.
    _registration: Option<Holding<V>>,
}

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    /// A write that carries data, which is not told twice.
    Tells,
    Read,
    Atomic,
}

/// Why a window has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The peer's device refused the oldest operation. It has not done that, nor what came behind it.
    Refused,
    /// The peer's device did not answer.
    Unanswered,
    /// We closed it, or our device did.
    Otherwise,
}

impl Ended {
    /// Whether what was under way can be done again.
    fn repeats(self, kind: Kind) -> bool {
        match kind {
            Kind::Read => true,
            // Where nobody answered for seconds its owner may have seen it, and written there since.
            Kind::Write => self != Ended::Unanswered,
            Kind::Tells | Kind::Atomic => self == Ended::Refused,
        }
    }
}

/// What an operation is called, and what it does.
struct Deed {
    token: u64,
    kind: Kind,
    verb: Verb,
}

/// What an operation uses at our side.
struct Local<V: Verbs> {
    slot: SlotIndex,
    segment: Segment,
    inline: bool,
    lands: Option<Piece>,
    registration: Option<Holding<V>>,
}

impl<V: Verbs> RcTransport<V> {
    #[inline(always)]
    pub(super) fn start_request(&mut self, peer: PeerIndex, request: &Request) -> Started {
        if !self.has_place_in_window(peer) {
            self.reap_sends();
            if !self.has_place_in_window(peer) {
                return Started::NoRoom;
            }
        }
        let at = RemoteMemory { address: request.address, key: request.remote_key };
        let (kind, verb) = match (request.direction, request.data) {
            (Direction::Read, _) => (Kind::Read, Verb::Read(at)),
            (Direction::Write, None) => (Kind::Write, Verb::Write(at)),
            (Direction::Write, Some(data)) => {
                if !self.window_of(peer).is_some_and(|window| window.carries_data) {
                    return Started::Refused;
                }
                (Kind::Tells, Verb::WriteImmediate(at, data))
            }
        };
        match self.prepare(peer, request) {
            Ok(local) => self.hold_deed(peer, Deed { token: request.token, kind, verb }, local),
            Err(started) => started,
        }
    }

    /// Starts an atomic operation, which takes a bounce buffer for the value from before.
    pub(super) fn start_change(&mut self, peer: PeerIndex, request: &AtomicRequest) -> Started {
        if !self.has_place_in_window(peer) {
            self.reap_sends();
            if !self.has_place_in_window(peer) {
                return Started::NoRoom;
            }
        }
        // Packets are no way for what the target has its device do alone.
        let Some(slot) = self.take_slot(peer) else {
            return Started::NoRoom;
        };
        let (region, start) = self.sends.buffer(slot);
        let address = region.memory().address(start);
        let segment = Segment { address, length: 8, local_key: self.sends.local_key() };
        let at = RemoteMemory { address: request.address, key: request.remote_key };
        let verb = Verb::Atomic(at, request.change);
        let deed = Deed { token: request.token, kind: Kind::Atomic, verb };
        let local = Local { slot, segment, inline: false, lands: None, registration: None };
        self.hold_deed(peer, deed, local)
    }

    /// Takes a buffer for an operation on the window of a peer, if that may have one more.
    #[inline(always)]
    fn take_slot(&mut self, peer: PeerIndex) -> Option<SlotIndex> {
        if !self.window_admits(peer) {
            self.reap_sends();
            if !self.window_admits(peer) {
                return None;
            }
        }
        self.sends.take()
    }

    #[inline(always)]
    fn window_admits(&self, peer: PeerIndex) -> bool {
        self.window_of(peer).is_some_and(|window| window.share.admits(&self.sends))
    }

    /// What becomes of an operation that gets no buffer: it waits, and where others keep them it goes as
    /// packets, which can be short; but what is fetched `waits`: refused once, no message would be again.
    #[cold]
    #[inline(never)]
    fn without_slot(&mut self, peer: PeerIndex, waits: bool) -> Started {
        let window = self.peers[peer as usize].window.as_mut();
        let is_starved =
            !waits && window.is_some_and(|window| window.hunger.is_long(&window.share));
        if is_starved { Started::Refused } else { Started::NoRoom }
    }

    #[inline(always)]
    fn has_place_in_window(&self, peer: PeerIndex) -> bool {
        let place = |window: &super::Window<V>| window.under_way.len() < REACHES_MAX as usize;
        self.window_of(peer).is_some_and(place) && self.sends.has_place()
    }

    /// Finds a place for the bytes at our side.
    #[inline(always)]
    fn prepare(&mut self, peer: PeerIndex, request: &Request) -> Result<Local<V>, Started> {
        let length = request.local.len();
        let writes = request.direction == Direction::Write;
        let inline_max = self.window_of(peer).map_or(0, |window| window.pair.inline_bytes_max());
        let address = request.local.as_ptr().addr() as u64;
        let segment = Segment { address, length: length as u32, local_key: 0 };
        if writes && length <= inline_max.min(INLINE_BYTES_MAX) {
            let slot = self.take_inline().ok_or(Started::NoRoom)?;
            let (region, start) = self.sends.buffer(slot);
            region.memory().copy_in(start, request.local);
            let address = region.memory().address(start);
            let (lands, registration) = (None, None);
            let segment = Segment { address, ..segment };
            return Ok(Local { slot, segment, inline: true, lands, registration });
        }
        if length > BUFFER_BYTES {
            let (local_key, registration) = self.key_of(request)?;
            let segment = Segment { local_key, ..segment };
            let slot = SendPool::<V>::INLINE;
            return Ok(Local { slot, segment, inline: false, lands: None, registration });
        }
        let Some(slot) = self.take_slot(peer) else {
            return Err(self.without_slot(peer, request.is_fetch()));
        };
        let (region, start) = self.sends.buffer(slot);
        if writes {
            region.memory().copy_in(start, request.local);
        }
        let address = region.memory().address(start);
        let segment = Segment { address, local_key: self.sends.local_key(), ..segment };
        let lands = (!writes).then_some(request.local);
        Ok(Local { slot, segment, inline: false, lands, registration: None })
    }

    /// What names the application's buffer: the key of its region, or of a registration, which may be kept.
    #[inline(always)]
    fn key_of(&mut self, request: &Request) -> Result<(u32, Option<Holding<V>>), Started> {
        if let Some(key) = request.local_key {
            return Ok((key, None));
        }
        let written = request.direction == Direction::Read;
        // What is fetched without that goes in parts.
        let anyway = !request.is_fetch() || request.local.len() >= self.fetch_min;
        // The operation has it until core hears that it is over, or its window.
        let found = self.registrations.registration(request.local, written, anyway);
        let holding = found.ok_or(Started::Refused)?;
        Ok((holding.registration.local_key(), Some(holding)))
    }

    /// Holds an operation back, as packets are.
    #[inline(always)]
    fn hold_deed(&mut self, peer: PeerIndex, deed: Deed, local: Local<V>) -> Started {
        let Deed { token, kind, verb } = deed;
        let Local { slot, segment, inline, lands, registration } = local;
        self.reached += 1;
        let number = self.reached;
        let Some(window) = &mut self.peers[peer as usize].window else {
            self.sends.give_back(slot);
            return Started::Refused;
        };
        let work = SendRequest {
            request: number,
            segment,
            inline,
            signalled: true,
            // What is still being read may not change. Writes and atomic operations a device
            // carries out in their order.
            fenced: kind != Kind::Read && window.reads > 0,
            verb,
        };
        if window.held.is_empty() {
            self.holding.push(Owner::Window(peer));
        }
        window.held.push(work);
        window.reads += u32::from(kind == Kind::Read);
        let registers = registration.as_ref().is_some_and(|holding| !holding.kept);
        let _registration = registration;
        window.share.note_taken(slot);
        window.under_way.push_back(UnderWay {
            request: number,
            token,
            slot,
            lands,
            kind,
            _registration,
        });
        self.sends.note_posted();
        if registers { Started::Registered } else { Started::Yes }
    }

    /// Posts the operations that are held back, as one chain. What the device does not take is done in
    /// another way.
    #[inline(always)]
    pub(super) fn post_deeds(&mut self, peer: PeerIndex) {
        let Some(window) = &mut self.peers[peer as usize].window else {
            return;
        };
        // SAFETY: segments are bounce buffers, which are not taken again before their request is
        // over or the queue pair is gone, or memory with a registration that is kept as long, here or
        // by core, or are copied by the call.
        let posted = unsafe { window.pair.post_sends(&window.held) };
        window.held.clear();
        if let Err(error) = posted {
            tracing::info!("a window takes no request: {error}");
            self.end_window(peer, Ended::Otherwise);
        }
    }

    /// A completion of a window's queue pair.
    #[inline(always)]
    pub(super) fn reach_completed(&mut self, peer: PeerIndex, completion: &Completion) {
        let Some(window) = &mut self.peers[peer as usize].window else {
            return;
        };
        // A completion of an earlier queue pair with that number is nobody's.
        let oldest = window.under_way.front().map(|oldest| oldest.request);
        if oldest != Some(completion.request) {
            return;
        }
        if completion.status != Status::SUCCESS {
            return self.window_failed(peer, completion.status);
        }
        if let Some(over) = window.under_way.pop_front() {
            window.reads -= u32::from(over.kind == Kind::Read);
            let (region, start) = self.sends.buffer(over.slot);
            if let Some(lands) = over.lands {
                region.memory().copy_out(start, lands);
            }
            window.share.note_returned(over.slot);
            let before = if over.kind == Kind::Atomic { region.memory().word(start) } else { 0 };
            self.sends.note_over(over.slot);
            self.finished.push_back(Finished { token: over.token, end: End::Done(before) });
        }
    }

    /// The queue pair of a window is in error: the window is closed.
    #[cold]
    #[inline(never)]
    fn window_failed(&mut self, peer: PeerIndex, status: Status) {
        tracing::info!(peer, "a window failed: {status}");
        let why = match status {
            Status::REMOTE_ACCESS | Status::REMOTE_INVALID => Ended::Refused,
            // The peer is gone, which the queue pair of its packets finds; or its device has refused, is in
            // error for that, and was not heard; or it has done what is under way, and was not heard.
            Status::RETRIES_EXCEEDED => Ended::Unanswered,
            _ => Ended::Otherwise,
        };
        self.end_window(peer, why);
    }

    /// Closes a window, and tells what was under way.
    #[cold]
    pub(super) fn end_window(&mut self, peer: PeerIndex, why: Ended) {
        let window = self.peers.get_mut(peer as usize).and_then(|peer| peer.window.take());
        if let Some(window) = window {
            self.owners.remove(&window.pair.number());
            let undone = window.end(&mut self.sends).rev();
            self.finished.extend(undone.map(|UnderWay { token, kind, .. }| {
                let end = if why.repeats(kind) { End::Undone } else { End::Doubtful };
                Finished { token, end }
            }));
        }
    }
}

//! The target: what a peer wants of our memory is validated and done, at once
//! and in the order of the lane.

use super::{
    SERVING_MAX, SNAPSHOT_MAX,
    several::{Several, carries_data, is_last},
};
use crate::{
    completion_queue::Entry,
    engine::{
        Engine,
        order::receive::{Owed, Receipt},
        peer::{PeerState, Reply},
    },
    flags::Flags,
    memory::Piece,
    memory_region::access::{Access, Refusal},
    protocol::{
        arrive::UNDER_WAY_MAX,
        atomic::{AtomicCall, AtomicOperation, Form, execute::execute},
    },
    transport::{Arrival, PeerIndex, Transport},
    wire::{self, Head, Kind},
};

/// A stretch of a region that a packet names.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub key: u64,
    pub address: u64,
    pub length: u64,
    /// Whether what changes has to be stored before it is answered.
    pub commits: bool,
}

/// Whether a packet's sender waits until what it changes is stored.
fn commits(arrival: &Arrival) -> bool {
    arrival.head.flags & wire::COMMIT != 0
}

impl<T: Transport> Engine<T> {
    /// Whether a packet is the rest of an operation that was refused.
    #[inline(always)]
    fn was_refused(&mut self, arrival: &Arrival) -> bool {
        Several::was_refused(&mut self.peers[arrival.peer as usize].several, arrival)
    }

    /// Tells why a packet's operation is not done, and leaves the rest of it alone.
    #[cold]
    #[inline(never)]
    fn refuse_remote(&mut self, arrival: &Arrival, refusal: Refusal) {
        let several = &mut self.peers[arrival.peer as usize].several;
        Several::refuse(several, arrival.word, is_last(arrival));
        self.forget_serving(arrival.peer, arrival.word);
        self.answer(arrival.peer, arrival.word, refusal.errno().0 as u64);
    }

    #[inline]
    pub(super) fn arrive_write(&mut self, arrival: Arrival) {
        if self.was_refused(&arrival) {
            return;
        }
        let with_data = arrival.head.kind == Kind::WriteData as u8;
        let data = with_data.then(|| self.transport.word(2));
        let length = arrival.length as u64;
        let (key, address) = (self.transport.word(0), self.transport.word(1));
        let stretch = Stretch { key, address, length, commits: commits(&arrival) };
        let placed = self.place(&arrival, stretch, 0, length);
        self.end_write(&arrival, length, data, placed);
    }

    #[inline(never)]
    pub(super) fn arrive_write_part(&mut self, arrival: Arrival) {
        let [key, address, length, offset, data] =
            std::array::from_fn(|index| self.transport.word(index));
        let data = carries_data(&arrival).then_some(data);
        if self.was_refused(&arrival) {
            return;
        }
        let part = arrival.length as u64;
        if offset > length || part > length - offset {
            return self.violation(arrival.peer, "a part of a write is outside of the write");
        }
        let stretch = Stretch { key, address, length, commits: commits(&arrival) };
        let placed = self.place(&arrival, stretch, offset, part);
        self.end_write(&arrival, length, data, placed);
    }

    /// Copies the last arrival's payload, `part` bytes, over a stretch from byte `offset` on.
    #[inline]
    fn place(
        &mut self,
        arrival: &Arrival,
        stretch: Stretch,
        offset: u64,
        part: u64,
    ) -> Result<(), Refusal> {
        if !self.setup.permitted.rma.contains(Flags::REMOTE_WRITE) {
            return Err(Refusal::Access);
        }
        // No bytes are in no region.
        if stretch.length == 0 {
            return Ok(());
        }
        let peer = arrival.peer;
        let copy_out = self.placing();
        let region = self.regions.find(stretch.key)?;
        region.admit(|| self.setup.who(&self.peers, peer))?;
        let start = region.offset_of(stretch.address, stretch.length)?;
        let access = region.access_as(Flags::REMOTE_WRITE)?;
        let transport = &self.transport;
        access.for_each_part(start + offset, part, |done, piece| copy_out(transport, done, piece));
        if offset + part == stretch.length {
            let stored =
                if stretch.commits { access.commit(start, stretch.length) } else { Ok(()) };
            drop(access);
            // The memory is modified, whether it is stored or not.
            let several = &mut self.peers[peer as usize].several;
            Several::note(several, arrival, stretch.length, region, Flags::REMOTE_WRITE);
            return stored;
        }
        Ok(())
    }

    /// Answers a write that was refused, or that is complete with this packet.
    #[inline]
    fn end_write(
        &mut self,
        arrival: &Arrival,
        length: u64,
        data: Option<u64>,
        placed: Result<(), Refusal>,
    ) {
        if let Err(refusal) = placed {
            return self.refuse_remote(arrival, refusal);
        }
        if !is_last(arrival) {
            return;
        }
        let several = self.peers[arrival.peer as usize].several.take();
        let operation = Some(arrival.word);
        let late = data.is_some_and(|data| {
            let length = several.as_ref().map_or(length, |several| several.bytes());
            self.report_remote_data(arrival.peer, operation, length, data)
        });
        // Who hears of it finds the entry.
        if let Some(several) = several {
            several.count();
        }
        self.count_remote(Flags::REMOTE_WRITE);
        if !late {
            self.answer(arrival.peer, arrival.word, 0);
        }
    }

    /// An adapter has written, and this came along. Nobody counts what adapters do: where it is
    /// counted none is admitted. Who was admitted may have written before the context closed that
    /// permitted it.
    #[inline(never)]
    pub(super) fn arrive_written(&mut self, peer: PeerIndex, word: u64) {
        if !self.setup.permitted.rma.contains(Flags::REMOTE_WRITE) {
            return;
        }
        let (data, length) = (word & u64::from(u32::MAX), word >> 32);
        self.report_remote_data(peer, None, length, data);
    }

    #[inline]
    fn count_remote(&self, kind: Flags) {
        let counters = &self.setup.one_sided;
        let counter = if kind == Flags::REMOTE_WRITE {
            &counters.remote_write
        } else {
            &counters.remote_read
        };
        if let Some(counter) = counter {
            counter.add(1);
        }
    }

    /// Remote CQ data came with a write, which has this name if it is to be answered: it takes no posted
    /// receive. Whether it is late, and answered when it is told.
    #[inline(never)]
    fn report_remote_data(
        &mut self,
        peer: PeerIndex,
        operation: Option<u64>,
        length: u64,
        data: u64,
    ) -> bool {
        let entry = Entry {
            flags: (Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA).bits(),
            length,
            data,
            source: self.peers[peer as usize].fi_addr,
            ..Entry::default()
        };
        if !self.receives_in_order {
            self.push_received(peer, entry);
            return false;
        }
        let late = operation.filter(|_| self.is_late(peer));
        let answer = |name| Owed::Late(Some(Reply::new(Kind::Done, name, 0)));
        let owed = late.map_or(Owed::Nothing, answer);
        self.tell_in_turn(peer, None, Receipt::Written(entry), owed);
        self.check_late(peer);
        late.is_some()
    }

    #[inline]
    pub(super) fn arrive_read(&mut self, arrival: Arrival) {
        let (peer, name) = (arrival.peer, arrival.word);
        let [key, address, length, offset] =
            std::array::from_fn(|index| self.transport.word(index));
        if self.was_refused(&arrival) {
            return;
        }
        if !self.setup.permitted.rma.contains(Flags::REMOTE_READ) {
            return self.refuse_remote(&arrival, Refusal::Access);
        }
        if length == 0 {
            self.answer(peer, name, 0);
            return self.served(is_last(&arrival));
        }
        let stretch = Stretch { key, address, length, commits: false };
        let served = match self.read_now(&arrival, stretch, offset) {
            Ok(true) => return self.read_is_served(&arrival),
            Ok(false) => self.serve_later(&arrival, stretch, offset),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = served {
            self.refuse_remote(&arrival, refusal);
        }
    }

    /// A packet of a read was served at once, and so were those before it.
    #[inline]
    fn read_is_served(&mut self, arrival: &Arrival) {
        if is_last(arrival) {
            if let Some(several) = self.peers[arrival.peer as usize].several.take() {
                several.count();
            }
            self.served(true);
        }
    }

    /// Sends what a short read asks for at once. False if it is long, in several
    /// pieces, or without room: then it is served in its turn.
    #[inline]
    fn read_now(
        &mut self,
        arrival: &Arrival,
        stretch: Stretch,
        offset: u64,
    ) -> Result<bool, Refusal> {
        let (peer, name) = (arrival.peer, arrival.word);
        let clear = self.can_answer(peer) && stretch.length <= SNAPSHOT_MAX as u64;
        let region = self.regions.find(stretch.key)?;
        region.admit(|| self.setup.who(&self.peers, peer))?;
        let start = region.offset_of(stretch.address, stretch.length)?;
        let access = region.access_as(Flags::REMOTE_READ)?;
        let piece = access.contiguous(start, stretch.length);
        let sent = clear
            && piece.len() as u64 == stretch.length
            && self.transport.push(peer, Head::new(Kind::Data, 0), name, &[offset], piece);
        drop(access);
        if sent {
            let several = &mut self.peers[peer as usize].several;
            Several::note(several, arrival, stretch.length, region, Flags::REMOTE_READ);
        }
        Ok(sent)
    }

    /// A read, or an atomic that fetches, was served as a whole.
    #[inline]
    pub(super) fn served(&self, last: bool) {
        if last {
            self.count_remote(Flags::REMOTE_READ);
        }
    }

    #[inline]
    pub(super) fn arrive_atomic(&mut self, arrival: Arrival) {
        let (peer, name) = (arrival.peer, arrival.word);
        let [key, address, word] = std::array::from_fn(|index| self.transport.word(index));
        let Some((call, length, offset)) = AtomicCall::from_word(word)
            .filter(|(call, length, _)| *length > 0 && call.payload(*length) == arrival.length)
        else {
            return self.violation(peer, "an atomic operation contradicts itself");
        };
        if self.was_refused(&arrival) {
            return;
        }
        let length_wide = length as u64;
        let stretch = Stretch { key, address, length: length_wide, commits: commits(&arrival) };
        if let Err(refusal) = self.execute_atomic(&arrival, call, stretch) {
            return self.refuse_remote(&arrival, refusal);
        }
        let last = is_last(&arrival);
        if last && let Some(several) = self.peers[peer as usize].several.take() {
            several.count();
        }
        if call.form != Form::Base {
            return self.answer_results(peer, name, length, offset, last);
        }
        if last {
            self.count_remote(Flags::REMOTE_WRITE);
            self.answer(peer, name, 0);
        }
    }

    #[inline]
    fn execute_atomic(
        &mut self,
        arrival: &Arrival,
        call: AtomicCall,
        stretch: Stretch,
    ) -> Result<(), Refusal> {
        let peer = arrival.peer;
        let needs = match (call.form, call.operation) {
            (Form::Base, _) => Flags::REMOTE_WRITE,
            (_, AtomicOperation::Read) => Flags::REMOTE_READ,
            _ => Flags::REMOTE_READ | Flags::REMOTE_WRITE,
        };
        if !self.setup.permitted.atomics.contains(needs) {
            return Err(Refusal::Access);
        }
        self.transport.copy_out(0, self.scratch.operands().part(0, arrival.length));
        if call.form != Form::Base {
            // What was fetched may have to be kept.
            self.reserve.stock().map_err(|_| Refusal::Memory)?;
        }
        let region = self.regions.find(stretch.key)?;
        region.admit(|| self.setup.who(&self.peers, peer))?;
        let start = region.offset_of(stretch.address, stretch.length)?;
        let access = region.access_as(needs)?;
        if self.setup.adapter_atomics {
            look_only(call, &access, start)?;
        }
        let (operands, results) = self.scratch.parts();
        let mut done = execute(call, &access, start, stretch.length as usize, operands, results);
        if done.is_err() && !has_begun(call, &access, start) {
            return done;
        }
        if done.is_ok() && stretch.commits && call.operation != AtomicOperation::Read {
            done = access.commit(start, stretch.length);
        }
        drop(access);
        // "whenever a remote RMA write or atomic operation modifies the memory region" (fi_mr(3)): also one
        // that fails then.
        let several = &mut self.peers[peer as usize].several;
        Several::note(several, arrival, stretch.length, region, needs);
        done
    }

    /// Sends the values from before an atomic.
    #[inline]
    fn answer_results(
        &mut self,
        peer: PeerIndex,
        name: u64,
        length: usize,
        offset: usize,
        last: bool,
    ) {
        let results = self.scratch.results(length);
        let words = [offset as u64];
        if self.can_answer(peer)
            && self.transport.push(peer, Head::new(Kind::Data, 0), name, &words, results)
        {
            return self.served(last);
        }
        self.hold_results(peer, name, offset as u64, results, last);
    }

    /// Whether data can go straight out: connected, and nothing waits before it.
    #[inline(always)]
    fn can_answer(&self, peer: PeerIndex) -> bool {
        let record = &self.peers[peer as usize];
        record.state == PeerState::Ready && record.replies.is_empty() && record.serving.is_empty()
    }

    /// Says that an operation is done, or why it is not.
    #[inline]
    pub(super) fn answer(&mut self, peer: PeerIndex, operation: u64, errno: u64) {
        let record = &self.peers[peer as usize];
        if record.state == PeerState::Ready
            && record.replies.is_empty()
            && self.transport.push(
                peer,
                Head::new(Kind::Done, 0),
                operation,
                &[errno],
                Piece::EMPTY,
            )
        {
            return;
        }
        self.answer_later(peer, operation, errno);
    }

    #[cold]
    #[inline(never)]
    fn answer_later(&mut self, peer: PeerIndex, operation: u64, errno: u64) {
        self.reply(peer, Reply::new(Kind::Done, operation, errno));
        let record = &self.peers[peer as usize];
        if record.replies.len() > UNDER_WAY_MAX || record.serving.len() > SERVING_MAX {
            self.violation(peer, "it has more operations under way than anybody can start");
        }
    }
}

/// Whether the first element of a call that was refused is done: it lies in one piece.
#[cold]
fn has_begun(call: AtomicCall, access: &Access<'_>, start: u64) -> bool {
    let size = call.datatype.size();
    call.is_supported() && access.contiguous(start, size as u64).len() == size
}

/// What a processor may do where adapters play atomics: look at a value.
fn look_only(call: AtomicCall, access: &Access<'_>, start: u64) -> Result<(), Refusal> {
    let size = call.datatype.size();
    let address = access.contiguous(start, size as u64).as_ptr().addr();
    match call.operation {
        _ if !address.is_multiple_of(size) => Err(Refusal::Bounds),
        AtomicOperation::Read => Ok(()),
        _ => Err(Refusal::ForAdapters),
    }
}

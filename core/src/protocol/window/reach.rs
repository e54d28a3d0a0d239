//! Starting operations in a window, and ending them.

use super::Way;
use crate::{
    engine::{
        Engine,
        peer::{ONE_SIDED, PeerState},
    },
    flags::Flags,
    info::MessageOrder,
    memory::Piece,
    one_sided::{Action, RemoteOperation, RemoteStage, StoredSegments},
    protocol::contest::{Discipline, Manner},
    transport::{PeerIndex, Transport},
    window::{Direction, End, Finished, Found, Request, Started, Worth},
};

/// The longest operation that an adapter is given; longer ones go as packets. Every device that
/// is known takes as much at once. Units: bytes.
const LENGTH_MAX: usize = 1 << 30;

/// The order that keeps an operation behind messages.
fn order_behind(direction: Direction) -> MessageOrder {
    match direction {
        Direction::Write => MessageOrder::WAS,
        Direction::Read => MessageOrder::RAS,
    }
}

/// An operation as an adapter could do it.
struct Simple {
    direction: Direction,
    key: u64,
    address: u64,
    local: Piece,
    data: Option<u32>,
}

impl RemoteOperation {
    /// What an adapter would have to do, which may carry data or not; none if it cannot.
    #[inline(always)]
    fn simple(&self, carries_data: bool) -> Option<Simple> {
        let StoredSegments::One(segment) = &self.segments else {
            return None;
        };
        let (direction, pieces) = match self.action {
            Action::Write => (Direction::Write, &self.source),
            Action::Read => (Direction::Read, &self.results),
            Action::Atomic(_) => return None,
        };
        let local = pieces.view().contiguous(0, self.total);
        let whole = local.len() == self.total && (1..=LENGTH_MAX).contains(&self.total);
        // The target's processor has what is written stored.
        if !whole || self.flags.contains(Flags::COMMIT_COMPLETE) {
            return None;
        }
        let data = match self.flags.contains(Flags::REMOTE_CQ_DATA) {
            true if carries_data => Some(self.data_along()?),
            true => return None,
            false => None,
        };
        Some(Simple { direction, key: segment.key, address: segment.address, local, data })
    }

    /// Its data, if that is short enough to go along with what an adapter writes. The target's
    /// adapter confirms the write, and does not wait until its processor has told of the data.
    #[cold]
    fn data_along(&self) -> Option<u32> {
        let waits = self.flags.intersects(Flags::DELIVERY_COMPLETE | Flags::MATCH_COMPLETE);
        u32::try_from(self.data).ok().filter(|_| !waits)
    }
}

impl<T: Transport> Engine<T> {
    /// Whether an operation that was just posted is worth a look at its peer's window.
    #[inline(always)]
    pub(crate) fn is_worth_a_window(&self, peer: PeerIndex, index: u32) -> bool {
        let worth = self.transport.windows_to(peer);
        worth.is_some_and(|worth| self.remotes[index].total >= worth.alone)
    }

    /// Starts an operation that was just posted, unless others wait before it.
    #[inline]
    pub(crate) fn start_behind_nothing(&mut self, peer: PeerIndex, index: u32) -> Way {
        let record = &self.peers[peer as usize];
        if record.state != PeerState::Ready || !record.queue.is_empty() {
            return Way::Wait;
        }
        self.start_in_window(peer, index)
    }

    /// Starts an operation that nothing waits before, if it can go through a window.
    #[inline]
    pub(crate) fn start_in_window(&mut self, peer: PeerIndex, index: u32) -> Way {
        let Some(worth) = self.transport.windows_to(peer) else {
            return Way::Packets;
        };
        if let Some(call) = self.for_adapter(index) {
            return self.start_atomic(peer, index, call);
        }
        let streams = self.streams_to(peer);
        let least = if streams { worth.streaming } else { worth.alone };
        let record = &self.peers[peer as usize];
        // W1: what the window cannot do waits until it is empty.
        let otherwise = if record.window.under_way > 0 { Way::Wait } else { Way::Packets };
        let Some(simple) =
            self.remotes[index].simple(worth.carries_data).filter(|it| it.local.len() >= least)
        else {
            return otherwise;
        };
        let Some(lease) = self.find_lease(peer, simple.key) else {
            return otherwise;
        };
        let Simple { direction, local, data, .. } = simple;
        let Some(address) = lease.locate(simple.address, local.len() as u64, direction) else {
            // The target refuses it, or the key means another region by now.
            self.renew_lease(peer, simple.key);
            return otherwise;
        };
        // W2: what left before is done, as far as order counts.
        let record = &self.peers[peer as usize];
        if record.window.packets > 0 || record.window.alone {
            return Way::Wait;
        }
        if self.is_behind_messages(peer, order_behind(direction)) {
            return otherwise;
        }
        let mut run = None;
        if worth.contested {
            let contest = self.contests.of(Discipline::of_one_sided(direction == Direction::Read));
            let (manner, timed) = contest.choose_watched(local.len(), streams);
            if manner != Manner::Direct {
                self.remotes[index].run = timed;
                return otherwise;
            }
            run = timed;
        }
        let (token, remote_key) = (self.remotes.name(index), lease.remote_key);
        let (local, local_key) = self.at_our_side(peer, index, &simple, worth);
        let request = Request { token, direction, address, remote_key, local, data, local_key };
        let started = self.transport.start(peer, &request);
        if started.is_started() {
            self.remotes[index].run = run;
        }
        self.note_attempt(peer, index, (simple.key, started), otherwise)
    }

    /// An operation on the region of `key` was started, or not: then it goes `otherwise`.
    #[inline(always)]
    fn note_attempt(
        &mut self,
        peer: PeerIndex,
        index: u32,
        (key, started): (u64, Started),
        otherwise: Way,
    ) -> Way {
        match started {
            Started::NoRoom => Way::Wait,
            Started::Refused => otherwise,
            Started::Ended => {
                self.renew_lease(peer, key);
                otherwise
            }
            Started::Landed => self.doubt_landed(peer, index, key),
            Started::Done => {
                self.finish_remote(index);
                Way::Window
            }
            Started::Yes | Started::Registered => {
                self.note_started(peer, index);
                Way::Window
            }
        }
    }

    /// Our bytes of an operation as its adapter takes them: those of a long one where they lie as long as
    /// the adapter needs them, and what it knows them by, if they lie in a region of ours.
    #[inline(always)]
    fn at_our_side(
        &mut self,
        peer: PeerIndex,
        index: u32,
        simple: &Simple,
        worth: Worth,
    ) -> (Piece, Option<u32>) {
        let Simple { direction, local, .. } = *simple;
        if local.len() < worth.registers {
            return (local, None);
        }
        let operation = &self.remotes[index];
        if operation.flags.contains(Flags::INJECT) && direction == Direction::Write {
            // The adapter reads it when its buffer is the caller's again; a shorter one it copies.
            self.keep_injected(index);
            return (self.remotes[index].source.view().contiguous(0, local.len()), None);
        }
        (local, self.key_of_own(peer, index, local, direction))
    }

    /// What our adapter knows a long operation's buffer by, if it lies in a region of ours.
    #[inline(always)]
    fn key_of_own(
        &mut self,
        peer: PeerIndex,
        index: u32,
        local: Piece,
        direction: Direction,
    ) -> Option<u32> {
        let region = self.remotes[index].region?;
        let (region, transport) = (self.regions.find(region.key()).ok()?, &mut self.transport);
        let register = |memory, written| transport.register_own(peer, memory, written);
        let kind = if direction == Direction::Read { Flags::READ } else { Flags::WRITE };
        let own = region.registered_as_own(local, kind, register)?;
        let key = own.local_key();
        self.remotes[index].own = Some(own);
        Some(key)
    }

    /// Whether the target may not have taken messages of ours that left since the last packet operation
    /// was answered, and that an operation has to stay behind.
    #[inline(always)]
    pub(super) fn is_behind_messages(&self, peer: PeerIndex, order: MessageOrder) -> bool {
        let record = &self.peers[peer as usize];
        let keeps_order = record.fences || self.setup.transmit.message_order.intersects(order);
        keeps_order && record.window.settled != record.epoch()
    }

    /// Whether an operation is one of a stream: others are under way as packets, which it need not
    /// wait for if it goes as packets too, or the application has not even read that earlier ones
    /// are complete.
    #[inline(always)]
    fn streams_to(&self, peer: PeerIndex) -> bool {
        let unread = || self.setup.transmit.queue.as_ref().is_some_and(|queue| !queue.is_empty());
        self.peers[peer as usize].window.packets > 0 || unread()
    }

    #[inline(always)]
    pub(super) fn note_started(&mut self, peer: PeerIndex, index: u32) {
        // If the window closes it starts again, when its buffer is the application's.
        self.keep_injected(index);
        self.remotes[index].stage = RemoteStage::InWindow;
        let record = &mut self.peers[peer as usize];
        record.window.under_way += 1;
        record.clear = false;
        self.in_windows += 1;
    }

    /// Takes what adapters have finished. Returns whether there was anything.
    #[inline(never)]
    pub(crate) fn take_finished(&mut self) -> bool {
        let before = self.in_windows;
        let mut moved = false;
        while self.in_windows > 0 && !moved {
            match self.transport.finished() {
                Found::Finished(finished) => self.take_one(finished),
                Found::Progress => moved = true,
                Found::Nothing => break,
            }
        }
        // Also beside a long operation, which would keep them waiting until its end.
        if !self.fetches.is_empty() {
            self.fetch_on();
        }
        moved || self.in_windows != before
    }

    /// Forgets what has finished that nobody waits for any more: its peer is gone, or its context.
    pub(crate) fn drop_finished(&mut self) {
        while self.in_windows == 0 && matches!(self.transport.finished(), Found::Finished(_)) {}
    }

    #[inline]
    fn take_one(&mut self, finished: Finished) {
        if finished.token & Request::FETCHED != 0 {
            return self.take_fetched(
                finished.token & !Request::FETCHED,
                matches!(finished.end, End::Done(_)),
            );
        }
        // An operation that failed with its peer is gone.
        let index = self.remotes.index_of(finished.token);
        let Some(index) = index.filter(|&at| self.remotes[at].stage == RemoteStage::InWindow)
        else {
            return;
        };
        match (finished.end, self.remotes[index].action) {
            (End::Done(before), Action::Atomic(call)) => self.atomic_over(index, call, before),
            (End::Done(_), _) => self.finish_remote(index),
            (End::Undone, _) => self.start_again(index),
            (End::Doubtful, _) => self.doubt(index),
        }
    }

    /// The window has closed: the target's processor has to look at the operation. The newest
    /// comes first, and all were started before what waits.
    #[cold]
    #[inline(never)]
    pub(super) fn start_again(&mut self, index: u32) {
        let window = &mut self.peers[self.remotes[index].peer as usize].window;
        window.forget_leases();
        self.remotes[index].refusals += 1;
        self.put_back(index);
    }

    /// Puts an operation that was under way in front of those that wait.
    pub(super) fn put_back(&mut self, index: u32) {
        let operation = &mut self.remotes[index];
        operation.stage = RemoteStage::Queued;
        operation.run = None;
        let (peer, repeats) = (operation.peer, operation.may_repeat());
        let record = &mut self.peers[peer as usize];
        record.queue.push_front(index | ONE_SIDED);
        record.window.note_over(repeats);
        self.in_windows -= 1;
        self.note_backlog(peer);
    }
}

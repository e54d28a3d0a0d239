//! How the engine reports: completion entries, errors, counters.

use std::sync::Arc;

use super::{
    Engine,
    order::transmit::{End, Outcome},
};
use crate::{
    attachment::Attachment,
    completion_queue::{Entry, ErrorEntry, store::CompletionStore},
    connection::manager::Manager,
    counter::CounterCell,
    error::{Cause, Errno},
    event_queue::reporter::Reporter,
    flags::{FAMILY, Flags},
    info::MessageOrder,
    operation::{ReceiveOperation, SendOperation},
    transport::{PeerIndex, Transport},
    triggered::Tally,
};

/// Where one direction's completions go.
#[derive(Clone, Default)]
pub struct Side {
    /// The completion queue.
    pub queue: Option<Arc<CompletionStore>>,
    /// Only operations with `COMPLETION` write an entry when they succeed.
    pub selective: bool,
    /// The counter.
    pub counter: Option<Arc<CounterCell>>,
    /// The endpoint's context: see [`Self::blame`].
    pub context: u64,
    /// Completions keep the order of what was submitted, or matched (`FI_ORDER_STRICT`).
    pub in_order: bool,
    /// Which operations to one peer keep their order (`tx_attr.msg_order`).
    pub message_order: MessageOrder,
    /// What is received is written into memory in order (`FI_ORDER_DATA`).
    pub data_in_order: bool,
    /// Where it is told that the endpoint has failed, if anywhere.
    pub reporter: Option<Reporter>,
}

/// Which counter of the endpoint's counts an operation of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// That of sends.
    Sends,
    /// `FI_READ`.
    Reads,
    /// `FI_WRITE`.
    Writes,
}

impl Side {
    /// The same, of which nothing is told any more: what is under way keeps its order.
    pub(super) fn silenced(&self) -> Side {
        Side { message_order: self.message_order, ..Side::default() }
    }

    /// Reports a success: an entry if one is `wanted`, and the counter always. Here and wherever
    /// something is reported the counter comes last: who hears of it finds the entry.
    #[inline(always)]
    pub fn succeed_if(&self, wanted: bool, entry: impl FnOnce() -> Entry) {
        if let Some(queue) = &self.queue
            && wanted
        {
            queue.push(entry());
        }
        if let Some(counter) = &self.counter {
            counter.add(1);
        }
    }

    /// Reports a failure: always, however the operation was posted.
    #[cold]
    #[inline(never)]
    pub fn fail(&self, error: ErrorEntry) {
        self.fail_counted_by(self.counter.as_deref(), error);
    }

    /// Reports a failure, counted by `counter`.
    fn fail_counted_by(&self, counter: Option<&CounterCell>, mut error: ErrorEntry) {
        let tally = Attachment::take_tally(&mut error.attachment);
        self.fail_uncounted(error);
        count_failure(tally, counter);
    }

    /// Reports the failure of a peek, which receives nothing, so that no counter counts it.
    pub fn fail_uncounted(&self, mut error: ErrorEntry) {
        if let Some(queue) = &self.queue {
            error.context = self.blame(error.context);
            queue.push_error(error);
        }
    }

    /// The context that the failure of an operation with this one tells. "Operations that complete in
    /// error that are not associated with valid operational context will use the endpoint context in
    /// any error reporting structures" (fi_endpoint(3)).
    pub fn blame(&self, context: u64) -> u64 {
        if context == 0 { self.context } else { context }
    }
}

/// What counts one-sided operations: ours, and what peers do to us.
#[derive(Clone, Default)]
pub struct OneSidedCounters {
    /// Reads and fetching atomics of ours (`FI_READ`).
    pub read: Option<Arc<CounterCell>>,
    /// Writes and other atomics of ours (`FI_WRITE`).
    pub write: Option<Arc<CounterCell>>,
    /// What peers read (`FI_REMOTE_READ`).
    pub remote_read: Option<Arc<CounterCell>>,
    /// What peers wrote (`FI_REMOTE_WRITE`).
    pub remote_write: Option<Arc<CounterCell>>,
}

/// What is known of a message when its receive completes.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The sender.
    pub peer: PeerIndex,
    /// `TAGGED` or `MSG`, and `REMOTE_CQ_DATA`.
    pub flags: Flags,
    /// Its tag.
    pub tag: u64,
    /// Its remote CQ data.
    pub data: u64,
    /// Bytes in all.
    pub total: usize,
}

const POSTED_KIND: Flags = FAMILY.union(Flags::MULTI_RECV);

/// Counts a success: of work by what counts it, of other operations by the endpoint's counter.
#[inline(always)]
pub(crate) fn count_success(tally: Option<Tally>, counter: Option<&CounterCell>) {
    match (tally, counter) {
        (Some(tally), _) => tally.succeed(),
        (None, Some(counter)) => counter.add(1),
        (None, None) => {}
    }
}

/// Counts a failure, likewise.
#[inline(always)]
pub(crate) fn count_failure(tally: Option<Tally>, counter: Option<&CounterCell>) {
    match (tally, counter) {
        (Some(tally), _) => tally.fail(),
        (None, Some(counter)) => counter.add_error(1),
        (None, None) => {}
    }
}

#[inline(always)]
pub(super) fn sent_entry(
    flags: Flags,
    context: u64,
    attachment: Option<Attachment>,
) -> Option<Entry> {
    flags.contains(Flags::COMPLETION).then(|| Entry {
        context,
        flags: ((flags & FAMILY) | Flags::SEND).bits(),
        attachment,
        ..Entry::default()
    })
}

impl<T: Transport> Engine<T> {
    /// Tells that the endpoint has failed, once: contexts of a pair have event queues of their own.
    pub(super) fn tell_of_failure(&self, why: &Cause) {
        if let Some(Manager::Listener(listener)) = self.manager.as_deref() {
            return listener.reporter.iter().for_each(|reporter| reporter.report_failure(why));
        }
        let sides = [&self.setup.transmit, &self.setup.receive];
        let [transmit, receive] = sides.map(|side| side.reporter.as_ref());
        let other = receive.filter(|it| transmit.is_none_or(|first| first.fid != it.fid));
        transmit.into_iter().chain(other).for_each(|reporter| reporter.report_failure(why));
    }
}

impl<T: Transport> Engine<T> {
    /// A send that has left at once.
    #[inline(always)]
    pub(crate) fn report_sent(&self, flags: Flags, context: u64, attachment: Option<Attachment>) {
        self.report_success(Counted::Sends, sent_entry(flags, context, attachment), None);
    }

    /// A send that had to wait.
    pub(crate) fn finish_send(&mut self, index: u32) {
        let mut send = self.sends.remove(index);
        send.lent = None;
        if let Some(run) = send.run {
            let served = &mut self.peers[send.peer as usize].served;
            self.contests.finish(send.total, run, served);
        }
        let tally = Attachment::take_tally(&mut send.attachment);
        let entry = sent_entry(send.flags, send.context, send.attachment);
        self.succeed((send.peer, index), Counted::Sends, entry, tally);
    }

    /// An operation to a peer, which had that index, is complete.
    #[inline(always)]
    pub(crate) fn succeed(
        &mut self,
        (peer, operation): (PeerIndex, u32),
        counted: Counted,
        entry: Option<Entry>,
        tally: Option<Tally>,
    ) {
        if self.orders.transmit.is_some() {
            let end = End::Success(entry, tally);
            return self.report_in_turn(peer, operation, Outcome { counted, end });
        }
        self.report_success(counted, entry, tally);
    }

    /// An operation to a peer, which had that index, has failed.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        (peer, operation): (PeerIndex, u32),
        counted: Counted,
        error: ErrorEntry,
    ) {
        let end = End::Failure(error);
        self.report_in_turn(peer, operation, Outcome { counted, end });
    }

    /// Reports that an operation of ours is complete.
    #[inline(always)]
    pub(super) fn report_success(
        &self,
        counted: Counted,
        entry: Option<Entry>,
        tally: Option<Tally>,
    ) {
        self.push_sent(entry);
        count_success(tally, self.counter_of(counted));
    }

    /// Reports a failure: always, however the operation was posted.
    #[cold]
    pub(crate) fn report_failure(&self, counted: Counted, error: ErrorEntry) {
        self.setup.transmit.fail_counted_by(self.counter_of(counted), error);
    }

    #[inline(always)]
    fn counter_of(&self, counted: Counted) -> Option<&CounterCell> {
        let counter = match counted {
            Counted::Sends => &self.setup.transmit.counter,
            Counted::Reads => &self.setup.one_sided.read,
            Counted::Writes => &self.setup.one_sided.write,
        };
        counter.as_deref()
    }

    /// The entry of an operation of ours, if it writes one.
    #[inline(always)]
    fn push_sent(&self, entry: Option<Entry>) {
        if let (Some(queue), Some(entry)) = (&self.setup.transmit.queue, entry) {
            queue.push(entry);
        }
    }

    /// A send that failed.
    #[cold]
    pub(crate) fn fail_send(&mut self, index: u32, why: &Cause) {
        let mut send = self.sends.remove(index);
        send.lent = None;
        let peer = &self.peers[send.peer as usize];
        let SendOperation { context, flags, tag, data, attachment, .. } = send;
        let error = ErrorEntry {
            context,
            flags: (flags & FAMILY) | Flags::SEND,
            length: 0,
            buffer: 0,
            data,
            tag,
            overflow: 0,
            errno: why.errno,
            reason: why.reason.clone(),
            source: peer.fi_addr,
            source_address: Some(peer.address),
            attachment,
        };
        self.fail((send.peer, index), Counted::Sends, error);
    }

    /// A receive that got its whole message, or as much as fits.
    pub(crate) fn report_received(&mut self, index: u32, message: &Message, room: usize) {
        if message.total > room {
            return self.report_truncated(index, message, room);
        }
        let source = self.peers[message.peer as usize].fi_addr;
        let Some(receive) = self.receives.get_mut(index) else {
            return;
        };
        let tally = Attachment::take_tally(&mut receive.attachment);
        let entry = receive.flags.contains(Flags::COMPLETION).then(|| Entry {
            context: receive.context,
            flags: (message.flags | Flags::RECV).bits(),
            length: message.total as u64,
            buffer: receive.pieces.view().contiguous(0, usize::MAX).as_ptr() as u64,
            data: message.data,
            tag: message.tag,
            source,
            attachment: receive.attachment.take(),
        });
        if let Some(entry) = entry {
            self.push_received(message.peer, entry);
        }
        self.receives.release(index);
        count_success(tally, self.setup.receive.counter.as_deref());
    }

    #[cold]
    #[inline(never)]
    fn report_truncated(&mut self, index: u32, message: &Message, room: usize) {
        let receive = self.receives.remove(index);
        let overflow = (message.total - room) as u64;
        let reason = format!(
            "a message of {} bytes arrived for a buffer of {room} bytes: {overflow} were discarded",
            message.total
        );
        let why = Cause { errno: Errno::TRUNC, reason };
        self.fail_receive(receive, Some(message), room as u64, &why);
    }

    /// A receive that failed.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_receive(
        &mut self,
        receive: ReceiveOperation,
        message: Option<&Message>,
        length: u64,
        why: &Cause,
    ) {
        let buffer = receive.pieces.view().contiguous(0, usize::MAX).as_ptr() as u64;
        self.fail_receive_into(receive, message, buffer, length, why);
    }

    /// Reports that a receive failed, or a message of a multi-receive buffer, which stays. `buffer` is
    /// where the message began.
    #[cold]
    pub(crate) fn fail_receive_into(
        &mut self,
        receive: ReceiveOperation,
        message: Option<&Message>,
        buffer: u64,
        length: u64,
        why: &Cause,
    ) {
        let peer = message.map(|message| &self.peers[message.peer as usize]);
        let truncated = why.errno == Errno::TRUNC;
        let total = message.map_or(0, |message| message.total as u64);
        let error = ErrorEntry {
            context: receive.context,
            // Without a message it is the buffer that failed: with MULTI_RECV it
            // is the application's again.
            flags: message.map_or(receive.flags & POSTED_KIND, |message| message.flags)
                | Flags::RECV,
            length,
            buffer,
            data: message.map_or(0, |message| message.data),
            tag: message.map_or(0, |message| message.tag),
            overflow: if truncated { total - length } else { 0 },
            errno: why.errno,
            reason: why.reason.clone(),
            source: peer.map_or(crate::address_vector::FI_ADDR_NOTAVAIL, |peer| peer.fi_addr),
            source_address: peer.map(|peer| self.peers[peer.source as usize].address),
            attachment: receive.attachment,
        };
        if receive.flags.contains(Flags::PEEK) {
            self.setup.receive.fail_uncounted(error);
        } else {
            self.setup.receive.fail(error);
        }
    }
}

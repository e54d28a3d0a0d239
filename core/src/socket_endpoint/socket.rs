//! The inside of a socket endpoint: the endpoint below, what it has taken and what has arrived.
//!
//! Everything is done under one lock: by the application's own calls, by the helper, and by who
//! reads the event queue. Each pass takes what has completed, posts buffers and segments, and
//! has the descriptor show what that changed.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    RECEIVE_BUFFER, SEGMENT_MAX, SEND_BUFFER, SEND_WEIGHT_MIN, SocketError, SocketKind,
    descriptor::{Descriptor, Readiness},
    incoming::Incoming,
    outgoing::Outgoing,
};
use crate::{
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::{CompletionQueue, Entry, QueueWait, ReadError},
    connection::manager::Link,
    endpoint::{Endpoint, PostError, message::Refused},
    engine::{sleep::Sleep, unit::Unit},
    error::Errno,
    event_queue::Driven,
    flags::{FAMILY, Flags},
    transport::{Provider, Transport},
};

/// In the context of a send; the rest of it is the number of a segment. Those of receives are
/// their numbers.
const SEND: u64 = 1 << 63;
/// Completions that are taken at once.
const BATCH: usize = 8;

pub(super) struct Socket<P: Provider> {
    pub kind: SocketKind,
    pub endpoint: Arc<Endpoint<P>>,
    queue: Arc<CompletionQueue<P>>,
    flow: Mutex<Flow>,
    changed: Condvar,
    /// Threads that wait for a change.
    waiters: AtomicUsize,
    /// How often the application called, for the helper to keep out of its way.
    calls: AtomicU64,
}

/// How far a socket endpoint's life has come, and what it holds.
pub(super) struct Flow {
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    /// As last seen.
    pub link: Link,
    pub was_up: bool,
    /// This side sends no more.
    pub is_shut: bool,
    /// The stream is over, and nothing more of it will arrive.
    pub is_drained: bool,
    pub descriptor: Option<Descriptor>,
}

impl Flow {
    /// What the endpoint is ready for.
    pub fn readiness(&self) -> Readiness {
        let (is_over, has_end) = (self.is_over(), self.incoming.has_end());
        let mut now = Readiness::empty();
        let may_receive = self.incoming.is_ready() || has_end || is_over;
        now.set(Readiness::RECEIVE, may_receive);
        let takes = self.link == Link::Up && self.outgoing.is_ready();
        // Where the peer is gone a send is told so, also while what had arrived is still to be read.
        let is_lost = self.was_up && self.link == Link::Down;
        now.set(Readiness::SEND, takes || is_over || is_lost);
        now.set(Readiness::HANG_UP, is_over);
        now.set(Readiness::ERROR, is_over && !has_end && !self.is_shut);
        now
    }

    /// Neither direction will move any more.
    fn is_over(&self) -> bool {
        self.is_shut || self.is_drained
    }
}

impl<P: Provider> Socket<P> {
    pub fn new(
        kind: SocketKind,
        endpoint: Arc<Endpoint<P>>,
        queue: Arc<CompletionQueue<P>>,
    ) -> Socket<P> {
        let flow = Flow {
            incoming: Incoming::new(0, 0),
            outgoing: Outgoing::new(SEND_BUFFER, SEGMENT_MAX),
            link: Link::Pending,
            was_up: false,
            is_shut: false,
            is_drained: false,
            descriptor: None,
        };
        Socket {
            kind,
            endpoint,
            queue,
            flow: Mutex::new(flow),
            changed: Condvar::new(),
            waiters: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
        }
    }

    /// Enables the endpoint, and posts buffers for what may arrive. Other threads may find it enabled
    /// before this is over: they wait for the lock, since both buffers are made anew here.
    pub fn begin(&self) -> Result<(), SocketError> {
        self.check_fork()?;
        let mut flow = self.lock();
        self.endpoint.enable()?;
        let single = self.endpoint.unit()?.with(|engine| engine.limits.single)?;
        let room = match self.kind {
            SocketKind::Stream => SEGMENT_MAX,
            SocketKind::Datagram => single,
        };
        // A peer's packets are as long as ours, most likely.
        let usual = single.min(room);
        flow.incoming = Incoming::new((RECEIVE_BUFFER / usual.max(1)).clamp(4, 64), room);
        flow.outgoing = Outgoing::new(SEND_BUFFER, usual);
        self.advance(&mut flow);
        Ok(())
    }

    pub fn lock(&self) -> MutexGuard<'_, Flow> {
        // Nothing under it panics half-way.
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a forked child the lock may be held for ever: who has it is the parent's.
    pub fn check_fork(&self) -> Result<(), SocketError> {
        match self.endpoint.domain().provider().forked() {
            true => Err(PostError::ForkedChild.into()),
            false => Ok(()),
        }
    }

    /// As [`Self::lock`], for a call of the application's.
    pub fn called(&self) -> Result<MutexGuard<'_, Flow>, SocketError> {
        self.check_fork()?;
        // Before, so that receives of a disabled endpoint are refused as what they are.
        self.endpoint.unit()?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(self.lock())
    }

    /// Moves all that can be moved. Returns whether anything did.
    pub fn advance(&self, flow: &mut Flow) -> bool {
        let mut moved = self.collect(flow);
        let link = self.endpoint.link();
        moved |= link != flow.link;
        flow.link = link;
        flow.was_up |= link == Link::Up;
        moved |= self.post_buffers(flow);
        if self.kind == SocketKind::Stream {
            moved |= self.post_segments(flow);
        }
        if moved {
            self.show(flow);
        }
        moved
    }

    /// Tells who waits what there is now.
    pub fn show(&self, flow: &mut Flow) {
        let now = flow.readiness();
        if let Some(descriptor) = &mut flow.descriptor {
            descriptor.show(now);
        }
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes what has completed.
    fn collect(&self, flow: &mut Flow) -> bool {
        let mut moved = false;
        loop {
            let mut entries: [Entry; BATCH] = Default::default();
            match self.queue.read(&mut entries) {
                Ok(count) => {
                    for entry in &mut entries[..count] {
                        let buffer = entry.take_buffer().unwrap_or_default();
                        match entry.context & SEND {
                            0 => self.take(flow, entry, buffer),
                            _ => self.complete(flow, entry.context, buffer.len()),
                        }
                    }
                }
                Err(ReadError::ErrorAvailable) => self.collect_error(flow),
                Err(_) => break,
            }
            moved = true;
        }
        if moved && self.kind == SocketKind::Stream {
            flow.incoming.drop_received();
        }
        moved
    }

    /// A send has completed.
    fn complete(&self, flow: &mut Flow, context: u64, length: usize) {
        match self.kind {
            SocketKind::Stream => flow.outgoing.complete(context & !SEND),
            SocketKind::Datagram => flow.outgoing.free(weight(length)),
        }
    }

    /// A receive has completed. Segments are numbered as receives are: one that is out of turn
    /// follows one that was lost with its sender, and one without a number is none, nor one behind the end.
    fn take(&self, flow: &mut Flow, entry: &Entry, buffer: Vec<u8>) {
        let number = entry.context;
        let is_next = entry.flags().contains(Flags::REMOTE_CQ_DATA) && entry.data == number;
        let is_segment = || is_next && !flow.incoming.has_ended_before(number);
        if self.kind == SocketKind::Stream && !is_segment() {
            flow.incoming.break_off(number);
            return self.let_go();
        }
        // Up and down again, it may be, since somebody looked.
        flow.was_up = true;
        let length = (entry.length as usize).min(buffer.len());
        flow.incoming.arrived(number, buffer, length, entry.source);
    }

    /// The peer does not keep to the rules of a stream, or has left it.
    fn let_go(&self) {
        // It was connected a moment ago, or is not any more.
        let _ = self.endpoint.shutdown();
    }

    fn collect_error(&self, flow: &mut Flow) {
        let Some(mut error) = self.queue.read_error() else {
            return;
        };
        if !error.flags.intersects(FAMILY) {
            // Of no operation: a bug has closed the endpoint.
            return flow.incoming.end();
        }
        let buffer = error.take_buffer().unwrap_or_default();
        if error.context & SEND != 0 {
            // A segment stays counted as what was not delivered.
            if self.kind == SocketKind::Datagram {
                flow.outgoing.free(weight(buffer.len()));
            }
            return;
        }
        if self.kind == SocketKind::Datagram {
            return flow.incoming.failed(error.context);
        }
        flow.incoming.break_off(error.context);
        if error.errno == Errno::TRUNC {
            self.let_go();
        }
    }

    fn post_buffers(&self, flow: &mut Flow) -> bool {
        let mut moved = false;
        if flow.link == Link::Down && !flow.was_up && !flow.is_drained {
            // Up and down again, it may be, since what had completed was taken.
            moved = self.collect(flow);
        }
        let is_empty = flow.incoming.is_broken() || !flow.was_up;
        if flow.link == Link::Down && is_empty {
            moved |= !std::mem::replace(&mut flow.is_drained, true);
        }
        while !flow.is_drained
            && let Some((buffer, number)) = flow.incoming.next_buffer()
        {
            match self.endpoint.receive(buffer, FI_ADDR_UNSPEC, number) {
                Ok(()) => flow.incoming.posted(),
                Err(Refused { error, buffer }) => {
                    flow.incoming.refused(buffer);
                    if error == PostError::NotConnected {
                        // Nothing is left that had arrived before the stream was over. But the buffers
                        // posted before this one have found something, maybe the end: it is taken first,
                        // since what is shown then is shown for good.
                        self.collect(flow);
                        (flow.is_drained, moved) = (true, true);
                    }
                    return moved;
                }
            }
            moved = true;
        }
        moved
    }

    fn post_segments(&self, flow: &mut Flow) -> bool {
        let mut moved = false;
        while flow.link == Link::Up
            && let Some((segment, number)) = flow.outgoing.next()
        {
            match self.endpoint.send_data(segment, 0, number, SEND | number) {
                Ok(()) => moved = true,
                Err(Refused { buffer, .. }) => {
                    flow.outgoing.refused(buffer);
                    break;
                }
            }
        }
        moved
    }

    /// Posts one datagram.
    pub fn post_datagram(
        &self,
        flow: &mut Flow,
        datagram: Vec<u8>,
        to: u64,
    ) -> Result<(), SocketError> {
        let weight = weight(datagram.len());
        match self.endpoint.send(datagram, to, SEND) {
            Ok(()) => {
                flow.outgoing.charge(weight);
                Ok(())
            }
            Err(Refused { error: PostError::Again, .. }) => Err(SocketError::Again),
            Err(Refused { error: PostError::TooLong { length, limit }, .. }) => {
                Err(SocketError::TooLong { length, limit })
            }
            Err(Refused { error, .. }) => Err(error.into()),
        }
    }

    /// Waits until something has changed, or for `left`. The helper has to look meanwhile.
    pub fn wait<'a>(&self, flow: MutexGuard<'a, Flow>, left: Duration) -> MutexGuard<'a, Flow> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        if let Ok(driver) = self.endpoint.domain().socket_driver() {
            driver.nudge();
        }
        let waited = self.changed.wait_timeout(flow, left);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// For the helper, and for who reads events: somebody else may be at it.
    pub fn drive_by_helper(&self) -> bool {
        match self.flow.try_lock() {
            Ok(mut flow) => self.advance(&mut flow),
            Err(TryLockError::Poisoned(poisoned)) => self.advance(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// How often the application has called; none if it waits elsewhere.
    pub fn polls(&self) -> Option<u64> {
        let waits = self.waiters.load(Ordering::Relaxed) > 0 || self.lock().descriptor.is_some();
        (!waits).then(|| self.calls.load(Ordering::Relaxed))
    }

    pub fn prepare_nap(&self) -> Option<QueueWait<P>> {
        self.queue.prepare_nap()
    }
}

/// What a datagram counts in the send buffer.
fn weight(length: usize) -> usize {
    length.max(SEND_WEIGHT_MIN)
}

/// What an event queue drives of a socket. A wait for events that was begun holds this, and so neither
/// the socket nor its domain.
pub(super) struct Reported<P: Provider>(Weak<Socket<P>>);

impl<P: Provider> Reported<P> {
    pub fn new(socket: &Arc<Socket<P>>) -> Arc<Self> {
        Arc::new(Reported(Arc::downgrade(socket)))
    }

    fn unit(&self) -> Option<Arc<Unit<P>>> {
        self.0.upgrade()?.endpoint.unit().ok().cloned()
    }
}

impl<P: Provider> Driven for Reported<P> {
    fn drive(&self) -> bool {
        self.0.upgrade().is_some_and(|socket| socket.drive_by_helper())
    }

    // The helper sleeps on the bell as well, and passes on what it finds.
    fn arm(&self) {
        if let Some(unit) = self.unit() {
            Driven::arm(&*unit);
        }
    }

    fn fence(&self) -> fn() {
        P::Transport::fence_armed
    }

    fn how_to_sleep(&self) -> Sleep {
        self.unit().map_or(Sleep::Sound, |unit| unit.how_to_sleep())
    }

    fn disarm(&self, sleep: Sleep) -> bool {
        self.unit().is_some_and(|unit| Driven::disarm(&*unit, sleep))
    }

    fn ring_for_others(&self) {
        if let Some(unit) = self.unit() {
            Driven::ring_for_others(&*unit);
        }
    }

    fn bell(&self) -> Option<std::os::fd::RawFd> {
        self.unit().and_then(|unit| Driven::bell(&*unit))
    }
}

//! Posting and polling as every workload does it: count completions, push on
//! after EAGAIN, give up when nothing moves.

use super::{MeasureError, Rank};
use crate::buffer::Buffer;
use crate::port::{Grant, Local, Outcome, Port, Verb};
use std::time::{Duration, Instant};

/// With nothing completed for this long, the peer is taken for dead.
pub const STALL_MAX: Duration = Duration::from_secs(10);

/// The contexts of operations: what to count when they complete.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;
const SIGNALLED: u64 = 3;

/// The tag of handshakes between phases; workloads use others.
const TAG_PHASE: u64 = 0x7057;

pub struct Pump<'a, P: Port> {
    at: Rank<'a, P>,
    inject_bytes_max: usize,
    entries: [P::Entry; 32],
    /// Completions so far, of sends and of receives.
    pub sent: u64,
    pub received: u64,
    /// Signals of phases that came, and receives posted for them.
    signalled: u64,
    signals_posted: u64,
    /// Sends posted that will complete (injects do not).
    pub sends_posted: u64,
    /// Empty polls since the last completion.
    idle: u32,
    idle_since: Option<Instant>,
    doing: &'static str,
}

impl<'a, P: Port> Pump<'a, P> {
    /// Ready for messages of up to `size` bytes.
    pub fn new(at: Rank<'a, P>, size: usize) -> Pump<'a, P> {
        for buffer in [&mut *at.outgoing, &mut *at.incoming] {
            if buffer.len() < size.max(Grant::BYTES) {
                *buffer = Buffer::new(size.max(Grant::BYTES));
            }
        }
        let inject_bytes_max = at.side.inject_bytes_max();
        Pump {
            at,
            inject_bytes_max,
            entries: std::array::from_fn(|_| P::Entry::default()),
            sent: 0,
            received: 0,
            signalled: 0,
            signals_posted: 0,
            sends_posted: 0,
            idle: 0,
            idle_since: None,
            doing: "measuring",
        }
    }

    pub fn rank(&self) -> usize {
        self.at.rank
    }

    pub fn ranks(&self) -> usize {
        self.at.peers.len()
    }

    /// What a stall will be blamed on.
    pub fn doing(&mut self, what: &'static str) {
        self.doing = what;
    }

    /// One poll: completions are counted.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<(), MeasureError> {
        let count = self.at.side.poll(&mut self.entries)?;
        if count == 0 {
            self.idle += 1;
            if self.idle >= 100_000 {
                self.idle_long()?;
            }
            return Ok(());
        }
        self.idle = 0;
        self.idle_since = None;
        for entry in &self.entries[..count] {
            match P::context(entry) {
                SENT => self.sent += 1,
                RECEIVED => self.received += 1,
                SIGNALLED => self.signalled += 1,
                context => {
                    return Err(MeasureError::Stray { context, doing: self.doing });
                }
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn idle_long(&mut self) -> Result<(), MeasureError> {
        self.idle = 0;
        if self.idle_since.get_or_insert_with(Instant::now).elapsed() > STALL_MAX {
            return Err(MeasureError::Stalled { doing: self.doing });
        }
        Ok(())
    }

    /// Sends the first `size` bytes of the outgoing buffer: an inject where
    /// that is possible, polling for as long as there is no room.
    #[inline(always)]
    pub fn send(&mut self, to: usize, size: usize, tag: u64) -> Result<(), MeasureError> {
        self.send_as(size <= self.inject_bytes_max, to, size, tag)
    }

    #[inline(always)]
    fn send_as(
        &mut self,
        inject: bool,
        to: usize,
        size: usize,
        tag: u64,
    ) -> Result<(), MeasureError> {
        let (address, bytes) = (self.at.peers[to], self.at.outgoing.at(0));
        loop {
            // SAFETY: the outgoing buffer holds `size` bytes (`new`), lives as
            // long as the side is used by this pump, and no workload writes it.
            let outcome = unsafe {
                if inject {
                    self.at.side.inject(bytes, size, address, tag)?
                } else {
                    self.at.side.send(bytes, size, address, tag, SENT)?
                }
            };
            if outcome == Outcome::Done {
                self.sends_posted += u64::from(!inject);
                return Ok(());
            }
            self.poll()?;
        }
    }

    /// Posts a receive into the incoming buffer.
    #[inline(always)]
    pub fn receive(
        &mut self,
        from: Option<usize>,
        size: usize,
        tag: u64,
        ignore: u64,
    ) -> Result<(), MeasureError> {
        self.receive_counted(from, size, tag, ignore, RECEIVED)
    }

    #[inline(always)]
    fn receive_counted(
        &mut self,
        from: Option<usize>,
        size: usize,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<(), MeasureError> {
        let address = from.map(|rank| self.at.peers[rank]);
        let bytes = self.at.incoming.at_mut(0);
        loop {
            // SAFETY: the incoming buffer holds `size` bytes (`new`) and is
            // replaced only when no receive is posted. Several receives share
            // it: nobody looks at what arrives.
            let outcome =
                unsafe { self.at.side.receive(bytes, size, address, tag, ignore, context)? };
            if outcome == Outcome::Done {
                return Ok(());
            }
            self.poll()?;
        }
    }

    /// Does `verb` to the memory that `to` granted; it completes as a send does.
    #[inline(always)]
    pub fn reach(
        &mut self,
        verb: Verb,
        grant: Grant,
        to: usize,
        size: usize,
    ) -> Result<(), MeasureError> {
        let (source, results) = (self.at.outgoing.at(0), self.at.incoming.at_mut(0));
        let (address, local) = (self.at.peers[to], Local { source, results, size });
        loop {
            // SAFETY: both buffers hold twice `size` bytes (`new`) and live as long
            // as the side is used by this pump.
            let outcome = unsafe { self.at.side.reach(verb, local, grant, address, SENT)? };
            if outcome == Outcome::Done {
                self.sends_posted += 1;
                return Ok(());
            }
            self.poll()?;
        }
    }

    /// Lets rank 0 reach the first `size` bytes of the incoming buffer until it
    /// signals, and polls meanwhile.
    pub fn serve(&mut self, size: usize) -> Result<(), MeasureError> {
        // SAFETY: the incoming buffer holds `size` bytes (`new`), and is not
        // replaced before `hide`.
        let (region, grant) = unsafe { self.at.side.expose(self.at.incoming.at_mut(0), size)? };
        let place = self.at.outgoing.at_mut(0);
        // SAFETY: the buffer has room (`new`), and nothing is being sent from it.
        unsafe { place.cast::<[u8; Grant::BYTES]>().write(grant.to_bytes()) };
        self.send(0, Grant::BYTES, TAG_PHASE)?;
        self.await_sent()?;
        let signalled = self.await_signal(0);
        self.at.side.hide(region)?;
        signalled
    }

    /// Waits for what `from` grants in [`Self::serve`].
    pub fn await_grant(&mut self, from: usize) -> Result<Grant, MeasureError> {
        self.await_phase(from, Grant::BYTES)?;
        let place = self.at.incoming.at(0);
        // SAFETY: the message has been written there, and no receive is posted.
        Ok(Grant::from_bytes(unsafe { place.cast::<[u8; Grant::BYTES]>().read() }))
    }

    /// Polls until `count` receives have completed in all.
    #[inline(always)]
    pub fn await_received(&mut self, count: u64) -> Result<(), MeasureError> {
        while self.received < count {
            self.poll()?;
        }
        Ok(())
    }

    /// Polls until every send has completed.
    #[inline(always)]
    pub fn await_sent(&mut self) -> Result<(), MeasureError> {
        while self.sent < self.sends_posted {
            self.poll()?;
        }
        Ok(())
    }

    /// Tells `to` that this rank reached a phase.
    pub fn signal(&mut self, to: usize) -> Result<(), MeasureError> {
        self.send(to, 0, TAG_PHASE)
    }

    /// Waits until `from` has said so. Other completions go on being counted.
    pub fn await_signal(&mut self, from: usize) -> Result<(), MeasureError> {
        self.await_phase(from, 0)
    }

    /// As [`Self::await_signal`], for one with `size` bytes.
    fn await_phase(&mut self, from: usize, size: usize) -> Result<(), MeasureError> {
        self.receive_counted(Some(from), size, TAG_PHASE, 0, SIGNALLED)?;
        self.signals_posted += 1;
        while self.signalled < self.signals_posted {
            self.poll()?;
        }
        Ok(())
    }

    /// All ranks leave together: each tells rank 0, which then tells each.
    ///
    /// Where processes outnumber cores this needs every process to run once a
    /// barrier; the dissemination barrier, better elsewhere, needs several turns.
    pub fn barrier(&mut self) -> Result<(), MeasureError> {
        self.gather_and_release(true)
    }

    /// The end of a workload. Nothing may stay queued here: the rank goes to
    /// sleep on its link, and with manual progress nobody would push it. So the
    /// last messages are sends that complete, and messages keep their order.
    pub fn finish(&mut self) -> Result<(), MeasureError> {
        self.gather_and_release(false)?;
        self.await_sent()
    }

    fn gather_and_release(&mut self, inject: bool) -> Result<(), MeasureError> {
        if self.rank() > 0 {
            self.send_as(inject, 0, 0, TAG_PHASE)?;
            return self.await_signal(0);
        }
        for rank in 1..self.ranks() {
            self.await_signal(rank)?;
        }
        for rank in 1..self.ranks() {
            self.send_as(inject, rank, 0, TAG_PHASE)?;
        }
        Ok(())
    }
}

//! Posting and polling as every workload does it: count completions, push on
//! after EAGAIN, give up when nothing moves.

use super::{MeasureError, Rank};
use crate::buffer::Buffer;
use crate::port::{Grant, Local, Outcome, Port, Verb};
use crate::stall::{STALL_MAX, Stall};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The contexts of operations: what to count when they complete.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;
const SIGNALLED: u64 = 3;

/// With the number of a part of the buffers that is the operation's own: sent from, received into.
const SENT_PART: u64 = 1 << 32;
const RECEIVED_PART: u64 = 1 << 33;

/// A transport so slow, in bytes a second, is waited for: longer messages may take longer to come.
const SLOWEST: u64 = 10_000_000;
/// How long at most a rank serves whose memory another one reaches, which it sees nothing of.
const SERVE_MAX: Duration = Duration::from_secs(110);

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
    /// Parts that can be sent from, and those that a message has come into.
    pub free: VecDeque<u64>,
    pub landed: VecDeque<u64>,
    /// Of completions, and of posts where nothing completes.
    stall: Stall,
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
            free: VecDeque::new(),
            landed: VecDeque::new(),
            stall: Stall::of(STALL_MAX + Duration::from_secs(size as u64 / SLOWEST)),
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
            return match self.stall.is_too_long() {
                true => Err(self.stalled()),
                false => Ok(()),
            };
        }
        self.stall.end();
        for entry in &self.entries[..count] {
            match P::context(entry) {
                SENT => self.sent += 1,
                RECEIVED => self.received += 1,
                SIGNALLED => self.signalled += 1,
                context if context & SENT_PART != 0 => {
                    self.sent += 1;
                    self.free.push_back(context ^ SENT_PART);
                }
                context if context & RECEIVED_PART != 0 => {
                    self.received += 1;
                    self.landed.push_back(context ^ RECEIVED_PART);
                }
                context => {
                    return Err(MeasureError::Stray { context, doing: self.doing });
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn stalled(&self) -> MeasureError {
        MeasureError::Stalled { doing: self.doing, seconds: self.stall.limit().as_secs() }
    }

    /// One poll among sends that are taken. Injected ones complete nowhere: that nothing completes is no
    /// stall, and what fails is seen here alone.
    pub fn look(&mut self) -> Result<(), MeasureError> {
        self.stall.end();
        self.poll()
    }

    /// Sends the first `size` bytes of the outgoing buffer: an inject where
    /// that is possible, polling for as long as there is no room.
    #[inline(always)]
    pub fn send(&mut self, to: usize, size: usize, tag: u64) -> Result<(), MeasureError> {
        self.send_as(size <= self.inject_bytes_max, to, size, tag)
    }

    /// As [`Self::send`], of a part of the buffer, which is free again once it is sent.
    pub fn send_part(
        &mut self,
        to: usize,
        size: usize,
        tag: u64,
        part: u64,
    ) -> Result<(), MeasureError> {
        let inject = size <= self.inject_bytes_max;
        self.send_from(inject, to, (part as usize * size, size), tag, SENT_PART | part)?;
        if inject {
            self.free.push_back(part);
        }
        Ok(())
    }

    #[inline(always)]
    fn send_as(
        &mut self,
        inject: bool,
        to: usize,
        size: usize,
        tag: u64,
    ) -> Result<(), MeasureError> {
        self.send_from(inject, to, (0, size), tag, SENT)
    }

    #[inline(always)]
    fn send_from(
        &mut self,
        inject: bool,
        to: usize,
        (offset, size): (usize, usize),
        tag: u64,
        context: u64,
    ) -> Result<(), MeasureError> {
        let (address, bytes) = (self.at.peers[to], self.at.outgoing.at(offset));
        loop {
            // SAFETY: the outgoing buffer holds the bytes (`new`), lives as long as the side
            // is used by this pump, and no workload writes what is under way.
            let outcome = unsafe {
                if inject {
                    self.at.side.inject(bytes, size, address, tag)?
                } else {
                    self.at.side.send(bytes, size, address, tag, context)?
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
        self.receive_counted(from, (0, size), tag, ignore, RECEIVED)
    }

    /// As [`Self::receive`], into a part of the buffer.
    pub fn receive_part(
        &mut self,
        from: usize,
        size: usize,
        tag: u64,
        part: u64,
    ) -> Result<(), MeasureError> {
        let place = (part as usize * size, size);
        self.receive_counted(Some(from), place, tag, 0, RECEIVED_PART | part)
    }

    #[inline(always)]
    fn receive_counted(
        &mut self,
        from: Option<usize>,
        (offset, size): (usize, usize),
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<(), MeasureError> {
        let address = from.map(|rank| self.at.peers[rank]);
        let bytes = self.at.incoming.at_mut(offset);
        loop {
            // SAFETY: the incoming buffer holds the bytes (`new`) and is
            // replaced only when no receive is posted. Several receives may share
            // them: nobody looks at what arrives then.
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

    /// Registers what messages of `size` bytes are sent from and received into, where they are too long to
    /// inject.
    pub fn register_buffers(&mut self, size: usize) -> Result<(), MeasureError> {
        let Rank { side, outgoing, incoming, .. } = &mut self.at;
        let (sent, received) =
            ((outgoing.at_mut(0), outgoing.len()), (incoming.at_mut(0), incoming.len()));
        if size > self.inject_bytes_max {
            // SAFETY: neither is replaced before `deregister_buffers`.
            unsafe { side.register(sent, received)? };
        }
        Ok(())
    }

    /// The counterpart of [`Self::register_buffers`].
    pub fn deregister_buffers(&mut self) -> Result<(), MeasureError> {
        Ok(self.at.side.deregister()?)
    }

    /// Registers what `verb` is to send or to bring, so that an adapter need not register it for each
    /// operation.
    pub fn register_own(&mut self, verb: Verb, size: usize) -> Result<P::Region, MeasureError> {
        let own = match verb {
            Verb::Write => self.at.outgoing.at_mut(0),
            Verb::Read | Verb::FetchAdd | Verb::CompareSwap => self.at.incoming.at_mut(0),
        };
        // SAFETY: both buffers hold `size` bytes (`new`), and are not replaced before `hide`.
        Ok(unsafe { self.at.side.expose(own, size)? }.0)
    }

    /// The counterpart of [`Self::register_own`].
    pub fn hide(&mut self, region: P::Region) -> Result<(), MeasureError> {
        Ok(self.at.side.hide(region)?)
    }

    /// Lets rank 0 reach the first `size` bytes of the incoming buffer until it
    /// signals, and polls meanwhile.
    pub fn serve(&mut self, size: usize) -> Result<(), MeasureError> {
        self.serve_behind(size, Duration::ZERO)
    }

    /// The same, but polls only when so much time has passed.
    pub fn serve_behind(&mut self, size: usize, computes: Duration) -> Result<(), MeasureError> {
        // SAFETY: the incoming buffer holds `size` bytes (`new`), and is not
        // replaced before `hide`.
        let (region, grant) = unsafe { self.at.side.expose(self.at.incoming.at_mut(0), size)? };
        let place = self.at.outgoing.at_mut(0);
        // SAFETY: the buffer has room (`new`), and nothing is being sent from it.
        unsafe { place.cast::<[u8; Grant::BYTES]>().write(grant.to_bytes()) };
        self.send(0, Grant::BYTES, TAG_PHASE)?;
        self.await_sent()?;
        let begun = Instant::now();
        while begun.elapsed() < computes {
            std::hint::spin_loop();
        }
        let usual = std::mem::replace(&mut self.stall, Stall::of(SERVE_MAX));
        let signalled = self.await_signal(0);
        self.stall = usual;
        self.hide(region)?;
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

    /// Writes `size` bytes of the outgoing buffer from `offset` on, all of them the number's last one.
    /// They are not under way.
    pub fn write(&mut self, size: usize, offset: usize, number: u64) {
        assert!(offset + size <= self.at.outgoing.len());
        // SAFETY: the bytes are the buffer's, and nothing else refers to them.
        unsafe { self.at.outgoing.at_mut(offset).write_bytes(number as u8, size) };
    }

    /// Reads `size` bytes of the incoming buffer from `offset` on, where a message has come: they are
    /// all the same, and those of that number, if it is known.
    pub fn check(
        &self,
        size: usize,
        offset: usize,
        number: Option<u64>,
    ) -> Result<(), MeasureError> {
        assert!(offset + size <= self.at.incoming.len());
        // SAFETY: the bytes are the buffer's, and no receive into them is posted any more.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.incoming.at(offset), size) };
        let Some(&first) = bytes.first() else { return Ok(()) };
        let (words, rest) = bytes.as_chunks::<8>();
        let other = words.iter().fold(0, |other, word| {
            other | (u64::from_ne_bytes(*word) ^ u64::from_ne_bytes([first; 8]))
        });
        let is_whole = other == 0 && rest.iter().all(|byte| *byte == first);
        match is_whole && number.is_none_or(|number| first == number as u8) {
            true => Ok(()),
            false => Err(MeasureError::NotAsSent { size }),
        }
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
        self.receive_counted(Some(from), (0, size), TAG_PHASE, 0, SIGNALLED)?;
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

//! A transmit context of one endpoint that sends to a receive context of another one, each driven by
//! a thread of its own.

use super::Lane;
use super::endpoint::{Contexts, at_context};
use crate::end::{End, TAG};
use crate::fabric::{FabricError, read};
use crate::stall::Stall;
use kestrel::Domain;
use kestrel_core::completion_queue::Entry;
use kestrel_core::endpoint::{EndpointOptions, PostError};
use kestrel_core::scalable_endpoint::ContextCounts;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Receives that are posted at any time.
const WINDOW: usize = 64;
/// What the sender has sent, as long as it sends.
const SENDING: u64 = u64::MAX;

/// Tells the sender that its receiver has ended, however it did.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub struct OneWay {
    transmit: End,
    /// The receive context.
    to: u64,
    receive: End,
    /// Where messages go. Dropped behind the context that has the receives.
    words: Box<[UnsafeCell<u64>; WINDOW]>,
    /// What the sender has sent in this round, once it has stopped.
    sent: AtomicU64,
    /// Whether the receiver has ended this round.
    is_over: AtomicBool,
}

// SAFETY: the words are written by the engine of the receive context, and read by nobody.
unsafe impl Sync for OneWay {}

impl OneWay {
    /// All ways from one endpoint to another.
    pub fn open(
        domain: &Arc<Domain>,
        options: &EndpointOptions,
        count: usize,
    ) -> Result<Vec<Self>, FabricError> {
        let open = |transmit, receive| {
            Contexts::open(domain, options, ContextCounts { transmit, receive })
        };
        let (source, target) = (open(count, 1)?, open(1, count)?);
        let known = source.learn(&target)?;
        let way = |index| {
            let (transmit, receive) = (source.transmit(index)?, target.receive(index)?);
            let words = Box::new(std::array::from_fn(|_| UnsafeCell::new(0)));
            let (to, sent) = (at_context(known, index), AtomicU64::new(SENDING));
            let way = OneWay { transmit, to, receive, words, sent, is_over: false.into() };
            (0..WINDOW as u64).try_for_each(|slot| way.post(slot))?;
            Ok(way)
        };
        (0..count).map(way).collect()
    }

    #[inline(always)]
    fn post(&self, slot: u64) -> Result<(), FabricError> {
        // SAFETY: the word is the receive's alone, and is dropped after the context.
        unsafe { self.receive.receive(self.words[slot as usize].get(), slot) }
    }

    /// Sends until told to stop, and says how many that were.
    fn send(&self, stop: &AtomicBool) -> Result<u64, FabricError> {
        let mut sent = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            match self.transmit.endpoint.inject_tagged(&sent.to_ne_bytes(), self.to, TAG) {
                Ok(()) => sent += 1,
                Err(PostError::Again) => {
                    read(&self.transmit.queue, &mut [Entry::default()])?;
                }
                Err(refused) => return Err(FabricError::Post(refused)),
            }
        }
        Ok(sent)
    }

    /// Receives all that is sent, and counts it.
    fn receive(&self) -> Result<u64, FabricError> {
        let mut entries: [Entry; 16] = Default::default();
        let (mut received, mut stall) = (0, Stall::default());
        while self.sent.load(Ordering::Relaxed) != received {
            let count = read(&self.receive.queue, &mut entries)?;
            if count == 0 {
                if stall.is_too_long() {
                    return Err(FabricError::Stalled);
                }
                continue;
            }
            entries[..count].iter().try_for_each(|entry| self.post(entry.context))?;
            received += count as u64;
            stall.end();
        }
        Ok(received)
    }
}

impl Lane for OneWay {
    const THREADS: usize = 2;
    const WHAT: &str = "contexts that send one way to another endpoint's";

    fn work(&self, thread: usize, stop: &AtomicBool) -> Result<u64, FabricError> {
        if thread == 1 {
            let _over = Over(&self.is_over);
            return self.receive();
        }
        let sent = self.send(stop)?;
        self.sent.store(sent, Ordering::Relaxed);
        // The last ones may need the sender to be driven.
        while !self.is_over.swap(false, Ordering::Relaxed) {
            let _ = self.transmit.queue.read(&mut [Entry::default()]);
        }
        self.sent.store(SENDING, Ordering::Relaxed);
        Ok(0)
    }
}

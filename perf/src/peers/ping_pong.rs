//! Messages of 8 bytes to and fro, between two endpoints that are each driven by a thread of its own.

use crate::cores;
use crate::end::{End, TAG};
use crate::fabric::{FabricError, Setup, Side, await_one, inject_word, no_address};
use crate::statistics::median;
use kestrel_core::address_vector::AddressVector;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Round trips that are timed together.
const BATCH: u64 = 16;
/// Ends a round.
const LAST: u64 = u64::MAX;

/// Where messages go. On lines that no other end writes.
#[derive(Default)]
#[repr(align(128))]
struct Word(UnsafeCell<u64>);

/// One end, and what it knows the other one as.
struct Half {
    end: End,
    to: u64,
    /// Dropped behind the end that has the receive.
    word: Box<Word>,
}

// SAFETY: a word is written by the engine of its end, and read by the one thread that has waited for it.
unsafe impl Sync for Half {}

pub struct PingPong {
    halves: [Half; 2],
}

impl PingPong {
    /// Between two new endpoints, each of a domain of its own, with what they know others by.
    pub fn open(setup: &Setup) -> Result<(Self, [Arc<AddressVector>; 2]), FabricError> {
        let open = || Side::of(&setup.open_domain()?, setup.endpoint.clone());
        let (one, other) = (open()?, open()?);
        let address = |side: &Side| side.endpoint.address();
        let to_other = one.vector.insert_one(address(&other)).map_err(no_address)?;
        let to_one = other.vector.insert_one(address(&one)).map_err(no_address)?;
        let vectors = [one.vector.clone(), other.vector.clone()];
        let ends = [one, other].map(|Side { endpoint, queue, .. }| End { endpoint, queue });
        Ok((PingPong::between(ends, [to_other, to_one])?, vectors))
    }

    /// Between two ends, each of which sends to one of `to`. A receive stays posted at each until it is
    /// dropped.
    pub fn between(ends: [End; 2], to: [u64; 2]) -> Result<Self, FabricError> {
        let [one, other] = ends;
        let half = |end, to| {
            let half = Half { end, to, word: Box::default() };
            half.post().map(|()| half)
        };
        Ok(PingPong { halves: [half(one, to[0])?, half(other, to[1])?] })
    }

    /// Half a round trip, the median of a round of that long. Unit: nanoseconds.
    pub fn half_trip(&self, cores: &[usize], round: Duration) -> Result<f64, FabricError> {
        let [one, other] = &self.halves;
        std::thread::scope(|scope| {
            let answering = scope.spawn(move || {
                cores::pin(1, cores);
                other.answer()
            });
            let leading = scope.spawn(move || {
                cores::pin(0, cores);
                one.lead(round)
            });
            let panicked = |_| FabricError::Panicked;
            let (led, answered) = (leading.join(), answering.join());
            let time = led.map_err(panicked)??;
            answered.map_err(panicked)?.map(|()| time)
        })
    }

    /// The two ends.
    pub fn ends(&self) -> [&End; 2] {
        self.halves.each_ref().map(|half| &half.end)
    }
}

impl Half {
    #[inline(always)]
    fn post(&self) -> Result<(), FabricError> {
        // SAFETY: the word is the receive's alone, and is dropped after the end.
        unsafe { self.end.receive(self.word.0.get(), 0) }
    }

    #[inline(always)]
    fn send(&self, word: u64) -> Result<(), FabricError> {
        inject_word(&self.end.endpoint, &self.end.queue, word, self.to, TAG)
    }

    /// The next message. Its place is free for the one after it once this one is posted again.
    #[inline(always)]
    fn take(&self) -> Result<u64, FabricError> {
        await_one(&self.end.queue)?;
        // SAFETY: the receive has completed, and the next one is not posted yet.
        Ok(unsafe { self.word.0.get().read() })
    }

    /// Sends first, for that long: the median time of its batches, for half a round trip. Unit: nanoseconds.
    fn lead(&self, round: Duration) -> Result<f64, FabricError> {
        let (start, mut batches) = (Instant::now(), Vec::new());
        while batches.is_empty() || start.elapsed() < round {
            let begun = Instant::now();
            for trip in 0..BATCH {
                self.send(trip)?;
                assert_eq!(self.take()?, trip, "an answer is what was asked");
                self.post()?;
            }
            batches.push(begun.elapsed().as_nanos() as f64 / (2 * BATCH) as f64);
        }
        self.send(LAST)?;
        Ok(median(&batches))
    }

    /// Answers until the last one.
    fn answer(&self) -> Result<(), FabricError> {
        loop {
            let word = self.take()?;
            if word != LAST {
                self.send(word)?;
            }
            self.post()?;
            if word == LAST {
                return Ok(());
            }
        }
    }
}

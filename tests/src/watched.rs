//! Memory that another thread looks at while it is written.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    thread,
    time::Duration,
};

use kestrel_core::memory::Piece;

/// Bytes that one look at all of it looks at.
const LOOKS: usize = 8 << 10;
/// Between two looks, so that the core is there for those who write.
const PAUSE: Duration = Duration::from_micros(50);

/// Bytes that only grow, range after range: none is ever greater than one in front of it.
pub struct Watched {
    bytes: Box<[AtomicU8]>,
    ranges: Vec<Range<usize>>,
}

/// Ends the watch, also when what is watched panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Watched {
    /// Zeroes, as many as the ranges need, which are to be written in the order of the list.
    pub fn new(ranges: Vec<Range<usize>>) -> Watched {
        let length = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        Watched { bytes: (0..length).map(|_| AtomicU8::new(0)).collect(), ranges }
    }

    /// The ranges, in the order in which they are to be written.
    pub fn pieces(&self) -> Vec<Piece> {
        self.ranges.iter().map(|range| self.piece(range.clone())).collect()
    }

    /// Any of the bytes.
    pub fn piece(&self, range: Range<usize>) -> Piece {
        let start = self.bytes[range.clone()].as_ptr().cast::<u8>().cast_mut();
        // SAFETY: atomic bytes may be written by whoever has them, and each test keeps them until
        // the operation is over.
        unsafe { Piece::new(start, range.len()) }
    }

    /// All bytes of a range.
    pub fn is_all(&self, range: usize, byte: u8) -> bool {
        let mut bytes = self.bytes[self.ranges[range].clone()].iter();
        bytes.all(|found| found.load(Ordering::Relaxed) == byte)
    }

    /// Looks at up to some thousand bytes, last byte first: what is seen later cannot be older.
    pub fn check(&self) {
        let (mut newest, step) = (0, self.bytes.len() / LOOKS + 1);
        for range in self.ranges.iter().rev() {
            let mut behind = range.end;
            // Unoptimized, iterators would take most of the time of all tests of order.
            while behind > range.start {
                let at = behind - 1;
                // Acquire, as the stores of `Piece::copy_in_order_to` are releases.
                let found = self.bytes[at].load(Ordering::Acquire);
                assert!(found >= newest, "byte {at} was {found} when one behind it was {newest}");
                newest = found;
                behind = behind.saturating_sub(step);
            }
        }
    }

    /// Has another thread look, again and again, while `work` is done.
    pub fn watch(&self, work: impl FnOnce()) {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    self.check();
                    thread::sleep(PAUSE);
                }
            });
            let end = End(&over);
            work();
            drop(end);
        });
    }
}

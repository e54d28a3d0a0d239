//! Loom models of filling: a payload that is read while it is written.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_filling`
#![cfg(loom)]

mod models;

use kestrel_core::ring::filling::{Filling, ends};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use models::explore;

/// Bytes of a payload: two parts of a line each.
const LENGTH: usize = 128;

/// What is filled, and a cell for each part. Loom fails if one is read while it is written, or
/// before that is known to be over.
#[derive(Default)]
struct Chunk {
    filling: Filling,
    parts: [UnsafeCell<u64>; 2],
}

// SAFETY: the parts are reached under the protocol that is modelled, which loom checks.
unsafe impl Sync for Chunk {}
// SAFETY: as above.
unsafe impl Send for Chunk {}

impl Chunk {
    /// The sender's: puts the packet at `position` into its place, a chunk of its own.
    fn fill(&self, position: u64) {
        for (index, part) in self.parts.iter().enumerate() {
            // SAFETY: the receiver reads a part only when it is filled.
            part.with_mut(|value| unsafe { *value = 10 + position });
            self.filling.fill(index, position);
        }
    }

    /// The receiver's: reads what is there of the packet at `position`, and says how much it was.
    fn read(&self, position: u64) -> usize {
        let filled = self.filling.filled(position, LENGTH);
        for (part, end) in self.parts.iter().zip(ends(LENGTH)) {
            if end <= filled {
                // SAFETY: it is filled, and nobody writes it again.
                assert_eq!(part.with(|value| unsafe { *value }), 10 + position);
            }
        }
        filled
    }
}

#[test]
fn what_is_filled_can_be_read() {
    explore("filling", 3, || {
        let chunk = Arc::new(Chunk::default());
        let sender = {
            let chunk = chunk.clone();
            thread::spawn(move || chunk.fill(0))
        };
        let first = chunk.read(0);
        let second = chunk.read(0);
        assert!(first <= second && [0, 64, 128].contains(&first));
        sender.join().unwrap();
        assert_eq!(chunk.read(0), LENGTH);
    });
}

/// The words are shared by all packets of a lane: the next one's take nothing back.
#[test]
fn what_is_filled_stays_so_while_the_next_packet_is() {
    explore("filling", 3, || {
        let filling = Arc::new(Filling::default());
        filling.fill(0, 0);
        filling.fill(1, 0);
        let sender = {
            let filling = filling.clone();
            thread::spawn(move || (0..2).for_each(|part| filling.fill(part, 1)))
        };
        assert_eq!(filling.filled(0, LENGTH), LENGTH);
        assert!([0, 64, 128].contains(&filling.filled(1, LENGTH)));
        sender.join().unwrap();
    });
}

//! Loom models of claims: two processes copy a message together.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_claims`
#![cfg(loom)]

mod models;

use kestrel_core::ring::claims::{Claims, Help, Offer};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use models::explore;

const BLOCKS: u32 = 3;

/// Counts who copied each block. Relaxed, so that only the claims can order anything.
fn copied() -> Arc<[AtomicUsize; BLOCKS as usize]> {
    Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)))
}

#[test]
fn each_block_is_copied_once() {
    explore("claims", 3, || {
        let (claims, copied) = (Arc::new(Claims::default()), copied());
        let mut offer = Offer::open(&claims, 0, 1, BLOCKS);
        let sender = {
            let (claims, copied) = (claims.clone(), copied.clone());
            thread::spawn(move || {
                let mut help = Help::new(0, 1, BLOCKS).unwrap();
                while let Some(block) = help.take(&claims) {
                    copied[block as usize].fetch_add(1, Ordering::Relaxed);
                    help.wrote(&claims);
                }
            })
        };
        while let Some(block) = offer.take(&claims).unwrap() {
            copied[block as usize].fetch_add(1, Ordering::Relaxed);
        }
        sender.join().unwrap();
        assert!(offer.is_quiet(&claims));
        assert!(copied.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    });
}

/// After the close and the quiet the sender writes no more: what it wrote is seen.
#[test]
fn a_receiver_that_closes_has_its_memory_to_itself() {
    explore("claims", 3, || {
        let (claims, copied) = (Arc::new(Claims::default()), copied());
        let mut offer = Offer::open(&claims, 0, 1, BLOCKS);
        let sender = {
            let (claims, copied) = (claims.clone(), copied.clone());
            thread::spawn(move || {
                let mut help = Help::new(0, 1, BLOCKS).unwrap();
                while let Some(block) = help.take(&claims) {
                    copied[block as usize].store(1, Ordering::Relaxed);
                    help.wrote(&claims);
                }
            })
        };
        offer.close(&claims).unwrap();
        while !offer.is_quiet(&claims) {
            thread::yield_now();
        }
        let seen: Vec<usize> = copied.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let claimed = |block: u32| usize::from(block >= offer.back());
        let expected: Vec<usize> = (0..BLOCKS).map(claimed).collect();
        assert_eq!(seen, expected);
        sender.join().unwrap();
        let later: Vec<usize> = copied.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(later, expected);
    });
}

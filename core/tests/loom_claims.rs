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
                    help.wrote(&claims, true);
                }
            })
        };
        while let Some(block) = offer.take(&claims).unwrap() {
            copied[block as usize].fetch_add(1, Ordering::Relaxed);
        }
        let is_whole = || copied.iter().all(|count| count.load(Ordering::Relaxed) == 1);
        assert!(!offer.is_there(&claims) || is_whole(), "what the sender wrote is seen");
        sender.join().unwrap();
        assert!(offer.is_quiet(&claims) && offer.is_there(&claims) && is_whole());
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
                    help.wrote(&claims, true);
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

/// A sender withdraws its messages before their buffers change: a receiver that has read a byte from
/// afterwards finds that out when it looks once more.
#[test]
fn what_was_read_of_a_withdrawn_message_is_not_believed() {
    explore("withdrawal", 4, || {
        let (claims, payload) = (Arc::new(Claims::default()), Arc::new(AtomicUsize::new(1)));
        let sender = {
            let (claims, payload) = (claims.clone(), payload.clone());
            thread::spawn(move || {
                claims.withdraw_in_all(1);
                payload.store(2, Ordering::Relaxed);
            })
        };
        let read = payload.load(Ordering::Relaxed);
        let withdrawn = claims.is_withdrawn_beyond(0);
        assert!(read == 1 || withdrawn, "the application's next message was believed");
        sender.join().unwrap();
        assert!(claims.is_withdrawn_beyond(0) && !claims.is_withdrawn_beyond(1));
        assert!(!claims.is_all_withdrawn());
    });
}

/// The same where the look has no fence: what must go wrong.
#[test]
#[should_panic(expected = "was believed")]
fn a_look_without_a_fence_believes_what_was_withdrawn() {
    explore("withdrawal without a fence", 4, || {
        let (claims, payload) = (Arc::new(Claims::default()), Arc::new(AtomicUsize::new(1)));
        let sender = {
            let (claims, payload) = (claims.clone(), payload.clone());
            thread::spawn(move || {
                claims.withdraw();
                payload.store(2, Ordering::Relaxed);
            })
        };
        let read = payload.load(Ordering::Relaxed);
        let withdrawn = claims.seems_withdrawn_beyond(0);
        assert!(read == 1 || withdrawn, "the application's next message was believed");
        sender.join().unwrap();
    });
}

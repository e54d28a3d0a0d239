//! Loom models of an allowance: nobody takes what is not there.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_allowance`
#![cfg(loom)]

mod models;

use kestrel_core::ring::allowance::Allowance;
use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use models::explore;

/// The control thread posts buffers, and the engine promises them to a peer.
#[test]
fn who_takes_finds_what_was_done_before_it_was_put() {
    explore("put and take", 4, || {
        let (allowance, posted) = (Arc::new(Allowance::default()), Arc::new(AtomicUsize::new(0)));
        let posting = {
            let (allowance, posted) = (allowance.clone(), posted.clone());
            thread::spawn(move || {
                posted.store(4, Ordering::Relaxed);
                allowance.put(4);
            })
        };
        if allowance.take(3) {
            assert_eq!(posted.load(Ordering::Relaxed), 4, "promised before it was posted");
            assert_eq!(allowance.left(), 1);
        }
        posting.join().unwrap();
    });
}

#[test]
fn two_who_take_get_no_more_than_there_is() {
    explore("two take", 3, || {
        let allowance = Arc::new(Allowance::default());
        allowance.put(4);
        let takers = [(); 2].map(|()| {
            let allowance = allowance.clone();
            thread::spawn(move || u32::from(allowance.take(3)))
        });
        allowance.put(1);
        let taken: u32 = takers.map(|taker| taker.join().unwrap()).iter().sum();
        assert_eq!((taken, allowance.left()), (1, 2));
    });
}

//! Loom models of a list of members in memory that several processes map.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_members`
#![cfg(loom)]

mod models;

use kestrel_core::{primitive::AtomicU64, ring::members};
use loom::{sync::Arc, sync::Mutex, thread};
use models::explore;

/// One place, with two words behind the incarnation, and what counts changes.
struct List {
    place: [AtomicU64; 3],
    changes: AtomicU64,
    lock: Mutex<()>,
}

impl List {
    fn new() -> Arc<List> {
        let place = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(List { place, changes: AtomicU64::new(0), lock: Mutex::new(()) })
    }

    /// A member whose words both tell who it is.
    fn join(&self, incarnation: u64) -> bool {
        let _held = self.lock.lock().unwrap();
        let vacant = self.member().is_none();
        if vacant {
            members::fill(&self.place, incarnation, &[incarnation; 2]);
            members::count_change(&self.changes);
        }
        vacant
    }

    fn leave(&self, incarnation: u64) -> bool {
        let was_there = members::vacate(&self.place, incarnation);
        if was_there {
            members::count_change(&self.changes);
        }
        was_there
    }

    fn member(&self) -> Option<u64> {
        let (incarnation, words) = members::read::<2>(&self.place)?;
        assert_eq!(words, [incarnation; 2], "another one's words");
        Some(incarnation)
    }
}

#[test]
fn who_joins_is_seen_whole_or_not_at_all() {
    explore("join beside a reader", 4, || {
        let list = List::new();
        let joining = {
            let list = list.clone();
            thread::spawn(move || assert!(list.join(7)))
        };
        let changes = members::changes(&list.changes);
        let seen = list.member();
        assert!(changes == 0 || seen == Some(7), "counted before it was there");
        joining.join().unwrap();
        assert_eq!((list.member(), members::changes(&list.changes)), (Some(7), 1));
    });
}

/// A place that another takes over is never a mixture of the two.
#[test]
fn a_place_that_is_taken_over_is_never_a_mixture() {
    explore("leave and join beside a reader", 3, || {
        let list = List::new();
        list.join(7);
        let changing = {
            let list = list.clone();
            thread::spawn(move || {
                assert!(list.leave(7));
                assert!(list.join(9));
            })
        };
        let changes = members::changes(&list.changes);
        let seen = list.member();
        assert!(changes < 2 || seen != Some(7), "a departure that was counted is not seen");
        assert!(changes < 3 || seen == Some(9), "a join that was counted is not seen");
        changing.join().unwrap();
        assert_eq!(list.member(), Some(9));
    });
}

/// Whoever finds that a member is gone takes it out, beside one who joins in its place: the new one
/// stays.
#[test]
fn two_who_find_a_member_gone_take_it_out_once() {
    explore("two leave, one joins", 3, || {
        let list = List::new();
        list.join(7);
        let other = {
            let list = list.clone();
            thread::spawn(move || list.leave(7))
        };
        let joining = {
            let list = list.clone();
            thread::spawn(move || list.join(9))
        };
        let mine = list.leave(7);
        let theirs = other.join().unwrap();
        assert!(mine ^ theirs, "taken out once");
        let joined = joining.join().unwrap();
        assert_eq!(list.member(), joined.then_some(9));
    });
}

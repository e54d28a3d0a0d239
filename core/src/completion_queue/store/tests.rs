use super::*;
use crate::{error::Errno, flags::Flags};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

#[derive(Clone, Default)]
struct Counted(Arc<AtomicU32>);

impl Bell for Counted {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn drain(&self) {}
    fn fd(&self) -> std::os::fd::RawFd {
        7
    }
}

/// Who learns of errors by a counter reads nothing else.
#[test]
fn nothing_is_left_of_errors_that_are_read_alone() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let store = CompletionStore::new(sharing, 4, Box::new(Counted::default()));
        for _ in 0..100 {
            store.push_error(ErrorEntry::new(1, Flags::SEND, Errno::IO, String::new()));
            assert!(!store.is_empty());
            assert!(store.pop_error().is_some());
            assert_eq!((store.is_empty(), store.len()), (true, 0));
        }
        store.push(Entry::default());
        assert_eq!((store.is_empty(), store.len()), (false, 1));
        assert!(matches!(store.pop(&mut [Entry::default()]), Head::Taken(1)));
        assert_eq!((store.is_empty(), store.len()), (true, 0));
    }
}

/// A thread that waits outside counts as asleep until it looks, however long that takes.
#[test]
fn entries_ring_once_until_a_sleeper_wakes() {
    let bell = Counted::default();
    let store = CompletionStore::new(Sharing::Shared, 4, Box::new(bell.clone()));
    let (rung, push) = (|| bell.0.load(Ordering::Relaxed), || store.push(Entry::default()));
    push();
    assert_eq!(rung(), 0, "nobody sleeps");
    let (first, second) = (store.enter_sleep(), store.enter_sleep());
    (0..10).for_each(|_| push());
    assert_eq!(rung(), 1);
    store.leave_sleep(first);
    assert_eq!(rung(), 2, "there is something for the second, too");
    store.tell_of_unit();
    assert_eq!(rung(), 3, "whatever was rung for, all have to hear of it");
    store.leave_sleep(second);
    push();
    assert_eq!(rung(), 3);
    let sleeper = store.enter_sleep();
    (0..10).for_each(|_| push());
    assert_eq!(rung(), 4);
    store.leave_sleep(sleeper);
}

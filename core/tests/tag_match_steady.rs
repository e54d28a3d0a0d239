//! The tag matcher's steady state allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kestrel_core::tag_match::{ANY_SOURCE, Matcher};

thread_local! {
    static ALLOCATION_COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what this thread asks of it.
struct Counting;

fn count() {
    // The thread's storage may be gone already when its last allocations happen.
    let _ = ALLOCATION_COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to `System` with the caller's own arguments; counting touches a
// thread-local that needs neither allocation nor destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` above, with the same layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `at` came from `System` above, with the same layout.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const DEPTH: u32 = 3000;

/// Fills both sides and empties them in another order, in four classes.
fn round(matcher: &mut Matcher) {
    let receive = |n: u32| {
        let source = if n.is_multiple_of(3) { ANY_SOURCE } else { n % 5 };
        (source, u64::from(n) << 8, u64::from(n % 2))
    };
    for n in 0..DEPTH {
        let (source, tag, ignore) = receive(n);
        matcher.post(source, tag, ignore, n);
        matcher.park(n % 5, tag, n);
    }
    for n in (0..DEPTH).rev() {
        let (source, tag, ignore) = receive(n);
        assert_eq!(matcher.take_posted(n % 5, tag), Some(n));
        assert_eq!(matcher.take_unexpected(source, tag, ignore), Some(n));
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    let mut matcher = Matcher::new();
    // The first round grows pools and tables, the second one those of classes that were not known
    // when the first one's messages came.
    round(&mut matcher);
    round(&mut matcher);
    let before = ALLOCATION_COUNT.get();
    assert!(before > 0, "the allocator does not count");
    for _ in 0..10 {
        round(&mut matcher);
    }
    assert_eq!(ALLOCATION_COUNT.get() - before, 0);
}

//! The tag matcher against its model, and the cases that a random walk seldom meets.

#[path = "tag_match/model.rs"]
mod model;

use kestrel_core::tag_match::{ANY_SOURCE, Matcher, STICKY};
use model::{Alphabet, Pair, Step};
use proptest::collection::vec;
use proptest::prelude::*;

/// Receives of MPI libraries: they always mask protocol bits.
const PROTOCOL_BITS: u64 = 0xf << 60;

/// Deep enough for several doublings.
const DEPTH: u32 = 5000;

fn walk(alphabet: Alphabet, matcher: Matcher, numbers: &[u64]) {
    let mut pair = Pair::new(matcher);
    for &number in numbers {
        pair.step(Step::decode(alphabet, number));
    }
    pair.drain();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 15_000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model_on_few_classes(numbers in vec(any::<u64>(), 1..250)) {
        walk(Alphabet::NARROW, Matcher::new(), &numbers);
    }

    #[test]
    fn agrees_with_the_model_beyond_sixteen_classes(numbers in vec(any::<u64>(), 1..400)) {
        walk(Alphabet::WIDE, Matcher::with_capacity(3), &numbers);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model_on_long_queues(numbers in vec(any::<u64>(), 2000..4000)) {
        walk(Alphabet::DEEP, Matcher::new(), &numbers);
    }
}

/// Classes that nobody searches are dropped after thousands of messages; no short walk gets there.
#[test]
fn classes_come_back_after_they_were_dropped() {
    let mut pair = Pair::new(Matcher::new());
    let ignores = (0..24).map(|bit| 1_u64 << bit);
    for ignore in ignores.clone() {
        // Some messages stay, so that a table is not empty when it is dropped or built.
        for n in 0..20 {
            pair.step(Step::Park { source: n % 3, tag: u64::from(n) << 32 | ignore });
        }
        for n in 0..5000 {
            let (source, tag) = (n % 3, u64::from(n % 8) << 40);
            pair.step(Step::Park { source, tag });
            pair.step(Step::Receive { source, tag, ignore });
        }
    }
    for ignore in ignores.rev() {
        for n in 0..20 {
            let (source, tag) = (n % 3, u64::from(n) << 32);
            pair.step(Step::Receive { source, tag, ignore });
        }
    }
    pair.drain();
}

#[test]
fn the_earliest_receive_wins_across_classes() {
    let mut matcher = Matcher::new();
    matcher.post(ANY_SOURCE, 7, 0, 0);
    matcher.post(3, 7, 0, 1);
    matcher.post(3, 0, u64::MAX, 2);
    matcher.post(ANY_SOURCE, 0, u64::MAX, 3);
    matcher.post(3, 7, PROTOCOL_BITS, 4);
    let taken: Vec<_> = (0..6).map(|_| matcher.take_posted(3, 7)).collect();
    assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3), Some(4), None]);
}

#[test]
fn the_earliest_message_wins_for_a_wildcard() {
    let mut matcher = Matcher::new();
    for message in 0..DEPTH {
        matcher.park(message % 7, u64::from(message), message);
    }
    assert_eq!(matcher.take_unexpected(2, 16, 0), Some(16));
    assert_eq!(matcher.take_unexpected(2, 0, u64::MAX), Some(2));
    let rest = (0..DEPTH).filter(|&message| message != 16 && message != 2);
    for message in rest {
        assert_eq!(matcher.take_unexpected(ANY_SOURCE, 9, u64::MAX), Some(message));
    }
    assert_eq!(matcher.unexpected_len(), 0);
}

#[test]
fn a_receive_that_stays_posted_is_found_again() {
    let mut matcher = Matcher::new();
    matcher.post(ANY_SOURCE, 1, 0, 10);
    matcher.post(ANY_SOURCE, 1, 0, 11 | STICKY);
    assert_eq!(matcher.find_posted(5, 1), Some(10));
    assert_eq!(matcher.find_posted(6, 1), Some(10));
    matcher.remove_posted(10);
    // Of its own class, among several, and behind a receive of another tag.
    for tag in [1, 2] {
        matcher.post(3, tag, 0, 20);
        assert_eq!(matcher.take_posted(5, 1), Some(11 | STICKY));
        assert_eq!(matcher.take_posted(5, 1), Some(11 | STICKY));
        matcher.remove_posted(20);
    }
    matcher.remove_posted(11 | STICKY);
    assert_eq!((matcher.take_posted(5, 1), matcher.posted_len()), (None, 0));
}

#[test]
fn receives_of_one_key_leave_in_posting_order() {
    let mut matcher = Matcher::new();
    (0..DEPTH).for_each(|n| matcher.post(1, 42, PROTOCOL_BITS, n));
    // From the middle, the front and the back.
    for gone in [DEPTH / 2, 0, DEPTH - 1] {
        matcher.remove_posted(gone);
    }
    for n in (1..DEPTH - 1).filter(|&n| n != DEPTH / 2) {
        assert_eq!(matcher.take_posted(1, 42 | 1 << 63), Some(n));
    }
    assert_eq!(matcher.take_posted(1, 42), None);
}

#[test]
fn strided_tags_are_found_in_reverse() {
    for shift in [0, 4, 6, 16, 32, 48] {
        let mut matcher = Matcher::new();
        for n in 0..DEPTH {
            matcher.post(n % 3, u64::from(n) << shift, 0, n);
            matcher.park(n % 3, u64::from(n) << shift, n);
        }
        for n in (0..DEPTH).rev() {
            assert_eq!(matcher.take_posted(n % 3, u64::from(n) << shift), Some(n));
            assert_eq!(matcher.take_unexpected(n % 3, u64::from(n) << shift, 0), Some(n));
        }
    }
}

#[test]
fn an_unknown_source_matches_undirected_receives_only() {
    let mut matcher = Matcher::new();
    matcher.post(0, 5, 0, 0);
    matcher.post(ANY_SOURCE, 5, 0, 1);
    assert_eq!(matcher.take_posted(ANY_SOURCE, 5), Some(1));
    assert_eq!(matcher.take_posted(ANY_SOURCE, 5), None);
}

#[test]
fn more_classes_than_tables_keep_posting_order() {
    let mut matcher = Matcher::new();
    (0..60).for_each(|n| matcher.post(n % 2, 0, u64::from(n), n));
    matcher.remove_posted(40);
    assert!(matcher.posted().map(|(receive, _)| receive).eq((0..60).filter(|&n| n != 40)));
    for n in (0..60).step_by(2).filter(|&n| n != 40) {
        assert_eq!(matcher.take_posted(0, 0), Some(n));
    }
    assert_eq!(matcher.take_posted(0, 0), None);
    // Tables that are free again serve the next classes.
    for n in (1..60).step_by(2) {
        assert_eq!(matcher.take_posted(1, 0), Some(n));
    }
    matcher.post(0, 0, 1 << 40, 99);
    assert_eq!(matcher.take_posted(0, 1 << 40), Some(99));
}

#[test]
#[should_panic(expected = "is not posted")]
fn a_receive_cannot_be_removed_twice() {
    let mut matcher = Matcher::new();
    matcher.post(0, 0, 0, 7);
    matcher.remove_posted(7);
    matcher.remove_posted(7);
}

#[test]
#[should_panic(expected = "is not parked")]
fn a_message_cannot_be_removed_twice() {
    let mut matcher = Matcher::new();
    matcher.park(0, 0, 7);
    matcher.remove_unexpected(7);
    matcher.remove_unexpected(7);
}

//! Chunks that are given with a message and come back with an answer.

use std::collections::VecDeque;

use kestrel_shm::{
    LANE_CHUNK_BYTES,
    lane::{LaneError, OwnChunks},
};
use kestrel_tests::{
    lanes::{self, GIVEN, LANE, POOL, RETURNED, Side, offset, owner, pair, place},
    scale::scaled,
};
use proptest::{
    collection::vec,
    prelude::{Strategy, any},
    sample::select,
    test_runner::{Config, TestRunner},
};

const CHUNK: usize = 32 << 10;
/// Chunks of a lane that may be the receiver's at a time.
const GIVEN_MAX: usize = 2;
/// Whose chunks are given.
const GIVING: [OwnChunks; 2] = [OwnChunks::Turns, OwnChunks::All];

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| seed.wrapping_add((at * 31 / 7) as u8)).collect()
}

/// Sends a message, and says whose chunk it lies in and where.
fn say(from: &mut Side, to: &mut Side, seed: u8, length: usize) -> (u64, u64) {
    let said = content(seed, length);
    let at = from.push(&said, seed.is_multiple_of(2)).unwrap();
    assert_eq!(to.take(), Ok(Some(said)));
    (owner(at), offset(at))
}

#[test]
fn an_answer_comes_in_the_chunk_that_was_read() {
    let lengths = [49, 64, 1000, 4096, CHUNK / 2, CHUNK].into_iter();
    for (length, own) in lengths.flat_map(|length| GIVING.map(|own| (length, own))) {
        let [mut one, mut other] = pair(CHUNK, own);
        let (_, first) = say(&mut one, &mut other, 0, length);
        assert_eq!(say(&mut other, &mut one, 1, length), (RETURNED, first));
        for turn in 2..100 {
            assert_eq!(say(&mut one, &mut other, turn, length), (GIVEN, first));
            assert_eq!(say(&mut other, &mut one, turn, length), (RETURNED, first));
        }
    }
}

/// What was given for a short message is as long as for any.
#[test]
fn an_answer_may_be_longer_than_what_it_answers() {
    let [mut one, mut other] = pair(CHUNK, OwnChunks::All);
    let (_, first) = say(&mut one, &mut other, 0, 100);
    assert_eq!(say(&mut other, &mut one, 1, CHUNK), (RETURNED, first));
    assert_eq!(say(&mut one, &mut other, 2, CHUNK), (GIVEN, first));
    assert_eq!(say(&mut other, &mut one, 3, 100), (RETURNED, first));
}

#[test]
fn a_receiver_that_never_answers_keeps_few() {
    for (own, rest) in [(OwnChunks::All, LANE), (OwnChunks::Turns, POOL)] {
        let [mut one, mut other] = pair(CHUNK, own);
        let owners: Vec<u64> =
            (0..100).map(|turn| say(&mut one, &mut other, turn, CHUNK).0).collect();
        assert_eq!(owners[..GIVEN_MAX], [GIVEN; GIVEN_MAX]);
        assert!(owners[GIVEN_MAX..].iter().all(|&owner| owner == rest));
        // They come back, the oldest first, when it does; then it gives of its own.
        let answers: Vec<u64> =
            (0..4).map(|turn| say(&mut other, &mut one, turn, CHUNK).0).collect();
        assert_eq!(answers, [RETURNED, RETURNED, GIVEN, GIVEN]);
    }
}

#[test]
fn short_chunks_and_those_of_a_pool_are_not_given() {
    let cases = [
        (CHUNK / 2, OwnChunks::All, LANE),
        (CHUNK / 2, OwnChunks::Turns, POOL),
        (CHUNK, OwnChunks::None, POOL),
    ];
    for (chunk_bytes, own, expected) in cases {
        let [mut one, mut other] = pair(chunk_bytes, own);
        for turn in 0..20 {
            assert_eq!(say(&mut one, &mut other, turn, chunk_bytes).0, expected);
            assert_eq!(say(&mut other, &mut one, turn, chunk_bytes).0, expected);
        }
    }
}

/// Both sides send and take as they please.
#[test]
fn whatever_the_order_each_message_arrives_as_it_was_sent() {
    let cases = scaled(30, 200, 5_000) as u32;
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let length =
        any::<usize>().prop_map(|raw| 49 + raw % if raw & 1 == 0 { 500 } else { CHUNK - 48 });
    let step = (any::<bool>(), any::<bool>(), any::<bool>(), length, any::<u8>());
    let own = select(&[OwnChunks::None, OwnChunks::Turns, OwnChunks::All][..]);
    let outcome = runner.run(&(own, vec(step, 1..400)), |(own, steps)| {
        let mut sides = pair(CHUNK, own);
        let mut under_way = [VecDeque::new(), VecDeque::new()];
        for (side, sends, shown, length, seed) in steps {
            let side = usize::from(side);
            if seed < 16 {
                sides[side].rest();
            }
            if sends {
                let said = content(seed, length);
                if sides[side].push(&said, shown).is_some() {
                    under_way[side].push_back(said);
                } else {
                    assert!(under_way[side].len() >= 3, "there is room for a few");
                }
            } else {
                assert_eq!(sides[side].take(), Ok(under_way[1 - side].pop_front()));
            }
        }
        Ok(())
    });
    outcome.unwrap();
}

/// Each side gives the pages of those chunks back that are its own for the moment: no payload is lost,
/// and no answer.
#[test]
fn lanes_that_rest_keep_what_is_under_way_alone() {
    const PAGES: usize = CHUNK / 4096;
    for own in GIVING {
        let [mut one, mut other] = pair(CHUNK, own);
        let said: Vec<_> = (0..4).map(|seed| content(seed, CHUNK)).collect();
        for (seed, said) in said.iter().enumerate() {
            one.push(said, seed % 2 == 0).unwrap();
        }
        let lent = if own == OwnChunks::All { 2 } else { 0 };
        assert_eq!(one.rest(), own == OwnChunks::Turns, "what lies in the lane's own is unread");
        other.rest();
        let pages = (GIVEN_MAX + lent) * PAGES;
        assert!(
            (pages..=LANE_CHUNK_BYTES / 4096).contains(&one.chunk_pages()),
            "nothing was taken"
        );
        for said in &said {
            assert_eq!(other.take(), Ok(Some(said.clone())));
        }
        one.rest();
        assert_eq!(one.chunk_pages(), GIVEN_MAX * PAGES, "an answer may come there");
        other.rest();
        assert_eq!(one.chunk_pages(), 0);
        say(&mut other, &mut one, 7, CHUNK);
        assert_eq!(one.chunk_pages(), PAGES);
        say(&mut one, &mut other, 8, CHUNK);
        assert!(one.rest() && other.rest());
        assert_eq!([one.chunk_pages(), other.chunk_pages()], [0, 0]);
    }
}

/// What a side hears whose peer says that its message lies there, after `turns` messages to and fro, and
/// `given` more.
fn hears(turns: u8, given: u8, said: impl Fn(u64) -> u64) -> Result<Option<Vec<u8>>, LaneError> {
    let [mut one, mut liar] = pair(CHUNK, OwnChunks::All);
    for turn in 0..turns {
        say(&mut one, &mut liar, turn, CHUNK);
        say(&mut liar, &mut one, turn, CHUNK);
    }
    for turn in 0..given {
        say(&mut one, &mut liar, turn, CHUNK);
    }
    let true_place = liar.push(&content(1, 1000), false).unwrap();
    liar.tamper(said(true_place));
    one.take()
}

#[test]
fn what_was_not_given_does_not_come_back() {
    let not_given = |offset, length| Err(LaneError::NotGiven { offset, length });
    let at = |offset: u64, length: u64| move |_| place(RETURNED, offset, length);
    // Nothing was, or all of it came back.
    assert_eq!(hears(0, 0, at(0, 1000)), not_given(0, 1000));
    assert_eq!(hears(3, 0, at(0, 1000)), not_given(0, 1000));
    // Another chunk, a part of one, more than a chunk, nothing, and far outside.
    let chunk = CHUNK as u64;
    assert_eq!(hears(0, 1, |told| told), Ok(Some(content(1, 1000))));
    assert_eq!(hears(0, 1, at(5 * chunk, 1000)), not_given(5 * CHUNK, 1000));
    assert_eq!(hears(0, 1, at(64, 1000)), not_given(64, 1000));
    assert_eq!(hears(0, 1, at(0, chunk + 1)), not_given(0, CHUNK + 1));
    assert_eq!(hears(0, 1, at(0, 0)), not_given(0, 0));
    let outside = LANE_CHUNK_BYTES as u64;
    assert_eq!(hears(0, 1, at(outside, 1000)), not_given(LANE_CHUNK_BYTES, 1000));
    assert_eq!(hears(0, 1, at(40 * outside, 1000)), not_given(40 * LANE_CHUNK_BYTES, 1000));
}

#[test]
fn no_more_is_given_than_may_be() {
    let given = |offset: u64| place(GIVEN, offset, 1000);
    // A chunk that is not all within the lane's memory.
    let outside = LANE_CHUNK_BYTES - CHUNK + 64;
    let error = LaneError::OutsidePool { offset: outside, length: 1000, pool: LANE_CHUNK_BYTES };
    assert_eq!(hears(0, 0, |_| given(outside as u64)), Err(error));
    // More than two, none of which has come back.
    let [mut one, mut liar] = pair(CHUNK, OwnChunks::All);
    let mut tell = |offset: u64| {
        liar.push(&content(1, 1000), false).unwrap();
        liar.tamper(lanes::place(GIVEN, offset, 1000));
        one.take()
    };
    for _ in 0..GIVEN_MAX {
        assert!(tell(0).is_ok());
    }
    assert_eq!(tell(0), Err(LaneError::TooManyGiven { offset: 0 }));
}

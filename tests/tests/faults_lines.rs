//! Arbitrary lines for the receiving end of a lane: nothing panics, and nothing is read or written
//! out of bounds.

use std::{ptr::NonNull, time::Duration};

use kestrel_core::memory::Piece;
use kestrel_shm::{
    LANE_CHUNK_BYTES, LANE_HEAD_BYTES, PoolMemory, Station, StationEvent, StationOptions,
    copy::Copier, lane::ReceiveLane,
};
use kestrel_tests::{scale::scaled, station};
use proptest::{
    collection::vec,
    prelude::any,
    test_runner::{Config, TestRunner},
};

const LANE_WORDS: usize = LANE_HEAD_BYTES / 8;
/// Of where a chunk is: in the lane's own.
const OWN: u64 = 1 << 31;
const LINES_FROM: usize = 512;
const POOL: usize = 16 << 10;

/// A connected pair of stations: the sender's end of the lane, raw, and what the receiver got.
fn lane() -> (kestrel_shm::LaneMemory, ReceiveLane, PoolMemory, [Station; 2]) {
    let open = || {
        let connect_timeout = Duration::from_secs(10);
        let options = StationOptions { connect_timeout, ..station::options(POOL) };
        (options.pool.clone(), Station::open(options).unwrap())
    };
    let ((pool, from), (_, to)) = (open(), open());
    from.connect(1, to.address());
    let wait = |station: &Station| loop {
        if let Some(event) = station.next_event() {
            return event;
        }
        std::thread::yield_now();
    };
    let StationEvent::Connected { lane, .. } = wait(&from) else { panic!() };
    let StationEvent::Incoming { lane: theirs, pool: view, bell, peer } = wait(&to) else {
        panic!()
    };
    (lane, ReceiveLane::new(theirs, view, bell, peer), pool, [from, to])
}

/// Fills chunks, and says with what.
fn fill(start: NonNull<u8>, bytes: usize) -> Vec<u8> {
    let content: Vec<u8> = (0..bytes).map(|index| (index * 31 / 7) as u8).collect();
    // SAFETY: the memory is ours and that long; nobody else touches it.
    unsafe { start.as_ptr().copy_from_nonoverlapping(content.as_ptr(), bytes) };
    content
}

/// A place in the lane's own chunks or in the pool that is nearly within.
fn place(is_own: bool, offset: u64, length: u64) -> u64 {
    let bytes = if is_own { LANE_CHUNK_BYTES } else { POOL } as u64;
    let place = (offset % (bytes / 64)) << 32 | (length % (bytes + 64));
    if is_own { place | OWN } else { place }
}

#[test]
fn arbitrary_lines_are_refused_or_read_within_bounds() {
    let (memory, mut lane, pool, _stations) = lane();
    let content = fill(pool.as_ptr(), POOL);
    // Handing lines back changes nothing of them.
    let own = fill(memory.chunks(), LANE_CHUNK_BYTES);
    let copier = Copier::choose("auto").unwrap();
    let start = memory.as_ptr().cast::<u64>();
    let write = |index: usize, word: u64| {
        assert!(index < LANE_WORDS);
        // SAFETY: within the mapping; a volatile write, since the lane reads it elsewhere.
        unsafe { start.as_ptr().add(index).write_volatile(word) };
    };
    let cases = scaled(2_000, 20_000, 500_000) as u32;
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let runner_random = proptest::test_runner::TestRng::deterministic_rng(
        proptest::test_runner::RngAlgorithm::ChaCha,
    );
    let mut runner = TestRunner::new_with_rng(config, runner_random);
    let lane = std::cell::RefCell::new(&mut lane);
    let strategy =
        (vec(any::<u64>(), 80), 0u8..17, any::<u8>(), any::<u16>(), any::<bool>(), 0usize..300);
    let outcome = runner.run(&strategy, |(words, kind, flags, length, stamped, cut)| {
        let mut lane = lane.borrow_mut();
        let position = lane.position();
        let line = |nth: u64| LINES_FROM + ((position + nth) % 128) as usize * 8;
        for (index, &word) in words.iter().enumerate() {
            write(line(index as u64 / 8) + index % 8, word);
        }
        // A place that is sometimes right.
        if flags & 1 == 0 {
            write(line(0) + 7, place(flags & 4 == 0, words[7], words[6]));
        }
        let short = if flags & 2 == 0 { length % 50 } else { length % 5000 };
        let meta = u64::from(kind) | u64::from(flags) << 8 | u64::from(short) << 16;
        let stamp = if stamped { u64::from((position as u32).wrapping_add(1)) } else { words[0] };
        write(line(0), meta << 32 | (stamp & 0xffff_ffff));
        let Some(head) = lane.peek() else { return Ok(()) };
        let plain = lane.next_plain(head);
        let Ok(length) = lane.next(head) else { return Ok(()) };
        lane.tag();
        for index in 0..head.words() {
            lane.word(index);
        }
        // Into a buffer with a margin that must stay as it is.
        let offset = cut.min(length);
        let part = length - offset;
        let mut buffer = vec![0xa5u8; part + 64];
        // SAFETY: the buffer is longer than the piece, and read only afterwards.
        let piece = unsafe { Piece::new(buffer.as_mut_ptr(), part) };
        lane.copy_out(&copier, offset, piece);
        if let Some((plain, tiny)) = plain {
            assert_eq!(plain, length);
            assert!(tiny.is_none_or(|word| word.to_ne_bytes()[offset..] == buffer[..part]));
        }
        assert!(buffer[part..].iter().all(|&byte| byte == 0xa5), "written beyond the message");
        if head.flags & 0x60 == 0x40 {
            // SAFETY: within the mapping.
            let place = unsafe { start.as_ptr().add(line(0) + 7).read_volatile() };
            let from = (place >> 32) as usize * 64 + offset;
            let content = if place & OWN != 0 { &own } else { &content };
            assert_eq!(&buffer[..part], &content[from..from + part]);
        }
        lane.consume();
        Ok(())
    });
    outcome.unwrap();
}

//! Arbitrary lines for the receiving end of a lane: nothing panics, and nothing is read or written
//! out of bounds.

use std::ptr::NonNull;

use kestrel_core::memory::Piece;
use kestrel_shm::{LANE_CHUNK_BYTES, copy::Copier, lane::OwnChunks};
use kestrel_tests::{
    lanes::{self, CHUNK_WORD, LANE_WORDS, LINES, LINES_FROM},
    scale::scaled,
};
use proptest::{
    collection::vec,
    prelude::any,
    test_runner::{Config, TestRunner},
};

const POOL: usize = 16 << 10;

/// Fills chunks, and says with what.
fn fill(start: NonNull<u8>, bytes: usize) -> Vec<u8> {
    let content: Vec<u8> = (0..bytes).map(|index| (index * 31 / 7) as u8).collect();
    // SAFETY: the memory is ours and that long; nobody else touches it.
    unsafe { start.as_ptr().copy_from_nonoverlapping(content.as_ptr(), bytes) };
    content
}

/// A place in somebody's chunks that is nearly within.
fn place(owner: u64, offset: u64, length: u64) -> u64 {
    let bytes = if owner == lanes::POOL { POOL } else { LANE_CHUNK_BYTES } as u64;
    let (offset, length) = (offset % (bytes / 64) * 64, length % (bytes + 64));
    // Only where a chunk starts can it be one that goes to and fro.
    let offset = if owner > lanes::LANE { offset & !0x7fff } else { offset };
    lanes::place(owner, offset, length)
}

#[test]
fn arbitrary_lines_are_refused_or_read_within_bounds() {
    let [(pool, from), (_, to)] = [lanes::open(POOL), lanes::open(POOL)];
    let lanes::Connected { memory, receive: mut lane, .. } =
        lanes::connect(&from, &to, OwnChunks::All);
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
        let line = |nth: u64| LINES_FROM + ((position + nth) % LINES) as usize * 8;
        for (index, &word) in words.iter().enumerate() {
            write(line(index as u64 / 8) + index % 8, word);
        }
        // A place that is sometimes right.
        if flags & 1 == 0 {
            write(line(0) + CHUNK_WORD, place(words[5] % 4, words[7], words[6]));
        }
        let short = if flags & 2 == 0 { length % 50 } else { length % 5000 };
        let meta = u64::from(kind) | u64::from(flags) << 8 | u64::from(short) << 16;
        let stamp = if stamped { u64::from((position as u32).wrapping_add(1)) } else { words[0] };
        write(line(0), meta << 32 | (stamp & 0xffff_ffff));
        let Some(head) = lane.peek() else { return Ok(()) };
        let plain = lane.next_plain(head);
        let Ok(length) = lane.next(head, None) else { return Ok(()) };
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
            let place = unsafe { start.as_ptr().add(line(0) + CHUNK_WORD).read_volatile() };
            let from = lanes::offset(place) as usize + offset;
            let content = if lanes::owner(place) == lanes::POOL { &content } else { &own };
            assert_eq!(&buffer[..part], &content[from..from + part]);
        }
        lane.consume();
        Ok(())
    });
    outcome.unwrap();
}

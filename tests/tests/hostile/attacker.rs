//! What the attacker does with its lanes.

use std::{
    net::SocketAddr,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use kestrel_core::{
    ring::lane::WISH_CLOSED,
    wire::{self, Kind},
};
use kestrel_shm::{Doorbell, LANE_BYTES, LaneMemory, Station, StationEvent, StationOptions};
use kestrel_tests::{
    lanes::{self, LANE_WORDS, LINES, LINES_FROM},
    packets,
    process::say,
    random::Random,
    station::{self, next_event},
};

use super::GARBAGE_TAG;

const WORDS: usize = LANE_BYTES / 8;
const POOL_BYTES: usize = 64 << 10;
/// How long each round lasts, and one that floods.
const ROUND: Duration = Duration::from_millis(12);
const FLOOD: Duration = Duration::from_millis(150);
/// What has to go on until it is noticed.
const LANES_MAX: u32 = 40;

/// The words of a lane.
struct Words {
    start: NonNull<u8>,
    position: u64,
    _memory: LaneMemory,
}

impl Words {
    fn of(memory: LaneMemory) -> Words {
        Words { start: memory.as_ptr(), position: 0, _memory: memory }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS);
        // SAFETY: within the mapping, which lives as long as `self`; the other process only
        // touches it by atomics of the same size or smaller.
        unsafe { &*self.start.as_ptr().cast::<AtomicU64>().add(index) }
    }

    fn line(&self, position: u64, index: usize) -> &AtomicU64 {
        self.word(LINES_FROM + (position % LINES) as usize * 8 + index)
    }

    /// Publishes a line with a right stamp, and moves on by `lines`.
    fn publish(&mut self, meta: u32, words: [u64; 7], lines: u64) {
        for (index, word) in words.into_iter().enumerate() {
            self.line(self.position, index + 1).store(word, Ordering::Relaxed);
        }
        let stamp = (self.position as u32).wrapping_add(1);
        let word = u64::from(meta) << 32 | u64::from(stamp);
        self.line(self.position, 0).store(word, Ordering::Release);
        self.position += lines;
    }

    /// How far the receiver says that it is.
    fn head(&self) -> u64 {
        self.word(0).load(Ordering::Acquire)
    }

    fn has_room(&self) -> bool {
        self.position.wrapping_sub(self.head()) < LINES - 9
    }

    /// Whether the receiver has closed its end.
    fn is_closed(&self) -> bool {
        self.word(8).load(Ordering::Acquire) as u32 == WISH_CLOSED
    }
}

/// A number as a hostile mind would choose it.
fn nasty(random: &mut Random) -> u64 {
    match random.below(9) {
        0 => 0,
        1 => u64::MAX - random.below(16),
        2 => 1 << random.below(64),
        3 => random.below(256),
        4 => random.below(1 << 20),
        5 => lanes::place(random.below(4), random.below(4) * 64, random.below(64)),
        6 => GARBAGE_TAG + random.below(100),
        7 => 1 << 63 | random.below(1 << 16),
        _ => random.number(),
    }
}

fn meta(kind: u64, flags: u64, length: u64) -> u32 {
    (kind & 0xff) as u32 | ((flags & 0xff) as u32) << 8 | ((length & 0xffff) as u32) << 16
}

/// A packet's word and words as its kind has them, with a bad value here and there.
fn plausible(kind: u8, random: &mut Random) -> [u64; 7] {
    let name = random.below(6);
    let mut words = [name, 0, 0, 0, 0, 0, 0];
    let Some(kind) = Kind::from_byte(kind) else { return words };
    let mut number = |right: u64| if random.once_in(3) { nasty(random) } else { right };
    match kind {
        Kind::Eager => words[0] = number(GARBAGE_TAG),
        Kind::Long => {
            let total = number(200_000);
            words = [GARBAGE_TAG + name, name, total, number(total.min(65_536)), 7, number(0), 0];
        }
        Kind::Part => words[1] = number(0),
        Kind::Consent => (words[1], words[2]) = (number(0), number(500_000)),
        Kind::Finish | Kind::Acknowledge | Kind::Done | Kind::Withdraw => words[1] = number(0),
        Kind::Bye => {}
        Kind::Write | Kind::WriteData | Kind::WritePart | Kind::Read | Kind::Atomic => {
            // The upper bits of an atomic's length and offset are where a call has them.
            let third = number(if kind == Kind::Atomic { 8 << 32 | 2 << 8 } else { 4096 });
            words = [name, number(0), number(4096), third, number(0), number(7), 0];
        }
        Kind::Data => words[1] = number(0),
        Kind::Share => {
            words = [name, number(0x100), number(1 << 20), number(500_000), number(65_536), 0, 0];
        }
        Kind::Wrote => words[1] = number(0),
        Kind::Request | Kind::Accept | Kind::Reject | Kind::Established => words[0] = number(1),
        Kind::Invite | Kind::Admit => {
            words = [0, number(0), number(0), number(0), number(0), 0, 0];
        }
        Kind::Ask => words[0] = number(1),
        Kind::Lease => {
            let access = number(3 << 32 | 7);
            words = [number(1), number(0), number(1 << 20), number(1 << 20), access, 0, 0];
        }
        Kind::Context => words[0] = number(1),
        Kind::Written => words[0] = number(8 << 32 | 7),
    }
    words
}

const SPILLED: u64 = 0x20;
const CHUNKED: u64 = 0x40;

struct Attacker {
    random: Random,
    /// To the victim.
    out: Words,
    bell: Doorbell,
    /// From the victim.
    back: Vec<Words>,
}

type Style = fn(&mut Attacker);

/// Their names, whether they write one packet after the other, and what they do.
const STYLES: [(&str, bool, Style); 9] = [
    ("random words anywhere", false, Attacker::random_words),
    ("every byte", false, Attacker::every_byte),
    ("packets of random words", true, Attacker::random_packets),
    ("packets that are nearly right", true, Attacker::nearly_right),
    ("replies to what nobody asked", true, Attacker::replies),
    ("a flood of envelopes", true, Attacker::envelopes),
    ("a flood of messages beyond the credit", true, Attacker::beyond_credit),
    ("a flood of wishes for acknowledgement", true, Attacker::acknowledgements),
    ("a control block of lies", true, Attacker::lies),
];

impl Attacker {
    fn garbage(&mut self) -> [u64; 7] {
        std::array::from_fn(|_| nasty(&mut self.random))
    }

    fn random_words(&mut self) {
        for _ in 0..256 {
            let words = if self.random.once_in(4) { WORDS } else { LANE_WORDS };
            let (index, word) = (self.random.below(words as u64) as usize, nasty(&mut self.random));
            self.out.word(index).store(word, Ordering::Relaxed);
            for lane in &self.back {
                lane.word(index).store(word, Ordering::Relaxed);
            }
        }
    }

    fn every_byte(&mut self) {
        let word = self.random.number();
        for index in 0..WORDS {
            let word = word.rotate_left(index as u32);
            self.out.word(index).store(word, Ordering::Relaxed);
            for lane in &self.back {
                lane.word(index).store(word, Ordering::Relaxed);
            }
        }
    }

    fn random_packets(&mut self) {
        let lines = if self.random.once_in(8) { self.random.between(1, 9) } else { 1 };
        let words = self.garbage();
        let random = &mut self.random;
        let kind = packets::kind(random);
        let meta = meta(kind.into(), random.number(), nasty(random));
        self.out.publish(meta, words, lines);
    }

    /// Right in form, so that it reaches the protocol, with one or two bad values.
    fn nearly_right(&mut self) {
        let random = &mut self.random;
        let (mut flags, mut length) = (random.below(32), random.below(8));
        let kind = packets::kind(random);
        let mut words = plausible(kind, random);
        let mut lines = 1;
        match random.below(4) {
            0 => {
                flags |= CHUNKED;
                let within = random.below(POOL_BYTES as u64);
                let place = if random.once_in(4) {
                    nasty(random)
                } else {
                    (within / 64) << 32 | random.between(1, POOL_BYTES as u64 - within)
                };
                words[6] = place;
            }
            1 => {
                flags |= SPILLED;
                length = random.below(420);
                lines = 1 + length.div_ceil(56);
            }
            _ => {}
        }
        self.out.publish(meta(kind.into(), flags, length), words, lines);
    }

    fn replies(&mut self) {
        let random = &mut self.random;
        let kind = packets::kind(random);
        let kind = if [Kind::Eager as u8, Kind::Long as u8].contains(&kind) { 4 } else { kind };
        let name = random.below(3) << 32 | random.below(48);
        let words = [name, random.below(200), 0, 0, 0, 0, 0];
        self.out.publish(meta(kind.into(), 0, 0), words, 1);
    }

    /// Messages without payload, which cost no credit, that nobody receives.
    fn envelopes(&mut self) {
        while self.out.has_room() {
            let name = self.out.position;
            let words = [77, name, 1 << 63, 0, 0, 0, 0];
            self.out.publish(meta(2, u64::from(wire::TAGGED), 0), words, 1);
        }
    }

    fn beyond_credit(&mut self) {
        while self.out.has_room() {
            let place = POOL_BYTES as u64;
            self.out.publish(meta(1, 1 | CHUNKED, 0), [78, 0, 0, 0, 0, 0, place], 1);
        }
    }

    /// Messages that are received at once, each of which wants an answer that is never read.
    fn acknowledgements(&mut self) {
        while self.out.has_room() {
            let flags = u64::from(wire::TAGGED | wire::ACK_DELIVERY);
            let words = [GARBAGE_TAG, self.out.position, 0, 0, 0, 0, 0];
            self.out.publish(meta(1, flags, 0), words, 1);
        }
    }

    /// The head, the credit and the wish in the lanes that the victim sends on; and messages that
    /// make it send there while their payload is being delivered.
    fn lies(&mut self) {
        for lane in &self.back {
            for index in [0, 1, 8] {
                if self.random.once_in(2) {
                    let word = nasty(&mut self.random);
                    lane.word(index).store(word, Ordering::Relaxed);
                }
            }
        }
        let flags = u64::from(wire::TAGGED | wire::ACK_DELIVERY) | CHUNKED;
        let words = [79, 1, 0, 0, 0, 0, 5_000];
        if self.out.has_room() {
            self.out.publish(meta(1, flags, 0), words, 1);
        }
    }
}

/// Waits until there is a lane to the victim; lanes from it are kept.
fn connect(station: &Station, victim: SocketAddr, back: &mut Vec<Words>) -> (Words, Doorbell) {
    station.connect(1, victim);
    loop {
        match next_event(station).expect("the victim's control thread answers") {
            StationEvent::Connected { lane, bell, .. } => return (Words::of(lane), bell),
            StationEvent::Incoming { lane, .. } => back.push(Words::of(lane)),
            StationEvent::Failed { error, .. } => panic!("{error}"),
            StationEvent::Settled { .. } => unreachable!("nobody asked"),
            StationEvent::Died { .. } => panic!("the victim is dead"),
        }
    }
}

/// Goes through `count` rounds, each with a new lane and a style of its own.
pub fn attack(own: SocketAddr, victim: SocketAddr, seed: u64, count: u64) {
    let station = Station::open(StationOptions {
        address: Some(own),
        default_ip: own.ip(),
        cma: !seed.is_multiple_of(2),
        ..station::options(POOL_BYTES)
    })
    .unwrap();
    let mut back = Vec::new();
    for round in 0..count {
        let (style, acts_in_order, act) = STYLES[(round % STYLES.len() as u64) as usize];
        say(&format!("{style}, seed {}", seed + round));
        let (out, bell) = connect(&station, victim, &mut back);
        let random = Random::new(seed + round);
        let mut attacker = Attacker { random, out, bell, back: std::mem::take(&mut back) };
        let mut lanes = 1;
        let end = Instant::now() + if style.starts_with("a flood") { FLOOD } else { ROUND };
        while Instant::now() < end {
            if attacker.out.is_closed() && lanes < LANES_MAX {
                lanes += 1;
                let (out, bell) = connect(&station, victim, &mut attacker.back);
                (attacker.out, attacker.bell) = (out, bell);
            }
            if !acts_in_order || attacker.out.has_room() {
                act(&mut attacker);
            } else {
                std::thread::yield_now();
            }
            if attacker.random.once_in(16) {
                attacker.bell.ring();
            }
            while let Some(event) = station.next_event() {
                if let StationEvent::Incoming { lane, .. } = event {
                    attacker.back.push(Words::of(lane));
                }
            }
        }
        attacker.bell.ring();
        if std::env::var_os("KESTREL_TEST_VERBOSE").is_some() {
            let (written, read) = (attacker.out.position, attacker.out.head());
            let back = attacker.back.len();
            eprintln!("{style}: {lanes} lanes; {written} written, {read} read, {back} lanes back");
        }
        let keep = attacker.back.len().saturating_sub(2);
        back = attacker.back.split_off(keep);
    }
    say(&format!("done with {count} rounds"));
}

//! What a match costs, by depth, mask class and order.
//!
//! `cargo bench -p kestrel-core --bench tag_match` prints medians in nanoseconds per pair: a post
//! and the take that matches it, or a park and its take. All depths of a row take turns, so that a
//! slow moment of the machine hits all alike. On a busy machine the least figures tell more: a
//! turn of a deep queue lasts longer than a time slice.
//!
//! `... -- SIDE MASKS DEPTH PAIRS` (as in `-- posted four 64 64000`) runs one case alone, for
//! `valgrind --tool=callgrind`.

use std::hint::black_box;
use std::time::Instant;

use kestrel_core::tag_match::{ANY_SOURCE, Matcher, SourceIndex};

const DEPTHS: [usize; 5] = [1, 64, 512, 4096, 131_072];

/// Turns that each depth gets; the median is over these.
const TURNS: usize = 61;

/// Pairs in one turn at least: long enough for the clock.
const PAIRS_PER_TURN: usize = 8192;

/// Bits that MPI libraries mask on every receive.
const PROTOCOL_BITS: u64 = 0x3 << 60;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Side {
    /// `post` and `take_posted`.
    Posted,
    /// `park` and `take_unexpected`.
    Unexpected,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Masks {
    /// `ignore` is 0.
    Zero,
    /// One mask of protocol bits, some of which the messages set.
    Protocol,
    /// Any source, protocol bits masked.
    AnySource,
    /// Four masks in turn.
    Four,
    /// Source and tag are wild: every receive equals every other.
    Wild,
    /// Tags a power of two apart.
    Strided,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Order {
    Same,
    Reverse,
    Shuffled,
    /// As `Reverse`, but with a new matcher each time: growth and page faults included.
    Fresh,
}

/// One receive and the message that it gets.
#[derive(Clone, Copy)]
struct Exchange {
    wanted: SourceIndex,
    tag: u64,
    ignore: u64,
    source: SourceIndex,
    sent: u64,
}

fn exchange(masks: Masks, n: usize) -> Exchange {
    let source = (n % 8) as u32;
    let tag = 0x0100_0000_0000 + (n / 8) as u64;
    let set = (n as u64 & 1) << 60;
    let plain = Exchange { wanted: source, tag, ignore: PROTOCOL_BITS, source, sent: tag | set };
    match masks {
        Masks::Zero => Exchange { ignore: 0, sent: tag, ..plain },
        Masks::Protocol => plain,
        Masks::AnySource => {
            let tag = 0x0100_0000_0000 + n as u64;
            Exchange { wanted: ANY_SOURCE, tag, sent: tag | set, ..plain }
        }
        Masks::Four => {
            let shift = 48 + 4 * (n % 4);
            Exchange { ignore: 0x3 << shift, sent: tag | 1 << shift, ..plain }
        }
        Masks::Wild => Exchange { wanted: ANY_SOURCE, ignore: u64::MAX, ..plain },
        Masks::Strided => {
            let tag = (n as u64) << 20;
            Exchange { tag, sent: tag | set, ..plain }
        }
    }
}

/// One depth of one case, with everything it needs kept warm between its turns.
struct Bench {
    side: Side,
    order: Order,
    matcher: Matcher,
    first: Vec<Exchange>,
    second: Vec<Exchange>,
    samples: Vec<f64>,
}

impl Bench {
    fn new(side: Side, masks: Masks, order: Order, depth: usize) -> Self {
        let first: Vec<_> = (0..depth).map(|n| exchange(masks, n)).collect();
        let mut second = first.clone();
        match order {
            Order::Same => {}
            Order::Reverse | Order::Fresh => second.reverse(),
            Order::Shuffled => shuffle(&mut second),
        }
        Bench { side, order, matcher: Matcher::new(), first, second, samples: Vec::new() }
    }

    /// Fills the queue and empties it.
    #[inline(never)]
    fn round(&mut self) {
        if self.order == Order::Fresh {
            self.matcher = Matcher::new();
        }
        match self.side {
            Side::Posted => {
                for (n, e) in self.first.iter().enumerate() {
                    self.matcher.post(e.wanted, e.tag, e.ignore, n as u32);
                }
                for e in &self.second {
                    let taken = self.matcher.take_posted(e.source, e.sent);
                    assert!(black_box(taken).is_some());
                }
            }
            Side::Unexpected => {
                for (n, e) in self.first.iter().enumerate() {
                    self.matcher.park(e.source, e.sent, n as u32);
                }
                for e in &self.second {
                    let taken = self.matcher.take_unexpected(e.wanted, e.tag, e.ignore);
                    assert!(black_box(taken).is_some());
                }
            }
        }
    }

    fn turn(&mut self) {
        let rounds = PAIRS_PER_TURN.div_ceil(self.first.len());
        let start = Instant::now();
        for _ in 0..rounds {
            self.round();
        }
        let pairs = (rounds * self.first.len()) as f64;
        self.samples.push(start.elapsed().as_nanos() as f64 / pairs);
    }

    /// Least and median sample.
    fn summary(&mut self) -> (f64, f64) {
        self.samples.sort_by(f64::total_cmp);
        (self.samples[0], self.samples[self.samples.len() / 2])
    }
}

fn shuffle(exchanges: &mut [Exchange]) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for last in (1..exchanges.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        exchanges.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

fn print_row(side: Side, masks: Masks, order: Order) {
    let mut benches = DEPTHS.map(|depth| Bench::new(side, masks, order, depth));
    for bench in &mut benches {
        bench.turn();
        bench.samples.clear();
    }
    for _ in 0..TURNS {
        benches.iter_mut().for_each(Bench::turn);
    }
    let summaries = benches.each_mut().map(Bench::summary);
    let name = format!("{side:?} {masks:?} {order:?}");
    print!("{name:<30}");
    for (least, median) in summaries {
        print!("{:>14}", format!("{median:.1} ({least:.1})"));
    }
    let (shallow, deep) = (summaries[1], summaries[4]);
    println!("{:>13}", format!("{:.2} ({:.2})", deep.1 / shallow.1, deep.0 / shallow.0));
}

const SIDES: [Side; 2] = [Side::Posted, Side::Unexpected];
const MASKS: [Masks; 6] =
    [Masks::Zero, Masks::Protocol, Masks::AnySource, Masks::Four, Masks::Wild, Masks::Strided];

fn by_name<T: Copy + std::fmt::Debug>(all: &[T], name: &str) -> T {
    let found = all.iter().find(|one| format!("{one:?}").eq_ignore_ascii_case(name));
    *found.unwrap_or_else(|| panic!("{name} is none of {all:?}"))
}

fn main() {
    let (flags, arguments): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    if let [side, masks, depth, pairs] = &arguments[..] {
        let depth = depth.parse().expect("DEPTH is a number");
        let pairs: usize = pairs.parse().expect("PAIRS is a number");
        let mut bench =
            Bench::new(by_name(&SIDES, side), by_name(&MASKS, masks), Order::Reverse, depth);
        (0..pairs / depth).for_each(|_| bench.round());
        return;
    }
    // `cargo bench` passes this; `cargo test --benches` only wants to know that all of it runs.
    if !flags.iter().any(|flag| flag == "--bench") {
        for (side, masks) in SIDES.iter().flat_map(|side| MASKS.map(|masks| (*side, masks))) {
            Bench::new(side, masks, Order::Shuffled, 1000).round();
        }
        return;
    }
    print!("{:<30}", "ns per pair: median (least)");
    DEPTHS.iter().for_each(|depth| print!("{depth:>14}"));
    println!("{:>13}", "deep / 64");
    for side in SIDES {
        for masks in MASKS {
            for order in [Order::Same, Order::Reverse, Order::Shuffled] {
                print_row(side, masks, order);
            }
        }
        print_row(side, Masks::Protocol, Order::Fresh);
    }
}

//! What a million addresses cost: to insert, to look up and to find again.
//!
//! `cargo bench -p kestrel-core --bench address_vector` prints the median and the least of some
//! turns, in milliseconds for all of them. Memory is a test's business: see
//! `tests/address_vector_memory.rs`.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use kestrel_core::address::Address;
use kestrel_core::address_vector::{
    AddressVector, AddressVectorAttributes, AddressVectorFlags, Marks, SymmetricRange,
};

const COUNT: usize = 1_000_000;
const NODES: usize = 10_000;
const TURNS: usize = 9;

/// How an application inserts its peers.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// One by one: `fi_av_insert`.
    Each,
    /// All at once: `fi_av_insertsym`.
    Range,
}

fn range() -> SymmetricRange {
    let base = Address::new(Ipv4Addr::new(10, 0, 0, 1).into(), 5000);
    SymmetricRange::new(base, NODES, COUNT / NODES).expect("the range has that many ports")
}

fn open(flags: AddressVectorFlags) -> AddressVector {
    let attributes = AddressVectorAttributes { flags, ..Default::default() };
    AddressVector::open(attributes).expect("these flags are supported")
}

/// Inserts all, and looks all up and finds all: how long each took.
fn turn(flags: AddressVectorFlags, way: Way) -> [Duration; 3] {
    let (vector, range) = (open(flags), range());
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let inserting = timed(&mut || {
        let report = |result| drop(black_box(result));
        let count = match way {
            Way::Each => vector.insert_each(range.addresses(), Marks::None, report),
            Way::Range => vector.insert_each([range], Marks::None, report),
        };
        assert_eq!(count, COUNT);
    });
    let looking_up = timed(&mut || {
        for fi_addr in 0..COUNT as u64 {
            black_box(vector.get(fi_addr));
        }
    });
    let finding = timed(&mut || {
        for address in range.addresses() {
            black_box(vector.find(&address));
        }
    });
    [inserting, looking_up, finding]
}

fn main() {
    println!("{COUNT} addresses of {NODES} nodes: median (least) in ms of {TURNS} turns");
    println!("{:<28}{:>18}{:>18}{:>18}", "", "insert", "look up", "find");
    for (name, flags) in
        [("plain", AddressVectorFlags::empty()), ("FI_SYMMETRIC", AddressVectorFlags::SYMMETRIC)]
    {
        for way in [Way::Each, Way::Range] {
            let turns: Vec<_> = (0..TURNS).map(|_| turn(flags, way)).collect();
            print!("{:<28}", format!("{name}, {way:?}"));
            for what in 0..3 {
                let mut times: Vec<_> = turns.iter().map(|turn| turn[what]).collect();
                times.sort();
                let ms = |time: Duration| time.as_secs_f64() * 1e3;
                print!("{:>18}", format!("{:.1} ({:.1})", ms(times[TURNS / 2]), ms(times[0])));
            }
            println!();
        }
    }
}

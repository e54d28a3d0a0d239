//! What an address vector costs: at most 64 bytes for each inserted address,
//! the way back from address to number included, and nothing to read.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kestrel_core::address::Address;
use kestrel_core::address_vector::{
    AddressVector, AddressVectorAttributes, AddressVectorFlags, Marks, SymmetricRange,
};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread's memory counts: what runs the tests allocates beside them.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: every method hands its arguments to `System` unchanged and adds
// only to counters, so `System`'s guarantees are this allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.get() {
            let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
            PEAK.fetch_max(live, Ordering::Relaxed);
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps `alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if COUNTED.get() {
            LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: `pointer` came from `System` through `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn nth(n: u32) -> Address {
    Address::new(Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n)).into(), n as u16)
}

/// What a million addresses take at most while they are inserted by one symmetric insertion: of
/// `nodes` nodes, in a vector opened with `flags`. And how long it takes.
fn symmetric_peak(nodes: usize, flags: AddressVectorFlags) -> (usize, Duration) {
    const COUNT: usize = 1_000_000;
    let mut numbers: Vec<u64> = Vec::with_capacity(COUNT);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let attributes = AddressVectorAttributes { flags, ..Default::default() };
    let av = AddressVector::open(attributes).unwrap();
    let base = Address::new(std::net::Ipv4Addr::new(10, 1, 1, 1).into(), 5000);
    let range = SymmetricRange::new(base, nodes, COUNT / nodes).unwrap();
    let start = Instant::now();
    let count = av.insert_each([range], Marks::None, |result| numbers.push(result.unwrap()));
    let inserting = start.elapsed();
    let peak = PEAK.load(Ordering::Relaxed) - before;
    assert_eq!((count, numbers.len(), av.len()), (COUNT, COUNT, COUNT));
    for at in [0, 1, COUNT / 2, COUNT - 1] {
        let address = range.nth(at).unwrap();
        assert_eq!((numbers[at], av.get(at as u64)), (at as u64, Some(address)));
        assert_eq!(av.find(&address), Some(at as u64));
    }
    (peak, inserting)
}

/// One test for all, since the counters belong to the process. It prints last: captured output allocates.
#[test]
fn a_million_addresses_stay_under_64_bytes_each_and_reading_allocates_nothing() {
    const COUNT: u32 = 1_000_000;
    COUNTED.set(true);
    let all: Vec<u64> = (0..COUNT.into()).collect();
    let before = LIVE.load(Ordering::Relaxed);
    let av = AddressVector::open(AddressVectorAttributes::default()).unwrap();
    let mut worst = 0;
    let start = Instant::now();
    for n in 0..COUNT {
        av.insert_one(nth(n)).unwrap();
        if n >= 1000 {
            let bytes = LIVE.load(Ordering::Relaxed) - before;
            worst = worst.max(bytes.div_ceil(n as usize + 1));
        }
    }
    let inserting = start.elapsed();
    let bytes = LIVE.load(Ordering::Relaxed) - before;
    let each = bytes as f64 / f64::from(COUNT);
    assert!(bytes <= 64 * COUNT as usize, "{each} bytes each");
    assert!(worst <= 64, "{worst} bytes each on the way");

    let calls = CALLS.load(Ordering::Relaxed);
    let start = Instant::now();
    let mut sum = 0;
    for &n in &all {
        sum += u64::from(av.get(n).unwrap().port());
    }
    let reading = start.elapsed();
    assert_eq!(sum, (0..COUNT).map(|n| u64::from(n as u16)).sum());
    assert_eq!(av.find(&nth(COUNT / 2)), Some(u64::from(COUNT / 2)));
    assert_eq!(CALLS.load(Ordering::Relaxed), calls, "reading allocated");

    let start = Instant::now();
    av.remove(&all).unwrap();
    let removing = start.elapsed();
    assert!(av.is_empty());
    let empty = std::mem::size_of_val(&av);
    drop(av);
    assert_eq!(LIVE.load(Ordering::Relaxed), before, "memory was kept");

    let symmetric = AddressVectorFlags::SYMMETRIC;
    let (plain, plain_time) = symmetric_peak(10_000, AddressVectorFlags::empty());
    let (runs, runs_time) = symmetric_peak(10_000, symmetric);
    let (wide, _) = symmetric_peak(500_000, symmetric);
    assert!(plain < 64 << 20, "{plain} bytes for insertsym");
    assert!(runs < 64 << 10 && wide < 64 << 10, "{runs} and {wide} bytes with FI_SYMMETRIC");

    let ns_each = |total: Duration| total.as_secs_f64() * 1e9 / f64::from(COUNT);
    println!(
        "address vector: {empty} bytes when empty; with {COUNT} addresses {each:.1} bytes each, at worst {worst} on the way"
    );
    println!("insertsym: {plain} bytes, {plain_time:?}; FI_SYMMETRIC: {runs} bytes, {runs_time:?}");
    println!(
        "address vector: {:.1} ns an insert, {:.1} ns a get, {:.1} ns a remove",
        ns_each(inserting),
        ns_each(reading),
        ns_each(removing)
    );
}

//! What peers cost: at most 64 bytes for one that was inserted and never spoken
//! to, at most 16 KiB for an idle lane whose messages all fitted its lines, counted on both sides. One that
//! has carried a longer one has the chunks that were used besides, until nothing has gone over it for a while
//! (provider-shm/src/transport/tests.rs).

use kestrel_core::{address::Address, address_vector::FI_ADDR_UNSPEC};
use kestrel_tests::{
    figures::{self, Counting},
    node::Node,
    process::eventually,
};

#[global_allocator]
static MEMORY: Counting = Counting::new();

const INSERTED: usize = 100_000;
const LANES: usize = 200;
/// More messages than a lane has lines, so that every page of its lines was touched. Its chunks have no
/// pages: what fits a line touches none.
const MESSAGES: usize = 150;
/// What takes a chunk, and is too short to be left to its receiver to read. Units: bytes.
const CHUNKED: usize = 8 << 10;
/// The pages that the first chunk of a lane makes. Units: bytes.
const FIRST_CHUNKS: f64 = 65536.0;

/// One test, since all memory of the process is counted.
#[test]
fn what_peers_cost() {
    inserted_peers();
    idle_lanes();
}

fn inserted_peers() {
    let node = Node::open();
    let before = MEMORY.bytes();
    for index in 0..INSERTED {
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + (index / 16) as u32);
        node.insert(Address::new(ip.into(), 1000 + (index % 16) as u16));
    }
    assert!(node.poll().is_none());
    let each = (MEMORY.bytes() - before) as f64 / INSERTED as f64;
    println!("inserted and never spoken to: {each:.1} bytes a peer, {INSERTED} of them");
    assert!(each <= 64.0, "{each}");
}

/// Shared pages that are in memory, and the heap. Units: bytes.
fn held() -> (u64, i64) {
    let shared =
        figures::smaps_kib("kestrel-lane", "Pss") + figures::smaps_kib("kestrel-pool", "Pss");
    (shared << 10, MEMORY.bytes())
}

/// Sends `count` messages of so many bytes to each spoke, one at a time.
fn speak(hub: &Node, spokes: &[(Node, u64)], count: usize, length: usize) {
    for (spoke, to) in spokes {
        for _ in 0..count {
            spoke.endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, 1).unwrap();
            hub.endpoint.inject(&vec![1; length], *to).unwrap();
            eventually("the message arrives", || {
                (0..1000).any(|_| {
                    assert!(hub.poll().is_none());
                    spoke.poll().map(|done| done.well()).is_some()
                })
            });
        }
    }
}

fn idle_lanes() {
    let (hub, other) = (Node::open(), Node::open());
    let open = |_| {
        let spoke = Node::open();
        let to = hub.insert(spoke.address());
        assert_eq!(other.insert(spoke.address()), to);
        (spoke, to)
    };
    let spokes: Vec<_> = (0..LANES).map(open).collect();
    // What an endpoint needs for the first lane of its life is its own, not the lane's.
    let first = held();
    speak(&other, &spokes, 1, 8);
    speak(&hub, &spokes[..1], 1, 8);
    let before = held();
    let endpoint = (before.1 - first.1) as f64 / LANES as f64;
    speak(&hub, &spokes, 1, 8);
    let spoken = held();
    speak(&hub, &spokes, MESSAGES, 8);
    let after = held();
    speak(&hub, &spokes, 1, CHUNKED);
    let chunked = held();
    let each = |now: (u64, i64)| {
        let shared = (now.0 - before.0) as f64 / LANES as f64;
        let heap = (now.1 - before.1) as f64 / LANES as f64;
        (shared, heap, shared + heap)
    };
    let (once, worn, chunked) = (each(spoken), each(after), each(chunked));
    println!("a lane that carried one message: {once:.0?} bytes: shared, heap of both sides, sum");
    println!("the first lane of an endpoint: {endpoint:.0} bytes of heap of both sides");
    println!("a lane of which every page of lines was used: {worn:.0?} bytes");
    println!("a lane that carried {CHUNKED} bytes at a time: {chunked:.0?} bytes");
    assert!(worn.2 <= 16384.0, "{worn:?}");
    assert!(chunked.2 > FIRST_CHUNKS, "it took no chunk of the lane's own: {chunked:?}");
    assert!(chunked.2 <= 16384.0 + FIRST_CHUNKS, "{chunked:?}");
    assert_eq!(figures::mappings("kestrel-lane"), 4 * LANES);
}

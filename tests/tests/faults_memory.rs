//! What peers cost: at most 64 bytes for one that was inserted and never spoken
//! to, at most 16 KiB for an idle lane, counted on both sides.

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
/// More messages than a lane has lines, so that every page of it was touched.
const MESSAGES: usize = 150;

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

/// Sends `count` messages to each spoke, one at a time.
fn speak(hub: &Node, spokes: &[(Node, u64)], count: usize) {
    for (spoke, to) in spokes {
        for _ in 0..count {
            spoke.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
            hub.endpoint.inject(&[1; 8], *to).unwrap();
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
    speak(&other, &spokes, 1);
    speak(&hub, &spokes[..1], 1);
    let before = held();
    let endpoint = (before.1 - first.1) as f64 / LANES as f64;
    speak(&hub, &spokes, 1);
    let spoken = held();
    speak(&hub, &spokes, MESSAGES);
    let after = held();
    let each = |now: (u64, i64)| {
        let shared = (now.0 - before.0) as f64 / LANES as f64;
        let heap = (now.1 - before.1) as f64 / LANES as f64;
        (shared, heap, shared + heap)
    };
    let (once, worn) = (each(spoken), each(after));
    println!("a lane that carried one message: {once:.0?} bytes: shared, heap of both sides, sum");
    println!("the first lane of an endpoint: {endpoint:.0} bytes of heap of both sides");
    println!("a lane of which every page was used: {worn:.0?} bytes");
    assert!(worn.2 <= 16384.0, "{worn:?}");
    assert_eq!(figures::mappings("kestrel-lane"), 4 * LANES);
}

//! No descriptors, no memory, no chunks left: a clear error for what needs them,
//! and everybody else goes on.

use std::time::Duration;

use kestrel_core::{address_vector::FI_ADDR_UNSPEC, config::LaneChunks, error::Errno};
use kestrel_shm::ShmOptions;
use kestrel_tests::{
    bed::pattern,
    figures,
    node::{Node, NodeOptions},
    process::{Peer, child_role, eventually, listen_to_parent, say},
    traffic::{Mix, Traffic},
};

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    match role[0].as_str() {
        "without-descriptors" => without_descriptors(),
        "without-memory" => without_memory(),
        "unexpected-without-memory" => unexpected_without_memory(),
        "full-receiver" => full_receiver(),
        _ => panic!("{role:?}"),
    }
}

/// Limits are for a process and for good, so each case has one of its own.
#[test]
fn connecting_without_descriptors_fails_and_says_so() {
    Peer::start("without-descriptors").succeed();
}

#[test]
fn connecting_without_memory_fails_and_says_so() {
    Peer::start("without-memory").succeed();
}

#[test]
fn unexpected_messages_wait_for_memory() {
    Peer::start("unexpected-without-memory").succeed();
}

#[test]
fn a_peer_without_descriptors_is_named_as_the_reason() {
    let mut full = Peer::start("full-receiver");
    let node = Node::with(&quick());
    let to = node.insert_text(&full.hear_after("ready "));
    node.endpoint.send(vec![1; 8], to, 7).unwrap();
    let error = node.next().badly();
    assert_eq!(error.errno, Errno::TIMEDOUT, "{error:?}");
    assert!(error.reason.contains("it has no file descriptor left"), "{}", error.reason);
    // And no longer than it has none.
    full.order("have some");
    assert_eq!(full.hear(), "has some");
    node.endpoint.send(vec![1; 8], to, 7).unwrap();
    node.next().well();
    assert_eq!(full.hear(), "received");
    full.succeed();
}

fn quick() -> NodeOptions {
    let shm = ShmOptions {
        // Some connects have to fail by it, and none of the others, however busy the machine is.
        connect_timeout: Duration::from_secs(5),
        chunk_bytes: 4096,
        chunk_count: 16,
        lane_chunks: LaneChunks::Off,
        ..ShmOptions::default()
    };
    NodeOptions { shm, ..NodeOptions::default() }
}

/// Sets both bounds, so that nothing can raise the first again.
fn limit(resource: libc::__rlimit_resource_t, current: u64, maximum: u64) {
    let limit = libc::rlimit { rlim_cur: current, rlim_max: maximum };
    // SAFETY: the structure lives through the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

/// Two nodes that are connected, both ways.
struct Pair {
    one: Node,
    two: Node,
    traffic: [Traffic; 2],
}

impl Pair {
    fn open() -> Pair {
        let (one, two) = (Node::with(&quick()), Node::with(&quick()));
        let (to_two, to_one) = (one.insert(two.address()), two.insert(one.address()));
        let mix = Mix { backlog: 0, ..Mix::default() };
        let traffic = [Traffic::new(to_two, 1, 1, mix), Traffic::new(to_one, 1, 2, mix)];
        let mut pair = Pair { one, two, traffic };
        pair.exchange();
        pair
    }

    fn exchange(&mut self) {
        let goal = self.traffic.each_ref().map(|traffic| traffic.received + 100);
        eventually("messages are exchanged", || {
            for (node, traffic) in [&self.one, &self.two].into_iter().zip(&mut self.traffic) {
                traffic.post(node);
                for _ in 0..64 {
                    let Some(done) = node.poll() else { break };
                    assert!(traffic.take(done).is_none());
                }
                assert!(traffic.failed.is_empty(), "{:?}", traffic.failed);
            }
            self.traffic.iter().zip(goal).all(|(traffic, goal)| traffic.received >= goal)
        });
    }

    /// What becomes of a send from the first node to `to`; the pair's own messages go on.
    fn send(&mut self, to: u64) -> kestrel_tests::node::Done {
        self.one.endpoint.send(vec![1; 8], to, 7).unwrap();
        let mut found = None;
        eventually("the send ends", || {
            for (node, traffic) in [&self.one, &self.two].into_iter().zip(&mut self.traffic) {
                found = node.poll().and_then(|done| traffic.take(done));
                if found.is_some() {
                    return true;
                }
            }
            false
        });
        found.expect("just found")
    }
}

fn without_descriptors() {
    let mut pair = Pair::open();
    let third = Node::with(&quick());
    let to = pair.one.insert(third.address());
    let open = figures::descriptors() as u64;
    limit(libc::RLIMIT_NOFILE, open + 40, open + 40);
    let mut taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let error = pair.send(to).badly();
    // Either side of the handshake is this process, and may be the first to notice.
    assert!([Errno::MFILE, Errno::TIMEDOUT].contains(&error.errno), "{error:?}");
    assert!(error.reason.contains("descriptor"), "{}", error.reason);
    println!("without descriptors: {}", error.reason);
    pair.exchange();
    taken.clear();
    third.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    pair.send(to).well();
    third.next().well();
    pair.exchange();
}

fn without_memory() {
    let mut pair = Pair::open();
    let third = Node::with(&quick());
    let to = pair.one.insert(third.address());
    // The heap keeps what it had once, so that only new mappings fail.
    let spare: Vec<Vec<u8>> = (0..200).map(|_| vec![1; 20_000]).collect();
    drop(spare);
    let size = figures::status_kib("VmSize") << 10;
    limit(libc::RLIMIT_AS, size + 4096, libc::RLIM_INFINITY);
    let error = pair.send(to).badly();
    limit(libc::RLIMIT_AS, libc::RLIM_INFINITY, libc::RLIM_INFINITY);
    assert_eq!(error.errno, Errno::NOMEM, "{error:?}");
    println!("without memory: {}", error.reason);
    pair.exchange();
    third.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    pair.send(to).well();
    third.next().well();
}

/// Nobody has asked for what comes, and there is no memory for it: nothing is lost, and it arrives as
/// soon as it is asked for.
fn unexpected_without_memory() {
    const COUNT: u64 = 300;
    let (one, two) = (Node::open(), Node::open());
    let to = one.insert(two.address());
    for length in [8_000, 60_000] {
        let buffers = |fill: u64| {
            (0..COUNT).map(move |nth| vec![(nth * fill) as u8; length]).collect::<Vec<_>>()
        };
        // Before that with memory, so that what queues messages has grown: those that came, and those
        // that wait to leave.
        for (is_polled, has_memory) in [(true, true), (false, true), (true, false)] {
            let (sources, targets) = (buffers(1), buffers(0));
            let mut hog: Vec<Vec<u8>> = Vec::with_capacity(1 << 20);
            if !has_memory {
                limit(libc::RLIMIT_AS, figures::status_kib("VmSize") << 10, libc::RLIM_INFINITY);
                hog.extend(std::iter::from_fn(|| {
                    let mut bytes = Vec::new();
                    bytes.try_reserve_exact(4_000).ok().map(|()| bytes)
                }));
            }
            for source in sources {
                one.endpoint.send(source, to, COUNT).unwrap();
            }
            let mut sent = 0;
            for _ in 0..2_000 {
                sent += u64::from(one.poll().is_some_and(|done| done.well().context == COUNT));
                assert!(!is_polled || two.poll().is_none());
            }
            for (context, target) in (0..).zip(targets) {
                two.endpoint.receive(target, FI_ADDR_UNSPEC, context).unwrap();
            }
            let mut received = 0;
            eventually("all is received", || {
                sent += u64::from(one.poll().is_some_and(|done| done.well().context == COUNT));
                if let Some(done) = two.poll() {
                    let mut entry = done.well();
                    let bytes = entry.take_buffer().unwrap();
                    assert!(bytes.iter().all(|&byte| byte == entry.context as u8), "{received}");
                    assert_eq!(entry.context, received);
                    received += 1;
                }
                (sent, received) == (COUNT, COUNT)
            });
            drop(hog);
            limit(libc::RLIMIT_AS, libc::RLIM_INFINITY, libc::RLIM_INFINITY);
        }
    }
}

/// A process that can accept a connection, and cannot take the lane that comes with it.
fn full_receiver() {
    let orders = listen_to_parent();
    let node = Node::with(&quick());
    let open = figures::descriptors() as u64;
    limit(libc::RLIMIT_NOFILE, open + 20, open + 20);
    let mut taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    taken.pop();
    say(&format!("ready {}", node.address().socket_addr()));
    orders.recv().unwrap();
    taken.clear();
    node.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
    say("has some");
    node.next().well();
    say("received");
    let _ = orders.recv();
}

/// A receiver that looked away finds its three messages; how many sends ended.
fn catch_up(node: &Node, sender: &Node) -> usize {
    for (context, length) in (0..).zip([2_000, 20_000, 200_000]) {
        node.endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, context).unwrap();
    }
    let (mut left, mut sent) = (3, 0);
    eventually("a stalled peer catches up", || {
        for _ in 0..256 {
            if let Some(done) = sender.poll() {
                done.well();
                sent += 1;
            }
            if let Some(done) = node.poll() {
                let buffer = done.well().take_buffer().unwrap();
                assert!(buffer.iter().all(|&byte| byte == 3));
                left -= 1;
            }
        }
        left == 0
    });
    sent
}

/// What is injected, and too long for the lines of a lane, goes through them in pieces then: to try
/// again would be of no use to its sender.
#[test]
fn what_is_injected_needs_no_chunk() {
    let few = || {
        let lane_chunks = LaneChunks::Off;
        let shm = ShmOptions { chunk_count: 4, lane_chunks, ..ShmOptions::default() };
        Node::with(&NodeOptions { shm, ..NodeOptions::default() })
    };
    let (sender, live) = (few(), few());
    let stalled: Vec<Node> = (0..8).map(|_| few()).collect();
    for node in &stalled {
        let to = sender.insert(node.address());
        for _ in 0..8 {
            sender.endpoint.send(vec![3; 8_000], to, 5).unwrap();
        }
    }
    let to = sender.insert(live.address());
    for length in [10, 4_000, 7_000, 10_000, 16_000] {
        let bytes = pattern(5, length);
        live.endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, 1).unwrap();
        let (mut left, mut received) = (false, None);
        eventually("it is injected, and received", || {
            left = left || sender.endpoint.inject(&bytes, to).is_ok();
            let _ = sender.poll();
            received = received.take().or_else(|| live.poll()?.well().take_buffer());
            left && received.is_some()
        });
        assert!(received.unwrap() == bytes, "{length} bytes");
    }
}

/// Chunks that are lent to receivers who never look are bounded: others get theirs.
#[test]
fn stalled_receivers_do_not_starve_the_others() {
    const STALLED: usize = 200;
    let small = |count| {
        let shm = ShmOptions {
            chunk_bytes: 4096,
            chunk_count: count,
            lane_chunks: LaneChunks::Off,
            ..ShmOptions::default()
        };
        NodeOptions { shm, ..NodeOptions::default() }
    };
    for chunks in [2, 16] {
        let sender = Node::with(&small(chunks));
        let stalled: Vec<Node> = (0..STALLED).map(|_| Node::with(&small(2))).collect();
        let mut under_way = 0;
        for node in &stalled {
            let to = sender.insert(node.address());
            for length in [2_000, 20_000, 200_000] {
                sender.endpoint.send(vec![3; length], to, 5).unwrap();
                under_way += 1;
            }
        }
        let live = Node::with(&small(2));
        let to = sender.insert(live.address());
        for length in [10_000usize, 300_000, 1 << 20] {
            live.endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, 1).unwrap();
            let bytes: Vec<u8> = (0..length).map(|index| (index * 7 / 5) as u8).collect();
            sender.endpoint.send(bytes.clone(), to, 6).unwrap();
            let (mut sent, mut received) = (false, None);
            eventually("the live peer gets its message", || {
                for _ in 0..256 {
                    if let Some(done) = sender.poll() {
                        let context = done.well().context;
                        sent |= context == 6;
                        under_way -= usize::from(context == 5);
                    }
                    if let Some(done) = live.poll() {
                        received = done.well().take_buffer();
                    }
                }
                sent && received.is_some()
            });
            assert!(received.unwrap() == bytes, "{length} bytes with {chunks} chunks");
        }
        // Those that looked away find everything when they look.
        for node in &stalled {
            under_way -= catch_up(node, &sender);
        }
        // Their last words go out while they look.
        eventually("every send completes", || {
            assert!(stalled.iter().all(|node| node.poll().is_none()));
            while let Some(done) = sender.poll() {
                done.well();
                under_way -= 1;
            }
            under_way == 0
        });
    }
}

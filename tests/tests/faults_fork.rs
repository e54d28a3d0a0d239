//! Forked children of a process with endpoints: they exit, exec, drop and call,
//! and the parent's messages go on.

use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::{Entry, ReadError},
    domain::{DomainOptions, OpenError, ProgressMode},
    endpoint::{EndpointOptions, PostError},
    flags::Flags,
    memory_region::{MemoryRange, MemoryRegionAttributes},
};
use kestrel_tests::{
    fork::{fork, wait},
    node::{CompletionQueue, Endpoint, Node, NodeOptions},
    process::eventually,
    random::Random,
    traffic::{self, Mix, Operation, Traffic},
};

/// Two nodes that talk to each other.
struct Pair {
    nodes: [Node; 2],
    traffic: [Traffic; 2],
}

impl Pair {
    fn open(options: &NodeOptions) -> Pair {
        let nodes = [Node::with(options), Node::with(options)];
        let to = [nodes[0].insert(nodes[1].address()), nodes[1].insert(nodes[0].address())];
        let mix = Mix { backlog: 0, ..Mix::default() };
        let traffic = to.map(|to| Traffic::new(to, 1, to + 7, mix));
        Pair { nodes, traffic }
    }

    /// Exchanges messages, all of which must come and be right.
    fn exchange(&mut self) {
        let goal = self.traffic.each_ref().map(|traffic| traffic.received + 200);
        eventually("messages are exchanged", || {
            for (node, traffic) in self.nodes.iter().zip(&mut self.traffic) {
                traffic.post(node);
                for _ in 0..64 {
                    let Some(done) = node.poll() else { break };
                    assert!(traffic.take(done).is_none());
                }
                assert!(traffic.failed.is_empty(), "{:?}", traffic.failed);
            }
            self.traffic.iter().zip(goal).all(|(traffic, goal)| traffic.received >= goal)
        });
        assert!(self.traffic[0].under_way(Operation::ReceiveAny) > 0);
    }
}

fn options(progress: ProgressMode, exclusive: bool) -> NodeOptions {
    let domain = DomainOptions { progress, ..DomainOptions::default() };
    NodeOptions { domain, exclusive, ..NodeOptions::default() }
}

/// Every call that a child may make on its parent's objects; the number of the first that
/// answers otherwise than with an error.
fn call_everything(node: &Node, to: u64) -> i32 {
    let endpoint = &node.endpoint;
    let forked = Err(PostError::ForkedChild);
    let random = &mut Random::new(1);
    let seed = traffic::seed(random, 100);
    let mut entry = [Entry::default()];
    let sent = endpoint.send(traffic::content(seed), to, 1).map_err(|refused| refused.error);
    let received = endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 2).map_err(|refused| refused.error);
    // Completions that were there at the fork are the child's to read: it has a copy.
    while node.queue.read(&mut entry).is_ok() {}
    let blocking = node.queue.read_blocking(&mut entry, None);
    let peeked = endpoint.peek_tagged(FI_ADDR_UNSPEC, 1, 0, Flags::empty(), 3);
    let refusals = [
        sent == forked,
        received == forked,
        endpoint.inject(&[1; 8], to) == forked,
        endpoint.inject(&[1; 800], to) == forked,
        peeked == forked,
        endpoint.cancel(1) == forked,
        matches!(node.queue.read(&mut entry), Err(ReadError::ForkedChild)),
        matches!(blocking, Err(ReadError::ForkedChild)),
        matches!(
            Endpoint::open(&node.domain, EndpointOptions::default()),
            Err(OpenError::ForkedChild)
        ),
        CompletionQueue::open(&node.domain, 0).is_ok(),
    ];
    refusals.iter().position(|refused| !refused).map_or(0, |at| at as i32 + 1)
}

fn children_disturb_nobody(progress: ProgressMode, exclusive: bool) {
    let mut pair = Pair::open(&options(progress, exclusive));
    pair.exchange();
    // SAFETY: exit runs destructors and atexit handlers in the child, which is the point.
    assert_eq!(wait(fork(|| unsafe { libc::exit(3) })), 3);
    pair.exchange();

    let (node, to) = (&pair.nodes[0], 0);
    assert_eq!(wait(fork(|| call_everything(node, to))), 0);
    pair.exchange();

    let closes = fork(|| {
        for node in &pair.nodes {
            node.endpoint.close();
        }
        0
    });
    assert_eq!(wait(closes), 0);
    pair.exchange();

    let executes = fork(|| {
        let path = c"/bin/true".as_ptr();
        let arguments = [path, std::ptr::null()];
        // SAFETY: a path and a list that ends with null, both of them static or alive.
        unsafe { libc::execv(path, arguments.as_ptr()) };
        9
    });
    assert_eq!(wait(executes), 0);
    pair.exchange();

    // The child drops everything, as a Rust program that returns from main does.
    let child = unsafe_copy(&pair, |copy| {
        drop(copy);
        0
    });
    assert_eq!(wait(child), 0);
    pair.exchange();
}

/// Forks a child that owns what is the parent's, as every child does, and lets it go its way.
fn unsafe_copy(pair: &Pair, life: impl FnOnce(Pair) -> i32) -> i32 {
    fork(|| {
        // SAFETY: the child's copy of the pair is not used, nor dropped, in any other way.
        life(unsafe { std::ptr::read(pair) })
    })
}

/// What the tests of forked children stand on.
#[test]
fn a_child_that_panics_does_not_end_well() {
    assert_eq!(wait(fork(|| panic!("on purpose"))), 101);
}

#[test]
fn children_disturb_nobody_in_a_shared_domain() {
    children_disturb_nobody(ProgressMode::Manual, false);
}

#[test]
fn children_disturb_nobody_in_an_exclusive_domain() {
    children_disturb_nobody(ProgressMode::Manual, true);
}

#[test]
fn children_disturb_nobody_while_a_helper_makes_progress() {
    children_disturb_nobody(ProgressMode::Automatic, false);
}

/// Whatever lock another thread held at the fork: a region is closed by children while it registers and closes
/// others.
#[test]
fn a_child_closes_a_region_beside_a_busy_registry() {
    const CHILDREN: usize = 100;
    let node = Node::open();
    let mut memory = vec![0_u8; 8];
    let ranges = &[MemoryRange { address: memory.as_mut_ptr() as u64, len: 8 }];
    let access = Flags::REMOTE_WRITE;
    let attributes = MemoryRegionAttributes { ranges, access, ..Default::default() };
    // SAFETY: the memory outlives all regions, and nobody writes there.
    let register = || unsafe { node.domain.register_memory(&attributes) }.unwrap();
    let region = register();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                node.domain.close_memory(&register()).unwrap();
            }
        });
        for _ in 0..CHILDREN {
            let closes = || i32::from(node.domain.close_memory(&region).is_err());
            assert_eq!(wait(fork(closes)), 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    node.domain.close_memory(&region).unwrap();
}

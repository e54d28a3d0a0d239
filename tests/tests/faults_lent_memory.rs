//! Memory that is lent to other processes, which write there by themselves, and taken back: in the
//! middle of a storm, from one that is stopped, from one that is killed; and by a process that
//! forks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    config::CmaPolicy,
    domain::DomainOptions,
    flags::Flags,
    info::MemoryRegionMode,
    memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes},
    one_sided::{RemoteSegment, RmaPost},
};
use kestrel_tests::{
    bed::Memory,
    fork,
    node::{Node, NodeOptions, Wait},
    one_sided::BOTH,
    process::{Peer, child_role, eventually, forbid_call, listen_to_parent, say},
    random::Random,
    scale::{PATIENCE, scaled},
};

const KEY: u64 = 12;
/// Several calls each.
const LENGTH: usize = (3 << 20) + 5;
/// Bytes of one write after the other.
const LENGTHS: [usize; 4] = [4096, LENGTH, 64 << 10, 1 << 20];
/// What the peer writes, and what nobody does.
const WRITTEN: u8 = 7;
const OURS: u8 = 0xee;

fn node() -> Node {
    let domain =
        DomainOptions { memory_region_mode: MemoryRegionMode::empty(), ..DomainOptions::default() };
    Node::with(&NodeOptions { domain, ..NodeOptions::with_cma(CmaPolicy::On) })
}

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[..] {
        ["storm", to] => storm(to, u64::MAX),
        ["forbidden", to, writes] => {
            forbid_call(libc::SYS_process_vm_writev);
            storm(to, writes.parse().unwrap());
        }
        _ => panic!("{role:?}"),
    }
}

/// Writes to `to` without end, or so many times, whatever becomes of it.
fn storm(to: &str, writes: u64) {
    let orders = listen_to_parent();
    let node = node();
    let to = node.insert_text(to);
    let source = Memory::from(vec![WRITTEN; LENGTH]);
    say("ready");
    for nth in 0..writes {
        let length = LENGTHS[nth as usize % LENGTHS.len()];
        let segments = [RemoteSegment { address: 0, length: length as u64, key: KEY }];
        let post = RmaPost {
            pieces: kestrel_core::memory::Pieces::One(source.piece().part(0, length)),
            to,
            segments: &segments,
            data: 0,
            context: nth,
            flags: Flags::COMPLETION,
            region: None,
            owner: None,
        };
        node.endpoint.post_write(post).unwrap();
        assert!(node.within(PATIENCE, Wait::Polling).is_some(), "a write ends");
    }
    say("done");
    let _ = orders.recv_timeout(PATIENCE);
}

/// A region that another process writes to.
struct Target {
    node: Node,
    memory: Memory,
    peer: Peer,
}

impl Target {
    fn of(role: impl FnOnce(&Node) -> String) -> Target {
        let node = node();
        let mut peer = Peer::start(&role(&node));
        assert_eq!(peer.hear(), "ready");
        Target { node, memory: Memory::zeroed(LENGTH), peer }
    }

    fn stormed() -> Target {
        Target::of(|node| format!("storm {}", node.address().socket_addr()))
    }

    fn expose(&self) -> Arc<MemoryRegion> {
        let piece = self.memory.piece();
        let attributes = MemoryRegionAttributes {
            ranges: &[MemoryRange { address: piece.as_ptr() as u64, len: piece.len() as u64 }],
            access: BOTH,
            requested_key: KEY,
            ..Default::default()
        };
        // SAFETY: the memory lives as long as the target, which closes the region before.
        unsafe { self.node.domain.register_memory(&attributes) }.unwrap()
    }

    fn poll(&self, duration: Duration) {
        let start = Instant::now();
        while start.elapsed() < duration {
            assert!(self.node.poll().is_none());
        }
    }

    /// Waits until the peer writes, and we need do nothing for it.
    #[track_caller]
    fn is_written_by_the_peer_alone(&self) {
        let start = Instant::now();
        loop {
            self.poll(Duration::from_micros(500));
            self.memory.scribble();
            std::thread::sleep(Duration::from_millis(2));
            if self.memory.bytes()[0] == WRITTEN {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a window");
        }
    }

    /// Nothing lands in what is ours again.
    #[track_caller]
    fn is_ours(&self, while_this: impl FnOnce()) {
        self.memory.scribble();
        while_this();
        let landed = self.memory.bytes().iter().position(|&byte| byte != OURS);
        assert_eq!(landed, None, "a byte landed after the close");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours, and not reaped.
        assert_eq!(unsafe { libc::kill(self.peer.pid(), signal) }, 0);
    }
}

#[test]
fn a_region_that_closes_in_a_storm_is_written_to_no_more() {
    let (target, mut random) = (Target::stormed(), Random::new(1));
    for _ in 0..scaled(20, 100, 2000) {
        let region = target.expose();
        target.is_written_by_the_peer_alone();
        std::thread::sleep(Duration::from_micros(random.below(1000)));
        target.node.domain.close_memory(&region).unwrap();
        target.is_ours(|| std::thread::sleep(Duration::from_micros(random.below(3000))));
    }
}

#[test]
fn a_peer_that_is_stopped_writes_no_more_when_it_goes_on() {
    let (target, mut random) = (Target::stormed(), Random::new(2));
    for _ in 0..scaled(3, 10, 200) {
        let region = target.expose();
        target.is_written_by_the_peer_alone();
        std::thread::sleep(Duration::from_micros(random.below(1000)));
        target.signal(libc::SIGSTOP);
        let start = Instant::now();
        target.node.domain.close_memory(&region).unwrap();
        assert!(start.elapsed() < PATIENCE, "the close does not wait for it for ever");
        target.is_ours(|| {
            target.signal(libc::SIGCONT);
            target.poll(Duration::from_millis(5));
        });
    }
}

#[test]
fn a_peer_that_is_killed_lets_go() {
    let mut random = Random::new(3);
    for _ in 0..scaled(3, 10, 200) {
        let mut target = Target::stormed();
        let region = target.expose();
        target.is_written_by_the_peer_alone();
        std::thread::sleep(Duration::from_micros(random.below(1000)));
        target.peer.kill();
        target.node.domain.close_memory(&region).unwrap();
        target.is_ours(|| target.poll(Duration::from_millis(5)));
    }
}

/// The child has memory of its own, and what it does with regions is no business of the peer's.
#[test]
fn a_target_that_forks_goes_on() {
    let target = Target::stormed();
    let region = target.expose();
    for _ in 0..scaled(3, 10, 100) {
        target.is_written_by_the_peer_alone();
        let child = fork::fork(|| {
            let before = target.memory.bytes();
            let _ = target.node.domain.close_memory(&region);
            std::thread::sleep(Duration::from_millis(20));
            i32::from(target.memory.bytes() != before)
        });
        target.memory.scribble();
        eventually("it is lent still", || target.memory.bytes()[0] == WRITTEN);
        assert_eq!(fork::wait(child), 0, "the child's copy was written to");
    }
    target.node.domain.close_memory(&region).unwrap();
    target.is_ours(|| std::thread::sleep(Duration::from_millis(5)));
}

/// The kernel may forbid it, from the start: everything arrives as packets.
#[test]
fn what_the_kernel_forbids_goes_as_packets() {
    let to = |node: &Node| format!("forbidden {} 40", node.address().socket_addr());
    let target = Target::of(to);
    let region = target.expose();
    let start = Instant::now();
    while target.peer.heard().as_deref() != Some("done") {
        target.poll(Duration::from_millis(1));
        assert!(start.elapsed() < PATIENCE, "in vain: the writes");
    }
    assert!(target.memory.bytes().iter().all(|&byte| byte == WRITTEN));
    target.node.domain.close_memory(&region).unwrap();
}

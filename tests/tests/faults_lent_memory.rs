//! Memory that is lent to other processes, which write there by themselves, and taken back: in the
//! middle of a storm, from one that is stopped, from one that is killed; and by a process that
//! forks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    flags::Flags, memory::Pieces, memory_region::MemoryRegion, one_sided::RemoteSegment,
};
use kestrel_tests::{
    bed::{Memory, same},
    fork,
    node::{Done, Node, Wait},
    one_sided::{BOTH, Rma, expose_in},
    process::{Peer, child_role, eventually, forbid_call, listen_to_parent, say},
    random::Random,
    scale::{PATIENCE, scaled},
    shm_reach::lone_node,
};

const KEY: u64 = 12;
/// Several calls each.
const LENGTH: usize = (3 << 20) + 5;
/// Bytes of one write after the other.
const LENGTHS: [usize; 4] = [4096, LENGTH, 64 << 10, 1 << 20];
/// What the peer writes, and what nobody does.
const WRITTEN: u8 = 7;
const OURS: u8 = 0xee;

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[..] {
        ["storm", to] => storm(to),
        ["forbidden", to, ref calls @ ..] => {
            calls.iter().for_each(|call| forbid_call(call.parse().unwrap()));
            write_when_told(to);
        }
        _ => panic!("{role:?}"),
    }
}

/// Who writes to a target's region.
struct Writer {
    node: Node,
    to: u64,
    source: Memory,
}

impl Writer {
    fn to(address: &str) -> Writer {
        let node = lone_node();
        let to = node.insert_text(address);
        say("ready");
        Writer { node, to, source: Memory::from(vec![WRITTEN; LENGTH]) }
    }

    /// What becomes of a write of that many bytes.
    fn write(&self, length: usize) -> Done {
        let segments = [RemoteSegment { address: 0, length: length as u64, key: KEY }];
        let rma = Rma {
            pieces: Pieces::One(self.source.piece().part(0, length)),
            segments: &segments,
            flags: Flags::COMPLETION,
            ..Rma::default()
        };
        self.node.endpoint.post_write(rma.post(self.to)).unwrap();
        self.node.within(PATIENCE, Wait::Polling).expect("a write ends")
    }
}

/// Writes to `to` without end, whatever becomes of it.
fn storm(to: &str) {
    let _parent = listen_to_parent();
    let writer = Writer::to(to);
    for length in LENGTHS.into_iter().cycle() {
        writer.write(length);
    }
}

/// Writes as many bytes as it is told, which has to succeed.
fn write_when_told(to: &str) {
    let orders = listen_to_parent();
    let writer = Writer::to(to);
    for length in orders {
        writer.write(length.parse().unwrap()).well();
        say("written");
    }
}

/// A region that another process writes to.
struct Target {
    node: Node,
    memory: Memory,
    peer: Peer,
}

impl Target {
    fn of(role: impl FnOnce(&Node) -> String) -> Target {
        let node = lone_node();
        let mut peer = Peer::start(&role(&node));
        assert_eq!(peer.hear(), "ready");
        Target { node, memory: Memory::zeroed(LENGTH), peer }
    }

    fn stormed() -> Target {
        Target::of(|node| format!("storm {}", node.address().socket_addr()))
    }

    fn expose(&self) -> Arc<MemoryRegion> {
        expose_in(&self.node.domain, &[self.memory.piece()], BOTH, KEY, Flags::empty()).unwrap()
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

/// The kernel may forbid it, from the start: everything arrives as packets. It has a call for copies of
/// each length.
#[test]
fn what_the_kernel_forbids_goes_as_packets() {
    let (long, short) = (libc::SYS_process_vm_writev, libc::SYS_pwrite64);
    for calls in [format!("{long}"), format!("{short}"), format!("{long} {short}")] {
        let mut target =
            Target::of(|node| format!("forbidden {} {calls}", node.address().socket_addr()));
        let region = target.expose();
        for length in (0..3).flat_map(|_| LENGTHS) {
            target.memory.scribble();
            target.peer.order(&length.to_string());
            let start = Instant::now();
            while target.peer.heard().as_deref() != Some("written") {
                target.poll(Duration::from_millis(1));
                assert!(start.elapsed() < PATIENCE, "in vain: a write without {calls}");
            }
            let bytes = target.memory.bytes();
            same(&bytes[..length], &vec![WRITTEN; length], "what was written");
            assert!(bytes[length..].iter().all(|&byte| byte == OURS), "behind {length} bytes");
        }
        target.node.domain.close_memory(&region).unwrap();
    }
}

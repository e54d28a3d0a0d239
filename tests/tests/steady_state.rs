//! The steady state of inject and eager messages: no allocation, no system call,
//! no lock.

use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::Entry,
    endpoint::PostError,
    flags::Flags,
    memory::{Piece, Pieces},
    operation::{ReceivePost, SendPost},
};
use kestrel_tests::{
    figures::Counting,
    node::{Node, NodeOptions},
    process::child_role,
    scale::skip,
    trace,
};

#[global_allocator]
static MEMORY: Counting = Counting::new();

const WARM_UP: usize = 3_000;
const COUNTED: usize = 10_000;

/// What is sent, and how.
#[derive(Clone, Copy, Debug)]
struct Case {
    length: usize,
    tagged: bool,
    inject: bool,
    exclusive: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for length in [8, 64, 4096] {
        for tagged in [false, true] {
            for inject in [false, true] {
                for exclusive in [false, true] {
                    cases.push(Case { length, tagged, inject, exclusive });
                }
            }
        }
    }
    cases
}

/// Two nodes of one process, and buffers that are used again and again.
struct Link {
    from: Node,
    to: Node,
    peer: u64,
    case: Case,
    connected: bool,
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Link {
    fn open(case: Case) -> Link {
        let options = NodeOptions { exclusive: case.exclusive, ..NodeOptions::default() };
        let (from, to) = (Node::with(&options), Node::with(&options));
        let peer = from.insert(to.address());
        let (source, target) = (vec![7; case.length], vec![0; case.length]);
        Link { from, to, peer, case, connected: false, source, target }
    }

    fn family(&self) -> Flags {
        if self.case.tagged { Flags::TAGGED } else { Flags::MSG }
    }

    fn tag(&self) -> u64 {
        if self.case.tagged { 5 } else { 0 }
    }

    fn post_receive(&mut self) -> Result<(), PostError> {
        // SAFETY: the buffer lives as long as the link, and is read only after completion.
        let piece = unsafe { Piece::new(self.target.as_mut_ptr(), self.target.len()) };
        self.to.endpoint.post_receive(ReceivePost {
            pieces: Pieces::One(piece),
            from: FI_ADDR_UNSPEC,
            tag: self.tag(),
            ignore: 0,
            context: 1,
            flags: self.family(),
            region: None,
            attachment: None,
        })
    }

    fn post_send(&mut self) -> Result<(), PostError> {
        let (endpoint, peer) = (&self.from.endpoint, self.peer);
        match (self.case.inject, self.case.tagged) {
            (true, true) => return endpoint.inject_tagged(&self.source, peer, 5),
            (true, false) => return endpoint.inject(&self.source, peer),
            _ => {}
        }
        // SAFETY: as for the receive; nobody writes to it.
        let piece = unsafe { Piece::new(self.source.as_mut_ptr(), self.source.len()) };
        endpoint.post_send(SendPost {
            pieces: Pieces::One(piece),
            to: peer,
            tag: self.tag(),
            data: 0,
            context: 2,
            flags: self.family(),
            region: None,
            attachment: None,
        })
    }

    /// One expected message, from post to completion.
    fn exchange(&mut self) {
        self.post_receive().unwrap();
        self.post_send().unwrap();
        // Polling in vain yields the core now and then, by the idle policy: once connected, each
        // poll here finds what it looks for.
        let mut left = if self.case.inject { 1 } else { 2 };
        while left > 0 {
            if left == 2 || !self.connected {
                left -= usize::from(self.from.poll().is_some());
            }
            left -= usize::from(self.to.poll().is_some());
        }
    }
}

fn warm_link(case: Case) -> Link {
    let mut link = Link::open(case);
    for _ in 0..WARM_UP {
        link.exchange();
        link.connected = true;
    }
    link
}

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    match role[0].as_str() {
        "single" => {
            let mut link = warm_link(cases()[role[1].parse::<usize>().unwrap()]);
            trace::begin();
            for _ in 0..COUNTED {
                link.exchange();
            }
            trace::end();
        }
        "threads" => threads(),
        _ => panic!("{role:?}"),
    }
}

const THREADS: usize = 4;

/// Threads that send and poll on the same two endpoints at once.
fn threads() {
    let case = Case { length: 8, tagged: true, inject: false, exclusive: false };
    let link = warm_link(case);
    MEMORY.take_no_locks();
    let (sent, received) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let goal = COUNTED;
    let message = [1u8; 8];
    let mut room = [0u8; 8];
    // SAFETY: what is received is never read; threads only pass the address on.
    let target = unsafe { Piece::new(room.as_mut_ptr(), room.len()) };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                trace::begin();
                let mut own = 0;
                while received.load(Ordering::Relaxed) < goal * THREADS {
                    if own < goal
                        && sent.load(Ordering::Relaxed) < 64 + received.load(Ordering::Relaxed)
                    {
                        let posted = link.to.endpoint.post_receive(ReceivePost {
                            pieces: Pieces::One(target),
                            from: FI_ADDR_UNSPEC,
                            tag: 9,
                            ignore: 0,
                            context: 1,
                            flags: Flags::TAGGED,
                            region: None,
                            attachment: None,
                        });
                        assert!(posted.is_ok() || posted == Err(PostError::Again));
                        if posted.is_ok() {
                            while link.from.endpoint.inject_tagged(&message, link.peer, 9).is_err()
                            {
                                assert!(link.from.poll().is_none());
                            }
                            own += 1;
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    assert!(link.from.poll().is_none());
                    if let Some(done) = link.to.poll() {
                        done.well();
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                }
                trace::end();
            });
        }
    });
}

/// One after the other: what one test starts would count in the other.
#[test]
fn small_messages_neither_allocate_nor_call_the_system() {
    nothing_is_allocated();
    a_stream_ahead_of_its_receives_is_not_parked();
    no_system_call_is_made();
}

fn nothing_is_allocated() {
    for case in cases() {
        let mut link = warm_link(case);
        let least = (0..5).map(|_| {
            let before = MEMORY.calls();
            for _ in 0..COUNTED {
                link.exchange();
            }
            MEMORY.calls() - before
        });
        // The harness and a control thread may allocate now and then; a message that does would
        // show in every turn.
        assert_eq!(least.min(), Some(0), "{case:?}");
    }
}

/// What waits for a receive that is posted a moment later stays in its lane: parking it would
/// take memory for a second copy.
fn a_stream_ahead_of_its_receives_is_not_parked() {
    const WINDOW: usize = 8;
    let mut link = warm_link(Case { length: 4096, tagged: true, inject: false, exclusive: true });
    let mut round = || {
        let before = MEMORY.calls();
        for _ in 0..WINDOW {
            link.post_receive().unwrap();
        }
        for _ in 0..2 * WINDOW {
            link.post_send().unwrap();
        }
        let mut entries: [Entry; 4 * WINDOW] = Default::default();
        let mut received = 0;
        while received < 2 * WINDOW {
            let Ok(count) = link.to.queue.read(&mut entries) else { continue };
            received += count;
            if received == WINDOW {
                (0..WINDOW).for_each(|_| link.post_receive().unwrap());
            }
        }
        for _ in 0..2 * WINDOW {
            link.from.poll().expect("it left long ago").well();
        }
        MEMORY.calls() - before
    };
    assert_eq!((0..50).map(|_| round()).min(), Some(0));
}

fn no_system_call_is_made() {
    for (index, case) in cases().into_iter().enumerate() {
        let counted = match trace::run(&format!("single {index}")) {
            Ok(counted) => counted,
            Err(error) => return skip("no_system_call_is_made", &format!("ptrace: {error}")),
        };
        assert_eq!((counted.code, counted.stretches), (0, 1), "{counted:?}");
        assert!(counted.calls.is_empty(), "{case:?}: {:?}", counted.calls);
    }
    no_lock_is_taken();
}

/// A lock that is contended ends in a futex, and the allocator takes none here: where threads
/// collide an operation is left in memory of its own. Yielding is what the idle policy does.
fn no_lock_is_taken() {
    let counted = trace::run("threads").expect("traced just before");
    assert_eq!((counted.code, counted.stretches), (0, THREADS), "{counted:?}");
    println!("four threads, {} messages: {:?}", COUNTED * THREADS, counted.calls);
    assert_eq!(counted.calls.get(&libc::SYS_futex), None);
}

//! The steady state of small one-sided operations: no allocation, and no system call but the one
//! that copies, where an initiator copies by itself.

use std::sync::Arc;

use kestrel_core::{
    config::CmaPolicy,
    domain::DomainOptions,
    flags::Flags,
    info::MemoryRegionMode,
    memory::{Piece, Pieces},
    memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes},
    one_sided::{AtomicPost, RemoteSegment, RmaPost},
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
};
use kestrel_tests::{
    figures::Counting,
    node::{Node, NodeOptions},
    one_sided::BOTH,
    process::child_role,
    scale::skip,
    trace,
};

#[global_allocator]
static MEMORY: Counting = Counting::new();

const WARM_UP: usize = 3_000;
const COUNTED: usize = 10_000;
const LENGTH_MAX: usize = 4096;
const KEY: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum What {
    Write,
    Inject,
    Read,
    FetchAdd,
    CompareSwap,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    what: What,
    length: usize,
    exclusive: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for exclusive in [false, true] {
        for (what, lengths) in [
            (What::Write, &[8, 64, 4096][..]),
            (What::Inject, &[8, 1024]),
            (What::Read, &[8, 64, 4096]),
            (What::FetchAdd, &[8, 4096]),
            (What::CompareSwap, &[8, 2048]),
        ] {
            cases.extend(lengths.iter().map(|&length| Case { what, length, exclusive }));
        }
    }
    cases
}

impl Case {
    /// Whether the initiator copies by itself.
    fn goes_through_a_window(self) -> bool {
        matches!(self.what, What::Write | What::Read) && self.length == LENGTH_MAX
    }
}

/// Two nodes of one process, and memory that is used again and again.
struct Link {
    from: Node,
    to: Node,
    peer: u64,
    case: Case,
    local: Vec<u64>,
    _region: Arc<MemoryRegion>,
    _target: Vec<u64>,
}

impl Link {
    fn open(case: Case) -> Link {
        let domain = DomainOptions {
            memory_region_mode: MemoryRegionMode::empty(),
            ..DomainOptions::default()
        };
        let exclusive = case.exclusive;
        let options = NodeOptions { exclusive, domain, ..NodeOptions::with_cma(CmaPolicy::On) };
        let (from, to) = (Node::with(&options), Node::with(&options));
        let peer = from.insert(to.address());
        let (local, mut target) = (vec![7; LENGTH_MAX / 4], vec![0_u64; LENGTH_MAX / 8]);
        let attributes = MemoryRegionAttributes {
            ranges: &[MemoryRange { address: target.as_mut_ptr() as u64, len: LENGTH_MAX as u64 }],
            access: BOTH,
            requested_key: KEY,
            ..Default::default()
        };
        // SAFETY: the target lives as long as the node, and nobody looks at it.
        let region = unsafe { to.domain.register_memory(&attributes) }.unwrap();
        Link { from, to, peer, case, local, _region: region, _target: target }
    }

    fn post(&mut self) {
        let (length, to) = (self.case.length, self.peer);
        let start = self.local.as_mut_ptr().cast::<u8>();
        // SAFETY: the buffer has twice the longest length, lives as long as the link, and
        // nobody looks at it meanwhile.
        let [first, second] =
            [0, length].map(|offset| Pieces::One(unsafe { Piece::new(start.add(offset), length) }));
        let segments = &[RemoteSegment { address: 0, length: length as u64, key: KEY }];
        let endpoint = &self.from.endpoint;
        let rma = |flags| RmaPost {
            pieces: first,
            to,
            segments,
            data: 0,
            context: 1,
            flags,
            region: None,
            attachment: None,
        };
        let atomic = |operation, form| AtomicPost {
            call: AtomicCall { operation, datatype: Datatype::Uint64, form },
            operands: first,
            compare: second,
            results: second,
            to,
            segments,
            data: 0,
            context: 1,
            flags: Flags::empty(),
        };
        match self.case.what {
            What::Write => endpoint.post_write(rma(Flags::empty())),
            What::Inject => endpoint.post_write(rma(Flags::INJECT)),
            What::Read => endpoint.post_read(rma(Flags::empty())),
            What::FetchAdd => endpoint.post_atomic(atomic(AtomicOperation::Sum, Form::Fetch)),
            What::CompareSwap => {
                endpoint.post_atomic(atomic(AtomicOperation::Cswap, Form::Compare))
            }
        }
        .unwrap();
    }

    /// One operation, from post to completion. Polling in vain yields the core now and
    /// then, by the idle policy: once connected, each poll here finds something.
    fn exchange(&mut self) {
        self.post();
        loop {
            assert!(self.to.poll().is_none());
            if let Some(done) = self.from.poll() {
                done.well();
                return;
            }
        }
    }
}

fn warm_link(case: Case) -> Link {
    let mut link = Link::open(case);
    for _ in 0..WARM_UP {
        link.exchange();
    }
    link
}

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let mut link = warm_link(cases()[role[0].parse::<usize>().unwrap()]);
    trace::begin();
    for _ in 0..COUNTED {
        link.exchange();
    }
    trace::end();
}

/// One after the other: what one test starts would count in the other.
#[test]
fn small_operations_neither_allocate_nor_call_the_system() {
    nothing_is_allocated();
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
        // The harness may allocate now and then; an operation that does would show in
        // every turn.
        assert_eq!(least.min(), Some(0), "{case:?}");
    }
}

fn no_system_call_is_made() {
    for (index, case) in cases().into_iter().enumerate() {
        let counted = match trace::run(&index.to_string()) {
            Ok(counted) => counted,
            Err(error) => {
                return skip("small operations call no system", &format!("ptrace: {error}"));
            }
        };
        assert_eq!((counted.code, counted.stretches), (0, 1), "{counted:?}");
        let mut calls = counted.calls;
        if case.goes_through_a_window() {
            // The target, which has nothing to do, yields by the idle policy, and asks in company
            // whether its caller does.
            calls.remove(&libc::SYS_sched_yield);
            calls.remove(&libc::SYS_clock_gettime);
            let copies = [libc::SYS_pread64, libc::SYS_pwrite64];
            let copied = copies.map(|call| calls.remove(&call).unwrap_or(0));
            assert_eq!(copied.into_iter().sum::<u64>(), COUNTED as u64, "{case:?}");
        }
        assert!(calls.is_empty(), "{case:?}: {calls:?}");
    }
}

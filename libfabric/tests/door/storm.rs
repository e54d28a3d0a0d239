//! Two endpoints that many threads use at once, and what becomes of every operation.
//!
//! A stream is what one thread sends to one endpoint: numbered messages, whose length and
//! bytes follow from stream and number. One receive at a time is posted for a stream, so
//! whoever reads its completion knows which message it has to be.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use kestrel_tests::random::Random;

use crate::{
    abi::attributes::{CqErrEntry, CqTaggedEntry},
    code,
    host::Host,
    world::{Node, World, cq_attr},
};

pub const NODES: usize = 2;
/// The longest message. Units: bytes.
pub const SIZE_MAX: usize = 150_000;
/// Messages that anybody may get: nobody counts them.
pub const STRAY: u64 = 1 << 40;
/// Messages that nobody sends.
pub const NEVER: u64 = 1 << 41;
const ECANCELED: c_int = 125;
const BURST: usize = 8;
const WAIT_UNSPEC: u32 = 1;

/// Every flag and count below is a message between threads about the operation's buffer.
const PUBLISH: Ordering = Ordering::Release; // S1: pairs with S2
const LOOK: Ordering = Ordering::Acquire; // S2: pairs with S1

/// What an operation is for, and so what its completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send of a stream: succeeds.
    Send,
    /// The receive of a stream: succeeds, or is cancelled and posted again.
    Receive,
    /// A receive of whatever comes from endpoints that come and go.
    Stray,
    /// A receive of what nobody sends: is cancelled.
    Decoy,
    /// Something with an endpoint or a region that may be gone: ends somehow.
    Doomed,
}

/// An operation and its buffer; its address is the context.
pub struct Operation {
    pub kind: Kind,
    pub node: usize,
    pub tag: u64,
    busy: AtomicBool,
    /// How many messages of a stream came.
    count: AtomicU64,
    buffer: UnsafeCell<Box<[u8]>>,
}

// SAFETY: the buffer belongs to the library while the operation is busy, and otherwise to the
// one thread that posts it next; `busy` and `count` say which.
unsafe impl Sync for Operation {}

impl Operation {
    /// Never freed: its completion may come when the thread that posted it has ended.
    pub fn new(kind: Kind, node: usize, tag: u64) -> &'static Operation {
        Box::leak(Box::new(Operation {
            kind,
            node,
            tag,
            busy: AtomicBool::new(false),
            count: AtomicU64::new(0),
            buffer: UnsafeCell::new(vec![0; SIZE_MAX].into()),
        }))
    }

    pub fn is_busy(&self) -> bool {
        self.busy.load(LOOK)
    }

    pub fn set_busy(&self, busy: bool) {
        self.busy.store(busy, PUBLISH);
    }

    pub fn count(&self) -> u64 {
        self.count.load(LOOK)
    }

    pub fn context(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The buffer, for whoever the operation belongs to at the moment.
    #[allow(clippy::mut_from_ref)]
    pub fn buffer(&self) -> &mut [u8] {
        // SAFETY: as said at `Sync`.
        unsafe { &mut *self.buffer.get() }
    }
}

/// The message of that number in a stream: its length, and the numbers that its bytes are.
pub fn message(stream: u64, number: u64) -> (usize, Random) {
    let mut random = Random::new(stream << 32 | number);
    let longest = match random.below(100) {
        0..50 => 64,
        50..80 => 4_000,
        80..97 => 20_000,
        _ => SIZE_MAX as u64,
    };
    (random.between(1, longest) as usize, random)
}

pub fn fill(buffer: &mut [u8], stream: u64, number: u64) -> usize {
    let (length, mut random) = message(stream, number);
    for part in buffer[..length].chunks_mut(8) {
        part.copy_from_slice(&random.number().to_le_bytes()[..part.len()]);
    }
    length
}

fn check(bytes: &[u8], stream: u64, number: u64) {
    let (length, mut random) = message(stream, number);
    assert_eq!(bytes.len(), length, "message {number} of stream {stream:#x}");
    for (at, part) in bytes.chunks(8).enumerate() {
        let expected = random.number().to_le_bytes();
        assert_eq!(part, &expected[..part.len()], "word {at} of {number} in {stream:#x}");
    }
}

/// Both endpoints, and the receives of all streams.
pub struct Storm {
    pub world: World,
    pub streams: Vec<&'static Operation>,
    strays: Vec<&'static Operation>,
    /// Messages in each stream.
    pub length: u64,
    pub canceled: AtomicU64,
    pub strayed: AtomicU64,
    /// Counts everything that happens, to see that something does.
    pub moves: AtomicU64,
    pub over: AtomicBool,
}

// SAFETY: the domain was opened with FI_THREAD_SAFE: its objects are for all threads.
unsafe impl Sync for Storm {}

impl Storm {
    /// Two endpoints under FI_THREAD_SAFE, and `senders` streams to each.
    pub fn new(host: &'static Host, data_progress: u32, senders: usize, length: u64) -> Storm {
        const THREAD_SAFE: u32 = 1;
        let mut world = World::empty(host, |hints| {
            // SAFETY: hints have all attributes.
            let domain = unsafe { &mut *hints.domain_attr };
            (domain.threading, domain.data_progress) = (THREAD_SAFE, data_progress);
        });
        for _ in 0..NODES {
            let mut attr = cq_attr();
            attr.wait_obj = WAIT_UNSPEC;
            world.add_node(&mut attr, 0);
        }
        let stream = |at: usize| Operation::new(Kind::Receive, at % NODES, at as u64);
        let storm = Storm {
            world,
            streams: (0..senders * NODES).map(stream).collect(),
            strays: (0..NODES).map(|node| Operation::new(Kind::Stray, node, STRAY)).collect(),
            length,
            canceled: AtomicU64::new(0),
            strayed: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            over: AtomicBool::new(false),
        };
        storm.streams.iter().chain(&storm.strays).for_each(|operation| storm.receive(operation));
        storm
    }

    pub fn node(&self, at: usize) -> Node {
        self.world.nodes[at]
    }

    pub fn is_over(&self) -> bool {
        self.over.load(LOOK)
    }

    pub fn has_arrived(&self) -> bool {
        self.streams.iter().all(|stream| stream.count() == self.length)
    }

    /// Calls until the answer is not "again", driving the endpoint in between.
    pub fn insist(&self, node: usize, mut post: impl FnMut() -> isize) -> isize {
        loop {
            let answer = post();
            if answer != code::AGAIN as isize || self.is_over() {
                return answer;
            }
            self.poll(node);
        }
    }

    pub fn receive(&self, operation: &Operation) {
        let ep = self.node(operation.node).ep;
        let buffer = operation.buffer();
        let (place, length, tag) = (buffer.as_mut_ptr().cast(), buffer.len(), operation.tag);
        operation.set_busy(true);
        let answer = self.insist(operation.node, || {
            // SAFETY: the endpoint is open; the buffer is the library's until the completion.
            unsafe {
                let recv = (*(*ep).tagged).recv;
                recv(ep, place, length, null_mut(), u64::MAX, tag, 0, operation.context())
            }
        });
        assert!(answer == 0 || self.is_over(), "a receive: {answer}");
    }

    /// Sends the first bytes of an operation's buffer.
    pub fn send(&self, operation: &Operation, length: usize, to: u64, tag: u64) -> isize {
        let ep = self.node(operation.node).ep;
        let start = operation.buffer().as_ptr().cast();
        operation.set_busy(true);
        let answer = self.insist(operation.node, || {
            // SAFETY: the endpoint is open; the buffer is the library's until the completion.
            unsafe {
                let send = (*(*ep).tagged).send;
                send(ep, start, length, null_mut(), to, tag, operation.context())
            }
        });
        if answer != 0 {
            operation.set_busy(false);
        }
        answer
    }

    /// Reads completions of an endpoint and does what they ask for.
    pub fn poll(&self, node: usize) {
        self.read(node, |cq, place| {
            // SAFETY: the queue is open, and there is room for so many.
            unsafe { ((*(*cq).ops).read)(cq, place, BURST) }
        });
    }

    /// As [`Self::poll`], asleep for a while if there is nothing.
    pub fn wait(&self, node: usize, timeout_ms: c_int) {
        self.read(node, |cq, place| {
            // SAFETY: as above.
            unsafe { ((*(*cq).ops).sread)(cq, place, BURST, std::ptr::null(), timeout_ms) }
        });
    }

    fn read(
        &self,
        node: usize,
        read: impl FnOnce(*mut crate::abi::fid::FidCq, *mut c_void) -> isize,
    ) {
        // SAFETY: of entries, zeroes are values.
        let mut entries: [CqTaggedEntry; BURST] = unsafe { std::mem::zeroed() };
        match read(self.node(node).cq, entries.as_mut_ptr().cast()) {
            count @ 1.. => entries[..count as usize].iter().for_each(|entry| self.succeed(entry)),
            status if status == code::AGAIN as isize => {}
            status if status == code::AVAIL as isize => {
                // Another thread may have been faster.
                if let Ok(error) = self.node(node).read_error() {
                    self.fail(&error);
                }
            }
            status => panic!("reading the queue of node {node}: {status}"),
        }
    }

    fn succeed(&self, entry: &CqTaggedEntry) {
        // SAFETY: contexts are operations, which live for ever.
        let operation = unsafe { &*entry.op_context.cast::<Operation>() };
        match operation.kind {
            Kind::Send | Kind::Doomed => operation.set_busy(false),
            Kind::Receive => {
                let number = operation.count();
                assert_eq!(entry.tag, operation.tag);
                check(&operation.buffer()[..entry.len], operation.tag, number);
                // The next one is posted before anybody can see that this one has come.
                if number + 1 < self.length {
                    operation.count.store(number + 1, PUBLISH);
                    self.receive(operation);
                } else {
                    operation.set_busy(false);
                    operation.count.store(number + 1, PUBLISH);
                }
            }
            Kind::Stray => {
                self.strayed.fetch_add(1, Ordering::Relaxed);
                self.receive(operation);
            }
            Kind::Decoy => panic!("a message that nobody sent: {} bytes", entry.len),
        }
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn fail(&self, error: &CqErrEntry) {
        // SAFETY: as above.
        let operation = unsafe { &*error.op_context.cast::<Operation>() };
        match operation.kind {
            Kind::Doomed => operation.set_busy(false),
            Kind::Stray => self.receive(operation),
            Kind::Decoy if error.err == ECANCELED => operation.set_busy(false),
            Kind::Receive if error.err == ECANCELED => {
                self.canceled.fetch_add(1, Ordering::Relaxed);
                self.receive(operation);
            }
            kind => panic!("{kind:?} of node {}: error {}", operation.node, error.err),
        }
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Cancels an operation that may have ended.
    pub fn cancel(&self, operation: &Operation) {
        let ep = self.node(operation.node).ep;
        // SAFETY: the endpoint is open; the context is only compared.
        let answer = unsafe { ((*(*ep).ops).cancel)(ep.cast(), operation.context()) };
        const NOENT: isize = -2;
        assert!(answer == 0 || answer == NOENT, "cancelling: {answer}");
    }
}

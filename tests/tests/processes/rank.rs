//! One process of the script: an endpoint with all that belongs to it, and what it is told.

use std::{
    collections::VecDeque,
    rc::Rc,
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};

use kestrel_core::{
    address::Address,
    address_vector::AddressVector,
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    domain::{Domain, DomainOptions},
    endpoint::{Endpoint, EndpointOptions, OptionName, PostError},
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory::Piece,
    memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes},
    one_sided::RemoteSegment,
};
use kestrel_shm::ShmProvider;
use kestrel_tests::{
    bed::{Memory, open_vector},
    completion::{Done, read_all},
    one_sided::BOTH,
    process::say,
};

use crate::script::{MULTI_MAX, RANKS, Setup, ZONE};

type Counter = Arc<CompletionCounter<ShmProvider>>;

/// The end of each wait: before the parent's, so that a rank can say what it waits for.
const LIMIT: Duration = Duration::from_secs(20);
/// A zone to write to for each rank, one to read for all, and one for atomic operations.
const REGION: usize = (RANKS + 2) * ZONE;
/// Where what all may read begins.
pub const READABLE: usize = RANKS * ZONE;
/// Where words for atomic operations begin.
pub const WORDS: usize = (RANKS + 1) * ZONE;
/// The key of a rank's region is this and its number; and of one that may only be read.
const KEY: u64 = 100;
pub const READ_ONLY_KEY: u64 = 200;

/// What counts successes and errors of one kind, and what it should say.
struct Counted {
    counter: Counter,
    expected: (u64, u64),
}

/// Kinds of what is counted.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Send,
    Receive,
    Read,
    Write,
}

pub struct Rank {
    pub number: usize,
    pub endpoint: Arc<Endpoint<ShmProvider>>,
    sends: Arc<CompletionQueue<ShmProvider>>,
    receives: Arc<CompletionQueue<ShmProvider>>,
    vector: Arc<AddressVector>,
    counters: Vec<Counted>,
    sent: VecDeque<Done>,
    received: VecDeque<Done>,
    regions: Vec<Arc<MemoryRegion>>,
    domain: Arc<Domain<ShmProvider>>,
    orders: Receiver<String>,
    barriers: u64,
    /// Successes are reported to who asks.
    pub selective: bool,
    /// Goes after everything that may know it.
    region: Memory,
    kept: Vec<Rc<Memory>>,
}

impl Rank {
    pub fn open(number: usize, setup: &Setup, orders: Receiver<String>) -> Rank {
        let provider = Arc::new(ShmProvider::new(setup.shm.clone()).unwrap());
        let options = DomainOptions {
            progress: setup.progress.clone(),
            memory_region_mode: MemoryRegionMode::empty(),
            ..DomainOptions::default()
        };
        let domain = match setup.exclusive {
            // SAFETY: this process has one thread that calls.
            true => unsafe { Domain::open_exclusive(provider, options).unwrap() },
            false => Domain::open(provider, options).unwrap(),
        };
        let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
        let sends = CompletionQueue::open(&domain, 0).unwrap();
        let receives = CompletionQueue::open(&domain, 0).unwrap();
        let selective = if setup.selective { Flags::SELECTIVE_COMPLETION } else { Flags::empty() };
        endpoint.bind_completion_queue(&sends, Flags::TRANSMIT | selective).unwrap();
        endpoint.bind_completion_queue(&receives, Flags::RECV | selective).unwrap();
        let kinds = [Flags::SEND, Flags::RECV, Flags::READ, Flags::WRITE];
        let kinds = if setup.counted { &kinds[..] } else { &[] };
        let count = |&kind: &Flags| {
            let counter = CompletionCounter::open(&domain);
            endpoint.bind_counter(&counter, kind).unwrap();
            Counted { counter, expected: (0, 0) }
        };
        let counters = kinds.iter().map(count).collect();
        let vector = open_vector();
        endpoint.bind_address_vector(&vector).unwrap();
        endpoint.set_option(OptionName::MinMultiRecv, MULTI_MAX).unwrap();
        endpoint.enable().unwrap();
        let mut rank = Rank {
            number,
            endpoint,
            sends,
            receives,
            vector,
            counters,
            sent: VecDeque::new(),
            received: VecDeque::new(),
            regions: Vec::new(),
            domain,
            orders,
            barriers: 0,
            selective: setup.selective,
            region: Memory::zeroed(REGION),
            kept: Vec::new(),
        };
        rank.expose(KEY, BOTH);
        rank.expose(READ_ONLY_KEY, Flags::REMOTE_READ);
        rank
    }

    fn expose(&mut self, key: u64, access: Flags) {
        let range = MemoryRange { address: self.region.start(), len: REGION as u64 };
        let attributes = MemoryRegionAttributes {
            ranges: &[range],
            access,
            requested_key: key + self.number as u64,
            ..MemoryRegionAttributes::default()
        };
        // SAFETY: the memory is a field of the rank's, behind everything that may know it.
        self.regions.push(unsafe { self.domain.register_memory(&attributes) }.unwrap());
    }

    /// Tells where it is, hears where all are, and knows them by their numbers.
    pub fn meet_all(&mut self) {
        say(&format!("at {}", self.endpoint.address().socket_addr()));
        let all = self.orders.recv_timeout(LIMIT).expect("the addresses of all");
        for address in all.split(' ') {
            let address: std::net::SocketAddr = address.parse().unwrap();
            self.vector.insert_one(Address::from(address)).unwrap();
        }
    }

    /// Memory that outlives the scene's operations.
    pub fn memory(&mut self, bytes: Vec<u8>) -> Rc<Memory> {
        let memory = Rc::new(Memory::from(bytes));
        self.kept.push(memory.clone());
        memory
    }

    /// Part of the region that peers reach.
    pub fn own(&self, offset: usize, length: usize) -> Piece {
        self.region.piece().part(offset, length)
    }

    /// What is there now.
    pub fn own_bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.own(offset, length).append_to(&mut bytes);
        bytes
    }

    /// Drives the endpoint, and keeps what completed.
    pub fn poll(&mut self) {
        let Rank { sends, receives, sent, received, .. } = self;
        read_all(sends, |done| sent.push_back(done));
        read_all(receives, |done| received.push_back(done));
    }

    fn drive(&mut self, what: &str, mut over: impl FnMut(&mut Rank) -> bool) {
        let start = Instant::now();
        while !over(self) {
            assert!(start.elapsed() < LIMIT, "rank {}, in vain: {what}", self.number);
            self.poll();
        }
    }

    /// The next completion of what it sends, writes or reads.
    pub fn sent(&mut self) -> Done {
        self.drive("a send completes", |rank| !rank.sent.is_empty());
        self.sent.pop_front().unwrap()
    }

    /// The next completion of what it receives.
    pub fn received(&mut self) -> Done {
        self.drive("a receive completes", |rank| !rank.received.is_empty());
        self.received.pop_front().unwrap()
    }

    /// Completions of sends that are there by now.
    pub fn sent_by_now(&self) -> usize {
        self.sent.len()
    }

    /// Posts, and drives itself while there is no room.
    pub fn post(&mut self, mut post: impl FnMut(&Rank) -> Result<(), PostError>) {
        self.drive("a post", |rank| match post(rank) {
            Err(PostError::Again) => false,
            posted => {
                posted.unwrap();
                true
            }
        });
    }

    /// Notes what a counter has to count.
    pub fn count(&mut self, kind: Kind, errno: Option<Errno>) {
        if let Some(counted) = self.counters.get_mut(kind as usize) {
            match errno {
                None => counted.expected.0 += 1,
                Some(_) => counted.expected.1 += 1,
            }
        }
    }

    /// Waits until all ranks are here, driving itself meanwhile.
    pub fn barrier(&mut self) {
        self.arrive();
        self.drive("the others arrive", |rank| rank.orders.try_recv().is_ok());
    }

    /// The same without a call that would drive anything.
    pub fn sleep_till_all_are_here(&mut self) {
        self.arrive();
        self.orders.recv_timeout(LIMIT).expect("the others arrive");
    }

    fn arrive(&mut self) {
        self.barriers += 1;
        say(&format!("met {}", self.barriers));
    }

    /// The end of a scene: nothing more has completed, and everything is counted.
    pub fn end_scene(&mut self) {
        self.barrier();
        for _ in 0..20 {
            self.poll();
        }
        let (sent, received) = (&self.sent, &self.received);
        assert!(sent.is_empty() && received.is_empty(), "also: {sent:?}, {received:?}");
        for (kind, counted) in self.counters.iter().enumerate() {
            let counter = &counted.counter;
            let (successes, errors) = counted.expected;
            let found = || (counter.read(), counter.counter().read_error());
            let start = Instant::now();
            while found() != (successes, errors) && start.elapsed() < LIMIT {}
            assert_eq!(found(), (successes, errors), "rank {}, counter {kind}", self.number);
        }
        // Nobody begins the next scene while somebody looks for more of this one.
        self.barrier();
        self.kept.clear();
    }
}

/// Part of a rank's region, as its peers name it.
pub fn segment(of: usize, offset: usize, length: usize) -> RemoteSegment {
    RemoteSegment { address: offset as u64, length: length as u64, key: KEY + of as u64 }
}

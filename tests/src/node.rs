//! An endpoint over shared memory, with its domain, queue and address vector.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address::Address,
    address_vector::{AddressVector, AddressVectorAttributes},
    completion_queue::{self, Entry, ErrorEntry, ReadError},
    config::CmaPolicy,
    domain::{self, DomainOptions},
    endpoint::{self, EndpointOptions},
    error::Errno,
    flags::Flags,
};
use kestrel_shm::{ShmOptions, ShmProvider};

use crate::scale::PATIENCE;

/// A domain over shared memory.
pub type Domain = domain::Domain<ShmProvider>;
/// A completion queue.
pub type CompletionQueue = completion_queue::CompletionQueue<ShmProvider>;
/// An endpoint.
pub type Endpoint = endpoint::Endpoint<ShmProvider>;

/// What a node is opened with.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// The transport's.
    pub shm: ShmOptions,
    /// The domain's.
    pub domain: DomainOptions,
    /// The endpoint's.
    pub endpoint: EndpointOptions,
    /// One thread only (`FI_THREAD_DOMAIN`).
    pub exclusive: bool,
}

impl NodeOptions {
    /// The defaults, but for whether the kernel copies between processes.
    pub fn with_cma(cma: CmaPolicy) -> NodeOptions {
        let shm = ShmOptions { cma, ..ShmOptions::default() };
        NodeOptions { shm, ..NodeOptions::default() }
    }

    /// The defaults, at this address.
    pub fn at(address: Address) -> NodeOptions {
        let mut options = NodeOptions::default();
        options.endpoint.address = Some(address);
        options
    }
}

/// An endpoint that can send and receive.
pub struct Node {
    /// The endpoint, enabled.
    pub endpoint: Arc<Endpoint>,
    /// Where both directions complete.
    pub queue: Arc<CompletionQueue>,
    /// Its peers.
    pub vector: Arc<AddressVector>,
    /// What all of it was opened on.
    pub domain: Arc<Domain>,
}

/// How an operation ended.
#[derive(Debug)]
pub enum Done {
    /// Well.
    Well(Entry),
    /// With an error.
    Badly(ErrorEntry),
}

impl Done {
    /// The operation's context.
    pub fn context(&self) -> u64 {
        match self {
            Done::Well(entry) => entry.context,
            Done::Badly(error) => error.context,
        }
    }

    /// The entry of an operation that must have succeeded.
    #[track_caller]
    pub fn well(self) -> Entry {
        match self {
            Done::Well(entry) => entry,
            Done::Badly(error) => panic!("{error:?}"),
        }
    }

    /// The error of an operation that must have failed.
    #[track_caller]
    pub fn badly(self) -> ErrorEntry {
        match self {
            Done::Well(entry) => panic!("not failed: {entry:?}"),
            Done::Badly(error) => error,
        }
    }
}

/// How a reader waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// By polling.
    Polling,
    /// In `read_blocking`.
    Sleeping,
}

impl Node {
    /// A node with the defaults.
    pub fn open() -> Node {
        Node::with(&NodeOptions::default())
    }

    /// A node with these options.
    pub fn with(options: &NodeOptions) -> Node {
        let provider = ShmProvider::new(options.shm.clone()).expect("sound options");
        Node::over(Arc::new(provider), options).expect("an endpoint opens")
    }

    /// A node over this provider.
    pub fn over(
        provider: Arc<ShmProvider>,
        options: &NodeOptions,
    ) -> Result<Node, domain::OpenError> {
        let domain = if options.exclusive {
            // SAFETY: each test that asks for it uses the node from one thread.
            unsafe { Domain::open_exclusive(provider, options.domain.clone())? }
        } else {
            Domain::open(provider, options.domain.clone())?
        };
        Node::on(domain, options)
    }

    /// A node on this domain.
    pub fn on(domain: Arc<Domain>, options: &NodeOptions) -> Result<Node, domain::OpenError> {
        let endpoint = Endpoint::open(&domain, options.endpoint.clone())?;
        let queue = CompletionQueue::open(&domain, 0)?;
        let vector = Arc::new(
            AddressVector::open(AddressVectorAttributes::default()).expect("default attributes"),
        );
        endpoint.bind_address_vector(&vector).expect("a fresh vector is bound");
        endpoint
            .bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV)
            .expect("a fresh queue is bound");
        endpoint.enable().expect("everything is bound");
        Ok(Node { endpoint, queue, vector, domain })
    }

    /// Where peers reach the node.
    pub fn address(&self) -> Address {
        self.endpoint.address()
    }

    /// Inserts a peer.
    pub fn insert(&self, address: Address) -> u64 {
        self.vector.insert_one(address).expect("a good address")
    }

    /// Inserts the peer whose address is written in `text`.
    pub fn insert_text(&self, text: &str) -> u64 {
        let address: std::net::SocketAddr = text.parse().expect("an address");
        self.insert(Address::from(address))
    }

    /// The next completion, if one is there; drives the endpoint.
    pub fn poll(&self) -> Option<Done> {
        let mut entry = [Entry::default()];
        let outcome = self.queue.read(&mut entry);
        let [entry] = entry;
        self.done(outcome, entry)
    }

    fn done(&self, outcome: Result<usize, ReadError>, entry: Entry) -> Option<Done> {
        match outcome {
            Ok(_) => Some(Done::Well(entry)),
            Err(ReadError::Empty) => None,
            Err(ReadError::ErrorAvailable) => {
                Some(Done::Badly(self.queue.read_error().expect("an error is there")))
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// The next completion within `time`.
    pub fn within(&self, time: Duration, wait: Wait) -> Option<Done> {
        if wait == Wait::Sleeping {
            let mut entry = [Entry::default()];
            let outcome = self.queue.read_blocking(&mut entry, Some(time));
            let [entry] = entry;
            return self.done(outcome, entry);
        }
        let deadline = Instant::now() + time;
        loop {
            if let Some(done) = self.poll() {
                return Some(done);
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    /// The next completion, which has to come.
    #[track_caller]
    pub fn next(&self) -> Done {
        self.within(PATIENCE, Wait::Polling).expect("a completion")
    }

    /// Posts again and again, polling in between, while the answer is `Again`.
    /// What completes meanwhile goes to `done`.
    pub fn post(
        &self,
        mut post: impl FnMut() -> Result<(), endpoint::PostError>,
        mut done: impl FnMut(Done),
    ) -> Result<(), endpoint::PostError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match post() {
                Err(endpoint::PostError::Again) => {
                    assert!(Instant::now() < deadline, "no room in vain");
                    if let Some(completion) = self.poll() {
                        done(completion);
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

/// Whether an error says that the peer is gone, one way or the other.
pub fn says_gone(errno: Errno) -> bool {
    [Errno::CONNRESET, Errno::HOSTUNREACH, Errno::CONNREFUSED, Errno::CONNABORTED].contains(&errno)
}

//! What the cases stand on: a few endpoints that know each other, driven together.

use std::{
    cell::RefCell,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC},
    completion_queue::CompletionQueue,
    domain::{Domain, DomainOptions, Sharing},
    endpoint::{Endpoint, EndpointError, EndpointOptions, OptionName, PostError},
    error::{Errno, HasErrno},
    event_queue::EventQueue,
    flags::Flags,
    memory::{Piece, Pieces},
    operation::{ReceivePost, SendPost},
    transport::Provider,
};

pub use crate::bytes::{pattern, same};
use crate::{
    completion::{Done, read_all},
    scale::PATIENCE,
};

/// Where a case runs: over which provider, and who may touch its objects.
pub struct Bed<P: Provider> {
    /// What opens the transports.
    pub provider: Arc<P>,
    /// One thread at a time, or any.
    pub sharing: Sharing,
}

impl<P: Provider> Bed<P> {
    /// A domain of this bed.
    pub fn domain(&self, options: DomainOptions) -> Arc<Domain<P>> {
        let provider = self.provider.clone();
        match self.sharing {
            Sharing::Shared => Domain::open(provider, options).unwrap(),
            // SAFETY: a case that asks for an exclusive bed uses one thread.
            Sharing::Exclusive => unsafe { Domain::open_exclusive(provider, options).unwrap() },
        }
    }

    /// `count` endpoints that know each other by their places.
    pub fn world(&self, count: usize) -> World<P> {
        self.world_with(count, &Options::default())
    }

    /// An endpoint that knows nobody.
    pub fn stranger(&self, options: &Options) -> Node<P> {
        Node::open(self, options)
    }

    /// As [`Self::world`], not all by default.
    pub fn world_with(&self, count: usize, options: &Options) -> World<P> {
        let world = World { nodes: (0..count).map(|_| self.stranger(options)).collect() };
        world.introduce();
        world
    }
}

/// What the endpoints of a world are opened with.
#[derive(Clone, Default)]
pub struct Options {
    /// The endpoint's own.
    pub endpoint: EndpointOptions,
    /// The domain's own.
    pub domain: DomainOptions,
    /// The queues' sizes.
    pub queue_size: usize,
    /// `SELECTIVE_COMPLETION`, or nothing.
    pub bind: Flags,
    /// What is set before the endpoint is enabled.
    pub settings: Vec<(OptionName, usize)>,
    /// Where its asynchronous operations report.
    pub events: Option<Arc<EventQueue>>,
    /// The authorization keys of its address vector: with any, it has its keys from there.
    pub keys: Vec<Vec<u8>>,
}

impl Options {
    /// Of endpoints of datagrams.
    pub fn datagrams() -> Options {
        let endpoint = EndpointOptions { datagrams: true, ..EndpointOptions::default() };
        Options { endpoint, ..Options::default() }
    }

    /// An address vector with these keys.
    pub fn open_vector(&self) -> Arc<AddressVector> {
        let vector = open_vector_with(!self.keys.is_empty());
        for key in &self.keys {
            vector.insert_auth_key(key).unwrap();
        }
        vector
    }
}

/// An endpoint with what it is bound to.
pub struct Node<P: Provider> {
    /// A domain of its own.
    pub domain: Arc<Domain<P>>,
    /// The endpoint.
    pub endpoint: Arc<Endpoint<P>>,
    /// Where its sends complete.
    pub sends: Arc<CompletionQueue<P>>,
    /// Where its receives complete.
    pub receives: Arc<CompletionQueue<P>>,
    /// Whom it knows.
    pub vector: Arc<AddressVector>,
    sent: RefCell<VecDeque<Done>>,
    received: RefCell<VecDeque<Done>>,
}

impl Done {
    /// The completion, which has to be a success.
    #[track_caller]
    pub fn good(self) -> Done {
        assert_eq!(self.errno, None, "{self:?}");
        self
    }

    /// The completion, which has to be this error.
    #[track_caller]
    pub fn bad(self, errno: Errno) -> Done {
        assert_eq!(self.errno, Some(errno), "{self:?}");
        self
    }

    /// Its context, after a check that it is a success.
    #[track_caller]
    pub fn context(self) -> u64 {
        self.good().context
    }
}

impl<P: Provider> Node<P> {
    fn open(bed: &Bed<P>, options: &Options) -> Node<P> {
        let vector = options.open_vector();
        let vector_keys = vector.has_auth_keys();
        let endpoint = EndpointOptions { vector_keys, ..options.endpoint.clone() };
        Node::try_open(bed, &Options { endpoint, ..options.clone() }, vector).unwrap()
    }

    /// One that is bound to this vector.
    pub fn try_open(
        bed: &Bed<P>,
        options: &Options,
        vector: Arc<AddressVector>,
    ) -> Result<Node<P>, EndpointError> {
        let domain = bed.domain(options.domain.clone());
        let node = Node {
            endpoint: open_endpoint(&domain, &options.endpoint),
            sends: CompletionQueue::open(&domain, options.queue_size).unwrap(),
            receives: CompletionQueue::open(&domain, options.queue_size).unwrap(),
            vector,
            domain,
            sent: RefCell::default(),
            received: RefCell::default(),
        };
        let endpoint = &node.endpoint;
        endpoint.bind_address_vector(&node.vector).unwrap();
        endpoint.bind_completion_queue(&node.sends, Flags::TRANSMIT | options.bind).unwrap();
        endpoint.bind_completion_queue(&node.receives, Flags::RECV | options.bind).unwrap();
        if let Some(events) = &options.events {
            endpoint.bind_event_queue(events, 0).unwrap();
        }
        for &(name, value) in &options.settings {
            endpoint.set_option(name, value).unwrap();
        }
        endpoint.enable()?;
        Ok(node)
    }

    /// Drives the endpoint and keeps what completed.
    pub fn poll(&self) {
        read_all(&self.sends, |done| self.sent.borrow_mut().push_back(done));
        read_all(&self.receives, |done| self.received.borrow_mut().push_back(done));
    }

    /// Posts a send with all there is to say.
    pub fn post_send(&self, to: u64, send: &Send<'_>) -> Result<(), PostError> {
        self.endpoint.post_send(send.post(to))
    }

    /// Posts a receive with all there is to say.
    pub fn post_receive(&self, receive: &Receive<'_>) -> Result<(), PostError> {
        self.endpoint.post_receive(receive.post())
    }

    /// Sends owned bytes, tagged or not.
    #[track_caller]
    pub fn send(&self, bytes: Vec<u8>, to: u64, tag: Option<u64>, context: u64) {
        match tag {
            Some(tag) => self.endpoint.send_tagged(bytes, to, tag, context).unwrap(),
            None => self.endpoint.send(bytes, to, context).unwrap(),
        }
    }

    /// Receives into an owned buffer from anyone, tagged or not.
    #[track_caller]
    pub fn receive(&self, room: usize, tag: Option<u64>, context: u64) {
        let (buffer, from) = (vec![0; room], FI_ADDR_UNSPEC);
        match tag {
            Some(tag) => self.endpoint.receive_tagged(buffer, from, tag, 0, context).unwrap(),
            None => self.endpoint.receive(buffer, from, context).unwrap(),
        }
    }
}

/// Another test beside this one may have been given the address that is wanted here, for a while.
fn open_endpoint<P: Provider>(
    domain: &Arc<Domain<P>>,
    options: &EndpointOptions,
) -> Arc<Endpoint<P>> {
    let start = Instant::now();
    loop {
        match Endpoint::open(domain, options.clone()) {
            Err(error) if error.errno() == Errno::ADDRINUSE && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// An address vector with nothing in it.
pub fn open_vector() -> Arc<AddressVector> {
    open_vector_with(false)
}

/// The same, for authorization keys or without.
pub fn open_vector_with(auth_keys: bool) -> Arc<AddressVector> {
    let attributes = AddressVectorAttributes { auth_keys, ..Default::default() };
    Arc::new(AddressVector::open(attributes).unwrap())
}

/// The flag of a family of calls.
pub fn family(tagged: bool) -> Flags {
    if tagged { Flags::TAGGED } else { Flags::MSG }
}

/// A send with all there is to say: its caller keeps the pieces alive.
#[derive(Clone, Copy)]
pub struct Send<'a> {
    pub pieces: Pieces<'a>,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub context: u64,
    pub flags: Flags,
}

impl<'a> Send<'a> {
    /// What is posted.
    pub fn post(&self, to: u64) -> SendPost<'a> {
        let Send { pieces, tag, data, context, .. } = *self;
        let mut flags = self.flags | family(tag.is_some());
        flags.set(Flags::REMOTE_CQ_DATA, data.is_some());
        let (tag, data) = (tag.unwrap_or(0), data.unwrap_or(0));
        SendPost { pieces, to, tag, data, context, flags, region: None, attachment: None }
    }
}

impl Default for Send<'_> {
    fn default() -> Self {
        let pieces = Pieces::One(Piece::EMPTY);
        Send { pieces, tag: None, data: None, context: 0, flags: Flags::empty() }
    }
}

/// A receive with all there is to say.
#[derive(Clone, Copy)]
pub struct Receive<'a> {
    pub pieces: Pieces<'a>,
    pub from: u64,
    /// Tag and ignored bits.
    pub tag: Option<(u64, u64)>,
    pub context: u64,
    pub flags: Flags,
}

impl<'a> Receive<'a> {
    /// What is posted.
    pub fn post(&self) -> ReceivePost<'a> {
        let Receive { pieces, from, context, .. } = *self;
        let (tag, ignore) = self.tag.unwrap_or((0, 0));
        let flags = self.flags | family(self.tag.is_some());
        ReceivePost { pieces, from, tag, ignore, context, flags, region: None, attachment: None }
    }
}

impl Default for Receive<'_> {
    fn default() -> Self {
        let pieces = Pieces::One(Piece::EMPTY);
        Receive { pieces, from: FI_ADDR_UNSPEC, tag: None, context: 0, flags: Flags::empty() }
    }
}

/// Memory for raw posts. It must outlive the world that it is posted in, so
/// cases make it first.
pub struct Memory(RefCell<Box<[u8]>>);

impl Memory {
    /// `length` zeroes.
    pub fn zeroed(length: usize) -> Memory {
        Memory::from(vec![0; length])
    }

    /// All of it.
    pub fn piece(&self) -> Piece {
        // SAFETY: the memory outlives the world that it is posted in, and its place is fixed.
        unsafe { Piece::of(&mut self.0.borrow_mut()) }
    }

    /// All of it, as one.
    pub fn all(&self) -> Pieces<'static> {
        Pieces::One(self.piece())
    }

    /// It cut into pieces of these lengths.
    pub fn cut(&self, lengths: &[usize]) -> Vec<Piece> {
        let mut at = 0;
        let mut next = |&length: &usize| {
            at += length;
            self.piece().part(at - length, length)
        };
        lengths.iter().map(&mut next).collect()
    }

    /// What is in it now.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.borrow().to_vec()
    }

    /// Where it starts, as completions tell it.
    pub fn start(&self) -> u64 {
        self.piece().as_ptr() as u64
    }

    /// Overwrites all of it.
    pub fn scribble(&self) {
        self.fill(0xee);
    }

    /// Overwrites all of it with this.
    pub fn fill(&self, byte: u8) {
        self.0.borrow_mut().fill(byte);
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Memory {
        Memory(RefCell::new(bytes.into()))
    }
}

/// Endpoints that know each other: node `i` is at `i` in every address vector.
pub struct World<P: Provider> {
    pub nodes: Vec<Node<P>>,
}

impl<P: Provider> World<P> {
    /// Tells strangers of each other, and of themselves.
    pub fn introduce(&self) {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.endpoint.address()).collect();
        for node in &self.nodes {
            assert_eq!(node.vector.insert(&addresses).count(), addresses.len());
        }
    }

    /// Drives every endpoint until `done`.
    #[track_caller]
    pub fn drive(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        loop {
            self.poll(1);
            if done() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        }
    }

    /// Drives every endpoint a few rounds.
    pub fn poll(&self, rounds: usize) {
        for _ in 0..rounds {
            self.nodes.iter().for_each(Node::poll);
        }
    }

    /// The next completion of a send of `node`.
    #[track_caller]
    pub fn sent(&self, node: usize) -> Done {
        self.drive("a send completes", || !self.nodes[node].sent.borrow().is_empty());
        self.nodes[node].sent.borrow_mut().pop_front().unwrap()
    }

    /// The next completion of a receive of `node`.
    #[track_caller]
    pub fn received(&self, node: usize) -> Done {
        self.drive("a receive completes", || !self.nodes[node].received.borrow().is_empty());
        self.nodes[node].received.borrow_mut().pop_front().unwrap()
    }

    /// Nothing more has completed anywhere, and nothing comes in some rounds.
    #[track_caller]
    pub fn nothing_more(&self) {
        self.poll(50);
        for (index, node) in self.nodes.iter().enumerate() {
            let (sent, received) = (node.sent.borrow(), node.received.borrow());
            assert!(sent.is_empty(), "node {index} also sent {sent:?}");
            assert!(received.is_empty(), "node {index} also received {received:?}");
        }
    }

    /// How many completions wait at `node`: of sends, of receives.
    pub fn waiting(&self, node: usize) -> (usize, usize) {
        let node = &self.nodes[node];
        (node.sent.borrow().len(), node.received.borrow().len())
    }

    /// Posts, and drives everybody while there are no resources.
    #[track_caller]
    pub fn post(&self, mut post: impl FnMut() -> Result<(), PostError>) {
        let start = Instant::now();
        loop {
            match post() {
                Ok(()) => return,
                Err(PostError::Again) => self.poll(1),
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a post");
        }
    }

    /// Connects every pair, and shows that messages pass.
    #[track_caller]
    pub fn warm_up(&self) {
        let count = self.nodes.len();
        for (from, node) in self.nodes.iter().enumerate() {
            for to in (0..count).filter(|&to| to != from) {
                self.nodes[to].receive(8, Some(u64::MAX), 0);
                self.post(|| node.endpoint.inject_tagged(&[1], to as u64, u64::MAX));
            }
        }
        for node in 0..count {
            for _ in 1..count {
                self.received(node).good();
            }
        }
    }
}

impl<P: Provider> World<P> {
    /// The next completion of a send of `node`, driving nobody else, so that
    /// nobody else's completions are read.
    #[track_caller]
    pub fn drive_sends_of(&self, node: usize) -> Done {
        let start = Instant::now();
        while self.nodes[node].sent.borrow().is_empty() {
            self.nodes[node].poll();
            for other in &self.nodes {
                // What is found is left there.
                let _ = other.sends.read(&mut []);
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a send completes");
        }
        self.nodes[node].sent.borrow_mut().pop_front().unwrap()
    }
}

impl<P: Provider> World<P> {
    /// A completion of a receive of `node` that is there, driving nobody.
    #[track_caller]
    pub fn received_already(&self, node: usize) -> Done {
        self.nodes[node].received.borrow_mut().pop_front().expect("a completion is there")
    }
}

//! What the cases on contexts stand on: scalable endpoints with all that belongs to them, and
//! endpoints that share a receive context.

use std::{cell::RefCell, collections::VecDeque, sync::Arc, time::Instant};

use kestrel_core::{
    address::Address,
    address_vector::{AddressVector, AddressVectorAttributes, fi_rx_addr},
    completion_queue::CompletionQueue,
    domain::{Domain, DomainOptions},
    endpoint::{Endpoint, EndpointOptions},
    flags::Flags,
    scalable_endpoint::{ContextCounts, ScalableEndpoint},
    shared_context::receive::SharedReceive,
    transport::Provider,
};

use crate::{
    bed::{Bed, Options},
    completion::{Done, read_all},
    link::Driven,
    scale::PATIENCE,
};

/// `rx_ctx_bits` of every vector here.
pub const BITS: u32 = 4;

/// As many contexts of each direction.
pub fn counts(transmit: usize, receive: usize) -> ContextCounts {
    ContextCounts { transmit, receive }
}

/// Endpoints that name receive contexts.
pub fn naming() -> EndpointOptions {
    let options = EndpointOptions::default();
    EndpointOptions { capabilities: options.capabilities | Flags::NAMED_RX_CTX, ..options }
}

/// A context, with its queue.
pub struct Context<P: Provider> {
    pub endpoint: Arc<Endpoint<P>>,
    pub queue: Arc<CompletionQueue<P>>,
    done: RefCell<VecDeque<Done>>,
}

impl<P: Provider> Context<P> {
    /// `endpoint` with a queue of its own, enabled.
    pub fn enabled(endpoint: Arc<Endpoint<P>>, direction: Flags) -> Context<P> {
        let queue = CompletionQueue::open(endpoint.domain(), 0).unwrap();
        endpoint.bind_completion_queue(&queue, direction).unwrap();
        endpoint.enable().unwrap();
        Context { endpoint, queue, done: RefCell::default() }
    }

    /// Drives the context and keeps what completed.
    pub fn poll(&self) {
        read_all(&self.queue, |done| self.done.borrow_mut().push_back(done));
    }

    /// A completion, if there is one.
    pub fn taken(&self) -> Option<Done> {
        self.poll();
        self.done.borrow_mut().pop_front()
    }
}

impl<P: Provider> Driven for Context<P> {
    fn drive(&self) {
        self.poll();
    }
}

/// A scalable endpoint with every context enabled.
pub struct Portal<P: Provider> {
    pub endpoint: Arc<ScalableEndpoint<P>>,
    pub vector: Arc<AddressVector>,
    pub transmit: Vec<Context<P>>,
    pub receive: Vec<Context<P>>,
}

impl<P: Provider> Portal<P> {
    /// One that knows nobody.
    pub fn open(bed: &Bed<P>, counts: ContextCounts) -> Portal<P> {
        Portal::on(&bed.domain(DomainOptions::default()), counts)
    }

    /// The same on this domain.
    pub fn on(domain: &Arc<Domain<P>>, counts: ContextCounts) -> Portal<P> {
        Portal::with(domain, counts, &naming())
    }

    /// The same with these options.
    pub fn with(
        domain: &Arc<Domain<P>>,
        counts: ContextCounts,
        options: &EndpointOptions,
    ) -> Portal<P> {
        Portal::over(ScalableEndpoint::open(domain, options.clone(), counts).unwrap(), options)
    }

    /// The same of an endpoint that has no vector and no open contexts.
    pub fn over(endpoint: Arc<ScalableEndpoint<P>>, options: &EndpointOptions) -> Portal<P> {
        let counts = endpoint.counts();
        let attributes = AddressVectorAttributes { rx_ctx_bits: BITS, ..Default::default() };
        let vector = Arc::new(AddressVector::open(attributes).unwrap());
        endpoint.bind_address_vector(&vector).unwrap();
        endpoint.enable().unwrap();
        let transmit = (0..counts.transmit).map(|index| {
            let context = endpoint.transmit_context(index, options.clone()).unwrap();
            Context::enabled(context, Flags::TRANSMIT)
        });
        let transmit = transmit.collect();
        let receive = (0..counts.receive).map(|index| {
            let context = endpoint.receive_context(index, options.clone()).unwrap();
            Context::enabled(context, Flags::RECV)
        });
        let receive = receive.collect();
        Portal { endpoint, vector, transmit, receive }
    }

    /// Inserts `addresses`; they are numbered from 0 on.
    pub fn knows(&self, addresses: &[Address]) {
        assert_eq!(self.vector.insert(addresses).count(), addresses.len());
    }

    /// Drives every context.
    pub fn poll(&self) {
        self.transmit.iter().chain(&self.receive).for_each(Context::poll);
    }
}

/// Receive context `index` of the endpoint that was inserted as `fi_addr`.
pub fn named(fi_addr: u64, index: u64) -> u64 {
    fi_rx_addr(fi_addr, index, BITS)
}

/// Two scalable endpoints that know themselves as 0 and each other as 1.
pub fn two<P: Provider>(
    bed: &Bed<P>,
    ours: ContextCounts,
    theirs: ContextCounts,
) -> [Portal<P>; 2] {
    let portals = [Portal::open(bed, ours), Portal::open(bed, theirs)];
    let [ours, theirs] = portals.each_ref().map(|portal| portal.endpoint.address());
    portals[0].knows(&[ours, theirs]);
    portals[1].knows(&[theirs, ours]);
    portals
}

/// The next completion of `context`, while `all` are driven.
#[track_caller]
pub fn next<P: Provider>(context: &Context<P>, all: &[&Portal<P>]) -> Done {
    let start = Instant::now();
    loop {
        all.iter().for_each(|portal| portal.poll());
        if let Some(done) = context.taken() {
            return done;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: a completion");
    }
}

/// Nothing has completed anywhere, and nothing comes in some rounds.
#[track_caller]
pub fn nothing_more<P: Provider>(all: &[&Portal<P>]) {
    for _ in 0..50 {
        for context in all.iter().flat_map(|portal| portal.transmit.iter().chain(&portal.receive)) {
            let done = context.taken();
            assert!(done.is_none(), "also {done:?}");
        }
    }
}

/// Endpoints that take what they receive from one shared context.
pub struct Sharers<P: Provider> {
    pub shared: Arc<SharedReceive<P>>,
    pub vector: Arc<AddressVector>,
    pub members: Vec<Context<P>>,
    pub domain: Arc<Domain<P>>,
}

/// Options of an endpoint that shares its receive context.
pub fn sharing() -> EndpointOptions {
    EndpointOptions { shares_receive: true, ..EndpointOptions::default() }
}

impl<P: Provider> Sharers<P> {
    /// `count` endpoints that know nobody, with these options otherwise.
    pub fn open(bed: &Bed<P>, count: usize, options: &Options) -> Sharers<P> {
        let vector = options.open_vector();
        let domain = bed.domain(DomainOptions::default());
        let options = EndpointOptions {
            shares_receive: true,
            vector_keys: vector.has_auth_keys(),
            ..options.endpoint.clone()
        };
        let shared = SharedReceive::open(&domain, options.clone()).unwrap();
        let mut sharers = Sharers { shared, vector, members: Vec::new(), domain };
        (0..count).for_each(|_| sharers.add(&options));
        sharers
    }

    /// One more endpoint.
    pub fn add(&mut self, options: &EndpointOptions) {
        let endpoint = Endpoint::open(&self.domain, options.clone()).unwrap();
        endpoint.bind_address_vector(&self.vector).unwrap();
        endpoint.bind_shared_receive(&self.shared).unwrap();
        self.members.push(Context::enabled(endpoint, Flags::TRANSMIT | Flags::RECV));
    }

    /// Where each of them is.
    pub fn addresses(&self) -> Vec<Address> {
        self.members.iter().map(|member| member.endpoint.address()).collect()
    }

    /// The next completion of any of them, and whose it is, while `others` runs.
    #[track_caller]
    pub fn next(&self, others: impl Fn()) -> (usize, Done) {
        let start = Instant::now();
        loop {
            others();
            for (index, member) in self.members.iter().enumerate() {
                if let Some(done) = member.taken() {
                    return (index, done);
                }
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a completion");
        }
    }

    /// Drives all of them.
    pub fn poll(&self) {
        self.members.iter().for_each(Context::poll);
    }
}

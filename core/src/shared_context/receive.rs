//! Shared receive contexts: receives for the messages of several endpoints.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    pool::{Envelope, Matched, Parked, SharedPool, SharedSeat},
    sources::Source,
    within,
};
use crate::{
    address_vector::{AddressVector, FI_ADDR_UNSPEC, HeldKeys, auth_key_number},
    bind_count::{BindCount, BindError},
    domain::{Domain, OpenError},
    endpoint::{
        CLAIM_FLAGS, DefaultFlags, EndpointError, EndpointOptions, OptionName, PostError,
        RECEIVE_FLAGS, check_claim_flags,
    },
    engine::unit::Unit,
    flags::{FAMILY, Flags},
    memory::Pieces,
    operation::{IOV_LIMIT, ReceiveOperation, ReceivePost},
    primitive::{AtomicBool, AtomicU64, Ordering},
    protocol::{claim::retrieves, receive::canceled},
    transport::Provider,
    triggered::Deferrals,
};

/// The capabilities by which receives may be for one peer.
const DIRECTING: Flags = Flags::DIRECTED_RECV.union(Flags::TAGGED_DIRECTED_RECV);

/// A receive context that endpoints share.
pub struct SharedReceive<P: Provider> {
    domain: Arc<Domain<P>>,
    options: EndpointOptions,
    defaults: DefaultFlags,
    pub(super) pool: Arc<SharedPool>,
    /// Whether it is for connected endpoints, as far as is known.
    connected: AtomicBool,
    /// Whether a connectionless endpoint was bound to it.
    connectionless: AtomicBool,
    /// Of [`DIRECTING`], as far as is known: which receives may be for one peer.
    directed: AtomicU64,
    members: Mutex<Members<P>>,
    binds: BindCount,
    /// Its receives that wait for a counter.
    pub(super) deferrals: Arc<Deferrals>,
}

/// The endpoints that are enabled.
struct Members<P: Provider> {
    next: u32,
    seats: HashMap<u32, Seat<P>>,
    /// "All connectionless endpoints associated with a shared receive context must also share
    /// the same address vector": that of the first of those that are open.
    vector: Option<Arc<AddressVector>>,
    /// Each that is about to be enabled with it holds this as well.
    coming: Arc<()>,
}

struct Seat<P: Provider> {
    unit: Arc<Unit<P>>,
    is_connected: bool,
}

impl<P: Provider> Members<P> {
    /// Whether any vector will do: none of the connectionless endpoints is open and enabled.
    fn may_choose(&self) -> bool {
        !self.has_coming() && self.seats.values().all(|seat| seat.is_connected)
    }

    fn has_coming(&self) -> bool {
        Arc::strong_count(&self.coming) > 1
    }

    /// Takes `vector` for that of the connectionless endpoints, if none of them is left. Keys that
    /// receives may be directed at are numbers of one vector, so that with keys there is no other.
    fn agree_on(&mut self, vector: &Arc<AddressVector>) -> Result<(), EndpointError> {
        if let Some(ours) = &self.vector
            && !Arc::ptr_eq(ours, vector)
            && (!self.may_choose() || ours.has_auth_keys() || vector.has_auth_keys())
        {
            return Err(EndpointError::OtherAddressVector);
        }
        self.vector = Some(vector.clone());
        Ok(())
    }
}

impl<P: Provider> fmt::Debug for SharedReceive<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceive")
            .field("connected", &self.connected.load(Ordering::Relaxed))
            .field("connectionless", &self.connectionless.load(Ordering::Relaxed))
            .field("bound", &self.binds.count())
            .finish_non_exhaustive()
    }
}

impl<P: Provider> SharedReceive<P> {
    /// Opens one. Of `options` it looks at what concerns receiving.
    pub fn open(domain: &Arc<Domain<P>>, options: EndpointOptions) -> Result<Arc<Self>, OpenError> {
        domain.uses().bind().map_err(|_| OpenError::Closed)?;
        let pool = SharedPool::default();
        pool.lock().multi_receive_min = options.multi_receive_min;
        Ok(Arc::new(SharedReceive {
            domain: domain.clone(),
            defaults: DefaultFlags::of(&options),
            connected: AtomicBool::new(options.connected),
            connectionless: AtomicBool::new(false),
            directed: AtomicU64::new(options.capabilities.intersection(DIRECTING).bits()),
            options,
            pool: Arc::new(pool),
            members: Mutex::new(Members {
                next: 0,
                seats: HashMap::new(),
                vector: None,
                coming: Arc::default(),
            }),
            binds: BindCount::default(),
            deferrals: Arc::default(),
        }))
    }

    fn members(&self) -> MutexGuard<'_, Members<P>> {
        // Nothing in here panics half-way.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The domain that it was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    /// The endpoints bound to it.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn binds(&self) -> &BindCount {
        &self.binds
    }

    /// The flags of receive calls that name none.
    pub fn default_flags(&self) -> &DefaultFlags {
        &self.defaults
    }

    /// Whether what is matched completes in that order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.options.receives_in_order
    }

    /// Whether what is received is written in order.
    pub(crate) fn is_data_in_order(&self) -> bool {
        self.options.data_in_order
    }

    /// Counts an endpoint of `domain` in, which was opened to use a shared context and uses "a subset
    /// of the receive context's attributes".
    pub(crate) fn join(
        &self,
        domain: &Arc<Domain<P>>,
        endpoint: &EndpointOptions,
    ) -> Result<(), EndpointError> {
        let object = "shared receive context";
        // Nobody could say to which endpoint a buffered message of a shared context came.
        if !endpoint.shares_receive || endpoint.buffers() {
            return Err(EndpointError::NotForThisType { object });
        }
        if !Arc::ptr_eq(domain, &self.domain) {
            return Err(EndpointError::OtherDomain { object });
        }
        within(endpoint.receive_capabilities, endpoint, &self.options)?;
        self.connected.fetch_or(endpoint.connected, Ordering::Relaxed);
        self.connectionless.fetch_or(!endpoint.connected, Ordering::Relaxed);
        let directing = endpoint.capabilities.intersection(DIRECTING);
        self.directed.fetch_or(directing.bits(), Ordering::Relaxed);
        self.binds.bind().map_err(|_| EndpointError::Closed { object })
    }

    /// An endpoint is bound, and to this vector, and not enabled yet: receives may be for who is there.
    /// Which keys it has is known when it is enabled.
    pub(crate) fn expect(&self, vector: &Arc<AddressVector>) {
        let mut members = self.members();
        let keyed = |vector: &Arc<AddressVector>| vector.has_auth_keys();
        if members.may_choose() && !keyed(vector) && !members.vector.as_ref().is_some_and(keyed) {
            members.vector = Some(vector.clone());
        }
    }

    /// What the engine of a further endpoint needs; `vector` is a connectionless one's, `keys` are
    /// those that it has from there.
    pub(crate) fn seat(
        &self,
        vector: Option<&Arc<AddressVector>>,
        keys: Option<&HeldKeys>,
    ) -> Result<SharedSeat, EndpointError> {
        let mut members = self.members();
        if let Some(vector) = vector {
            members.agree_on(vector)?;
        }
        if let Some(keys) = keys {
            self.pool.lock().learn_keys(&keys.ring)?;
        }
        let member = members.next;
        members.next += 1;
        let coming = vector.map(|_| members.coming.clone());
        // Also if nobody has said so yet: who does later finds where its messages came from.
        let directed = self.capabilities().intersects(DIRECTING);
        let has_sources = vector.is_some() && directed;
        let pool = self.pool.clone();
        Ok(SharedSeat { pool, member, has_sources, slices: HashMap::new(), coming })
    }

    /// The endpoint of `seat` is enabled.
    pub(crate) fn add_unit(&self, seat: &mut SharedSeat, unit: &Arc<Unit<P>>, is_connected: bool) {
        let mut members = self.members();
        members.seats.insert(seat.member, Seat { unit: unit.clone(), is_connected });
        seat.coming = None;
    }

    /// Takes an endpoint off that is about to be closed. What was arriving there for a receive
    /// of this context completes as canceled; what waits there for one is dropped.
    pub(crate) fn remove_unit(&self, unit: &Arc<Unit<P>>) {
        let mut members = self.members();
        members.seats.retain(|_, seat| !Arc::ptr_eq(&seat.unit, unit));
        // Receives may be for who is in the vector of one that is still bound, and going to be enabled.
        let is_last = self.binds.count() <= 1;
        if members.seats.is_empty() && is_last {
            members.vector.take_if(|vector| !vector.has_auth_keys());
        }
        drop(members);
        // If it is closed there is nothing to let go of.
        let _ = unit.with(|engine| engine.leave_shared());
    }

    /// What it was opened for.
    pub fn capabilities(&self) -> Flags {
        self.options.capabilities
    }

    /// Whether receives of `family` may be for one peer: their source "applies only to connectionless endpoints
    /// with the FI_DIRECTED_RECV capability enabled, otherwise this field is ignored" (fi_tagged(3)).
    /// Where there are endpoints of both kinds, what is for one peer comes to the connectionless ones.
    fn is_directed(&self, family: Flags) -> bool {
        let sources =
            self.connectionless.load(Ordering::Relaxed) || !self.connected.load(Ordering::Relaxed);
        let directing = Flags::from_bits_retain(self.directed.load(Ordering::Relaxed));
        directing.direct(family) && sources
    }

    /// Has receives be for one peer by these capabilities alone, until an endpoint is bound that has more:
    /// for who has not said so when the context was opened.
    pub fn direct_by(&self, capabilities: Flags) {
        let directing = capabilities.intersection(DIRECTING);
        self.directed.fetch_and(directing.bits(), Ordering::Relaxed);
    }

    /// Posts a receive of either family, for a message of any endpoint that is bound.
    ///
    /// As [`crate::endpoint::Endpoint::post_receive`]; the completion is that of the endpoint
    /// which the message comes to. Cost: a lock that all endpoints take.
    /// # Reference
    /// fi_endpoint(3): "Users post receive buffers directly to a shared receive context, with
    /// the buffers usable by any endpoint bound to the shared receive context."
    pub fn post_receive(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        let envelope = self.envelope(&post)?;
        if post.flags.intersects(CLAIM_FLAGS) {
            return self.post_special(envelope, post);
        }
        let multi = post.flags.contains(Flags::MULTI_RECV);
        let operation = ReceiveOperation::from_post(post);
        match multi {
            true => self.post_buffer(envelope, operation),
            false => self.post_one(envelope, operation, |parked, operation| {
                let given = self.hand_over(parked, Matched { operation, buffer: None });
                given.map(drop).map_err(|matched| matched.operation)
            }),
        }
        Ok(())
    }

    pub(super) fn envelope(&self, post: &ReceivePost<'_>) -> Result<Envelope, PostError> {
        if self.domain.provider().forked() {
            return Err(PostError::ForkedChild);
        }
        let family = post.flags & FAMILY;
        let keyed = self.is_directed(family) && self.options.vector_keys;
        let of_keys = if keyed { Flags::AUTH_KEY } else { Flags::empty() };
        if !(RECEIVE_FLAGS | FAMILY | of_keys).contains(post.flags) || family.is_empty() {
            return Err(PostError::BadFlags { flags: post.flags });
        }
        check_claim_flags(post.flags)?;
        if !self.options.capabilities.contains(family) {
            return Err(PostError::NotCapable { missing: family });
        }
        if let Pieces::Many(pieces) = &post.pieces
            && pieces.len() > IOV_LIMIT
            && !post.flags.contains(Flags::DISCARD)
        {
            return Err(PostError::TooManyPieces { count: pieces.len(), limit: IOV_LIMIT });
        }
        let (tagged, source) = (family.contains(Flags::TAGGED), self.source_at(post)?);
        Ok(Envelope { tagged, source, tag: post.tag, ignore: post.ignore })
    }

    /// Who may match: anybody, an address with the key that it was inserted with, or, with
    /// FI_AUTH_KEY, all who have proved a key.
    fn source_at(&self, post: &ReceivePost<'_>) -> Result<Source, PostError> {
        let address = post.from;
        // What a claim retrieves is named by its context; its sender may be in no vector any more.
        let is_directed = self.is_directed(post.flags) && !retrieves(post.flags);
        if address == FI_ADDR_UNSPEC || !is_directed {
            return Ok(Source::Anybody);
        }
        let unknown = PostError::UnknownAddress { address };
        if post.flags.contains(Flags::AUTH_KEY) {
            let key = auth_key_number(address).ok_or(unknown)?;
            let known = self.pool.lock().knows_key(key);
            return Some(Source::Key(key)).filter(|_| known).ok_or(unknown);
        }
        let vector = self.members().vector.clone().ok_or(unknown)?;
        let known = vector.get(address).ok_or(unknown)?;
        let key = vector.key_of(address).ok_or(unknown)?;
        match vector.has_auth_keys() && !self.pool.lock().knows_key(key) {
            true => Err(PostError::NotByOurKeys { address }),
            false => Ok(Source::Peer(known, key)),
        }
    }

    /// Posts a receive of one message. Where one waits for it, `hand` gives it to that one's
    /// endpoint, or back if the message is gone.
    pub(super) fn post_one(
        &self,
        envelope: Envelope,
        mut operation: ReceiveOperation,
        hand: impl Fn(Parked, ReceiveOperation) -> Result<(), ReceiveOperation>,
    ) {
        loop {
            let mut pool = self.pool.lock();
            let Some(parked) = pool.take_parked(envelope) else {
                return pool.post(envelope, operation);
            };
            drop(pool);
            match hand(parked, operation) {
                Ok(()) => return,
                Err(back) => operation = back,
            }
        }
    }

    /// First it takes what waits for it.
    fn post_buffer(&self, envelope: Envelope, operation: ReceiveOperation) {
        let buffer = self.pool.lock().insert_buffer(operation);
        let mut last = None;
        let released = loop {
            let mut pool = self.pool.lock();
            let parked = if pool.is_full(buffer) { None } else { pool.take_parked(envelope) };
            let Some(parked) = parked else {
                pool.post_buffer(envelope, buffer);
                break pool.leave(buffer);
            };
            let matched = pool.cut(buffer, parked.total);
            drop(pool);
            match self.hand_over(parked, matched) {
                Ok(unit) => last = Some(unit),
                Err(Matched { operation, .. }) => {
                    self.pool.lock().uncut(buffer, operation.pieces.view().total());
                }
            }
        };
        if let (Some(released), Some(unit)) = (released, last) {
            // An endpoint that is closed meanwhile has nobody to tell.
            let _ = unit.with(|engine| engine.release_buffer(released));
        }
    }

    /// Gives a receive to the endpoint that a message waits at, or takes it back: the message
    /// is gone.
    fn hand_over(&self, parked: Parked, matched: Matched) -> Result<Arc<Unit<P>>, Matched> {
        let Some(unit) = self.member(parked.member) else {
            return Err(matched);
        };
        let mut matched = Some(matched);
        // If it is closed, nobody takes the receive.
        let _ = unit.with(|engine| engine.receive_shared(&mut matched, parked.message));
        matched.map_or(Ok(unit), Err)
    }

    /// Cancels the first receive posted with `context` that is not matched. It completes with
    /// FI_ECANCELED at one of the endpoints; without any, nobody hears of it.
    /// Reference: fi_endpoint(3), `fi_cancel`.
    pub fn cancel(&self, context: u64) -> Result<(), PostError> {
        let canceled_now = self.pool.lock().cancel(context);
        match canceled_now {
            Some(Some(operation)) => self.tell_canceled(operation),
            Some(None) => {}
            None if self.deferrals.cancel(context) => {}
            None => return Err(PostError::NothingToCancel { context }),
        }
        Ok(())
    }

    pub(super) fn tell_canceled(&self, operation: ReceiveOperation) {
        if let Some(unit) = self.first_member() {
            // An endpoint that is closed meanwhile has nobody to tell.
            let _ = unit.with(|engine| engine.fail_receive(operation, None, 0, &canceled()));
        }
    }

    /// The endpoint of that name, while it is open.
    pub(super) fn member(&self, member: u32) -> Option<Arc<Unit<P>>> {
        self.members().seats.get(&member).map(|seat| seat.unit.clone())
    }

    /// All endpoints that are open.
    pub(super) fn all_members(&self) -> Vec<Arc<Unit<P>>> {
        self.members().seats.values().map(|seat| seat.unit.clone()).collect()
    }

    /// The one that was enabled first, of those that are open.
    pub(super) fn first_member(&self) -> Option<Arc<Unit<P>>> {
        let members = self.members();
        let first = members.seats.iter().min_by_key(|(member, _)| **member);
        first.map(|(_, seat)| seat.unit.clone())
    }

    /// The value of an option. Units: bytes.
    ///
    /// # Errors
    /// It is an option of endpoints that buffer, which share no receives.
    pub fn option(&self, name: OptionName) -> Result<usize, EndpointError> {
        match name {
            OptionName::MinMultiRecv => Ok(self.pool.lock().multi_receive_min),
            OptionName::CmDataSize => Ok(0),
            OptionName::BufferedMin
            | OptionName::BufferedLimit
            | OptionName::SharedMemoryPermitted => {
                Err(EndpointError::UnknownOption { option: name as i32 })
            }
        }
    }

    /// Sets an option. Units: bytes.
    pub fn set_option(&self, name: OptionName, value: usize) -> Result<(), EndpointError> {
        match name {
            OptionName::MinMultiRecv => {
                self.pool.lock().multi_receive_min = value;
                Ok(())
            }
            OptionName::CmDataSize => {
                let (option, bounds) = ("FI_OPT_CM_DATA_SIZE", "read-only");
                Err(EndpointError::BadOptionValue { option, value, bounds })
            }
            OptionName::BufferedMin
            | OptionName::BufferedLimit
            | OptionName::SharedMemoryPermitted => {
                Err(EndpointError::UnknownOption { option: name as i32 })
            }
        }
    }

    /// Closes it; what is posted, or waits for that, is dropped. Refused while endpoints are bound.
    pub fn close(&self) -> Result<(), BindError> {
        self.binds.close()?;
        self.deferrals.close();
        *self.pool.lock() = Default::default();
        self.domain.uses().unbind()
    }
}

impl<P: Provider> Drop for SharedReceive<P> {
    fn drop(&mut self) {
        // It may be closed already.
        let _ = self.close();
    }
}

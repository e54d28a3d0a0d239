//! Passive endpoints: what listens for connection requests.
//! Reference: fi_endpoint(3), `fi_passive_ep`; fi_cm(3).

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    ConnectionError,
    manager::{Listener, Manager},
    request::{self, ConnectionRequest},
    truncated,
};
use crate::{
    address::Address,
    address_vector::{AddressVector, AddressVectorAttributes},
    config::Config,
    domain::{OpenError, Sharing},
    engine::{BURST_MAX, Engine, Setup, permitted::Permitted, report::Side, unit::Unit},
    event_queue::{EventQueue, reporter::Reporter},
    flags::Flags,
    info::{Info, dscp_on_the_wire},
    memory_region::MemoryRegionRegistry,
    operation::{IOV_LIMIT, MESSAGE_MAX},
    primitive::yield_now,
    transport::{Opening, Provider, Purpose, Transport},
};

/// How long closing waits for a rejection to leave.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// An endpoint that listens. It has an address from the moment when it is opened.
pub struct PassiveEndpoint<P: Provider> {
    provider: Arc<P>,
    /// What endpoints for its requests are opened with.
    info: Info,
    state: Mutex<State<P>>,
}

struct State<P: Provider> {
    address: Address,
    /// Until it listens, or gives its place up.
    transport: Option<P::Transport>,
    /// From when on it listens.
    unit: Option<Arc<Unit<P>>>,
    reporter: Option<Reporter>,
    backlog: usize,
}

fn traffic_class(info: &Info) -> u32 {
    match info.transmit.traffic_class {
        // No domain is open here: it is the one that `info` describes.
        0 => info.domain.traffic_class,
        class => class,
    }
}

/// What the transport at `address` is opened with. Until it listens whoever asks there is put off.
fn opening(info: &Info, address: Option<Address>) -> Opening<'_> {
    let dscp = dscp_on_the_wire(traffic_class(info));
    let auth_key = &info.endpoint.auth_key;
    let purpose = Purpose::Listener;
    Opening { address, auth_key, keys_follow: true, purpose, dscp, ..Opening::default() }
}

impl<P: Provider> PassiveEndpoint<P> {
    /// Opens one at `info.source`; without a port there the provider chooses one. Its backlog is the
    /// configuration's default until [`Self::set_backlog`].
    ///
    /// # Errors
    /// The address is in use or is not ours, no descriptors are left, …
    pub fn open(provider: Arc<P>, info: Info) -> Result<Arc<Self>, OpenError> {
        if provider.forked() {
            return Err(OpenError::ForkedChild);
        }
        let transport = provider.open_as(opening(&info, info.source))?;
        let state = State {
            address: transport.address(),
            transport: Some(transport),
            unit: None,
            reporter: None,
            backlog: Config::default().backlog as usize,
        };
        Ok(Arc::new(PassiveEndpoint { provider, info, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the queue that requests are reported to, as events of the object `fid`.
    ///
    /// # Errors
    /// [`ConnectionError`]: one is bound already, or the queue is closed; the endpoint is closed, or
    /// an active one took it over.
    /// # Reference
    /// fi_endpoint(3), `fi_pep_bind`
    pub fn bind_event_queue(
        &self,
        queue: &Arc<EventQueue>,
        fid: u64,
    ) -> Result<(), ConnectionError> {
        let mut state = self.lock();
        if state.reporter.is_some() {
            return Err(ConnectionError::EventQueueBound);
        }
        if state.unit.is_none() && state.transport.is_none() {
            return Err(ConnectionError::Gone);
        }
        queue.binds().bind()?;
        state.reporter = Some(Reporter { queue: queue.clone(), fid, context: 0 });
        Ok(())
    }

    /// Where it is, or was. Reference: fi_cm(3), `fi_getname`.
    pub fn address(&self) -> Address {
        self.lock().address
    }

    /// Gives it another address: "conceptually similar to the socket bind operation". "If no service
    /// address is specified and a service address has not yet been assigned" the provider chooses
    /// one: here one always was, so a host or a port that `address` leaves open stays as it is.
    ///
    /// # Errors
    /// [`ConnectionError`]: it listens, or is closed or taken over; the address cannot be had, and it
    /// is where it was then.
    /// # Reference
    /// fi_cm(3), `fi_setname`
    pub fn set_address(&self, address: Address) -> Result<(), ConnectionError> {
        let mut state = self.lock();
        if state.unit.is_some() {
            return Err(ConnectionError::Listening { what: "changing the address" });
        }
        if state.transport.is_none() {
            return Err(ConnectionError::Gone);
        }
        if self.provider.forked() {
            return Err(OpenError::ForkedChild.into());
        }
        let address = address.or(state.address);
        if address != state.address {
            let transport = self.provider.open_as(opening(&self.info, Some(address)));
            let transport = transport.map_err(OpenError::from)?;
            state.address = transport.address();
            state.transport = Some(transport);
        }
        Ok(())
    }

    /// How many requests may wait.
    pub fn backlog(&self) -> usize {
        self.lock().backlog
    }

    /// Says how many requests may wait.
    ///
    /// # Errors
    /// [`ConnectionError::BadBacklog`] of less than 1.
    /// # Reference
    /// fi_endpoint(3), FI_BACKLOG
    pub fn set_backlog(&self, backlog: i32) -> Result<(), ConnectionError> {
        let bad = ConnectionError::BadBacklog { backlog };
        let count = usize::try_from(backlog).ok().filter(|&count| count > 0).ok_or(bad)?;
        let mut state = self.lock();
        state.backlog = count;
        if let Some(unit) = &state.unit {
            unit.with(|engine| {
                let listener = engine.manager.as_deref_mut().and_then(Manager::listener);
                if let Some(listener) = listener {
                    listener.backlog = count;
                }
            })?;
        }
        Ok(())
    }

    /// Listens: from now on requests are events.
    ///
    /// # Errors
    /// [`ConnectionError`]: no event queue is bound; it listens already, or is closed or taken over.
    /// # Reference
    /// fi_cm(3), `fi_listen`
    pub fn listen(&self) -> Result<(), ConnectionError> {
        let mut state = self.lock();
        if state.unit.is_some() {
            return Err(ConnectionError::Listening { what: "listening" });
        }
        if state.transport.is_none() {
            return Err(ConnectionError::Gone);
        }
        let reporter = state.reporter.clone().ok_or(ConnectionError::NoEventQueue)?;
        let mut transport = state.transport.take().ok_or(ConnectionError::Gone)?;
        transport.take_keys(None);
        let queue = reporter.queue.clone();
        let mut engine = Engine::new(transport, self.setup());
        let listener = Listener::new(reporter, Box::new(self.info.clone()), state.backlog);
        engine.manager = Some(Box::new(Manager::Listener(listener)));
        let unit = Arc::new(Unit::new(self.provider.clone(), Sharing::Shared, engine));
        queue.add_listener(unit.clone());
        state.unit = Some(unit);
        Ok(())
    }

    /// No message passes here.
    fn setup(&self) -> Setup {
        let mode = self.info.domain.memory_region_mode;
        Setup {
            keys: None,
            transmit: Side::default(),
            receive: Side::default(),
            buffering: None,
            address_vector: empty_vector(),
            one_sided: Default::default(),
            permitted: Permitted::default(),
            hears: Flags::empty(),
            adapter_atomics: false,
            source_errors: false,
            names_contexts: false,
            memory_regions: Arc::new(MemoryRegionRegistry::new(mode, IOV_LIMIT)),
            transmit_size: 1,
            multi_receive_min: 1,
            message_max: MESSAGE_MAX,
            inject_size: 0,
            unexpected_budget: 0,
        }
    }

    fn unit(&self) -> Result<Arc<Unit<P>>, ConnectionError> {
        self.lock().unit.clone().ok_or(ConnectionError::NotListening)
    }

    /// Takes the request that an event named, for an endpoint to be opened from it.
    ///
    /// # Errors
    /// [`ConnectionError`]: it does not listen; no such request was reported, or it is over.
    pub fn take(&self, handle: u64) -> Result<ConnectionRequest<P>, ConnectionError> {
        ConnectionRequest::take(&self.unit()?, handle)
    }

    /// Whether a request is over: it was answered, or who asked is gone.
    pub fn is_over(&self, handle: u64) -> bool {
        self.unit().is_ok_and(|unit| unit.with(|engine| engine.is_over(handle)).unwrap_or(false))
    }

    /// Turns down a request that is not accepted, with up to [`super::CM_DATA_SIZE`] bytes of `data`.
    /// Who asked hears of it though nobody reads the event queue any more, and where that takes longer
    /// than a tenth of a second when somebody does.
    ///
    /// # Errors
    /// As [`Self::take`].
    /// # Reference
    /// fi_cm(3), `fi_reject`
    pub fn reject(&self, handle: u64, data: &[u8]) -> Result<(), ConnectionError> {
        request::reject(&*self.unit()?, handle, truncated(data), false)
    }

    /// For an active endpoint that takes this one over, which `open` opens at the address of this one,
    /// with its traffic class: "the passive endpoint is no longer bound to any fabric resources and must
    /// no longer be used." If it cannot be opened this one stays as it is, unless its place was taken
    /// meanwhile: then it is gone as well.
    pub(crate) fn give_up<R>(
        &self,
        open: impl FnOnce(Address, u32) -> Result<R, OpenError>,
    ) -> Result<R, ConnectionError> {
        let mut state = self.lock();
        if state.unit.is_some() {
            return Err(ConnectionError::Listening { what: "taking it over" });
        }
        if self.provider.forked() {
            return Err(OpenError::ForkedChild.into());
        }
        // The other transport is at the same port, which has to be free for it.
        drop(state.transport.take().ok_or(ConnectionError::Gone)?);
        match open(state.address, traffic_class(&self.info)) {
            Ok(opened) => {
                let reporter = state.reporter.take();
                drop(state);
                reporter.into_iter().for_each(Reporter::let_go);
                Ok(opened)
            }
            Err(error) => {
                let again = opening(&self.info, Some(state.address));
                state.transport = self.provider.open_as(again).ok();
                Err(error.into())
            }
        }
    }

    /// Closes it. Requests that no endpoint was opened from are refused; the others, and
    /// the connections that came of them, are not concerned. As long as one of those holds its place,
    /// the event queue drives it, which refuses whoever asks there.
    pub fn close(&self) {
        let mut state = self.lock();
        let (unit, reporter) = (state.unit.take(), state.reporter.take());
        let transport = state.transport.take();
        drop(state);
        if let Some(reporter) = reporter {
            if let Some(unit) = &unit {
                linger(unit);
                reporter.queue.remove_driven(unit);
                match unit.with(|engine| engine.has_requests()) {
                    Ok(true) => reporter.queue.add_closed_listener(unit),
                    // Whoever drives it at the moment holds no place with it.
                    _ => unit.close(),
                }
            }
            reporter.let_go();
        }
        if self.provider.forked() {
            // The parent's transport is not ours to close.
            std::mem::forget(transport);
        }
    }
}

/// Lets rejections leave: the callers would not see their data otherwise.
fn linger<P: Provider>(unit: &Unit<P>) {
    // If it is closed there is nothing to refuse.
    let _ = unit.with(|engine| engine.refuse_all());
    let start = Instant::now();
    while unit.with(|engine| engine.has_controls()).unwrap_or(false) {
        unit.progress(BURST_MAX);
        if start.elapsed() > LINGER_MAX {
            return;
        }
        yield_now();
    }
}

/// An address vector with nothing in it.
pub(crate) fn empty_vector() -> Arc<AddressVector> {
    let attributes = AddressVectorAttributes::default();
    Arc::new(AddressVector::open(attributes).expect("the default attributes are valid"))
}

impl<P: Provider> fmt::Debug for PassiveEndpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is opened under it may say what it does.
        let state = self.state.try_lock().ok();
        f.debug_struct("PassiveEndpoint")
            .field("address", &state.as_ref().map(|state| state.address))
            .field("listens", &state.as_ref().map(|state| state.unit.is_some()))
            .field("backlog", &state.as_ref().map(|state| state.backlog))
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Drop for PassiveEndpoint<P> {
    fn drop(&mut self) {
        self.close();
    }
}

//! Binding and enabling.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::{
    CLAIM_FLAGS, Enabled, Endpoint, EndpointError, FAMILY, RECEIVE_FLAGS, RELIABLE_FLAGS, Rules,
    SEND_FLAGS,
    one_sided::{self, OneSided},
};
use crate::{
    address_vector::{AddressVector, FI_ADDR_UNSPEC},
    completion_counter::CompletionCounter,
    completion_queue::{CompletionQueue, store::Sharing},
    connection::{
        manager::{Connection, Manager, Reporter},
        passive_endpoint::empty_vector,
    },
    domain::OpenError,
    engine::{Engine, Setup, report::Side, unit::Unit},
    event_queue::EventQueue,
    flags::Flags,
    transport::Provider,
};

/// Who an endpoint's peers are, and what there is of connections.
type Peers = (Arc<AddressVector>, Option<Box<Manager>>);

/// What an endpoint holds until it is enabled, and what it must release after.
pub struct Bindings<P: Provider> {
    transport: Option<P::Transport>,
    transmit: Direction<P>,
    receive: Direction<P>,
    one_sided: OneSided<P>,
    address_vector: Option<Arc<AddressVector>>,
    reporter: Option<Reporter>,
    /// The domain's count still has this endpoint.
    counted: bool,
}

struct Direction<P: Provider> {
    queue: Option<Arc<CompletionQueue<P>>>,
    selective: bool,
    counter: Option<Arc<CompletionCounter<P>>>,
}

impl<P: Provider> Bindings<P> {
    pub(super) fn new(transport: P::Transport) -> Self {
        let direction = || Direction { queue: None, selective: false, counter: None };
        Bindings {
            transport: Some(transport),
            transmit: direction(),
            receive: direction(),
            one_sided: OneSided::default(),
            address_vector: None,
            reporter: None,
            counted: true,
        }
    }

    fn directions(&mut self, flags: Flags) -> impl Iterator<Item = &mut Direction<P>> {
        let transmit = flags.contains(Flags::TRANSMIT).then_some(&mut self.transmit);
        let receive = flags.contains(Flags::RECV).then_some(&mut self.receive);
        transmit.into_iter().chain(receive)
    }
}

impl<P: Provider> Direction<P> {
    fn side(&self) -> Side {
        Side {
            queue: self.queue.as_ref().map(|queue| queue.store().clone()),
            selective: self.selective,
            counter: self.counter.as_ref().map(|counter| counter.counter().clone()),
        }
    }

    fn add_unit(&self, unit: &Arc<Unit<P>>) {
        if let Some(queue) = &self.queue {
            queue.add_unit(unit);
        }
        if let Some(counter) = &self.counter {
            counter.add_unit(unit);
        }
    }

    fn release(&mut self, unit: Option<&Arc<Unit<P>>>) {
        if let Some(queue) = self.queue.take() {
            if let Some(unit) = unit {
                queue.remove_unit(unit);
            }
            // Counted when it was bound, so this cannot fail.
            let _ = queue.binds().unbind();
        }
        if let Some(counter) = self.counter.take() {
            if let Some(unit) = unit {
                counter.units().remove(unit);
            }
            // As above.
            let _ = counter.counter().binds().unbind();
        }
    }
}

impl<P: Provider> Endpoint<P> {
    fn open_bindings(
        &self,
        what: &'static str,
    ) -> Result<MutexGuard<'_, Bindings<P>>, EndpointError> {
        if self.enabled.get().is_some() {
            return Err(EndpointError::Enabled { what });
        }
        Ok(self.lock_bindings())
    }

    fn lock_bindings(&self) -> MutexGuard<'_, Bindings<P>> {
        // Nothing in here panics half-way, so a poisoned lock guards sound data.
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a completion queue for `TRANSMIT`, `RECV` or both; with
    /// `SELECTIVE_COMPLETION`, only operations that ask for it write an entry
    /// when they succeed. Reference: fi_endpoint(3), `fi_ep_bind`.
    pub fn bind_completion_queue(
        &self,
        queue: &Arc<CompletionQueue<P>>,
        flags: Flags,
    ) -> Result<(), EndpointError> {
        let object = "completion queue";
        let directions = flags & (Flags::TRANSMIT | Flags::RECV);
        if directions.is_empty() || flags != directions | (flags & Flags::SELECTIVE_COMPLETION) {
            return Err(EndpointError::BadFlags { object, flags });
        }
        if !Arc::ptr_eq(queue.domain(), self.domain()) {
            return Err(EndpointError::OtherDomain { object });
        }
        let mut bindings = self.open_bindings("binding a completion queue")?;
        if bindings.directions(directions).any(|direction| direction.queue.is_some()) {
            return Err(EndpointError::AlreadyBound { object, flags: directions });
        }
        for direction in bindings.directions(directions) {
            queue.binds().bind().map_err(|_| EndpointError::Closed { object })?;
            direction.queue = Some(queue.clone());
            direction.selective = flags.contains(Flags::SELECTIVE_COMPLETION);
        }
        Ok(())
    }

    /// Binds a counter for any of `SEND`, `RECV`, `READ`, `WRITE`, `REMOTE_READ`
    /// and `REMOTE_WRITE`. Reference: fi_endpoint(3), `fi_ep_bind`.
    pub fn bind_counter(
        &self,
        counter: &Arc<CompletionCounter<P>>,
        flags: Flags,
    ) -> Result<(), EndpointError> {
        let object = "counter";
        let directions = flags & (Flags::SEND | Flags::RECV);
        let one_sided = flags & one_sided::KINDS;
        if flags.is_empty() || flags != directions | one_sided {
            return Err(EndpointError::BadFlags { object, flags });
        }
        if !Arc::ptr_eq(counter.domain(), self.domain()) {
            return Err(EndpointError::OtherDomain { object });
        }
        let mut bindings = self.open_bindings("binding a counter")?;
        if bindings.directions(directions).any(|direction| direction.counter.is_some())
            || bindings.one_sided.has_any(one_sided)
        {
            return Err(EndpointError::AlreadyBound { object, flags });
        }
        for direction in bindings.directions(directions) {
            counter.counter().binds().bind().map_err(|_| EndpointError::Closed { object })?;
            direction.counter = Some(counter.clone());
        }
        bindings.one_sided.bind(counter, one_sided).map_err(|_| EndpointError::Closed { object })
    }

    /// Binds the address vector. Reference: fi_endpoint(3), `fi_ep_bind`.
    pub fn bind_address_vector(&self, vector: &Arc<AddressVector>) -> Result<(), EndpointError> {
        let object = "address vector";
        if self.options.connected {
            return Err(EndpointError::NotForThisType { object });
        }
        let mut bindings = self.open_bindings("binding an address vector")?;
        if bindings.address_vector.is_some() {
            return Err(EndpointError::AlreadyBound { object, flags: Flags::empty() });
        }
        vector.binds().bind().map_err(|_| EndpointError::Closed { object })?;
        bindings.address_vector = Some(vector.clone());
        Ok(())
    }

    /// Binds the event queue that asynchronous errors and what becomes of connections go to,
    /// as events of the object `fid`. Reading it drives a connected endpoint.
    /// Reference: fi_endpoint(3), `fi_ep_bind`.
    pub fn bind_event_queue(&self, queue: &Arc<EventQueue>, fid: u64) -> Result<(), EndpointError> {
        let object = "event queue";
        let mut bindings = self.open_bindings("binding an event queue")?;
        if bindings.reporter.is_some() {
            return Err(EndpointError::AlreadyBound { object, flags: Flags::empty() });
        }
        queue.binds().bind().map_err(|_| EndpointError::Closed { object })?;
        bindings.reporter = Some(Reporter { queue: queue.clone(), fid });
        Ok(())
    }

    /// Enables the endpoint: from now on it can send and receive. Enabling twice
    /// is an error. Reference: fi_endpoint(3), `fi_enable`: "An endpoint must be
    /// bound with CQs capable of reporting completions for any asynchronous
    /// operation initiated on the endpoint."
    pub fn enable(&self) -> Result<(), EndpointError> {
        let mut bindings = self.open_bindings("enabling")?;
        // "If the endpoint supports any outbound transfers (sends, RMA, atomics, etc.), then it
        // must be bound to a completion queue"; a counter "is in addition" to that.
        for (direction, capabilities, name) in [
            (&bindings.transmit, Flags::SEND | Flags::READ | Flags::WRITE, "transmit"),
            (&bindings.receive, Flags::RECV, "receive"),
        ] {
            if self.options.capabilities.intersects(capabilities) && direction.queue.is_none() {
                return Err(EndpointError::NoCompletionQueue { direction: name });
            }
        }
        let (address_vector, manager) = self.peers(&bindings)?;
        let Some(transport) = bindings.transport.take() else {
            return Err(EndpointError::Closed { object: "endpoint" });
        };
        let setup = Setup {
            transmit: bindings.transmit.side(),
            receive: bindings.receive.side(),
            address_vector,
            one_sided: bindings.one_sided.counters(),
            permitted: self.options.capabilities & (Flags::REMOTE_READ | Flags::REMOTE_WRITE),
            memory_regions: self.domain.memory_regions().clone(),
            transmit_size: self.options.transmit_size,
            multi_receive_min: self.multi_receive_min(),
            unexpected_budget: self.domain.options().unexpected_budget,
        };
        let capabilities = self.options.capabilities;
        let family = capabilities & FAMILY;
        let receive_plain = RECEIVE_FLAGS.difference(CLAIM_FLAGS) | family;
        let sends =
            if self.options.datagrams { SEND_FLAGS.difference(RELIABLE_FLAGS) } else { SEND_FLAGS };
        let send = Rules::new(sends | family, setup.transmit.selective);
        let receive = Rules::new(receive_plain, setup.receive.selective);
        let directed = capabilities.contains(Flags::DIRECTED_RECV);
        let connected = manager.is_some();
        let from_any = if directed && !connected { 0 } else { FI_ADDR_UNSPEC };
        let to_mask = if connected { 0 } else { u64::MAX };
        let mut engine = Engine::new(transport, setup);
        engine.manager = manager;
        engine.datagrams = self.options.datagrams.then(Box::default);
        // An event queue drives it as well, maybe from within a poll that reports an event.
        let sharing = if connected { Sharing::Shared } else { self.domain.sharing() };
        let unit = Arc::new(Unit::new(self.domain.provider().clone(), sharing, engine));
        // Set once: the lock is held and `open_bindings` saw no unit.
        let _ = self.enabled.set(Enabled { unit: unit.clone(), send, receive, to_mask, from_any });
        bindings.transmit.add_unit(&unit);
        bindings.receive.add_unit(&unit);
        bindings.one_sided.add_unit(&unit);
        if let Some(Reporter { queue, .. }) = bindings.reporter.as_ref().filter(|_| connected) {
            queue.add_driven(unit.clone());
        }
        self.domain.add_unit(&unit);
        Ok(())
    }

    /// Where what becomes of asynchronous operations is told.
    pub(super) fn reporter_queue(&self) -> Option<Arc<EventQueue>> {
        self.lock_bindings().reporter.as_ref().map(|reporter| reporter.queue.clone())
    }

    /// Who can be reached: whom the address vector knows, or the one at the other end of a
    /// connection.
    fn peers(&self, bindings: &Bindings<P>) -> Result<Peers, EndpointError> {
        if !self.options.connected {
            let vector = bindings.address_vector.clone();
            return Ok((vector.ok_or(EndpointError::NoAddressVector)?, None));
        }
        let reporter = bindings.reporter.clone().ok_or(EndpointError::NoEventQueue)?;
        let vector = empty_vector();
        let connection = Connection::new(reporter, vector.clone());
        Ok((vector, Some(Box::new(Manager::Connection(connection)))))
    }

    /// Gives the endpoint, which is not enabled, another transport: one elsewhere.
    pub(super) fn replace_transport(
        &self,
        open: impl FnOnce() -> Result<P::Transport, OpenError>,
    ) -> Result<(), EndpointError> {
        let mut bindings = self.open_bindings("changing the address")?;
        if bindings.transport.is_none() {
            return Err(EndpointError::Closed { object: "endpoint" });
        }
        bindings.transport = Some(open()?);
        Ok(())
    }

    /// Releases everything bound, and the transport if it was never enabled.
    pub(super) fn unbind_all(&self) {
        let mut bindings = self.lock_bindings();
        let unit = self.enabled.get().map(|enabled| &enabled.unit);
        bindings.transmit.release(unit);
        bindings.receive.release(unit);
        bindings.one_sided.release(unit);
        // Counted when they were bound, so none of these can fail.
        if let Some(vector) = bindings.address_vector.take() {
            let _ = vector.binds().unbind();
        }
        if let Some(Reporter { queue, fid }) = bindings.reporter.take() {
            if let Some(unit) = unit.filter(|_| self.options.connected) {
                queue.remove_driven(unit);
                queue.discard(fid);
            }
            let _ = queue.binds().unbind();
        }
        if std::mem::take(&mut bindings.counted) {
            let _ = self.domain.uses().unbind();
        }
        if self.domain.provider().forked() {
            // The parent's transport is not ours to close.
            std::mem::forget(bindings.transport.take());
        }
        bindings.transport = None;
    }
}

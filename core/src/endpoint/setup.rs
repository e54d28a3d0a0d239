//! Binding, and letting go.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::{
    Enabled, Endpoint, EndpointError, EndpointOptions,
    one_sided::{self, OneSided},
};
use crate::{
    address_vector::AddressVector,
    completion_counter::CompletionCounter,
    completion_queue::CompletionQueue,
    domain::OpenError,
    engine::{Engine, report::Side, unit::Unit},
    event_queue::{EventQueue, reporter::Reporter},
    flags::Flags,
    info::MessageOrder,
    shared_context::{SharedTransmit, receive::SharedReceive},
    transport::Provider,
};

/// What an endpoint holds until it is enabled, and what it must release after.
pub struct Bindings<P: Provider> {
    /// None also in a context, which has that of its pair.
    pub(super) transport: Option<P::Transport>,
    pub(super) transmit: Direction<P>,
    pub(super) receive: Direction<P>,
    pub(super) one_sided: OneSided<P>,
    pub(super) address_vector: Option<Arc<AddressVector>>,
    pub(super) reporter: Option<Reporter>,
    pub(super) shared_transmit: Option<Arc<SharedTransmit<P>>>,
    pub(super) shared_receive: Option<Arc<SharedReceive<P>>>,
    /// The domain's count still has this endpoint: it is not closed.
    pub(super) counted: bool,
}

pub(super) struct Direction<P: Provider> {
    pub(super) queue: Option<Arc<CompletionQueue<P>>>,
    selective: bool,
    counter: Option<Arc<CompletionCounter<P>>>,
}

impl<P: Provider> Bindings<P> {
    pub(super) fn new(transport: Option<P::Transport>) -> Self {
        let direction = || Direction { queue: None, selective: false, counter: None };
        Bindings {
            transport,
            transmit: direction(),
            receive: direction(),
            one_sided: OneSided::default(),
            address_vector: None,
            reporter: None,
            shared_transmit: None,
            shared_receive: None,
            counted: true,
        }
    }

    /// Has everything that is bound drive `unit`.
    pub(super) fn add_unit(&self, unit: &Arc<Unit<P>>) {
        self.transmit.add_unit(unit);
        self.receive.add_unit(unit);
        self.one_sided.add_unit(unit);
    }

    /// Tells who shares its receives of the address vector.
    fn expect_vector(&self) {
        if let (Some(context), Some(vector)) = (&self.shared_receive, &self.address_vector) {
            context.expect(vector);
        }
    }

    /// What the completions of each direction need. Whoever shares a context has its order, too.
    pub(super) fn sides(&self, options: &EndpointOptions) -> (Side, Side) {
        let transmit = self.shared_transmit.as_ref().is_some_and(|it| it.is_in_order());
        let receive = self.shared_receive.as_ref().is_some_and(|it| it.is_in_order());
        let data = self.shared_receive.as_ref().is_some_and(|it| it.is_data_in_order());
        let mut transmit = self.transmit.side(options, options.transmits_in_order || transmit);
        let shared_order = self.shared_transmit.as_ref().map(|it| it.message_order());
        transmit.message_order = options.message_order | shared_order.unwrap_or_default();
        let mut receive = self.receive.side(options, options.receives_in_order || receive);
        receive.data_in_order = options.data_in_order || data;
        (transmit, receive)
    }

    fn directions(&mut self, flags: Flags) -> impl Iterator<Item = &mut Direction<P>> {
        let transmit = flags.contains(Flags::TRANSMIT).then_some(&mut self.transmit);
        let receive = flags.contains(Flags::RECV).then_some(&mut self.receive);
        transmit.into_iter().chain(receive)
    }
}

impl<P: Provider> Direction<P> {
    fn side(&self, options: &EndpointOptions, in_order: bool) -> Side {
        Side {
            in_order,
            // Operations of a socket's are called by numbers of its own, and nobody's is the endpoint's.
            context: if options.under_socket { 0 } else { options.context },
            data_in_order: false,
            reporter: None,
            message_order: MessageOrder::empty(),
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
    pub(super) fn open_bindings(
        &self,
        what: &'static str,
    ) -> Result<MutexGuard<'_, Bindings<P>>, EndpointError> {
        let bindings = self.lock_bindings();
        // Behind the lock, which whoever enables the endpoint holds until it is.
        match self.enabled.get() {
            Some(_) => Err(EndpointError::Enabled { what }),
            None => Ok(bindings),
        }
    }

    pub(super) fn lock_bindings(&self) -> MutexGuard<'_, Bindings<P>> {
        // Nothing in here panics half-way, so a poisoned lock guards sound data.
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a completion queue for `TRANSMIT`, `RECV` or both; with
    /// `SELECTIVE_COMPLETION`, only operations that ask for it write an entry
    /// when they succeed.
    ///
    /// # Errors
    /// [`EndpointError`]: other flags, a queue of another domain or a closed one, one that is bound
    /// for that direction already; the endpoint is enabled.
    /// # Reference
    /// fi_endpoint(3), `fi_ep_bind`
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
    /// and `REMOTE_WRITE`.
    ///
    /// # Errors
    /// As [`Self::bind_completion_queue`].
    /// # Reference
    /// fi_endpoint(3), `fi_ep_bind`
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

    /// Binds the address vector.
    ///
    /// # Errors
    /// [`EndpointError`]: the endpoint is a connected one or a context, is enabled, or has a vector;
    /// the vector is closed.
    /// # Reference
    /// fi_endpoint(3), `fi_ep_bind`
    pub fn bind_address_vector(&self, vector: &Arc<AddressVector>) -> Result<(), EndpointError> {
        let object = "address vector";
        if self.options.connected || self.seat.is_some() {
            return Err(EndpointError::NotForThisType { object });
        }
        let mut bindings = self.open_bindings("binding an address vector")?;
        if bindings.address_vector.is_some() {
            return Err(EndpointError::AlreadyBound { object, flags: Flags::empty() });
        }
        vector.binds().bind().map_err(|_| EndpointError::Closed { object })?;
        bindings.address_vector = Some(vector.clone());
        bindings.expect_vector();
        Ok(())
    }

    /// Binds the event queue that asynchronous errors and what becomes of connections go to,
    /// as events of the object `fid`. Reading it drives a connected endpoint.
    ///
    /// # Errors
    /// [`EndpointError`]: the endpoint is enabled or has a queue; the queue is closed.
    /// # Reference
    /// fi_endpoint(3), `fi_ep_bind`
    pub fn bind_event_queue(&self, queue: &Arc<EventQueue>, fid: u64) -> Result<(), EndpointError> {
        let object = "event queue";
        let mut bindings = self.open_bindings("binding an event queue")?;
        if bindings.reporter.is_some() {
            return Err(EndpointError::AlreadyBound { object, flags: Flags::empty() });
        }
        queue.binds().bind().map_err(|_| EndpointError::Closed { object })?;
        bindings.reporter =
            Some(Reporter { queue: queue.clone(), fid, context: self.options.context });
        Ok(())
    }

    /// Binds the shared transmit context that the endpoint was opened to use.
    ///
    /// # Errors
    /// [`EndpointError`]: the endpoint was not opened for one, or for more than the context has; the
    /// context is closed or another domain's; the endpoint is enabled, or has one.
    /// # Reference
    /// fi_endpoint(3): "Endpoints associated with a shared transmit context must use
    /// a subset of the transmit context's attributes."
    pub fn bind_shared_transmit(
        &self,
        context: &Arc<SharedTransmit<P>>,
    ) -> Result<(), EndpointError> {
        let object = "shared transmit context";
        self.check_shares(object)?;
        let mut bindings = self.open_bindings("binding a shared context")?;
        if bindings.shared_transmit.is_some() {
            return Err(EndpointError::AlreadyBound { object, flags: Flags::TRANSMIT });
        }
        self.share_transmit(&mut bindings, context)
    }

    /// Binds the shared receive context that the endpoint was opened to use: its messages go to
    /// receives that are posted there.
    ///
    /// # Errors
    /// As [`Self::bind_shared_transmit`].
    /// # Reference
    /// fi_endpoint(3), "SHARED CONTEXTS"
    pub fn bind_shared_receive(
        &self,
        context: &Arc<SharedReceive<P>>,
    ) -> Result<(), EndpointError> {
        let object = "shared receive context";
        self.check_shares(object)?;
        let mut bindings = self.open_bindings("binding a shared context")?;
        if bindings.shared_receive.is_some() {
            return Err(EndpointError::AlreadyBound { object, flags: Flags::RECV });
        }
        self.share_receive(&mut bindings, context)
    }

    /// A context has the shared contexts of its scalable endpoint, and no other.
    fn check_shares(&self, object: &'static str) -> Result<(), EndpointError> {
        match self.seat {
            Some(_) => Err(EndpointError::NotForThisType { object }),
            None => Ok(()),
        }
    }

    pub(super) fn share_transmit(
        &self,
        bindings: &mut Bindings<P>,
        context: &Arc<SharedTransmit<P>>,
    ) -> Result<(), EndpointError> {
        context.join(&self.domain, &self.options)?;
        bindings.shared_transmit = Some(context.clone());
        Ok(())
    }

    pub(super) fn share_receive(
        &self,
        bindings: &mut Bindings<P>,
        context: &Arc<SharedReceive<P>>,
    ) -> Result<(), EndpointError> {
        context.join(&self.domain, &self.options)?;
        bindings.shared_receive = Some(context.clone());
        bindings.expect_vector();
        Ok(())
    }

    /// Another context, which shared a queue with this one, has let go of their engine.
    pub(crate) fn is_driven_again(&self) {
        let bindings = self.lock_bindings();
        if let Some(enabled) = self.enabled.get().filter(|_| bindings.counted) {
            bindings.add_unit(&enabled.unit);
        }
    }

    /// Where what becomes of asynchronous operations is told.
    pub(crate) fn reporter_queue(&self) -> Option<Arc<EventQueue>> {
        self.lock_bindings().reporter.as_ref().map(|reporter| reporter.queue.clone())
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

    /// Releases everything bound but the event queue, and the transport if it was never enabled. False if
    /// that was done before.
    pub(super) fn unbind_all(&self) -> bool {
        if let Some(Enabled { unit, .. }) = self.enabled.get().filter(|_| self.options.datagrams) {
            // One that is closed holds nothing, and a forked child has none.
            let _ = unit.with(Engine::let_datagrams_leave);
        }
        let mut bindings = self.lock_bindings();
        let unit = self.enabled.get().map(|enabled| &enabled.unit);
        bindings.transmit.release(unit);
        bindings.receive.release(unit);
        bindings.one_sided.release(unit);
        // Counted when they were bound, so none of these can fail.
        if let Some(vector) = bindings.address_vector.take() {
            let _ = vector.binds().unbind();
        }
        if let Some(Reporter { queue, .. }) = &bindings.reporter
            && let Some(unit) = unit.filter(|_| self.options.connected)
        {
            queue.remove_driven(unit);
        }
        if let Some(context) = bindings.shared_transmit.take() {
            let _ = context.binds().unbind();
        }
        let is_first = std::mem::take(&mut bindings.counted);
        if is_first {
            let _ = self.domain.uses().unbind();
        }
        if self.domain.provider().forked() {
            // The parent's transport is not ours to close.
            std::mem::forget(bindings.transport.take());
        }
        bindings.transport = None;
        is_first
    }

    /// Releases the event queue, once nothing can tell of the endpoint any more: what its last moments
    /// had to tell is forgotten, too.
    pub(super) fn unbind_events(&self) {
        let Some(Reporter { queue, fid, .. }) = self.lock_bindings().reporter.take() else {
            return;
        };
        // Natively some have no name.
        if self.options.connected || fid != 0 {
            queue.discard(fid);
        }
        // Counted when it was bound, so this cannot fail.
        let _ = queue.binds().unbind();
    }
}

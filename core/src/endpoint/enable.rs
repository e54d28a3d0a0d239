//! Enabling: from what is bound to an engine that drives it.

use std::sync::Arc;

use super::{
    Endpoint, EndpointError,
    posting::{CLAIM_FLAGS, Enabled, FromAny, RECEIVE_FLAGS, Rules},
    setup::Bindings,
};
use crate::{
    address_vector::{AddressVector, HeldKeys},
    buffering::BUFFERED,
    connection::{
        manager::{Connection, Manager},
        passive_endpoint::empty_vector,
    },
    domain::Sharing,
    engine::{Engine, Setup, permitted::Permitted, unit::Unit},
    event_queue::reporter::Reporter,
    flags::{FAMILY, Flags},
    operation::MESSAGE_MAX,
    primitive::AtomicBool,
    scalable_endpoint::pair::{Direction, Seat},
    shared_context::pool::SharedSeat,
    socket_endpoint::RECEIVE_BUFFER,
    transport::{Provider, Transport},
};

/// Who an endpoint's peers are, and what there is of connections.
type Peers = (Arc<AddressVector>, Option<Box<Manager>>);

impl<P: Provider> Endpoint<P> {
    /// Enables the endpoint: from now on it can send and receive. Cost: cold; makes the engine.
    ///
    /// # Errors
    /// [`EndpointError`]: it is enabled already, or closed; what it needs is not bound, a completion
    /// queue for each direction that it has among that, an address vector, or the shared contexts
    /// that it was opened for; the keys are not those that it can have.
    /// # Reference
    /// fi_endpoint(3), `fi_enable`: "An endpoint must be
    /// bound with CQs capable of reporting completions for any asynchronous
    /// operation initiated on the endpoint."
    pub fn enable(&self) -> Result<(), EndpointError> {
        let mut bindings = self.open_bindings("enabling")?;
        if !bindings.counted {
            return Err(EndpointError::Closed { object: "endpoint" });
        }
        self.adopt_shared(&mut bindings)?;
        self.check_bound(&bindings)?;
        let (address_vector, manager) = self.peers(&bindings)?;
        let setup = self.setup(&bindings, address_vector)?;
        let shared = self.shared_seat(&bindings, &setup)?;
        let (send, receive) = self.rules(&setup);
        let connected = manager.is_some();
        let from_any = FromAny::of(self.options.capabilities, connected);
        let to_mask = if connected { 0 } else { u64::MAX };
        let unit = match &self.seat {
            Some(seat) => seat.join(setup)?,
            None => self.new_unit(&mut bindings, setup, manager)?,
        };
        self.adopt_events(&mut bindings)?;
        // Set once: the lock is held and `open_bindings` saw no unit.
        let is_closed = AtomicBool::new(false);
        let enabled = Enabled { unit: unit.clone(), send, receive, is_closed, to_mask, from_any };
        let _ = self.enabled.set(enabled);
        if let (Some(context), Some(mut shared)) = (&bindings.shared_receive, shared) {
            // Who is given the name of a message there has to find the engine that keeps it.
            context.add_unit(&mut shared, &unit, connected);
            // If it is closed by now it takes nothing from there.
            let _ = unit.with(|engine| engine.share(shared));
        }
        bindings.add_unit(&unit);
        if self.options.under_socket {
            return Ok(());
        }
        if let Some(Reporter { queue, .. }) = bindings.reporter.as_ref().filter(|_| connected) {
            queue.add_driven(unit.clone());
        }
        self.domain.add_unit(&unit);
        Ok(())
    }

    /// A context has the shared context of its direction that its scalable endpoint is bound to.
    fn adopt_shared(&self, bindings: &mut Bindings<P>) -> Result<(), EndpointError> {
        let Some(seat) = &self.seat else { return Ok(()) };
        if self.options.shares_transmit
            && bindings.shared_transmit.is_none()
            && let Some(context) = seat.shared_transmit()
        {
            self.share_transmit(bindings, context)?;
        }
        if self.options.shares_receive
            && bindings.shared_receive.is_none()
            && let Some(context) = seat.shared_receive()
        {
            self.share_receive(bindings, context)?;
        }
        Ok(())
    }

    fn shared_seat(
        &self,
        bindings: &Bindings<P>,
        setup: &Setup,
    ) -> Result<Option<SharedSeat>, EndpointError> {
        let Some(context) = &bindings.shared_receive else { return Ok(None) };
        let vector = (!self.options.connected).then_some(&setup.address_vector);
        context.seat(vector, setup.keys.as_deref()).map(Some)
    }

    /// "An event queue bound to a domain will be the default EQ … Endpoints may direct their control
    /// events to alternate EQs by binding directly with the EQ" (fi_domain(3)).
    fn adopt_events(&self, bindings: &mut Bindings<P>) -> Result<(), EndpointError> {
        if bindings.reporter.is_none()
            && let Some(reporter) = self.default_reporter()
        {
            let object = "event queue";
            reporter.queue.binds().bind().map_err(|_| EndpointError::Closed { object })?;
            bindings.reporter = Some(reporter);
        }
        Ok(())
    }

    /// Where its events will go, once it is enabled.
    fn reporter(&self, bindings: &Bindings<P>) -> Option<Reporter> {
        bindings.reporter.clone().or_else(|| self.default_reporter())
    }

    fn default_reporter(&self) -> Option<Reporter> {
        let queue = self.domain.event_queue()?.clone();
        Some(Reporter { queue, fid: self.known_as(), context: self.options.context })
    }

    /// "If the endpoint supports any outbound transfers (sends, RMA, atomics, etc.), then it
    /// must be bound to a completion queue"; a counter "is in addition" to that. "If an endpoint
    /// is using a shared transmit and/or receive context, the shared contexts must be bound".
    fn check_bound(&self, bindings: &Bindings<P>) -> Result<(), EndpointError> {
        let capabilities = self.options.capabilities;
        let one_sided = capabilities.intersects(Flags::READ | Flags::WRITE);
        let messages = capabilities
            .intersects(Flags::MSG | Flags::TAGGED | Flags::MULTICAST | Flags::SEND | Flags::RECV);
        for (direction, transfers, name) in [
            (&bindings.transmit, one_sided || messages && !self.lacks(Flags::SEND), "transmit"),
            (&bindings.receive, messages && !self.lacks(Flags::RECV), "receive"),
        ] {
            if transfers && direction.queue.is_none() {
                return Err(EndpointError::NoCompletionQueue { direction: name });
            }
        }
        if self.options.shares_transmit && bindings.shared_transmit.is_none() {
            return Err(EndpointError::NoSharedContext { direction: "transmit" });
        }
        if self.options.shares_receive && bindings.shared_receive.is_none() {
            return Err(EndpointError::NoSharedContext { direction: "receive" });
        }
        Ok(())
    }

    fn setup(
        &self,
        bindings: &Bindings<P>,
        address_vector: Arc<AddressVector>,
    ) -> Result<Setup, EndpointError> {
        let capabilities = self.options.capabilities;
        let keys = self.hold_keys(&address_vector)?;
        let (mut transmit, mut receive) = bindings.sides(&self.options);
        // A context tells of its direction alone, and no longer than it is open.
        let only = Direction::only_of(capabilities);
        transmit.reporter = self.reporter(bindings).filter(|_| only != Some(Direction::Receive));
        receive.reporter = self.reporter(bindings).filter(|_| only != Some(Direction::Transmit));
        Ok(Setup {
            transmit,
            receive,
            buffering: self.buffering.setup(),
            one_sided: bindings.one_sided.counters(),
            permitted: Permitted::of(self.options.side(Flags::RECV)),
            hears: self.hears(),
            adapter_atomics: self.domain.adapter_atomics(),
            source_errors: capabilities.contains(Flags::SOURCE_ERR),
            names_contexts: self.seat.is_some() || capabilities.contains(Flags::NAMED_RX_CTX),
            keys,
            memory_regions: self.domain.memory_regions().clone(),
            transmit_size: self.options.transmit_size,
            multi_receive_min: self.multi_receive_min(),
            unexpected_budget: match self.options.under_socket {
                true => RECEIVE_BUFFER as u64,
                false => self.domain.options().unexpected_budget,
            },
            message_max: self.message_limit(),
            inject_size: self.options.inject_size,
            address_vector,
        })
    }

    /// The families of messages that receives can be posted for: elsewhere, if they are shared.
    fn hears(&self) -> Flags {
        let receives = self.options.side(Flags::RECV);
        match self.options.shares_receive || self.options.under_socket {
            true => FAMILY,
            false if self.lacks(Flags::RECV) => Flags::empty(),
            false => receives & FAMILY,
        }
    }

    /// The keys of an endpoint that has them from its vector: from now on, and no other. Contexts
    /// have those of the first of them.
    fn hold_keys(
        &self,
        vector: &Arc<AddressVector>,
    ) -> Result<Option<Arc<HeldKeys>>, EndpointError> {
        match (self.options.vector_keys, vector.has_auth_keys(), &self.seat) {
            (false, false, _) => Ok(None),
            (true, true, None) => Ok(Some(Arc::new(vector.hold_auth_keys()?))),
            (true, true, Some(seat)) => Ok(Some(seat.hold_keys(vector)?)),
            (wanted, ..) => Err(EndpointError::OtherKeys { wanted }),
        }
    }

    /// "Variable messages are not subject to max message length restrictions" (fi_msg(3)).
    fn message_limit(&self) -> usize {
        let whole = self.seat.as_ref().map(Seat::capabilities);
        let capabilities = whole.unwrap_or(self.options.capabilities);
        if capabilities.contains(Flags::VARIABLE_MSG) { usize::MAX } else { MESSAGE_MAX }
    }

    /// What is plain for each direction: nothing, where there is none.
    fn rules(&self, setup: &Setup) -> (Rules, Rules) {
        let [send_family, receive_family] =
            [Flags::SEND, Flags::RECV].map(|side| self.options.side(side) & FAMILY);
        let send = match self.lacks(Flags::SEND) {
            true => Flags::empty(),
            false => self.send_flags() | send_family,
        };
        let receives_here = !self.lacks(Flags::RECV) && !self.options.shares_receive;
        let buffers = setup.buffering.is_some();
        let receive = match receives_here && !buffers {
            true => RECEIVE_FLAGS.difference(CLAIM_FLAGS) | receive_family,
            false => Flags::empty(),
        };
        let mut receive = Rules::new(receive, &setup.receive);
        receive.added.set(BUFFERED, buffers);
        (Rules::new(send, &setup.transmit), receive)
    }

    fn new_unit(
        &self,
        bindings: &mut Bindings<P>,
        setup: Setup,
        manager: Option<Box<Manager>>,
    ) -> Result<Arc<Unit<P>>, EndpointError> {
        let Some(mut transport) = bindings.transport.take() else {
            return Err(EndpointError::Closed { object: "endpoint" });
        };
        if self.options.connected {
            transport.take_keys(None);
        }
        // An event queue drives it as well, maybe from within a poll that reports an event; or a
        // helper does; or a counter starts what waits for it.
        let shares_triggers = bindings.shared_receive.as_ref().is_some_and(|it| it.is_triggered());
        let triggers = self.options.capabilities.contains(Flags::TRIGGER) || shares_triggers;
        let is_shared = manager.is_some() || self.options.under_socket || triggers;
        let sharing = if is_shared { Sharing::Shared } else { self.domain.sharing() };
        let mut engine = Engine::new(transport, setup);
        engine.manager = manager;
        engine.datagrams = self.options.datagrams.then(Box::default);
        Ok(Arc::new(Unit::new(self.domain.provider().clone(), sharing, engine)))
    }

    /// Who can be reached: whom the address vector knows, or the one at the other end of a
    /// connection.
    fn peers(&self, bindings: &Bindings<P>) -> Result<Peers, EndpointError> {
        if let Some(seat) = &self.seat {
            return Ok((seat.address_vector()?.clone(), None));
        }
        if !self.options.connected {
            let vector = bindings.address_vector.clone();
            return Ok((vector.ok_or(EndpointError::NoAddressVector)?, None));
        }
        let reporter = self.reporter(bindings).ok_or(EndpointError::NoEventQueue)?;
        let vector = empty_vector();
        let connection = Connection::new(reporter, vector.clone());
        Ok((vector, Some(Box::new(Manager::Connection(connection)))))
    }
}

//! The transmit and the receive context of one index: they share an engine.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use super::{
    ContextCounts, ScalableEndpoint, context_address,
    row::{open_at, open_beside},
};
use crate::{
    address::Address,
    address_vector::{AddressVector, HeldKeys},
    domain::{Domain, OpenError, Sharing},
    endpoint::{Endpoint, EndpointError},
    engine::{Engine, Setup, unit::Unit},
    error::Cause,
    flags::{FAMILY, Flags},
    shared_context::{SharedTransmit, receive::SharedReceive},
    transport::{Opening, Provider, Transport},
};

/// Which context of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The one that sends.
    Transmit,
    /// The one that receives.
    Receive,
}

impl Direction {
    /// The one whose bit is set, if the other one's is not.
    pub(crate) fn of(flags: Flags) -> Option<Direction> {
        match (flags.contains(Flags::TRANSMIT), flags.contains(Flags::RECV)) {
            (true, false) => Some(Direction::Transmit),
            (false, true) => Some(Direction::Receive),
            _ => None,
        }
    }

    /// The only one in which an endpoint with these capabilities has operations.
    pub(crate) fn only_of(capabilities: Flags) -> Option<Direction> {
        match (capabilities.contains(Flags::SEND), capabilities.contains(Flags::RECV)) {
            (true, false) => Some(Direction::Transmit),
            (false, true) if !capabilities.intersects(Flags::READ | Flags::WRITE) => {
                Some(Direction::Receive)
            }
            _ => None,
        }
    }

    fn other(self) -> Direction {
        match self {
            Direction::Transmit => Direction::Receive,
            Direction::Receive => Direction::Transmit,
        }
    }
}

/// The contexts of one index.
pub(super) struct Pair<P: Provider> {
    index: usize,
    /// Whether there is no receive context of this index.
    is_deaf: bool,
    state: Mutex<State<P>>,
}

struct State<P: Provider> {
    /// Where the transport is, or was.
    address: Address,
    /// Until one of the contexts is enabled.
    transport: Option<P::Transport>,
    /// From then on, until the endpoint is closed.
    unit: Option<Arc<Unit<P>>>,
    /// The contexts that are open.
    open: [Option<Weak<Endpoint<P>>>; 2],
}

impl<P: Provider> Pair<P> {
    pub(super) fn new(index: usize, transport: P::Transport, counts: ContextCounts) -> Self {
        let address = transport.address();
        let state = State { address, transport: Some(transport), unit: None, open: [None, None] };
        Pair { index, is_deaf: index >= counts.receive, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn address(&self) -> Address {
        self.lock().address
    }

    /// The same, for who must not wait: none while the pair is at work.
    pub(super) fn address_at_once(&self) -> Option<Address> {
        self.state.try_lock().ok().map(|state| state.address)
    }

    /// False if that context is open.
    pub(super) fn reserve(&self, direction: Direction) -> bool {
        let place = &mut self.lock().open[direction as usize];
        let free = place.is_none();
        place.get_or_insert_default();
        free
    }

    /// `context` is the one that its place was reserved for.
    pub(super) fn seat(&self, direction: Direction, context: &Arc<Endpoint<P>>) {
        self.lock().open[direction as usize] = Some(Arc::downgrade(context));
    }

    fn join(
        &self,
        domain: &Domain<P>,
        sharing: Sharing,
        direction: Direction,
        setup: Setup,
    ) -> Result<Arc<Unit<P>>, EndpointError> {
        let closed = EndpointError::Closed { object: "scalable endpoint" };
        let mut state = self.lock();
        if let Some(unit) = &state.unit {
            unit.with(|engine| engine.join(direction, setup)).map_err(|_| closed)?;
            return Ok(unit.clone());
        }
        let mut engine = Engine::new(state.transport.take().ok_or(closed)?, setup);
        engine.context = self.index as u64;
        if direction == Direction::Transmit {
            // Messages wait for a receive context that may come.
            engine.setup.hears = if self.is_deaf { Flags::empty() } else { FAMILY };
        }
        engine.contexts[direction as usize] = true;
        let unit = Unit::new(domain.provider().clone(), sharing, engine);
        Ok(state.unit.insert(Arc::new(unit)).clone())
    }

    /// What was injected leaves before a transmit context does, for which the caller waits a second at most.
    fn leave(&self, direction: Direction) {
        let has_joined = |unit: &Arc<Unit<P>>| {
            unit.with(|engine| engine.contexts[direction as usize]).unwrap_or(false)
        };
        let unit = self.lock().unit.clone().filter(has_joined);
        if let Some(unit) = unit.as_ref().filter(|_| direction == Direction::Transmit) {
            unit.let_injected_leave();
        }
        let mut state = self.lock();
        state.open[direction as usize] = None;
        let other = state.open[direction.other() as usize].clone();
        // One that was never enabled leaves nothing: what waits, waits for the next.
        let Some(unit) = unit else { return };
        // If it is closed there is nothing to let go of.
        let _ = unit.with(|engine| engine.leave(direction));
        drop(state);
        // They may share a queue, which was told to drive the engine no more.
        if let Some(other) = other.and_then(|other| other.upgrade()) {
            other.is_driven_again();
        }
    }

    pub(super) fn close(&self, domain: &Domain<P>) {
        let mut state = self.lock();
        let transport = state.transport.take();
        if domain.provider().forked() {
            // The parent's transport is not ours to close.
            std::mem::forget(transport);
        }
        if let Some(unit) = state.unit.take() {
            domain.remove_unit(&unit);
            unit.close();
        }
    }
}

/// Gives the pairs of an endpoint other transports: those of a row at `address`. Where the two rows
/// overlap a transport goes from one pair to another, since nobody else could have its port.
/// Reference: fi_cm(3), `fi_setname`.
pub(super) fn move_all<'a, P: Provider>(
    pairs: &[Pair<P>],
    provider: &P,
    opening: impl FnOnce() -> Opening<'a>,
    address: Address,
) -> Result<(), EndpointError> {
    let mut states = lock_all(pairs, "changing the address")?;
    // Nobody changes it any more.
    let opening = opening();
    let row: Vec<Address> = states.iter().map(|state| state.address).collect();
    let opened = open_beside(provider, opening, &row, address).map_err(OpenError::from)?;
    let mut left: Vec<_> = states.iter_mut().map(|state| state.transport.take()).collect();
    for (index, (state, opened)) in states.iter_mut().zip(opened).enumerate() {
        let place = context_address(address, index as u64);
        let overlap = row.iter().position(|&at| Some(at) == place);
        state.transport = opened.or_else(|| left[overlap?].take());
        if let Some(transport) = &state.transport {
            state.address = transport.address();
        }
    }
    Ok(())
}

/// The states of the pairs of an endpoint none of whose contexts was enabled, nor will be while they are
/// held: `what` is about to happen to their transports.
fn lock_all<'a, P: Provider>(
    pairs: &'a [Pair<P>],
    what: &'static str,
) -> Result<Vec<MutexGuard<'a, State<P>>>, EndpointError> {
    let states: Vec<_> = pairs.iter().map(Pair::lock).collect();
    if states.iter().any(|state| state.unit.is_some()) {
        return Err(EndpointError::Enabled { what });
    }
    if states.iter().any(|state| state.transport.is_none()) {
        return Err(EndpointError::Closed { object: "scalable endpoint" });
    }
    Ok(states)
}

/// Has the transports of an endpoint be apart, or not: opened anew at the same ports, which have to be
/// free for them. What cannot be opened so is as it was.
pub(super) fn set_apart<P: Provider>(
    pairs: &[Pair<P>],
    provider: &P,
    opening: Opening<'_>,
    (apart, wanted): (&AtomicBool, bool),
) -> Result<(), EndpointError> {
    let mut states = lock_all(pairs, "choosing the way to peers")?;
    if apart.load(Ordering::Relaxed) == wanted {
        return Ok(());
    }
    let mut reopen = |count: usize, apart| -> Result<(), (usize, Cause)> {
        for (index, state) in states[..count].iter_mut().enumerate() {
            state.transport = None;
            let opened = open_at(provider, Opening { apart, ..opening }, state.address);
            state.transport = Some(opened.map_err(|error| (index, error))?);
        }
        Ok(())
    };
    if let Err((index, error)) = reopen(pairs.len(), wanted) {
        // If somebody has taken a port meanwhile, the endpoint is good for nothing any more.
        let _ = reopen(index + 1, !wanted);
        return Err(OpenError::from(error).into());
    }
    apart.store(wanted, Ordering::Relaxed);
    Ok(())
}

/// A context's place: what it is part of.
pub(crate) struct Seat<P: Provider> {
    endpoint: Arc<ScalableEndpoint<P>>,
    index: usize,
    direction: Direction,
}

impl<P: Provider> Seat<P> {
    pub(super) fn new(
        endpoint: Arc<ScalableEndpoint<P>>,
        index: usize,
        direction: Direction,
    ) -> Self {
        Seat { endpoint, index, direction }
    }

    pub(crate) fn address(&self) -> Address {
        self.endpoint.address()
    }

    pub(crate) fn address_at_once(&self) -> Option<Address> {
        self.endpoint.pairs[0].address_at_once()
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// What the whole endpoint can do.
    pub(crate) fn capabilities(&self) -> Flags {
        self.endpoint.options.capabilities
    }

    pub(crate) fn shared_transmit(&self) -> Option<&Arc<SharedTransmit<P>>> {
        self.endpoint.shared.transmit()
    }

    pub(crate) fn shared_receive(&self) -> Option<&Arc<SharedReceive<P>>> {
        self.endpoint.shared.receive()
    }

    pub(crate) fn address_vector(&self) -> Result<&Arc<AddressVector>, EndpointError> {
        self.endpoint.address_vector()
    }

    /// The keys of all contexts: those that the vector has now, if this is the first that is enabled.
    pub(crate) fn hold_keys(
        &self,
        vector: &Arc<AddressVector>,
    ) -> Result<Arc<HeldKeys>, EndpointError> {
        match &mut *self.endpoint.held_keys() {
            Some(held) => Ok(held.clone()),
            none => Ok(none.insert(Arc::new(vector.hold_auth_keys()?)).clone()),
        }
    }

    /// The context is enabled: the pair's unit, which has its direction from now on.
    pub(crate) fn join(&self, setup: Setup) -> Result<Arc<Unit<P>>, EndpointError> {
        let (pair, domain) = (&self.endpoint.pairs[self.index], &self.endpoint.domain);
        // As for an endpoint without contexts; but the unit may be made before the shared context is
        // bound, of which it would be asked whether it is triggered.
        let triggers =
            self.capabilities().contains(Flags::TRIGGER) || self.endpoint.options.shares_receive;
        let sharing = if triggers { Sharing::Shared } else { domain.sharing() };
        pair.join(domain, sharing, self.direction, setup)
    }

    /// The context is closed, once: what is posted to it is discarded.
    pub(crate) fn leave(&self) {
        self.endpoint.pairs[self.index].leave(self.direction);
        // Counted when it was opened, so this cannot fail.
        let _ = self.endpoint.uses.unbind();
    }
}

//! Endpoints. Reference: fi_endpoint(3).
//!
//! Opened on a domain, bound to queues, counters and an address vector, enabled,
//! used, closed. What is posted goes to the endpoint's engine; this folder checks
//! what the caller says and picks the flags, nothing else.

#[allow(unsafe_code)]
pub mod atomic;
pub mod buffered;
pub mod connection;
mod enable;
pub mod error;
#[allow(unsafe_code)]
pub mod message;
pub mod multicast;
pub mod one_sided;
pub mod options;
#[allow(unsafe_code)]
pub mod rma;
pub mod setup;
pub mod tagged;
pub mod triggered;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use buffered::{BufferingOptions, check_buffered_flags};
pub use error::{EndpointError, PostError};
pub use multicast::{Group, GroupError};
pub use options::{DefaultFlags, EndpointOptions, OptionName};
use setup::Bindings;

use crate::{
    address::Address,
    connection::request::ConnectionRequest,
    domain::{Domain, OpenError},
    engine::{report::Side, unit::Unit},
    flags::Flags,
    info::{DATAGRAM_CAPS, UNKEYED_CAPS},
    memory::Pieces,
    one_sided::RemotePost,
    operation::{IOV_LIMIT, ReceivePost, SendPost},
    primitive::{AtomicBool, AtomicU64, Ordering},
    protocol::datagram::Dropped,
    scalable_endpoint::pair::Seat,
    transport::{Provider, Transport},
    triggered::Deferrals,
};

/// A reliable endpoint: to many peers (`FI_EP_RDM`), or connected to one (`FI_EP_MSG`); or one of
/// datagrams, which may be lost (`FI_EP_DGRAM`).
pub struct Endpoint<P: Provider> {
    domain: Arc<Domain<P>>,
    options: EndpointOptions,
    address: Mutex<Address>,
    enabled: OnceLock<Enabled<P>>,
    /// Before it is enabled: the transport and what is bound. Never on the data path.
    bindings: Mutex<Bindings<P>>,
    /// What it was opened from, until it accepts.
    request: Mutex<Option<ConnectionRequest<P>>>,
    /// It was opened from a request, so it cannot connect.
    has_request: bool,
    /// The place of a context in its scalable endpoint.
    seat: Option<Seat<P>>,
    defaults: DefaultFlags,
    multi_receive_min: std::sync::atomic::AtomicUsize,
    buffering: BufferingOptions,
    /// Its operations that wait for a counter.
    deferrals: Arc<Deferrals>,
}

/// What posts need of an enabled endpoint: settled once, so that no post looks it up again.
struct Enabled<P: Provider> {
    unit: Arc<Unit<P>>,
    send: Rules,
    receive: Rules,
    /// No bits if the endpoint is connected and looks at no address: there is one peer.
    to_mask: u64,
    /// A context that is closed, whose engine lives on.
    is_closed: AtomicBool,
    /// All ones if receives cannot be directed, so that `from | from_any` is who may match.
    from_any: u64,
}

impl<P: Provider> Enabled<P> {
    #[inline(always)]
    fn remote(&self, mut post: RemotePost<'_>) -> Result<(), PostError> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(PostError::Closed);
        }
        post.to &= self.to_mask;
        self.unit.remote(post).map_err(|error| self.explain(error))
    }

    /// What is wrong if a connected endpoint's only address is not known.
    #[cold]
    fn explain(&self, error: PostError) -> PostError {
        match error {
            PostError::UnknownAddress { .. } if self.to_mask == 0 => PostError::NotConnected,
            error => error,
        }
    }
}

/// The flags of one direction's operations.
struct Rules {
    /// Flags that ask for nothing out of the ordinary. None, in a context that is closed.
    plain: AtomicU64,
    /// What each operation has beside its own flags: `COMPLETION` where the binding is not
    /// selective.
    added: Flags,
    /// Completion levels that nobody sees of what writes no entry: all, where no counter counts it.
    unseen: Flags,
}

impl Rules {
    fn new(plain: Flags, side: &Side) -> Rules {
        let added = if side.selective { Flags::empty() } else { Flags::COMPLETION };
        let unseen = if side.counter.is_some() { Flags::empty() } else { LEVELS };
        Rules { plain: AtomicU64::new(plain.bits()), added, unseen }
    }

    /// Whether an operation with these flags asks for nothing out of the ordinary.
    #[inline(always)]
    fn is_plain(&self, flags: Flags) -> bool {
        flags.bits() & !self.plain.load(Ordering::Relaxed) == 0
    }

    /// Has every operation be looked at, and refused.
    fn close(&self) {
        self.plain.store(0, Ordering::Relaxed);
    }
}

const FAMILY: Flags = Flags::TAGGED.union(Flags::MSG);

/// What an operation may ask for beside its default.
const SEND_FLAGS: Flags = Flags::REMOTE_CQ_DATA
    .union(Flags::COMPLETION)
    .union(Flags::MORE)
    .union(Flags::INJECT)
    .union(Flags::INJECT_COMPLETE)
    .union(Flags::TRANSMIT_COMPLETE)
    .union(Flags::DELIVERY_COMPLETE)
    .union(Flags::MATCH_COMPLETE)
    .union(Flags::FENCE);
/// When a send is complete.
const LEVELS: Flags =
    Flags::TRANSMIT_COMPLETE.union(Flags::DELIVERY_COMPLETE).union(Flags::MATCH_COMPLETE);
/// What transmit calls may have by default, each as far as it means something for it.
const TRANSMIT_FLAGS: Flags =
    SEND_FLAGS.union(Flags::MULTICAST).union(Flags::COMMIT_COMPLETE).union(Flags::TRANSMIT);
/// What datagrams cannot have: nobody says what has become of them.
const RELIABLE_FLAGS: Flags =
    Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE).union(Flags::FENCE);
pub(crate) const CLAIM_FLAGS: Flags = Flags::PEEK.union(Flags::CLAIM).union(Flags::DISCARD);
const RECEIVE_FLAGS: Flags = Flags::COMPLETION
    // Of receives it asks for less than they give: "Applies to fi_sendmsg and fi_recvmsg" (fi_msg(3)).
    .union(Flags::TRANSMIT_COMPLETE)
    .union(Flags::MORE)
    .union(Flags::PEEK)
    .union(Flags::CLAIM)
    .union(Flags::DISCARD)
    .union(Flags::MULTI_RECV);

impl<P: Provider> Endpoint<P> {
    /// Opens an endpoint, not yet enabled. Its address is reserved from now on.
    pub fn open(domain: &Arc<Domain<P>>, options: EndpointOptions) -> Result<Arc<Self>, OpenError> {
        if domain.provider().forked() {
            return Err(OpenError::ForkedChild);
        }
        let options = options.on(domain.options());
        let transport = domain.provider().open_as(options.opening())?;
        Self::open_over(domain, options, transport, None)
    }

    /// Opens a context of a scalable endpoint.
    pub(crate) fn open_at(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        seat: Seat<P>,
    ) -> Result<Arc<Self>, OpenError> {
        let address = seat.address();
        Self::open_as(domain, options, address, None, None, Some(seat))
    }

    fn open_over(
        domain: &Arc<Domain<P>>,
        options: EndpointOptions,
        transport: P::Transport,
        request: Option<ConnectionRequest<P>>,
    ) -> Result<Arc<Self>, OpenError> {
        let asked_at = request.as_ref().map(ConnectionRequest::listener);
        let address = asked_at.unwrap_or_else(|| transport.address());
        Self::open_as(domain, options, address, Some(transport), request, None)
    }

    fn open_as(
        domain: &Arc<Domain<P>>,
        mut options: EndpointOptions,
        address: Address,
        transport: Option<P::Transport>,
        request: Option<ConnectionRequest<P>>,
        seat: Option<Seat<P>>,
    ) -> Result<Arc<Self>, OpenError> {
        domain.uses().bind().map_err(|_| OpenError::Closed)?;
        if options.datagrams {
            options.capabilities &= DATAGRAM_CAPS;
        } else {
            options.capabilities.remove(Flags::MULTICAST);
        }
        if options.vector_keys {
            options.capabilities.remove(UNKEYED_CAPS);
        }
        Ok(Arc::new(Endpoint {
            domain: domain.clone(),
            address: Mutex::new(address),
            has_request: request.is_some(),
            request: Mutex::new(request),
            seat,
            defaults: DefaultFlags::of(&options),
            multi_receive_min: options.multi_receive_min.into(),
            buffering: BufferingOptions::new(&options),
            options,
            enabled: OnceLock::new(),
            deferrals: Arc::default(),
            bindings: Mutex::new(Bindings::new(transport)),
        }))
    }

    /// The address that peers insert to reach this endpoint.
    /// Reference: fi_cm(3), `fi_getname`.
    pub fn address(&self) -> Address {
        self.seat.as_ref().map_or_else(|| *self.lock_address(), Seat::address)
    }

    fn lock_address(&self) -> MutexGuard<'_, Address> {
        // An address is written whole.
        self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The domain that the endpoint was opened on.
    pub fn domain(&self) -> &Arc<Domain<P>> {
        &self.domain
    }

    /// What the endpoint was opened with.
    pub fn options(&self) -> &EndpointOptions {
        &self.options
    }

    /// Asks the transport something that only it knows. Cold.
    pub fn inspect<R>(&self, ask: impl FnOnce(&P::Transport) -> R) -> Result<R, PostError> {
        self.unit()?.with(|engine| ask(&engine.transport))
    }

    /// The longest message that it takes. Units: bytes.
    ///
    /// # Errors
    /// The endpoint is not enabled.
    pub fn message_max(&self) -> Result<usize, PostError> {
        Ok(self.unit()?.message_max())
    }

    /// Datagrams that were dropped so far, on the way out or in.
    ///
    /// # Errors
    /// The endpoint is not enabled, or closed.
    pub fn dropped(&self) -> Result<Dropped, PostError> {
        self.unit()?.with(|engine| engine.dropped())
    }

    #[inline(always)]
    fn enabled(&self) -> Result<&Enabled<P>, PostError> {
        self.enabled.get().ok_or(PostError::NotEnabled)
    }

    pub(crate) fn unit(&self) -> Result<&Arc<Unit<P>>, PostError> {
        Ok(&self.enabled()?.unit)
    }

    /// The flags of a send that names none (`tx_attr.op_flags`).
    #[inline(always)]
    pub fn default_send_flags(&self) -> Flags {
        self.defaults.send()
    }

    /// The flags of a receive call that names none (`rx_attr.op_flags`).
    #[inline(always)]
    pub fn default_receive_flags(&self) -> Flags {
        self.defaults.receive()
    }

    /// Sets the default flags of one direction: see [`DefaultFlags::set`].
    pub fn set_default_flags(&self, flags: Flags) -> Result<(), EndpointError> {
        self.defaults.set(flags)
    }

    /// The default flags of both directions, for an alias of this endpoint to begin with.
    pub fn default_flags(&self) -> &DefaultFlags {
        &self.defaults
    }

    /// Posts a send of either family: what every send call comes down to.
    ///
    /// `post.flags` are the operation's own flags, with `TAGGED` or `MSG`; they
    /// replace the endpoint's defaults. `COMPLETION` is added where the binding
    /// is not selective.
    ///
    /// Ownership: the pieces are the engine's until the completion, unless
    /// `INJECT`. Cost: no system call, no allocation, no lock, for a message of
    /// one packet to a connected peer.
    /// # Reference
    /// fi_msg(3), fi_tagged(3)
    #[inline(always)]
    pub fn post_send(&self, mut post: SendPost<'_>) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        post.flags |= enabled.send.added;
        self.post_send_by(enabled, post)
    }

    /// Posts a send, without `COMPLETION`, that writes no entry when it succeeds: what the inject calls
    /// come down to. It waits for no answer that nothing would tell of.
    #[inline(always)]
    pub fn post_unreported(&self, mut post: SendPost<'_>) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        post.flags = post.flags.difference(enabled.send.unseen);
        self.post_send_by(enabled, post)
    }

    #[inline(always)]
    fn post_send_by(&self, enabled: &Enabled<P>, mut post: SendPost<'_>) -> Result<(), PostError> {
        if !enabled.send.is_plain(post.flags) {
            self.check_flags(Flags::SEND, self.send_flags() | Flags::MULTICAST, post.flags)?;
            if post.flags.contains(Flags::MULTICAST) {
                return self.post_to_group(post);
            }
        }
        self.check_sent(&post)?;
        post.to &= enabled.to_mask;
        enabled.unit.send(post).map_err(|error| enabled.explain(error))
    }

    /// Posts a receive of either family: what every receive call comes down to.
    ///
    /// As [`Self::post_send`].
    /// # Reference
    /// fi_msg(3), fi_tagged(3)
    #[inline(always)]
    pub fn post_receive(&self, mut post: ReceivePost<'_>) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        if !enabled.receive.is_plain(post.flags) {
            self.check_flags(Flags::RECV, self.receive_flags(), post.flags)?;
            self.forget_ignored(&mut post);
        }
        self.check_pieces(&post.pieces)?;
        post.from |= enabled.from_any;
        post.flags |= enabled.receive.added;
        enabled.unit.receive(post)
    }

    /// Whether there is no such direction, `SEND` or `RECV`; without either there are both.
    fn lacks(&self, direction: Flags) -> bool {
        let capabilities = self.options.capabilities;
        capabilities.intersects(Flags::SEND | Flags::RECV) && !capabilities.contains(direction)
    }

    /// Flags that are not plain: wrong, or a peek, a claim or a discard; all of them, where the
    /// endpoint has no such `direction`.
    #[cold]
    #[inline(never)]
    fn check_flags(&self, direction: Flags, allowed: Flags, flags: Flags) -> Result<(), PostError> {
        if self.seat.is_some() && !self.lock_bindings().counted {
            return Err(PostError::Closed);
        }
        if direction == Flags::RECV && self.options.shares_receive {
            return Err(PostError::ReceivesAreShared);
        }
        if self.lacks(direction) {
            return Err(PostError::NotCapable { missing: direction });
        }
        if !(allowed | FAMILY).contains(flags) {
            return Err(PostError::BadFlags { flags });
        }
        let needed = flags & (FAMILY | Flags::MULTICAST);
        let missing = needed.difference(self.options.side(direction));
        if !missing.is_empty() {
            return Err(PostError::NotCapable { missing });
        }
        match direction == Flags::RECV && self.buffers() {
            true => check_buffered_flags(flags),
            false => check_claim_flags(flags),
        }
    }

    /// What may be asked of a receive: FI_AUTH_KEY where receives can be directed and keys are the
    /// vector's.
    fn receive_flags(&self) -> Flags {
        let directed = self.options.capabilities.contains(Flags::DIRECTED_RECV);
        let keyed = directed && self.options.vector_keys;
        if keyed { RECEIVE_FLAGS | Flags::AUTH_KEY } else { RECEIVE_FLAGS }
    }

    /// What may be asked of a send; not where it goes.
    fn send_flags(&self) -> Flags {
        if self.options.datagrams { SEND_FLAGS.difference(RELIABLE_FLAGS) } else { SEND_FLAGS }
    }

    #[inline(always)]
    fn check_inject(&self, length: usize) -> Result<(), PostError> {
        let limit = self.options.inject_size;
        if length > limit { Err(PostError::InjectTooLarge { length, limit }) } else { Ok(()) }
    }

    /// What is sent: not in too many pieces, nor injected and too long for that.
    #[inline(always)]
    fn check_sent(&self, post: &SendPost<'_>) -> Result<(), PostError> {
        self.check_pieces(&post.pieces)?;
        match post.flags.contains(Flags::INJECT) {
            true => self.check_inject(post.pieces.total()),
            false => Ok(()),
        }
    }

    #[inline(always)]
    fn check_pieces(&self, pieces: &Pieces<'_>) -> Result<(), PostError> {
        match pieces {
            Pieces::One(_) => Ok(()),
            Pieces::Many(pieces) if pieces.len() <= IOV_LIMIT => Ok(()),
            Pieces::Many(pieces) => {
                Err(PostError::TooManyPieces { count: pieces.len(), limit: IOV_LIMIT })
            }
        }
    }

    /// Cancels the first operation posted with `context` that can be canceled: here, not at the
    /// other context of a pair. It completes with FI_ECANCELED. Reference: fi_endpoint(3),
    /// `fi_cancel`.
    pub fn cancel(&self, context: u64) -> Result<(), PostError> {
        let only = self.seat.as_ref().map(Seat::direction);
        match self.unit()?.with(|engine| engine.cancel(context, only))? {
            Err(PostError::NothingToCancel { .. }) if self.deferrals.cancel(context) => Ok(()),
            canceled => canceled,
        }
    }

    /// "A lower bound on the number of transmit operations that may be posted … without that
    /// operation returning -FI_EAGAIN" (fi_endpoint(3), `fi_tx_size_left`): not more than can wait for
    /// another thread, which may drive the endpoint by then.
    pub fn sends_left(&self) -> Result<usize, PostError> {
        let unit = self.unit()?;
        let left = unit.with(|engine| engine.sends_left())?;
        Ok(left.min(unit.submissions_left()))
    }

    /// The same of receives, which nothing limits but what waits for another thread: `usize::MAX`
    /// where there is none. Reference: fi_endpoint(3), `fi_rx_size_left`.
    pub fn receives_left(&self) -> Result<usize, PostError> {
        let unit = self.unit()?;
        unit.with(|_| ())?;
        Ok(unit.submissions_left())
    }

    /// Closes the endpoint: pending operations are dropped without completions,
    /// and whatever is bound is released. A second close does nothing.
    pub fn close(&self) {
        drop(self.take_request());
        self.deferrals.close();
        let shared = self.lock_bindings().shared_receive.take();
        if let (Some(shared), Some(enabled)) = (&shared, self.enabled.get()) {
            shared.remove_unit(&enabled.unit);
        }
        let is_first = self.unbind_all();
        if let Some(seat) = self.seat.as_ref().filter(|_| is_first) {
            if let Some(Enabled { send, receive, is_closed, .. }) = self.enabled.get() {
                send.close();
                receive.close();
                is_closed.store(true, Ordering::Relaxed);
            }
            seat.leave();
        }
        let enabled = self.enabled.get().filter(|_| self.seat.is_none());
        if let Some(Enabled { unit, .. }) = enabled {
            self.domain.remove_unit(unit);
            unit.close();
        }
        if let Some(shared) = shared {
            // Counted when it was bound, so this cannot fail.
            let _ = shared.binds().unbind();
        }
    }
}

impl<P: Provider> Drop for Endpoint<P> {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) fn check_claim_flags(flags: Flags) -> Result<(), PostError> {
    if !flags.intersects(CLAIM_FLAGS) {
        return Ok(());
    }
    let peek_or_claim = flags.intersects(Flags::PEEK | Flags::CLAIM);
    if peek_or_claim && !flags.contains(Flags::MULTI_RECV) {
        return Ok(());
    }
    Err(PostError::BadFlags { flags })
}

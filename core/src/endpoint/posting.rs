//! Posting: what every send and every receive comes down to, and what each may ask for.
//! Reference: fi_endpoint(3), "Operation flags".

use std::sync::Arc;

use super::{Endpoint, PostError, buffered::check_buffered_flags};
use crate::{
    address_vector::FI_ADDR_UNSPEC,
    engine::{report::Side, unit::Unit},
    flags::{FAMILY, Flags},
    memory::Pieces,
    one_sided::RemotePost,
    operation::{IOV_LIMIT, ReceivePost, SendPost, set_down},
    primitive::{AtomicBool, AtomicU64, Ordering},
    transport::Provider,
};

/// What posts need of an enabled endpoint: settled once, so that no post looks it up again.
pub(super) struct Enabled<P: Provider> {
    pub(super) unit: Arc<Unit<P>>,
    pub(super) send: Rules,
    pub(super) receive: Rules,
    /// No bits if the endpoint is connected and looks at no address: there is one peer.
    pub(super) to_mask: u64,
    /// A context that is closed, whose engine lives on.
    pub(super) is_closed: AtomicBool,
    /// Whose receives can be directed.
    pub(super) from_any: FromAny,
}

/// Of each family all ones if its receives cannot be directed, so that `from | of(family)` is who may
/// match.
#[derive(Clone, Copy)]
pub(super) struct FromAny {
    untagged: u64,
    tagged: u64,
}

impl FromAny {
    /// For who has these capabilities. A connected endpoint has one peer.
    pub(super) fn of(capabilities: Flags, connected: bool) -> FromAny {
        let mask = |family| match capabilities.direct(family) && !connected {
            true => 0,
            false => FI_ADDR_UNSPEC,
        };
        FromAny { untagged: mask(Flags::MSG), tagged: mask(Flags::TAGGED) }
    }

    #[inline(always)]
    pub(super) fn of_family(self, family: Flags) -> u64 {
        if family.contains(Flags::TAGGED) { self.tagged } else { self.untagged }
    }
}

impl<P: Provider> Enabled<P> {
    #[inline(always)]
    pub(super) fn remote(&self, mut post: RemotePost<'_>) -> Result<(), PostError> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(PostError::Closed);
        }
        post.to &= self.to_mask;
        self.unit.remote(post)
    }
}

/// The flags of one direction's operations.
pub(super) struct Rules {
    /// Flags that ask for nothing out of the ordinary. None, in a context that is closed.
    plain: AtomicU64,
    /// What each operation has beside its own flags: `COMPLETION` where the binding is not
    /// selective.
    pub(super) added: Flags,
    /// Completion levels that nobody sees of what writes no entry: all, where no counter counts it.
    unseen: Flags,
}

impl Rules {
    pub(super) fn new(plain: Flags, side: &Side) -> Rules {
        let added = if side.selective { Flags::empty() } else { Flags::COMPLETION };
        let unseen = if side.counter.is_some() { Flags::empty() } else { LEVELS };
        Rules { plain: AtomicU64::new(plain.bits()), added, unseen }
    }

    /// Whether an operation with these flags asks for nothing out of the ordinary.
    #[inline(always)]
    pub(super) fn is_plain(&self, flags: Flags) -> bool {
        flags.bits() & !self.plain.load(Ordering::Relaxed) == 0
    }

    /// Has every operation be looked at, and refused.
    pub(super) fn close(&self) {
        self.plain.store(0, Ordering::Relaxed);
    }
}

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
/// With the first alone nobody would hear of an injected send again.
const UNTOLD: Flags = Flags::INJECT.union(Flags::COMPLETION).union(Flags::INJECT_COMPLETE);
/// The flags of a send that has a context. "Operations that fail asynchronously will still generate completions, even if
/// a completion is not requested" (fi_endpoint(3)): that is kept until it cannot fail any more.
#[inline(always)]
pub(super) fn reported(flags: Flags) -> Flags {
    if flags & UNTOLD == Flags::INJECT { flags | Flags::TRANSMIT_COMPLETE } else { flags }
}

/// When a send is complete.
const LEVELS: Flags =
    Flags::TRANSMIT_COMPLETE.union(Flags::DELIVERY_COMPLETE).union(Flags::MATCH_COMPLETE);
/// What transmit calls may have by default, each as far as it means something for it.
pub(super) const TRANSMIT_FLAGS: Flags =
    SEND_FLAGS.union(Flags::MULTICAST).union(Flags::COMMIT_COMPLETE).union(Flags::TRANSMIT);
/// What datagrams cannot have: nobody says what has become of them.
pub(super) const RELIABLE_FLAGS: Flags =
    Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE).union(Flags::FENCE);
pub(crate) const CLAIM_FLAGS: Flags = Flags::PEEK.union(Flags::CLAIM).union(Flags::DISCARD);
pub(crate) const RECEIVE_FLAGS: Flags = Flags::COMPLETION
    // Of receives it asks for less than they give: "Applies to fi_sendmsg and fi_recvmsg" (fi_msg(3)).
    .union(Flags::TRANSMIT_COMPLETE)
    // Means nothing here: "Applies to fi_sendmsg" (fi_msg(3)). Derecho's receives have it all the same.
    .union(Flags::REMOTE_CQ_DATA)
    .union(Flags::MORE)
    .union(Flags::PEEK)
    .union(Flags::CLAIM)
    .union(Flags::DISCARD)
    .union(Flags::MULTI_RECV);

impl<P: Provider> Endpoint<P> {
    /// Posts a send of either family: what every send call comes down to.
    ///
    /// `post.flags` are the operation's own flags, with `TAGGED` or `MSG`; they
    /// replace the endpoint's defaults. `COMPLETION` is added where the binding
    /// is not selective.
    ///
    /// Ownership: the pieces are the engine's until the completion, unless
    /// `INJECT`. Cost: no system call, no allocation, no lock, for a message of
    /// one packet to a connected peer.
    /// # Errors
    /// [`PostError`], and nothing has happened. [`PostError::Again`]: as many operations are under
    /// way as the transmit size allows, or an injected message finds no room; read completions, and
    /// try again. Else the endpoint is not enabled, closed or not connected, or something is wrong
    /// with the post: an address that the vector does not have, flags, a length, a capability. While
    /// another thread drives the endpoint a post is left to it, and what is wrong with its address
    /// is a failed completion.
    /// # Reference
    /// fi_msg(3), fi_tagged(3)
    #[inline(always)]
    pub fn post_send(&self, mut post: SendPost<'_>) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        post.flags = reported(post.flags | enabled.send.added);
        self.post_send_by(enabled, post)
    }

    /// Posts a send, without `COMPLETION`, that writes no entry when it succeeds: what the inject calls
    /// come down to. It waits for no answer that nothing would tell of.
    ///
    /// # Errors
    /// As [`Self::post_send`].
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
                return self.post_to_group(set_down(post));
            }
        }
        self.check_sent(&post)?;
        post.to &= enabled.to_mask;
        enabled.unit.send(post)
    }

    /// Posts a receive of either family: what every receive call comes down to.
    ///
    /// As [`Self::post_send`]; receives have no limit but that of posts which are left to another
    /// thread.
    /// # Errors
    /// As [`Self::post_send`]; [`PostError::ReceivesAreShared`] and [`PostError::NothingToPost`] where
    /// receives are posted elsewhere, or not at all.
    /// # Reference
    /// fi_msg(3), fi_tagged(3)
    #[inline(always)]
    pub fn post_receive(&self, mut post: ReceivePost<'_>) -> Result<(), PostError> {
        let enabled = self.enabled()?;
        if !enabled.receive.is_plain(post.flags) {
            self.check_flags(Flags::RECV, self.receive_flags(post.flags), post.flags)?;
            post.pieces = self.heeded(post.pieces, post.flags);
        }
        self.check_pieces(&post.pieces)?;
        post.from |= enabled.from_any.of_family(post.flags);
        post.flags |= enabled.receive.added;
        enabled.unit.receive(post)
    }

    /// Whether there is no such direction, `SEND` or `RECV`; without either there are both.
    pub(super) fn lacks(&self, direction: Flags) -> bool {
        let capabilities = self.options.capabilities;
        capabilities.intersects(Flags::SEND | Flags::RECV) && !capabilities.contains(direction)
    }

    /// Flags that are not plain: wrong, or a peek, a claim or a discard; all of them, where the
    /// endpoint has no such `direction`.
    #[cold]
    #[inline(never)]
    pub(super) fn check_flags(
        &self,
        direction: Flags,
        allowed: Flags,
        flags: Flags,
    ) -> Result<(), PostError> {
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

    /// What may be asked of a receive of `family`: FI_AUTH_KEY where it can be directed and keys are the
    /// vector's.
    pub(super) fn receive_flags(&self, family: Flags) -> Flags {
        let directed = self.options.capabilities.direct(family);
        let keyed = directed && self.options.vector_keys;
        if keyed { RECEIVE_FLAGS | Flags::AUTH_KEY } else { RECEIVE_FLAGS }
    }

    /// What may be asked of a send; not where it goes.
    pub(super) fn send_flags(&self) -> Flags {
        if self.options.datagrams { SEND_FLAGS.difference(RELIABLE_FLAGS) } else { SEND_FLAGS }
    }

    #[inline(always)]
    pub(super) fn check_inject(&self, length: usize) -> Result<(), PostError> {
        let limit = self.options.inject_size;
        if length > limit { Err(PostError::InjectTooLarge { length, limit }) } else { Ok(()) }
    }

    /// What is sent: not in too many pieces, nor injected and too long for that.
    #[inline(always)]
    pub(super) fn check_sent(&self, post: &SendPost<'_>) -> Result<(), PostError> {
        self.check_pieces(&post.pieces)?;
        match post.flags.contains(Flags::INJECT) {
            true => self.check_inject(post.pieces.total()),
            false => Ok(()),
        }
    }

    #[inline(always)]
    pub(super) fn check_pieces(&self, pieces: &Pieces<'_>) -> Result<(), PostError> {
        match pieces {
            Pieces::One(_) => Ok(()),
            Pieces::Many(pieces) if pieces.len() <= IOV_LIMIT => Ok(()),
            Pieces::Many(pieces) => {
                Err(PostError::TooManyPieces { count: pieces.len(), limit: IOV_LIMIT })
            }
        }
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

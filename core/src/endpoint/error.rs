//! What can be wrong with a call on an endpoint.

use crate::{
    address::Address,
    address_vector::AddressVectorError,
    bind_count::BindError,
    domain::OpenError,
    error::{Errno, HasErrno},
    flags::Flags,
    protocol::atomic::AtomicCall,
};

/// Why an operation was not posted. Nothing has happened then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No resources now: poll for completions and try again.
    #[error("no resources now; read completions and try again")]
    Again,
    /// The endpoint is not enabled yet.
    #[error("the endpoint is not enabled")]
    NotEnabled,
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Closed,
    /// The endpoint has no peer yet, or no more.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// What its peers were reached through has failed, as its event queue was told: nothing can come any more.
    #[error("the endpoint's device has failed")]
    NoTransport,
    /// The peer was not reached just now. Only calls that inject, and name no context, are refused so.
    #[error("{address} is not reached: {errno} ({})", .errno.name())]
    Unreachable {
        /// The peer's.
        address: Address,
        /// Why.
        errno: Errno,
    },
    /// The address vector knows no such address.
    #[error("the address vector has no address {address:#x}")]
    UnknownAddress {
        /// As given.
        address: u64,
    },
    /// The endpoint has its keys from the address vector, and none for this address.
    #[error(
        "address {address:#x} was inserted without an authorization key, or for one that the \
         endpoint was not enabled with"
    )]
    NotByOurKeys {
        /// As given.
        address: u64,
    },
    /// Too long to be injected.
    #[error("a message of {length} bytes cannot be injected: the limit is {limit}")]
    InjectTooLarge {
        /// Units: bytes.
        length: usize,
        /// Units: bytes.
        limit: usize,
    },
    /// No memory for the copy that the operation needs.
    #[error("no memory for a copy of {length} bytes")]
    NoMemory {
        /// Units: bytes.
        length: usize,
    },
    /// Longer than any message may be.
    #[error("a message of {length} bytes is longer than the limit of {limit}")]
    TooLong {
        /// Units: bytes.
        length: usize,
        /// Units: bytes.
        limit: usize,
    },
    /// Too many scatter-gather entries.
    #[error("{count} scatter-gather entries are more than the limit of {limit}")]
    TooManyPieces {
        /// As given.
        count: usize,
        /// `iov_limit`.
        limit: usize,
    },
    /// A one-sided operation's local and remote memory do not match.
    #[error("{local} bytes here and {remote} bytes at the target do not match")]
    LengthsDiffer {
        /// Units: bytes.
        local: usize,
        /// Units: bytes.
        remote: usize,
    },
    /// The remote memory of an atomic operation cuts an element.
    #[error("a segment cuts an element of {size} bytes")]
    BrokenElement {
        /// Units: bytes.
        size: usize,
    },
    /// The operation does not exist in this form, or on this type.
    #[error(
        "{operation:?} of {datatype:?} in the {form:?} form does not exist, or the device does not play it \
         (FI_KESTREL_NIC_ATOMICS=exclusive: single elements of 8 bytes)",
        operation = .call.operation, datatype = .call.datatype, form = .call.form
    )]
    NoSuchAtomic {
        /// As given.
        call: AtomicCall,
    },
    /// An atomic operation on nothing.
    #[error("an atomic operation has one element at least")]
    NoElements,
    /// The flags make no sense for this operation.
    #[error("flags {flags:?} do not fit the operation")]
    BadFlags {
        /// As given.
        flags: Flags,
    },
    /// The endpoint was opened without this capability.
    #[error("the endpoint was opened without {missing:?}")]
    NotCapable {
        /// The capability.
        missing: Flags,
    },
    /// What is received here goes to a shared receive context.
    #[error("receives are posted to the shared receive context, not to its endpoints")]
    ReceivesAreShared,
    /// The counter belongs to another domain.
    #[error("the {object} belongs to another domain")]
    OtherDomain {
        /// Which object.
        object: &'static str,
    },
    /// Deferred work cannot do this.
    #[error("{what} cannot be deferred work")]
    NotAsWork {
        /// What.
        what: &'static str,
    },
    /// "The completion_cntr field must be NULL for counter operations" (fi_trigger(3)).
    #[error("a deferred counter operation is counted by no other counter, and is always work")]
    CountedChange,
    /// The counter that would trigger the operation is closed, or the endpoint meanwhile.
    #[error("the triggering counter is closed, or the endpoint")]
    TriggerClosed,
    /// No operation under way has this context.
    #[error("no operation that can be canceled has context {context:#x}")]
    NothingToCancel {
        /// As given.
        context: u64,
    },
    /// Untagged messages are announced where they are buffered.
    #[error("untagged messages are announced where they are buffered: nothing is posted for them")]
    NothingToPost,
    /// No message was claimed with this context.
    #[error("no message was claimed with context {context:#x}")]
    NothingClaimed {
        /// As given.
        context: u64,
    },
    /// The message lies in no buffer that the endpoint has for several messages.
    #[error(
        "no buffer that was posted for several messages, with context {context:#x}, has it now"
    )]
    NotInBuffer {
        /// The buffer's.
        context: u64,
    },
    /// "The same fi_context structure used for an FI_PEEK + FI_CLAIM operation must be used by the
    /// paired FI_CLAIM request" (fi_tagged(3)): it can name one message.
    #[error("a message is claimed with context {context:#x} already")]
    ClaimedBefore {
        /// As given.
        context: u64,
    },
    /// The process is a forked child of the one that opened the endpoint.
    #[error("a forked child cannot use its parent's endpoint")]
    ForkedChild,
}

impl HasErrno for PostError {
    fn errno(&self) -> Errno {
        match self {
            PostError::Again => Errno::AGAIN,
            PostError::NoMemory { .. } => Errno::NOMEM,
            PostError::NotEnabled | PostError::Closed | PostError::TriggerClosed => {
                Errno::OPBADSTATE
            }
            PostError::OtherDomain { .. } => Errno::DOMAIN,
            PostError::NotAsWork { .. } => Errno::NOSYS,
            PostError::NotConnected => Errno::NOTCONN,
            PostError::NoTransport => Errno::NODEV,
            PostError::Unreachable { errno, .. } => *errno,
            PostError::NotByOurKeys { .. } => Errno::NOKEY,
            PostError::UnknownAddress { .. }
            | PostError::NothingToPost
            | PostError::CountedChange
            | PostError::NothingClaimed { .. }
            | PostError::NotInBuffer { .. }
            | PostError::ClaimedBefore { .. } => Errno::INVAL,
            PostError::InjectTooLarge { .. } | PostError::TooLong { .. } => Errno::MSGSIZE,
            PostError::TooManyPieces { .. }
            | PostError::LengthsDiffer { .. }
            | PostError::NoElements
            | PostError::BrokenElement { .. } => Errno::INVAL,
            PostError::NoSuchAtomic { .. } => Errno::OPNOTSUPP,
            PostError::BadFlags { .. } => Errno::BADFLAGS,
            PostError::NotCapable { .. }
            | PostError::ReceivesAreShared
            | PostError::ForkedChild => Errno::OPNOTSUPP,
            PostError::NothingToCancel { .. } => Errno::NOENT,
        }
    }
}

/// Why an endpoint could not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Objects are still bound to it.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It is enabled, and this can only be done before.
    #[error("the endpoint is enabled: {what} can only be done before")]
    Enabled {
        /// What was tried.
        what: &'static str,
    },
    /// The object belongs to another domain.
    #[error("the {object} belongs to another domain")]
    OtherDomain {
        /// Which object.
        object: &'static str,
    },
    /// Something is bound there already.
    #[error("a {object} is already bound for {flags:?}")]
    AlreadyBound {
        /// Which object.
        object: &'static str,
        /// For which directions.
        flags: Flags,
    },
    /// The binding's flags make no sense.
    #[error("flags {flags:?} do not fit a binding to a {object}")]
    BadFlags {
        /// Which object.
        object: &'static str,
        /// As given.
        flags: Flags,
    },
    /// The object to be bound is closed.
    #[error("the {object} is closed")]
    Closed {
        /// Which object.
        object: &'static str,
    },
    /// No completion queue for a direction that the endpoint has. A counter does not stand for one, since
    /// errors are told in the queue.
    #[error("no completion queue is bound for {direction}; a counter alone does not do")]
    NoCompletionQueue {
        /// `transmit` or `receive`.
        direction: &'static str,
    },
    /// The endpoint was opened to use a shared context, and none is bound.
    #[error("no shared context is bound for {direction}")]
    NoSharedContext {
        /// `transmit` or `receive`.
        direction: &'static str,
    },
    /// The endpoints of a shared receive context have one address vector, and this is another.
    #[error("the shared receive context is used with another address vector")]
    OtherAddressVector,
    /// No event queue: connected endpoints need one.
    #[error("no event queue is bound")]
    NoEventQueue,
    /// The object has no place at an endpoint of this type.
    #[error("an endpoint of this type is not bound to a {object}")]
    NotForThisType {
        /// Which object.
        object: &'static str,
    },
    /// The scalable endpoint has no context of that index.
    #[error("there is no context {index}: there are {count} of its direction")]
    NoSuchContext {
        /// As given.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The context is open already.
    #[error("context {index} is open already")]
    ContextOpen {
        /// As given.
        index: usize,
    },
    /// A context, or what shares one, is to do what its endpoint cannot.
    #[error("what it is part of was opened without {missing:?}")]
    BeyondEndpoint {
        /// The capabilities.
        missing: Flags,
    },
    /// Of endpoint and address vector one was opened with FI_AV_AUTH_KEY and the other without.
    #[error(
        "the endpoint and its address vector differ: authorization keys in the vector are {}",
        if *.wanted { "asked for, and it takes none" } else { "not asked for, and it has them" }
    )]
    OtherKeys {
        /// Whether the endpoint asks for them.
        wanted: bool,
    },
    /// The address vector refuses.
    #[error(transparent)]
    AddressVector(#[from] AddressVectorError),
    /// No address vector.
    #[error("no address vector is bound")]
    NoAddressVector,
    /// The option does not exist, or not for this endpoint.
    #[error("option {option} is not known")]
    UnknownOption {
        /// As given.
        option: i32,
    },
    /// Peers of this host are reached through shared memory, or not at all.
    #[error("without shared memory there is no way to peers of this host")]
    SharedMemoryAlone,
    /// The option's value is more than there can be.
    #[error("value {value} of {option} is more than {limit}")]
    OptionTooLarge {
        /// Which option.
        option: &'static str,
        /// As given.
        value: usize,
        /// The most.
        limit: usize,
    },
    /// The option's value is out of bounds.
    #[error("value {value} of {option} is outside {bounds}")]
    BadOptionValue {
        /// Which option.
        option: &'static str,
        /// As given.
        value: usize,
        /// What is allowed.
        bounds: &'static str,
    },
}

impl HasErrno for EndpointError {
    fn errno(&self) -> Errno {
        match self {
            EndpointError::Open(error) => error.errno(),
            EndpointError::Bind(error) => error.errno(),
            EndpointError::AddressVector(error) => error.errno(),
            EndpointError::Enabled { .. } | EndpointError::NoSharedContext { .. } => {
                Errno::OPBADSTATE
            }
            EndpointError::OtherDomain { .. } => Errno::DOMAIN,
            EndpointError::AlreadyBound { .. }
            | EndpointError::BadOptionValue { .. }
            | EndpointError::NotForThisType { .. }
            | EndpointError::NoSuchContext { .. }
            | EndpointError::OtherAddressVector
            | EndpointError::OtherKeys { .. }
            | EndpointError::BeyondEndpoint { .. } => Errno::INVAL,
            EndpointError::ContextOpen { .. } => Errno::BUSY,
            EndpointError::NoEventQueue => Errno::NOEQ,
            EndpointError::BadFlags { .. } => Errno::BADFLAGS,
            EndpointError::Closed { .. } => Errno::BADF,
            EndpointError::NoCompletionQueue { .. } => Errno::NOCQ,
            EndpointError::NoAddressVector => Errno::NOAV,
            EndpointError::UnknownOption { .. } => Errno::NOPROTOOPT,
            EndpointError::SharedMemoryAlone => Errno::OPNOTSUPP,
            EndpointError::OptionTooLarge { .. } => Errno::MSGSIZE,
        }
    }
}

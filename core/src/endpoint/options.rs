//! What an endpoint is opened with, and what can be changed later.
//! Reference: fi_endpoint(3), `fi_getopt`, `fi_setopt`.

use super::{
    Endpoint, EndpointError,
    posting::{CLAIM_FLAGS, RECEIVE_FLAGS, RELIABLE_FLAGS, TRANSMIT_FLAGS},
};
use crate::{
    address::Address,
    config::Config,
    connection::CM_DATA_SIZE,
    domain::{DomainOptions, OpenError},
    flags::Flags,
    info::{INJECT_SIZE_MAX, MessageOrder, RX_CAPS, TX_CAPS, TX_SIZE_MAX, dscp_on_the_wire},
    primitive::{AtomicU64, Ordering},
    scalable_endpoint::pair::{Direction, Seat},
    transport::{Opening, Provider, Purpose, Service},
};

/// The least room that a multi-receive buffer keeps, if nobody says. Units: bytes.
const MULTI_RECEIVE_MIN_DEFAULT: usize = 64;

/// What an endpoint is opened with.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// Where to listen; none, or port 0: the provider chooses.
    pub address: Option<Address>,
    /// What failures of operations tell that have no context of their own, but 0: opaque here.
    pub context: u64,
    /// "Only peer endpoints that are programmed to use the same authorization key may
    /// communicate." At most 512 bytes; empty: the provider's own.
    pub auth_key: Vec<u8>,
    /// Its keys are instead those that its address vector has when it is enabled
    /// (FI_AV_AUTH_KEY).
    pub vector_keys: bool,
    /// Of [`Flags`]: `MSG`, `TAGGED`, `SEND`, `RECV`, `DIRECTED_RECV`, `RMA`, …
    pub capabilities: Flags,
    /// Of the capabilities, those that it transmits with (`tx_attr.caps`).
    pub transmit_capabilities: Flags,
    /// Of the capabilities, those that it receives with (`rx_attr.caps`).
    pub receive_capabilities: Flags,
    /// Sends that may be under way before a post answers `Again`: 1 to [`TX_SIZE_MAX`].
    pub transmit_size: usize,
    /// The longest injected message: at most [`INJECT_SIZE_MAX`]. Units: bytes.
    pub inject_size: usize,
    /// Flags of transmit calls that name none.
    pub transmit_flags: Flags,
    /// Flags of receive calls that name none.
    pub receive_flags: Flags,
    /// What its packets are marked with, where they travel through a network. Reference:
    /// fi_endpoint(3), `tclass`; 0: as its domain says.
    pub traffic_class: u32,
    /// FI_OPT_MIN_MULTI_RECV at the start. Units: bytes.
    pub multi_receive_min: usize,
    /// It uses a shared transmit context (`tx_ctx_cnt` is FI_SHARED_CONTEXT).
    pub shares_transmit: bool,
    /// It uses a shared receive context (`rx_ctx_cnt` is FI_SHARED_CONTEXT).
    pub shares_receive: bool,
    /// Whether messages are received into memory of the provider's and announced
    /// (FI_BUFFERED_RECV). With the capability `VARIABLE_MSG` they are anyway.
    pub buffered: bool,
    /// Whether it has one peer, to which it connects (`FI_EP_MSG`), or many (`FI_EP_RDM`).
    pub connected: bool,
    /// Whether its messages are datagrams (`FI_EP_DGRAM`): each is one packet, and may be lost.
    pub datagrams: bool,
    /// Which operations to one peer keep their order (`tx_attr.msg_order`). All do but one-sided ones
    /// behind messages, where that is not asked for (FI_ORDER_WAS, FI_ORDER_RAS).
    pub message_order: MessageOrder,
    /// Whether what is submitted completes in that order (`tx_attr.comp_order` is
    /// FI_ORDER_STRICT): of operations to one peer, or of all datagrams.
    pub transmits_in_order: bool,
    /// Whether what is matched completes in that order (`rx_attr.comp_order` is
    /// FI_ORDER_STRICT): of messages from one peer.
    pub receives_in_order: bool,
    /// Whether received data is written into memory in order (`rx_attr.comp_order` has
    /// FI_ORDER_DATA): of one operation, and of messages from one peer.
    pub data_in_order: bool,
    /// Whether a socket endpoint stands on it, which drives it with threads of its own.
    pub under_socket: bool,
}

impl EndpointOptions {
    /// What an endpoint on a domain like this is opened with: "If tclass is unset or set to
    /// FI_TC_UNSPEC, the endpoint will use the default traffic class associated with the domain"
    /// (fi_endpoint(3)).
    pub(crate) fn on(mut self, domain: &DomainOptions) -> Self {
        if self.traffic_class == 0 {
            self.traffic_class = domain.traffic_class;
        }
        self
    }

    /// Refuses sizes that no endpoint can have: by the limits that discovery goes by.
    pub(crate) fn check_sizes(&self) -> Result<(), OpenError> {
        let sizes = [
            ("transmit_size", self.transmit_size, 1, TX_SIZE_MAX),
            ("inject_size", self.inject_size, 0, INJECT_SIZE_MAX),
        ];
        match sizes.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            Some((option, value, least, most)) => {
                Err(OpenError::BadSize { option, value, least, most })
            }
            None => Ok(()),
        }
    }

    /// What its transport is opened with.
    pub(crate) fn opening(&self) -> Opening<'_> {
        let service = if self.datagrams { Service::Datagrams } else { Service::Reliable };
        let (address, auth_key) = (self.address, &self.auth_key);
        // Who asks for a connection is put off as long as nobody takes it.
        let keys_follow = self.vector_keys || self.connected;
        let dscp = dscp_on_the_wire(self.traffic_class);
        let purpose = if self.connected { Purpose::Connection } else { Purpose::Peers };
        Opening { address, auth_key, keys_follow, service, purpose, dscp, ..Opening::default() }
    }

    /// What it can do on one side, `SEND` or `RECV`: "fine grained control over the transmit
    /// capabilities associated with an endpoint" (fi_endpoint(3)).
    #[inline]
    pub(crate) fn side(&self, direction: Flags) -> Flags {
        if direction == Flags::RECV { self.receives() } else { self.transmits() }
    }

    /// What it can do that begins here.
    pub fn transmits(&self) -> Flags {
        self.capabilities & self.transmit_capabilities
    }

    /// What it can do that others begin.
    pub fn receives(&self) -> Flags {
        self.capabilities & self.receive_capabilities
    }

    /// Whether messages are announced, and nothing but tags is posted for them.
    pub(crate) fn buffers(&self) -> bool {
        self.buffered || self.capabilities.contains(Flags::VARIABLE_MSG)
    }
}

impl Default for EndpointOptions {
    fn default() -> Self {
        let config = Config::default();
        EndpointOptions {
            address: None,
            context: 0,
            auth_key: Vec::new(),
            vector_keys: false,
            capabilities: Flags::MSG
                | Flags::TAGGED
                | Flags::SEND
                | Flags::RECV
                | Flags::DIRECTED_RECV
                | Flags::MULTI_RECV
                | Flags::SOURCE
                | Flags::RMA
                | Flags::ATOMIC
                | Flags::READ
                | Flags::WRITE
                | Flags::REMOTE_READ
                | Flags::REMOTE_WRITE
                | Flags::RMA_EVENT
                | Flags::MULTICAST,
            transmit_capabilities: TX_CAPS,
            receive_capabilities: RX_CAPS,
            transmit_size: config.tx_size,
            inject_size: config.inject_size,
            transmit_flags: Flags::empty(),
            receive_flags: Flags::empty(),
            traffic_class: 0,
            multi_receive_min: MULTI_RECEIVE_MIN_DEFAULT,
            shares_transmit: false,
            shares_receive: false,
            buffered: false,
            connected: false,
            datagrams: false,
            message_order: MessageOrder::all(),
            transmits_in_order: false,
            receives_in_order: false,
            data_in_order: false,
            under_socket: false,
        }
    }
}

/// Options of fi_endpoint(3) at level FI_OPT_ENDPOINT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionName {
    /// FI_OPT_MIN_MULTI_RECV: a multi-receive buffer with less room is released.
    MinMultiRecv,
    /// FI_OPT_CM_DATA_SIZE: data that goes with a connection; 0 where there are none.
    CmDataSize,
    /// FI_OPT_BUFFERED_MIN: how much of a long message is announced with it, at least.
    BufferedMin,
    /// FI_OPT_BUFFERED_LIMIT: the longest message that is announced whole.
    BufferedLimit,
    /// FI_OPT_SHARED_MEMORY_PERMITTED, 0 or 1: see [`Endpoint::permit_shared_memory`]. "This option
    /// only applies to the fi_setopt call."
    SharedMemoryPermitted = 11,
}

impl OptionName {
    /// The option with libfabric's number.
    pub fn from_number(option: i32) -> Result<OptionName, EndpointError> {
        match option {
            0 => Ok(OptionName::MinMultiRecv),
            1 => Ok(OptionName::CmDataSize),
            2 => Ok(OptionName::BufferedMin),
            3 => Ok(OptionName::BufferedLimit),
            11 => Ok(OptionName::SharedMemoryPermitted),
            _ => Err(EndpointError::UnknownOption { option }),
        }
    }
}

impl<P: Provider> Endpoint<P> {
    pub(super) fn multi_receive_min(&self) -> usize {
        self.multi_receive_min.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// "Defines the minimum receive buffer space available when the receive buffer is released":
    /// a transmit context has no receive buffers, and those of the receive context beside it are
    /// not its own.
    fn check_receives(&self, name: OptionName) -> Result<(), EndpointError> {
        let transmits = self.seat.as_ref().map(Seat::direction) == Some(Direction::Transmit);
        match transmits || self.options.shares_receive {
            true => Err(EndpointError::UnknownOption { option: name as i32 }),
            false => Ok(()),
        }
    }

    /// The value of an option. Units: bytes.
    ///
    /// # Errors
    /// The endpoint does not buffer, and asked is how much of a message. It is a transmit context,
    /// and the option is about receives.
    pub fn option(&self, name: OptionName) -> Result<usize, EndpointError> {
        Ok(match name {
            OptionName::MinMultiRecv => {
                self.check_receives(name)?;
                self.multi_receive_min()
            }
            OptionName::CmDataSize if self.options.connected => CM_DATA_SIZE,
            OptionName::CmDataSize => 0,
            OptionName::BufferedMin | OptionName::BufferedLimit => self.buffering.option(name)?,
            OptionName::SharedMemoryPermitted => {
                return Err(EndpointError::UnknownOption { option: name as i32 });
            }
        })
    }

    /// Sets an option. Units: bytes.
    ///
    /// # Errors
    /// As [`Self::option`], and the endpoint does not buffer for either option of buffering; it
    /// cannot have this value.
    pub fn set_option(&self, name: OptionName, value: usize) -> Result<(), EndpointError> {
        match name {
            OptionName::MinMultiRecv => {
                self.check_receives(name)?;
                self.multi_receive_min.store(value, std::sync::atomic::Ordering::Relaxed);
                if let Ok(unit) = self.unit() {
                    // A closed endpoint has nothing to set it on.
                    let _ = unit.with(|engine| engine.setup.multi_receive_min = value);
                }
                Ok(())
            }
            OptionName::CmDataSize => {
                let option = "FI_OPT_CM_DATA_SIZE";
                Err(EndpointError::BadOptionValue { option, value, bounds: "read-only" })
            }
            OptionName::BufferedMin | OptionName::BufferedLimit => {
                self.buffering.check(name)?;
                // "The threshold must be set prior to enabling the endpoint."
                let _bindings = self.open_bindings("setting how much is buffered")?;
                let budget = self.domain.options().unexpected_budget;
                self.buffering.set_option(name, value, budget as usize)
            }
            OptionName::SharedMemoryPermitted => self.permit_shared_memory(value != 0),
        }
    }
}

/// The flags of calls that name none, for each direction. Each kind of call has those of them that
/// mean something for it.
pub struct DefaultFlags {
    transmit: AtomicU64,
    receive: AtomicU64,
    /// What can be set of transmit calls, and of receives.
    offered: [Flags; 2],
    /// Those of receives that tagged ones do not have.
    untagged: Flags,
}

fn bad_flags(flags: Flags) -> EndpointError {
    EndpointError::BadFlags { object: "default operation", flags }
}

impl Clone for DefaultFlags {
    fn clone(&self) -> Self {
        let [transmit, receive] = [self.transmit(), self.receive()].map(|it| it.bits().into());
        DefaultFlags { transmit, receive, offered: self.offered, untagged: self.untagged }
    }
}

impl DefaultFlags {
    /// Those that an endpoint is opened with, `tx_attr.op_flags` and `rx_attr.op_flags`.
    pub fn of(options: &EndpointOptions) -> Self {
        // What each call says by itself is not for all.
        let mut transmits = TRANSMIT_FLAGS.difference(Flags::REMOTE_CQ_DATA);
        if options.datagrams {
            transmits.remove(RELIABLE_FLAGS | Flags::COMMIT_COMPLETE);
        }
        if !options.capabilities.contains(Flags::MULTICAST) {
            transmits.remove(Flags::MULTICAST);
        }
        let mut receives =
            RECEIVE_FLAGS.difference(CLAIM_FLAGS | Flags::REMOTE_CQ_DATA) | Flags::RECV;
        if options.buffers() {
            // Its receives are posted tags, which have no buffer.
            receives.remove(Flags::MULTI_RECV);
        }
        let offered = match Direction::only_of(options.capabilities) {
            None => [transmits, receives],
            Some(Direction::Transmit) => [transmits, Flags::empty()],
            Some(Direction::Receive) => [Flags::empty(), receives],
        };
        let [transmit, receive] =
            [options.transmit_flags, options.receive_flags].map(|flags| flags.bits().into());
        let has_many = options.side(Flags::RECV).contains(Flags::TAGGED_MULTI_RECV);
        let untagged = if has_many { Flags::empty() } else { Flags::MULTI_RECV };
        DefaultFlags { transmit, receive, offered, untagged }
    }

    /// All of transmit calls.
    #[inline(always)]
    pub fn transmit(&self) -> Flags {
        Flags::from_bits_retain(self.transmit.load(Ordering::Relaxed))
    }

    /// Of sends.
    #[inline(always)]
    pub fn send(&self) -> Flags {
        self.transmit().difference(Flags::COMMIT_COMPLETE)
    }

    /// Of writes.
    #[inline(always)]
    pub fn write(&self) -> Flags {
        self.transmit().difference(Flags::MATCH_COMPLETE)
    }

    /// Of atomic operations. With `INJECT` "all outbound data buffers should be returned to the
    /// user's control immediately" (fi_endpoint(3)): operands and what is compared with, and not
    /// where results go.
    #[inline(always)]
    pub fn atomic(&self) -> Flags {
        self.write().difference(Flags::REMOTE_CQ_DATA)
    }

    /// Of reads, which have no outbound data.
    #[inline(always)]
    pub fn read(&self) -> Flags {
        self.atomic().difference(Flags::INJECT | Flags::COMMIT_COMPLETE)
    }

    /// What an inject call has of the flags of the same call without: it "behaves as if the FI_INJECT
    /// transfer flag were set, selective completions are enabled, and the FI_COMPLETION flag is not
    /// specified" (fi_msg(3)). It has no context that would say when it is triggered.
    #[inline(always)]
    pub fn injected(flags: Flags) -> Flags {
        flags.difference(Flags::COMPLETION | Flags::TRIGGER) | Flags::INJECT
    }

    /// Of receive calls.
    #[inline(always)]
    pub fn receive(&self) -> Flags {
        Flags::from_bits_retain(self.receive.load(Ordering::Relaxed))
    }

    /// Of receive calls of one family. With a tag, FI_MULTI_RECV "applies to posted tagged receive
    /// operations when the FI_TAGGED_MULTI_RECV capability is enabled" (fi_tagged(3)): who does not know
    /// of that has a buffer back with its first message.
    #[inline(always)]
    pub fn receive_of(&self, family: Flags) -> Flags {
        let left = if family.contains(Flags::TAGGED) { self.untagged } else { Flags::empty() };
        self.receive().difference(left)
    }

    /// Those of one direction: "The control argument must include FI_TRANSMIT or FI_RECV (not both)
    /// flags to indicate the type of data transfer flags to be returned" (fi_endpoint(3),
    /// FI_GETOPSFLAG). What else it includes says nothing: an argument that was used before holds
    /// the flags that it was used for.
    pub fn get(&self, asked: Flags) -> Result<Flags, EndpointError> {
        match Direction::of(asked) {
            Some(Direction::Transmit) => Ok(self.transmit()),
            Some(Direction::Receive) => Ok(self.receive()),
            None => Err(bad_flags(asked)),
        }
    }

    /// Sets those of one direction: the one whose bit, `TRANSMIT` or `RECV`, is set.
    /// Reference: fi_endpoint(3), FI_SETOPSFLAG: "setting FI_TRANSMIT or FI_RECV … it is
    /// an error to set both"; and `fi_ep_alias`.
    ///
    /// # Errors
    /// No direction, or both; a flag that no such call can have here.
    pub fn set(&self, flags: Flags) -> Result<(), EndpointError> {
        self.set_with(flags, Flags::empty())
    }

    /// The same, with flags that a caller has a meaning for which posts have none for.
    pub fn set_with(&self, flags: Flags, more: Flags) -> Result<(), EndpointError> {
        let (target, allowed) = match Direction::of(flags) {
            Some(Direction::Transmit) => (&self.transmit, self.offered[0]),
            Some(Direction::Receive) => (&self.receive, self.offered[1]),
            None => return Err(bad_flags(flags)),
        };
        if !(allowed | more).contains(flags) {
            return Err(bad_flags(flags));
        }
        let flags = flags.difference(Flags::TRANSMIT | Flags::RECV);
        target.store(flags.bits(), Ordering::Relaxed);
        Ok(())
    }
}

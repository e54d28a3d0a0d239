#![warn(missing_docs)]
#![doc = include_str!("../README.md")]
//!
//! # The map
//!
//! This crate is the facade: it composes what the crates below offer.
//! [`discovery`] says what there is, [`settings`] what the environment asks for,
//! [`objects`] opens domains and endpoints, [`address_vectors`] what they share with other
//! processes. [`composite`] puts two transports behind
//! one endpoint: shared memory, and RDMA ([`rdma`]). What their calls take and return is
//! re-exported from [`kestrel_core`], so that a program needs this crate alone.
//!
//! # Memory that peers reach
//!
//! Peers write and read registered memory by themselves, and with automatic progress
//! the program need not call anything meanwhile. Here an endpoint is its own peer:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use kestrel::{
//!     AddressVector, CompletionQueue, Entry, Flags, Hints, MemoryRange, MemoryRegionAttributes,
//!     Progress, ProgressMode,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hints = Hints::new().caps(Flags::RMA).data_progress(Progress::Auto);
//! let info = kestrel::discover(Some(&hints))?.remove(0);
//! // It is there before the objects that reach it, and so outlives them also where an error ends this.
//! let mut memory = [0_u8; 4096];
//! let place = memory.as_mut_ptr();
//! let domain = kestrel::open_domain(&info)?;
//! assert_ne!(domain.options().progress, ProgressMode::Manual);
//! let endpoint = kestrel::open_endpoint(&domain, &info)?;
//! let queue = CompletionQueue::open(&domain, 0)?;
//! let peers = Arc::new(AddressVector::open(Default::default())?);
//! endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV)?;
//! endpoint.bind_address_vector(&peers)?;
//! endpoint.enable()?;
//! let me = peers.insert_one(endpoint.address())?;
//!
//! let attributes = MemoryRegionAttributes {
//!     ranges: &[MemoryRange { address: place as u64, len: memory.len() as u64 }],
//!     access: Flags::REMOTE_READ | Flags::REMOTE_WRITE,
//!     ..Default::default()
//! };
//! // SAFETY: nothing refers to the memory until the region is closed, or the endpoint that peers reach
//! // it by, which an error drops before the memory.
//! let region = unsafe { domain.register_memory(&attributes)? };
//! endpoint.write(b"hello".to_vec(), me, region.base() + 8, region.key(), 1)?;
//! let mut entries = [Entry::default()];
//! queue.read_blocking(&mut entries, Some(Duration::from_secs(5)))?;
//! domain.close_memory(&region)?;
//! assert_eq!(&memory[8..13], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Connections
//!
//! Connected endpoints ([`EndpointType::Msg`]) have one peer each. Who listens hears of a request by an event,
//! takes it, and opens the endpoint that accepts it. Here both ends report to one event queue, by which they
//! are told apart; reading it drives both:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use kestrel::{
//!     CompletionQueue, Endpoint, EndpointType, Entry, Event, EventQueue, EventRead, FI_ADDR_UNSPEC,
//!     Flags, Hints,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let patience = Some(Duration::from_secs(5));
//! let info = kestrel::discover(Some(&Hints::new().endpoint_type(EndpointType::Msg)))?.remove(0);
//! let domain = kestrel::open_domain(&info)?;
//! let queue = CompletionQueue::open(&domain, 0)?;
//! let events = Arc::new(EventQueue::open(Default::default())?);
//! let bind = |endpoint: &Endpoint, name| -> Result<(), kestrel::EndpointError> {
//!     endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV)?;
//!     endpoint.bind_event_queue(&events, name)
//! };
//!
//! let listener = kestrel::open_passive_endpoint(&info)?;
//! listener.bind_event_queue(&events, 1)?;
//! listener.listen()?;
//!
//! let caller = kestrel::open_endpoint(&domain, &info)?;
//! bind(&caller, 2)?;
//! caller.connect(listener.address(), b"may I?")?;
//!
//! let asked = events.read_blocking(patience);
//! let EventRead::Event(Event::ConnectionRequest { fid: 1, info, data }) = asked else {
//!     panic!("{asked:?}");
//! };
//! assert_eq!(data, b"may I?");
//! let request = listener.take(info.handle)?;
//! let answerer = kestrel::open_endpoint_for(&domain, &info, request)?;
//! bind(&answerer, 3)?;
//! answerer.accept(b"do")?;
//! for _ in 0..2 {
//!     let made = events.read_blocking(patience);
//!     assert!(matches!(made, EventRead::Event(Event::Connected { fid: 2 | 3, .. })), "{made:?}");
//! }
//!
//! // The address says nothing: there is one peer.
//! answerer.receive(vec![0; 64], FI_ADDR_UNSPEC, 1)?;
//! caller.send(b"hello".to_vec(), 0, 2)?;
//! let mut entries = [Entry::default()];
//! for _ in 0..2 {
//!     queue.read_blocking(&mut entries, patience)?;
//!     let buffer = entries[0].take_buffer().expect("both give their buffers back");
//!     assert_eq!(&buffer[..5], b"hello");
//! }
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

pub mod address_vectors;
pub mod composite;
pub mod discovery;
pub mod objects;
pub mod rdma;
pub mod settings;

pub use composite::Traffic;
pub use discovery::{DiscoveryError, discover, discover_at};
pub use objects::{
    CompletionQueue, ConnectionRequest, Counter, CounterWait, Domain, Endpoint, Group,
    PassiveEndpoint, Provider, QueueWait, ScalableEndpoint, SharedReceive, SharedTransmit,
    SocketEndpoint, Threshold, Work, open_domain, open_domain_exclusive, open_endpoint,
    open_endpoint_for, open_passive_endpoint, open_passive_endpoint_with, open_scalable_endpoint,
    open_socket, traffic,
};

// Addresses, and what is looked for.
pub use kestrel_core::{
    address::{Address, AddressError, AddressFormat},
    address_vector::{
        AddressVector, AddressVectorAttributes, AddressVectorError, AddressVectorFlags, Candidate,
        FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FiAddr, Insertion, Marks, SharedMemory, SymmetricRange,
        fi_rx_addr,
    },
    connection::CM_DATA_SIZE,
    flags::Flags,
    info::{
        AddressVectorKind, ApiVersion, CompletionFormat, CompletionOrder, DomainAttributes,
        DomainHints, EndpointAttributes, EndpointHints, EndpointType, FabricAttributes,
        FabricHints, Hints, INJECT_SIZE_MAX, Info, MemoryRegionMode, MessageOrder, Mode, Progress,
        ReceiveAttributes, ReceiveHints, Rejection, ResourceManagement, SHARED_CONTEXT,
        TX_SIZE_MAX, Threading, TransmitAttributes, TransmitHints,
    },
};

// How objects are opened.
pub use kestrel_core::{
    config::{
        CmaPolicy, Config, ConfigError, ConnectBy, CoreSet, FetchPolicy, LaneChunks, Names,
        PARAMETERS, Parameter, TransportChoice,
    },
    domain::{DomainOptions, ProgressMode, Sharing},
    endpoint::{
        DefaultFlags, EndpointOptions, OptionName,
        owned::{OwnedReceive, OwnedSend},
    },
    event_queue::{EventQueue, EventQueueAttributes},
    memory_region::{
        KEY_NOTAVAIL, MemoryRange, MemoryRegion, MemoryRegionAttributes, audience::Audience,
        descriptor::Descriptor,
    },
    scalable_endpoint::{CONTEXTS_MAX, ContextCounts},
    socket_endpoint::{Readiness, SocketKind},
};

// Operations, and what they leave.
pub use kestrel_core::{
    completion_queue::{Entry, ErrorEntry},
    counter::CounterCell,
    event_queue::{ErrorEvent, Event, EventRead, EventWait},
    memory::{Piece, Pieces},
    one_sided::{AtomicPost, RMA_IOV_LIMIT, RemoteSegment, RmaPost},
    operation::{IOV_LIMIT, ReceivePost, SendPost},
    protocol::{
        atomic::{AtomicCall, AtomicOperation, Datatype, Form},
        datagram::Dropped,
    },
    socket_endpoint::Received,
    triggered::Change,
};

// What goes wrong.
pub use address_vectors::OpenVectorError;
pub use kestrel_core::{
    bind_count::BindError,
    completion_counter::WaitError,
    completion_queue::ReadError,
    connection::ConnectionError,
    domain::OpenError,
    endpoint::{EndpointError, GroupError, PostError, message::Refused, owned::RefusedBuffers},
    error::{Cause, Errno, HasErrno},
    event_queue::EventQueueError,
    memory_region::MemoryRegionError,
    socket_endpoint::SocketError,
};
pub use settings::BadSettings;

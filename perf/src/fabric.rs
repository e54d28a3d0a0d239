//! The few calls of kestrel that the workloads make, behind one type.
//!
//! One thread polls and posts, so the domain is opened for one thread
//! (`FI_THREAD_DOMAIN`), as an MPI without threads opens it.

mod one_sided;

use crate::port::{Grant, Local, Outcome, Port, PortError, Verb};
use kestrel::composite::Traffic;
use kestrel::{CompletionQueue, Domain, Endpoint};
use kestrel_core::address::Address;
use kestrel_core::address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC};
use kestrel_core::completion_queue::{Entry, ReadError};
use kestrel_core::config::{Config, TransportChoice};
use kestrel_core::domain::{DomainOptions, ProgressMode};
use kestrel_core::endpoint::{EndpointOptions, PostError};
use kestrel_core::flags::Flags;
use kestrel_core::info::{ApiVersion, MemoryRegionMode};
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::memory_region::MemoryRegion;
use kestrel_core::operation::{ReceivePost, SendPost};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How to open a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FabricOptions {
    /// `auto`, `shm` or `verbs`.
    pub provider: String,
    pub automatic_progress: bool,
}

impl FabricOptions {
    /// The settings of the environment, with the transport that the command line names.
    pub fn config(&self) -> Result<Config, FabricError> {
        let mut config = kestrel::settings::from_environment().map_err(open)?;
        config.transport = match self.provider.as_str() {
            "shm" => TransportChoice::Shm,
            "verbs" => TransportChoice::Verbs,
            _ => config.transport,
        };
        Ok(config)
    }

    /// A domain that any thread may use.
    pub fn domain(&self) -> Result<Arc<Domain>, FabricError> {
        let (provider, _) = self.transports()?;
        Domain::open(Arc::new(provider), DomainOptions::default()).map_err(open)
    }

    /// The best that discovery finds: what opens transports, and where.
    fn transports(&self) -> Result<(kestrel::Provider, Option<Address>), FabricError> {
        let config = self.config()?;
        let found = kestrel::discovery::discover_with(&config, ApiVersion::NATIVE, None, None);
        // An error is the only other answer: there is no empty one.
        let info = found.map_err(open)?.swap_remove(0);
        let provider = kestrel::objects::provider(&config, &info.domain.name, &[]);
        Ok((provider.map_err(|error| FabricError::Open(error.reason))?, info.source))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    #[error("cannot open an endpoint: {0}")]
    Open(String),
    #[error("no address: {0}")]
    Address(String),
    #[error("no message came any more")]
    Stalled,
    #[error("a post was refused: {0}")]
    Post(PostError),
    #[error("an operation failed: {reason} ({errno:?})")]
    Operation { errno: kestrel_core::error::Errno, reason: String },
    #[error("the completion queue cannot be read: {0}")]
    Read(ReadError),
}

/// An endpoint with its completion queue and address vector.
pub struct Side {
    pub endpoint: Arc<Endpoint>,
    pub queue: Arc<CompletionQueue>,
    pub vector: Arc<AddressVector>,
}

impl Side {
    pub fn open(options: &FabricOptions) -> Result<Side, FabricError> {
        let progress =
            if options.automatic_progress { ProgressMode::Automatic } else { ProgressMode::Manual };
        let (provider, source) = options.transports()?;
        let domain_options = DomainOptions {
            progress,
            // The other side's memory is known by a key and an offset, without asking.
            memory_region_mode: MemoryRegionMode::empty(),
            ..DomainOptions::default()
        };
        // SAFETY: a `Side` that is opened here is used by the one thread that
        // opened it, and none of its objects leaves that thread.
        let domain =
            unsafe { Domain::open_exclusive(Arc::new(provider), domain_options) }.map_err(open)?;
        let at = EndpointOptions { address: source, ..EndpointOptions::default() };
        Side::of(&domain, at)
    }

    /// A side of a domain that is open.
    pub fn of(domain: &Arc<Domain>, options: EndpointOptions) -> Result<Side, FabricError> {
        let queue = CompletionQueue::open(domain, 0).map_err(open)?;
        let vector =
            Arc::new(AddressVector::open(AddressVectorAttributes::default()).map_err(open)?);
        let endpoint = Endpoint::open(domain, options).map_err(open)?;
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).map_err(open)?;
        endpoint.bind_address_vector(&vector).map_err(open)?;
        endpoint.enable().map_err(open)?;
        Ok(Side { endpoint, queue, vector })
    }

    /// The address that other sides insert.
    pub fn address(&self) -> Result<Vec<u8>, FabricError> {
        Ok(self.endpoint.address().to_bytes().as_ref().to_vec())
    }

    /// What was sent so far, and through which transport.
    pub fn traffic(&self) -> Result<Traffic, FabricError> {
        kestrel::traffic(&self.endpoint).map_err(FabricError::Post)
    }

    pub fn insert(&mut self, address: &[u8]) -> Result<u64, FabricError> {
        let address = Address::from_bytes(address)
            .map_err(|error| FabricError::Address(error.to_string()))?;
        self.vector.insert_one(address).map_err(|error| FabricError::Address(error.to_string()))
    }

    #[cold]
    #[inline(never)]
    fn read_failed(&self, error: ReadError) -> FabricError {
        match self.queue.read_error() {
            Some(entry) => FabricError::Operation { errno: entry.errno, reason: entry.reason },
            None => FabricError::Read(error),
        }
    }
}

impl Port for Side {
    type Entry = Entry;
    type Region = Arc<MemoryRegion>;

    #[inline(always)]
    fn context(entry: &Entry) -> u64 {
        entry.context
    }

    fn inject_bytes_max(&self) -> usize {
        self.endpoint.options().inject_size
    }

    #[inline(always)]
    unsafe fn inject(
        &mut self,
        bytes: *const u8,
        len: usize,
        to: u64,
        tag: u64,
    ) -> Result<Outcome, PortError> {
        // SAFETY: the caller vouches for the range.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
        outcome(self.endpoint.inject_tagged(bytes, to, tag))
    }

    #[inline(always)]
    unsafe fn send(
        &mut self,
        bytes: *const u8,
        len: usize,
        to: u64,
        tag: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        // SAFETY: the caller vouches for the range; a sent piece is only read.
        let piece = unsafe { Piece::new(bytes.cast_mut(), len) };
        outcome(self.endpoint.post_send(SendPost {
            pieces: Pieces::One(piece),
            to,
            tag,
            data: 0,
            context,
            flags: Flags::TAGGED,
            owner: None,
        }))
    }

    #[inline(always)]
    unsafe fn receive(
        &mut self,
        bytes: *mut u8,
        len: usize,
        from: Option<u64>,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        // SAFETY: the caller vouches for the range.
        let piece = unsafe { Piece::new(bytes, len) };
        outcome(self.endpoint.post_receive(ReceivePost {
            pieces: Pieces::One(piece),
            from: from.unwrap_or(FI_ADDR_UNSPEC),
            tag,
            ignore,
            context,
            flags: Flags::TAGGED,
            owner: None,
        }))
    }

    #[inline(always)]
    fn poll(&mut self, entries: &mut [Entry]) -> Result<usize, PortError> {
        match self.queue.read(entries) {
            Ok(count) => Ok(count),
            Err(ReadError::Empty) => Ok(0),
            Err(error) => Err(self.read_failed(error).into()),
        }
    }

    unsafe fn expose(
        &mut self,
        bytes: *mut u8,
        len: usize,
    ) -> Result<(Arc<MemoryRegion>, Grant), PortError> {
        // SAFETY: the caller vouches for the range.
        Ok(unsafe { self.expose_range(bytes, len)? })
    }

    fn hide(&mut self, region: Arc<MemoryRegion>) -> Result<(), PortError> {
        Ok(self.endpoint.domain().close_memory(&region).map_err(open)?)
    }

    #[inline(always)]
    unsafe fn reach(
        &mut self,
        verb: Verb,
        local: Local,
        grant: Grant,
        to: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        // SAFETY: the caller vouches for the ranges.
        unsafe { self.post_one_sided(verb, local, grant, to, context) }
    }
}

#[inline(always)]
fn outcome(posted: Result<(), PostError>) -> Result<Outcome, PortError> {
    match posted {
        Ok(()) => Ok(Outcome::Done),
        Err(PostError::Again) => Ok(Outcome::Again),
        Err(error) => Err(FabricError::Post(error).into()),
    }
}

fn open(error: impl std::fmt::Display) -> FabricError {
    FabricError::Open(error.to_string())
}

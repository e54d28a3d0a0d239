//! The few calls of kestrel that the workloads make, behind one type.
//!
//! One thread polls and posts, so the domain is opened for one thread
//! (`FI_THREAD_DOMAIN`), as an MPI without threads opens it.

mod one_sided;

use crate::port::{Grant, Local, Outcome, Port, PortError, Verb};
use crate::stall::{STALL_MAX, Stall};
use kestrel::composite::Traffic;
use kestrel::discovery::{Asker, discover_with};
use kestrel::{CompletionQueue, Domain, Endpoint, PassiveEndpoint};
use kestrel_core::address::Address;
use kestrel_core::address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC};
use kestrel_core::completion_queue::{Entry, ReadError};
use kestrel_core::config::{Config, TransportChoice};
use kestrel_core::domain::DomainOptions;
use kestrel_core::endpoint::{EndpointOptions, PostError};
use kestrel_core::flags::Flags;
use kestrel_core::info::{ApiVersion, Info, MemoryRegionMode, MessageOrder, Progress};
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::memory_region::MemoryRegion;
use kestrel_core::operation::{ReceivePost, SendPost};
use kestrel_shm::copy::Copier;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How to open a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FabricOptions {
    /// `auto`, `shm` or `verbs`.
    pub provider: String,
    pub automatic_progress: bool,
}

/// What copies longer messages over shared memory, as the settings have it.
///
/// # Errors
/// What is wrong with the settings, or the routine that they name.
pub fn copy_routine() -> Result<String, String> {
    let config = kestrel::settings::from_environment().map_err(|error| error.to_string())?;
    Copier::choose(config.copy).map(|copier| copier.to_string()).map_err(|error| error.to_string())
}

/// What discovery and the settings say of a side that is opened: as the facade and the C door have it.
pub struct Setup {
    provider: Arc<kestrel::Provider>,
    pub domain: DomainOptions,
    pub endpoint: EndpointOptions,
}

impl FabricOptions {
    /// The settings of the environment, with the transport that the command line names.
    pub fn config(&self) -> Result<Config, FabricError> {
        self.with_transport(kestrel::settings::from_environment().map_err(open)?)
    }

    /// What messages go through, as both have it.
    pub fn transport(&self) -> Result<TransportChoice, FabricError> {
        Ok(self.config()?.transport)
    }

    fn with_transport(&self, mut config: Config) -> Result<Config, FabricError> {
        config.transport = match self.provider.as_str() {
            "shm" => TransportChoice::Shm,
            "verbs" => TransportChoice::Verbs,
            _ => config.transport,
        };
        Ok(config)
    }

    /// As the environment's settings have it.
    pub fn setup(&self) -> Result<Setup, FabricError> {
        self.setup_of(&self.config()?)
    }

    /// The best that discovery finds, which has the settings' sizes.
    fn setup_of(&self, config: &Config) -> Result<Setup, FabricError> {
        let found = discover_with(config, ApiVersion::NATIVE, Asker::OfKestrel, None, None);
        // An error is the only other answer: there is no empty one.
        let mut info = found.map_err(open)?.swap_remove(0);
        if self.automatic_progress {
            info.domain.data_progress = Progress::Auto;
        }
        let (provider, domain) = kestrel::objects::domain_parts(&info, config).map_err(open)?;
        let endpoint = EndpointOptions {
            address: info.source,
            transmit_size: info.transmit.size,
            inject_size: info.transmit.inject_size,
            // What the door asks for, too.
            message_order: MessageOrder::SAS,
            ..EndpointOptions::default()
        };
        Ok(Setup { provider, domain, endpoint })
    }
}

impl Setup {
    /// A domain that any thread may use.
    pub fn open_domain(&self) -> Result<Arc<Domain>, FabricError> {
        Domain::open(self.provider.clone(), self.domain.clone()).map_err(open)
    }

    /// What listens for connections.
    pub fn open_listener(&self) -> Result<Arc<PassiveEndpoint>, FabricError> {
        let info = Info { source: self.endpoint.address, ..Info::default() };
        PassiveEndpoint::open(self.provider.clone(), info).map_err(open)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    #[error("cannot open an endpoint: {0}")]
    Open(String),
    #[error("no address: {0}")]
    Address(String),
    #[error("no message came, or could be sent, for {} s", STALL_MAX.as_secs())]
    Stalled,
    #[error("a post was refused: {0}")]
    Post(PostError),
    #[error("an operation failed: {reason} ({errno:?})")]
    Operation { errno: kestrel_core::error::Errno, reason: String },
    #[error("the completion queue cannot be read: {0}")]
    Read(ReadError),
    #[error("a thread that measured has panicked, and said why")]
    Panicked,
}

/// An endpoint with its completion queue and address vector.
pub struct Side {
    pub endpoint: Arc<Endpoint>,
    pub queue: Arc<CompletionQueue>,
    pub vector: Arc<AddressVector>,
    registered: one_sided::Registered,
}

impl Side {
    /// Opens a side.
    pub fn open(options: &FabricOptions) -> Result<Side, FabricError> {
        let Setup { provider, domain, endpoint } = options.setup()?;
        let domain = DomainOptions {
            // The other side's memory is known by a key and an offset, without asking.
            memory_region_mode: MemoryRegionMode::ALLOCATED,
            ..domain
        };
        // SAFETY: a `Side` that is opened here is used by the one thread that
        // opened it, and none of its objects leaves that thread.
        let domain = unsafe { Domain::open_exclusive(provider, domain) }.map_err(open)?;
        Side::of(&domain, endpoint)
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
        Ok(Side { endpoint, queue, vector, registered: Default::default() })
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
        let address = Address::from_bytes(address).map_err(no_address)?;
        self.vector.insert_one(address).map_err(no_address)
    }
}

/// Reads completions; how many, which may be none.
#[inline(always)]
pub fn read(queue: &CompletionQueue, entries: &mut [Entry]) -> Result<usize, FabricError> {
    match queue.read(entries) {
        Ok(count) => Ok(count),
        Err(ReadError::Empty) => Ok(0),
        Err(error) => Err(read_failed(queue, error)),
    }
}

#[cold]
#[inline(never)]
fn read_failed(queue: &CompletionQueue, error: ReadError) -> FabricError {
    match queue.read_error() {
        Some(entry) => FabricError::Operation { errno: entry.errno, reason: entry.reason },
        None => FabricError::Read(error),
    }
}

/// Waits for the next completion, but not for ever.
#[inline(always)]
pub fn await_one(queue: &CompletionQueue) -> Result<Entry, FabricError> {
    let (mut entry, mut stall) = ([Entry::default()], Stall::default());
    while read(queue, &mut entry)? == 0 {
        if stall.is_too_long() {
            return Err(FabricError::Stalled);
        }
    }
    let [entry] = entry;
    Ok(entry)
}

/// Injects a word, and polls the endpoint's queue for as long as there is no room, but not for ever. Nothing
/// is to complete there meanwhile.
#[inline(always)]
pub fn inject_word(
    endpoint: &Endpoint,
    queue: &CompletionQueue,
    word: u64,
    to: u64,
    tag: u64,
) -> Result<(), FabricError> {
    let mut stall = Stall::default();
    loop {
        match endpoint.inject_tagged(&word.to_ne_bytes(), to, tag) {
            Ok(()) => return Ok(()),
            Err(PostError::Again) => {}
            Err(refused) => return Err(FabricError::Post(refused)),
        }
        read(queue, &mut [Entry::default()])?;
        if stall.is_too_long() {
            return Err(FabricError::Stalled);
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
            region: self.registered.sent,
            attachment: None,
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
            region: self.registered.received,
            attachment: None,
        }))
    }

    #[inline(always)]
    fn poll(&mut self, entries: &mut [Entry]) -> Result<usize, PortError> {
        Ok(read(&self.queue, entries)?)
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

    unsafe fn register(
        &mut self,
        sent: (*mut u8, usize),
        received: (*mut u8, usize),
    ) -> Result<(), PortError> {
        // SAFETY: the caller vouches for both.
        unsafe { self.register_buffers(sent, received) }?;
        Ok(())
    }

    fn deregister(&mut self) -> Result<(), PortError> {
        for region in std::mem::take(&mut self.registered).regions {
            self.hide(region)?;
        }
        Ok(())
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

pub fn no_address(error: impl std::fmt::Display) -> FabricError {
    FabricError::Address(error.to_string())
}

pub fn open(error: impl std::fmt::Display) -> FabricError {
    FabricError::Open(error.to_string())
}

#[cfg(test)]
mod tests {
    use kestrel_core::domain::ProgressMode;

    use super::*;
    use kestrel_core::config::PARAMETERS;

    const OPTIONS: fn(bool) -> FabricOptions =
        |automatic_progress| FabricOptions { provider: "shm".to_owned(), automatic_progress };

    fn config(name: &str, value: &str) -> Config {
        let lookup = |asked: &str| (asked == name).then(|| value.to_owned());
        Config::from_lookup(lookup).expect("a value that the parameter takes")
    }

    /// Those that a domain or an endpoint is opened with; what transports are opened with is the
    /// facade's, and tested there.
    #[test]
    fn settings_of_domains_and_endpoints_act() {
        let opened = |config: &Config| {
            let setup = OPTIONS(true).setup_of(config).expect("shared memory is there");
            format!("{:?} {:?}", setup.domain, setup.endpoint)
        };
        let usual = opened(&Config::default());
        for (name, value) in [
            ("FI_KESTREL_CORES", "1"),
            ("FI_KESTREL_UNEXPECTED_BUDGET", "1M"),
            ("FI_KESTREL_SPIN", "7"),
            ("FI_KESTREL_TX_SIZE", "77"),
            ("FI_KESTREL_INJECT_SIZE", "777"),
        ] {
            assert!(PARAMETERS.iter().any(|parameter| parameter.name == name), "{name}");
            assert_ne!(opened(&config(name, value)), usual, "{name} changes nothing");
        }
    }

    #[test]
    fn cores_are_for_automatic_progress() {
        let of = |options: FabricOptions| {
            let setup = options.setup_of(&config("FI_KESTREL_CORES", "2,5"));
            setup.expect("shared memory is there").domain.progress
        };
        assert_eq!(of(OPTIONS(true)), ProgressMode::Spinning(vec![2, 5]));
        assert_eq!(of(OPTIONS(false)), ProgressMode::Manual);
    }
}

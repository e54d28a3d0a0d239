//! What a user can set: values, read by the one table of parameters.

use std::borrow::Cow;

use crate::error::{Errno, HasErrno};

mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod value;

use table::NIC_ATOMICS;
pub use table::{PARAMETERS, PREFIX, Parameter};
pub use value::{CoreSet, Kind, Names, Unit, Value};

/// What the shared chunks of an endpoint have together, at most. Units: bytes.
pub const CHUNKS_BYTES_MAX: usize = 64 << 30;

/// Which transports endpoints have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory to peers of this host, and verbs to others where there is a device.
    Auto,
    /// Shared memory alone: rdma-core is not even loaded.
    Shm,
    /// Verbs alone, to peers of this host as well.
    Verbs,
}

/// What makes connections over an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectBy {
    /// The kernel's connection manager those of connected endpoints, TCP the others.
    Auto,
    /// TCP all.
    Tcp,
    /// The connection manager all that it can make.
    RdmaCm,
}

/// Shared chunks of a lane's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneChunks {
    /// What the processor gains by.
    Auto,
    /// For all that is longer than a line.
    On,
    /// For what two sides say in turn.
    Turns,
    /// For nothing.
    Off,
}

/// Sharing a message's bytes with a peer's process through the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmaPolicy {
    /// Where it is permitted, and found to be faster than packets.
    Auto,
    /// Where it is permitted.
    On,
    /// Never.
    Off,
}

/// Whether the receiver's RDMA device reads the messages that we send where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchPolicy {
    /// From the least length on, and shorter ones where that is found to be faster than packets.
    Auto,
    /// From the least length on.
    On,
    /// Never.
    Off,
}

/// The values of all parameters. Its `Default` is the defaults of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `FI_KESTREL_TRANSPORT`.
    pub transport: TransportChoice,
    /// `FI_KESTREL_DEVICE`.
    pub device: Names,
    /// `FI_KESTREL_INTERFACE`.
    pub interface: Names,
    /// `FI_KESTREL_CORES`. Empty: helpers sleep.
    pub cores: CoreSet,
    /// `FI_KESTREL_UNEXPECTED_BUDGET`.
    pub unexpected_budget_bytes: usize,
    /// `FI_KESTREL_CHUNK_SIZE`. Units: bytes.
    pub chunk_size: usize,
    /// `FI_KESTREL_CHUNK_COUNT`.
    pub chunk_count: usize,
    /// `FI_KESTREL_LANE_CHUNKS`.
    pub lane_chunks: LaneChunks,
    /// `FI_KESTREL_CMA`.
    pub cma: CmaPolicy,
    /// `FI_KESTREL_COPY`.
    /// One of the table's names of routines.
    pub copy: &'static str,
    /// `FI_KESTREL_PKEY`.
    /// None: the first full member's, else the first.
    pub partition_key: Option<u16>,
    /// `FI_KESTREL_GID_INDEX`. None: chosen.
    pub gid_index: Option<u8>,
    /// `FI_KESTREL_TRAFFIC_CLASS`. None: endpoints without a class of their own mark nothing.
    pub traffic_class: Option<u8>,
    /// `FI_KESTREL_SL`. None: by the traffic class.
    pub service_level: Option<u8>,
    /// `FI_KESTREL_SRQ`.
    pub shared_receives: bool,
    /// `FI_KESTREL_CONNECT_BY`.
    pub connect_by: ConnectBy,
    /// `FI_KESTREL_CONNECT_TIMEOUT`.
    pub connect_timeout_ms: u64,
    /// `FI_KESTREL_PEER_TIMEOUT`.
    pub peer_timeout_ms: u64,
    /// `FI_KESTREL_SPIN`.
    pub spin_us: u64,
    /// `FI_KESTREL_TX_SIZE`. Units: operations.
    pub tx_size: usize,
    /// `FI_KESTREL_RX_SIZE`. Units: receives.
    pub rx_size: usize,
    /// `FI_KESTREL_INJECT_SIZE`. Units: bytes.
    pub inject_size: usize,
    /// `FI_KESTREL_FETCH`.
    pub fetch: FetchPolicy,
    /// `FI_KESTREL_FETCH_MIN`. Units: bytes.
    pub fetch_min: usize,
    /// `FI_KESTREL_MR_CACHE`. Units: bytes.
    pub mr_cache_bytes: usize,
    /// `FI_KESTREL_NIC_ATOMICS`.
    /// Memory is changed atomically by adapters alone.
    pub nic_atomics: bool,
    /// `FI_KESTREL_BACKLOG`. Units: requests.
    pub backlog: i32,
}

/// A value that a parameter cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {reason}; {allowed} is expected (default: {default})")]
pub struct ConfigError {
    /// The environment variable.
    pub name: &'static str,
    /// What it was set to.
    pub value: String,
    /// What is wrong with that, in words.
    pub reason: Cow<'static, str>,
    /// The bounds, or the choices, in words.
    pub allowed: String,
    /// What counts where nothing is set.
    pub default: &'static str,
}

impl ConfigError {
    /// What is wrong with a parameter's value, beyond what the table knows. None if there is no such
    /// parameter.
    pub fn of(name: &str, value: String, reason: impl Into<Cow<'static, str>>) -> Option<Self> {
        let parameter = PARAMETERS.iter().find(|each| each.name == name)?;
        let (name, allowed, default) = (parameter.name, parameter.allowed(), parameter.default);
        Some(ConfigError { name, value, reason: reason.into(), allowed, default })
    }
}

impl HasErrno for ConfigError {
    fn errno(&self) -> Errno {
        Errno::INVAL
    }
}

impl Default for Config {
    fn default() -> Self {
        let mut config = Config::blank();
        for parameter in &PARAMETERS {
            let parsed = parameter.parse(parameter.default);
            let value = parsed.expect("a test holds each default against its own bounds");
            (parameter.store)(&mut config, value);
        }
        config
    }
}

impl Config {
    /// What the table's values are stored into: no parameter has these.
    fn blank() -> Self {
        Config {
            transport: TransportChoice::Auto,
            device: Names::default(),
            interface: Names::default(),
            cores: CoreSet::default(),
            unexpected_budget_bytes: 0,
            chunk_size: 0,
            chunk_count: 0,
            lane_chunks: LaneChunks::Auto,
            cma: CmaPolicy::Auto,
            copy: "auto",
            partition_key: None,
            gid_index: None,
            traffic_class: None,
            service_level: None,
            shared_receives: false,
            connect_by: ConnectBy::Auto,
            connect_timeout_ms: 0,
            peer_timeout_ms: 0,
            spin_us: 0,
            tx_size: 0,
            rx_size: 0,
            inject_size: 0,
            fetch: FetchPolicy::Auto,
            fetch_min: 0,
            mr_cache_bytes: 0,
            nic_atomics: false,
            backlog: 0,
        }
    }

    /// Reads every parameter through `lookup` (the environment, or
    /// libfabric's parameters); what it does not find, or finds empty, has its default.
    ///
    /// # Errors
    /// All bad values, each with its parameter's name and bounds; else values that contradict each
    /// other.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Vec<ConfigError>> {
        let mut config = Config::blank();
        let mut errors = Vec::new();
        for parameter in &PARAMETERS {
            let given = lookup(parameter.name).filter(|text| !text.trim().is_empty());
            match parameter.parse(given.as_deref().unwrap_or(parameter.default)) {
                Ok(value) => (parameter.store)(&mut config, value),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            errors.extend(config.contradiction());
        }
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    fn contradiction(&self) -> Option<ConfigError> {
        let (name, value, reason) = if self.nic_atomics && self.transport != TransportChoice::Verbs
        {
            // Over shared memory a target's processor plays, and neither it nor a device would see the
            // other's operations as atomic.
            let reason = "it needs FI_KESTREL_TRANSPORT=verbs, since peers of this host would be \
                          reached past the device";
            ("FI_KESTREL_NIC_ATOMICS", NIC_ATOMICS[1].to_owned(), reason)
        } else if self.chunk_size * self.chunk_count > CHUNKS_BYTES_MAX {
            let reason = "so many chunks of FI_KESTREL_CHUNK_SIZE have more than 64 GiB";
            ("FI_KESTREL_CHUNK_COUNT", self.chunk_count.to_string(), reason)
        } else {
            return None;
        };
        ConfigError::of(name, value, reason)
    }
}

//! What a user can set: the one table of parameters.
//!
//! Name, type, default, unit, bounds and help of each parameter are here and
//! nowhere else. The parameters declared to libfabric, the manual page
//! `fi_kestrel.7`, the values in [`Config`] and the error for a bad value all
//! come from [`PARAMETERS`].

use std::{borrow::Cow, fmt};

use crate::error::{Errno, HasErrno};
use crate::info::{INJECT_SIZE_MAX, RX_SIZE_MAX, TX_SIZE_MAX};

#[cfg(all(test, not(loom)))]
mod tests;
mod value;

pub use value::{CoreSet, Kind, Unit, Value};

/// What the names of all parameters begin with.
pub const PREFIX: &str = "FI_KESTREL_";

/// One parameter, as users see it.
pub struct Parameter {
    /// The environment variable.
    pub name: &'static str,
    /// Its type and bounds.
    pub kind: Kind,
    /// As a user would write it; empty is nothing.
    pub default: &'static str,
    /// What the number counts.
    pub unit: Unit,
    /// One or two sentences.
    pub help: &'static str,
    store: fn(&mut Config, Value),
}

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

/// The values of all parameters. Its `Default` is the defaults of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `FI_KESTREL_TRANSPORT`.
    pub transport: TransportChoice,
    /// `FI_KESTREL_DEVICE`.
    /// Empty: any.
    pub device: String,
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
    /// None: the first of the port's table.
    pub partition_key: Option<u16>,
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
    /// `FI_KESTREL_FETCH_MIN`. Units: bytes.
    pub fetch_min: usize,
    /// `FI_KESTREL_NIC_ATOMICS`.
    /// Memory is changed atomically by adapters alone.
    pub nic_atomics: bool,
    /// `FI_KESTREL_BACKLOG`. Units: requests.
    pub backlog: i32,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const TRANSPORT: &[&str] = &["auto", "shm", "verbs"];
const CONNECT_BY: &[&str] = &["auto", "tcp", "rdma_cm"];
const AUTO_ON_OFF: &[&str] = &["auto", "on", "off"];
const LANE_CHUNKS: &[&str] = &["auto", "on", "turns", "off"];
const COPY: &[&str] = &["auto", "memcpy", "rep-movsb", "avx2", "avx512", "graded"];
/// What the shared chunks of an endpoint have together, at most. Units: bytes.
pub const CHUNKS_BYTES_MAX: usize = 64 << 30;
const NIC_ATOMICS: &[&str] = &["off", "exclusive"];

/// All parameters, in the order of the manual page.
pub static PARAMETERS: [Parameter; 20] = [
    Parameter {
        name: "FI_KESTREL_TRANSPORT",
        kind: Kind::Choice(TRANSPORT),
        default: "auto",
        unit: Unit::None,
        help: "Which transport reaches peers. auto: shared memory those of this host, an RDMA \
               device the others. shm: shared memory alone. verbs: a device alone, also within \
               this host.",
        store: |config, value| {
            use TransportChoice::{Auto, Shm, Verbs};
            config.transport = [Auto, Shm, Verbs][value.choice()];
        },
    },
    Parameter {
        name: "FI_KESTREL_DEVICE",
        kind: Kind::Name,
        default: "",
        unit: Unit::None,
        help: "The only RDMA device to be offered, by its name, as in mlx5_0. Empty: all.",
        store: |config, value| config.device = value.name(),
    },
    Parameter {
        name: "FI_KESTREL_CORES",
        kind: Kind::Cores,
        default: "",
        unit: Unit::None,
        help: "Cores for threads that make progress by spinning, as in 2,4-7. Each domain with \
               automatic progress takes the first that nobody in its network namespace has; one that finds none \
               has a thread that sleeps. Empty: all have.",
        store: |config, value| config.cores = value.cores(),
    },
    Parameter {
        name: "FI_KESTREL_UNEXPECTED_BUDGET",
        kind: Kind::Integer { min: 64 * KIB, max: 1024 * GIB },
        default: "64M",
        unit: Unit::Bytes,
        help: "How much payload of unexpected messages an endpoint keeps. What is beyond it \
               waits at the sender; so does what brings remote data while a full completion queue \
               has an unread entry for each 96 bytes of this.",
        store: |config, value| config.unexpected_budget_bytes = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_CHUNK_SIZE",
        kind: Kind::PowerOfTwo { min: 4 * KIB, max: 4 * MIB },
        default: "32K",
        unit: Unit::Bytes,
        help: "The size of the shared chunks that carry larger messages between processes of \
               one host.",
        store: |config, value| config.chunk_size = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_CHUNK_COUNT",
        kind: Kind::Integer { min: 4, max: 65_536 },
        default: "64",
        unit: Unit::None,
        help: "How many shared chunks an endpoint has, for all its peers together: 64 GiB of them at most. \
               A peer maps 4 GiB of one process's, or 1,024 times as much as its own if that is more.",
        store: |config, value| config.chunk_count = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_LANE_CHUNKS",
        kind: Kind::Choice(LANE_CHUNKS),
        default: "auto",
        unit: Unit::None,
        help: "Where payload between two processes of one host lies. off: in the endpoint's shared \
               chunks. turns: what two sides say in turn, in chunks of the pair that go to and fro \
               (64 KiB a peer). on: all of it, in chunks of the pair, whose cache lines the receiver \
               hands back (256 KiB a peer). auto: on for AMD's Zen 3 and 4, which gain by it, else turns. \
               A pair has chunks of FI_KESTREL_CHUNK_SIZE, of 64K at most; to and fro go those of 32K and \
               64K. Where that does not fit, auto is as off, and the others are refused.",
        store: |config, value| {
            config.lane_chunks =
                [LaneChunks::Auto, LaneChunks::On, LaneChunks::Turns, LaneChunks::Off]
                    [value.choice()];
        },
    },
    Parameter {
        name: "FI_KESTREL_CMA",
        kind: Kind::Choice(AUTO_ON_OFF),
        default: "auto",
        unit: Unit::None,
        help: "Whether the kernel may copy between processes of one host (process_vm_readv). \
               on: where a probe shows that it is permitted. auto: there, and for those lengths \
               for which it turns out to be faster than copying in and out of shared chunks.",
        store: |config, value| {
            config.cma = [CmaPolicy::Auto, CmaPolicy::On, CmaPolicy::Off][value.choice()];
        },
    },
    Parameter {
        name: "FI_KESTREL_COPY",
        kind: Kind::Choice(COPY),
        default: "auto",
        unit: Unit::None,
        help: "The routine that copies larger messages. auto: the best that the CPU has. graded: \
               avx512 up to 8 KiB, rep-movsb beyond.",
        store: |config, value| config.copy = COPY[value.choice()],
    },
    Parameter {
        name: "FI_KESTREL_PKEY",
        kind: Kind::PartitionKey,
        default: "",
        unit: Unit::None,
        help: "The InfiniBand partition that RDMA devices are used in, by its P_Key: an entry of the \
               port's table with the same lower 15 bits, a full member's before a limited one's. \
               Connections through rdma_cm are in the partition of their IP addresses. Empty: \
               the first full member's entry, else the first.",
        store: |config, value| config.partition_key = value.partition_key(),
    },
    Parameter {
        name: "FI_KESTREL_CONNECT_BY",
        kind: Kind::Choice(CONNECT_BY),
        default: "auto",
        unit: Unit::None,
        help: "How reliable endpoints connect over an RDMA device. tcp: by a handshake over TCP. \
               rdma_cm: through the kernel's connection manager, where both hosts have it, else \
               over TCP; multicast groups are joined through it, too. auto: rdma_cm for \
               connected endpoints and InfiniBand's groups, tcp for the others.",
        store: |config, value| {
            use ConnectBy::{Auto, RdmaCm, Tcp};
            config.connect_by = [Auto, Tcp, RdmaCm][value.choice()];
        },
    },
    Parameter {
        name: "FI_KESTREL_CONNECT_TIMEOUT",
        kind: Kind::Integer { min: 100, max: 3_600_000 },
        default: "5000",
        unit: Unit::Milliseconds,
        help: "How long a connection may take. After that, what waits for it fails and says why. \
               Where nobody listens that is within a second, whatever is set here.",
        store: |config, value| config.connect_timeout_ms = value.integer(),
    },
    Parameter {
        name: "FI_KESTREL_PEER_TIMEOUT",
        kind: Kind::Integer { min: 100, max: 3_600_000 },
        default: "6400",
        unit: Unit::Milliseconds,
        help: "How long an RDMA peer may leave packets unanswered, at least, before its connection \
               fails; a device may take up to four times as long. It sends seven times meanwhile: longer \
               values outlast longer outages, and take longer to repeat a packet that was lost.",
        store: |config, value| config.peer_timeout_ms = value.integer(),
    },
    Parameter {
        name: "FI_KESTREL_SPIN",
        kind: Kind::Integer { min: 0, max: 1_000_000 },
        default: "50",
        unit: Unit::Microseconds,
        help: "How long a call that waits polls before it sleeps.",
        store: |config, value| config.spin_us = value.integer(),
    },
    Parameter {
        name: "FI_KESTREL_TX_SIZE",
        kind: Kind::Integer { min: 1, max: TX_SIZE_MAX as u64 },
        default: "1024",
        unit: Unit::None,
        help: "How many operations an endpoint may have outstanding, unless the application says.",
        store: |config, value| config.tx_size = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_RX_SIZE",
        kind: Kind::Integer { min: 1, max: RX_SIZE_MAX as u64 },
        default: "1024",
        unit: Unit::None,
        help: "How many receives an endpoint is said to take, unless the application says.",
        store: |config, value| config.rx_size = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_INJECT_SIZE",
        kind: Kind::Integer { min: 64, max: INJECT_SIZE_MAX as u64 },
        default: "16K",
        unit: Unit::Bytes,
        help: "The largest message that an inject takes.",
        store: |config, value| config.inject_size = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_FETCH_MIN",
        kind: Kind::Integer { min: 16 * KIB, max: 1024 * GIB },
        default: "256K",
        unit: Unit::Bytes,
        help: "The shortest message that an RDMA device reads out of the sender's buffer into the \
               receiver's. Shorter ones are copied at both ends; buffers of longer ones are \
               registered for each. In a stream whose buffers lie in registered memory \
               (desc; of the sender with FI_REMOTE_READ), a quarter of it.",
        store: |config, value| config.fetch_min = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_NIC_ATOMICS",
        kind: Kind::Choice(NIC_ATOMICS),
        default: "off",
        unit: Unit::None,
        help: "Who plays atomic operations. off: the target's processor. exclusive: the RDMA \
               device, where it can; this declares that all registered memory is changed \
               atomically through one device alone, by no processor. It needs \
               FI_KESTREL_TRANSPORT=verbs, takes single elements of 8 bytes, and has to be the \
               same in all processes.",
        store: |config, value| config.nic_atomics = value.choice() == 1,
    },
    Parameter {
        name: "FI_KESTREL_BACKLOG",
        kind: Kind::Integer { min: 1, max: 65_536 },
        default: "128",
        unit: Unit::None,
        help: "How many requests for connections may wait at a passive endpoint, unless the \
               application says. What is beyond it is rejected.",
        // The bounds are an i32's.
        store: |config, value| config.backlog = value.integer() as i32,
    },
];

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

impl Parameter {
    /// The name that libfabric's `fi_param_define` takes: it adds `FI_KESTREL_` and capitals itself.
    pub fn short_name(&self) -> String {
        self.name.trim_start_matches(PREFIX).to_ascii_lowercase()
    }

    /// Help, default, unit and bounds in one paragraph.
    pub fn describe(&self) -> String {
        let default = if self.default.is_empty() { "none" } else { self.default };
        format!("{} (default: {default}; {})", self.help, self.allowed())
    }

    /// What values are possible, in words.
    pub fn allowed(&self) -> String {
        format!("{}{}", self.kind, self.unit)
    }

    fn parse(&self, text: &str) -> Result<Value, ConfigError> {
        self.kind.parse(text.trim()).map_err(|reason| ConfigError {
            name: self.name,
            value: text.to_owned(),
            reason: reason.into(),
            allowed: self.allowed(),
            default: self.default,
        })
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.describe())
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
            device: String::new(),
            cores: CoreSet::default(),
            unexpected_budget_bytes: 0,
            chunk_size: 0,
            chunk_count: 0,
            lane_chunks: LaneChunks::Auto,
            cma: CmaPolicy::Auto,
            copy: "auto",
            partition_key: None,
            connect_by: ConnectBy::Auto,
            connect_timeout_ms: 0,
            peer_timeout_ms: 0,
            spin_us: 0,
            tx_size: 0,
            rx_size: 0,
            inject_size: 0,
            fetch_min: 0,
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

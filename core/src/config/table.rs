//! The one table of parameters.
//!
//! Name, type, default, unit, bounds and help of each parameter are here and nowhere else. The parameters
//! declared to libfabric, the manual page `fi_kestrel.7`, the values in [`Config`] and the error for a bad
//! value all come from [`PARAMETERS`].

use std::fmt;

use super::{
    CmaPolicy, Config, ConfigError, ConnectBy, FetchPolicy, Kind, LaneChunks, TransportChoice,
    Unit, Value,
};
use crate::info::{INJECT_SIZE_MAX, RX_SIZE_MAX, TX_SIZE_MAX};

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
    pub(super) store: fn(&mut Config, Value),
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const TRANSPORT: &[&str] = &["auto", "shm", "verbs"];
const CONNECT_BY: &[&str] = &["auto", "tcp", "rdma_cm"];
const AUTO_ON_OFF: &[&str] = &["auto", "on", "off"];
const AUTO_OFF: &[&str] = &["auto", "off"];
const LANE_CHUNKS: &[&str] = &["auto", "on", "turns", "off"];
pub(super) const COPY: &[&str] = &["auto", "memcpy", "rep-movsb", "avx2", "avx512", "graded"];
pub(super) const NIC_ATOMICS: &[&str] = &["off", "exclusive"];

/// All parameters, in the order of the manual page.
pub static PARAMETERS: [Parameter; 27] = [
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
        kind: Kind::Names,
        default: "",
        unit: Unit::None,
        help: "The RDMA devices to be offered, by their names, as in mlx5_0,mlx5_1; with ^ in front: all \
               others. Empty: all.",
        store: |config, value| config.device = value.names(),
    },
    Parameter {
        name: "FI_KESTREL_INTERFACE",
        kind: Kind::Names,
        default: "",
        unit: Unit::None,
        help: "The network interfaces at whose addresses endpoints on RDMA devices may be, by their names, as in \
               ib0; with ^ in front: all others. It says which address of the host an InfiniBand device without \
               one of its own has. Empty: all.",
        store: |config, value| config.interface = value.names(),
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
        name: "FI_KESTREL_GID_INDEX",
        kind: Kind::Byte { max: u8::MAX },
        default: "",
        unit: Unit::None,
        help: "The entry of a port's GID table that RDMA devices go by, whatever an endpoint's address is. Empty: \
               that of the address; else RoCE v2 before v1, what is routed before what is not, the first.",
        store: |config, value| config.gid_index = value.byte(),
    },
    Parameter {
        name: "FI_KESTREL_TRAFFIC_CLASS",
        kind: Kind::Byte { max: u8::MAX },
        default: "",
        unit: Unit::None,
        help: "What RDMA devices mark packets with, where the application asks for no traffic class: the whole \
               byte, six bits of code point (DSCP) and two of congestion notification (ECN), as in 106. Empty: 0; \
               connections through rdma_cm have what the administrator has set.",
        store: |config, value| config.traffic_class = value.byte(),
    },
    Parameter {
        name: "FI_KESTREL_SL",
        kind: Kind::Byte { max: 15 },
        default: "",
        unit: Unit::None,
        help: "The service level of an RDMA device's packets, which InfiniBand's switches go by. Those of \
               connections through rdma_cm have the subnet manager's. Empty: the upper three bits of the traffic \
               class.",
        store: |config, value| config.service_level = value.byte(),
    },
    Parameter {
        name: "FI_KESTREL_SRQ",
        kind: Kind::Choice(AUTO_OFF),
        default: "auto",
        unit: Unit::None,
        help: "Whether the connections of an endpoint share receives on an RDMA device (SRQ). off: each has some of \
               its own. auto: they do where the device can.",
        store: |config, value| config.shared_receives = value.choice() == 0,
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
        help: "How long a connection may take, from its turn among those of its process. After that, what waits \
               for it fails and says why. Where nobody listens that is within a second, whatever is set here.",
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
        name: "FI_KESTREL_FETCH",
        kind: Kind::Choice(AUTO_ON_OFF),
        default: "auto",
        unit: Unit::None,
        help: "Whether the receiver's RDMA device reads a message that we send out of our buffer into the \
               receiver's; else it is copied at both ends. on: from FI_KESTREL_FETCH_MIN on. auto: there, and, \
               if the buffers lie in registered memory (desc; of the sender with FI_REMOTE_READ) or come \
               again (FI_KESTREL_MR_CACHE), in streams from a quarter of it on, and alone from 16K on for \
               those lengths for which it turns out to be faster.",
        store: |config, value| {
            config.fetch = [FetchPolicy::Auto, FetchPolicy::On, FetchPolicy::Off][value.choice()];
        },
    },
    Parameter {
        name: "FI_KESTREL_FETCH_MIN",
        kind: Kind::Integer { min: 16 * KIB, max: 1024 * GIB },
        default: "256K",
        unit: Unit::Bytes,
        help: "The shortest message that an RDMA device reads out of the sender's buffer into the \
               receiver's in any case (FI_KESTREL_FETCH), for which both buffers are registered.",
        store: |config, value| config.fetch_min = value.size(),
    },
    Parameter {
        name: "FI_KESTREL_MR_CACHE",
        kind: Kind::Integer { min: 0, max: 1024 * GIB },
        default: "1G",
        unit: Unit::Bytes,
        help: "How much of the application's memory an endpoint keeps registered with its RDMA device, \
               for buffers that come again: until it is unmapped, which userfaultfd(2) tells. Of \
               limited locked memory (ulimit -l) all endpoints of a process use a quarter at most. \
               0: none.",
        store: |config, value| config.mr_cache_bytes = value.size(),
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

    pub(super) fn parse(&self, text: &str) -> Result<Value, ConfigError> {
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

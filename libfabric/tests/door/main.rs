//! The library, loaded by the libfabric that is installed, from the outside: what an
//! application does, and what it should not do.
//!
//! Where libfabric is missing, each test says so and is skipped.

mod aliases;
mod atomics;
mod auth_key_regions;
mod auth_keys;
mod bad_input;
mod binding;
mod buffered;
mod buffered_peers;
mod calls;
mod cancel;
mod collectives;
mod completion_order;
mod connection_ends;
mod connection_errors;
mod connection_threads;
mod connections;
mod context_memory;
mod context_pairs;
mod contexts;
mod control;
mod counters;
mod data_order;
mod datagrams;
mod default_flags;
mod deferred_work;
mod descriptors;
mod discovery;
mod domain_events;
mod endpoint_attributes;
mod fences;
mod forks;
mod host;
mod injections;
mod instances;
mod levels;
mod life_cycle;
mod logs;
mod message_order;
mod mixed_contexts;
mod multicast;
mod names;
mod nodes;
mod one_sided;
mod refusals;
mod regions;
mod shared_receives;
mod signals;
mod socket_losses;
mod sockets;
mod storm;
mod tagged;
mod tagged_flags;
mod threads;
mod transfer;
mod triggered;
mod vector_use;
mod vectors;
mod versions;
mod wait_sets;
mod waiting;
mod world;

use kestrel_fi_abi as abi;

/// What a test starts in a process of its own: nothing, if it was not started by one.
#[test]
fn child() {
    forks::child();
    forks::busy_child();
    forks::exiting_child();
    instances::child();
    logs::child();
    vector_use::child();
    connection_ends::child();
}

/// Error numbers, as calls return them.
mod code {
    pub const NOENT: i32 = -2;
    pub const AGAIN: i32 = -11;
    pub const ACCES: i32 = -13;
    pub const BADF: i32 = -9;
    pub const BUSY: i32 = -16;
    pub const INVAL: i32 = -22;
    pub const NOSYS: i32 = -38;
    pub const NODATA: i32 = -61;
    pub const MSGSIZE: i32 = -90;
    pub const ADDRINUSE: i32 = -98;
    pub const ADDRNOTAVAIL: i32 = -99;
    pub const NOPROTOOPT: i32 = -92;
    pub const OPNOTSUPP: i32 = -95;
    pub const CONNABORTED: i32 = -103;
    pub const CONNRESET: i32 = -104;
    pub const NOTCONN: i32 = -107;
    pub const TIMEDOUT: i32 = -110;
    pub const CANCELED: i32 = -125;
    pub const TOOSMALL: i32 = -257;
    pub const OPBADSTATE: i32 = -258;
    pub const AVAIL: i32 = -259;
    pub const BADFLAGS: i32 = -260;
    pub const NOEQ: i32 = -261;
    pub const DOMAIN: i32 = -262;
    pub const NOCQ: i32 = -263;
    pub const TRUNC: i32 = -265;
    pub const NOKEY: i32 = -266;
}

/// Types of endpoints.
mod kind {
    pub const MSG: u32 = 1;
    pub const DGRAM: u32 = 2;
    pub const RDM: u32 = 3;
    pub const SOCK_STREAM: u32 = 4;
    pub const SOCK_DGRAM: u32 = 5;
}

/// Flags and capabilities.
mod flag {
    pub const MSG: u64 = 1 << 1;
    pub const RMA: u64 = 1 << 2;
    pub const TAGGED: u64 = 1 << 3;
    pub const ATOMIC: u64 = 1 << 4;
    pub const READ: u64 = 1 << 8;
    pub const WRITE: u64 = 1 << 9;
    pub const RECV: u64 = 1 << 10;
    pub const SEND: u64 = 1 << 11;
    pub const REMOTE_READ: u64 = 1 << 12;
    pub const REMOTE_WRITE: u64 = 1 << 13;
    pub const MULTI_RECV: u64 = 1 << 16;
    pub const REMOTE_CQ_DATA: u64 = 1 << 17;
    pub const PEEK: u64 = 1 << 19;
    pub const COMMIT_COMPLETE: u64 = 1 << 30;
    pub const TAGGED_DIRECTED_RECV: u64 = 1 << 45;
    pub const TAGGED_MULTI_RECV: u64 = 1 << 46;
    pub const RMA_PMEM: u64 = 1 << 49;
    pub const SOURCE: u64 = 1 << 57;
    /// As a capability.
    pub const DIRECTED_RECV: u64 = 1 << 59;
    /// As a binding flag.
    pub const SELECTIVE_COMPLETION: u64 = 1 << 59;
    /// As a flag of fi_getinfo.
    pub const CORE_PROVIDER_ONLY: u64 = 1 << 59;
}

//! kestrel-shm: the shared-memory transport of kestrel.
//!
//! In reading order, the control plane (everything cold):
//!
//! 1. [`station`]: an endpoint's presence on this host: its address, its events, its doorbell;
//!    `station_error`: why there is none, or no connection of it.
//! 2. [`region`]: sealed memory that passes between processes: lanes and chunk pools.
//! 3. [`doorbell`]: the eventfd that wakes a sleeping peer.
//! 4. `control`: the one sleeping thread a process that answers and starts handshakes; `sys`: the
//!    socket calls that rustix lacks.
//! 5. [`process`]: who a peer process is, and how its death is noticed.
//! 6. [`cma`]: reading and writing a peer's memory, and the probe that says whether we may;
//!    `memory_file`: the same memory as a file, for short copies; `end_mark`: the word by which a
//!    reader knows that it was the peer's.
//! 7. `guest`: a peer that reaches our memory by itself; `permit`: the nonce that each of its writes
//!    carries, so that they can be ended; `catalogue`: what all guests may reach without asking;
//!    `guests`: how those are waited for.
//! 8. [`barrier`]: what a process arranges once: fences that cost one side nothing.
//! 9. [`named_memory`]: memory with a name, for address vectors that processes share;
//!    `group_table`: who hears a multicast group.
//! 10. [`limits`]: the error of a process that runs out of descriptors.
//!
//! And the data path:
//!
//! 11. [`copy`]: the routines that move payload, chosen by CPU.
//! 12. [`chunk`]: the bounded pool that longer payload passes through.
//! 13. [`lane`]: a packet in lines and chunks, and what is checked of one; `lane_error`: what can be
//!     wrong with it.
//! 14. [`transport`], [`provider`]: what core drives.

#![deny(unsafe_code)]

pub mod barrier;
#[allow(unsafe_code)]
mod catalogue;
#[allow(unsafe_code)]
pub mod chunk;
#[allow(unsafe_code)]
pub mod cma;
mod control;
#[allow(unsafe_code)]
pub mod copy;
pub mod doorbell;
#[allow(unsafe_code)]
mod end_mark;
mod group_table;
mod guest;
mod guests;
#[allow(unsafe_code)]
pub mod lane;
mod lane_error;
pub mod limits;
#[allow(unsafe_code)]
mod memory_file;
pub mod named_memory;
mod own_ip;
#[allow(unsafe_code)]
mod permit;
pub mod process;
pub mod provider;
#[allow(unsafe_code)]
pub mod region;
pub mod station;
mod station_error;
#[allow(unsafe_code)]
mod sys;
#[allow(unsafe_code)]
pub mod transport;

pub use doorbell::{Doorbell, DoorbellError};
pub use named_memory::{NamedMemory, NamedMemoryError};
pub use own_ip::{loopback_like, own_ip};
pub use process::ProcessId;
pub use provider::{ShmOptions, ShmProvider};
pub use region::{
    LANE_BYTES, LANE_CHUNK_BYTES, LANE_HEAD_BYTES, LaneMemory, PoolMemory, PoolView, RegionError,
};
pub use station::{
    ConnectError, PeerIdentity, Station, StationError, StationEvent, StationOptions,
};

/// What the tests of this crate need to play a hostile peer. Not an interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::control::socket::{Offered, abstract_name, pretend_kernel_offers};
    pub use crate::control::wire;
}

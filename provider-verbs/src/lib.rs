//! kestrel-verbs: the verbs transports of kestrel: messages over reliable connected queue pairs
//! (RC), datagrams over unreliable ones (UD).
//!
//! In reading order, what it stands on:
//!
//! 1. [`device`], [`gid`], `interfaces`: devices, their ports, GIDs and IP addresses, which of these
//!    is used, and why there may be none.
//! 2. [`verbs`]: what the transport asks of verbs, as traits; [`manager`]: what the control thread
//!    asks of a connection manager; [`trouble`]: what a device says of itself; [`memory`]: what is
//!    registered; `path`, `partition`: what routes packets, and who takes them.
//! 3. `rdma`: verbs as they are, over the bindings of the crate `rdma-core-sys`, which loads
//!    rdma-core at run time; [`fake`]: an in-process fake of them, for tests.
//!
//! The control plane (everything cold):
//!
//! 4. `control`: the one sleeping thread that makes connections and notices their end.
//! 5. `station`: what it shares with an endpoint.
//! 6. `bell`: what wakes a sleeper.
//!
//! And the data path:
//!
//! 7. `receive_pool`, `send_pool`, `send_queue`: registered buffers, and who has them;
//!    `registrations`: the application's, and which of them are kept.
//! 8. [`transport`], [`datagrams`], and either behind one type ([`carrier`]), [`provider`]: what
//!    core drives.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bell;
pub mod carrier;
mod control;
#[allow(unsafe_code)]
pub mod datagrams;
pub mod device;
mod error;
#[allow(unsafe_code)]
pub mod fake;
pub mod gid;
mod interfaces;
pub mod manager;
#[allow(unsafe_code)]
pub mod memory;
mod own_receives;
mod partition;
mod path;
#[allow(unsafe_code)]
pub mod provider;
#[allow(unsafe_code)]
mod rdma;
mod receipt;
#[allow(unsafe_code)]
mod receive_pool;
#[allow(unsafe_code)]
mod registrations;
mod send_pool;
#[allow(unsafe_code)]
mod send_queue;
mod station;
#[allow(unsafe_code)]
pub mod transport;
pub mod trouble;
#[allow(unsafe_code)]
pub mod verbs;

pub use carrier::Carrier;
pub use device::{Device, DeviceError, devices};
pub use interfaces::{InterfaceAddress, Interfaces};
pub use provider::{RcProvider, VerbsOptions};
pub use rdma::{Rdma, has_manager};
pub use registrations::can_keep_registrations;
pub use transport::RcTransport;

/// Opens transports on an RDMA device.
pub type VerbsProvider = RcProvider<Rdma>;
/// A transport on an RDMA device.
pub type VerbsTransport = Carrier<Rdma>;

/// What the tests of this crate need to play a hostile peer. Not an interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::{
        control::{private, proof, wire},
        receipt::Receipt,
        receive_pool::BUFFER_BYTES,
    };
}

//! kestrel-verbs: the place of the verbs transport.
//!
//! For now this crate lists the RDMA devices of the machine, or says why there
//! are none, and that is all: it carries no message yet, and no endpoint uses
//! it. The bindings that it stands on are the crate `rdma-core-sys`, which
//! loads rdma-core at run time; without rdma-core everything here still builds
//! and runs, and answers with the reason.
//!
//! - [`device`]: devices, their ports and GIDs, and why there may be none.

#![deny(unsafe_code)]

pub mod device;

pub use device::{Device, DeviceError, devices};

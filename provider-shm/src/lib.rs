//! kestrel-shm: the shared-memory transport.

pub mod copy;

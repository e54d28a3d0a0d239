//! Lock-free rings, and what else threads and processes share without a lock. Each is a small file
//! with its invariants numbered, and each has a loom model (`core/tests/loom_*.rs`).

pub mod allowance;
pub mod announced;
pub mod catalogue;
pub mod claims;
pub mod filling;
pub mod lane;
pub mod leases;
pub mod members;
pub mod mpmc;
pub mod submissions;

//! Atomic operations on a peer's memory. Reference: fi_atomic(3).
//!
//! The target's engine executes them, with the processor's own atomic
//! instructions, so that engines of one process which serve the same region do
//! not tread on each other. Types that no instruction covers go under a small
//! lock by address ([`cell`]). An operation is atomic element by element.
//!
//! Where memory is declared to be for adapters alone, these play instead ([`by_adapter`]), and no
//! engine does: an adapter's step and a processor's are not atomic towards each other.

pub mod by_adapter;
pub mod call;
#[allow(unsafe_code)]
pub mod cell;
pub mod combine;
pub mod execute;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
pub mod long_double;

pub use call::{AtomicCall, AtomicOperation, Datatype, Form};

/// Bytes that one operation carries at most: what fits a packet even where the
/// transport has little room. A comparison carries two operands an element.
pub const ATOMIC_BYTES_MAX: usize = 4096;

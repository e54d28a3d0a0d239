//! libfabric's binary interface, as of 2.6: what its headers declare, in Rust.
//!
//! Every struct has its largest layout. What grew since 1.17 grew at the tail, so one
//! library serves both: a tail is written (zeroed memory that we allocate ourselves)
//! but never read, unless the caller's version says that it is there. The layouts are
//! held against real headers in `tests/layout.rs`.
//!
//! A crate of its own, because it has two sides: `kestrel-fi` answers these calls, and
//! its tests and `kestrel-perf` make them.

#[macro_use]
mod operations;

pub mod atomic;
pub mod attributes;
pub mod constants;
pub mod control;
pub mod fid;
pub mod info;
pub mod message;
pub mod transfer;
pub mod trigger;

pub use operations::{Refusal, Refused, on_refusal};

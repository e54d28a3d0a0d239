//! Any provider of libfabric, through the C interface that applications call.
//!
//! In reading order: [`library`] a libfabric found at run time; [`providers`]
//! where it finds its providers, kestrel's library among them; [`side`] an
//! endpoint and what the workloads do with it; [`one_sided`] what they do to
//! the other side's memory.

mod library;
mod one_sided;
pub mod providers;
mod side;

pub use library::Library;
pub use side::{DoorOptions, Side};

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error("cannot load {path:?}: {source}")]
    Load { path: PathBuf, source: libloading::Error },
    #[error("no such endpoint is offered by {provider}: {reason}")]
    NotOffered { provider: String, reason: String },
    #[error("{provider}: {call} failed: {reason}")]
    Call { provider: String, call: &'static str, reason: String },
    #[error("an operation failed: {0}")]
    Operation(String),
}

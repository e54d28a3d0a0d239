//! rdma-core-sys: libibverbs and librdmacm, loaded at run time.
//!
//! The types and function tables in `generated` come from rdma-core's headers
//! (`scripts/generate-bindings`) and are checked in, so that building needs
//! neither headers nor libraries, and one binary runs with and without
//! rdma-core installed. In reading order:
//!
//! - [`library`]: finds and opens the two libraries, and says why when it cannot.
//! - [`inline`]: what the headers define as inline functions, chiefly the data
//!   path, which goes through the device driver's operations table.
//! - [`verbs`], [`rdmacm`]: the C interface as it is, C names and all.

#[allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod generated {
    pub mod rdmacm;
    pub mod verbs;
}
pub mod inline;
pub mod library;

pub use generated::{rdmacm, verbs};
pub use library::{Library, LoadError};

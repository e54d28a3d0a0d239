//! The limit on open files, which every peer costs some of.

use std::io;

use rustix::process::{Resource, getrlimit};
use thiserror::Error;

/// What was wanted when the descriptors ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "out of file descriptors: the limit is {limit} (RLIMIT_NOFILE, or the system's fs.file-max), all \
     are in use and {need} more are needed"
)]
pub struct OutOfDescriptors {
    /// The soft limit in force, after we raised it to the hard one.
    pub limit: u64,
    /// How many more the step needed.
    pub need: u32,
}

impl OutOfDescriptors {
    pub(crate) fn needing(need: u32) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        OutOfDescriptors { limit, need }
    }
}

/// Whether a call failed for want of descriptors: the process's, or the system's.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

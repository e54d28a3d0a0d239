//! The limit on open files, which every peer costs some of.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// Nobody has more peers. Beyond, a program of ours that closes each number that it may have, as many do
/// before they execute another, would take minutes. Units: descriptors.
const OPEN_FILES_MAX: u64 = 1 << 20;

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

/// Raises the soft limit on open files to the hard one, which needs no privilege, but not beyond what
/// anybody uses.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(raised) = raised(current, maximum) else { return };
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        Ok(()) => tracing::debug!(?current, raised, "raised the limit on open files"),
        Err(error) => tracing::info!(?current, raised, %error, "cannot raise RLIMIT_NOFILE"),
    }
}

/// What the soft limit is raised to, if it is. None of either means that there is no limit.
fn raised(current: Option<u64>, maximum: Option<u64>) -> Option<u64> {
    let raised = maximum.unwrap_or(u64::MAX).min(OPEN_FILES_MAX);
    current.is_some_and(|current| current < raised).then_some(raised)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_lowered_or_raised_beyond_use() {
        assert_eq!(raised(Some(1024), Some(4096)), Some(4096));
        assert_eq!(raised(Some(1024), Some(1 << 30)), Some(OPEN_FILES_MAX));
        assert_eq!(raised(Some(1024), None), Some(OPEN_FILES_MAX));
        for current in [Some(4096), Some(1 << 29), None] {
            assert_eq!(raised(current, current.or(Some(1 << 30))), None);
        }
        assert_eq!(raised(Some(1 << 29), Some(1 << 30)), None);
    }
}

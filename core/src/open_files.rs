//! The limit on open files, of which every connection takes some.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Nobody has more peers. Beyond, a program of ours that closes each number that it may have, as many do
/// before they execute another, would take minutes. Units: descriptors.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Raises the soft limit on open files to the hard one, which needs no privilege, but not beyond what
/// anybody uses.
pub fn raise() {
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

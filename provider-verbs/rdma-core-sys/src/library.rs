//! Finding and opening libibverbs and librdmacm.

use std::sync::OnceLock;

use crate::generated::{rdmacm::rdmacm, verbs::verbs};

/// The run-time names: the versioned ones, which need no development package.
const VERBS_FILE: &str = "libibverbs.so.1";
const RDMACM_FILE: &str = "librdmacm.so.1";

/// The libraries of rdma-core, opened once in a process and never closed.
///
/// Never closed, because drivers that libibverbs loads keep state that outlives
/// every object that an application can release.
pub struct Library {
    /// libibverbs.
    pub verbs: verbs,
    rdmacm: Result<rdmacm, LoadError>,
}

/// Why a library of rdma-core cannot be used. Says what to install.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error(
        "{file} cannot be loaded ({reason}): install rdma-core \
         (Debian: ibverbs-providers and librdmacm1; Fedora: libibverbs and librdmacm)"
    )]
    Missing { file: &'static str, reason: String },
    #[error("{file} is older than rdma-core 32 ({reason}): install a newer rdma-core")]
    Outdated { file: &'static str, reason: String },
}

impl Library {
    /// Opens libibverbs, and librdmacm if it is there.
    ///
    /// Cost: loads files the first time; an atomic load after the first success.
    /// A failure is not remembered: a later call tries again.
    /// # Errors
    /// [`LoadError`] if libibverbs is missing, or too old.
    pub fn open() -> Result<&'static Library, LoadError> {
        static OPENED: OnceLock<Library> = OnceLock::new();
        if let Some(library) = OPENED.get() {
            return Ok(library);
        }
        let library = Self::load(VERBS_FILE, RDMACM_FILE)?;
        Ok(OPENED.get_or_init(|| library))
    }

    /// librdmacm, which connections need and a list of devices does not.
    ///
    /// # Errors
    /// [`LoadError`] if librdmacm was missing or too old when [`Library::open`] succeeded.
    pub fn rdmacm(&self) -> Result<&rdmacm, &LoadError> {
        self.rdmacm.as_ref()
    }

    fn load(verbs_file: &'static str, rdmacm_file: &'static str) -> Result<Self, LoadError> {
        // SAFETY: the files are named as rdma-core's ABI names them, so their
        // constructors are rdma-core's, which any process may run, and their
        // symbols have the types that the headers of that ABI declare.
        let verbs =
            unsafe { verbs::new(verbs_file) }.map_err(|error| LoadError::new(verbs_file, error))?;
        // SAFETY: as above.
        let rdmacm =
            unsafe { rdmacm::new(rdmacm_file) }.map_err(|error| LoadError::new(rdmacm_file, error));
        Ok(Self { verbs, rdmacm })
    }
}

impl LoadError {
    fn new(file: &'static str, error: libloading::Error) -> Self {
        let reason = error.to_string();
        match error {
            libloading::Error::DlSym { .. } | libloading::Error::DlSymUnknown => {
                Self::Outdated { file, reason }
            }
            _ => Self::Missing { file, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_what_to_install() {
        let error = Library::load("libibverbs-of-nowhere.so.1", RDMACM_FILE).err().unwrap();
        assert!(matches!(error, LoadError::Missing { file: "libibverbs-of-nowhere.so.1", .. }));
        let text = error.to_string();
        assert!(text.contains("libibverbs-of-nowhere.so.1"), "{text}");
        assert!(text.contains("install rdma-core"), "{text}");
    }

    #[test]
    fn a_library_without_the_symbols_is_called_outdated() {
        // The C library stands in for a libibverbs that lacks functions.
        let error = Library::load("libc.so.6", RDMACM_FILE).err().unwrap();
        assert!(matches!(error, LoadError::Outdated { file: "libc.so.6", .. }), "{error}");
        assert!(error.to_string().contains("ibv_"), "{error}");
    }

    #[test]
    fn librdmacm_may_be_missing_alone() {
        match Library::load(VERBS_FILE, "librdmacm-of-nowhere.so.1") {
            Ok(library) => {
                assert!(matches!(library.rdmacm(), Err(LoadError::Missing { .. })));
            }
            Err(error) => println!("SKIPPED librdmacm_may_be_missing_alone: {error}"),
        }
    }

    #[test]
    fn opening_twice_gives_the_same_library() {
        match (Library::open(), Library::open()) {
            (Ok(first), Ok(second)) => assert!(std::ptr::eq(first, second)),
            (Err(error), _) | (_, Err(error)) => {
                println!("SKIPPED opening_twice_gives_the_same_library: {error}");
            }
        }
    }
}

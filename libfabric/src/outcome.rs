//! From Rust's results to what C is told: a negative error number, and a line in the log.

use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
};

use kestrel_core::{
    endpoint::PostError,
    error::{Errno, HasErrno},
};

use crate::abi::Refusal;

/// Why a call was refused.
#[derive(Debug)]
pub struct Failure {
    pub errno: Errno,
    pub reason: String,
}

impl Failure {
    pub fn new(errno: Errno, reason: impl Into<String>) -> Failure {
        Failure { errno, reason: reason.into() }
    }

    /// A pointer that the manual page forbids to be null.
    pub fn null(what: &str) -> Failure {
        Failure::new(Errno::INVAL, format!("{what} is null"))
    }

    /// Flags that the call does not know.
    pub fn flags(what: &str, flags: u64) -> Failure {
        Failure::new(Errno::BADFLAGS, format!("{what}: flags {flags:#x} are not supported"))
    }
}

impl<E: HasErrno + Display> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { errno: error.errno(), reason: error.to_string() }
    }
}

/// Runs a call of the control path: an error becomes its number and a line in the log,
/// a panic becomes -FI_EOTHER.
pub fn guarded<R: Refusal>(name: &str, call: impl FnOnce() -> Result<R, Failure>) -> R {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => {
            // Nothing to say about what is simply not there yet.
            if failure.errno != Errno::AGAIN {
                tracing::info!("{name}: {}", failure.reason);
            }
            R::refusal(failure.errno.0)
        }
        Err(_) => {
            tracing::error!("{name}: an internal error; please report it");
            R::refusal(Errno::OTHER.0)
        }
    }
}

/// As [`guarded`], for calls that answer 0.
pub fn done(name: &str, call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    guarded(name, || call().map(|()| 0))
}

/// What a call of the data path answers.
#[inline(always)]
pub fn posted(result: Result<(), PostError>) -> isize {
    match result {
        Ok(()) => 0,
        Err(PostError::Again) => -(Errno::AGAIN.0 as isize),
        Err(error) => refused(error),
    }
}

#[cold]
#[inline(never)]
fn refused(error: PostError) -> isize {
    tracing::info!(target: "kestrel::endpoint", "{error}");
    isize::refusal(error.errno().0)
}

/// What a call of the data path answers to arguments that it cannot take.
#[cold]
#[inline(never)]
pub fn refused_argument(what: &str) -> isize {
    tracing::info!(target: "kestrel::endpoint", "{what}");
    isize::refusal(Errno::INVAL.0)
}

//! How many objects are bound to an object, and whether it is closed: what
//! makes `fi_close` answer FI_EBUSY.
//!
//! One word holds both, so that a bind and a close that race cannot both win.

use crate::error::{Errno, HasErrno};
use crate::primitive::{AtomicUsize, Ordering};

const CLOSED: usize = usize::MAX;

/// The number of objects bound to the object that owns this, or "closed".
#[derive(Debug)]
pub struct BindCount {
    state: AtomicUsize,
}

/// Why a bind, an unbind or a close was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has its message")]
pub enum BindError {
    #[error("{count} objects are still bound to it")]
    Busy { count: usize },
    #[error("it is closed")]
    Closed,
    #[error("nothing is bound to it")]
    NotBound,
}

impl HasErrno for BindError {
    fn errno(&self) -> Errno {
        match self {
            BindError::Busy { .. } => Errno::BUSY,
            BindError::Closed => Errno::BADF,
            BindError::NotBound => Errno::INVAL,
        }
    }
}

impl Default for BindCount {
    fn default() -> Self {
        BindCount { state: AtomicUsize::new(0) }
    }
}

impl BindCount {
    /// Counts one more bound object.
    ///
    /// # Errors
    /// [`BindError::Closed`] once [`close`](Self::close) has succeeded.
    pub fn bind(&self) -> Result<(), BindError> {
        self.update(|count| if count == CLOSED { Err(BindError::Closed) } else { Ok(count + 1) })
    }

    /// Counts one bound object less.
    ///
    /// # Errors
    /// [`BindError::NotBound`] if none is, [`BindError::Closed`] after close.
    pub fn unbind(&self) -> Result<(), BindError> {
        self.update(|count| match count {
            CLOSED => Err(BindError::Closed),
            0 => Err(BindError::NotBound),
            _ => Ok(count - 1),
        })
    }

    /// Closes, unless something is bound; after that nothing binds any more.
    ///
    /// # Errors
    /// [`BindError::Busy`] while objects are bound, and the object stays
    /// open; [`BindError::Closed`] the second time.
    pub fn close(&self) -> Result<(), BindError> {
        self.update(|count| match count {
            CLOSED => Err(BindError::Closed),
            0 => Ok(CLOSED),
            _ => Err(BindError::Busy { count }),
        })
    }

    /// The number of bound objects; 0 once closed.
    pub fn count(&self) -> usize {
        match self.state.load(Ordering::Acquire) {
            CLOSED => 0,
            count => count,
        }
    }

    fn update(&self, step: impl Fn(usize) -> Result<usize, BindError>) -> Result<(), BindError> {
        let mut current = self.state.load(Ordering::Acquire);
        loop {
            let next = step(current)?;
            // B1: pairs with itself; who closes sees all that the bound objects did before unbind.
            match self.state.compare_exchange(current, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(seen) => current = seen,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn close_waits_for_the_last_unbind_and_happens_once() {
        let binds = BindCount::default();
        binds.bind().unwrap();
        binds.bind().unwrap();
        assert_eq!(binds.close(), Err(BindError::Busy { count: 2 }));
        assert_eq!(binds.close().unwrap_err().errno(), Errno::BUSY);
        binds.unbind().unwrap();
        assert_eq!(binds.close(), Err(BindError::Busy { count: 1 }));
        binds.unbind().unwrap();
        assert_eq!(binds.unbind(), Err(BindError::NotBound));
        assert_eq!(binds.close(), Ok(()));
        assert_eq!(binds.close(), Err(BindError::Closed));
        assert_eq!(binds.bind(), Err(BindError::Closed));
        assert_eq!(binds.count(), 0);
    }
}

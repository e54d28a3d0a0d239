//! Bugs that end nothing but what they are met in.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does `work`, which may reach another endpoint's engine, or serves others besides. A panic in it goes no further: who
/// panicked has closed what it has left half-way, and the panic has said where. None then.
///
/// Loom's models tell what they find by panics: there is no such end of them.
pub fn contained<R>(what: &str, work: impl FnOnce() -> R) -> Option<R> {
    if cfg!(loom) {
        return Some(work());
    }
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        tracing::error!("{what} met a bug");
    }
    done
}

//! What peers may do to memory through an endpoint. Reference: fi_getinfo(3), "CAPABILITIES": of the
//! primary ones, only those that were asked for are enabled.

use crate::flags::Flags;

const WAYS: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

/// `REMOTE_READ` and `REMOTE_WRITE`, for each kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permitted {
    /// By reads and writes.
    pub rma: Flags,
    /// By atomic operations.
    pub atomics: Flags,
}

impl Permitted {
    /// Whatever there is.
    pub(crate) const ALL: Permitted = Permitted { rma: WAYS, atomics: WAYS };

    /// What an endpoint whose receiving side has these capabilities permits.
    pub fn of(capabilities: Flags) -> Permitted {
        let to = |kind| if capabilities.contains(kind) { WAYS } else { Flags::empty() };
        Permitted { rma: to(Flags::RMA), atomics: to(Flags::ATOMIC) }.within(capabilities)
    }

    /// What of it adapters may do by themselves, where atomic operations are theirs or not.
    pub(crate) fn by_adapters(self, atomics: bool) -> Permitted {
        let atomics = if atomics { self.atomics } else { Flags::empty() };
        Permitted { atomics, ..self }
    }

    /// What of it memory allows too that has this access.
    pub(crate) fn within(self, access: Flags) -> Permitted {
        Permitted { rma: self.rma & access, atomics: self.atomics & access }
    }
}

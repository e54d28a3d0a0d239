//! Registered memory: our own, and the application's.

use std::{io, ptr::NonNull, sync::Arc};

use kestrel_core::memory::Piece;
use rdma_core_sys::verbs::*;

use super::Rdma;
use crate::{
    error::{error_of, locked_memory_max},
    memory::Memory,
    verbs::{Region, Registration, RemoteAccess, VerbsError},
};

/// What peers may do, as the device is told.
pub(super) fn access_flags(remote: RemoteAccess) -> u32 {
    let write = if remote.write { IBV_ACCESS_REMOTE_WRITE } else { 0 };
    let atomic = if remote.atomic { IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
    write | atomic | if remote.read { IBV_ACCESS_REMOTE_READ } else { 0 }
}

/// What a registration permits, as the device is told. What the device alone writes to is told of by
/// completions, which come behind all that belongs to them: within it the bus may reorder.
fn registration_flags(remote: RemoteAccess, local_write: bool) -> u32 {
    let others_write = remote.write || remote.atomic;
    // "If IBV_ACCESS_REMOTE_WRITE or IBV_ACCESS_REMOTE_ATOMIC is set, then
    // IBV_ACCESS_LOCAL_WRITE must be set too."
    let local = if local_write || others_write { IBV_ACCESS_LOCAL_WRITE } else { 0 };
    let relaxed = if local_write && !others_write { IBV_ACCESS_RELAXED_ORDERING } else { 0 };
    local | relaxed | access_flags(remote)
}

/// Memory of the application that is registered.
pub struct RdmaRegistration {
    region: NonNull<ibv_mr>,
    keys: (u32, u32),
    device: Arc<Rdma>,
}

// SAFETY: as for the device.
unsafe impl Send for RdmaRegistration {}
// SAFETY: as for the device.
unsafe impl Sync for RdmaRegistration {}

impl RdmaRegistration {
    /// # Safety
    /// As [`crate::verbs::Verbs::register`].
    pub(super) unsafe fn new(
        device: &Arc<Rdma>,
        memory: Piece,
        remote: RemoteAccess,
        local_write: bool,
    ) -> Result<Self, VerbsError> {
        let bytes = memory.len();
        let (start, access) = (memory.as_ptr().cast(), registration_flags(remote, local_write));
        // SAFETY: the domain is alive; the caller vouches for the memory.
        let region = unsafe { device.verbs().reg_mr(device.domain.as_ptr(), start, bytes, access) };
        let Some(region) = NonNull::new(region) else {
            return Err(refused(device, bytes, io::Error::last_os_error()));
        };
        // SAFETY: the region was made just now.
        let keys = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
        Ok(RdmaRegistration { region, keys, device: device.clone() })
    }
}

fn refused(device: &Rdma, bytes: usize, source: io::Error) -> VerbsError {
    let device = device.open.name.clone();
    if !matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM)) {
        return VerbsError::Call { device, call: "ibv_reg_mr", source };
    }
    VerbsError::LockedMemory { device, bytes, limit: locked_memory_max(), source }
}

impl Registration for RdmaRegistration {
    #[inline(always)]
    fn local_key(&self) -> u32 {
        self.keys.0
    }

    fn remote_key(&self) -> u32 {
        self.keys.1
    }
}

impl Drop for RdmaRegistration {
    fn drop(&mut self) {
        // SAFETY: deregistered once.
        let failed = unsafe { self.device.verbs().ibv_dereg_mr(self.region.as_ptr()) };
        if failed != 0 {
            tracing::warn!("ibv_dereg_mr: {}", error_of(failed));
        }
    }
}

/// Registered memory of our own. Fields drop in this order: the registration before the memory.
pub struct RdmaRegion {
    registration: RdmaRegistration,
    memory: Memory,
}

impl RdmaRegion {
    pub(super) fn new(
        device: &Arc<Rdma>,
        bytes: usize,
        remote_write: bool,
    ) -> Result<Self, VerbsError> {
        let memory = Memory::zeroed(bytes)
            .ok_or_else(|| refused(device, bytes, io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let remote = RemoteAccess { write: remote_write, ..RemoteAccess::default() };
        // SAFETY: the memory is ours, and is freed after the registration.
        let registration = unsafe { RdmaRegistration::new(device, memory.whole(), remote, true) }?;
        Ok(RdmaRegion { registration, memory })
    }
}

impl Region for RdmaRegion {
    #[inline(always)]
    fn memory(&self) -> &Memory {
        &self.memory
    }

    #[inline(always)]
    fn local_key(&self) -> u32 {
        self.registration.local_key()
    }

    fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Credit, and what peers write, is polled where it lies: the last byte is the last that comes.
    #[test]
    fn the_bus_may_reorder_what_completions_tell_of() {
        let (nothing, local) = (RemoteAccess::default(), IBV_ACCESS_LOCAL_WRITE);
        assert_eq!(registration_flags(nothing, false), 0);
        assert_eq!(registration_flags(nothing, true), local | IBV_ACCESS_RELAXED_ORDERING);
        let read = RemoteAccess { read: true, ..nothing };
        assert_eq!(registration_flags(read, false), IBV_ACCESS_REMOTE_READ);
        for remote in [RemoteAccess { write: true, ..read }, RemoteAccess { atomic: true, ..read }]
        {
            for local_write in [false, true] {
                let flags = registration_flags(remote, local_write);
                assert_eq!(flags, local | access_flags(remote), "{remote:?}");
            }
        }
    }
}

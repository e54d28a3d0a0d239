//! Registered memory, and what devices do to it: the keys are checked as a device does.

use kestrel_core::{memory::Piece, window::Change};

use super::{FakeOptions, fabric::State};
use crate::verbs::{RemoteAccess, RemoteMemory, Segment, Status};

/// A stretch of registered memory: what its key allows.
pub(super) struct Registered {
    pub start: u64,
    pub bytes: usize,
    pub remote: RemoteAccess,
    /// The device itself may write to it.
    pub local_write: bool,
}

impl State {
    /// Whether so much more memory of an application can be registered with a device.
    pub(super) fn admits(&mut self, bytes: usize, options: &FakeOptions) -> bool {
        let locked: usize = self.regions.values().map(|region| region.bytes).sum();
        let room = options.locked_bytes_max.saturating_sub(locked);
        let admits = !self.refusing && bytes <= options.registered_bytes_max.min(room);
        self.tally.registrations += u64::from(admits);
        admits
    }

    /// Whether the segment lies in registered memory, as its key says.
    pub(super) fn is_local(&self, segment: &Segment) -> bool {
        let region = self.regions.get(&segment.local_key);
        region.is_some_and(|region| region.holds(segment.address, segment.length as usize))
    }

    pub(super) fn write(
        &mut self,
        remote: RemoteMemory,
        admits: RemoteAccess,
        bytes: &[u8],
    ) -> Status {
        if bytes.is_empty() {
            return if admits.write { Status::SUCCESS } else { Status::REMOTE_INVALID };
        }
        let region = self.regions.get(&remote.key).filter(|region| region.remote.write);
        if !admits.write || !region.is_some_and(|region| region.holds(remote.address, bytes.len()))
        {
            return Status::REMOTE_ACCESS;
        }
        if remote.address.is_multiple_of(8) && bytes.len().is_multiple_of(8) {
            write_words(remote.address, bytes);
        } else {
            piece_at(remote.address, bytes.len() as u32).fill(bytes);
        }
        Status::SUCCESS
    }

    pub(super) fn read(
        &mut self,
        remote: RemoteMemory,
        admits: RemoteAccess,
        to: &Segment,
    ) -> Status {
        let length = to.length as usize;
        let region = self.regions.get(&remote.key).filter(|region| region.remote.read);
        if !admits.read || !region.is_some_and(|region| region.holds(remote.address, length)) {
            return Status::REMOTE_ACCESS;
        }
        // What was registered when it was posted may not be any more.
        let is_writable = |key| self.regions.get(key).is_some_and(|region| region.local_write);
        if !self.is_local(to) || !is_writable(&to.local_key) {
            return Status::LOCAL_PROTECTION;
        }
        piece_at(remote.address, to.length).copy_to(piece_at(to.address, to.length));
        Status::SUCCESS
    }

    /// As a device does it: in one step towards other devices, not towards processors.
    pub(super) fn change(
        &mut self,
        remote: RemoteMemory,
        admits: RemoteAccess,
        change: Change,
        to: &Segment,
    ) -> Status {
        if !remote.address.is_multiple_of(8) || self.refusing_atomics {
            return Status::REMOTE_INVALID;
        }
        let region = self.regions.get(&remote.key).filter(|region| region.remote.atomic);
        if !admits.atomic || !region.is_some_and(|region| region.holds(remote.address, 8)) {
            return Status::REMOTE_ACCESS;
        }
        if !self.is_local(to) || to.length != 8 {
            return Status::LOCAL_PROTECTION;
        }
        let mut bytes = Vec::new();
        piece_at(remote.address, 8).append_to(&mut bytes);
        let before = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let after = match change {
            Change::Add(value) => before.wrapping_add(value),
            Change::Swap { expected, value } if expected == before => value,
            Change::Swap { .. } => before,
        };
        write_words(remote.address, &after.to_ne_bytes());
        write_words(to.address, &before.to_ne_bytes());
        self.tally.atomics += 1;
        Status::SUCCESS
    }
}

impl Registered {
    fn holds(&self, address: u64, length: usize) -> bool {
        let offset = address.checked_sub(self.start);
        offset.is_some_and(|offset| {
            (offset as usize).checked_add(length).is_some_and(|end| end <= self.bytes)
        })
    }
}

/// A stretch of this process's memory that was checked against its key.
pub(super) fn piece_at(address: u64, length: u32) -> Piece {
    // SAFETY: the caller has found the stretch in registered memory, which is deregistered under
    // the lock that is held, or it is that of an inline request, whose poster waits.
    unsafe { Piece::new(address as *mut u8, length as usize) }
}

/// Writes as a device does, whole words at a time: the other side may be reading.
fn write_words(address: u64, bytes: &[u8]) {
    for (nth, word) in bytes.chunks_exact(8).enumerate() {
        let to = (address as usize + nth * 8) as *mut u64;
        // SAFETY: the stretch was found in memory that is registered for writing, and is
        // deregistered under the lock that is held; both sides use it as atomic words.
        let to = unsafe { std::sync::atomic::AtomicU64::from_ptr(to) };
        let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        to.store(word, std::sync::atomic::Ordering::Release);
    }
}

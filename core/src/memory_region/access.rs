//! What a target does to a region's memory on behalf of peers, and how closing
//! the region waits for it.
//!
//! The gate is one word: how many accesses are under way, and whether the region
//! is closed. An access counts itself in before it looks at the memory and out
//! when it has let go of it; who closes sets the mark and waits for the count to
//! be 0. So no byte is read or written after a close returned. An access lasts
//! as long as one packet is copied, and no engine closes a region from inside of
//! one, so the wait is short and ends.

use super::MemoryRegion;
use crate::error::Errno;
use crate::flags::Flags;
use crate::memory::Piece;
use crate::primitive::{AtomicU64, Ordering, spin_loop, yield_now};

const CLOSED: u64 = 1 << 63;
/// Looks at the count between two turns of the core given away.
const SPINS: u32 = 64;

/// Accesses under way, and whether the region is closed.
#[derive(Debug)]
pub struct Gate {
    state: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { state: AtomicU64::new(0) }
    }
}

impl Gate {
    /// Counts an access in, unless the region is closed.
    #[inline(always)]
    pub fn enter(&self) -> bool {
        // One word has both, so an access either precedes the mark and is waited
        // for, or sees it.
        if self.state.fetch_add(1, Ordering::Relaxed) & CLOSED == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Counts an access out.
    #[inline(always)]
    pub fn leave(&self) {
        // G1: pairs with G2 in `close`: what was read or written is behind us.
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Refuses accesses from now on and waits for those under way.
    pub fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
        let mut spins = 0u32;
        // G2: pairs with G1 in `leave`.
        while self.state.load(Ordering::Acquire) != CLOSED {
            spins += 1;
            if spins.is_multiple_of(SPINS) { yield_now() } else { spin_loop() }
        }
    }

    /// Whether accesses are refused.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }
}

/// Why a target refuses an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No region has this key, or none has it any more.
    Key,
    /// The region, or the endpoint, does not allow that.
    Access,
    /// Not within the region, or not aligned as the operation needs it.
    Bounds,
    /// Nobody said that the region's memory is persistent.
    Volatile,
    /// The region's storage did not take what was written.
    Storage,
    /// An atomic operation that only an adapter may do.
    ForAdapters,
    /// An atomic operation on a type that this processor does not have.
    Unsupported,
    /// No memory for a copy of what it asked for.
    Memory,
}

impl Refusal {
    /// The number that crosses the wire and ends in the initiator's error entry.
    pub fn errno(self) -> Errno {
        match self {
            Refusal::Key => Errno::KEYREJECTED,
            Refusal::Access => Errno::ACCES,
            Refusal::Bounds => Errno::INVAL,
            Refusal::Volatile => Errno::OPNOTSUPP,
            Refusal::Storage => Errno::IO,
            Refusal::ForAdapters | Refusal::Unsupported => Errno::OPNOTSUPP,
            Refusal::Memory => Errno::NOMEM,
        }
    }
}

/// An access under way: closing the region waits until it is dropped.
#[derive(Debug)]
pub struct Access<'a> {
    region: &'a MemoryRegion,
}

impl MemoryRegion {
    /// Whether the region is closed: its key means nothing any more.
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// Begins an access of `kind`, by operations of peers or of ours.
    #[inline(always)]
    pub(crate) fn access_as(&self, kind: Flags) -> Result<Access<'_>, Refusal> {
        if !self.access.contains(kind) {
            return Err(Refusal::Access);
        }
        if self.gate.enter() { Ok(Access { region: self }) } else { Err(Refusal::Key) }
    }

    /// Byte of the region at remote address `address`, with `length` bytes behind it.
    #[inline(always)]
    pub(crate) fn offset_of(&self, address: u64, length: u64) -> Result<u64, Refusal> {
        let offset = address.wrapping_sub(self.base);
        let inside = address >= self.base && offset <= self.len && length <= self.len - offset;
        if inside { Ok(offset) } else { Err(Refusal::Bounds) }
    }
}

impl Drop for Access<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.region.gate.leave();
    }
}

impl Access<'_> {
    /// What is accessed.
    pub(super) fn region(&self) -> &MemoryRegion {
        self.region
    }

    /// The longest contiguous part from byte `offset` of the region on, at most
    /// `length` bytes. Usable as long as the access.
    #[inline(always)]
    pub(crate) fn contiguous(&self, offset: u64, length: u64) -> Piece {
        let range = self.region.ranges[0];
        if offset < range.len {
            return piece(range.address + offset, length.min(range.len - offset));
        }
        self.contiguous_behind(offset, length)
    }

    #[cold]
    #[inline(never)]
    fn contiguous_behind(&self, mut offset: u64, length: u64) -> Piece {
        for range in &self.region.ranges {
            if offset < range.len {
                return piece(range.address + offset, length.min(range.len - offset));
            }
            offset -= range.len;
        }
        Piece::EMPTY
    }

    /// Calls `visit` for each contiguous part of `length` bytes from `offset` on, with how many
    /// of these bytes lie before it.
    #[inline(always)]
    pub(crate) fn for_each_part(
        &self,
        offset: u64,
        length: u64,
        mut visit: impl FnMut(usize, Piece),
    ) {
        let mut done = 0;
        while done < length {
            let part = self.contiguous(offset + done, length - done);
            if part.is_empty() {
                return;
            }
            visit(done as usize, part);
            done += part.len() as u64;
        }
    }
}

#[inline(always)]
fn piece(address: u64, length: u64) -> Piece {
    // SAFETY: the range is within a registered region, whose owner promised
    // (`Domain::register_memory`) that it stays valid until the region is closed,
    // which waits for the access that hands this piece out.
    unsafe { Piece::new(address as *mut u8, length as usize) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{MemoryRange, MemoryRegionAttributes, MemoryRegionRegistry};
    use super::*;
    use crate::info::MemoryRegionMode;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn attributes(ranges: &[MemoryRange]) -> MemoryRegionAttributes<'_> {
        MemoryRegionAttributes { ranges, access: Flags::REMOTE_WRITE, ..Default::default() }
    }

    #[test]
    fn bounds_are_those_of_all_ranges_together() {
        let ranges =
            [MemoryRange { address: 0x1000, len: 10 }, MemoryRange { address: 0x9000, len: 6 }];
        for (mode, base) in
            [(MemoryRegionMode::empty(), 0), (MemoryRegionMode::VIRT_ADDR, 0x1000_u64)]
        {
            let registry = MemoryRegionRegistry::new(mode, 4);
            let region = registry.register(&attributes(&ranges)).unwrap();
            assert_eq!(region.offset_of(base, 16), Ok(0));
            assert_eq!(region.offset_of(base + 16, 0), Ok(16));
            for (address, length) in
                [(base, 17), (base + 16, 1), (base + 1, u64::MAX), (base.wrapping_sub(1), 1)]
            {
                assert_eq!(region.offset_of(address, length), Err(Refusal::Bounds));
            }
            let access = region.access_as(Flags::REMOTE_WRITE).unwrap();
            let mut parts = Vec::new();
            access.for_each_part(8, 5, |_, part| parts.push((part.as_ptr() as u64, part.len())));
            assert_eq!(parts, [(0x1008, 2), (0x9000, 3)]);
            assert_eq!(region.access_as(Flags::REMOTE_READ).unwrap_err(), Refusal::Access);
        }
    }

    #[test]
    fn closing_waits_for_an_access_and_refuses_the_next() {
        let registry = MemoryRegionRegistry::new(MemoryRegionMode::empty(), 4);
        let ranges = [MemoryRange { address: 0x1000, len: 10 }];
        let region = registry.register(&attributes(&ranges)).unwrap();
        let access = region.access_as(Flags::REMOTE_WRITE).unwrap();
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                registry.close(&region).unwrap();
                closed.store(true, Ordering::SeqCst);
            });
            while !region.is_closed() {
                std::thread::yield_now();
            }
            assert!(!closed.load(Ordering::SeqCst));
            assert_eq!(region.access_as(Flags::REMOTE_WRITE).unwrap_err(), Refusal::Key);
            drop(access);
        });
        assert!(closed.load(Ordering::SeqCst));
    }
}

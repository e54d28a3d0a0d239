//! The one-sided calls: memory that the other side may reach, and reaching it.

use super::{FabricError, Outcome, Side, open, outcome};
use kestrel_core::flags::Flags;
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes};
use kestrel_core::one_sided::{AtomicPost, RemoteSegment, RmaPost};
use kestrel_core::protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The key of the one region that a side has.
const KEY: u64 = 0x6b65;

/// What is done to the other side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    Write,
    Read,
    /// A 64-bit sum that fetches.
    FetchAdd,
    /// A 64-bit compare and swap.
    CompareSwap,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::FetchAdd => "fetch-add",
            Verb::CompareSwap => "compare-swap",
        }
    }

    fn call(self) -> Option<AtomicCall> {
        let (operation, form) = match self {
            Verb::Write | Verb::Read => return None,
            Verb::FetchAdd => (AtomicOperation::Sum, Form::Fetch),
            Verb::CompareSwap => (AtomicOperation::Cswap, Form::Compare),
        };
        Some(AtomicCall { operation, datatype: Datatype::Uint64, form })
    }
}

/// Local memory of an operation: what is sent, and where what comes back goes.
#[derive(Clone, Copy)]
pub struct Local {
    pub source: *const u8,
    pub results: *mut u8,
    pub size: usize,
}

impl Side {
    /// Lets the others reach `len` bytes.
    ///
    /// # Safety
    /// They are valid for reads and writes until [`Self::hide`].
    pub unsafe fn expose(
        &mut self,
        bytes: *mut u8,
        len: usize,
    ) -> Result<Arc<MemoryRegion>, FabricError> {
        let attributes = MemoryRegionAttributes {
            ranges: &[MemoryRange { address: bytes as u64, len: len as u64 }],
            access: Flags::REMOTE_READ | Flags::REMOTE_WRITE,
            requested_key: KEY,
            ..MemoryRegionAttributes::default()
        };
        // SAFETY: the caller vouches for the range.
        unsafe { self.endpoint.domain().register_memory(&attributes) }.map_err(open)
    }

    /// The counterpart of [`Self::expose`].
    pub fn hide(&mut self, region: &Arc<MemoryRegion>) -> Result<(), FabricError> {
        self.endpoint.domain().close_memory(region).map_err(open)
    }

    /// Does `verb` to the start of the memory that `to` exposes.
    ///
    /// # Safety
    /// `local.source` is readable for its size, 16 bytes for an atomic, and
    /// `local.results` writable for its size, until the completion.
    #[inline(always)]
    pub unsafe fn reach(
        &mut self,
        verb: Verb,
        local: Local,
        to: u64,
        context: u64,
    ) -> Result<Outcome, FabricError> {
        let Local { source, results, size } = local;
        let segments = &[RemoteSegment { address: 0, length: size as u64, key: KEY }];
        // SAFETY: the caller vouches for the ranges; what is sent is only read.
        let (source, second, results) = unsafe {
            let source = source.cast_mut();
            let second = Piece::new(source.wrapping_add(size), size);
            (Piece::new(source, size), second, Piece::new(results, size))
        };
        if let Some(call) = verb.call() {
            return outcome(self.endpoint.post_atomic(AtomicPost {
                call,
                operands: Pieces::One(source),
                compare: Pieces::One(second),
                results: Pieces::One(results),
                to,
                segments,
                data: 0,
                context,
                flags: Flags::empty(),
            }));
        }
        let pieces = Pieces::One(if verb == Verb::Read { results } else { source });
        let flags = Flags::empty();
        let post = RmaPost { pieces, to, segments, data: 0, context, flags, owner: None };
        outcome(match verb {
            Verb::Read => self.endpoint.post_read(post),
            _ => self.endpoint.post_write(post),
        })
    }
}

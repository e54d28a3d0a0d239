//! The one-sided calls: memory that the other side may reach, and reaching it.

use super::{FabricError, Side, open, outcome};
use crate::port::{Grant, Local, Outcome, PortError, Verb};
use kestrel_core::flags::Flags;
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::memory_region::descriptor::Descriptor;
use kestrel_core::memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes};
use kestrel_core::one_sided::{AtomicPost, RemoteSegment, RmaPost};
use kestrel_core::protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form};
use std::sync::Arc;

/// The key of the one region that a side has: for others to reach, or for what it sends or gets.
const KEY: u64 = 0x6b65;
/// The keys of the buffers of messages.
const SENT: u64 = KEY + 1;
const RECEIVED: u64 = KEY + 2;

/// The buffers of messages, registered, and what posts say of them.
#[derive(Default)]
pub(super) struct Registered {
    pub regions: Vec<Arc<MemoryRegion>>,
    pub sent: Option<Descriptor>,
    pub received: Option<Descriptor>,
}

/// The atomic that a verb is, if it is one.
fn call(verb: Verb) -> Option<AtomicCall> {
    let (operation, form) = match verb {
        Verb::Write | Verb::Read => return None,
        Verb::FetchAdd => (AtomicOperation::Sum, Form::Fetch),
        Verb::CompareSwap => (AtomicOperation::Cswap, Form::Compare),
    };
    Some(AtomicCall { operation, datatype: Datatype::Uint64, form })
}

impl Side {
    /// # Safety
    /// As [`Port::expose`](crate::port::Port::expose).
    pub(super) unsafe fn expose_range(
        &mut self,
        bytes: *mut u8,
        len: usize,
    ) -> Result<(Arc<MemoryRegion>, Grant), FabricError> {
        // SAFETY: the caller vouches for the range.
        let region = unsafe { self.register_as(KEY, (bytes, len)) }?;
        Ok((region, Grant { address: 0, key: KEY }))
    }

    /// # Safety
    /// As [`Port::register`](crate::port::Port::register).
    pub(super) unsafe fn register_buffers(
        &mut self,
        sent: (*mut u8, usize),
        received: (*mut u8, usize),
    ) -> Result<(), FabricError> {
        // SAFETY: the caller vouches for both.
        let [sent, received] =
            unsafe { [self.register_as(SENT, sent)?, self.register_as(RECEIVED, received)?] };
        let descriptors = [sent.descriptor(), received.descriptor()];
        let regions = vec![sent, received];
        self.registered = Registered { regions, sent: descriptors[0], received: descriptors[1] };
        Ok(())
    }

    /// Registers memory for all that there is.
    ///
    /// # Safety
    /// It is valid until the region is closed.
    unsafe fn register_as(
        &self,
        key: u64,
        (bytes, len): (*mut u8, usize),
    ) -> Result<Arc<MemoryRegion>, FabricError> {
        let remote = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
        let local = Flags::READ | Flags::WRITE | Flags::SEND | Flags::RECV;
        let attributes = MemoryRegionAttributes {
            ranges: &[MemoryRange { address: bytes as u64, len: len as u64 }],
            access: remote | local,
            requested_key: key,
            ..MemoryRegionAttributes::default()
        };
        // SAFETY: the caller vouches for the range.
        let region = unsafe { self.endpoint.domain().register_memory(&attributes) };
        region.map_err(open)
    }

    /// # Safety
    /// As [`Port::reach`](crate::port::Port::reach).
    #[inline(always)]
    pub(super) unsafe fn post_one_sided(
        &mut self,
        verb: Verb,
        local: Local,
        grant: Grant,
        to: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        let Local { source, results, size } = local;
        let segments =
            &[RemoteSegment { address: grant.address, length: size as u64, key: grant.key }];
        // SAFETY: the caller vouches for the ranges; what is sent is only read.
        let (source, second, results) = unsafe {
            let source = source.cast_mut();
            let second = Piece::new(source.wrapping_add(size), size);
            (Piece::new(source, size), second, Piece::new(results, size))
        };
        if let Some(call) = call(verb) {
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
        let (data, region) = (0, Descriptor::of(KEY));
        let post = RmaPost { pieces, to, segments, data, context, flags, region, attachment: None };
        outcome(match verb {
            Verb::Read => self.endpoint.post_read(post),
            _ => self.endpoint.post_write(post),
        })
    }
}

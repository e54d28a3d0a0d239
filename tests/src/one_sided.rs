//! What the cases of one-sided operations stand on: memory that peers may reach.

use std::sync::Arc;

use kestrel_core::{
    domain::{Domain, DomainOptions},
    endpoint::PostError,
    flags::Flags,
    info::MemoryRegionMode,
    memory::{Piece, Pieces},
    memory_region::descriptor::Descriptor,
    memory_region::{MemoryRange, MemoryRegion, MemoryRegionAttributes, MemoryRegionError},
    one_sided::{AtomicPost, RemoteSegment, RmaPost},
    protocol::atomic::AtomicCall,
    transport::Provider,
};

use crate::bed::{Memory, Node, Options};

/// Both directions.
pub const BOTH: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

/// Options of a world whose domains register like this.
pub fn options(memory_region_mode: MemoryRegionMode) -> Options {
    let domain = DomainOptions { memory_region_mode, ..DomainOptions::default() };
    Options { domain, ..Options::default() }
}

/// The modes that make a difference.
pub const MODES: [MemoryRegionMode; 5] = [
    MemoryRegionMode::BASIC_EQUIVALENT,
    MemoryRegionMode::VIRT_ADDR,
    MemoryRegionMode::PROV_KEY,
    MemoryRegionMode::ALLOCATED,
    MemoryRegionMode::empty(),
];

/// Lets peers of `node` reach all of `memory`.
#[track_caller]
pub fn expose<P: Provider>(
    node: &Node<P>,
    memory: &Memory,
    access: Flags,
    key: u64,
) -> Arc<MemoryRegion> {
    expose_ranges(node, &[memory.piece()], access, key).unwrap()
}

/// Lets peers of `node` reach these ranges, end to end.
pub fn expose_ranges<P: Provider>(
    node: &Node<P>,
    pieces: &[Piece],
    access: Flags,
    requested_key: u64,
) -> Result<Arc<MemoryRegion>, MemoryRegionError> {
    expose_as(node, pieces, access, requested_key, Flags::empty())
}

/// The same, of memory that `flags` says more of.
pub fn expose_as<P: Provider>(
    node: &Node<P>,
    pieces: &[Piece],
    access: Flags,
    requested_key: u64,
    flags: Flags,
) -> Result<Arc<MemoryRegion>, MemoryRegionError> {
    expose_in(&node.domain, pieces, access, requested_key, flags)
}

/// The same on a domain of any kind.
pub fn expose_in<P: Provider>(
    domain: &Arc<Domain<P>>,
    pieces: &[Piece],
    access: Flags,
    requested_key: u64,
    flags: Flags,
) -> Result<Arc<MemoryRegion>, MemoryRegionError> {
    let range =
        |piece: &Piece| MemoryRange { address: piece.as_ptr() as u64, len: piece.len() as u64 };
    let ranges: Vec<MemoryRange> = pieces.iter().map(range).collect();
    let (ranges, rest) = (&ranges[..], MemoryRegionAttributes::default());
    let attributes = MemoryRegionAttributes { ranges, access, requested_key, flags, ..rest };
    // SAFETY: the memory outlives the world, since each case makes it first.
    unsafe { domain.register_memory(&attributes) }
}

/// `length` bytes from byte `offset` of a region on.
pub fn segment(region: &MemoryRegion, offset: usize, length: usize) -> RemoteSegment {
    let address = region.base() + offset as u64;
    RemoteSegment { address, length: length as u64, key: region.key() }
}

/// A read or a write with all there is to say.
#[derive(Clone, Copy)]
pub struct Rma<'a> {
    pub pieces: Pieces<'a>,
    pub segments: &'a [RemoteSegment],
    pub data: Option<u64>,
    pub context: u64,
    pub flags: Flags,
    pub region: Option<Descriptor>,
}

impl Default for Rma<'_> {
    fn default() -> Self {
        let pieces = Pieces::One(Piece::EMPTY);
        let flags = Flags::empty();
        Rma { pieces, segments: &[], data: None, context: 0, flags, region: None }
    }
}

impl<'a> Rma<'a> {
    /// What is posted.
    pub fn post(&self, to: u64) -> RmaPost<'a> {
        let mut flags = self.flags;
        flags.set(Flags::REMOTE_CQ_DATA, self.data.is_some());
        RmaPost {
            pieces: self.pieces,
            to,
            segments: self.segments,
            data: self.data.unwrap_or(0),
            context: self.context,
            flags,
            region: self.region,
            attachment: None,
        }
    }
}

impl<P: Provider> Node<P> {
    /// Posts a read with all there is to say.
    pub fn post_read(&self, to: u64, read: &Rma<'_>) -> Result<(), PostError> {
        self.endpoint.post_read(read.post(to))
    }

    /// Posts a write with all there is to say.
    pub fn post_write(&self, to: u64, write: &Rma<'_>) -> Result<(), PostError> {
        self.endpoint.post_write(write.post(to))
    }

    /// Posts an atomic operation.
    pub fn post_atomic(&self, to: u64, atomic: &Atomic<'_>) -> Result<(), PostError> {
        self.endpoint.post_atomic(atomic.post(to))
    }
}

/// An atomic operation with all there is to say.
#[derive(Clone, Copy)]
pub struct Atomic<'a> {
    pub call: AtomicCall,
    pub operands: Pieces<'a>,
    pub compare: Pieces<'a>,
    pub results: Pieces<'a>,
    pub segments: &'a [RemoteSegment],
    pub context: u64,
    pub flags: Flags,
}

impl<'a> Atomic<'a> {
    /// What is posted.
    pub fn post(&self, to: u64) -> AtomicPost<'a> {
        let Atomic { call, operands, compare, results, segments, context, flags } = *self;
        AtomicPost { call, operands, compare, results, to, segments, data: 0, context, flags }
    }

    /// One with nothing but its call.
    pub fn new(call: AtomicCall) -> Self {
        let none = Pieces::One(Piece::EMPTY);
        Atomic {
            call,
            operands: none,
            compare: none,
            results: none,
            segments: &[],
            context: 0,
            flags: Flags::empty(),
        }
    }
}

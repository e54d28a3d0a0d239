//! One-sided operations over shared memory, which their initiator carries out by itself.

use std::{sync::Arc, time::Instant};

use kestrel_core::{
    config::CmaPolicy,
    domain::{DomainOptions, Sharing},
    info::{MemoryRegionMode, MessageOrder},
    memory_region::MemoryRegion,
    one_sided::RemoteSegment,
};
use kestrel_shm::{ShmOptions, ShmProvider};

use crate::{
    bed::{Bed, Memory, World},
    node::{self, NodeOptions},
    one_sided::{Rma, options, segment},
    scale::PATIENCE,
};

/// One call copies the first two, several polls the others.
pub const LENGTHS: [usize; 4] = [4096, 1 << 20, (1 << 20) + 1, 5 << 20];
/// The shortest of them.
pub const SHORT: usize = LENGTHS[0];
/// One-sided operations need no target.
pub fn alone() -> ShmOptions {
    ShmOptions { cma: CmaPolicy::On, ..ShmOptions::default() }
}

/// An endpoint of a process of its own, whose regions have keys and addresses that are asked for.
pub fn lone_node() -> node::Node {
    let domain =
        DomainOptions { memory_region_mode: MemoryRegionMode::empty(), ..DomainOptions::default() };
    node::Node::with(&NodeOptions { domain, ..NodeOptions::with_cma(CmaPolicy::On) })
}

/// Node 0 reaches regions of node 1's.
pub struct ShmReach {
    pub world: World<ShmProvider>,
}

impl ShmReach {
    #[expect(clippy::new_without_default, reason = "a world is never a default")]
    pub fn new() -> ShmReach {
        ShmReach::with(alone())
    }

    /// The same with such transports.
    pub fn with(shm: ShmOptions) -> ShmReach {
        ShmReach::in_order(shm, MessageOrder::all())
    }

    /// The same in such an order.
    pub fn in_order(shm: ShmOptions, message_order: MessageOrder) -> ShmReach {
        let reach = ShmReach::of_strangers(shm, message_order);
        reach.world.warm_up();
        reach
    }

    /// The same, of two that have not met.
    pub fn of_strangers(shm: ShmOptions, message_order: MessageOrder) -> ShmReach {
        let provider = Arc::new(ShmProvider::new(shm).unwrap());
        let bed = Bed { provider, sharing: Sharing::Exclusive };
        let mut options = options(MemoryRegionMode::ALLOCATED);
        options.endpoint.message_order = message_order;
        ShmReach { world: bed.world_with(2, &options) }
    }

    /// Posts a write.
    pub fn write(&self, source: &Memory, segments: &[RemoteSegment]) {
        let rma = Rma { pieces: source.all(), segments, context: 1, ..Rma::default() };
        self.world.post(|| self.world.nodes[0].post_write(1, &rma));
    }

    /// Posts a read.
    pub fn read(&self, into: &Memory, segments: &[RemoteSegment]) {
        let rma = Rma { pieces: into.all(), segments, context: 2, ..Rma::default() };
        self.world.post(|| self.world.nodes[0].post_read(1, &rma));
    }

    /// Whether an operation that was just posted ends without its target.
    pub fn ends_alone(&self) -> bool {
        (0..20).any(|_| {
            self.world.nodes[0].poll();
            self.world.waiting(0).0 > 0
        })
    }

    /// Reads the region's first bytes until that needs no target. A read changes nothing.
    #[track_caller]
    pub fn open_window(&self, region: &MemoryRegion) {
        let into = Memory::zeroed(SHORT);
        let start = Instant::now();
        loop {
            self.read(&into, &[segment(region, 0, SHORT)]);
            let alone = self.ends_alone();
            self.world.sent(0).good();
            if alone {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "in vain: a window");
        }
    }

    /// The operation ends, though the target does nothing.
    #[track_caller]
    pub fn done_alone(&self) {
        self.world.drive_sends_of(0).good();
    }

    /// Closes a region of the target's.
    pub fn close(&self, region: &Arc<MemoryRegion>) {
        self.world.nodes[1].domain.close_memory(region).unwrap();
    }
}

//! One-sided operations by the adapter, on the fake of verbs.

use std::{sync::Arc, time::Instant};

use kestrel_core::{info::MemoryRegionMode, memory_region::MemoryRegion, one_sided::RemoteSegment};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

use crate::{
    bed::{Memory, World},
    completion::Done,
    fake::fake_bed_on,
    one_sided::{BOTH, Rma, expose, options, segment},
    scale::PATIENCE,
};

/// Node 0 reaches a region of node 1's.
pub struct Reach {
    pub world: World<RcProvider<FakeDevice>>,
    pub fabric: FakeFabric,
}

impl Reach {
    #[expect(clippy::new_without_default, reason = "a world is never a default")]
    pub fn new() -> Reach {
        Reach::on(FakeOptions::default())
    }

    /// The same on such a device.
    pub fn on(device: FakeOptions) -> Reach {
        Reach::between([MemoryRegionMode::ALLOCATED; 2], device)
    }

    /// The same, where node 0 and node 1 register like this.
    pub fn between(modes: [MemoryRegionMode; 2], device: FakeOptions) -> Reach {
        Reach::with(modes, device, VerbsOptions::default())
    }

    /// The same, by a provider that is set up so.
    pub fn with(modes: [MemoryRegionMode; 2], device: FakeOptions, verbs: VerbsOptions) -> Reach {
        let (bed, fabric) = fake_bed_on(device, verbs);
        let nodes = modes.into_iter().map(|mode| bed.stranger(&options(mode))).collect();
        let world = World { nodes };
        world.introduce();
        world.warm_up();
        Reach { world, fabric }
    }

    pub fn write(&self, source: &Memory, segments: &[RemoteSegment]) {
        let rma = Rma { pieces: source.all(), segments, ..Rma::default() };
        self.world.post(|| self.world.nodes[0].post_write(1, &rma));
    }

    pub fn read(&self, into: &Memory, segments: &[RemoteSegment]) {
        let rma = Rma { pieces: into.all(), segments, ..Rma::default() };
        self.world.post(|| self.world.nodes[0].post_read(1, &rma));
    }

    /// Operations that went by the adapter so far.
    pub fn reached(&self) -> u64 {
        self.fabric.tally().reached
    }

    /// Writes the region's first byte until that goes by the adapter.
    #[track_caller]
    pub fn open_window(&self, region: &MemoryRegion) {
        let byte = Memory::zeroed(1);
        let (before, start) = (self.reached(), Instant::now());
        while self.reached() == before {
            self.write(&byte, &[segment(region, 0, 1)]);
            self.world.sent(0).good();
            assert!(start.elapsed() < PATIENCE, "in vain: a window");
        }
    }

    /// A region of all of `target` at node 1, with a window that is open.
    #[track_caller]
    pub fn expose(&self, target: &Memory) -> Arc<MemoryRegion> {
        let region = expose(&self.world.nodes[1], target, BOTH, 4);
        self.open_window(&region);
        region
    }

    /// The end of an operation of node 0, which alone is driven.
    #[track_caller]
    pub fn done_alone(&self) -> Done {
        self.world.drive_sends_of(0)
    }
}

//! Beds on the fake of verbs.

use std::sync::Arc;

use kestrel_core::domain::Sharing;
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

use crate::bed::Bed;

/// A provider at loopback's address, on a device of its own on this fabric.
pub fn fake_provider(
    fabric: &FakeFabric,
    fake: FakeOptions,
    options: VerbsOptions,
) -> RcProvider<FakeDevice> {
    let device = Arc::new(fabric.device(fake));
    RcProvider::on_device(device, [127, 0, 0, 1].into(), options).unwrap()
}

/// Such messages are read by the device, and each buffer is registered for its message.
pub fn without_cache(fetch_min: usize) -> VerbsOptions {
    VerbsOptions { fetch_min, cache_bytes: 0, ..VerbsOptions::default() }
}

/// A bed on a new fabric, with a device as devices are.
pub fn fake_bed(options: VerbsOptions) -> (Bed<RcProvider<FakeDevice>>, FakeFabric) {
    fake_bed_on(FakeOptions::default(), options)
}

/// The same with such a device.
pub fn fake_bed_on(
    fake: FakeOptions,
    options: VerbsOptions,
) -> (Bed<RcProvider<FakeDevice>>, FakeFabric) {
    let fabric = FakeFabric::default();
    let provider = Arc::new(fake_provider(&fabric, fake, options));
    (Bed { provider, sharing: Sharing::Exclusive }, fabric)
}

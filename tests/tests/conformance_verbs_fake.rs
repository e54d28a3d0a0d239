//! The suite over an in-process fake of verbs: roomy on Ethernet, tight on InfiniBand.

use std::{ops::Deref, sync::Arc};

use kestrel_core::{
    domain::{DomainOptions, Sharing},
    error::Cause,
    info::traffic_class_of_dscp,
    transport::{Bell, Opening, Provider},
};
use kestrel_tests::{
    bed::{Bed, Options},
    conformance,
    fake::{fake_bed, fake_provider},
    scale::CONNECT_PATIENCE,
};
use kestrel_verbs::{
    Carrier, RcProvider, VerbsOptions,
    device::LinkLayer,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

/// A provider on a fabric of its own, where no send may ever find a receiver without a buffer.
struct Watched {
    provider: RcProvider<FakeDevice>,
    fabric: FakeFabric,
}

impl Deref for Watched {
    type Target = RcProvider<FakeDevice>;

    fn deref(&self) -> &Self::Target {
        &self.provider
    }
}

impl Provider for Watched {
    type Transport = Carrier<FakeDevice>;

    fn open_as(&self, opening: Opening<'_>) -> Result<Self::Transport, Cause> {
        self.provider.open_as(opening)
    }

    fn new_bell(&self) -> Result<Box<dyn Bell>, Cause> {
        self.provider.new_bell()
    }

    fn adapter_atomics(&self) -> bool {
        self.provider.adapter_atomics()
    }

    fn forked(&self) -> bool {
        self.provider.forked()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let tally = self.fabric.tally();
            assert_eq!(tally.not_ready, 0, "sends that found no buffer");
            let left = (tally.queue_pairs, tally.registered, tally.address_handles, tally.members);
            assert_eq!(left, (0, 0, 0, 0), "left behind");
        }
    }
}

fn bed(fake: FakeOptions, sharing: Sharing) -> Bed<Watched> {
    bed_with(fake, sharing, false)
}

fn bed_with(fake: FakeOptions, sharing: Sharing, nic_atomics: bool) -> Bed<Watched> {
    let fabric = FakeFabric::default();
    let (fetch_min, connect_timeout) = (32 << 10, CONNECT_PATIENCE);
    let options =
        VerbsOptions { fetch_min, connect_timeout, nic_atomics, ..VerbsOptions::default() };
    let provider = fake_provider(&fabric, fake, options);
    Bed { provider: Arc::new(Watched { provider, fabric }), sharing }
}

mod roomy {
    use super::*;
    conformance!(bed(FakeOptions::default(), Sharing::Exclusive));
    conformance!(datagrams over bed(FakeOptions::default(), Sharing::Exclusive));
    conformance!(multicast over bed(FakeOptions::default(), Sharing::Exclusive));
    conformance!(adapter_atomics over bed_with(FakeOptions::default(), Sharing::Exclusive, true));
}

mod tight {
    use super::*;

    /// Nothing goes inline, datagrams are short, long memory cannot be registered, and completions come in small
    /// bursts, shuffled.
    fn options() -> FakeOptions {
        FakeOptions {
            link_layer: LinkLayer::InfiniBand,
            partition_key: 0x8001,
            inline_bytes_max: 0,
            poll_burst: 3,
            registered_bytes_max: 100_000,
            mtu_bytes: 1024,
            shuffle: Some(7),
            ..FakeOptions::default()
        }
    }

    conformance!(bed(options(), Sharing::Shared));
    conformance!(datagrams over bed(options(), Sharing::Shared));
    conformance!(multicast over bed(options(), Sharing::Shared));
    conformance!(adapter_atomics over bed_with(options(), Sharing::Shared, true));
}

/// On a device without shared receive queues, as Intel's E810.
mod own_receives {
    use super::*;

    fn options() -> FakeOptions {
        FakeOptions { shares_receives: false, ..FakeOptions::default() }
    }

    conformance!(bed(options(), Sharing::Shared));
    conformance!(datagrams over bed(options(), Sharing::Shared));
}

/// "The endpoint will use the default traffic class associated with the domain" (fi_endpoint(3)).
#[test]
fn packets_have_the_class_of_their_domain() {
    let (bed, fabric) = fake_bed(VerbsOptions::default());
    let domain =
        DomainOptions { traffic_class: traffic_class_of_dscp(46), ..DomainOptions::default() };
    let world = bed.world_with(2, &Options { domain, ..Options::default() });
    world.nodes[0].send(vec![7; 8], 1, None, 0);
    world.nodes[1].receive(8, None, 0);
    world.received(1).good();
    assert_eq!(fabric.code_points(), [46]);
}

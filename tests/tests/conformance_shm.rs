//! The suite on shared memory, within this process.

use std::sync::Arc;

use kestrel_core::{
    completion_queue::Entry,
    config::{CmaPolicy, LaneChunks},
    domain::Sharing,
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{bed::Bed, conformance, scale::CONNECT_PATIENCE};

fn bed(options: ShmOptions, sharing: Sharing) -> Bed<ShmProvider> {
    let options = ShmOptions { connect_timeout: CONNECT_PATIENCE, ..options };
    Bed { provider: Arc::new(ShmProvider::new(options).unwrap()), sharing }
}

mod exclusive {
    use super::*;

    /// Whatever the processor gains by.
    fn options() -> ShmOptions {
        ShmOptions { lane_chunks: LaneChunks::On, ..ShmOptions::default() }
    }

    conformance!(bed(options(), Sharing::Exclusive));
    conformance!(datagrams over bed(options(), Sharing::Exclusive));
    conformance!(multicast over bed(options(), Sharing::Exclusive));
}

mod shared {
    use super::*;

    fn options() -> ShmOptions {
        ShmOptions {
            chunk_bytes: 8 << 10,
            chunk_count: 8,
            lane_chunks: LaneChunks::Off,
            cma: CmaPolicy::Off,
            ..ShmOptions::default()
        }
    }

    conformance!(bed(options(), Sharing::Shared));
    conformance!(datagrams over bed(options(), Sharing::Shared));
    conformance!(multicast over bed(options(), Sharing::Shared));
}

/// What others had sent before is heard with what is found first, whichever lane that is in: an
/// answer to a message would seem to come before the message otherwise.
#[test]
fn a_poll_hears_all_who_spoke_before() {
    let world = bed(ShmOptions::default(), Sharing::Exclusive).world(3);
    world.warm_up();
    let mut entries: [Entry; 8] = Default::default();
    // Either lane is the one that is looked at first.
    for from in [0, 1, 1, 0, 0] {
        for context in 0..2 {
            world.nodes[2].receive(8, None, context);
        }
        world.poll(3);
        for sender in [from, 1 - from] {
            world.nodes[sender].endpoint.inject(&[1; 8], 2).unwrap();
        }
        assert_eq!(world.nodes[2].receives.read(&mut entries), Ok(2), "from {from} first");
    }
}

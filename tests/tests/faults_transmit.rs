//! Transmit completion over queue pairs, on the fake: a message that the peer's device does not have
//! yet may be lost, so its send is not complete, and fails with its peer.

use std::sync::Arc;

use kestrel_core::{completion_queue::store::Sharing, error::Errno, flags::Flags};
use kestrel_tests::bed::{Bed, Memory, Options, Send, World, pattern, same};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
    verbs::Status,
};

/// Inline, in a buffer, in all of one.
const LENGTHS: [usize; 3] = [8, 1_000, 7_000];
/// Whose sends are complete when the peer has the message.
const LATE: [Flags; 3] = [Flags::empty(), Flags::TRANSMIT_COMPLETE, Flags::INJECT];

fn world() -> (World<RcProvider<FakeDevice>>, FakeFabric) {
    let fabric = FakeFabric::default();
    let device = Arc::new(fabric.device(FakeOptions::default()));
    let ip = [127, 0, 0, 1].into();
    let provider = RcProvider::on_device(device, ip, VerbsOptions::default()).unwrap();
    let bed = Bed { provider: Arc::new(provider), sharing: Sharing::Exclusive };
    let mut options = Options::default();
    options.endpoint.inject_size = LENGTHS[2];
    let world = bed.world_with(2, &options);
    world.warm_up();
    (world, fabric)
}

fn send(world: &World<RcProvider<FakeDevice>>, memory: &Memory, flags: Flags, context: u64) {
    let send = Send { pieces: memory.all(), flags, context, ..Send::default() };
    world.nodes[0].post_send(1, &send).unwrap();
}

#[test]
fn a_send_is_complete_when_its_peer_has_it() {
    for length in LENGTHS {
        let (world, fabric) = world();
        let memory = Memory::from(pattern(1, length));
        for (round, flags) in LATE.into_iter().enumerate() {
            fabric.hold(true);
            send(&world, &memory, flags, 1);
            send(&world, &memory, Flags::INJECT_COMPLETE, 2);
            assert_eq!(world.sent(0).context(), 2, "its buffer is free");
            world.poll(100);
            world.nothing_more();
            fabric.hold(false);
            assert_eq!(world.sent(0).context(), 1);
            for _ in 0..2 {
                world.nodes[1].receive(length, None, round as u64);
                same(&world.received(1).good().returned.unwrap(), &memory.bytes(), "it came");
            }
        }
        world.nothing_more();
    }
}

#[test]
fn what_its_peer_did_not_get_fails() {
    for length in LENGTHS {
        for flags in LATE {
            let (world, fabric) = world();
            let memory = Memory::from(pattern(1, length));
            fabric.hold(true);
            for context in 0..3 {
                send(&world, &memory, flags, context);
            }
            fabric.fail_sends(1, Status::RETRIES_EXCEEDED);
            fabric.hold(false);
            for context in 0..3 {
                let done = world.sent(0);
                assert_eq!(
                    (done.errno, done.context),
                    (Some(Errno::CONNRESET), context),
                    "{done:?}"
                );
            }
            world.nothing_more();
        }
    }
}

/// "Any operation posted after the fenced operation will be deferred until all previous operations
/// targeting the same peer endpoint have completed."
#[test]
fn a_fence_waits_for_what_its_peer_has_to_get() {
    let (world, fabric) = world();
    let memory = Memory::from(pattern(1, 8));
    fabric.hold(true);
    send(&world, &memory, Flags::empty(), 1);
    send(&world, &memory, Flags::FENCE | Flags::INJECT_COMPLETE, 2);
    world.poll(100);
    world.nothing_more();
    fabric.hold(false);
    assert_eq!((world.sent(0).context(), world.sent(0).context()), (1, 2));
    for context in 0..2 {
        world.nodes[1].receive(8, None, context);
        world.received(1).good();
    }
    world.nothing_more();
}

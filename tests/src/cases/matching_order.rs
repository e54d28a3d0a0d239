//! The order in which receives complete: FI_ORDER_STRICT. Reference: fi_endpoint(3), "comp_order".
//!
//! "Receive operations complete in the order in which they are processed by the receive context".

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    endpoint::{EndpointOptions, OptionName},
    error::Errno,
    flags::Flags,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, Receive, World},
    cases::shared_contexts::senders_with,
    completion::Done,
    long_first::{FIRST, HALF, first, long, short, start_long, until_come},
    one_sided::{BOTH, Rma, expose, segment},
};

/// Endpoints whose receives complete in order, or not.
fn options(receives_in_order: bool) -> Options {
    let endpoint = EndpointOptions { receives_in_order, ..EndpointOptions::default() };
    Options { endpoint, ..Options::default() }
}

fn drive_receiver<P: Provider>(world: &World<P>) {
    (0..100).for_each(|_| world.nodes[1].poll());
}

fn received<P: Provider>(world: &World<P>) -> Vec<u64> {
    (0..world.waiting(1).1).map(|_| name_of(&world.received_already(1))).collect()
}

/// The context; of remote data, which has none, the data.
fn name_of(done: &Done) -> u64 {
    if done.flags.contains(Flags::REMOTE_WRITE) { done.data } else { done.context }
}

/// In the order of matching, from one source: remote data is no exception, nor is what had come
/// before it was asked for.
pub fn receives_complete_in_the_order_of_matching<P: Provider>(bed: &Bed<P>) {
    for in_order in [true, false] {
        let (long, bytes, memory) = (long(), Memory::zeroed(8), Memory::zeroed(8));
        let world = bed.world_with(3, &options(in_order));
        world.warm_up();
        let region = expose(&world.nodes[1], &memory, BOTH, 5);
        world.nodes[2].post_send(1, &short(&bytes, 3)).unwrap();
        assert!(world.sent(2).context() == 3);
        start_long(&world, &long);
        world.nodes[1].receive(8, Some(2), 2);
        let segments = [segment(&region, 0, 8)];
        let (pieces, data) = (bytes.all(), Some(77));
        let write = Rma { pieces, segments: &segments, data, context: 77, ..Rma::default() };
        world.nodes[0].post_send(1, &short(&bytes, 2)).unwrap();
        world.nodes[0].post_write(1, &write).unwrap();
        world.nodes[0].post_send(1, &short(&bytes, 4)).unwrap();
        until_come(&world, 3, || world.nodes[1].poll());
        // Both have come by now, and are matched here. The other peer waits for nobody.
        for tag in [4, 3] {
            world.nodes[1].receive(8, Some(tag), tag);
        }
        drive_receiver(&world);
        let (early, rest): (&[u64], &[u64]) =
            if in_order { (&[3], &[1, 2, 77, 4]) } else { (&[2, 77, 4, 3], &[1]) };
        assert_eq!(received(&world), early);
        for &name in rest {
            assert_eq!(name_of(&world.received(1).good()), name);
        }
        (0..4).for_each(|_| drop(world.sent(0).good()));
        world.nothing_more();
    }
}

/// A message that is cut, and one whose sender goes, complete in their turn; a cancel at once,
/// since what is posted was not processed.
pub fn errors_of_receives_keep_their_places<P: Provider>(bed: &Bed<P>) {
    let (long, bytes) = (long(), Memory::zeroed(8));
    let world = bed.world_with(2, &options(true));
    world.warm_up();
    start_long(&world, &long);
    for (tag, room) in [(2, 4), (3, 8)] {
        world.nodes[1].receive(room, Some(tag), tag);
        world.nodes[0].post_send(1, &short(&bytes, tag)).unwrap();
    }
    until_come(&world, 2, || world.nodes[1].poll());
    assert_eq!(received(&world), []);
    world.nodes[1].receive(8, Some(9), 9);
    world.nodes[1].endpoint.cancel(9).unwrap();
    drive_receiver(&world);
    assert_eq!(world.received_already(1).bad(Errno::CANCELED).context, 9);
    world.nodes[0].endpoint.close();
    let lost = world.received(1);
    assert!(lost.context == FIRST && lost.errno.is_some(), "{lost:?}");
    assert_eq!(world.received(1).bad(Errno::TRUNC).context, 2);
    assert_eq!(world.received(1).context(), 3);
    assert_eq!(world.waiting(1), (0, 0));
}

/// The release of a buffer comes "strictly last": with whatever is reported last.
pub fn what_is_reported_last_releases_a_buffer<P: Provider>(bed: &Bed<P>) {
    let (long, buffer, bytes) = (long(), Memory::zeroed(16), Memory::zeroed(8));
    let world = bed.world_with(3, &options(true));
    world.warm_up();
    world.nodes[1].endpoint.set_option(OptionName::MinMultiRecv, 8).unwrap();
    world.nodes[2].post_send(1, &short(&bytes, 6)).unwrap();
    assert_eq!(world.sent(2).context(), 6);
    start_long(&world, &long);
    let (pieces, flags) = (buffer.all(), Flags::MULTI_RECV);
    let multi = Receive { pieces, tag: Some((4, 3)), context: 5, flags, ..Receive::default() };
    world.nodes[0].post_send(1, &short(&bytes, 5)).unwrap();
    until_come(&world, 1, || world.nodes[1].poll());
    // It takes what has come: of the peer whose long message is under way, and of the other.
    world.nodes[1].post_receive(&multi).unwrap();
    drive_receiver(&world);
    let mut early: Vec<Done> =
        (0..world.waiting(1).1).map(|_| world.received_already(1).good()).collect();
    let done = early.remove(0);
    assert!(early.is_empty(), "{early:?}");
    assert_eq!((done.source, done.flags.contains(Flags::MULTI_RECV)), (2, false), "{done:?}");
    assert_eq!(world.received(1).context(), FIRST);
    let done = world.received(1).good();
    assert_eq!((done.source, done.flags.contains(Flags::MULTI_RECV)), (0, true), "{done:?}");
    assert_eq!(world.waiting(1), (0, 0));
}

/// The same for what is received by a shared context.
pub fn shared_receives_complete_in_order<P: Provider>(bed: &Bed<P>) {
    for in_order in [true, false] {
        let (long, bytes) = (long(), Memory::zeroed(8));
        let cut = long.cut(&[HALF, HALF]);
        let (sharers, world) = senders_with(bed, 1, 1, &options(in_order));
        let post = |room: usize, tag| {
            sharers.shared.receive_tagged(vec![0; room], FI_ADDR_UNSPEC, tag, 0, tag).unwrap();
        };
        post(2 * HALF, FIRST);
        post(8, 2);
        world.nodes[0].post_send(0, &first(&cut)).unwrap();
        world.nodes[0].post_send(0, &short(&bytes, 2)).unwrap();
        until_come(&world, 1, || sharers.poll());
        let mut order = Vec::from_iter(sharers.members[0].taken().map(|done| done.context()));
        assert_eq!(order.is_empty(), in_order);
        while order.len() < 2 {
            order.push(sharers.next(|| world.poll(1)).1.context());
        }
        assert_eq!(order, if in_order { [1, 2] } else { [2, 1] });
    }
}

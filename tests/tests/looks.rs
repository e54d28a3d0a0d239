//! What an application does while it looks at a message that was announced: whatever it likes.
//! Reference: fi_msg(3), "Buffered Receives".

use std::panic::{AssertUnwindSafe, catch_unwind};

use kestrel_core::{
    domain::Sharing,
    endpoint::{EndpointOptions, OptionName, PostError},
    mock::{MockOptions, MockProvider},
};
use kestrel_tests::{
    bed::{Bed, Options, World, pattern, same},
    mock::mock_bed,
};

/// As long as a message that is announced whole, and one of which only the start is.
const LENGTHS: [usize; 2] = [3_000, 70_000];

/// Two endpoints that buffer, in a domain of either kind, and what announced a message of `length` bytes.
fn announced(sharing: Sharing, length: usize) -> (World<MockProvider>, u64) {
    let bed = Bed { sharing, ..mock_bed(MockOptions::default()) };
    let endpoint = EndpointOptions { buffered: true, ..EndpointOptions::default() };
    let settings = vec![(OptionName::BufferedLimit, 20_000), (OptionName::BufferedMin, 64)];
    let world = bed.world_with(2, &Options { endpoint, settings, ..Options::default() });
    world.nodes[0].send(pattern(9, length), 1, None, 1);
    let context = world.received(1).good().context;
    (world, context)
}

/// A world and an announcement of each kind.
fn each(check: impl Fn(&World<MockProvider>, u64, &[u8])) {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        for length in LENGTHS {
            let (world, context) = announced(sharing, length);
            check(&world, context, &pattern(9, length));
            world.sent(0).good();
        }
    }
}

/// What is claimed of a world's message is all of it.
#[track_caller]
fn is_claimed(world: &World<MockProvider>, expected: &[u8]) {
    let claimed = world.received(1).good();
    same(&claimed.returned.unwrap(), expected, "claimed");
}

#[test]
fn who_looks_may_discard_the_message() {
    each(|world, context, expected| {
        let endpoint = &world.nodes[1].endpoint;
        let look = |_: u64, bytes: &[u8]| {
            endpoint.discard(context).unwrap();
            // Memory that was freed would be another's by now.
            let others: Vec<_> = (0..64).map(|_| vec![0xee_u8; bytes.len()]).collect();
            same(bytes, &expected[..bytes.len()], "discarded");
            others.len()
        };
        assert_eq!(endpoint.look_at_announced(context, look), Ok(64));
        let gone = PostError::NothingClaimed { context };
        assert_eq!(endpoint.look_at_announced(context, |_, _| ()), Err(gone));
    });
}

#[test]
fn who_looks_may_claim_the_message_and_look_again() {
    each(|world, context, expected| {
        let endpoint = &world.nodes[1].endpoint;
        let again = |_: u64, bytes: &[u8]| bytes.as_ptr() as u64;
        let look = |_: u64, bytes: &[u8]| {
            let place = bytes.as_ptr() as u64;
            assert_eq!(endpoint.look_at_announced(context, again), Ok(place), "it has not moved");
            endpoint.claim(context, vec![0; expected.len()], 7).unwrap();
            same(bytes, &expected[..bytes.len()], "claimed meanwhile");
        };
        endpoint.look_at_announced(context, look).unwrap();
        is_claimed(world, expected);
    });
}

#[test]
fn who_looks_may_close_the_endpoint() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let (world, context) = announced(sharing, LENGTHS[0]);
        let endpoint = &world.nodes[1].endpoint;
        let look = |_: u64, bytes: &[u8]| {
            endpoint.close();
            same(bytes, &pattern(9, LENGTHS[0]), "closed");
        };
        endpoint.look_at_announced(context, look).unwrap();
        assert_eq!(endpoint.discard(context), Err(PostError::Closed));
    }
}

#[test]
fn a_look_that_panics_leaves_the_message() {
    each(|world, context, expected| {
        let endpoint = &world.nodes[1].endpoint;
        let look = || endpoint.look_at_announced(context, |_, _| panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(look)).is_err());
        endpoint.claim(context, vec![0; expected.len()], 7).unwrap();
        is_claimed(world, expected);
    });
}

/// Another thread claims what somebody looks at: neither waits for the other.
#[test]
fn another_thread_may_claim_what_somebody_looks_at() {
    let (world, context) = announced(Sharing::Shared, LENGTHS[0]);
    let endpoint = &world.nodes[1].endpoint;
    let look = |_: u64, bytes: &[u8]| {
        std::thread::scope(|scope| {
            let claim = || endpoint.claim(context, vec![0; LENGTHS[0]], 7).unwrap();
            scope.spawn(claim).join().unwrap();
        });
        same(bytes, &pattern(9, LENGTHS[0]), "claimed meanwhile");
    };
    endpoint.look_at_announced(context, look).unwrap();
    is_claimed(&world, &pattern(9, LENGTHS[0]));
    world.sent(0).good();
}

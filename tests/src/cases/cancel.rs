//! Canceling. Reference: fi_endpoint(3), `fi_cancel`.

use kestrel_core::{
    endpoint::PostError,
    error::{Errno, HasErrno},
    flags::Flags,
    transport::Provider,
};

use crate::bed::{Bed, Memory, Send, World, pattern, same};

pub fn a_posted_receive_is_canceled<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for tag in [None, Some(3)] {
        world.nodes[1].receive(100, tag, 40);
        world.nodes[1].endpoint.cancel(40).unwrap();
        let canceled = world.received(1).bad(Errno::CANCELED);
        assert_eq!(canceled.context, 40);
        assert!(canceled.flags.contains(Flags::RECV), "{canceled:?}");
        assert_eq!(canceled.flags.contains(Flags::TAGGED), tag.is_some());
        assert_eq!(canceled.returned.expect("the buffer comes back").len(), 100);
        let again = world.nodes[1].endpoint.cancel(40).unwrap_err();
        assert_eq!(again, PostError::NothingToCancel { context: 40 });
        assert_eq!(again.errno(), Errno::NOENT);
        // A message that comes now finds nobody.
        world.nodes[0].send(pattern(1, 10), 1, tag, 1);
        world.sent(0).good();
        world.nothing_more();
        world.nodes[1].receive(100, tag, 41);
        assert_eq!(world.received(1).context(), 41);
    }
}

pub fn one_of_several_is_canceled<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for _ in 0..3 {
        world.nodes[1].receive(100, Some(3), 40);
    }
    world.nodes[1].endpoint.cancel(40).unwrap();
    world.received(1).bad(Errno::CANCELED);
    world.nothing_more();
    for nth in 0..2 {
        world.nodes[0].send(pattern(nth, 10), 1, Some(3), nth);
        assert_eq!(world.received(1).context(), 40);
        world.sent(0).good();
    }
    assert!(world.nodes[1].endpoint.cancel(40).is_err());
    world.nothing_more();
    the_earliest_is_canceled(&world);
}

/// Also where many are canceled, and others are posted meanwhile.
fn the_earliest_is_canceled<P: Provider>(world: &World<P>) {
    const POSTED: usize = 60;
    let node = &world.nodes[1];
    let context_of = |length: usize| (length * length % 3) as u64;
    let post = |length: usize| {
        node.receive(length, length.is_multiple_of(2).then_some(3), context_of(length));
        length
    };
    let mut posted: Vec<usize> = (1..=POSTED).map(post).collect();
    for nth in 1..=3 * POSTED {
        let context = context_of(nth + 1);
        // Those with tags are looked through first.
        let is_meant = |&length: &usize| context_of(length) == context;
        let meant = posted.iter().copied().filter(is_meant);
        let earliest = meant.min_by_key(|length| (length % 2, *length));
        assert_eq!(node.endpoint.cancel(context).is_ok(), earliest.is_some(), "{context}");
        if let Some(length) = earliest {
            let canceled = world.received(1).bad(Errno::CANCELED);
            assert_eq!((canceled.context, canceled.returned.unwrap().len()), (context, length));
            posted.retain(|&other| other != length);
        }
        if nth % 10 == 0 {
            posted.push(post(POSTED + nth));
        }
    }
    world.nothing_more();
}

pub fn what_has_completed_is_unaffected<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    for length in [8, 5_000, 500_000] {
        world.nodes[1].receive(length, Some(1), 40);
        world.nodes[0].send(pattern(1, length), 1, Some(1), 50);
        world.drive("both have completed, unread", || {
            let (sent, received) = (world.waiting(0).0, world.waiting(1).1);
            (sent, received) == (1, 1)
        });
        assert!(world.nodes[1].endpoint.cancel(40).is_err());
        assert!(world.nodes[0].endpoint.cancel(50).is_err());
        let received = world.received(1).good();
        same(&received.returned.unwrap(), &pattern(1, length), "content");
        assert_eq!(world.sent(0).context(), 50);
        world.nothing_more();
    }
}

pub fn a_matched_receive_is_not_canceled<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    world.warm_up();
    world.nodes[1].receive(500_000, Some(1), 40);
    world.nodes[0].send(pattern(1, 500_000), 1, Some(1), 50);
    for _ in 0..10 {
        world.nodes[1].poll();
    }
    // It is matched or done by now: cancel finds nothing, the message arrives.
    assert!(world.nodes[1].endpoint.cancel(40).is_err());
    same(&world.received(1).good().returned.unwrap(), &pattern(1, 500_000), "content");
    world.sent(0).good();
    world.nothing_more();
}

pub fn sends_that_still_queue_are_canceled<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    world.warm_up();
    // Nobody polls the receiver, so lanes and credit run out.
    let bytes = Memory::from(pattern(1, 5_000));
    let (mut posted, mut canceled) = (0u64, Vec::new());
    while posted < 900 {
        let send =
            Send { pieces: bytes.all(), tag: Some(posted), context: posted, ..Send::default() };
        if world.nodes[0].post_send(1, &send).is_err() {
            break;
        }
        posted += 1;
        world.nodes[0].poll();
    }
    for context in (posted - 200..posted).step_by(2) {
        world.nodes[0].endpoint.cancel(context).unwrap();
        canceled.push(context);
    }
    assert!(world.nodes[0].endpoint.cancel(posted + 5).is_err());
    let mut errors = Vec::new();
    let mut good = 0;
    for tag in (0..posted).filter(|tag| !canceled.contains(tag)) {
        world.nodes[1].receive(5_000, Some(tag), tag);
        same(&world.received(1).good().returned.unwrap(), &bytes.bytes(), "not canceled");
    }
    while good + errors.len() < posted as usize {
        let done = world.sent(0);
        match done.errno {
            None => good += 1,
            Some(errno) => {
                assert_eq!(errno, Errno::CANCELED);
                assert_eq!(done.flags, Flags::TAGGED | Flags::SEND);
                errors.push(done.context);
            }
        }
    }
    errors.sort();
    assert_eq!(errors, canceled);
    world.nothing_more();
}

/// "If it is still pending, complete it as having been canceled" (fi_endpoint(3)): what has a context,
/// wherever its bytes are.
pub fn an_injected_send_is_canceled_by_its_context<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    world.warm_up();
    let word = Memory::from(pattern(1, 8));
    let send = Send { pieces: word.all(), tag: Some(1), ..Send::default() };
    let unmatched = Send { flags: Flags::MATCH_COMPLETE, context: 1, ..send };
    world.nodes[0].post_send(1, &unmatched).unwrap();
    // What is fenced off waits for it.
    let fenced = Flags::FENCE | Flags::INJECT;
    world.nodes[0].post_send(1, &Send { flags: fenced, context: 2, ..send }).unwrap();
    world.nodes[0].post_send(1, &Send { flags: fenced, context: 0, ..send }).unwrap();
    let endpoint = &world.nodes[0].endpoint;
    assert!(endpoint.cancel(0).is_err(), "what is injected without a context has no name");
    endpoint.cancel(2).unwrap();
    let canceled = world.sent(0).bad(Errno::CANCELED);
    assert_eq!(canceled.context, 2);
    assert!(endpoint.cancel(2).is_err());
    for context in [1, 0] {
        world.nodes[1].receive(8, Some(1), 3);
        assert_eq!(world.received(1).context(), 3);
        assert_eq!(world.sent(0).context(), context);
    }
    world.nothing_more();
}

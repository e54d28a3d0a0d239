//! Messages that the provider buffers and announces. Reference: fi_msg(3), "Buffered Receives",
//! "Variable Length Messages"; fi_tagged(3), "Buffered Tagged Receives".

use kestrel_core::{
    completion_counter::CompletionCounter,
    completion_queue::ReadError,
    domain::DomainOptions,
    endpoint::{Endpoint, EndpointError, EndpointOptions, OptionName, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    operation::IOV_LIMIT,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Node, Options, Receive, Send, World, open_vector, pattern, same},
    completion::Done,
    contexts::{Context, Portal, counts, naming, next, nothing_more},
    endless::Endless,
    link::{End, Listener},
    process::eventually,
    scale::skip,
};

/// Both options as they are set before the endpoints are enabled.
const LIMIT: usize = 20_000;
const MIN: usize = 100;
/// In one line, in one packet, in several, at the limit and beyond it; read from the sender's
/// memory where that is possible.
const LENGTHS: [usize; 10] = [0, 1, 16, 17, 300, 9_000, LIMIT, LIMIT + 1, 70_000, 1 << 20];

fn options() -> Options {
    let endpoint = EndpointOptions { buffered: true, ..EndpointOptions::default() };
    let settings = vec![(OptionName::BufferedLimit, LIMIT), (OptionName::BufferedMin, MIN)];
    Options { endpoint, settings, ..Options::default() }
}

fn world<P: Provider>(bed: &Bed<P>) -> World<P> {
    bed.world_with(2, &options())
}

fn send<P: Provider>(world: &World<P>, bytes: &Memory, tag: Option<u64>, flags: Flags) {
    let data = Some(bytes.bytes().len() as u64);
    let send = Send { pieces: bytes.all(), tag, data, flags, ..Send::default() };
    world.post(|| world.nodes[0].post_send(1, &send));
}

/// Looks at what there is of an announced message: how much, and whether it is right.
#[track_caller]
fn look<P: Provider>(node: &Node<P>, announced: &Done, expected: &[u8], context: u64) -> usize {
    let total = expected.len();
    assert_eq!(announced.length, total as u64);
    let is_begun = announced.flags.contains(Flags::MORE);
    assert_eq!(is_begun, total > LIMIT, "{total} bytes");
    let look = |posted: u64, bytes: &[u8]| {
        assert_eq!(posted, context);
        assert_eq!(announced.buffer, bytes.as_ptr() as u64);
        let least = if is_begun { MIN } else { total };
        assert!(bytes.len() >= least, "{} bytes of {total}", bytes.len());
        same(bytes, &expected[..bytes.len()], "what is announced");
        bytes.len()
    };
    node.endpoint.look_at_announced(announced.context, look).unwrap()
}

pub fn messages_are_announced_and_claimed<P: Provider>(bed: &Bed<P>) {
    for (length, tag) in LENGTHS.iter().flat_map(|&length| [(length, None), (length, Some(5))]) {
        let bytes = Memory::from(pattern(length as u64, length));
        let world = world(bed);
        let node = &world.nodes[1];
        if tag.is_some() {
            node.endpoint.post_tag(u64::MAX, 4, 1, 70).unwrap();
        }
        send(&world, &bytes, tag, Flags::empty());
        let announced = world.received(1).good();
        let family = if tag.is_some() { Flags::TAGGED } else { Flags::MSG };
        let told = announced.flags.difference(Flags::MORE);
        assert_eq!(told, family | Flags::RECV | Flags::REMOTE_CQ_DATA);
        assert_eq!((announced.tag, announced.source), (tag.unwrap_or(0), 0));
        assert_eq!(announced.data, length as u64);
        look(node, &announced, &bytes.bytes(), if tag.is_some() { 70 } else { 0 });
        node.endpoint.claim(announced.context, vec![0; length + 3], 71).unwrap();
        let claimed = world.received(1).good();
        assert_eq!(
            (claimed.context, claimed.length, claimed.data),
            (71, length as u64, length as u64)
        );
        assert_eq!(claimed.flags, told | Flags::CLAIM);
        same(&claimed.returned.unwrap()[..length], &bytes.bytes(), "what is claimed");
        world.sent(0).good();
        let gone = node.endpoint.claim(announced.context, Vec::new(), 0).unwrap_err();
        assert_eq!(gone.error, PostError::NothingClaimed { context: announced.context });
        world.nothing_more();
    }
}

/// A claim as C posts it: the announcement's context is the post's.
pub fn a_claim_completes_with_the_posted_tags_context<P: Provider>(bed: &Bed<P>) {
    let (bytes, into) = (Memory::from(pattern(1, 70_000)), Memory::zeroed(70_000));
    let world = world(bed);
    for tag in [None, Some(5)] {
        if tag.is_some() {
            world.nodes[1].endpoint.post_tag(u64::MAX, 5, 0, 70).unwrap();
        }
        send(&world, &bytes, tag, Flags::empty());
        let announced = world.received(1).good();
        into.scribble();
        let pieces = into.cut(&[1_000, 0, 60_000, 9_000]);
        let claim = Receive {
            pieces: Pieces::Many(&pieces),
            tag: tag.map(|tag| (tag, 0)),
            context: announced.context,
            flags: Flags::CLAIM,
            ..Receive::default()
        };
        world.nodes[1].post_receive(&claim).unwrap();
        assert_eq!(world.received(1).context(), if tag.is_some() { 70 } else { 0 });
        same(&into.bytes(), &bytes.bytes(), "claimed");
        world.sent(0).good();
        let again = world.nodes[1].post_receive(&claim).map(|()| world.received(1));
        match again {
            Ok(done) => drop(done.bad(Errno::INVAL)),
            Err(error) => assert_eq!(error.errno(), Errno::INVAL),
        }
    }
}

pub fn what_is_discarded_is_free<P: Provider>(bed: &Bed<P>) {
    let memory = LENGTHS.map(|length| Memory::from(pattern(1, length)));
    let world = world(bed);
    let levels = [Flags::empty(), Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE];
    for (bytes, level) in memory.iter().flat_map(|bytes| levels.map(|level| (bytes, level))) {
        for native in [true, false] {
            send(&world, bytes, None, level);
            let announced = world.received(1).good();
            look(&world.nodes[1], &announced, &bytes.bytes(), 0);
            if native {
                world.nodes[1].endpoint.discard(announced.context).unwrap();
            } else {
                let (context, flags) = (announced.context, Flags::DISCARD);
                let discard = Receive { context, flags, ..Receive::default() };
                world.nodes[1].post_receive(&discard).unwrap();
            }
            world.sent(0).good();
            let gone = world.nodes[1].endpoint.discard(announced.context).unwrap_err();
            assert_eq!(gone.errno(), Errno::INVAL);
        }
    }
    world.nothing_more();
}

pub fn announcements_keep_the_order_of_messages<P: Provider>(bed: &Bed<P>) {
    let memory: Vec<Memory> =
        (0..40).map(|turn| Memory::from(pattern(turn, LENGTHS[turn as usize * 7 % 10]))).collect();
    let world = world(bed);
    for (turn, bytes) in (0..).zip(&memory) {
        let send = Send { pieces: bytes.all(), data: Some(turn), ..Send::default() };
        world.post(|| world.nodes[0].post_send(1, &send));
    }
    let mut kept = Vec::new();
    for (turn, bytes) in (0..).zip(&memory) {
        let announced = world.received(1).good();
        assert_eq!(announced.data, turn);
        look(&world.nodes[1], &announced, &bytes.bytes(), 0);
        match turn % 2 {
            0 => world.nodes[1].endpoint.discard(announced.context).unwrap(),
            _ => kept.push((announced.context, bytes)),
        }
    }
    // Claims come in any order.
    for (announced, bytes) in kept.into_iter().rev() {
        let room = vec![0; bytes.bytes().len()];
        world.nodes[1].endpoint.claim(announced, room, 0).unwrap();
        same(&world.received(1).good().returned.unwrap(), &bytes.bytes(), "claimed");
    }
    memory.iter().for_each(|_| drop(world.sent(0).good()));
    world.nothing_more();
}

pub fn a_posted_tag_takes_one_message<P: Provider>(bed: &Bed<P>) {
    let bytes = [8, 70_000, 300].map(|length| Memory::from(pattern(1, length)));
    let ignored = Memory::zeroed(8);
    ignored.scribble();
    let world = world(bed);
    let node = &world.nodes[1];
    for (bytes, tag) in bytes.iter().zip([6, 5, 5]) {
        send(&world, bytes, Some(tag), Flags::empty());
    }
    world.poll(100);
    assert_eq!(world.waiting(1).1, 0, "nobody has posted a tag");
    // What waits for its tag can be peeked at, and claimed with the peek's context.
    let peek = Receive { tag: Some((6, 0)), context: 9, ..Receive::default() };
    let peeking = Receive { flags: Flags::PEEK | Flags::CLAIM, ..peek };
    world.drive("the message comes", || {
        node.post_receive(&peeking).unwrap();
        world.received(1).errno.is_none()
    });
    let claim = Receive { flags: Flags::CLAIM, pieces: ignored.all(), ..peek };
    node.post_receive(&claim).unwrap();
    let claimed = world.received(1).good();
    assert_eq!((claimed.context, claimed.length), (9, 8));
    assert!(claimed.flags.contains(Flags::CLAIM));
    ignored.scribble();
    // Each tag takes one, the earliest first; "parameters related to the input buffers are ignored".
    // Even if there are more of them than an endpoint takes.
    let many = [ignored.piece(); IOV_LIMIT + 1];
    let ways = [ignored.all(), Pieces::Many(&many)];
    for ((bytes, pieces), context) in bytes[1..].iter().zip(ways).zip([1, 2]) {
        let post = Receive { pieces, tag: Some((7, 2)), context, ..peek };
        node.post_receive(&post).unwrap();
        let announced = world.received(1).good();
        look(node, &announced, &bytes.bytes(), context);
        node.endpoint.discard(announced.context).unwrap();
    }
    // Posted first; directed at somebody else, or not.
    node.endpoint.post_tag(1, 5, 0, 3).unwrap();
    node.endpoint.post_tag(0, 5, 0, 4).unwrap();
    send(&world, &bytes[1], Some(5), Flags::empty());
    let announced = world.received(1).good();
    look(node, &announced, &bytes[1].bytes(), 4);
    node.endpoint.cancel(3).unwrap();
    assert_eq!(world.received(1).bad(Errno::CANCELED).context, 3);
    assert_eq!(ignored.bytes(), [0xee; 8]);
    node.endpoint.discard(announced.context).unwrap();
    (0..4).for_each(|_| drop(world.sent(0).good()));
    world.nothing_more();
}

pub fn what_does_not_fit_a_claim_is_counted<P: Provider>(bed: &Bed<P>) {
    for length in [300, 9_000, 70_000, 1 << 20] {
        for room in [0, 50, 250, 60_000] {
            let bytes = Memory::from(pattern(length as u64, length));
            let world = world(bed);
            send(&world, &bytes, None, Flags::empty());
            let announced = world.received(1).good();
            world.nodes[1].endpoint.claim(announced.context, vec![0; room], 7).unwrap();
            let claimed = world.received(1);
            if room >= length {
                claimed.good();
            } else {
                let cut = claimed.bad(Errno::TRUNC);
                assert_eq!((cut.context, cut.overflow), (7, (length - room) as u64));
                same(&cut.returned.unwrap(), &bytes.bytes()[..room], "what fits");
            }
            world.sent(0).good();
            world.nothing_more();
        }
    }
}

/// Buffered messages count against the budget, those that had to be asked for too.
pub fn what_nobody_claims_stops_its_sender<P: Provider>(bed: &Bed<P>) {
    const BUDGET: usize = 256 << 10;
    const LENGTH: usize = 50_000;
    let memory: Vec<Memory> = (0..60).map(|turn| Memory::from(pattern(turn, LENGTH))).collect();
    let domain = DomainOptions { unexpected_budget: BUDGET as u64, ..DomainOptions::default() };
    let settings = vec![(OptionName::BufferedLimit, LENGTH)];
    let world = bed.world_with(2, &Options { domain, settings, ..options() });
    memory.iter().for_each(|bytes| send(&world, bytes, None, Flags::empty()));
    world.drive("the first is announced", || world.waiting(1).1 > 0);
    world.poll(2_000);
    let mut held = world.waiting(1).1;
    assert!(held > 0 && held * LENGTH <= 2 * BUDGET, "{held} messages");
    for bytes in &memory {
        let announced = world.received(1).good();
        let check = |_: u64, found: &[u8]| same(found, &bytes.bytes(), "announced");
        world.nodes[1].endpoint.look_at_announced(announced.context, check).unwrap();
        world.nodes[1].endpoint.discard(announced.context).unwrap();
        held = held.max(world.waiting(1).1);
    }
    assert!(held * LENGTH <= 2 * BUDGET, "{held} messages");
    memory.iter().for_each(|_| drop(world.sent(0).good()));
    world.nothing_more();
}

pub fn the_limits_are_options<P: Provider>(bed: &Bed<P>) {
    use OptionName::{BufferedLimit, BufferedMin};
    let domain = bed.domain(DomainOptions::default());
    let endpoint = Endpoint::open(&domain, options().endpoint).unwrap();
    assert_eq!(endpoint.option(BufferedLimit).unwrap(), 16 << 10);
    assert_eq!(endpoint.option(BufferedMin).unwrap(), 64);
    let most = DomainOptions::default().unexpected_budget as usize;
    endpoint.set_option(BufferedLimit, usize::MAX).unwrap();
    assert_eq!(endpoint.option(BufferedLimit).unwrap(), most);
    let beyond = endpoint.set_option(BufferedLimit, most + 1).unwrap_err();
    assert_eq!(beyond.errno(), Errno::MSGSIZE);
    endpoint.set_option(BufferedMin, 2_000).unwrap();
    endpoint.set_option(BufferedLimit, 2_000).unwrap();
    assert_eq!(endpoint.set_option(BufferedMin, 2_001).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(endpoint.option(BufferedMin).unwrap(), 2_000);
    // A lower limit takes the minimum along.
    endpoint.set_option(BufferedLimit, 32).unwrap();
    assert_eq!((endpoint.option(BufferedLimit), endpoint.option(BufferedMin)), (Ok(32), Ok(32)));
    // "The threshold must be set prior to enabling the endpoint."
    let world = world(bed);
    let enabled = &world.nodes[0].endpoint;
    let late = enabled.set_option(BufferedMin, 1).unwrap_err();
    assert!(matches!(late, EndpointError::Enabled { .. }), "{late}");
    assert_eq!(enabled.option(BufferedMin).unwrap(), MIN);
    let plain = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    assert_eq!(plain.option(BufferedLimit), Ok(16 << 10), "the provider's default");
    assert_eq!(plain.option(BufferedMin).unwrap_err().errno(), Errno::NOPROTOOPT);
    for name in [BufferedLimit, BufferedMin] {
        assert_eq!(plain.set_option(name, 100).unwrap_err().errno(), Errno::NOPROTOOPT);
    }
}

pub fn what_no_buffering_endpoint_takes_is_refused<P: Provider>(bed: &Bed<P>) {
    let world = world(bed);
    let node = &world.nodes[1];
    let untagged = Receive::default();
    assert_eq!(node.post_receive(&untagged), Err(PostError::NothingToPost));
    let many = Receive { flags: Flags::MULTI_RECV, tag: Some((5, 0)), ..untagged };
    assert_eq!(node.post_receive(&many).unwrap_err().errno(), Errno::BADFLAGS);
    for context in [0, 7] {
        let nothing = PostError::NothingClaimed { context };
        assert_eq!(node.endpoint.discard(context), Err(nothing));
        assert_eq!(node.endpoint.claim(context, vec![1], 0).unwrap_err().buffer, [1]);
        assert_eq!(node.endpoint.look_at_announced(context, |_, _| ()), Err(nothing));
    }
    // Others discard what a peek found, and nothing by itself.
    let plain = bed.world(1);
    let discard = Receive { flags: Flags::DISCARD, ..untagged };
    assert_eq!(plain.nodes[0].post_receive(&discard).unwrap_err().errno(), Errno::BADFLAGS);
    assert_eq!(plain.nodes[0].endpoint.discard(0), Err(PostError::NothingClaimed { context: 0 }));
}

pub fn an_announcement_is_an_entry_however_it_is_bound<P: Provider>(bed: &Bed<P>) {
    let bytes = Memory::from(pattern(1, 70_000));
    let bind = Flags::SELECTIVE_COMPLETION;
    let world = bed.world_with(2, &Options { bind, ..options() });
    let into = Memory::zeroed(70_000);
    send(&world, &bytes, None, Flags::COMPLETION);
    let announced = world.received(1).good();
    let (context, flags) = (announced.context, Flags::CLAIM);
    let claim = Receive { pieces: into.all(), context, flags, ..Receive::default() };
    world.nodes[1].post_receive(&claim).unwrap();
    world.sent(0).good();
    world.drive("it is claimed", || into.bytes() == bytes.bytes());
    world.nothing_more();
}

pub fn a_message_is_counted_when_it_is_claimed<P: Provider>(bed: &Bed<P>) {
    let bytes = [Memory::from(pattern(1, 8)), Memory::from(pattern(1, 70_000))];
    let domain = bed.domain(DomainOptions::default());
    let counter = CompletionCounter::open(&domain);
    let counting = Endpoint::open(&domain, options().endpoint).unwrap();
    counting.bind_counter(&counter, Flags::RECV).unwrap();
    counting.bind_address_vector(&open_vector()).unwrap();
    let receiver = Context::enabled(counting, Flags::TRANSMIT | Flags::RECV);
    let world = bed.world_with(1, &options());
    world.nodes[0].vector.insert(&[receiver.endpoint.address()]);
    let next = || {
        let mut next = None;
        world.drive("a completion comes", || {
            next = receiver.taken();
            next.is_some()
        });
        next.unwrap().good()
    };
    for (turn, bytes) in (1..).zip(&bytes) {
        send(&world, bytes, None, Flags::empty());
        let announced = next();
        assert_eq!(counter.read(), turn - 1);
        receiver.endpoint.claim(announced.context, vec![0; 70_000], 0).unwrap();
        assert!(next().flags.contains(Flags::CLAIM));
        assert_eq!(counter.read(), turn);
    }
}

/// What a peer leaves behind: all that has come of a message, and an error for the rest.
pub fn a_sender_that_closes_fails_the_claims_of_its_messages<P: Provider>(bed: &Bed<P>) {
    let bytes = [300, 70_000, 1 << 20].map(|length| Memory::from(pattern(1, length)));
    let mut world = world(bed);
    bytes.iter().for_each(|bytes| send(&world, bytes, None, Flags::empty()));
    let announced = [(); 3].map(|()| world.received(1).good());
    drop(world.nodes.remove(0));
    let node = &world.nodes[0];
    world.poll(500);
    for (announced, bytes) in announced.iter().zip(&bytes) {
        let all = bytes.bytes();
        let there = look(node, announced, &all, 0);
        node.endpoint.claim(announced.context, vec![0; all.len()], 4).unwrap();
        let claimed = world.received(0);
        assert_eq!(claimed.context, 4);
        if there == all.len() {
            same(&claimed.good().returned.unwrap(), &all, "all had come");
        } else {
            assert!(claimed.errno.is_some(), "{there} bytes: {claimed:?}");
        }
    }
    node.endpoint.post_tag(u64::MAX, 1, 0, 2).unwrap();
    world.nothing_more();
}

pub fn a_receiver_that_closes_lets_go_of_its_senders<P: Provider>(bed: &Bed<P>) {
    let bytes = LENGTHS.map(|length| Memory::from(pattern(1, length)));
    let mut world = world(bed);
    bytes.iter().for_each(|bytes| send(&world, bytes, None, Flags::empty()));
    bytes.iter().for_each(|_| drop(world.received(1).good()));
    drop(world.nodes.remove(1));
    // Well or badly: what was buffered whole has arrived.
    bytes.iter().for_each(|_| drop(world.sent(0)));
    world.nothing_more();
}

/// An announcement that was not read yet leads to memory that goes with the endpoint.
pub fn announcements_go_with_their_endpoint<P: Provider>(bed: &Bed<P>) {
    let bytes = Memory::from(pattern(1, 300));
    let world = world(bed);
    let to = &world.nodes[1];
    send(&world, &bytes, None, Flags::empty());
    eventually("a message is announced", || {
        world.nodes[0].sends.poll();
        to.receives.poll()
    });
    to.endpoint.close();
    assert_eq!(to.receives.read_with(1, |_, _| ()), Err(ReadError::Empty));
}

/// "Variable messages are not subject to max message length restrictions".
pub fn variable_messages_have_no_limit<P: Provider>(bed: &Bed<P>) {
    let length = (1 << 40) + 1;
    let Some(memory) = Endless::map(length) else {
        return skip("variable_messages_have_no_limit", "so much cannot be mapped");
    };
    let bytes = Pieces::One(memory.piece());
    let (variable, plain) = (options(), bed.world(2));
    let refused = plain.nodes[0].post_send(1, &Send { pieces: bytes, ..Send::default() });
    assert_eq!(refused.unwrap_err().errno(), Errno::MSGSIZE);
    let mut endpoint = EndpointOptions { buffered: false, ..variable.endpoint.clone() };
    endpoint.capabilities |= Flags::VARIABLE_MSG;
    let world = bed.world_with(2, &Options { endpoint, ..variable });
    for tag in [None, Some(5)] {
        let send = Send { pieces: bytes, tag, ..Send::default() };
        world.nodes[0].post_send(1, &send).unwrap();
        if tag.is_some() {
            world.nodes[1].endpoint.post_tag(u64::MAX, 5, 0, 0).unwrap();
        }
        let announced = world.received(1).good();
        assert_eq!(announced.length, length as u64);
        assert!(announced.flags.contains(Flags::MORE));
        world.nodes[1].endpoint.discard(announced.context).unwrap();
        world.sent(0).good();
    }
    world.nothing_more();
}

pub fn connected_endpoints_announce_too<P: Provider>(bed: &Bed<P>) {
    let options = || EndpointOptions { connected: true, ..options().endpoint };
    let listener = Listener::listening(bed);
    let caller = End::open(bed, |domain| Endpoint::open(domain, options()).unwrap());
    caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
    let request = listener.take(&[&caller]);
    let open = |domain: &_| Endpoint::open_for(domain, options(), request).unwrap();
    let acceptor = End::open(bed, open);
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
    acceptor.connected(&[&caller, &listener]);
    for length in [8, 300, 70_000] {
        let bytes = pattern(length as u64, length);
        caller.endpoint.send(bytes.clone(), 0, 1).unwrap();
        let announced = acceptor.done(&[&caller]).good();
        acceptor.endpoint.claim(announced.context, vec![0; length], 2).unwrap();
        let claimed = acceptor.done(&[&caller]).good();
        assert_eq!(claimed.context, 2);
        same(&claimed.returned.unwrap(), &bytes, "claimed");
        caller.done(&[&acceptor]).good();
    }
}

pub fn a_receive_context_announces_for_itself<P: Provider>(bed: &Bed<P>) {
    let plain = Portal::open(bed, counts(1, 1));
    let options = EndpointOptions { buffered: true, ..naming() };
    let buffering = Portal::with(&bed.domain(DomainOptions::default()), counts(1, 1), &options);
    plain.knows(&[buffering.endpoint.address()]);
    buffering.knows(&[plain.endpoint.address()]);
    let all = [&plain, &buffering];
    let receive = &buffering.receive[0];
    for length in [8, 70_000] {
        let bytes = pattern(1, length);
        plain.transmit[0].endpoint.send(bytes.clone(), 0, 1).unwrap();
        let announced = next(receive, &all).good();
        receive.endpoint.claim(announced.context, vec![0; length], 2).unwrap();
        same(&next(receive, &all).good().returned.unwrap(), &bytes, "claimed");
        next(&plain.transmit[0], &all).good();
    }
    // Receives are posted to others as ever.
    plain.receive[0].endpoint.receive(vec![0; 8], u64::MAX, 3).unwrap();
    buffering.transmit[0].endpoint.send(vec![1; 8], 0, 4).unwrap();
    assert_eq!(next(&plain.receive[0], &all).context(), 3);
    next(&buffering.transmit[0], &all).good();
    nothing_more(&all);
}

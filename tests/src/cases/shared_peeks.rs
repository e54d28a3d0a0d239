//! Peek, claim and discard at a shared receive context. Reference: fi_tagged(3).

use std::{
    collections::HashSet,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Instant,
};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::{CompletionQueue, Entry, ReadError},
    domain::Sharing,
    endpoint::PostError,
    error::{Errno, HasErrno},
    flags::Flags,
    memory::{Piece, Pieces},
    shared_context::receive::SharedReceive,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, Receive, Send, World, pattern, same},
    cases::shared_contexts::senders_with,
    completion::{Done, read_all},
    contexts::Sharers,
    scale::{PATIENCE, scaled},
};

const LENGTHS: [usize; 5] = [0, 8, 300, 5_000, 300_000];

/// Two endpoints that share receives, and one that sends to them as 0 and 1.
fn open<P: Provider>(bed: &Bed<P>) -> (Sharers<P>, World<P>) {
    senders_with(bed, 2, 1, &Options::default())
}

fn peek<P: Provider>(sharers: &Sharers<P>, flags: Flags, receive: Receive<'_>) -> (usize, Done) {
    let flags = flags | Flags::PEEK;
    sharers.shared.post_receive(Receive { flags, ..receive }.post()).unwrap();
    sharers.next(|| ())
}

/// Peeks until there is a message.
#[track_caller]
fn find<P: Provider>(
    (sharers, world): (&Sharers<P>, &World<P>),
    flags: Flags,
    receive: Receive<'_>,
) -> (usize, Done) {
    let start = Instant::now();
    loop {
        let (at, done) = peek(sharers, flags, receive);
        if done.errno != Some(Errno::NOMSG) {
            return (at, done.good());
        }
        world.poll(1);
        assert!(start.elapsed() < PATIENCE, "in vain: the message arrives");
    }
}

fn read_one<P: Provider>(queue: &CompletionQueue<P>) -> Result<usize, ReadError> {
    queue.read(&mut [Entry::default()])
}

/// Sends to one of them, and waits until it waits there.
fn send<P: Provider>(
    (sharers, world): (&Sharers<P>, &World<P>),
    to: u64,
    bytes: &Memory,
    tag: u64,
) {
    let send = Send { pieces: bytes.all(), tag: Some(tag), data: Some(tag + 1), ..Send::default() };
    world.nodes[0].post_send(to, &send).unwrap();
    let it_alone = Receive { tag: Some((tag, 0)), ..Receive::default() };
    find((sharers, world), Flags::empty(), it_alone);
}

fn sent<P: Provider>((sharers, world): (&Sharers<P>, &World<P>), count: usize) {
    for _ in 0..count {
        world.drive("a send completes", || {
            sharers.poll();
            world.waiting(0).0 > 0
        });
        world.sent(0).good();
    }
}

pub fn a_peek_finds_what_waits_at_any_endpoint<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let bytes = [3, 4].map(|seed| Memory::from(pattern(seed, length)));
        let into = Memory::zeroed(length + 4);
        let (sharers, world) = open(bed);
        let both = (&sharers, &world);
        send(both, 1, &bytes[0], 8);
        send(both, 0, &bytes[1], 9);
        // The earliest of both endpoints, again and again; then the other one.
        for (turn, at) in [1, 0].into_iter().enumerate() {
            let tag = 8 + turn as u64;
            for round in 0..3 {
                let pieces = if round == 2 { into.all() } else { Receive::default().pieces };
                let any =
                    Receive { pieces, tag: Some((0, 0xff)), context: 5, ..Default::default() };
                let (found, done) = find(both, Flags::empty(), any);
                assert_eq!((found, done.context, done.length), (at, 5, length as u64));
                assert_eq!((done.tag, done.data, done.source), (tag, tag + 1, 0));
                assert_eq!(done.flags, Flags::TAGGED | Flags::RECV | Flags::REMOTE_CQ_DATA);
                if done.buffer != 0 && length > 0 {
                    assert_eq!(done.buffer, into.start());
                    same(&into.bytes()[..length], &bytes[turn].bytes(), "peeked");
                }
            }
            let buffer = vec![0; length];
            sharers.shared.receive_tagged(buffer, FI_ADDR_UNSPEC, 0, 0xff, 6).unwrap();
            let (found, done) = sharers.next(|| world.poll(1));
            assert_eq!((found, done.context, done.tag), (at, 6, tag));
            same(&done.good().returned.unwrap(), &bytes[turn].bytes(), "received");
        }
        sent(both, 2);
    }
}

pub fn who_only_peeks_finds_what_comes<P: Provider>(bed: &Bed<P>) {
    let (sharers, world) = open(bed);
    for to in [1, 0] {
        let tag = Some((to, 0));
        world.nodes[0].endpoint.inject_tagged(&[7; 8], to, to).unwrap();
        let start = Instant::now();
        loop {
            let flags = Flags::PEEK;
            sharers
                .shared
                .post_receive(Receive { tag, flags, ..Receive::default() }.post())
                .unwrap();
            // The first one's answer to each miss is read before its queue is ever empty.
            let mut answers = sharers.members.iter().map(|member| read_one(&member.queue));
            let at = answers.position(|count| count == Ok(1));
            if let Some(at) = at {
                assert_eq!(at as u64, to);
                break;
            }
            let missed = sharers.members[0].queue.read_error().expect("every peek has an answer");
            assert_eq!(missed.errno, Errno::NOMSG);
            world.poll(1);
            assert!(start.elapsed() < PATIENCE, "in vain: the message arrives");
        }
    }
}

pub fn what_is_claimed_is_one_receivers<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let bytes = [1, 2].map(|seed| Memory::from(pattern(seed, length)));
        let into = Memory::zeroed(length);
        let (sharers, world) = open(bed);
        let both = (&sharers, &world);
        let asked = Receive { tag: Some((5, 0)), context: 70, ..Receive::default() };
        send(both, 1, &bytes[0], 5);
        send(both, 0, &bytes[1], 6);
        let (at, done) = find(both, Flags::CLAIM, asked);
        assert_eq!((at, done.context, done.length), (1, 70, length as u64));
        peek(&sharers, Flags::empty(), asked).1.bad(Errno::NOMSG);
        // Others get the other one.
        let buffer = vec![0; length];
        sharers.shared.receive_tagged(buffer, FI_ADDR_UNSPEC, 0, u64::MAX, 1).unwrap();
        let (at, done) = sharers.next(|| world.poll(1));
        same(&done.good().returned.unwrap(), &bytes[1].bytes(), "the other one");
        assert_eq!(at, 0);
        let claim = Receive { flags: Flags::CLAIM, pieces: into.all(), ..asked };
        let stranger = Receive { context: 71, ..claim };
        let nothing = PostError::NothingClaimed { context: 71 };
        assert_eq!(sharers.shared.post_receive(stranger.post()), Err(nothing));
        sharers.shared.post_receive(claim.post()).unwrap();
        let (at, done) = sharers.next(|| world.poll(1));
        assert_eq!((at, done.context, done.length, done.data), (1, 70, length as u64, 6));
        assert_eq!(done.good().buffer, into.start());
        same(&into.bytes(), &bytes[0].bytes(), "the claimed one");
        let nothing = PostError::NothingClaimed { context: 70 };
        assert_eq!(sharers.shared.post_receive(claim.post()), Err(nothing), "once");
        sent(both, 2);
    }
}

pub fn what_is_discarded_is_gone<P: Provider>(bed: &Bed<P>) {
    let bytes = Memory::from(pattern(1, 300_000));
    let (sharers, world) = open(bed);
    let both = (&sharers, &world);
    for claims in [false, true] {
        for (length, to) in LENGTHS.into_iter().zip([1, 0, 1, 0, 1]) {
            let pieces = bytes.cut(&[length])[0];
            let (pieces, flags) = (Pieces::One(pieces), Flags::MATCH_COMPLETE);
            let send = Send { pieces, tag: Some(5), flags, ..Send::default() };
            world.nodes[0].post_send(to, &send).unwrap();
            let asked = Receive { tag: Some((5, 0)), context: 9, ..Receive::default() };
            let first = if claims { Flags::CLAIM } else { Flags::DISCARD };
            let (at, done) = find(both, first, asked);
            assert_eq!((at as u64, done.length), (to, length as u64));
            if claims {
                let flags = Flags::CLAIM | Flags::DISCARD;
                sharers.shared.post_receive(Receive { flags, ..asked }.post()).unwrap();
                let (at, done) = sharers.next(|| world.poll(1));
                assert_eq!((at as u64, done.context()), (to, 9));
            }
            sent(both, 1);
            peek(&sharers, Flags::empty(), asked).1.bad(Errno::NOMSG);
        }
    }
}

pub fn a_miss_is_told_by_the_first_endpoint<P: Provider>(bed: &Bed<P>) {
    let (mut sharers, world) = open(bed);
    let tags = [Some((5, 0)), None];
    for flags in [Flags::empty(), Flags::CLAIM, Flags::DISCARD, Flags::CLAIM | Flags::DISCARD] {
        for tag in tags {
            let (at, done) =
                peek(&sharers, flags, Receive { tag, context: 3, ..Receive::default() });
            assert_eq!((at, done.context), (0, 3));
            assert!(done.bad(Errno::NOMSG).flags.contains(Flags::RECV));
        }
    }
    // What is claimed at an endpoint that closes goes with it.
    send((&sharers, &world), 0, &Memory::from(vec![1; 8]), 5);
    let asked = Receive { tag: tags[0], context: 4, ..Receive::default() };
    assert_eq!(find((&sharers, &world), Flags::CLAIM, asked).0, 0);
    let first = sharers.members.remove(0);
    first.endpoint.close();
    let claim = Receive { flags: Flags::CLAIM, ..asked };
    let nothing = sharers.shared.post_receive(claim.post()).unwrap_err();
    assert_eq!(nothing, PostError::NothingClaimed { context: 4 });
    assert_eq!(nothing.errno(), Errno::INVAL);
    peek(&sharers, Flags::empty(), asked).1.bad(Errno::NOMSG);
    sharers.members.remove(0).endpoint.close();
    // No endpoint, no queue to tell it in.
    let flags = Flags::PEEK;
    let nobody = sharers.shared.post_receive(Receive { flags, ..asked }.post());
    assert_eq!(nobody.unwrap_err().errno(), Errno::OPBADSTATE);
}

/// What claimers have done together.
struct Claims {
    wanted: usize,
    found: AtomicUsize,
    claimers: AtomicUsize,
}

impl Claims {
    fn are_all(&self) -> bool {
        self.found.load(Ordering::Relaxed) == self.wanted
    }
}

/// Claims messages until all are claimed, and answers which these were.
fn claim_some<P: Provider>(
    shared: &SharedReceive<P>,
    context: u64,
    told: &Receiver<Done>,
    claims: &Claims,
) -> Vec<u64> {
    let (mut found, mut into) = (Vec::new(), [0; 8]);
    let peek = Receive { tag: Some((0, u64::MAX)), context, ..Receive::default() };
    while !claims.are_all() {
        let flags = Flags::PEEK | Flags::CLAIM;
        shared.post_receive(Receive { flags, ..peek }.post()).unwrap();
        let done = told.recv_timeout(PATIENCE).expect("every peek has an answer");
        if done.errno == Some(Errno::NOMSG) {
            continue;
        }
        let tag = done.good().tag;
        // SAFETY: the receive is over before `into` is looked at, and before it goes.
        let pieces = Pieces::One(unsafe { Piece::of(&mut into) });
        let flags = Flags::CLAIM;
        shared.post_receive(Receive { pieces, flags, ..peek }.post()).unwrap();
        let done = told.recv_timeout(PATIENCE).expect("what was claimed is there").good();
        assert_eq!((done.tag, u64::from_le_bytes(into)), (tag, tag));
        found.push(tag);
        claims.found.fetch_add(1, Ordering::Relaxed);
    }
    claims.claimers.fetch_sub(1, Ordering::Relaxed);
    found
}

pub fn threads_claim_each_message_once<P: Provider>(bed: &Bed<P>) {
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    const CLAIMERS: usize = 3;
    let wanted = scaled(100, 500, 5_000);
    let claims = Claims { wanted, found: 0.into(), claimers: CLAIMERS.into() };
    let (sharers, world) = open(bed);
    let (claims, shared, sender) = (&claims, &sharers.shared, world.nodes[0].endpoint.clone());
    let sends = world.nodes[0].sends.clone();
    let (tellers, receivers): (Vec<Sender<Done>>, Vec<_>) =
        (0..CLAIMERS).map(|_| channel()).unzip();
    let found: Vec<u64> = std::thread::scope(|scope| {
        for member in &sharers.members {
            let (queue, tellers) = (member.queue.clone(), tellers.clone());
            scope.spawn(move || {
                while claims.claimers.load(Ordering::Relaxed) > 0 {
                    read_all(&queue, |done| tellers[done.context as usize].send(done).unwrap());
                }
            });
        }
        let claim = |(context, told): (usize, Receiver<Done>)| {
            scope.spawn(move || claim_some(shared, context as u64, &told, claims))
        };
        let claimers: Vec<_> = receivers.into_iter().enumerate().map(claim).collect();
        let mut next = 0;
        while !claims.are_all() && !claimers.iter().any(|claimer| claimer.is_finished()) {
            let bytes = u64::to_le_bytes(next);
            if next < wanted as u64 && sender.inject_tagged(&bytes, next % 2, next).is_ok() {
                next += 1;
            }
            read_all(&sends, |done| assert_eq!(done.errno, None));
        }
        claimers.into_iter().flat_map(|claimer| claimer.join().unwrap()).collect()
    });
    assert_eq!(found.len(), wanted);
    assert_eq!(found.into_iter().collect::<HashSet<_>>().len(), wanted, "each of them once");
}

/// A context names one message, whichever endpoint has it, and a claim of what its sender did not
/// live to send completes there.
pub fn a_claim_outlives_its_sender<P: Provider>(bed: &Bed<P>) {
    let lengths = [300, 1 << 20];
    let bytes = lengths.map(|length| Memory::from(pattern(1, length)));
    let (sharers, mut world) = open(bed);
    let asked = Receive { tag: Some((0, u64::MAX)), ..Receive::default() };
    for (number, bytes) in bytes.iter().enumerate() {
        let both = (&sharers, &world);
        send(both, number as u64, bytes, 5);
        let context = 70 + number as u64;
        let (at, _) = find(both, Flags::CLAIM, Receive { context, ..asked });
        assert_eq!(at, number);
        let again = Receive { flags: Flags::PEEK | Flags::CLAIM, context, ..asked };
        let refused = sharers.shared.post_receive(again.post());
        assert_eq!(refused, Err(PostError::ClaimedBefore { context }));
    }
    drop(world.nodes.remove(0));
    for _ in 0..500 {
        sharers.poll();
    }
    for (number, bytes) in bytes.iter().enumerate() {
        let into = Memory::zeroed(bytes.bytes().len());
        let context = 70 + number as u64;
        let claim = Receive { flags: Flags::CLAIM, pieces: into.all(), context, ..asked };
        sharers.shared.post_receive(claim.post()).unwrap();
        let (at, done) = sharers.next(|| ());
        assert_eq!((at, done.context), (number, context));
        match done.errno {
            None => same(&into.bytes(), &bytes.bytes(), "all had come"),
            errno => assert_eq!((errno, number), (Some(Errno::CONNRESET), 1)),
        }
    }
}

/// A claim names its message by the context, and its sender may have left the address vector since.
pub fn a_claim_needs_no_source<P: Provider>(bed: &Bed<P>) {
    let (bytes, into) = (Memory::from(pattern(1, 300)), Memory::zeroed(300));
    let (sharers, world) = open(bed);
    let both = (&sharers, &world);
    send(both, 0, &bytes, 5);
    let asked = Receive { from: 0, tag: Some((5, 0)), context: 70, ..Receive::default() };
    find(both, Flags::CLAIM, asked);
    sharers.vector.remove(&[0]).unwrap();
    let refused = sharers.shared.post_receive(asked.post());
    assert_eq!(refused, Err(PostError::UnknownAddress { address: 0 }));
    let claim = Receive { flags: Flags::CLAIM, pieces: into.all(), ..asked };
    sharers.shared.post_receive(claim.post()).unwrap();
    let (at, done) = sharers.next(|| ());
    assert_eq!((at, done.context()), (0, 70));
    same(&into.bytes(), &bytes.bytes(), "the claimed one");
}

//! Random operations between three endpoints, against a model that searches
//! lists.
//!
//! Two games. In the *quiet* one everything settles after each operation, so the
//! order of arrival is known and the model predicts every completion: receives of
//! every kind, multi-receive, truncation, cancel, peek, claim and discard. In the
//! *hasty* one endpoints are driven at random, so that everything is under way at
//! once; receives are directed then, since what matches what from one sender does
//! not depend on time.

use std::{collections::HashMap, sync::Arc};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    config::LaneChunks,
    domain::Sharing,
    error::Errno,
    flags::Flags,
    mock::MockOptions,
    transport::{Limits, Provider},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::bed::{Bed, Memory, Receive, Send, World, pattern, same};
use kestrel_tests::completion::Done;
use kestrel_tests::mock::{self, mock_bed};
use kestrel_tests::scale::scaled;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

mod side;

use side::*;

const NODES: usize = 3;
const SIZES: [usize; 9] = [0, 8, 17, 49, 393, 700, 5_000, 20_000, 90_000];

#[derive(Clone, Copy, Debug)]
enum Look {
    Peek,
    Claim,
    Discard,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Send { from: usize, to: usize, tag: Option<u64>, size: usize, data: bool, level: usize },
    Receive { at: usize, from: Option<usize>, tag: Option<(u64, u64)>, room: usize, multi: bool },
    Cancel { at: usize, nth: usize },
    Look { at: usize, from: Option<usize>, tag: Option<(u64, u64)>, look: Look },
    TakeClaimed { at: usize, nth: usize, discard: bool },
    Poll { at: usize, rounds: usize },
}

fn tag() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 3 => (0..4u64).prop_map(|tag| Some(tag << 60 | tag))]
}

fn pattern_of_tags() -> impl Strategy<Value = Option<(u64, u64)>> {
    let ignore = prop_oneof![Just(0), Just(1), Just(1 << 60), Just(3 << 60 | 3), Just(u64::MAX)];
    (tag(), ignore).prop_map(|(tag, ignore)| tag.map(|tag| (tag, ignore)))
}

fn source() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![Just(None), (0..NODES).prop_map(Some)]
}

fn op() -> impl Strategy<Value = Op> {
    let send = (0..NODES, 0..NODES, tag(), 0..SIZES.len(), any::<bool>(), 0..4usize);
    let send = send.prop_map(|(from, to, tag, size, data, level)| Op::Send {
        from,
        to,
        tag,
        size: SIZES[size],
        data,
        level,
    });
    let receive = (0..NODES, source(), pattern_of_tags(), 0..SIZES.len(), 0..5u8);
    let receive = receive.prop_map(|(at, from, tag, room, kind)| Op::Receive {
        at,
        from,
        tag,
        room: SIZES[room],
        multi: kind == 0,
    });
    let look = prop_oneof![Just(Look::Peek), Just(Look::Claim), Just(Look::Discard)];
    let look = (0..NODES, source(), pattern_of_tags(), look)
        .prop_map(|(at, from, tag, look)| Op::Look { at, from, tag, look });
    prop_oneof![
        6 => send,
        6 => receive,
        1 => (0..NODES, 0..8usize).prop_map(|(at, nth)| Op::Cancel { at, nth }),
        2 => look,
        1 => (0..NODES, 0..4usize, any::<bool>())
            .prop_map(|(at, nth, discard)| Op::TakeClaimed { at, nth, discard }),
        3 => (0..NODES, 1..4usize).prop_map(|(at, rounds)| Op::Poll { at, rounds }),
    ]
}

/// The endpoints and their model. The world goes first, then the memory that it
/// may still know.
struct Game<'a, P: Provider> {
    world: &'a World<P>,
    sides: Vec<Side>,
    /// Memory of receives and sends, by context.
    memory: HashMap<u64, Memory>,
    sent: Vec<Vec<u64>>,
    next: u64,
}

impl<P: Provider> Game<'_, P> {
    fn context(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn send(&mut self, op: Op) -> Option<Message> {
        let Op::Send { from, to, tag, size, data, level } = op else { return None };
        let id = self.context();
        let bytes = Memory::from(pattern(id, size));
        let flags = [
            Flags::empty(),
            Flags::DELIVERY_COMPLETE,
            Flags::MATCH_COMPLETE,
            Flags::TRANSMIT_COMPLETE,
        ][level];
        let data_word = data.then_some(id);
        let send = Send { pieces: bytes.all(), tag, data: data_word, context: id, flags };
        self.world.post(|| self.world.nodes[from].post_send(to as u64, &send));
        self.memory.insert(id, bytes);
        self.sent[from].push(id);
        Some(Message { id, from, tag, size, data })
    }

    fn receive(&mut self, op: Op) -> Option<Posted> {
        let Op::Receive { at, from, tag, room, multi } = op else { return None };
        let context = self.context();
        let into = Memory::zeroed(room);
        let receive = Receive {
            pieces: into.all(),
            from: from.map_or(FI_ADDR_UNSPEC, |from| from as u64),
            tag,
            context,
            flags: if multi { Flags::MULTI_RECV } else { Flags::empty() },
        };
        self.world.nodes[at].post_receive(&receive).unwrap();
        self.memory.insert(context, into);
        Some(Posted { context, from, tag, room, filled: 0, multi })
    }

    fn play_quietly(&mut self, op: Op) {
        match op {
            Op::Send { to, .. } => {
                let message = self.send(op).unwrap();
                self.sides[to].arrive(message);
            }
            Op::Receive { at, .. } => {
                let posted = self.receive(op).unwrap();
                self.sides[at].post(posted);
            }
            Op::Cancel { at, nth } => self.cancel(at, nth),
            Op::Look { at, from, tag, look } => self.look(at, from, tag, look),
            Op::TakeClaimed { at, nth, discard } => self.take_claimed(at, nth, discard),
            Op::Poll { at, rounds } => (0..rounds).for_each(|_| self.world.nodes[at].poll()),
        }
        self.settle();
    }

    fn cancel(&mut self, at: usize, nth: usize) {
        let side = &mut self.sides[at];
        if side.posted.is_empty() {
            assert!(self.world.nodes[at].endpoint.cancel(u64::MAX).is_err());
            return;
        }
        let posted = side.posted.remove(nth % side.posted.len());
        self.world.nodes[at].endpoint.cancel(posted.context).unwrap();
        let expected = Expected::Canceled { multi: posted.multi };
        side.expected.push((posted.context, expected));
    }

    fn look(&mut self, at: usize, from: Option<usize>, tag: Option<(u64, u64)>, look: Look) {
        let context = self.context();
        let flags = match look {
            Look::Peek => Flags::PEEK,
            Look::Claim => Flags::PEEK | Flags::CLAIM,
            Look::Discard => Flags::PEEK | Flags::DISCARD,
        };
        let receive = Receive {
            from: from.map_or(FI_ADDR_UNSPEC, |from| from as u64),
            tag,
            context,
            flags,
            ..Receive::default()
        };
        self.world.nodes[at].post_receive(&receive).unwrap();
        let side = &mut self.sides[at];
        let place = side.unexpected.iter().position(|message| matches(from, tag, message));
        let expected = match (place, look) {
            (None, _) => Expected::Nothing,
            (Some(place), Look::Peek) => Expected::Found(side.unexpected[place]),
            (Some(place), Look::Discard) => Expected::Found(side.unexpected.remove(place)),
            (Some(place), Look::Claim) => {
                let message = side.unexpected.remove(place);
                side.claimed.push((context, message));
                Expected::Found(message)
            }
        };
        side.expected.push((context, expected));
    }

    fn take_claimed(&mut self, at: usize, nth: usize, discard: bool) {
        let side = &mut self.sides[at];
        if side.claimed.is_empty() {
            return;
        }
        let (context, message) = side.claimed.remove(nth % side.claimed.len());
        // Sometimes too short.
        let room = if nth == 0 { message.size / 2 } else { message.size };
        let into = Memory::zeroed(room);
        let claim = Flags::CLAIM;
        let receive = Receive {
            pieces: into.all(),
            tag: message.tag.map(|tag| (tag, 0)),
            context,
            flags: if discard { claim | Flags::DISCARD } else { claim },
            ..Receive::default()
        };
        self.world.nodes[at].post_receive(&receive).unwrap();
        self.memory.insert(context, into);
        let expected = if discard {
            Expected::Found(message)
        } else {
            Expected::Message { message, room, at: 0, released: false }
        };
        side.expected.push((context, expected));
    }

    /// Lets everything arrive and complete, and compares.
    /// Takes what one step completed. All of it belongs to one receive, whose messages may
    /// complete in any order (FI_ORDER_NONE); its release comes last.
    fn settle(&mut self) {
        self.world.poll(30);
        for (at, side) in self.sides.iter_mut().enumerate() {
            let mut expected = std::mem::take(&mut side.expected);
            let released = expected.iter().any(|(_, expected)| expected.releases());
            expected.retain(|(_, expected)| !matches!(expected, Expected::Release));
            let mut all: Vec<Done> = expected.iter().map(|_| self.world.received(at)).collect();
            self.world.poll(30);
            while self.world.waiting(at).1 > 0 {
                all.push(self.world.received_already(at));
            }
            check_release(released, &mut all, expected.len());
            for (context, expected) in expected {
                let into = self.memory.get(&context);
                let fits = |done: &Done| done.context == context && expected.fits(done, into);
                let place = all.iter().position(fits);
                let place = place.unwrap_or_else(|| panic!("{context}: {expected:?}, but {all:?}"));
                check(expected, &all.remove(place), into);
            }
            assert!(all.is_empty(), "endpoint {at} received more than it should: {all:?}");
        }
    }

    /// Receives whatever is left, and sees every send complete.
    fn finish(&mut self) {
        for at in 0..NODES {
            while let Some(&message) = self.sides[at].unexpected.first() {
                let tag = message.tag.map(|tag| (tag, 0));
                let (from, room) = (Some(message.from), message.size);
                let op = Op::Receive { at, from, tag, room, multi: false };
                self.play_quietly(op);
            }
            while !self.sides[at].claimed.is_empty() {
                self.take_claimed(at, 1, false);
                self.settle();
            }
        }
        self.collect_sends();
        for side in &mut self.sides {
            side.posted.clear();
        }
    }

    fn collect_sends(&mut self) {
        for (from, ids) in self.sent.iter_mut().enumerate() {
            let mut done: Vec<u64> = ids.iter().map(|_| self.world.sent(from).context()).collect();
            done.sort();
            assert_eq!(&done, ids, "every send completes once");
            ids.clear();
        }
        self.world.nothing_more();
    }
}

/// A multi-receive buffer is released once, with the last of its completions or after it.
fn check_release(released: bool, all: &mut Vec<Done>, messages: usize) {
    let releases = |done: &Done| done.flags.contains(Flags::MULTI_RECV);
    let count = all.iter().filter(|done| releases(done)).count();
    assert_eq!(count, usize::from(released), "{all:?}");
    if !released {
        return;
    }
    let last = all.last().expect("there is one");
    assert!(releases(last), "{all:?}");
    if all.len() > messages {
        assert_eq!((last.errno, last.flags), (None, Flags::MULTI_RECV), "{last:?}");
        all.pop();
    }
}

fn check(expected: Expected, done: &Done, into: Option<&Memory>) {
    let flags_of = |message: &Message| {
        let kind = if message.tag.is_some() { Flags::TAGGED } else { Flags::MSG };
        let data = if message.data { Flags::REMOTE_CQ_DATA } else { Flags::empty() };
        kind | Flags::RECV | data
    };
    match expected {
        Expected::Message { message, room, at, .. } => {
            let placed = message.size.min(room);
            let into = into.unwrap().bytes();
            same(&into[at..at + placed], &pattern(message.id, message.size)[..placed], "content");
            assert_eq!(done.length, placed as u64, "{expected:?}: {done:?}");
            assert_eq!(done.source, message.from as u64, "{expected:?}: {done:?}");
            assert_eq!(done.tag, message.tag.unwrap_or(0), "{expected:?}: {done:?}");
            assert_eq!(done.data, if message.data { message.id } else { 0 }, "{done:?}");
            let flags = done.flags - Flags::MULTI_RECV;
            assert_eq!(flags, flags_of(&message), "{expected:?}: {done:?}");
            if message.size > room {
                assert_eq!(done.errno, Some(Errno::TRUNC), "{expected:?}: {done:?}");
                assert_eq!(done.overflow, (message.size - room) as u64);
            } else {
                assert_eq!(done.errno, None, "{expected:?}: {done:?}");
            }
        }
        Expected::Canceled { .. } => assert_eq!(done.errno, Some(Errno::CANCELED), "{done:?}"),
        Expected::Release => unreachable!("a release is checked apart"),
        Expected::Found(message) => {
            assert_eq!((done.errno, done.length), (None, message.size as u64), "{done:?}");
            assert_eq!(done.flags, flags_of(&message), "{done:?}");
            assert_eq!(done.source, message.from as u64);
        }
        Expected::Nothing => assert_eq!(done.errno, Some(Errno::NOMSG), "{done:?}"),
    }
}

fn new_game<P: Provider>(world: &World<P>) -> Game<'_, P> {
    Game {
        world,
        sides: (0..NODES).map(|_| Side::default()).collect(),
        memory: HashMap::new(),
        sent: vec![Vec::new(); NODES],
        next: 0,
    }
}

fn play_quietly<P: Provider>(bed: &Bed<P>, ops: &[Op]) {
    let mut world = Some(bed.world(NODES));
    let game = world.as_ref().unwrap();
    game.warm_up();
    let mut game = new_game(game);
    // Endpoints connect to themselves, too, before anything is predicted.
    for node in 0..NODES {
        game.play_quietly(Op::Receive { at: node, from: None, tag: None, room: 8, multi: false });
        game.world.nodes[node].send(vec![0; 8], node as u64, None, 0);
        game.sides[node].posted.clear();
        game.world.received(node).good();
        game.world.sent(node).good();
    }
    for &op in ops {
        game.play_quietly(op);
    }
    game.finish();
    let memory = std::mem::take(&mut game.memory);
    drop(game);
    // Receives may still be posted: the endpoints go before the memory.
    drop(world.take());
    drop(memory);
}

fn play_hastily<P: Provider>(bed: &Bed<P>, ops: &[Op]) {
    let world = bed.world(NODES);
    let mut game = new_game(&world);
    for &op in ops {
        match op {
            Op::Send { to, .. } => {
                let message = game.send(op).unwrap();
                game.sides[to].arrive(message);
            }
            Op::Receive { at, from, tag, room, .. } => {
                let from = from.or(Some(room % NODES));
                let op = Op::Receive { at, from, tag, room, multi: false };
                let posted = game.receive(op).unwrap();
                game.sides[at].post(posted);
            }
            Op::Poll { at, rounds } => (0..rounds).for_each(|_| world.nodes[at].poll()),
            Op::Cancel { .. } | Op::Look { .. } | Op::TakeClaimed { .. } => {}
        }
    }
    for at in 0..NODES {
        while let Some(&message) = game.sides[at].unexpected.first() {
            let tag = message.tag.map(|tag| (tag, 0));
            let op =
                Op::Receive { at, from: Some(message.from), tag, room: message.size, multi: false };
            let posted = game.receive(op).unwrap();
            game.sides[at].post(posted);
        }
        let mut expected: HashMap<u64, Expected> =
            std::mem::take(&mut game.sides[at].expected).into_iter().collect();
        while !expected.is_empty() {
            let done = world.received(at);
            let expected = expected.remove(&done.context).expect("one that should match");
            check(expected, &done, game.memory.get(&done.context));
        }
        // What no message matched is still posted, and is canceled for its memory.
        for posted in std::mem::take(&mut game.sides[at].posted) {
            world.nodes[at].endpoint.cancel(posted.context).unwrap();
            world.received(at).bad(Errno::CANCELED);
        }
    }
    game.collect_sends();
}

fn run<P: Provider>(bed: impl Fn() -> Bed<P>, cases: u32, length: usize, play: fn(&Bed<P>, &[Op])) {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    let ops = proptest::collection::vec(op(), 1..length);
    let outcome = TestRunner::new(config).run(&ops, |ops| {
        play(&bed(), &ops);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn tight() -> MockOptions {
    let tight = mock::tight();
    MockOptions { limits: Limits { short: 50, ..tight.limits }, ..tight }
}

fn shm() -> Bed<ShmProvider> {
    let lane_chunks = LaneChunks::Off;
    let options =
        ShmOptions { chunk_bytes: 8 << 10, chunk_count: 4, lane_chunks, ..ShmOptions::default() };
    Bed { provider: Arc::new(ShmProvider::new(options).unwrap()), sharing: Sharing::Exclusive }
}

#[test]
fn quiet_on_a_roomy_mock() {
    run(|| mock_bed(MockOptions::default()), scaled(150, 350, 50_000), 60, play_quietly);
}

#[test]
fn quiet_on_a_tight_mock() {
    run(|| mock_bed(tight()), scaled(150, 250, 50_000), 60, play_quietly);
}

#[test]
fn quiet_on_shared_memory() {
    run(shm, scaled(20, 100, 2_000), 100, play_quietly);
}

#[test]
fn hasty_on_a_roomy_mock() {
    run(|| mock_bed(MockOptions::default()), scaled(200, 500, 100_000), 80, play_hastily);
}

#[test]
fn hasty_on_a_tight_mock() {
    run(|| mock_bed(tight()), scaled(200, 500, 100_000), 80, play_hastily);
}

#[test]
fn hasty_on_a_readable_mock() {
    let options = || MockOptions { read_remote: true, lane_packets: 4, ..MockOptions::default() };
    run(|| mock_bed(options()), scaled(200, 500, 100_000), 80, play_hastily);
}

#[test]
fn hasty_on_shared_memory() {
    run(shm, scaled(20, 150, 3_000), 150, play_hastily);
}

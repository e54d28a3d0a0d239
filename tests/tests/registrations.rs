//! Registrations that an endpoint keeps for buffers that come again, on the fake: how many are made, when
//! they end, and what is not kept. What devices do with memory that was mapped anew: `cases::mapped_anew`.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread::{sleep, spawn},
    time::Duration,
};

use kestrel_core::{config::FetchPolicy, flags::Flags, info::MemoryRegionMode, memory::Pieces};
use kestrel_tests::{
    bed::{Memory, Receive, Send, World, same},
    fake::fake_bed_on,
    fork::{fork, wait},
    mapped::{Change, Mapped},
    one_sided::{BOTH, Rma, expose, options, segment},
    scale,
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions, Tally},
};

const TAG: u64 = 3;
const FETCH_MIN: usize = 256 << 10;
/// One that is lent if it costs no registration, and if it goes alone only if that is faster.
const SHORT: usize = FETCH_MIN / 4;

/// Node 0 sends to node 1.
struct Pair {
    world: World<RcProvider<FakeDevice>>,
    fabric: FakeFabric,
}

/// For tests that count: what another one unmaps would have them register once more. None, with the reason,
/// where the kernel lets nobody watch memory.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Of what was unmapped before all is known by then.
    sleep(Duration::from_millis(20));
    let kept = kestrel_verbs::can_keep_registrations();
    kept.inspect_err(|reason| scale::skip("registrations", reason)).ok()?;
    Some(alone)
}

impl Pair {
    fn new() -> Pair {
        Pair::with(FakeOptions::default(), 1 << 30)
    }

    fn with(fake: FakeOptions, cache_bytes: usize) -> Pair {
        Pair::opened(fake, VerbsOptions { cache_bytes, ..VerbsOptions::default() })
    }

    fn opened(fake: FakeOptions, options: VerbsOptions) -> Pair {
        let (bed, fabric) = fake_bed_on(fake, options);
        let world = bed.world_with(2, &self::options(MemoryRegionMode::ALLOCATED));
        world.warm_up();
        Pair { world, fabric }
    }

    fn tally(&self) -> Tally {
        self.fabric.tally()
    }

    fn receive(&self, into: Pieces<'_>) {
        let receive = Receive { pieces: into, tag: Some((TAG, 0)), ..Receive::default() };
        self.world.post(|| self.world.nodes[1].post_receive(&receive));
    }

    fn send(&self, from: Pieces<'_>, flags: Flags) {
        let send = Send { pieces: from, tag: Some(TAG), flags, ..Send::default() };
        self.world.post(|| self.world.nodes[0].post_send(1, &send));
    }

    /// One message, from post to post.
    fn pass(&self, from: Pieces<'_>, into: Pieces<'_>) {
        self.pass_with(from, into, Flags::empty());
    }

    fn pass_with(&self, from: Pieces<'_>, into: Pieces<'_>, flags: Flags) {
        self.receive(into);
        self.send(from, flags);
        self.world.received(1).good();
        self.world.sent(0).good();
    }

    /// A short message back.
    fn answer(&self) {
        let [asker, answerer] = [&self.world.nodes[0], &self.world.nodes[1]];
        asker.receive(8, Some(TAG), 1);
        answerer.send(vec![0; 8], 0, Some(TAG), 2);
        self.world.received(0).good();
        self.world.sent(1).good();
    }

    /// One message. Returns how many registrations it took, and whether the device read it.
    fn exchange(&self, from: &Mapped, into: &Mapped) -> (u64, bool) {
        let before = self.tally();
        self.pass(from.all(), into.all());
        same(&into.bytes(), &from.bytes(), "received");
        let after = self.tally();
        (after.registrations - before.registrations, after.reached > before.reached)
    }
}

fn buffers(length: usize) -> (Mapped, Mapped) {
    let (from, into) = (Mapped::zeroed(length), Mapped::zeroed(length));
    from.change(Change::None, length as u64);
    (from, into)
}

#[test]
fn a_buffer_that_comes_again_is_registered_once() {
    let Some(_alone) = alone() else {
        return;
    };
    let (from, into) = buffers(FETCH_MIN);
    let pair = Pair::new();
    assert_eq!(pair.exchange(&from, &into), (2, true));
    assert_eq!(pair.exchange(&from, &into), (0, true));
    // A part of it is as good. What is received into may be sent from, but not the other way round.
    let part = Pieces::One(from.piece().part(100, FETCH_MIN - 200));
    let before = pair.tally().registrations;
    pair.pass(part, Pieces::One(into.piece().part(7, FETCH_MIN - 200)));
    assert_eq!(pair.tally().registrations, before);
    let kept = pair.tally().registered;
    drop(pair);
    assert!(kept > 2 * FETCH_MIN);
}

/// Shorter messages of a stream are worth a read where nothing is registered for one of them alone.
#[test]
fn a_stream_from_the_same_buffers_is_read_by_the_device() {
    let Some(_alone) = alone() else {
        return;
    };
    let (from, into) = buffers(SHORT);
    let pair = Pair::new();
    let all: Vec<_> = (0..6).map(|_| pair.exchange(&from, &into)).collect();
    assert_eq!(all[0], (0, false), "nothing went before: it may be an answer");
    assert_eq!(all[1], (2, true));
    assert_eq!(all[2..], [(0, true); 4]);
}

/// Messages that go alone go either way in turns, until it is known which is faster: the first, for which there
/// may be no window, as packets.
#[test]
fn messages_that_go_alone_are_compared() {
    let Some(_alone) = alone() else {
        return;
    };
    let ways = |fetch: FetchPolicy, length: usize, count: usize| {
        let options = VerbsOptions { fetch, ..VerbsOptions::default() };
        let pair = Pair::opened(FakeOptions::default(), options);
        let (from, into) = buffers(length);
        let mut ways = Vec::new();
        for _ in 0..count {
            ways.push(pair.exchange(&from, &into).1);
            pair.answer();
        }
        ways
    };
    let compared = ways(FetchPolicy::Auto, SHORT, 300);
    let rounds: Vec<usize> =
        compared.chunk_by(|one, next| one == next).map(<[bool]>::len).collect();
    // The first read opens the window, and takes so long that its round has some more.
    assert!(!compared[0] && rounds[0] == 8, "{rounds:?}");
    assert!(rounds[1] > 8 && rounds[2] > 8, "a round of either: {rounds:?}");
    for (fetch, length, all_read) in [
        (FetchPolicy::Auto, FETCH_MIN, true),
        (FetchPolicy::On, SHORT, false),
        (FetchPolicy::On, FETCH_MIN, true),
        (FetchPolicy::Off, FETCH_MIN, false),
    ] {
        assert_eq!(ways(fetch, length, 4), [all_read; 4], "{fetch:?}, {length} bytes");
    }
}

/// What is complete when it was copied does not wait for what is compared.
#[test]
fn what_is_complete_when_copied_is_not_compared() {
    let Some(_alone) = alone() else {
        return;
    };
    let (from, into) = buffers(SHORT);
    let pair = Pair::new();
    let before = pair.tally().reached;
    for _ in 0..20 {
        pair.pass_with(from.all(), into.all(), Flags::INJECT_COMPLETE);
        pair.answer();
    }
    assert_eq!(pair.tally().reached, before);
}

/// A buffer that cannot be registered for a shorter message alone is no reason to read no long one any more.
#[test]
fn a_shorter_one_that_cannot_be_registered_ends_nothing() {
    let Some(_alone) = alone() else {
        return;
    };
    let (from, into) = buffers(SHORT);
    let pair = Pair::new();
    let all = [(); 3].map(|()| pair.exchange(&from, &into).1);
    assert_eq!(all, [false, true, true]);
    let other = Mapped::zeroed(SHORT);
    pair.fabric.refuse_registrations(true);
    assert_eq!(pair.exchange(&from, &other), (0, false));
    pair.fabric.refuse_registrations(false);
    assert_eq!(pair.exchange(&from, &into), (0, false), "some go in parts");
    let (from, into) = buffers(FETCH_MIN);
    assert_eq!(pair.exchange(&from, &into), (2, true));
}

/// Whoever takes another buffer each time pays for some of them, and for no more.
#[test]
fn buffers_that_never_come_again_are_not_registered_for_long() {
    let Some(_alone) = alone() else {
        return;
    };
    let mut messages = Vec::new();
    for _ in 0..100 {
        messages.push(buffers(SHORT));
    }
    let pair = Pair::new();
    let before = pair.tally();
    for (from, into) in &messages {
        pair.exchange(from, into);
    }
    let after = pair.tally();
    let (made, read) = (after.registrations - before.registrations, after.reached - before.reached);
    assert_eq!((made, read), (2 * 64, 64), "as many as it is trusted with at first");
    // Longer ones are registered anyway, and when they come again they show that it is worth it.
    let (from, into) = buffers(FETCH_MIN);
    assert_eq!(pair.exchange(&from, &into), (2, true));
    assert_eq!(pair.exchange(&from, &into), (0, true));
    assert!(pair.exchange(&messages[99].0, &messages[99].1).1);
}

#[test]
fn what_is_unmapped_is_deregistered() {
    let Some(_alone) = alone() else {
        return;
    };
    let pair = Pair::new();
    let before = pair.tally().registered;
    let (from, into) = buffers(FETCH_MIN);
    pair.exchange(&from, &into);
    assert_eq!(pair.tally().registered, before + 2 * FETCH_MIN);
    drop((from, into));
    // At the next rounds of each endpoint.
    pair.world.drive("what is gone is deregistered", || pair.tally().registered == before);
}

#[test]
fn what_was_mapped_anew_is_registered_anew() {
    let Some(_alone) = alone() else {
        return;
    };
    for change in [Change::MappedOver, Change::Discarded] {
        let (from, into) = buffers(FETCH_MIN);
        let pair = Pair::new();
        for (changed, whose) in [(&from, "the sender's"), (&into, "the receiver's")] {
            // Where it is not known yet what has changed both are registered for this message alone.
            let registers_it = |round| {
                changed.change(change, round);
                pair.exchange(&from, &into) == (1, true)
            };
            assert!((0..100).any(registers_it), "{change:?}: {whose}");
        }
    }
}

/// The kernel and its readers wait for each other where memory is unmapped: after some in vain it is left.
#[test]
fn who_unmaps_each_buffer_is_left_alone() {
    let Some(_alone) = alone() else {
        return;
    };
    let pair = Pair::new();
    let kept = |pair: &Pair| pair.tally().registered;
    let idle = kept(&pair);
    for nth in 0..60 {
        let (from, into) = buffers(FETCH_MIN);
        assert_eq!(pair.exchange(&from, &into), (2, true));
        if nth > 20 {
            assert_eq!(kept(&pair), idle, "{nth}: registered for this one alone");
        }
    }
}

#[test]
fn one_sided_operations_register_their_buffers_once() {
    let Some(_alone) = alone() else {
        return;
    };
    let length = 100_000;
    let (from, into) = buffers(length);
    let target = Memory::zeroed(length);
    let pair = Pair::new();
    let region = expose(&pair.world.nodes[1], &target, BOTH, 1);
    let segments = [segment(&region, 0, length)];
    let play = || {
        let before = pair.tally().registrations;
        let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
        pair.world.nodes[0].post_write(1, &write).unwrap();
        pair.world.sent(0).good();
        let read = Rma { pieces: into.all(), ..write };
        pair.world.nodes[0].post_read(1, &read).unwrap();
        pair.world.sent(0).good();
        same(&into.bytes(), &from.bytes(), "there and back");
        pair.tally().registrations - before
    };
    let first: u64 = (0..3).map(|_| play()).sum();
    assert_eq!(first, 3, "the region, and both buffers");
    assert_eq!(play(), 0);
    // What the device may write to it reads as well; what it may read alone is no place to write to.
    let write = Rma { pieces: into.all(), segments: &segments, ..Rma::default() };
    let before = pair.tally().registrations;
    pair.world.nodes[0].post_write(1, &write).unwrap();
    pair.world.sent(0).good();
    assert_eq!(pair.tally().registrations, before);
    let read = Rma { pieces: from.all(), ..write };
    pair.world.nodes[0].post_read(1, &read).unwrap();
    pair.world.sent(0).good();
    assert_eq!(pair.tally().registrations, before + 1);
    pair.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// The one that was used the longest time ago makes room.
#[test]
fn no_more_is_kept_than_the_limit() {
    let Some(_alone) = alone() else {
        return;
    };
    let some: Vec<_> = (0..5).map(|_| buffers(FETCH_MIN)).collect();
    let pair = Pair::with(FakeOptions::default(), 3 * FETCH_MIN);
    let idle = pair.tally().registered;
    let exchange = |nth: usize| pair.exchange(&some[nth].0, &some[nth].1);
    assert_eq!([0, 1, 2, 0, 3].map(exchange).map(|it| it.0), [2, 2, 2, 0, 2]);
    assert_eq!(pair.tally().registered, idle + 2 * 3 * FETCH_MIN);
    assert_eq!([0, 3, 2].map(exchange).map(|it| it.0), [0; 3], "number 1 made room");
    assert_eq!(exchange(1).0, 2);
    // What is longer than all of it is registered for itself.
    let (from, into) = buffers(4 * FETCH_MIN);
    assert_eq!([(); 2].map(|()| pair.exchange(&from, &into)), [(2, true); 2]);
    assert_eq!(pair.tally().registered, idle + 2 * 3 * FETCH_MIN);
}

#[test]
fn none_is_kept_where_that_is_switched_off() {
    let Some(_alone) = alone() else {
        return;
    };
    let (from, into) = buffers(FETCH_MIN);
    let pair = Pair::with(FakeOptions::default(), 0);
    let idle = pair.tally().registered;
    for _ in 0..3 {
        assert_eq!(pair.exchange(&from, &into), (2, true));
        assert_eq!(pair.tally().registered, idle);
    }
}

/// What is kept makes room for what has to be registered.
#[test]
fn what_is_kept_takes_no_locked_memory_from_what_follows() {
    let Some(_alone) = alone() else {
        return;
    };
    let some: Vec<_> = (0..4).map(|_| buffers(FETCH_MIN)).collect();
    let (target, word) = (Memory::zeroed(2 * FETCH_MIN), Memory::zeroed(8));
    let idle = Pair::new().tally().registered;
    let locked_bytes_max = idle + 4 * FETCH_MIN + FETCH_MIN / 2;
    let fake = FakeOptions { locked_bytes_max, ..FakeOptions::default() };
    let pair = Pair::with(fake, 1 << 30);
    for (from, into) in some.iter().chain(&some) {
        assert!(pair.exchange(from, into).1, "by the device");
    }
    // Nor from regions that peers are to reach.
    let region = expose(&pair.world.nodes[1], &target, BOTH, 1);
    let segments = [segment(&region, 0, 8)];
    let reached = pair.tally().reached;
    for _ in 0..3 {
        let write = Rma { pieces: word.all(), segments: &segments, ..Rma::default() };
        pair.world.nodes[0].post_write(1, &write).unwrap();
        pair.world.sent(0).good();
    }
    assert!(pair.tally().reached > reached, "it was leased");
    pair.world.nodes[1].domain.close_memory(&region).unwrap();
}

/// What is unmapped beside a message that is under way is no concern of that.
#[test]
fn what_ends_beside_a_message_does_not_end_it() {
    let Some(_alone) = alone() else {
        return;
    };
    let (from, into) = buffers(2 * FETCH_MIN);
    let pair = Pair::new();
    let idle = pair.tally().registered;
    pair.exchange(&from, &into);
    // The first half of each, which the registrations of the whole hold.
    let [first, place] = [&from, &into].map(|whole| whole.piece().part(0, FETCH_MIN));
    pair.send(Pieces::One(first), Flags::empty());
    pair.world.poll(50);
    pair.fabric.hold(true);
    pair.receive(Pieces::One(place));
    pair.world.poll(50);
    let before = pair.tally();
    from.discard(FETCH_MIN);
    into.discard(FETCH_MIN);
    pair.world.poll(500);
    assert_eq!(pair.tally().registered, before.registered, "while it is under way");
    pair.fabric.hold(false);
    pair.world.received(1).good();
    pair.world.sent(0).good();
    assert_eq!(pair.tally().reached, before.reached + 1, "by the device");
    same(&into.bytes()[..FETCH_MIN], &from.bytes()[..FETCH_MIN], "received");
    pair.world.drive("they end behind it", || pair.tally().registered == idle);
    assert_eq!(pair.exchange(&from, &into), (2, true), "and are not used again");
}

/// Each piece of a receive has its registration until it is read, however little may be kept.
#[test]
fn pieces_need_not_be_kept_together() {
    let Some(_alone) = alone() else {
        return;
    };
    let from = Mapped::zeroed(3 * FETCH_MIN);
    from.change(Change::None, 1);
    let pieces = [(); 3].map(|()| Mapped::zeroed(FETCH_MIN));
    let pair = Pair::with(FakeOptions::default(), FETCH_MIN + FETCH_MIN / 2);
    for _ in 0..3 {
        let reached = pair.tally().reached;
        pair.pass(from.all(), Pieces::Many(&pieces.each_ref().map(Mapped::piece)));
        assert_eq!(pair.tally().reached, reached + 3, "by the device");
        same(&pieces.each_ref().map(Mapped::bytes).concat(), &from.bytes(), "received");
    }
}

/// A child has a copy of each descriptor, and nobody in it reads the events: who unmaps memory does not wait
/// for that.
#[test]
fn a_child_that_lives_on_holds_nobody_up() {
    let Some(_alone) = alone() else {
        return;
    };
    let (from, into) = buffers(FETCH_MIN);
    let pair = Pair::new();
    pair.exchange(&from, &into);
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let child = fork(|| {
        // Until the parent has gone on.
        i32::from(theirs.read(&mut [0]).is_err())
    });
    from.change(Change::MappedOver, 1);
    assert!(pair.exchange(&from, &into).1, "it goes on");
    drop(pair);
    let (done, end) = mpsc::channel();
    let unmap = spawn(move || {
        drop((from, into));
        done.send(())
    });
    end.recv_timeout(scale::PATIENCE).expect("what was watched is unmapped");
    unmap.join().unwrap().unwrap();
    ours.write_all(&[1]).unwrap();
    assert_eq!(wait(child), 0);
}

/// With memory that others change nothing is kept: no event tells of that.
#[test]
fn shared_memory_is_registered_each_time() {
    let Some(_alone) = alone() else {
        return;
    };
    let pair = Pair::new();
    let [from, into] = [(); 2].map(|()| Mapped::shared(FETCH_MIN));
    from.change(Change::None, 1);
    for _ in 0..3 {
        assert_eq!(pair.exchange(&from, &into), (2, true));
    }
}

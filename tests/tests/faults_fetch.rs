//! Long messages that the receiver's adapter reads, on the fake: errors of the device, memory that
//! cannot be registered, peers that go, and that nothing is written when it is not ours any more.

use std::time::Instant;

use kestrel_core::{
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory::Pieces,
    memory_region::descriptor::Descriptor,
    operation::{ReceivePost, SendPost},
};
use kestrel_tests::{
    bed::{Memory, Receive, Send, World, pattern, same},
    fake::{fake_bed, without_cache},
    one_sided::{BOTH, expose, options},
    scale::PATIENCE,
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric},
    verbs::Status,
};

type Fake = RcProvider<FakeDevice>;

const TAG: u64 = 3;
/// Lengths that are fetched.
const LENGTHS: [usize; 3] = [32 << 10, 100_001, 3 << 20];

/// Node 0 sends long messages to node 1.
struct Pull {
    world: World<Fake>,
    fabric: FakeFabric,
}

impl Pull {
    fn new() -> Pull {
        Pull::from(LENGTHS[0])
    }

    /// Messages are fetched from that length on.
    fn from(fetch_min: usize) -> Pull {
        Pull::among(2, fetch_min)
    }

    /// The same among so many nodes.
    fn among(nodes: usize, fetch_min: usize) -> Pull {
        Pull::with(nodes, VerbsOptions { fetch_min, ..VerbsOptions::default() })
    }

    fn with(nodes: usize, verbs: VerbsOptions) -> Pull {
        let (bed, fabric) = fake_bed(verbs);
        let world = bed.world_with(nodes, &options(MemoryRegionMode::ALLOCATED));
        world.warm_up();
        Pull { world, fabric }
    }

    /// The same, with a window that a message went through.
    fn opened() -> Pull {
        let pull = Pull::new();
        pull.exchange(1, LENGTHS[0]);
        assert_eq!(pull.reached(), 1);
        pull
    }

    fn reached(&self) -> u64 {
        self.fabric.tally().reached
    }

    fn send(&self, source: &Memory, context: u64, flags: Flags) {
        let send = Send { pieces: source.all(), tag: Some(TAG), context, flags, ..Send::default() };
        self.world.post(|| self.world.nodes[0].post_send(1, &send));
    }

    fn receive(&self, pieces: Pieces<'_>, context: u64) {
        let receive = Receive { pieces, tag: Some((TAG, 0)), context, ..Receive::default() };
        self.world.post(|| self.world.nodes[1].post_receive(&receive));
    }

    /// One message, from post to post.
    #[track_caller]
    fn exchange(&self, seed: u64, length: usize) {
        let (source, into) = (Memory::from(pattern(seed, length)), Memory::zeroed(length));
        self.receive(into.all(), seed);
        self.send(&source, seed, Flags::empty());
        assert_eq!(self.world.received(1).context(), seed);
        assert_eq!(self.world.sent(0).context(), seed);
        same(&into.bytes(), &source.bytes(), "received");
    }

    /// One message from and into regions: the first bytes of what lies there.
    #[track_caller]
    fn exchange_in(
        &self,
        source: &Memory,
        sent: Option<Descriptor>,
        into: &Memory,
        received: Option<Descriptor>,
        length: usize,
    ) {
        let part = |memory: &Memory| Pieces::One(memory.piece().part(0, length));
        let (flags, tag) = (Flags::empty(), Some(TAG));
        let receive = Receive { pieces: part(into), tag: Some((TAG, 0)), ..Receive::default() };
        let send = Send { pieces: part(source), tag, flags, ..Send::default() };
        let [from, to] = [&self.world.nodes[0], &self.world.nodes[1]];
        self.world
            .post(|| to.endpoint.post_receive(ReceivePost { region: received, ..receive.post() }));
        self.world.post(|| from.endpoint.post_send(SendPost { region: sent, ..send.post(1) }));
        self.world.received(1).good();
        self.world.sent(0).good();
        same(&into.bytes()[..length], &source.bytes()[..length], "received");
    }

    /// Messages that are matched, and that the adapter has begun to read: nothing moves before
    /// the fabric is let go.
    fn begin(&self, sources: &[Memory], into: &[Memory]) {
        for (context, source) in (10..).zip(sources) {
            self.send(source, context, Flags::empty());
        }
        self.world.poll(50);
        self.fabric.hold(true);
        for (context, into) in (20..).zip(into) {
            self.receive(into.all(), context);
        }
        self.world.poll(50);
        assert_eq!((self.world.waiting(0), self.world.waiting(1)), ((0, 0), (0, 0)));
    }
}

fn messages(count: u64, length: usize) -> (Vec<Memory>, Vec<Memory>) {
    let sources = (0..count).map(|seed| Memory::from(pattern(seed + 1, length))).collect();
    (sources, (0..count).map(|_| Memory::zeroed(length)).collect())
}

#[test]
fn a_long_message_is_read_by_the_device_and_nothing_stays_registered() {
    let pull = Pull::with(2, without_cache(LENGTHS[0]));
    let before = pull.fabric.tally().registered;
    for (nth, length) in (1..).zip(LENGTHS) {
        pull.exchange(nth, length);
        assert_eq!(pull.reached(), nth, "by the device: {length} bytes");
        assert_eq!(pull.fabric.tally().registered, before, "still registered");
    }
    // What is shorter costs less as packets.
    pull.exchange(9, LENGTHS[0] - 1);
    assert_eq!(pull.reached(), 3);
}

/// Buffers that have been registered, at both ends, cost a message of a stream nothing: shorter ones are
/// read, too. The regions' registrations are used, and none is made for a message.
#[test]
fn what_lies_in_regions_is_read_from_a_quarter_of_the_length_on() {
    const FETCH_MIN: usize = 256 << 10;
    let length = FETCH_MIN / 4;
    let (source, into) = (Memory::from(pattern(5, 2 * length)), Memory::zeroed(2 * length));
    let pull = Pull::with(2, without_cache(FETCH_MIN));
    let [sender, receiver] = [&pull.world.nodes[0], &pull.world.nodes[1]];
    let lent = expose(sender, &source, Flags::SEND | Flags::REMOTE_READ, 1);
    let own = expose(receiver, &into, Flags::RECV, 2);
    // Seen by peers, and not to be sent from; and the other way round.
    let shown = expose(sender, &source, Flags::REMOTE_READ, 3);
    let hidden = expose(sender, &source, Flags::SEND, 4);
    let written = expose(sender, &source, Flags::SEND | Flags::REMOTE_WRITE, 6);
    let is_read = |sent: Option<Descriptor>, received: Option<Descriptor>, length: usize| {
        let before = pull.reached();
        into.fill(0);
        pull.exchange_in(&source, sent, &into, received, length);
        pull.reached() > before
    };
    let all = (lent.descriptor(), own.descriptor());
    assert!(!is_read(all.0, all.1, length), "nothing went before: it may be an answer");
    assert!(is_read(all.0, all.1, length), "with the first the regions are registered");
    for (region, why) in [
        (&shown, "nothing is sent from it"),
        (&hidden, "peers may not reach it"),
        (&written, "peers may not read it"),
    ] {
        assert!(!is_read(region.descriptor(), all.1, length), "{why}");
    }
    pull.fabric.refuse_registrations(true);
    let registered = pull.fabric.tally().registered;
    assert!(is_read(all.0, all.1, length));
    assert!(is_read(all.0, all.1, 2 * length));
    assert!(!is_read(all.0, all.1, length - 1), "that is too short");
    assert!(!is_read(None, all.1, length), "the sender's is in no region");
    assert!(!is_read(Descriptor::of(99), all.1, length), "the region is not there");
    assert!(is_read(all.0, all.1, length), "none of that is for good");
    assert_eq!(pull.fabric.tally().registered, registered);
    // A receiver that has to register reads this one, and says so: then some come in parts, and more each time.
    pull.fabric.refuse_registrations(false);
    let in_parts = |own| (0..100).take_while(|_| !is_read(all.0, own, length)).count();
    assert_eq!([(); 3].map(|()| in_parts(None)), [0, 16, 32]);
    assert_eq!(in_parts(all.1), 64);
    assert_eq!(in_parts(all.1), 0, "it need not any more");
    // What is long enough in any case has no part in that.
    pull.exchange(8, FETCH_MIN);
    assert_eq!(in_parts(all.1), 0);
    let regions = [
        (sender, &lent),
        (sender, &shown),
        (sender, &hidden),
        (sender, &written),
        (receiver, &own),
    ];
    for (node, region) in regions {
        node.domain.close_memory(region).unwrap();
    }
    assert!(!is_read(all.0, all.1, length), "the regions are closed");
    assert!(pull.fabric.tally().registered < registered, "they are not registered any more");
}

#[test]
fn scattered_and_short_buffers_get_what_fits() {
    let length = 300_000;
    let source = Memory::from(pattern(4, length));
    let (scattered, short) = (Memory::zeroed(length), Memory::zeroed(1000));
    let pull = Pull::opened();
    let pieces = scattered.cut(&[100, 200_000, length - 200_100]);
    pull.receive(Pieces::Many(&pieces), 1);
    pull.receive(short.all(), 2);
    pull.receive(Pieces::One(short.piece().part(0, 0)), 3);
    (4..7).for_each(|context| pull.send(&source, context, Flags::empty()));
    assert_eq!(pull.world.received(1).context(), 1);
    same(&scattered.bytes(), &source.bytes(), "in three pieces");
    let mut cut: Vec<_> = (0..2).map(|_| pull.world.received(1).bad(Errno::TRUNC)).collect();
    cut.sort_by_key(|done| done.context);
    let told = cut.iter().map(|done| (done.context, done.length, done.overflow));
    let left = length as u64;
    assert_eq!(told.collect::<Vec<_>>(), [(2, 1000, left - 1000), (3, 0, left)]);
    same(&short.bytes(), &source.bytes()[..1000], "what fits");
    (4..7).for_each(|_| assert!((4..7).contains(&pull.world.sent(0).context())));
}

/// More than the window takes at once, in the order of their posting.
#[test]
fn many_are_under_way_at_once() {
    let (sources, into) = messages(200, LENGTHS[0]);
    let pull = Pull::new();
    for (context, into) in (0..).zip(&into) {
        pull.receive(into.all(), context);
    }
    for (context, source) in (0..).zip(&sources) {
        pull.send(source, context, Flags::empty());
    }
    for context in 0..200 {
        assert_eq!(pull.world.received(1).context(), context);
        assert_eq!(pull.world.sent(0).context(), context);
    }
    for (into, source) in into.iter().zip(&sources) {
        same(&into.bytes(), &source.bytes(), "received");
    }
    assert_eq!(pull.reached(), 200);
}

#[test]
fn a_send_is_complete_when_the_message_was_read() {
    for flags in [Flags::empty(), Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE] {
        let (sources, into) = messages(1, LENGTHS[1]);
        let pull = Pull::opened();
        pull.send(&sources[0], 1, flags);
        pull.world.poll(50);
        assert_eq!(pull.world.waiting(0), (0, 0), "nobody asked for it yet");
        let canceled = pull.world.nodes[0].endpoint.cancel(1);
        assert!(canceled.is_err(), "it has left");
        pull.fabric.hold(true);
        pull.receive(into[0].all(), 2);
        pull.world.poll(50);
        assert_eq!((pull.world.waiting(0), pull.world.waiting(1)), ((0, 0), (0, 0)));
        pull.fabric.hold(false);
        pull.world.received(1).good();
        pull.world.sent(0).good();
        same(&into[0].bytes(), &sources[0].bytes(), "received");
    }
}

#[test]
fn messages_survive_an_error_of_the_window() {
    for status in [Status::REMOTE_ACCESS, Status::LOCAL_PROTECTION, Status(99)] {
        for length in LENGTHS {
            let (sources, into) = messages(4, length);
            let pull = Pull::opened();
            pull.begin(&sources, &into);
            pull.fabric.fail_sends(1, status);
            pull.fabric.hold(false);
            for _ in 0..4 {
                pull.world.received(1).good();
                pull.world.sent(0).good();
            }
            for (into, source) in into.iter().zip(&sources) {
                same(&into.bytes(), &source.bytes(), "in parts");
            }
            // From now on all come in parts.
            let before = pull.reached();
            pull.exchange(7, length);
            assert_eq!(pull.reached(), before);
        }
    }
}

#[test]
fn what_cannot_be_registered_comes_in_parts() {
    // The sender's buffer, from the first message on.
    let pull = Pull::new();
    pull.fabric.refuse_registrations(true);
    LENGTHS.into_iter().for_each(|length| pull.exchange(2, length));
    assert_eq!(pull.reached(), 0);
    // The receiver's, when the message has been lent.
    let (sources, into) = messages(3, LENGTHS[1]);
    let pull = Pull::opened();
    for source in &sources {
        pull.send(source, 1, Flags::empty());
    }
    pull.world.poll(50);
    pull.fabric.refuse_registrations(true);
    into.iter().for_each(|into| pull.receive(into.all(), 2));
    for (into, source) in into.iter().zip(&sources) {
        pull.world.received(1).good();
        pull.world.sent(0).good();
        same(&into.bytes(), &source.bytes(), "in parts");
    }
    assert_eq!(pull.reached(), 1, "the one before");
}

/// A refusal that nobody heard, or an answer.
#[test]
fn messages_survive_a_window_that_nobody_answers_on() {
    for length in LENGTHS {
        let (sources, into) = messages(4, length);
        let pull = Pull::opened();
        pull.begin(&sources, &into);
        pull.fabric.lose_answers(1);
        pull.fabric.hold(false);
        for _ in 0..4 {
            pull.world.received(1).good();
            pull.world.sent(0).good();
        }
        for (into, source) in into.iter().zip(&sources) {
            same(&into.bytes(), &source.bytes(), "in parts");
        }
    }
}

/// A peer that nobody hears of any more fails what was under way from it.
#[test]
fn receives_fail_with_their_sender() {
    for length in LENGTHS {
        let (sources, into) = messages(3, length);
        let pull = Pull::opened();
        pull.begin(&sources, &into);
        pull.fabric.fail_sends(2, Status::RETRIES_EXCEEDED);
        pull.fabric.hold(false);
        for _ in 0..3 {
            pull.world.received(1).bad(Errno::CONNRESET);
        }
        // The sender hears of it by itself, a little later, and lends nothing any more.
        pull.world
            .drive("fewer than 8 MiB stay registered", || pull.fabric.tally().registered < 8 << 20);
    }
}

/// A message that is fetched is over once when its sender goes, or its receiver: what else goes through
/// windows meanwhile is waited for.
#[test]
fn who_fetches_and_writes_does_each_once() {
    for is_closed in [false, true] {
        let target = Memory::zeroed(8);
        let (sources, into) = messages(2, LENGTHS[1]);
        let mut pull = Pull::among(3, LENGTHS[0]);
        pull.exchange(1, LENGTHS[0]);
        let region = expose(&pull.world.nodes[2], &target, BOTH, 4);
        let write = |pull: &Pull, byte: u8| {
            let (endpoint, base, key) =
                (&pull.world.nodes[1].endpoint, region.base(), region.key());
            pull.world.post(|| endpoint.inject_write(&[byte; 8], 2, base, key));
        };
        let start = Instant::now();
        while pull.reached() < 2 {
            write(&pull, 1);
            pull.world.poll(20);
            assert!(start.elapsed() < PATIENCE, "in vain: a window");
        }
        pull.begin(&sources, &into);
        write(&pull, 2);
        if is_closed {
            let (closing, fabric) = (pull.world.nodes.remove(1), pull.fabric.clone());
            std::thread::scope(|scope| {
                let (start, before) = (Instant::now(), fabric.tally().queue_pairs);
                let closing = scope.spawn(move || drop(closing));
                while fabric.tally().queue_pairs == before {
                    assert!(start.elapsed() < PATIENCE, "in vain: the end of a window");
                    std::thread::yield_now();
                }
                fabric.hold(false);
                closing.join().unwrap();
            });
        } else {
            drop(pull.world.nodes.remove(0));
            for _ in 0..2 {
                pull.world.received(0).bad(Errno::CONNRESET);
            }
            pull.fabric.hold(false);
        }
        pull.world.drive("the write is there", || target.bytes() == [2; 8]);
        for into in &into {
            same(&into.bytes(), &vec![0; LENGTHS[1]], "nothing is written any more");
        }
        pull.world.nodes.pop().unwrap().domain.close_memory(&region).unwrap();
    }
}

/// What is read late is written nowhere: the buffers are the application's again. The sender is there,
/// and its window, and has not heard that their connection is gone.
#[test]
fn nothing_is_written_when_a_receive_has_failed() {
    let (sources, into) = messages(2, LENGTHS[1]);
    let pull = Pull::opened();
    pull.begin(&sources, &into);
    pull.fabric.break_packets();
    let receiver = &pull.world.nodes[1];
    receiver.send(vec![1; 8], 0, None, 30);
    let start = Instant::now();
    while pull.world.waiting(1) != (1, 2) {
        receiver.poll();
        assert!(start.elapsed() < PATIENCE, "in vain: the end of the connection");
    }
    pull.fabric.hold(false);
    pull.world.poll(50);
    assert_eq!(pull.reached(), 1, "the message before");
    for into in &into {
        same(&into.bytes(), &vec![0; LENGTHS[1]], "nothing is written any more");
    }
    for _ in 0..2 {
        pull.world.received(1).bad(Errno::CONNRESET);
    }
    pull.world.sent(1).bad(Errno::CONNRESET);
}

/// A sender gets its buffers back when nobody reads them any more.
#[test]
fn sends_fail_with_their_receiver() {
    let (sources, into) = messages(2, LENGTHS[1]);
    let mut pull = Pull::opened();
    pull.begin(&sources, &into);
    let receiver = pull.world.nodes.remove(1);
    drop(receiver);
    for _ in 0..2 {
        pull.world.sent(0).bad(Errno::CONNRESET);
    }
    pull.fabric.hold(false);
    for into in &into {
        same(&into.bytes(), &vec![0; LENGTHS[1]], "nothing is written any more");
    }
}

/// A region whose key we chose is for those whom the application tells of it: a message that lies there is
/// lent for itself.
#[test]
fn regions_with_secret_keys_are_not_lent() {
    let (source, into) = (Memory::from(pattern(5, LENGTHS[1])), Memory::zeroed(LENGTHS[1]));
    let (bed, fabric) = fake_bed(without_cache(LENGTHS[1]));
    let world = bed.world(2);
    world.warm_up();
    let pull = Pull { world, fabric };
    let access = Flags::SEND | Flags::REMOTE_READ;
    let lent = expose(&pull.world.nodes[0], &source, access, 0);
    let own = expose(&pull.world.nodes[1], &into, Flags::RECV, 0);
    let send = |length| {
        let before = pull.reached();
        pull.exchange_in(&source, lent.descriptor(), &into, own.descriptor(), length);
        pull.reached() - before
    };
    send(1);
    assert_eq!(send(LENGTHS[1] - 1), 0, "it would have been lent by its region");
    let before = pull.fabric.tally().registered;
    assert_eq!(send(LENGTHS[1]), 1, "it is long enough");
    let registered = pull.fabric.tally().registered - before;
    assert_eq!(registered, LENGTHS[1], "the receiver's region, and nothing of the sender's");
    pull.world.nodes[0].domain.close_memory(&lent).unwrap();
    pull.world.nodes[1].domain.close_memory(&own).unwrap();
}

/// What was read for nobody keeps nobody awake.
#[test]
fn who_has_lost_a_sender_may_sleep() {
    let (sources, into) = messages(2, LENGTHS[1]);
    let mut pull = Pull::opened();
    pull.begin(&sources, &into);
    drop(pull.world.nodes.remove(0));
    for _ in 0..2 {
        pull.world.received(0).bad(Errno::CONNRESET);
    }
    pull.fabric.hold(false);
    let receiver = &pull.world.nodes[0];
    pull.world.drive("nothing is left to look at", || receiver.receives.prepare_wait().is_some());
}

//! No memory for a copy of what was posted: the post is refused and says so, nothing has happened, and
//! what was taken on before is done.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    completion_counter::CompletionCounter,
    config::CmaPolicy,
    domain::Sharing,
    endpoint::{Endpoint, EndpointOptions, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    memory_region::MemoryRegion,
    mock::{MockOptions, MockProvider},
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
    triggered::Threshold,
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Memory, Options, Receive, Send, World, pattern, same},
    fake::fake_bed,
    figures::{Counting, without_memory},
    one_sided::{Atomic, BOTH, Rma, expose, segment},
    scale::{PATIENCE, takes_less_than, unspoilt},
};
use kestrel_verbs::VerbsOptions;

#[global_allocator]
static MEMORY: Counting = Counting::new();

const LENGTH: usize = 12 << 10;
/// More than a peer that does not look takes.
const LONG: usize = 4 << 20;

fn mock() -> Bed<MockProvider> {
    let provider = Arc::new(MockProvider::new(MockOptions::default()));
    Bed { provider, sharing: Sharing::Exclusive }
}

fn shm() -> Bed<ShmProvider> {
    // What is long goes as packets, and fills the lane.
    let options = ShmOptions { cma: CmaPolicy::Off, ..ShmOptions::default() };
    let provider = Arc::new(ShmProvider::new(options).unwrap());
    Bed { provider, sharing: Sharing::Exclusive }
}

fn injected(memory: &Memory, context: u64) -> Send<'static> {
    Send { pieces: memory.all(), flags: Flags::INJECT, context, ..Send::default() }
}

#[track_caller]
fn lacks_memory(refused: Result<(), PostError>) {
    let error = refused.expect_err("there is no memory");
    assert_eq!(error.errno(), Errno::NOMEM, "{error}");
    assert!(error.to_string().starts_with("no memory for a copy of "), "{error}");
}

/// What is injected before there is a connection is copied.
fn sends<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let (from, into) = (Memory::from(pattern(1, LENGTH)), Memory::zeroed(LENGTH));
    world.nodes[1].post_receive(&Receive { pieces: into.all(), ..Receive::default() }).unwrap();
    lacks_memory(without_memory(LENGTH, || world.nodes[0].post_send(1, &injected(&from, 1))));
    world.nodes[0].post_send(1, &injected(&from, 2)).unwrap();
    from.scribble();
    assert_eq!((world.sent(0).good().context(), world.received(1).good().context()), (2, 0));
    same(&into.bytes(), &pattern(1, LENGTH), "as it was when it was posted");
    world.nothing_more();
}

struct Target {
    memory: Memory,
    region: Arc<MemoryRegion>,
}

impl Target {
    fn at<P: Provider>(world: &World<P>) -> Target {
        let memory = Memory::zeroed(3 * LENGTH + LONG);
        let region = expose(&world.nodes[1], &memory, BOTH, 4);
        Target { memory, region }
    }

    /// Injects a write of all of `from` to the `nth` place.
    fn write<P: Provider>(
        &self,
        world: &World<P>,
        from: &Memory,
        nth: usize,
    ) -> Result<(), PostError> {
        let segments = [segment(&self.region, nth * LENGTH, LENGTH)];
        let (flags, context) = (Flags::INJECT, nth as u64);
        let rma = Rma { pieces: from.all(), segments: &segments, flags, context, ..Rma::default() };
        world.nodes[0].post_write(1, &rma)
    }
}

/// A one-sided operation is copied when it may have left in part: there is memory for one.
fn writes<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    world.warm_up();
    let (from, target) = (Memory::from(pattern(2, LENGTH)), Target::at(&world));
    let (zeroes, segments) = (Memory::zeroed(LONG), [segment(&target.region, 3 * LENGTH, LONG)]);
    let long = Rma { pieces: zeroes.all(), segments: &segments, context: 9, ..Rma::default() };
    world.nodes[0].post_write(1, &long).unwrap();
    lacks_memory(without_memory(LENGTH, || target.write(&world, &from, 0)));
    target.write(&world, &from, 0).unwrap();
    let [second, third] =
        without_memory(LENGTH, || [1, 2].map(|nth| target.write(&world, &from, nth)));
    second.unwrap();
    lacks_memory(third);
    target.write(&world, &from, 2).unwrap();
    from.scribble();
    let contexts: BTreeSet<u64> = (0..4).map(|_| world.sent(0).good().context()).collect();
    assert_eq!(contexts, BTreeSet::from([0, 1, 2, 9]));
    let written = &target.memory.bytes()[..3 * LENGTH];
    same(written, &pattern(2, LENGTH).repeat(3), "as it was when it was posted");
    world.nothing_more();
    world.nodes[1].domain.close_memory(&target.region).unwrap();
}

/// What is deferred is copied when it is posted.
fn deferred<P: Provider>(bed: &Bed<P>) {
    let capabilities = EndpointOptions::default().capabilities | Flags::TRIGGER;
    let endpoint = EndpointOptions { capabilities, ..EndpointOptions::default() };
    let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
    let counter = CompletionCounter::open(&world.nodes[0].domain);
    let when = Threshold { counter: counter.clone(), value: 1, work: None };
    let (from, into) = (Memory::from(pattern(3, LENGTH)), Memory::zeroed(LENGTH));
    world.nodes[1].post_receive(&Receive { pieces: into.all(), ..Receive::default() }).unwrap();
    let target = Target::at(&world);
    let segments = [segment(&target.region, 0, LENGTH)];
    let rma =
        Rma { pieces: from.all(), segments: &segments, flags: Flags::INJECT, ..Rma::default() };
    let endpoint = &world.nodes[0].endpoint;
    let send = injected(&from, 1);
    let refused =
        || [endpoint.trigger_send(send.post(1), &when), endpoint.trigger_write(rma.post(1), &when)];
    without_memory(LENGTH, refused).into_iter().for_each(lacks_memory);
    endpoint.trigger_send(injected(&from, 2).post(1), &when).unwrap();
    from.scribble();
    counter.counter().add(1);
    assert_eq!(world.sent(0).good().context(), 2);
    world.received(1).good();
    same(&into.bytes(), &pattern(3, LENGTH), "as it was when it was posted");
    world.nothing_more();
    counter.close().unwrap();
    world.nodes[1].domain.close_memory(&target.region).unwrap();
}

/// A datagram of several pieces is gathered, and one that is injected is copied.
fn datagrams<P: Provider>(bed: &Bed<P>) {
    const SHORT: usize = 3_000;
    let world = bed.world_with(2, &Options::datagrams());
    let (from, into) = (Memory::from(pattern(4, SHORT)), Memory::zeroed(SHORT));
    let pieces = from.cut(&[1_000, 2_000]);
    let gathered = Send { pieces: Pieces::Many(&pieces), context: 1, ..Send::default() };
    let copied = injected(&from, 2);
    let post = |send: &Send<'_>| world.nodes[0].post_send(1, send);
    let refused = without_memory(SHORT, || [&gathered, &copied].map(post));
    refused.into_iter().for_each(lacks_memory);
    for send in [gathered, copied] {
        let receive = Receive { pieces: into.all(), ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        world.nodes[0].post_send(1, &send).unwrap();
        assert_eq!(world.sent(0).good().context(), send.context);
        world.received(1).good();
        same(&into.bytes(), &pattern(4, SHORT), "all of it");
        into.scribble();
    }
    world.nothing_more();
}

/// Messages that nobody has asked for wait with the transport while there is no memory to name them, nor
/// for what is long of them.
fn unexpected<P: Provider>(bed: &Bed<P>, tag: Option<u64>, length: usize) {
    const COUNT: u64 = 200;
    let world = bed.world(2);
    world.warm_up();
    let [sender, receiver] = [&world.nodes[0], &world.nodes[1]];
    let receive_tag = tag.map(|tag| (tag, 0xff));
    // Whatever it was looked for by before grows as well.
    let one = Memory::zeroed(1);
    sender.send(vec![1], 1, tag, 0);
    world.sent(0).good();
    world.poll(5);
    let first = Receive { pieces: one.all(), tag: receive_tag, ..Receive::default() };
    world.post(|| receiver.post_receive(&first));
    world.received(1).good();

    let sources: Vec<Memory> = (0..COUNT).map(|nth| Memory::from(pattern(nth, length))).collect();
    let flags = if length > 4_096 { Flags::empty() } else { Flags::INJECT };
    for source in &sources {
        let send = Send { pieces: source.all(), tag, flags, ..Send::default() };
        world.post(|| sender.post_send(1, &send));
    }
    without_memory(2_000, || (0..1_000).for_each(|_| receiver.poll()));
    let targets: Vec<Memory> = (0..COUNT).map(|_| Memory::zeroed(length)).collect();
    for (context, target) in (0..).zip(&targets) {
        let pieces = target.all();
        let receive = Receive { pieces, context, tag: receive_tag, ..Receive::default() };
        world.post(|| receiver.post_receive(&receive));
    }
    let mut contexts = BTreeSet::new();
    for _ in &targets {
        world.sent(0).good();
        contexts.insert(world.received(1).good().context());
    }
    assert!(contexts.into_iter().eq(0..COUNT), "each of them once");
    for (nth, target) in (0..).zip(&targets) {
        same(&target.bytes(), &pattern(nth, length), "in order");
    }
    world.nothing_more();
}

/// The same where the sender leaves: what finds memory, or a receive, in time is there, and else what is
/// behind what finds neither.
fn departed<P: Provider>(bed: &Bed<P>, in_time: bool, leaves: impl Fn(&Endpoint<P>)) {
    unspoilt(|| has_departed(bed, in_time, &leaves));
}

fn has_departed<P: Provider>(bed: &Bed<P>, in_time: bool, leaves: impl Fn(&Endpoint<P>)) -> bool {
    /// How long is waited for memory.
    const SHORTAGE_MAX: Duration = Duration::from_millis(500);
    /// More than what is taken to report an error.
    const UNASKED: usize = 8_000;
    let targets = [6, 8].map(|tag| (tag, Memory::zeroed(UNASKED)));
    let world = bed.world(2);
    world.warm_up();
    let [sender, receiver] = [&world.nodes[0], &world.nodes[1]];
    receiver.receive(8, Some(7), 7);
    let directed = Receive { from: 0, tag: Some((9, 0)), context: 9, ..Receive::default() };
    receiver.post_receive(&directed).unwrap();
    for (seed, length, tag) in [(1, UNASKED, 6), (2, 8, 7), (3, UNASKED, 8)] {
        let memory = Memory::from(pattern(seed, length));
        sender.post_send(1, &Send { tag: Some(tag), ..injected(&memory, 0) }).unwrap();
    }
    sender.poll();
    leaves(&sender.endpoint);
    let start = Instant::now();
    let goes_on = || match in_time {
        true => start.elapsed() < Duration::from_millis(50),
        // Until the message that memory was not needed for has come, and the end.
        false => world.waiting(1).1 < 2 && start.elapsed() < PATIENCE,
    };
    without_memory(UNASKED, || {
        while goes_on() {
            receiver.poll();
        }
    });
    if !in_time {
        assert_eq!(world.received_already(1).good().context(), 7);
        world.received_already(1).bad(Errno::CONNRESET);
    }
    for (tag, target) in &targets {
        let (pieces, tag, context) = (target.all(), Some((*tag, 0)), *tag);
        receiver.post_receive(&Receive { pieces, tag, context, ..Receive::default() }).unwrap();
    }
    if in_time {
        (0..10).for_each(|_| receiver.poll());
        // Unless the machine kept us until it was given up.
        if start.elapsed() >= SHORTAGE_MAX {
            return false;
        }
        let mut ended: Vec<_> = (0..4).map(|_| world.received(1)).collect();
        ended.sort_by_key(|done| done.context);
        ended.pop().unwrap().bad(Errno::CONNRESET);
        assert!(ended.iter().map(|done| done.context).eq([6, 7, 8]), "{ended:?}");
        assert!(ended.iter().all(|done| done.errno.is_none()), "{ended:?}");
        same(&targets[0].1.bytes(), &pattern(1, UNASKED), "the first one");
        same(&targets[1].1.bytes(), &pattern(3, UNASKED), "the last one");
    }
    world.poll(50);
    assert_eq!(world.waiting(1), (0, 0), "what is lost stays so");
    true
}

/// However many leave without memory for what they said, nobody waits for it more than once.
fn departed_together() {
    // Half a second each would be more.
    takes_less_than(Duration::from_secs(3), senders_departed);
}

/// How long it takes until all are known to be gone.
fn senders_departed() -> Duration {
    const UNASKED: usize = 8_000;
    const SENDERS: usize = 8;
    let bed = mock();
    let world = bed.world(SENDERS + 1);
    world.warm_up();
    let (senders, receiver) = (&world.nodes[..SENDERS], &world.nodes[SENDERS]);
    let memory = Memory::from(pattern(1, UNASKED));
    for (from, sender) in (0..).zip(senders) {
        let directed = Receive { from, tag: Some((9, 0)), context: from, ..Receive::default() };
        receiver.post_receive(&directed).unwrap();
        let send = Send { tag: Some(6), ..injected(&memory, 0) };
        sender.post_send(SENDERS as u64, &send).unwrap();
        sender.poll();
        bed.provider.kill(sender.endpoint.address());
    }
    let start = Instant::now();
    without_memory(UNASKED, || {
        while world.waiting(SENDERS).1 < SENDERS && start.elapsed() < PATIENCE {
            receiver.poll();
        }
    });
    let took = start.elapsed();
    for _ in senders {
        world.received_already(SENDERS).bad(Errno::CONNRESET);
    }
    took
}

/// What a peer reads is copied where it cannot leave at once; what it fetches may have to be.
fn answers<P: Provider>(bed: &Bed<P>) {
    const SHORT: usize = 3_000;
    /// Of a fetch that takes memory.
    const WORDS: usize = SHORT / 8;
    let world = bed.world(2);
    world.warm_up();
    let [reader, server] = [&world.nodes[0], &world.nodes[1]];
    let poll_without = |bytes: usize| without_memory(bytes, || (0..64).for_each(|_| server.poll()));
    let (source, into) = (Memory::from(pattern(5, SHORT)), Memory::zeroed(SHORT));
    let (served, back) = (expose(server, &source, BOTH, 5), Memory::zeroed(LONG));
    let (behind, zeroes) = (expose(reader, &back, BOTH, 6), Memory::zeroed(LONG));
    let (segments, all) = ([segment(&served, 0, SHORT)], [segment(&behind, 0, LONG)]);
    let read = Rma { pieces: into.all(), segments: &segments, ..Rma::default() };
    let long = Rma { pieces: zeroes.all(), segments: &all, context: 9, ..Rma::default() };
    server.post_write(0, &long).unwrap();
    reader.post_read(1, &read).unwrap();
    poll_without(SHORT);
    world.sent(0).bad(Errno::NOMEM);
    reader.post_read(1, &read).unwrap();
    world.sent(0).good();
    same(&into.bytes(), &pattern(5, SHORT), "with memory");
    assert_eq!(world.sent(1).good().context(), 9);

    let call = AtomicCall {
        operation: AtomicOperation::Sum,
        datatype: Datatype::Uint64,
        form: Form::Fetch,
    };
    let (one, word) = (Memory::from(1u64.to_le_bytes().to_vec()), [segment(&served, 0, 8)]);
    let (operands, results) = (one.all(), into.cut(&[8]));
    let results = Pieces::Many(&results);
    let add = Atomic { operands, results, segments: &word, ..Atomic::new(call) };
    reader.post_atomic(1, &add).unwrap();
    poll_without(LENGTH);
    world.sent(0).bad(Errno::NOMEM);
    same(&source.bytes(), &pattern(5, SHORT), "nothing was added");
    reader.post_atomic(1, &add).unwrap();
    world.sent(0).good();
    assert_ne!(source.bytes(), pattern(5, SHORT));

    // There was memory for results when they were fetched; they may have to wait all the same, once.
    let many = Memory::zeroed(WORDS * 8);
    let words = [segment(&served, 0, WORDS * 8)];
    let add = Atomic { operands: many.all(), segments: &words, results: into.all(), ..add };
    let add = |context| Atomic { context, ..add };
    reader.post_atomic(1, &add(1)).unwrap();
    assert_eq!(world.sent(0).good().context(), 1);
    server.post_write(0, &Rma { context: 10, ..long }).unwrap();
    [2, 3].iter().for_each(|&context| reader.post_atomic(1, &add(context)).unwrap());
    poll_without(WORDS * 8);
    let mut ended: [_; 2] = std::array::from_fn(|_| world.sent(0));
    ended.sort_by_key(|done| done.context);
    assert_eq!(ended.map(|done| (done.context, done.errno)), [(2, None), (3, Some(Errno::NOMEM))]);
    assert_eq!(into.bytes()[..WORDS * 8], source.bytes()[..WORDS * 8]);
    assert_eq!(world.sent(1).good().context(), 10);
    world.nothing_more();
    server.domain.close_memory(&served).unwrap();
    reader.domain.close_memory(&behind).unwrap();
}

#[test]
fn no_memory_for_what_nobody_asked_for() {
    for (tag, length) in [(None, 8), (Some(0x100), 8), (Some(0x100), 3_000), (Some(0x100), 100_000)]
    {
        unexpected(&mock(), tag, length);
        unexpected(&shm(), tag, length);
        unexpected(&fake_bed(VerbsOptions::default()).0, tag, length);
    }
}

#[test]
fn no_memory_for_what_a_sender_left_behind() {
    // A lane in shared memory that was closed stays as long as anything is in it.
    departed(&shm(), true, Endpoint::close);
    departed_together();
    for in_time in [true, false] {
        let mock = mock();
        departed(&mock, in_time, Endpoint::close);
        departed(&mock, in_time, |sender| mock.provider.kill(sender.address()));
        departed(&fake_bed(VerbsOptions::default()).0, in_time, Endpoint::close);
    }
}

#[test]
fn no_memory_for_an_answer() {
    // The mock takes all packets at once.
    answers(&shm());
}

#[test]
fn no_memory_for_an_injected_send() {
    sends(&mock());
    sends(&shm());
    sends(&fake_bed(VerbsOptions::default()).0);
}

#[test]
fn no_memory_for_an_injected_write() {
    // The mock takes all packets at once.
    writes(&shm());
    writes(&fake_bed(VerbsOptions::default()).0);
}

#[test]
fn no_memory_for_what_is_deferred() {
    deferred(&mock());
    deferred(&shm());
}

#[test]
fn no_memory_for_a_datagram() {
    datagrams(&mock());
    datagrams(&shm());
}

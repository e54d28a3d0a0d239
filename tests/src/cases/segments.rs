//! One-sided operations of several segments: each is one, to whoever is told of it or counts it.

use std::sync::Arc;

use kestrel_core::{
    completion_counter::CompletionCounter,
    completion_queue::{CompletionQueue, Entry},
    domain::Domain,
    endpoint::{Endpoint, EndpointOptions},
    error::Errno,
    flags::Flags,
    memory::{Piece, Pieces},
    memory_region::MemoryRegion,
    one_sided::RemoteSegment,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, open_vector, pattern, same},
    one_sided::{Atomic, BOTH, Rma, expose, expose_in, segment},
    scale::{PATIENCE, scaled},
};

/// Each has to go in a way of its own.
const LENGTHS: [usize; 3] = [8, 4_096, 70_000];

/// "the number of bytes written" is that of all of it.
pub fn remote_data_tells_the_whole_length<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let (from, target) = (Memory::from(pattern(1, 3 * length)), Memory::zeroed(4 * length));
        let world = bed.world(2);
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let segments = [2, 3, 0].map(|nth| segment(&region, nth * length, length));
        for data in 0..3 {
            let data = Some(data);
            let write = Rma { pieces: from.all(), segments: &segments, data, ..Rma::default() };
            world.nodes[0].post_write(1, &write).unwrap();
            let told = world.received(1).good();
            assert_eq!((told.length, Some(told.data)), (3 * length as u64, data));
            world.sent(0).good();
            same(&target.bytes()[2 * length..], &from.bytes()[..2 * length], "the first two");
            // The next one is of one segment.
            let segments = [segment(&region, length, length)];
            let pieces = Pieces::One(from.piece().part(0, length));
            world.nodes[0].post_write(1, &Rma { pieces, segments: &segments, ..write }).unwrap();
            assert_eq!(world.received(1).good().length, length as u64);
            world.sent(0).good();
        }
        world.nothing_more();
    }
}

/// One of reads, and one of writes.
type Pair<P> = [Arc<CompletionCounter<P>>; 2];

/// An endpoint that reaches itself, with everything counted.
struct Counted<P: Provider> {
    domain: Arc<Domain<P>>,
    endpoint: Arc<Endpoint<P>>,
    queue: Arc<CompletionQueue<P>>,
    remote: Pair<P>,
}

impl<P: Provider> Counted<P> {
    fn open(bed: &Bed<P>) -> Counted<P> {
        let domain = bed.domain(Default::default());
        let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
        let queue = CompletionQueue::open(&domain, 0).unwrap();
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
        let remote = [(); 2].map(|()| CompletionCounter::open(&domain));
        for (counter, kind) in remote.iter().zip([Flags::REMOTE_READ, Flags::REMOTE_WRITE]) {
            endpoint.bind_counter(counter, kind).unwrap();
        }
        let vector = open_vector();
        endpoint.bind_address_vector(&vector).unwrap();
        vector.insert_one(endpoint.address()).unwrap();
        endpoint.enable().unwrap();
        Counted { domain, endpoint, queue, remote }
    }

    /// A region with counters of its own: of reads, and of writes.
    fn region(&self, memory: &Memory, key: u64) -> (Arc<MemoryRegion>, Pair<P>) {
        self.region_of(&[memory.piece()], key)
    }

    /// The same of several ranges.
    fn region_of(&self, ranges: &[Piece], key: u64) -> (Arc<MemoryRegion>, Pair<P>) {
        let region = expose_in(&self.domain, ranges, BOTH, key, Flags::empty()).unwrap();
        let counters = [(); 2].map(|()| CompletionCounter::open(&self.domain));
        for (counter, kind) in counters.iter().zip([Flags::REMOTE_READ, Flags::REMOTE_WRITE]) {
            self.domain.bind_memory_counter(&region, counter, kind).unwrap();
        }
        (region, counters)
    }

    /// Waits for the end of an operation: whether it failed. What the target counts it has counted.
    fn fails(&self) -> bool {
        let ended = self.queue.read_blocking(&mut [Entry::default()], Some(PATIENCE));
        let failed = ended.is_err();
        if failed {
            self.queue.read_error().expect("it has ended");
        }
        (0..50).for_each(|_| _ = self.queue.poll());
        failed
    }

    fn counts(counters: &Pair<P>) -> [u64; 2] {
        counters.each_ref().map(|counter| counter.read())
    }
}

/// "whenever a remote RMA write or atomic operation modifies the memory region" (fi_mr(3)): that is one
/// event, however often it does.
pub fn regions_count_operations<P: Provider>(bed: &Bed<P>) {
    let sum = AtomicCall {
        operation: AtomicOperation::Sum,
        datatype: Datatype::Uint64,
        form: Form::Base,
    };
    for length in LENGTHS {
        let memory = [(); 2].map(|()| Memory::zeroed(2 * length));
        let local = Memory::zeroed(3 * length);
        let own = Counted::open(bed);
        let [(one, of_one), (other, of_other)] =
            [0, 1].map(|key| own.region(&memory[key], key as u64));
        let segments = [(&one, 0), (&other, 0), (&one, length)]
            .map(|(region, offset)| segment(region, offset, length));
        let rma = Rma { pieces: local.all(), segments: &segments, ..Rma::default() };
        let all = || [&own.remote, &of_one, &of_other].map(Counted::counts);
        for done in 1..4 {
            own.endpoint.post_write(rma.post(0)).unwrap();
            assert!(!own.fails());
            assert_eq!(all(), [[done - 1, done]; 3], "written, {length} bytes each");
            own.endpoint.post_read(rma.post(0)).unwrap();
            assert!(!own.fails());
            assert_eq!(all(), [[done, done]; 3], "read, {length} bytes each");
        }
        if length <= 512 {
            for (form, counted) in [(Form::Base, [3, 4]), (Form::Fetch, [4, 5])] {
                let (call, results) = (AtomicCall { form, ..sum }, Memory::zeroed(3 * length));
                let results = if form == Form::Base { Memory::zeroed(0) } else { results };
                let rest = Atomic { results: results.all(), ..Atomic::new(call) };
                let atomic = Atomic { operands: local.all(), segments: &segments, ..rest };
                own.endpoint.post_atomic(atomic.post(0)).unwrap();
                assert!(!own.fails());
                assert_eq!([&of_one, &of_other].map(Counted::counts), [counted; 2]);
            }
        }
        for region in [one, other] {
            own.domain.close_memory(&region).unwrap();
        }
        own.endpoint.close();
    }
}

/// Nothing behind a segment that is refused is done, and no counter of the endpoint's counts it.
pub fn what_is_refused_in_part_is_not_counted<P: Provider>(bed: &Bed<P>) {
    const LENGTH: usize = 64;
    let call =
        |form| AtomicCall { operation: AtomicOperation::Write, datatype: Datatype::Uint64, form };
    let (memory, local) = (Memory::zeroed(2 * LENGTH), Memory::from(vec![1; 2 * LENGTH]));
    let results = Memory::zeroed(2 * LENGTH);
    let own = Counted::open(bed);
    let (region, counters) = own.region(&memory, 0);
    let good = segment(&region, 0, LENGTH);
    let bad = RemoteSegment { key: !good.key, ..good };
    for (segments, before) in [([bad, good], 0), ([good, bad], 1)] {
        let rma = Rma { pieces: local.all(), segments: &segments, ..Rma::default() };
        let read = Rma { pieces: results.all(), ..rma };
        let atomic =
            Atomic { operands: local.all(), segments: &segments, ..Atomic::new(call(Form::Base)) };
        let fetch = Atomic { call: call(Form::Fetch), results: results.all(), ..atomic };
        for kind in 0..4_u64 {
            memory.fill(0);
            let counted = Counted::counts(&counters);
            match kind {
                0 => own.endpoint.post_write(rma.post(0)).unwrap(),
                1 => own.endpoint.post_read(read.post(0)).unwrap(),
                2 => own.endpoint.post_atomic(atomic.post(0)).unwrap(),
                _ => own.endpoint.post_atomic(fetch.post(0)).unwrap(),
            }
            assert!(own.fails());
            assert_eq!(Counted::counts(&own.remote), [0, 0], "operation {kind}");
            let read = before * (kind % 2);
            let written = before * u64::from(kind != 1);
            let counted = [counted[0] + read, counted[1] + written];
            assert_eq!(Counted::counts(&counters), counted, "operation {kind}");
            same(&memory.bytes()[..LENGTH], &[written as u8; LENGTH], "what came before it alone");
        }
    }
    own.domain.close_memory(&region).unwrap();
    own.endpoint.close();
}

/// An element that lies in two ranges is refused, and those in front of it have modified the region.
pub fn what_fails_midway_is_counted<P: Provider>(bed: &Bed<P>) {
    let operation = AtomicOperation::Sum;
    let call = AtomicCall { operation, datatype: Datatype::Uint64, form: Form::Base };
    let (memory, ones) = (Memory::zeroed(24), Memory::from(vec![1; 16]));
    let own = Counted::open(bed);
    let (region, counters) = own.region_of(&memory.cut(&[12, 12]), 0);
    for (offset, length, counted) in [(8, 8, 0), (0, 16, 1), (8, 16, 1), (0, 8, 2)] {
        let segments = [segment(&region, offset, length)];
        let operands = Pieces::One(ones.piece().part(0, length));
        let add = Atomic { operands, segments: &segments, ..Atomic::new(call) };
        own.endpoint.post_atomic(add.post(0)).unwrap();
        assert_eq!(own.fails(), (offset, length) != (0, 8));
        assert_eq!(Counted::counts(&counters), [0, counted], "{length} bytes from {offset} on");
    }
    same(&memory.bytes(), &[[2; 8], [0; 8], [0; 8]].concat(), "the first element, twice");
    own.domain.close_memory(&region).unwrap();
    own.endpoint.close();
}

/// Whoever reads like this again and again does not seem to read more at once than anybody can.
pub fn what_is_refused_in_part_is_not_kept<P: Provider>(bed: &Bed<P>) {
    const LENGTH: usize = 64 << 10;
    let (target, into) = (Memory::zeroed(LENGTH), Memory::zeroed(8 * LENGTH));
    let world = bed.world(2);
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let good = segment(&region, 0, LENGTH);
    let mut segments = [good; 8];
    segments[7].key = !good.key;
    let read = Rma { pieces: into.all(), segments: &segments, ..Rma::default() };
    for _ in 0..scaled(20, 20, 40) {
        for _ in 0..30 {
            world.post(|| world.nodes[0].post_read(1, &read));
        }
        for _ in 0..30 {
            world.sent(0).bad(Errno::KEYREJECTED);
        }
    }
    world.nothing_more();
    world.nodes[1].domain.close_memory(&region).unwrap();
}

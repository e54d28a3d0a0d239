//! Remote reads and writes. Reference: fi_rma(3).

use kestrel_core::{
    completion_counter::CompletionCounter, endpoint::EndpointOptions, error::Errno,
    error::HasErrno, flags::Flags, info::MemoryRegionMode, memory::Pieces,
    one_sided::RemoteSegment, transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, pattern, same},
    link,
    one_sided::{BOTH, MODES, Rma, expose, expose_ranges, options, segment},
    scale::{PATIENCE, leaves_in_time, scaled, unspoilt},
};

/// One line, spilled, one packet, a snapshot, several packets.
const LENGTHS: [usize; 9] = [1, 8, 32, 33, 300, 4_096, 5_000, 60_000, 1 << 20];

pub fn every_size_is_written_and_read<P: Provider>(bed: &Bed<P>) {
    // The shortest run has each of both, but not all pairs.
    let apart = scaled(MODES.len(), 1, 1);
    for (first, mode) in MODES.into_iter().enumerate() {
        for length in LENGTHS.into_iter().skip(first % apart).step_by(apart) {
            let (target, source) = (Memory::zeroed(length + 16), Memory::zeroed(length));
            let from = Memory::from(pattern(length as u64, length));
            let world = bed.world_with(2, &options(mode));
            let region = expose(&world.nodes[1], &target, BOTH, 77);
            let segments = [segment(&region, 8, length)];
            let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
            world.nodes[0].post_write(1, &Rma { context: 5, ..write }).unwrap();
            let done = world.sent(0).good();
            assert_eq!((done.context, done.flags), (5, Flags::RMA | Flags::WRITE));
            let bytes = target.bytes();
            same(&bytes[8..8 + length], &from.bytes(), "written");
            assert_eq!((&bytes[..8], &bytes[8 + length..]), (&[0; 8][..], &[0; 8][..]));
            let read = Rma { pieces: source.all(), ..write };
            world.nodes[0].post_read(1, &Rma { context: 6, ..read }).unwrap();
            let done = world.sent(0).good();
            assert_eq!((done.context, done.flags), (6, Flags::RMA | Flags::READ));
            same(&source.bytes(), &from.bytes(), "read");
            world.nothing_more();
            world.nodes[1].domain.close_memory(&region).unwrap();
        }
    }
}

/// Some one at a time, and some in a stream: who compares ways to move them tries each.
pub fn one_length_is_written_and_read_again_and_again<P: Provider>(bed: &Bed<P>) {
    for length in [3_000, 70_000] {
        let (target, source) = (Memory::zeroed(7 * length), Memory::zeroed(7 * length));
        let world =
            bed.world_with(2, &options(MemoryRegionMode::VIRT_ADDR | MemoryRegionMode::ALLOCATED));
        let region = expose(&world.nodes[1], &target, BOTH, 77);
        for flight in [1, 7] {
            let cut = vec![length; flight];
            for round in 0..scaled(14, 84, 84) / flight {
                let from = Memory::from(pattern(round as u64, flight * length));
                for (local, reads) in [(&from, false), (&source, true)] {
                    for (nth, piece) in local.cut(&cut).into_iter().enumerate() {
                        let segments = [segment(&region, nth * length, length)];
                        let pieces = Pieces::One(piece);
                        let rma = Rma { pieces, segments: &segments, ..Rma::default() };
                        let node = &world.nodes[0];
                        let post =
                            if reads { node.post_read(1, &rma) } else { node.post_write(1, &rma) };
                        post.unwrap();
                    }
                    (0..flight).for_each(|_| drop(world.sent(0).good()));
                    let arrived = if reads { &source } else { &target };
                    same(&arrived.bytes()[..flight * length], &from.bytes(), "arrived");
                }
            }
        }
        world.nothing_more();
    }
}

pub fn vectors_meet_vectors<P: Provider>(bed: &Bed<P>) {
    for length in [24, 300, 5_000, 200_000] {
        let target = Memory::zeroed(length);
        let from = Memory::from(pattern(3, length));
        let into = Memory::zeroed(length);
        let world =
            bed.world_with(2, &options(MemoryRegionMode::VIRT_ADDR | MemoryRegionMode::ALLOCATED));
        let third = length / 3;
        let ranges = target.cut(&[third, 7, length - third - 7]);
        let region = expose_ranges(&world.nodes[1], &ranges, BOTH, 1).unwrap();
        // In another order than they lie in the region, and cut elsewhere.
        let segments =
            [segment(&region, third + 3, length - third - 3), segment(&region, 0, third + 3)];
        let cut = |memory: &Memory| memory.cut(&[5, 0, third, length - third - 5]);
        let (pieces, results) = (cut(&from), cut(&into));
        let write = Rma { pieces: Pieces::Many(&pieces), segments: &segments, ..Rma::default() };
        world.nodes[0].post_write(1, &write).unwrap();
        world.sent(0).good();
        let split = length - third - 3;
        same(&target.bytes()[third + 3..], &from.bytes()[..split], "the first segment");
        same(&target.bytes()[..third + 3], &from.bytes()[split..], "the second segment");
        world.nodes[0].post_read(1, &Rma { pieces: Pieces::Many(&results), ..write }).unwrap();
        world.sent(0).good();
        same(&into.bytes(), &from.bytes(), "read back");
        world.nothing_more();
    }
}

pub fn an_injected_write_is_free_at_once<P: Provider>(bed: &Bed<P>) {
    let target = Memory::zeroed(64 * 100);
    let world = bed.world(2);
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    for round in 0..64_usize {
        let mut bytes = pattern(round as u64, 100);
        let (address, key) = (region.base() + 100 * round as u64, region.key());
        world.post(|| world.nodes[0].endpoint.inject_write(&bytes, 1, address, key));
        bytes.fill(0xee);
    }
    let expected: Vec<u8> = (0..64).flat_map(|round| pattern(round, 100)).collect();
    world.drive("everything is written", || target.bytes() == expected);
    world.nothing_more();
    let long = vec![0; world.nodes[0].endpoint.options().inject_size + 1];
    let refused = world.nodes[0].endpoint.inject_write(&long, 1, region.base(), region.key());
    assert_eq!(refused.unwrap_err().errno(), Errno::MSGSIZE);
}

/// Whoever was told that an injected write is taken may make no progress any more.
pub fn an_injected_write_needs_its_sender_no_more<P: Provider>(bed: &Bed<P>) {
    unspoilt(|| {
        let target = Memory::zeroed(100);
        let world = bed.world(2);
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let (bytes, from) = (pattern(1, 100), &world.nodes[0].endpoint);
        let inject = || from.inject_write(&bytes, 1, region.base(), region.key()).unwrap();
        if !leaves_in_time(inject) {
            return false;
        }
        link::drive("it leaves", &[&world.nodes[1]], || target.bytes() == bytes);
        world.nothing_more();
        true
    });
}

pub fn what_is_not_allowed_is_refused<P: Provider>(bed: &Bed<P>) {
    for length in [8, 300, 100_000] {
        let target = Memory::from(pattern(9, length));
        let local = Memory::from(pattern(1, length));
        let world = bed.world_with(2, &options(MemoryRegionMode::ALLOCATED));
        let node = &world.nodes[0];
        let all = |address, key| [RemoteSegment { address, length: length as u64, key }];
        let region = expose(&world.nodes[1], &target, Flags::REMOTE_READ, 7);
        let no_key = all(0, 8);
        let too_far = all(1, 7);
        let around = all(u64::MAX - 3, 7);
        for (write, segments, errno) in [
            (true, &no_key, Errno::KEYREJECTED),
            (false, &no_key, Errno::KEYREJECTED),
            (true, &all(0, 7), Errno::ACCES),
            (false, &too_far, Errno::INVAL),
            (false, &around, Errno::INVAL),
        ] {
            let rma = Rma { pieces: local.all(), segments, context: 3, ..Rma::default() };
            let post = || if write { node.post_write(1, &rma) } else { node.post_read(1, &rma) };
            world.post(post);
            let error = world.sent(0).bad(errno);
            assert_eq!(error.context, 3);
            assert!(error.flags.contains(Flags::RMA) && !error.reason.is_empty(), "{error:?}");
            same(&target.bytes(), &pattern(9, length), "nothing was written");
            same(&local.bytes(), &pattern(1, length), "nothing was read");
        }
        // The endpoint goes on.
        let segments = [segment(&region, 0, length)];
        let read = Rma { pieces: local.all(), segments: &segments, ..Rma::default() };
        node.post_read(1, &read).unwrap();
        world.sent(0).good();
        same(&local.bytes(), &pattern(9, length), "read after all");
        world.nothing_more();
    }
}

pub fn nonsense_is_refused_at_once<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(64);
    let world = bed.world(2);
    let region = expose(&world.nodes[1], &memory, BOTH, 0);
    let (node, segments) = (&world.nodes[0], [segment(&region, 0, 64)]);
    let rma = Rma { pieces: memory.all(), segments: &segments, ..Rma::default() };
    let errno = |rma: Rma<'_>| node.post_write(1, &rma).unwrap_err().errno();
    let short = [segment(&region, 0, 63)];
    assert_eq!(errno(Rma { segments: &short, ..rma }), Errno::INVAL);
    assert_eq!(errno(Rma { segments: &[segments[0]; 9], ..rma }), Errno::INVAL);
    assert_eq!(errno(Rma { flags: Flags::PEEK, ..rma }), Errno::BADFLAGS);
    let data = Rma { data: Some(1), ..rma };
    assert_eq!(node.post_read(1, &data).unwrap_err().errno(), Errno::BADFLAGS);
    assert_eq!(node.post_read(5, &rma).unwrap_err().errno(), Errno::INVAL);
    world.nothing_more();
    let capabilities = EndpointOptions::default().capabilities.difference(Flags::WRITE);
    let endpoint = EndpointOptions { capabilities, ..EndpointOptions::default() };
    let world = bed.world_with(1, &Options { endpoint, ..Options::default() });
    let refused = world.nodes[0].post_write(0, &rma).unwrap_err();
    assert_eq!(refused.errno(), Errno::OPNOTSUPP);
}

pub fn an_endpoint_that_is_no_target_refuses<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(8);
    let capabilities = EndpointOptions::default().capabilities.difference(BOTH);
    let endpoint = EndpointOptions { capabilities, ..EndpointOptions::default() };
    let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
    let region = expose(&world.nodes[1], &memory, BOTH, 0);
    let segments = [segment(&region, 0, 8)];
    let rma = Rma { pieces: memory.all(), segments: &segments, ..Rma::default() };
    // Of no bytes as well: only key and bounds say nothing then.
    for rma in [rma, Rma::default()] {
        world.nodes[0].post_write(1, &rma).unwrap();
        world.sent(0).bad(Errno::ACCES);
        world.nodes[0].post_read(1, &rma).unwrap();
        world.sent(0).bad(Errno::ACCES);
        world.nodes[0].post_write(1, &Rma { data: Some(1), ..rma }).unwrap();
        world.sent(0).bad(Errno::ACCES);
    }
    world.nothing_more();
}

pub fn nothing_is_a_length_too<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let nowhere = [RemoteSegment { address: 0, length: 0, key: 1 }];
    for segments in [&[][..], &nowhere[..]] {
        world.nodes[0].post_write(1, &Rma { segments, context: 1, ..Rma::default() }).unwrap();
        assert_eq!(world.sent(0).context(), 1);
        world.nodes[0].post_read(1, &Rma { segments, context: 2, ..Rma::default() }).unwrap();
        assert_eq!(world.sent(0).context(), 2);
        let data = Rma { segments, data: Some(0xabc), context: 3, ..Rma::default() };
        world.nodes[0].post_write(1, &data).unwrap();
        assert_eq!(world.sent(0).context(), 3);
        assert_eq!(world.received(1).good().data, 0xabc);
    }
    world.nothing_more();
}

pub fn a_closed_region_is_out_of_reach<P: Provider>(bed: &Bed<P>) {
    for length in [8, 2 << 20] {
        let target = Memory::zeroed(length);
        let source = Memory::from(vec![1; length]);
        let into = Memory::zeroed(length);
        let world = bed.world_with(2, &options(MemoryRegionMode::ALLOCATED));
        world.warm_up();
        let region = expose(&world.nodes[1], &target, BOTH, 4);
        let segments = [segment(&region, 0, length)];
        let rma = Rma { pieces: source.all(), segments: &segments, ..Rma::default() };
        // Under way when the region closes, if it is long.
        world.nodes[0].post_read(1, &Rma { pieces: into.all(), ..rma }).unwrap();
        world.nodes[0].post_write(1, &rma).unwrap();
        world.nodes[1].poll();
        world.nodes[1].domain.close_memory(&region).unwrap();
        let after = target.bytes();
        for _ in 0..2 {
            let done = world.sent(0);
            assert!(matches!(done.errno, None | Some(Errno::KEYREJECTED)), "{done:?}");
        }
        same(&target.bytes(), &after, "nothing lands after the close");
        world.nodes[0].post_write(1, &rma).unwrap();
        world.sent(0).bad(Errno::KEYREJECTED);
        // The key means another region now.
        let region = expose(&world.nodes[1], &target, BOTH, 4);
        world.nodes[0].post_write(1, &rma).unwrap();
        world.sent(0).good();
        same(&target.bytes(), &source.bytes(), "written");
        world.nodes[1].domain.close_memory(&region).unwrap();
        world.nothing_more();
    }
}

pub fn keys_are_chosen_or_given<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(64);
    let chosen = bed.world_with(1, &options(MemoryRegionMode::ALLOCATED));
    let node = &chosen.nodes[0];
    let region = expose(node, &memory, BOTH, 0xc0ffee);
    assert_eq!((region.key(), region.base()), (0xc0ffee, 0));
    let taken = expose_ranges(node, &[memory.piece()], BOTH, 0xc0ffee).unwrap_err();
    assert_eq!(taken.errno(), Errno::NOKEY);
    assert_eq!(node.domain.close().unwrap_err().errno(), Errno::BUSY);
    node.domain.close_memory(&region).unwrap();
    node.domain.close_memory(&expose(node, &memory, BOTH, 0xc0ffee)).unwrap();
    let given = bed.world(1);
    let regions = [0; 2].map(|key| expose(&given.nodes[0], &memory, BOTH, key));
    assert_ne!(regions[0].key(), regions[1].key());
    assert_eq!(regions[0].base(), memory.start());
}

pub fn operations_follow_each_other<P: Provider>(bed: &Bed<P>) {
    for length in [8, 300, 20_000, 300_000] {
        let rounds = scaled(10, 40, 40);
        let target = Memory::zeroed(length);
        let sources: Vec<Memory> =
            (0..rounds).map(|n| Memory::from(vec![n as u8 + 1; length])).collect();
        let results: Vec<Memory> = (0..rounds).map(|_| Memory::zeroed(length)).collect();
        let world = bed.world(2);
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let segments = [segment(&region, 0, length)];
        for (source, result) in sources.iter().zip(&results) {
            let write = Rma { pieces: source.all(), segments: &segments, ..Rma::default() };
            world.post(|| world.nodes[0].post_write(1, &write));
            world.post(|| world.nodes[0].post_read(1, &Rma { pieces: result.all(), ..write }));
        }
        for _ in 0..2 * rounds {
            world.sent(0).good();
        }
        for (round, result) in results.iter().enumerate() {
            // Behind its write, and before the next one: all of one value.
            same(&result.bytes(), &vec![round as u8 + 1; length], "read in its turn");
        }
        world.nothing_more();
    }
}

pub fn a_message_follows_the_writes_before_it<P: Provider>(bed: &Bed<P>) {
    for length in [8, 300, 20_000, 300_000] {
        let target = Memory::zeroed(length);
        let rounds = scaled(6, 20, 20);
        let sources: Vec<Memory> = (0..rounds).map(|n| Memory::from(vec![n + 1; length])).collect();
        let world = bed.world(2);
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let segments = [segment(&region, 0, length)];
        for (round, source) in sources.iter().enumerate() {
            let write = Rma { pieces: source.all(), segments: &segments, ..Rma::default() };
            world.post(|| world.nodes[0].post_write(1, &write));
            world.nodes[1].receive(8, Some(1), 1);
            world.post(|| world.nodes[0].endpoint.inject_tagged(&[1], 1, 1));
            world.received(1).good();
            same(&target.bytes(), &vec![round as u8 + 1; length], "written before the message");
        }
        for _ in &sources {
            world.sent(0).good();
        }
    }
}

pub fn a_fenced_operation_waits<P: Provider>(bed: &Bed<P>) {
    let (target, local) = (Memory::zeroed(8), Memory::from(vec![3; 8]));
    let world = bed.world(2);
    world.warm_up();
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let segments = [segment(&region, 0, 8)];
    let acknowledged = crate::bed::Send {
        pieces: local.all(),
        tag: Some(5),
        flags: Flags::MATCH_COMPLETE,
        context: 1,
        ..Default::default()
    };
    world.nodes[0].post_send(1, &acknowledged).unwrap();
    let write = Rma { pieces: local.all(), segments: &segments, context: 2, ..Rma::default() };
    world.nodes[0].post_write(1, &Rma { flags: Flags::FENCE, ..write }).unwrap();
    world.poll(50);
    assert_eq!((world.waiting(0).0, target.bytes()), (0, vec![0; 8]));
    world.nodes[1].receive(8, Some(5), 3);
    assert_eq!(world.sent(0).context(), 1);
    assert_eq!(world.sent(0).context(), 2);
    world.received(1).good();
    // A message waits for a write, too.
    world.nodes[0].post_write(1, &write).unwrap();
    let fenced = crate::bed::Send { flags: Flags::FENCE, ..acknowledged };
    world.nodes[0].post_send(1, &fenced).unwrap();
    world.nodes[1].receive(8, Some(5), 3);
    assert_eq!([world.sent(0).context(), world.sent(0).context()], [2, 1]);
    world.received(1).good();
    world.nothing_more();
}

pub fn what_still_queues_is_canceled<P: Provider>(bed: &Bed<P>) {
    let local = Memory::from(vec![3; 8]);
    let target = Memory::zeroed(8);
    let world = bed.world(2);
    world.warm_up();
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let segments = [segment(&region, 0, 8)];
    let held = crate::bed::Send {
        tag: Some(5),
        flags: Flags::MATCH_COMPLETE,
        context: 1,
        ..Default::default()
    };
    world.nodes[0].post_send(1, &held).unwrap();
    let write = Rma { pieces: local.all(), segments: &segments, context: 2, ..Rma::default() };
    world.nodes[0].post_write(1, &Rma { flags: Flags::FENCE, ..write }).unwrap();
    world.poll(5);
    world.nodes[0].endpoint.cancel(2).unwrap();
    let canceled = world.sent(0).bad(Errno::CANCELED);
    assert_eq!((canceled.context, canceled.flags), (2, Flags::RMA | Flags::WRITE));
    assert_eq!(world.nodes[0].endpoint.cancel(2).unwrap_err().errno(), Errno::NOENT);
    world.nodes[1].receive(8, Some(5), 3);
    assert_eq!(world.sent(0).context(), 1);
    assert_eq!(target.bytes(), [0; 8]);
}

pub fn a_safe_buffer_comes_back<P: Provider>(bed: &Bed<P>) {
    let target = Memory::zeroed(300);
    let world = bed.world(1);
    let region = expose(&world.nodes[0], &target, BOTH, 0);
    let (endpoint, base, key) = (&world.nodes[0].endpoint, region.base(), region.key());
    // To itself, as any peer.
    endpoint.write(pattern(4, 300), 0, base, key, 1).unwrap();
    assert_eq!(world.sent(0).good().returned.unwrap(), pattern(4, 300));
    endpoint.write_data(vec![9; 2], 0, (base, key), 5, 2).unwrap();
    assert_eq!(world.sent(0).good().returned.unwrap(), [9; 2]);
    assert_eq!(world.received(0).good().data, 5);
    endpoint.read(vec![0; 300], 0, base, key, 3).unwrap();
    let read = world.sent(0).good().returned.unwrap();
    assert_eq!((&read[..2], &read[2..]), (&[9, 9][..], &pattern(4, 300)[2..]));
    endpoint.read(vec![7; 4], 0, base, key ^ 1, 4).unwrap();
    assert_eq!(world.sent(0).bad(Errno::KEYREJECTED).returned.unwrap(), [7; 4]);
    let refused = endpoint.read(vec![7; 4], 3, base, key, 4).unwrap_err();
    assert_eq!((refused.error.errno(), refused.buffer), (Errno::INVAL, vec![7; 4]));
}

pub fn suppressed_operations_complete_all_the_same<P: Provider>(bed: &Bed<P>) {
    let (target, local) = (Memory::zeroed(8), Memory::from(vec![3; 8]));
    let options = Options { bind: Flags::SELECTIVE_COMPLETION, ..Options::default() };
    let world = bed.world_with(2, &options);
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let segments = [segment(&region, 0, 8)];
    let write = Rma { pieces: local.all(), segments: &segments, ..Rma::default() };
    world.nodes[0].post_write(1, &write).unwrap();
    world.drive("it is written", || target.bytes() == [3; 8]);
    world.nothing_more();
    world.nodes[0].post_write(1, &Rma { flags: Flags::COMPLETION, context: 1, ..write }).unwrap();
    assert_eq!(world.sent(0).context(), 1);
    let nowhere = [RemoteSegment { key: !segments[0].key, ..segments[0] }];
    world.nodes[0].post_write(1, &Rma { segments: &nowhere, ..write }).unwrap();
    world.sent(0).bad(Errno::KEYREJECTED);
}

pub fn both_ends_count<P: Provider>(bed: &Bed<P>) {
    let target = Memory::zeroed(100_000);
    let domain = bed.domain(Default::default());
    let counter = || CompletionCounter::open(&domain);
    let [reads, writes, remote_reads, remote_writes] = [(); 4].map(|()| counter());
    let [region_reads, region_writes] = [(); 2].map(|()| counter());
    let endpoint =
        kestrel_core::endpoint::Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let queue = kestrel_core::completion_queue::CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    for (counter, kind) in [
        (&reads, Flags::READ),
        (&writes, Flags::WRITE),
        (&remote_reads, Flags::REMOTE_READ),
        (&remote_writes, Flags::REMOTE_WRITE),
    ] {
        endpoint.bind_counter(counter, kind).unwrap();
        assert_eq!(endpoint.bind_counter(counter, kind).unwrap_err().errno(), Errno::INVAL);
    }
    let vector = crate::bed::open_vector();
    endpoint.bind_address_vector(&vector).unwrap();
    vector.insert_one(endpoint.address()).unwrap();
    endpoint.enable().unwrap();
    let attributes = kestrel_core::memory_region::MemoryRegionAttributes {
        ranges: &[kestrel_core::memory_region::MemoryRange {
            address: target.start(),
            len: 100_000,
        }],
        access: BOTH,
        ..Default::default()
    };
    // SAFETY: the memory is dropped after the domain.
    let region = unsafe { domain.register_memory(&attributes) }.unwrap();
    domain.bind_memory_counter(&region, &region_reads, Flags::REMOTE_READ).unwrap();
    domain.bind_memory_counter(&region, &region_writes, Flags::REMOTE_WRITE).unwrap();
    let (base, key) = (region.base(), region.key());
    for (round, length) in [8, 300, 5_000, 100_000].into_iter().enumerate() {
        let expected = round as u64 + 1;
        endpoint.write(vec![1; length], 0, base, key, 1).unwrap();
        // Drives the domain, as a counter of the region alone.
        region_writes.wait(expected, Some(PATIENCE)).unwrap();
        writes.wait(expected, Some(PATIENCE)).unwrap();
        endpoint.read(vec![1; length], 0, base, key, 1).unwrap();
        reads.wait(expected, Some(PATIENCE)).unwrap();
        let all = [&remote_reads, &remote_writes, &region_reads].map(|counter| counter.read());
        assert_eq!(all, [expected; 3]);
    }
    // Of no bytes it is an operation, too.
    endpoint.read(Vec::new(), 0, base, key, 1).unwrap();
    reads.wait(5, Some(PATIENCE)).unwrap();
    remote_reads.wait(5, Some(PATIENCE)).unwrap();
    endpoint.inject_write(&[1], 0, base, key).unwrap();
    writes.wait(5, Some(PATIENCE)).unwrap();
    endpoint.inject_write(&[1], 0, base, !key).unwrap();
    assert!(writes.wait(6, Some(PATIENCE)).is_err(), "an error ends the wait");
    assert_eq!((writes.counter().read_error(), writes.read()), (1, 5));
    assert_eq!(region_writes.close().unwrap_err().errno(), Errno::BUSY);
    domain.close_memory(&region).unwrap();
    region_writes.close().unwrap();
    endpoint.close();
    writes.close().unwrap();
}

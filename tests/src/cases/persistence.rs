//! What is to be durable before it completes. Reference: fi_cq(3), FI_COMMIT_COMPLETE; fi_mr(3),
//! FI_RMA_PMEM. That it is on the storage then is seen in `faults_persistence`.

use std::sync::Arc;

use kestrel_core::{
    completion_counter::CompletionCounter,
    endpoint::{EndpointOptions, PostError},
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory::{Piece, Pieces},
    memory_region::MemoryRegion,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Node, Options, Receive, Send, World, pattern, same},
    one_sided::{Atomic, BOTH, Rma, expose, expose_as, options, segment},
};

/// One line, one packet, a part of a page more than some pages, several packets.
const LENGTHS: [usize; 5] = [1, 300, 5_000, 70_000, 1 << 20];

const COMMIT: Flags = Flags::COMMIT_COMPLETE;

fn expose_persistent<P: Provider>(node: &Node<P>, pieces: &[Piece], key: u64) -> Arc<MemoryRegion> {
    expose_as(node, pieces, BOTH, key, Flags::RMA_PMEM).unwrap()
}

/// Written bytes, at whatever place of a page, in ranges of whatever length; what is told at the
/// target comes with the last of them.
pub fn what_is_committed_has_arrived<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let target = Memory::zeroed(length + 17);
        let from = Memory::from(pattern(length as u64, length));
        let world = bed.world_with(2, &options(MemoryRegionMode::VIRT_ADDR));
        let node = &world.nodes[1];
        let ranges = target.cut(&[length / 3 + 1, length + 16 - length / 3]);
        let region = expose_persistent(node, &ranges, 7);
        let counter = CompletionCounter::open(&node.domain);
        node.domain.bind_memory_counter(&region, &counter, Flags::REMOTE_WRITE).unwrap();
        let segments = [segment(&region, 17, length)];
        for round in 1..=3 {
            let write = Rma { pieces: from.all(), segments: &segments, ..Rma::default() };
            let write = Rma { data: Some(round), flags: COMMIT, context: round, ..write };
            world.nodes[0].post_write(1, &write).unwrap();
            assert_eq!(world.sent(0).good().context, round);
            same(&target.bytes()[17..], &from.bytes(), "committed");
            assert_eq!(world.received(1).good().data, round);
            assert_eq!(counter.read(), round);
        }
        world.nothing_more();
        node.domain.close_memory(&region).unwrap();
    }
}

fn sum(form: Form) -> AtomicCall {
    AtomicCall { operation: AtomicOperation::Sum, datatype: Datatype::Uint64, form }
}

pub fn atomic_operations_commit_too<P: Provider>(bed: &Bed<P>) {
    let target = Memory::zeroed(64);
    let (one, before) = (Memory::from(1_u64.to_ne_bytes().to_vec()), Memory::zeroed(8));
    let world = bed.world(2);
    let region = expose_persistent(&world.nodes[1], &[target.piece()], 0);
    let segments = [segment(&region, 8, 8)];
    for round in 0..4_u64 {
        let add =
            Atomic { operands: one.all(), segments: &segments, ..Atomic::new(sum(Form::Base)) };
        world.nodes[0].post_atomic(1, &Atomic { flags: COMMIT, ..add }).unwrap();
        world.sent(0).good();
        let fetch = Atomic { call: sum(Form::Fetch), results: before.all(), flags: COMMIT, ..add };
        world.nodes[0].post_atomic(1, &fetch).unwrap();
        world.sent(0).good();
        assert_eq!(before.bytes(), (2 * round + 1).to_ne_bytes());
    }
    assert_eq!(&target.bytes()[8..16], 8_u64.to_ne_bytes());
}

/// Persistent memory is memory: other operations on it, before and behind, keep their order.
pub fn who_does_not_commit_is_as_ever<P: Provider>(bed: &Bed<P>) {
    const LENGTH: usize = 70_000;
    let (target, into) = (Memory::zeroed(LENGTH), Memory::zeroed(LENGTH));
    let world = bed.world(2);
    let region = expose_persistent(&world.nodes[1], &[target.piece()], 0);
    let segments = [segment(&region, 0, LENGTH)];
    for round in 0..20 {
        let texts = [0, 1, 2].map(|nth| Memory::from(pattern(3 * round + nth, LENGTH)));
        for (nth, text) in texts.iter().enumerate() {
            let flags = if nth == 1 { COMMIT } else { Flags::empty() };
            let write = Rma { pieces: text.all(), segments: &segments, flags, ..Rma::default() };
            world.post(|| world.nodes[0].post_write(1, &write));
        }
        let read = Rma { pieces: into.all(), segments: &segments, ..Rma::default() };
        world.post(|| world.nodes[0].post_read(1, &read));
        (0..4).for_each(|_| drop(world.sent(0).good()));
        same(&into.bytes(), &texts[2].bytes(), "the last write");
    }
    world.nothing_more();
}

/// Nothing is promised that cannot be kept: an error, once what was written has arrived.
pub fn volatile_memory_commits_nothing<P: Provider>(bed: &Bed<P>) {
    let (memory, ones) = (Memory::zeroed(300), Memory::from(vec![1; 300]));
    let world = bed.world(2);
    let region = expose(&world.nodes[1], &memory, BOTH, 0);
    let segments = [segment(&region, 0, 300)];
    let write = Rma { pieces: ones.all(), segments: &segments, flags: COMMIT, ..Rma::default() };
    world.nodes[0].post_write(1, &Rma { data: Some(3), ..write }).unwrap();
    let refused = world.sent(0).bad(Errno::OPNOTSUPP);
    assert!(refused.reason.contains("persistent"), "{}", refused.reason);
    let word = [segment(&region, 0, 8)];
    let one = Memory::from(1_u64.to_ne_bytes().to_vec());
    let add = Atomic { operands: one.all(), segments: &word, ..Atomic::new(sum(Form::Base)) };
    world.nodes[0].post_atomic(1, &Atomic { flags: COMMIT, ..add }).unwrap();
    world.sent(0).bad(Errno::OPNOTSUPP);
    // Nobody there hears of it, and the endpoint goes on.
    world.nodes[0].post_write(1, &Rma { flags: Flags::empty(), ..write }).unwrap();
    world.sent(0).good();
    world.nothing_more();
}

/// "Applies to fi_writemsg" (fi_rma(3)).
pub fn only_what_changes_memory_commits<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(8);
    let world = bed.world(2);
    let region = expose_persistent(&world.nodes[1], &[memory.piece()], 0);
    let segments = [segment(&region, 0, 8)];
    let read = Rma { pieces: memory.all(), segments: &segments, flags: COMMIT, ..Rma::default() };
    let refused = world.nodes[0].post_read(1, &read).unwrap_err();
    assert!(matches!(refused, PostError::BadFlags { .. }), "{refused}");
    let send = Send { pieces: memory.all(), flags: COMMIT, ..Send::default() };
    let refused = world.nodes[0].post_send(1, &send).unwrap_err();
    assert!(matches!(refused, PostError::BadFlags { .. }), "{refused}");
    let receive = Receive { flags: COMMIT, ..Receive::default() };
    let refused = world.nodes[0].post_receive(&receive).unwrap_err();
    assert!(matches!(refused, PostError::BadFlags { .. }), "{refused}");
    world.nothing_more();
}

fn committing<P: Provider>(bed: &Bed<P>) -> World<P> {
    let endpoint = EndpointOptions { transmit_flags: COMMIT, ..EndpointOptions::default() };
    bed.world_with(2, &Options { endpoint, ..Options::default() })
}

/// Among the default flags the level is that of writes; sends and reads are as without.
pub fn by_default_everything_commits_that_can<P: Provider>(bed: &Bed<P>) {
    let (lasting, passing) = (Memory::zeroed(16), Memory::zeroed(16));
    let world = committing(bed);
    let (node, endpoint) = (&world.nodes[1], &world.nodes[0].endpoint);
    let persistent = expose_persistent(node, &[lasting.piece()], 1);
    let volatile = expose(node, &passing, BOTH, 2);
    endpoint.write(vec![5; 8], 1, persistent.base(), persistent.key(), 1).unwrap();
    world.sent(0).good();
    endpoint.write(vec![5; 8], 1, volatile.base(), volatile.key(), 2).unwrap();
    world.sent(0).bad(Errno::OPNOTSUPP);
    endpoint.inject_write(&[5; 8], 1, persistent.base(), persistent.key()).unwrap();
    endpoint.inject_write(&[5; 8], 1, volatile.base(), volatile.key()).unwrap();
    world.sent(0).bad(Errno::OPNOTSUPP);
    endpoint.read(vec![0; 8], 1, volatile.base(), volatile.key(), 3).unwrap();
    assert_eq!(world.sent(0).good().returned, Some(vec![5; 8]));
    node.receive(8, None, 4);
    endpoint.send(vec![6; 8], 1, 4).unwrap();
    world.sent(0).good();
    same(&world.received(1).good().returned.unwrap(), &[6; 8], "a message");
    let all = Pieces::One(lasting.piece());
    let flags = endpoint.default_send_flags();
    world.post(|| world.nodes[0].post_send(1, &Send { pieces: all, flags, ..Send::default() }));
    node.receive(16, None, 5);
    world.sent(0).good();
    world.received(1).good();
    world.nothing_more();
}

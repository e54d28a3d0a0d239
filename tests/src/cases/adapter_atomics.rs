//! Atomic operations where they are declared to be for adapters alone. Reference: fi_atomic(3).

use kestrel_core::{
    endpoint::PostError,
    error::{Errno, HasErrno},
    flags::Flags,
    info::MemoryRegionMode,
    memory::Pieces,
    one_sided::RemoteSegment,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
};

use super::atomic;
use crate::{
    bed::{Bed, Memory, World},
    one_sided::{Atomic, BOTH, expose, options, segment},
};

const SUM: AtomicCall =
    AtomicCall { operation: AtomicOperation::Sum, datatype: Datatype::Uint64, form: Form::Fetch };

fn word(value: u64) -> Memory {
    Memory::from(value.to_ne_bytes().to_vec())
}

fn value(memory: &Memory) -> u64 {
    u64::from_ne_bytes(memory.bytes()[..8].try_into().unwrap())
}

fn post<P: Provider>(
    world: &World<P>,
    call: AtomicCall,
    [operand, compare, result]: [&Memory; 3],
    segments: &[RemoteSegment],
) -> Result<(), PostError> {
    let (operands, compare, results) = (operand.all(), compare.all(), result.all());
    let atomic = Atomic { operands, compare, results, segments, ..Atomic::new(call) };
    world.nodes[0].post_atomic(1, &atomic)
}

pub fn every_call_of_8_bytes_is_played<P: Provider>(bed: &Bed<P>) {
    assert!(bed.provider.adapter_atomics(), "the adapter plays");
    atomic::every_call_does_what_it_says(bed);
}

pub fn sums_add_up<P: Provider>(bed: &Bed<P>) {
    atomic::sums_of_many_add_up(bed);
}

pub fn each_sees_what_those_before_it_left<P: Provider>(bed: &Bed<P>) {
    atomic::play_in_order(bed, 8);
}

pub fn what_is_refused_is_refused_as_ever<P: Provider>(bed: &Bed<P>) {
    atomic::what_is_not_supported_is_refused(bed);
}

/// Several elements and those of other lengths are refused when they are posted; what only the
/// target knows it says: that a word is not aligned, or lies in memory that no adapter changes.
pub fn what_no_adapter_does_is_not_offered<P: Provider>(bed: &Bed<P>) {
    let (memory, a, b, c) = (Memory::zeroed(64), word(1), word(2), word(3));
    let world = bed.world_with(2, &options(MemoryRegionMode::ALLOCATED));
    let region = expose(&world.nodes[1], &memory, BOTH, 3);
    let written = expose(&world.nodes[1], &memory, Flags::REMOTE_WRITE, 4);
    let errno = |call, segments: &[RemoteSegment]| {
        post(&world, call, [&a, &b, &c], segments).unwrap_err().errno()
    };
    for datatype in [Datatype::Int8, Datatype::Uint32, Datatype::Float, Datatype::Int128] {
        let call = AtomicCall { datatype, ..SUM };
        let segments = [segment(&region, 0, datatype.size())];
        assert_eq!(errno(call, &segments), Errno::OPNOTSUPP, "{call:?}");
        assert_eq!(world.nodes[0].domain.atomic_count_max(call), None);
    }
    assert_eq!(errno(SUM, &[segment(&region, 0, 16)]), Errno::MSGSIZE);
    assert_eq!(world.nodes[0].domain.atomic_count_max(SUM), Some(1));
    let base = AtomicCall { form: Form::Base, ..SUM };
    let none = Memory::zeroed(0);
    for (segment, errno) in [
        (segment(&region, 4, 8), Errno::INVAL),
        (segment(&written, 0, 8), Errno::OPNOTSUPP),
        (segment(&region, 0, 8), Errno(0)),
        (RemoteSegment { key: 9, ..segment(&region, 0, 8) }, Errno::KEYREJECTED),
    ] {
        post(&world, base, [&a, &none, &none], &[segment]).unwrap();
        let done = world.sent(0);
        assert_eq!(done.errno, (errno != Errno(0)).then_some(errno), "{segment:?}: {done:?}");
    }
    assert_eq!(value(&memory), 1);
    world.nothing_more();
}

pub fn a_word_may_come_in_pieces<P: Provider>(bed: &Bed<P>) {
    let (memory, operand, result) = (word(40), word(2), Memory::zeroed(8));
    let world = bed.world(2);
    let region = expose(&world.nodes[1], &memory, BOTH, 0);
    let (pieces, into) = (operand.cut(&[3, 0, 5]), result.cut(&[1, 7]));
    let segments = [segment(&region, 0, 8)];
    let (operands, results) = (Pieces::Many(&pieces), Pieces::Many(&into));
    let atomic = Atomic { operands, results, segments: &segments, ..Atomic::new(SUM) };
    world.nodes[0].post_atomic(1, &atomic).unwrap();
    world.sent(0).good();
    assert_eq!((value(&result), value(&memory)), (40, 42));
}

/// Three multiply a word and add to another, so that swaps are often in vain: what each fetches is
/// what another one left.
pub fn swaps_of_many_lose_nothing<P: Provider>(bed: &Bed<P>) {
    const EACH: u64 = 40;
    let call = |operation, datatype| AtomicCall { operation, datatype, form: Form::Fetch };
    let product = call(AtomicOperation::Prod, Datatype::Uint64);
    let sum = call(AtomicOperation::Sum, Datatype::Double);
    let (three, half) = (word(3), word(0.5_f64.to_bits()));
    let memory = Memory::from([1_u64.to_ne_bytes(), 0_u64.to_ne_bytes()].concat());
    let results: Vec<Memory> = (0..6 * EACH).map(|_| Memory::zeroed(8)).collect();
    let world = bed.world(4);
    let region = expose(&world.nodes[3], &memory, BOTH, 0);
    for round in 0..EACH as usize {
        for node in 0..3 {
            for (nth, (call, operand)) in [(product, &three), (sum, &half)].iter().enumerate() {
                let segments = [segment(&region, 8 * nth, 8)];
                let results = results[6 * round + 2 * node + nth].all();
                let operands = operand.all();
                let atomic =
                    Atomic { operands, results, segments: &segments, ..Atomic::new(*call) };
                world.post(|| world.nodes[node].post_atomic(3, &atomic));
            }
        }
    }
    for node in 0..3 {
        (0..2 * EACH).for_each(|_| drop(world.sent(node).good()));
    }
    let all = |nth| -> Vec<u64> { results[nth..].iter().step_by(2).map(value).collect() };
    let power = |exponent: u64| (0..exponent).fold(1_u64, |product, _| product.wrapping_mul(3));
    let expected = [power(3 * EACH).to_ne_bytes(), (1.5 * EACH as f64).to_ne_bytes()].concat();
    assert_eq!(memory.bytes(), expected);
    let (mut products, mut sums) = (all(0), all(1));
    let mut left: Vec<u64> = (0..3 * EACH).map(power).collect();
    [&mut products, &mut left].into_iter().for_each(|values| values.sort_unstable());
    assert_eq!(products, left);
    sums.sort_unstable();
    let left: Vec<u64> = (0..3 * EACH).map(|nth| (0.5 * nth as f64).to_bits()).collect();
    assert_eq!(sums, left);
}

/// Atomics and messages by turns: who has a message finds done what was before it.
pub fn a_message_follows_the_atomics_before_it<P: Provider>(bed: &Bed<P>) {
    let (memory, one, none) = (word(0), word(1), Memory::zeroed(0));
    let world = bed.world(2);
    let region = expose(&world.nodes[1], &memory, BOTH, 0);
    let sum = AtomicCall { form: Form::Base, ..SUM };
    // It may take several steps.
    let most = AtomicCall { operation: AtomicOperation::Max, ..sum };
    let change = |call, operand: &Memory| {
        post(&world, call, [operand, &none, &none], &[segment(&region, 0, 8)]).unwrap();
    };
    for before in (0..60).step_by(3) {
        let two_more = word(before + 2);
        change(sum, &one);
        change(most, &two_more);
        world.nodes[0].send(vec![7; 8], 1, None, before);
        change(sum, &one);
        world.nodes[1].receive(8, None, before);
        world.received(1).good();
        let found = value(&memory);
        assert!((before + 2..=before + 3).contains(&found), "{found} after {before}");
        (0..4).for_each(|_| drop(world.sent(0).good()));
    }
    assert_eq!(value(&memory), 60);
}

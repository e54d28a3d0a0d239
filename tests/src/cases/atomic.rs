//! Atomic operations. Reference: fi_atomic(3).

use std::{collections::VecDeque, iter};

use kestrel_core::{
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    memory_region::MemoryRegion,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
    transport::Provider,
};

use crate::{
    arithmetic,
    bed::{Bed, Memory, World, same},
    one_sided::{Atomic, BOTH, Rma, expose, expose_ranges, options, segment},
    random::Random,
    scale::{leaves_in_time, scale, scaled, unspoilt},
};

/// Every call that exists.
fn calls() -> Vec<AtomicCall> {
    let mut calls = Vec::new();
    for &operation in AtomicOperation::ALL {
        for &datatype in Datatype::ALL {
            for &form in Form::ALL {
                calls.push(AtomicCall { operation, datatype, form });
            }
        }
    }
    calls.retain(|call| call.is_supported());
    calls
}

/// Those that the world's endpoints take, with the most elements that one may have.
fn calls_of<P: Provider>(world: &World<P>) -> Vec<(AtomicCall, usize)> {
    let most = |call| Some((call, world.nodes[0].domain.atomic_count_max(call)?));
    calls().into_iter().filter_map(most).collect()
}

/// Values of `datatype` among which some are equal, some 0, and some huge.
fn values(random: &mut Random, datatype: Datatype, count: usize) -> Vec<u8> {
    let width = match datatype {
        Datatype::FloatComplex => 4,
        Datatype::DoubleComplex => 8,
        Datatype::LongDoubleComplex => 16,
        other => other.size(),
    };
    let extended = matches!(datatype, Datatype::LongDouble | Datatype::LongDoubleComplex);
    let float = matches!(
        datatype,
        Datatype::Float | Datatype::Double | Datatype::FloatComplex | Datatype::DoubleComplex
    );
    let mut bytes = Vec::new();
    while bytes.len() < count * datatype.size() {
        let small = random.below(5) as i64 - 2;
        if extended {
            bytes.extend(arithmetic::extended(small as f64 * 1.25));
        } else if float && width == 4 {
            bytes.extend((small as f32 * 1.25).to_le_bytes());
        } else if float {
            bytes.extend((small as f64 * 1.25).to_le_bytes());
        } else if random.once_in(3) {
            bytes.extend((0..width).map(|_| random.number() as u8));
        } else {
            bytes.extend(&i128::from(small).to_le_bytes()[..width]);
        }
    }
    bytes
}

/// The elements after `call`, and whether it changes any.
fn all_after(call: AtomicCall, current: &[u8], operands: &[u8], compare: &[u8]) -> Vec<u8> {
    let size = call.datatype.size();
    let element = |bytes: &[u8], at: usize| {
        bytes.get(at..at + size).map_or_else(|| vec![0; size], <[u8]>::to_vec)
    };
    (0..current.len())
        .step_by(size)
        .flat_map(|at| {
            let [a, b, c] = [current, operands, compare].map(|bytes| element(bytes, at));
            arithmetic::after(call, &a, &b, &c)
        })
        .collect()
}

pub fn every_call_does_what_it_says<P: Provider>(bed: &Bed<P>) {
    let mut random = Random::new(1);
    // One world for all: on a real device a world takes longer than its operations.
    let world = bed.world(2);
    for (call, most) in calls_of(&world) {
        for count in [1, 3.min(most), scaled(40, most, most).min(most)] {
            let length = count * call.datatype.size();
            let before = values(&mut random, call.datatype, count);
            let [operands, compare] =
                [(); 2].map(|()| Memory::from(values(&mut random, call.datatype, count)));
            let (target, results) = (Memory::from(before.clone()), Memory::zeroed(length));
            let region = expose(&world.nodes[1], &target, BOTH, 0);
            let segments = [segment(&region, 0, length)];
            let atomic = Atomic {
                operands: operands.all(),
                compare: compare.all(),
                results: results.all(),
                segments: &segments,
                context: 4,
                ..Atomic::new(call)
            };
            let given = Atomic {
                operands: if call.operands(length) > 0 {
                    operands.all()
                } else {
                    Atomic::new(call).operands
                },
                ..atomic
            };
            world.nodes[0].post_atomic(1, &given).unwrap();
            let done = world.sent(0).good();
            let direction = if call.form == Form::Base { Flags::WRITE } else { Flags::READ };
            assert_eq!((done.context, done.flags), (4, Flags::ATOMIC | direction), "{call:?}");
            let expected = all_after(call, &before, &operands.bytes(), &compare.bytes());
            same(&target.bytes(), &expected, &format!("{call:?} of {count}"));
            if call.form != Form::Base {
                same(&results.bytes(), &before, &format!("{call:?}: the values from before"));
            }
        }
    }
}

/// Who closes has sent what was fetched, also to a peer that it had never to answer before.
pub fn who_closes_has_sent_what_was_fetched<P: Provider>(bed: &Bed<P>) {
    let (operation, datatype) = (AtomicOperation::Sum, Datatype::Uint64);
    let call = AtomicCall { operation, datatype, form: Form::Fetch };
    unspoilt(|| {
        let (target, operands) = (Memory::from(vec![1; 8]), Memory::from(vec![2; 8]));
        let results = Memory::zeroed(8);
        let mut world = bed.world(2);
        let region = expose(&world.nodes[1], &target, BOTH, 0);
        let (operands, results_at) = (operands.all(), results.all());
        let segments = &[segment(&region, 0, 8)];
        let atomic = Atomic { operands, results: results_at, segments, ..Atomic::new(call) };
        world.nodes[0].post_atomic(1, &atomic).unwrap();
        world.drive("the sum", || target.bytes() == [3; 8]);
        let closes = world.nodes.pop().expect("the target");
        if !leaves_in_time(|| closes.endpoint.close()) {
            return false;
        }
        world.sent(0).good();
        same(&results.bytes(), &[1; 8], "what was fetched");
        true
    });
}

pub fn elements_lie_anywhere<P: Provider>(bed: &Bed<P>) {
    let sum = |datatype, form| AtomicCall { operation: AtomicOperation::Sum, datatype, form };
    for (datatype, start) in [(Datatype::Int64, 0), (Datatype::Int32, 3), (Datatype::Int128, 8)] {
        let call = sum(datatype, Form::Fetch);
        let (size, count) = (datatype.size(), 12);
        let length = size * count;
        let mut random = Random::new(5);
        let before = values(&mut random, datatype, count + 1);
        let target = Memory::from(before.clone());
        let operands = Memory::from(values(&mut random, datatype, count));
        let results = Memory::zeroed(length);
        let world = bed.world(2);
        // Two ranges, of which each has whole elements, and segments in another order.
        let ranges = target.cut(&[start + 5 * size, 7 * size]);
        let ranges = [ranges[0].part(start, usize::MAX), ranges[1]];
        let region = expose_ranges(&world.nodes[1], &ranges, BOTH, 0).unwrap();
        let segments = [segment(&region, 4 * size, 8 * size), segment(&region, 0, 4 * size)];
        let pieces = operands.cut(&[3, 0, length - 3]);
        let into = results.cut(&[length - 9, 9]);
        let atomic = Atomic {
            operands: Pieces::Many(&pieces),
            results: Pieces::Many(&into),
            segments: &segments,
            ..Atomic::new(call)
        };
        world.nodes[0].post_atomic(1, &atomic).unwrap();
        world.sent(0).good();
        let (first, rest) = before[start..start + length].split_at(4 * size);
        let from = [rest, first].concat();
        same(&results.bytes(), &from, "the values from before, in the order of the segments");
        let sums = all_after(call, &from, &operands.bytes(), &[]);
        let (rest, first) = sums.split_at(8 * size);
        same(&target.bytes()[start..start + length], &[first, rest].concat(), "the sums");
        world.nothing_more();
    }
}

pub fn sums_of_many_add_up<P: Provider>(bed: &Bed<P>) {
    const EACH: u64 = 300;
    let sum = AtomicCall {
        operation: AtomicOperation::Sum,
        datatype: Datatype::Uint64,
        form: Form::Fetch,
    };
    let base = AtomicCall { form: Form::Base, ..sum };
    let (target, one) = (Memory::zeroed(8), Memory::from(1_u64.to_le_bytes().to_vec()));
    let results: Vec<Memory> = (0..3 * EACH).map(|_| Memory::zeroed(8)).collect();
    let world = bed.world(4);
    let region = expose(&world.nodes[3], &target, BOTH, 0);
    let segments = [segment(&region, 0, 8)];
    let atomic = Atomic { operands: one.all(), segments: &segments, ..Atomic::new(sum) };
    for round in 0..EACH as usize {
        for node in 0..3 {
            let into = results[3 * round + node].all();
            world.post(|| world.nodes[node].post_atomic(3, &Atomic { results: into, ..atomic }));
            let inject = Atomic { call: base, flags: Flags::INJECT, ..atomic };
            world.post(|| world.nodes[node].post_atomic(3, &inject));
        }
    }
    for node in 0..3 {
        for _ in 0..2 * EACH {
            world.sent(node).good();
        }
    }
    assert_eq!(target.bytes(), (6 * EACH).to_le_bytes());
    let mut seen: Vec<Vec<u8>> = results.iter().map(Memory::bytes).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), results.len(), "each fetched another value");
}

pub fn what_is_not_supported_is_refused<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::zeroed(8192);
    let world = bed.world_with(2, &options(kestrel_core::info::MemoryRegionMode::ALLOCATED));
    let node = &world.nodes[0];
    let region = expose(&world.nodes[1], &memory, BOTH, 3);
    let read_only = expose(&world.nodes[1], &memory, Flags::REMOTE_READ, 4);
    let call = |operation, datatype, form| AtomicCall { operation, datatype, form };
    let sum = call(AtomicOperation::Sum, Datatype::Int64, Form::Base);
    let segments = [segment(&region, 0, 8)];
    let eight = || Pieces::One(memory.piece().part(0, 8));
    let atomic = Atomic {
        operands: eight(),
        compare: eight(),
        results: eight(),
        segments: &segments,
        ..Atomic::new(sum)
    };
    let errno = |atomic: Atomic<'_>| node.post_atomic(1, &atomic).unwrap_err().errno();
    for bad in [
        call(AtomicOperation::Bor, Datatype::Double, Form::Base),
        call(AtomicOperation::Min, Datatype::FloatComplex, Form::Fetch),
        call(AtomicOperation::Read, Datatype::Int64, Form::Base),
        call(AtomicOperation::Cswap, Datatype::Int64, Form::Fetch),
        call(AtomicOperation::Sum, Datatype::Int64, Form::Compare),
        call(AtomicOperation::Mswap, Datatype::Float, Form::Compare),
    ] {
        assert_eq!(errno(Atomic { call: bad, ..atomic }), Errno::OPNOTSUPP, "{bad:?}");
    }
    let too_many = [segment(&region, 0, 4104)];
    let operands = Pieces::One(memory.piece().part(0, 4104));
    assert_eq!(errno(Atomic { operands, segments: &too_many, ..atomic }), Errno::MSGSIZE);
    let broken = [segment(&region, 0, 7), segment(&region, 7, 1)];
    assert_eq!(errno(Atomic { segments: &broken, ..atomic }), Errno::INVAL);
    let short = Pieces::One(memory.piece().part(0, 7));
    assert_eq!(errno(Atomic { operands: short, ..atomic }), Errno::INVAL);
    assert_eq!(errno(Atomic { flags: Flags::REMOTE_CQ_DATA, ..atomic }), Errno::BADFLAGS);
    // The target refuses.
    let mut wrong_key = segments;
    wrong_key[0].key = 5;
    for (segments, errno) in [
        (wrong_key, Errno::KEYREJECTED),
        ([segment(&read_only, 0, 8)], Errno::ACCES),
        ([segment(&region, 8185, 8)], Errno::INVAL),
    ] {
        for form in [Form::Base, Form::Fetch] {
            let call = AtomicCall { form, ..sum };
            node.post_atomic(1, &Atomic { call, segments: &segments, ..atomic }).unwrap();
            assert!(world.sent(0).bad(errno).flags.contains(Flags::ATOMIC));
        }
    }
    // Reading alone needs no leave to write.
    let call = call(AtomicOperation::Read, Datatype::Int64, Form::Fetch);
    let operands = Atomic::new(call).operands;
    let segments = [segment(&read_only, 0, 8)];
    node.post_atomic(1, &Atomic { call, operands, segments: &segments, ..atomic }).unwrap();
    world.sent(0).good();
    world.nothing_more();
}

const LENGTH: usize = 40_000;

/// What the operations of one slot use: operands, what is compared with, results.
type Slot = [Memory; 3];

/// An operation of a random kind and place.
struct Play {
    kind: u64,
    call: AtomicCall,
    offset: usize,
    length: usize,
}

impl Play {
    fn random(random: &mut Random, calls: &[(AtomicCall, usize)], unit: usize) -> Play {
        let (call, most) = calls[random.below(calls.len() as u64) as usize];
        let kind = random.below(4);
        let length = match (kind, random.below(4)) {
            (0 | 1, 0) => random.between(4_097, LENGTH as u64) as usize,
            (0 | 1, _) => random.between(1, 600) as usize,
            _ => random.between(1, most.min(200) as u64) as usize * call.datatype.size(),
        };
        let offset = random.below((LENGTH - length) as u64 + 1) as usize;
        let offset = if kind > 1 { offset / unit * unit } else { offset };
        Play { kind, call, offset, length }
    }

    /// Whether its outcome is nobody's to say.
    fn is_vague(&self, model: &[u8]) -> bool {
        let stored = &model[self.offset..self.offset + self.length];
        self.kind > 1 && arithmetic::is_vague(self.call, stored)
    }

    /// Posts it, and does the same to the model. Answers what has to come back.
    fn post<P: Provider>(
        &self,
        world: &World<P>,
        region: &MemoryRegion,
        slot: (usize, &Slot),
        model: &mut [u8],
    ) -> Option<Vec<u8>> {
        let Play { kind, call, offset, length } = *self;
        let (context, [operands, compare, results]) = slot;
        let context = context as u64;
        let segments = [segment(region, offset, length)];
        let all = |memory: &Memory| Pieces::One(memory.piece().part(0, length));
        let rma = Rma { pieces: all(operands), segments: &segments, context, ..Rma::default() };
        let node = &world.nodes[0];
        let stored = &mut model[offset..offset + length];
        let before = stored.to_vec();
        let comes_back = match kind {
            0 => {
                stored.copy_from_slice(&operands.bytes()[..length]);
                world.post(|| node.post_write(1, &rma));
                false
            }
            1 => {
                world.post(|| node.post_read(1, &Rma { pieces: all(results), ..rma }));
                true
            }
            _ => {
                let (first, second) = (operands.bytes(), compare.bytes());
                let next = all_after(call, &before, &first[..length], &second[..length]);
                stored.copy_from_slice(&next);
                let none = Atomic::new(call).operands;
                let atomic = Atomic {
                    operands: if call.operands(length) > 0 { all(operands) } else { none },
                    compare: all(compare),
                    results: all(results),
                    segments: &segments,
                    context,
                    ..Atomic::new(call)
                };
                world.post(|| node.post_atomic(1, &atomic));
                call.form != Form::Base
            }
        };
        comes_back.then_some(before)
    }
}

/// Random operations of one endpoint on one region: whatever is under way, each
/// sees what those before it left.
pub fn operations_play_in_order<P: Provider>(bed: &Bed<P>) {
    play_in_order(bed, 1);
}

/// The same with atomic operations at multiples of `unit` bytes.
pub(super) fn play_in_order<P: Provider>(bed: &Bed<P>, unit: usize) {
    let rounds = scaled(150, 500, 5_000);
    let mut random = Random::new(scale() as u64 + 3);
    let target = Memory::zeroed(LENGTH);
    let pool: Vec<Slot> = (0..64).map(|_| [(); 3].map(|()| Memory::zeroed(LENGTH))).collect();
    let world = bed.world(2);
    let mut calls = calls_of(&world);
    // Whatever bytes others left there are no extended numbers that the model knows.
    calls.retain(|(call, _)| {
        !matches!(call.datatype, Datatype::LongDouble | Datatype::LongDoubleComplex)
    });
    let region = expose(&world.nodes[1], &target, BOTH, 0);
    let mut model = vec![0; LENGTH];
    let mut under_way = VecDeque::new();
    let mut done = vec![true; pool.len()];
    for round in 0..rounds {
        let slot = round % pool.len();
        while !done[slot] {
            finish(&world, &pool, &mut under_way, &mut done);
        }
        let play = iter::repeat_with(|| Play::random(&mut random, &calls, unit))
            .find(|play| !play.is_vague(&model))
            .expect("most are not");
        let count = play.length.div_ceil(play.call.datatype.size());
        for memory in &pool[slot][..2] {
            let bytes = values(&mut random, play.call.datatype, count);
            memory.piece().fill(&bytes[..play.length]);
        }
        let before = play.post(&world, &region, (slot, &pool[slot]), &mut model);
        done[slot] = false;
        under_way.push_back((slot, before));
        world.poll(random.below(3) as usize);
    }
    while !under_way.is_empty() {
        finish(&world, &pool, &mut under_way, &mut done);
    }
    same(&target.bytes(), &model, "the region in the end");
    world.nothing_more();
}

type UnderWay = VecDeque<(usize, Option<Vec<u8>>)>;

/// Takes one completion, and compares what it brought.
fn finish<P: Provider>(
    world: &World<P>,
    pool: &[Slot],
    under_way: &mut UnderWay,
    done: &mut [bool],
) {
    let slot = world.sent(0).context() as usize;
    let place = under_way.iter().position(|(busy, _)| *busy == slot).expect("it is under way");
    let (_, before) = under_way.remove(place).expect("just found");
    if let Some(before) = before {
        same(&pool[slot][2].bytes()[..before.len()], &before, "what was there in its turn");
    }
    done[slot] = true;
}

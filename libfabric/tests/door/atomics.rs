//! Atomic operations on elements of 8 bytes, by the numbers that C has for them, through every call.
//! Reference: fi_atomic(3).

use std::{array, ffi::c_void, ptr::null_mut, time::Instant};

use kestrel_core::protocol::atomic::{
    AtomicCall,
    AtomicOperation::{self, *},
    Datatype::{self, *},
    Form,
};
use kestrel_tests::arithmetic;

use crate::{
    abi::{
        atomic::{AtomicAttr, Ioc, MsgAtomic, RmaIoc},
        fid::FidEp,
    },
    code, flag,
    host::host,
    kind,
    one_sided::{KEY, register},
    world::{PATIENCE, World, close},
};

/// As `enum fi_op` numbers them.
const OPERATIONS: [AtomicOperation; 19] = [
    Min, Max, Sum, Prod, Lor, Land, Bor, Band, Lxor, Bxor, Read, Write, Cswap, CswapNe, CswapLe,
    CswapLt, CswapGe, CswapGt, Mswap,
];
/// With their numbers in `enum fi_datatype`.
const TYPES: [(u32, Datatype); 4] = [(6, Int64), (7, Uint64), (9, Double), (10, FloatComplex)];

const COUNT: usize = 4;
/// With these no two operations of a form have the same outcome, nor have signed and unsigned ones.
const BEFORE: [i8; COUNT] = [-6, 6, 0, 2];
const OPERANDS: [i8; COUNT] = [5, 3, 4, 7];
const COMPARE: [i8; COUNT] = [-6, 5, 9, -3];

const NONE: *mut c_void = null_mut();

type Words = [u64; COUNT];

/// The bits of these numbers; complex ones have half of each for their imaginary part.
fn words(datatype: Datatype, numbers: [i8; COUNT]) -> Words {
    numbers.map(|number| match datatype {
        Double => f64::from(number).to_bits(),
        FloatComplex => {
            let parts = [1.0, 0.5].map(|part| (part * f32::from(number)).to_ne_bytes());
            u64::from_ne_bytes(parts.concat().try_into().unwrap())
        }
        _ => i64::from(number) as u64,
    })
}

fn forms_of(operation: AtomicOperation) -> &'static [Form] {
    match operation {
        Cswap | CswapNe | CswapLe | CswapLt | CswapGe | CswapGt | Mswap => &[Form::Compare],
        Read => &[Form::Fetch],
        _ => &[Form::Base, Form::Fetch],
    }
}

/// Floats have no bits to work on, and complex numbers no order.
fn makes_sense(operation: AtomicOperation, datatype: Datatype) -> bool {
    match operation {
        Bor | Band | Bxor | Mswap => matches!(datatype, Int64 | Uint64),
        Min | Max | CswapLe | CswapLt | CswapGe | CswapGt => datatype != FloatComplex,
        _ => true,
    }
}

/// How a call takes what it is given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Buffers,
    Lists,
    Message,
    Injected,
}

fn ways_of(form: Form) -> &'static [Way] {
    let all = &[Way::Buffers, Way::Lists, Way::Message, Way::Injected];
    if form == Form::Base { all } else { &all[..3] }
}

/// An operation, also by C's numbers, and its local sides.
struct Play {
    call: AtomicCall,
    datatype: u32,
    op: u32,
    operands: Words,
    compare: Words,
    results: Words,
}

/// One element, and the others.
fn in_two(start: *mut c_void) -> [Ioc; 2] {
    let rest = start.cast::<u64>().wrapping_add(1).cast();
    [Ioc { addr: start, count: 1 }, Ioc { addr: rest, count: COUNT - 1 }]
}

impl Play {
    fn of(operation: AtomicOperation, (number, datatype): (u32, Datatype), form: Form) -> Play {
        let op = OPERATIONS.iter().position(|each| *each == operation).unwrap() as u32;
        let [operands, compare] = [OPERANDS, COMPARE].map(|numbers| words(datatype, numbers));
        let call = AtomicCall { operation, datatype, form };
        Play { call, datatype: number, op, operands, compare, results: [0; COUNT] }
    }

    /// What it makes of these elements.
    fn after(&self, before: Words) -> Words {
        array::from_fn(|at| {
            let sides = [before[at], self.operands[at], self.compare[at]].map(u64::to_ne_bytes);
            let after = arithmetic::after(self.call, &sides[0], &sides[1], &sides[2]);
            u64::from_ne_bytes(after.try_into().unwrap())
        })
    }

    /// Posts it to peer 1. Of a read the operands "are ignored and may be NULL".
    fn post(&mut self, ep: *mut FidEp, way: Way) -> isize {
        let (datatype, op, descs) = (self.datatype, self.op, null_mut());
        let [a, c, r] = [&mut self.operands, &mut self.compare, &mut self.results]
            .map(|side| side.as_mut_ptr().cast::<c_void>());
        let ([from, with], mut into) = ([a, c].map(in_two), in_two(r));
        let (from, with, into) = (from.as_ptr(), with.as_ptr(), into.as_mut_ptr());
        let given = if self.call.operation == Read { 0 } else { 2 };
        let target = RmaIoc { addr: 0, count: COUNT, key: KEY };
        let message = MsgAtomic {
            msg_iov: from,
            desc: descs,
            iov_count: given,
            addr: 1,
            rma_iov: &raw const target,
            rma_iov_count: 1,
            datatype,
            op,
            context: NONE,
            data: 0,
        };
        // SAFETY: the endpoint is open; the sides live until the completion has come, and lists are
        // read during the call.
        unsafe {
            let ops = &*(*ep).atomic;
            match (self.call.form, way) {
                (Form::Base, Way::Buffers) => {
                    (ops.write)(ep, a, COUNT, NONE, 1, 0, KEY, datatype, op, NONE)
                }
                (Form::Base, Way::Lists) => {
                    (ops.writev)(ep, from, descs, given, 1, 0, KEY, datatype, op, NONE)
                }
                (Form::Base, Way::Message) => (ops.writemsg)(ep, &raw const message, 0),
                (_, Way::Injected) => (ops.inject)(ep, a, COUNT, 1, 0, KEY, datatype, op),
                (Form::Fetch, Way::Buffers) => {
                    (ops.readwrite)(ep, a, COUNT, NONE, r, NONE, 1, 0, KEY, datatype, op, NONE)
                }
                (Form::Fetch, Way::Lists) => (ops.readwritev)(
                    ep, from, descs, given, into, descs, 2, 1, 0, KEY, datatype, op, NONE,
                ),
                (Form::Fetch, Way::Message) => {
                    (ops.readwritemsg)(ep, &raw const message, into, descs, 2, 0)
                }
                (Form::Compare, Way::Buffers) => (ops.compwrite)(
                    ep, a, COUNT, NONE, c, NONE, r, NONE, 1, 0, KEY, datatype, op, NONE,
                ),
                (Form::Compare, Way::Lists) => (ops.compwritev)(
                    ep, from, descs, 2, with, descs, 2, into, descs, 2, 1, 0, KEY, datatype, op,
                    NONE,
                ),
                (Form::Compare, Way::Message) => {
                    (ops.compwritemsg)(ep, &raw const message, with, descs, 2, into, descs, 2, 0)
                }
            }
        }
    }

    /// Posts it, and waits until all that it does is done.
    fn play(&mut self, world: &World, memory: *mut Words, way: Way) {
        let (from, call) = (world.nodes[0], self.call);
        let before = words(call.datatype, BEFORE);
        let after = self.after(before);
        // SAFETY: the memory is there; between operations nobody else uses it.
        let found = || unsafe { memory.read_volatile() };
        // SAFETY: as above.
        unsafe { memory.write_volatile(before) };
        self.results = [0; COUNT];
        assert_eq!(self.post(from.ep, way), 0, "{call:?}, {way:?}");
        if way == Way::Injected {
            let start = Instant::now();
            while found() != after {
                world.nodes.iter().for_each(|node| node.progress());
                assert!(start.elapsed() < PATIENCE, "{call:?}: {:?}, not {after:?}", found());
            }
            return;
        }
        let direction = if call.form == Form::Base { flag::WRITE } else { flag::READ };
        assert_eq!(world.completion(from).flags, flag::ATOMIC | direction, "{call:?}, {way:?}");
        assert_eq!(found(), after, "{call:?}, {way:?}");
        let fetched = if call.form == Form::Base { [0; COUNT] } else { before };
        assert_eq!(self.results, fetched, "{call:?}, {way:?}: what was there before");
    }
}

#[test]
fn every_operation_on_8_bytes_does_what_it_says() {
    let Some(host) = host("every_operation_on_8_bytes_does_what_it_says") else { return };
    let world = World::new(host, 2);
    let mut memory = [0_u64; COUNT];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let place = &raw mut memory;
    for (datatype, operation) in
        TYPES.into_iter().flat_map(|datatype| OPERATIONS.map(|operation| (datatype, operation)))
    {
        for &form in forms_of(operation) {
            let mut play = Play::of(operation, datatype, form);
            for &way in ways_of(form) {
                if makes_sense(operation, datatype.1) {
                    play.play(&world, place, way);
                } else {
                    let refused = play.post(world.nodes[0].ep, way);
                    assert_eq!(refused, code::OPNOTSUPP as isize, "{:?}, {way:?}", play.call);
                }
            }
        }
    }
    assert_eq!(close(mr), 0);
}

/// "Needed operations not supported by the provider must be emulated by the application": so are those
/// without the capability or its direction, since posting one would be refused.
#[test]
fn what_cannot_be_posted_is_not_valid() {
    let Some(host) = host("what_cannot_be_posted_is_not_valid") else { return };
    let all = [(flag::MSG, [code::OPNOTSUPP; 3])].into_iter().chain([
        (flag::ATOMIC | flag::WRITE, [0, code::OPNOTSUPP, code::OPNOTSUPP]),
        (flag::ATOMIC | flag::READ, [code::OPNOTSUPP, 0, 0]),
        (flag::ATOMIC, [0; 3]),
        (flag::ATOMIC | flag::REMOTE_WRITE, [code::OPNOTSUPP; 3]),
    ]);
    for (caps, expected) in all {
        let world = World::empty(host, |hints| hints.caps = caps);
        let ep = world.open_ep();
        let (mut count, sum, cswap) = (0, 2, 12);
        // SAFETY: the endpoint is open.
        let found = unsafe {
            let ops = &*(*ep).atomic;
            [
                (ops.writevalid)(ep, 7, sum, &raw mut count),
                (ops.readwritevalid)(ep, 7, sum, &raw mut count),
                (ops.compwritevalid)(ep, 7, cswap, &raw mut count),
            ]
        };
        assert_eq!(found, expected, "{caps:#x}");
        assert_eq!(close(ep), 0);
    }
}

/// A domain for endpoints that have no atomic operations.
#[test]
fn datagrams_have_no_atomic_operation() {
    let Some(host) = host("datagrams_have_no_atomic_operation") else { return };
    for (kind, expected) in [(kind::RDM, 0), (kind::DGRAM, code::OPNOTSUPP)]
        .into_iter()
        .chain([(kind::SOCK_STREAM, code::OPNOTSUPP), (kind::SOCK_DGRAM, code::OPNOTSUPP)])
    {
        // SAFETY: hints have all attributes.
        let world = World::empty(host, |hints| unsafe { (*hints.ep_attr).kind = kind });
        let mut attr = AtomicAttr { count: 0, size: 0 };
        // SAFETY: the domain is open.
        let found = unsafe {
            let query = (*(*world.domain).ops).query_atomic;
            query(world.domain, 7, 2, &raw mut attr, 0)
        };
        assert_eq!(found, expected, "type {kind}");
    }
}

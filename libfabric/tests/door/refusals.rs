//! Every call with every kind of bad argument, as tables: what each has to answer.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::{null, null_mut},
};

use crate::{
    abi::{
        atomic::Ioc,
        attributes::{AvAttr, CntrAttr, CqAttr, EqAttr, Iovec, MrAttr, WaitAttr},
        fid::{Fid, FidAv, FidCntr, FidCq, FidEq, FidMr, FidPoll, FidWait},
    },
    calls::{self, Arguments, Call},
    code, flag,
    host::host,
    world::{World, bind, close, cq_attr},
};

const NONE: *mut c_void = null_mut();
const MSGSIZE: i32 = -90;
const WAIT_UNSPEC: u32 = 1;
const WAIT_SET: u32 = 2;

/// What was answered, and what should have been.
type Row = (&'static str, isize, i32);

fn check(rows: &[Row]) {
    let wrong: Vec<_> = rows.iter().filter(|(_, answer, code)| *answer != *code as isize).collect();
    assert!(wrong.is_empty(), "(call, answer, expected): {wrong:?}");
}

/// Calls each, and checks that it answers what `expected` says.
fn expect(ep: *mut crate::abi::fid::FidEp, calls: &[Call], expected: impl Fn(&Call) -> i32) {
    let rows: Vec<Row> =
        calls.iter().map(|call| (call.name, call.on(ep), expected(call))).collect();
    check(&rows);
}

fn zeroed<T>() -> T {
    // SAFETY: used for attributes and entries, of which zeroes are values.
    unsafe { std::mem::zeroed() }
}

#[test]
fn posts_without_buffers() {
    let Some(host) = host("posts_without_buffers") else { return };
    let world = World::new(host, 1);
    let ep = world.nodes[0].ep;
    let good = Arguments::good();
    let missing =
        Arguments { buffer: NONE, iov: null(), ioc: null_mut(), no_message: true, ..good };
    // A receive without a buffer has room for no bytes.
    let one_buffer = |call: &Call| call.receives() && !call.has_list();
    expect(ep, &calls::all(missing), |call| if one_buffer(call) { 0 } else { code::INVAL });
    // Messages that are there, with lists that are not.
    let calls = calls::all(Arguments { iov: null(), ioc: null_mut(), ..good });
    let with_lists: Vec<Call> = calls.into_iter().filter(Call::has_list).collect();
    expect(ep, &with_lists, |_| code::INVAL);
    let calls = calls::all(Arguments { remote: null(), remote_elements: null(), ..good });
    let remote: Vec<Call> = calls.into_iter().filter(Call::has_segments).collect();
    assert_eq!(remote.len(), 5);
    expect(ep, &remote, |_| code::INVAL);
}

#[test]
fn posts_that_are_too_large() {
    let Some(host) = host("posts_that_are_too_large") else { return };
    let world = World::new(host, 1);
    let ep = world.nodes[0].ep;
    let lists = Arguments { count: 9, ..Arguments::good() };
    let lists: Vec<Call> = calls::all(lists).into_iter().filter(Call::has_list).collect();
    expect(ep, &lists, |_| code::INVAL);
    let segments = Arguments { remote_count: 9, ..Arguments::good() };
    let segments: Vec<Call> = calls::all(segments).into_iter().filter(Call::has_segments).collect();
    expect(ep, &segments, |_| code::INVAL);
    let long = Arguments { length: usize::MAX, elements: usize::MAX, ..Arguments::good() };
    let long: Vec<Call> =
        calls::all(long).into_iter().filter(|call| !call.has_list() && !call.receives()).collect();
    expect(ep, &long, |_| MSGSIZE);
    // Lengths that only overflow when they are added up.
    let (mut iov, mut ioc) = (Vec::new(), Vec::new());
    let mut word = 0_u64;
    let buffer: *mut c_void = (&raw mut word).cast();
    for length in [8, usize::MAX] {
        iov.push(Iovec { base: buffer, len: length });
        ioc.push(Ioc { addr: buffer, count: length });
    }
    let (iov, ioc) = (iov.as_ptr(), ioc.as_mut_ptr());
    let lists = Arguments { iov, ioc, count: 2, ..Arguments::good() };
    let lists: Vec<Call> = calls::all(lists)
        .into_iter()
        .filter(|call| call.has_list() && !call.receives() && !call.has_segments())
        .collect();
    expect(ep, &lists, |_| MSGSIZE);
}

#[test]
fn posts_to_nobody_and_with_unknown_flags() {
    let Some(host) = host("posts_to_nobody_and_with_unknown_flags") else { return };
    let world = World::new(host, 1);
    let ep = world.nodes[0].ep;
    let calls = calls::all(Arguments { to: 99, ..Arguments::good() });
    let sends: Vec<Call> = calls.into_iter().filter(|call| !call.receives()).collect();
    expect(ep, &sends, |_| code::INVAL);
    for flags in [1 << 62, 1 << 40, flag::MSG, flag::TAGGED] {
        let calls = calls::all(Arguments { flags, ..Arguments::good() });
        let flagged: Vec<Call> = calls.into_iter().filter(Call::has_flags).collect();
        assert_eq!(flagged.len(), 9);
        expect(ep, &flagged, |_| code::BADFLAGS);
    }
}

#[test]
fn posts_on_a_disabled_and_on_a_closed_endpoint() {
    let Some(host) = host("posts_on_a_disabled_and_on_a_closed_endpoint") else { return };
    let _alone = crate::life_cycle::alone();
    let world = World::new(host, 0);
    let ep = world.open_ep();
    let calls = calls::all(Arguments::good());
    expect(ep, &calls, |_| code::OPBADSTATE);
    assert_eq!(close(ep), 0);
    expect(ep, &calls, |_| code::BADF);
    // SAFETY: a closed endpoint can still be read for a while.
    unsafe {
        let (ops, cm) = (&*(*ep).ops, &*(*ep).cm);
        let mut length = 8_usize;
        let (fid, length) = (ep.cast::<Fid>(), &raw mut length);
        check(&[
            ("cancel", (ops.cancel)(fid, NONE), code::BADF),
            ("getopt", (ops.getopt)(fid, 0, 0, NONE, length) as isize, code::BADF),
            ("setopt", (ops.setopt)(fid, 0, 0, NONE, 8) as isize, code::BADF),
            ("rx_size_left", (ops.rx_size_left)(ep), code::BADF),
            ("getname", (cm.getname)(fid, NONE, length) as isize, code::BADF),
            ("bind", bind(ep, world.av, 0) as isize, code::BADF),
        ]);
    }
}

#[test]
fn queues_and_counters_refuse() {
    let Some(host) = host("queues_and_counters_refuse") else { return };
    let world = World::new(host, 1);
    let (domain, cq) = (world.domain, world.nodes[0].cq);
    let open = |attr: CqAttr| world.open_cq(&mut { attr }).err().unwrap_or(0) as isize;
    let mut place = null_mut();
    let mut error = zeroed();
    let null = null();
    // SAFETY: the objects are open; what is wrong is what is tested.
    unsafe {
        let (ops, cntr_open) = (&*(*cq).ops, (*(*domain).ops).cntr_open);
        let mut counter =
            |attr: CntrAttr| cntr_open(domain, &mut { attr }, &raw mut place, NONE) as isize;
        check(&[
            ("read", (ops.read)(cq, NONE, 1), code::INVAL),
            ("read nothing", (ops.read)(cq, NONE, 0), code::AGAIN),
            ("readfrom", (ops.readfrom)(cq, NONE, 1, null_mut()), code::INVAL),
            ("sread", (ops.sread)(cq, NONE, 1, null, 0), code::INVAL),
            ("sreadfrom", (ops.sreadfrom)(cq, NONE, 1, null_mut(), null, 0), code::INVAL),
            ("readerr", (ops.readerr)(cq, &raw mut error, 1), code::BADFLAGS),
            ("cq without a set", open(CqAttr { wait_obj: WAIT_SET, ..cq_attr() }), code::INVAL),
            ("cq wait_obj", open(CqAttr { wait_obj: 77, ..cq_attr() }), code::NOSYS),
            (
                "cq wait_cond",
                open(CqAttr { wait_cond: 77, wait_obj: WAIT_UNSPEC, ..cq_attr() }),
                code::INVAL,
            ),
            ("cntr events", counter(CntrAttr { events: 5, ..zeroed() }), code::INVAL),
            ("cntr wait_obj", counter(CntrAttr { wait_obj: 77, ..zeroed() }), code::NOSYS),
            ("cntr set", counter(CntrAttr { wait_obj: WAIT_SET, ..zeroed() }), code::INVAL),
            ("cntr flags", counter(CntrAttr { flags: 1 << 40, ..zeroed() }), code::BADFLAGS),
        ]);
        let control = |command| ((*(*cq).fid.ops).control)(cq.cast(), command, NONE) as isize;
        check(&[
            ("GETWAIT", control(5), code::INVAL),
            ("GETWAITOBJ", control(16), code::INVAL),
            ("bind", bind(cq, world.av, 0) as isize, code::NOSYS),
        ]);
    }
    // A size that no memory has room for is a wish only.
    let cq = world.open_cq(&mut CqAttr { size: usize::MAX, ..cq_attr() }).unwrap();
    assert_eq!(close(cq), 0);
}

#[test]
fn vectors_refuse() {
    let Some(host) = host("vectors_refuse") else { return };
    let world = World::new(host, 1);
    let (domain, av) = (world.domain, world.av);
    let mut place = null_mut();
    let mut fi_addrs = [0_u64; 8];
    let (found, text) = (fi_addrs.as_mut_ptr(), |text: &'static std::ffi::CStr| text.as_ptr());
    // SAFETY: the objects are open; what is wrong is what is tested.
    unsafe {
        let (ops, av_open) = (&*(*av).ops, (*(*domain).ops).av_open);
        let mut open = |attr: AvAttr| av_open(domain, &mut { attr }, &raw mut place, NONE) as isize;
        let svc = |node: *const c_char, service: *const c_char, flags| {
            (ops.insertsvc)(av, node, service, found, flags, NONE) as isize
        };
        let sym = |node, nodes, service, services| {
            (ops.insertsym)(av, node, nodes, service, services, found, 0, NONE) as isize
        };
        let (node, service) = (text(c"127.0.0.1"), text(c"4711"));
        check(&[
            ("type", open(AvAttr { kind: 77, ..zeroed() }), code::INVAL),
            ("flags", open(AvAttr { flags: 1 << 40, ..zeroed() }), code::BADFLAGS),
            ("rx_ctx_bits", open(AvAttr { rx_ctx_bits: -1, ..zeroed() }), code::INVAL),
            ("rx_ctx_bits", open(AvAttr { rx_ctx_bits: 64, ..zeroed() }), code::INVAL),
            ("FI_READ, no name", open(AvAttr { flags: 1 << 8, ..zeroed() }), code::INVAL),
            (
                "FI_READ of nothing",
                open(AvAttr { name: text(c"nobody made this"), flags: 1 << 8, ..zeroed() }),
                code::NOENT,
            ),
            ("svc, neither", svc(null(), null(), 0), code::INVAL),
            ("svc, no service", svc(node, null(), 0), code::INVAL),
            ("svc, flags", svc(node, service, 1 << 40), code::BADFLAGS),
            ("svc, SYNC_ERR to nowhere", svc(node, service, 1 << 58), code::INVAL),
            ("sym, no service", sym(node, 1, null(), 1), code::INVAL),
            ("sym, nodes without services", sym(node, 2, null(), 0), 0),
            ("sym, nobody of many", sym(text(c"node0"), usize::MAX, service, 0), 0),
            ("sym, nothing at many", sym(node, usize::MAX, service, 0), 0),
            ("sym, many at nobody", sym(node, 0, service, usize::MAX), 0),
            ("sym, too many services", sym(node, 1, service, usize::MAX), code::INVAL),
            ("sym, too many nodes", sym(node, usize::MAX, service, 1), code::INVAL),
            ("sym, both", sym(node, usize::MAX, service, usize::MAX), code::INVAL),
            ("remove", (ops.remove)(av, null_mut(), 1, 0) as isize, code::INVAL),
            ("remove, flags", (ops.remove)(av, found, 0, 1) as isize, code::BADFLAGS),
            ("lookup", (ops.lookup)(av, 0, NONE, null_mut()) as isize, code::INVAL),
            ("set", (ops.av_set)(av, NONE, null_mut(), NONE) as isize, code::NOSYS),
            ("bind nothing", bind::<_, Fid>(av, null_mut(), 0) as isize, code::INVAL),
            ("bind a domain", bind(av, domain, 0) as isize, code::INVAL),
            ("bind, flags", bind(av, domain, 1) as isize, code::BADFLAGS),
        ]);
        // A name that nobody knows is an address that was not inserted.
        for (node, service) in [(text(c"not a host"), service), (node, text(c"99999999"))] {
            assert_eq!((svc(node, service, 0), *found), (0, u64::MAX));
        }
    }
}

#[test]
fn regions_refuse() {
    let Some(host) = host("regions_refuse") else { return };
    let world = World::new(host, 1);
    let domain: *mut Fid = world.domain.cast();
    let memory = [0_u8; 64];
    let iov = Iovec { base: memory.as_ptr().cast_mut().cast(), len: 64 };
    let (mut mr, mut counter): (*mut FidMr, *mut FidCntr) = (null_mut(), null_mut());
    let attr = |iov: &Iovec| MrAttr { mr_iov: iov, iov_count: 1, access: 1 << 13, ..zeroed() };
    // SAFETY: the objects are open, the memory stays; what is wrong is what is tested.
    unsafe {
        let ops = &*(*world.domain).mr;
        let mut with = |attr: MrAttr, flags| {
            (ops.regattr)(domain, &raw const attr, flags, &raw mut mr) as isize
        };
        let wrap = Iovec { base: iov.base, len: usize::MAX };
        let many = [iov; 99];
        check(&[
            ("beyond all memory", with(attr(&wrap), 0), code::INVAL),
            ("no list", with(MrAttr { mr_iov: null(), ..attr(&iov) }, 0), code::INVAL),
            ("too many", with(MrAttr { iov_count: 99, ..attr(&many[0]) }, 0), code::INVAL),
            ("key", with(MrAttr { auth_key_size: 1, ..attr(&iov) }, 0), code::INVAL),
            ("flags", with(attr(&iov), 1 << 40), code::BADFLAGS),
        ]);
        let status = (ops.regattr)(world.av.cast(), &attr(&iov), 0, &raw mut mr);
        assert_eq!(status, code::INVAL, "an address vector is no domain");
        assert_eq!((ops.regattr)(domain, &attr(&iov), 0, &raw mut mr), 0);
        let cntr_open = (*(*world.domain).ops).cntr_open;
        assert_eq!(cntr_open(world.domain, null_mut(), &raw mut counter, NONE), 0);
        let control = (*(*mr).fid.ops).control;
        check(&[
            ("bind nothing", bind::<_, Fid>(mr, null_mut(), 0) as isize, code::INVAL),
            ("bind a queue", bind(mr, world.nodes[0].cq, 0) as isize, code::INVAL),
            ("bind, no flags", bind(mr, counter, 0) as isize, code::BADFLAGS),
            ("bind, wrong flags", bind(mr, counter, flag::SEND) as isize, code::BADFLAGS),
            ("control", control(mr.cast(), 1234, NONE) as isize, code::NOSYS),
        ]);
    }
    assert_eq!(bind(mr, counter, flag::REMOTE_WRITE), 0);
    assert_eq!((close(counter), close(mr), close(counter)), (code::BUSY, 0, 0));
}

#[test]
fn sets_and_event_queues_refuse() {
    let Some(host) = host("sets_and_event_queues_refuse") else { return };
    let world = World::new(host, 1);
    let fabric = world.fabric;
    let (mut eq, mut set): (*mut FidEq, *mut FidWait) = (null_mut(), null_mut());
    let mut poll: *mut FidPoll = null_mut();
    // SAFETY: the objects are open; what is wrong is what is tested.
    unsafe {
        let (ops, poll_open) = (&*(*fabric).ops, (*(*world.domain).ops).poll_open);
        let mut attr = EqAttr { wait_obj: 77, ..zeroed() };
        assert_eq!((ops.eq_open)(fabric, &raw mut attr, &raw mut eq, NONE), code::NOSYS);
        attr.wait_obj = WAIT_SET;
        assert_eq!((ops.eq_open)(fabric, &raw mut attr, &raw mut eq, NONE), code::INVAL);
        assert_eq!((ops.eq_open)(fabric, null_mut(), &raw mut eq, NONE), 0);
        let mut attr = WaitAttr { wait_obj: WAIT_SET, flags: 0 };
        assert_eq!((ops.wait_open)(fabric, &raw mut attr, &raw mut set), code::INVAL);
        attr = WaitAttr { wait_obj: 3, flags: 1 };
        assert_eq!((ops.wait_open)(fabric, &raw mut attr, &raw mut set), code::BADFLAGS);
        assert_eq!((ops.trywait)(fabric, &mut eq.cast(), -1), code::INVAL);
        assert_eq!(poll_open(world.domain, NONE, &raw mut poll), 0);
        let (ops, sets) = (&*(*eq).ops, &*(*poll).ops);
        let (mut event, mut error) = (0_u32, zeroed());
        let (place, cq) = (&raw mut event, world.nodes[0].cq.cast());
        check(&[
            ("read, flags", (ops.read)(eq, place, NONE, 0, 1 << 40), code::BADFLAGS),
            ("readerr, flags", (ops.readerr)(eq, &raw mut error, 1 << 40), code::BADFLAGS),
            ("write to a queue for reading", (ops.write)(eq, 1, NONE, 0, 0), code::INVAL),
            ("write, flags", (ops.write)(eq, 1, NONE, 0, 1), code::BADFLAGS),
            ("write nothing", (ops.write)(eq, 1, NONE, 8, 0), code::INVAL),
            ("poll", (sets.poll)(poll, null_mut(), 1) as isize, code::INVAL),
            ("poll, count", (sets.poll)(poll, null_mut(), -1) as isize, code::INVAL),
            ("add nothing", (sets.poll_add)(poll, null_mut(), 0) as isize, code::INVAL),
            ("add, flags", (sets.poll_add)(poll, cq, 1) as isize, code::BADFLAGS),
            ("delete a stranger", (sets.poll_del)(poll, cq, 0) as isize, code::INVAL),
            ("delete, flags", (sets.poll_del)(poll, cq, 1) as isize, code::BADFLAGS),
        ]);
        // What is in a set cannot be closed.
        let other: *mut FidCq = world.open_cq(&mut cq_attr()).unwrap();
        assert_eq!((sets.poll_add)(poll, other.cast(), 0), 0);
        assert_eq!(close(other), code::BUSY);
        assert_eq!((close(poll), close(other), close(eq)), (0, 0, 0));
    }
}

#[test]
fn closed_objects_refuse_every_call() {
    let Some(host) = host("closed_objects_refuse_every_call") else { return };
    let _alone = crate::life_cycle::alone();
    let world = World::new(host, 0);
    let (mut av, mut eq): (*mut FidAv, *mut FidEq) = (null_mut(), null_mut());
    let (mut counter, mut poll): (*mut FidCntr, *mut FidPoll) = (null_mut(), null_mut());
    let mut set: *mut FidWait = null_mut();
    // SAFETY: closed objects can still be read for a while: that is what is tested.
    unsafe {
        let (domain, ops) = (world.domain, &*(*world.domain).ops);
        assert_eq!((ops.av_open)(domain, &mut zeroed(), &raw mut av, NONE), 0);
        assert_eq!((ops.cntr_open)(domain, null_mut(), &raw mut counter, NONE), 0);
        assert_eq!((ops.poll_open)(domain, NONE, &raw mut poll), 0);
        let ops = &*(*world.fabric).ops;
        assert_eq!((ops.eq_open)(world.fabric, null_mut(), &raw mut eq, NONE), 0);
        assert_eq!((ops.wait_open)(world.fabric, null_mut(), &raw mut set), 0);
        assert_eq!([close(av), close(counter), close(poll), close(eq), close(set)], [0; 5]);
        let (vectors, counters, events) = (&*(*av).ops, &*(*counter).ops, &*(*eq).ops);
        let mut event = 0;
        let twice = [close(av), close(counter), close(poll), close(eq), close(set)];
        assert_eq!(twice, [code::BADF; 5]);
        check(&[
            ("insert", (vectors.insert)(av, NONE, 0, null_mut(), 0, NONE) as isize, code::BADF),
            ("remove", (vectors.remove)(av, null_mut(), 0, 0) as isize, code::BADF),
            ("cntr_read", (counters.read)(counter) as isize, 0),
            ("cntr_add", (counters.add)(counter, 1) as isize, code::BADF),
            ("cntr_wait", (counters.wait)(counter, 1, -1) as isize, code::BADF),
            ("eq_read", (events.read)(eq, &raw mut event, NONE, 0, 0), code::BADF),
            ("eq_sread", (events.sread)(eq, &raw mut event, NONE, 0, -1, 0), code::BADF),
            ("wait", ((*(*set).ops).wait)(set, -1) as isize, code::BADF),
            ("poll", ((*(*poll).ops).poll)(poll, null_mut(), 0) as isize, code::BADF),
            (
                "trywait",
                {
                    let mut fid: *mut Fid = eq.cast();
                    (ops.trywait)(world.fabric, &raw mut fid, 1) as isize
                },
                code::INVAL,
            ),
        ]);
    }
    let ep = world.open_ep();
    let statuses: [c_int; 3] = [bind(ep, av, 0), bind(ep, counter, flag::SEND), bind(ep, eq, 0)];
    assert_eq!(statuses, [code::INVAL; 3]);
    assert_eq!(close(ep), 0);
}

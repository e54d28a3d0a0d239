//! Remote reads, writes and atomics, on registered memory.

use std::{ffi::c_void, ptr::null_mut};

use crate::{
    abi::{
        atomic::{AtomicAttr, Ioc},
        attributes::{Iovec, MrMapRaw, MrRawAttr},
        constants::command::{GET_RAW_MR, MAP_RAW_MR, UNMAP_KEY},
        fid::FidMr,
        message::{MsgRma, RmaIov},
    },
    code,
    counters::counts,
    flag,
    host::host,
    triggered::counter,
    world::{World, bind, close, cq_attr},
};

/// Of the region that `register` makes.
pub const KEY: u64 = 17;
/// FI_UINT64 and FI_ATOMIC_READ.
const UINT64: u32 = 7;
const READ: u32 = 10;

pub fn register(world: &World, memory: &mut [u64], access: u64) -> *mut FidMr {
    register_as(world, memory, access, KEY, 0)
}

pub fn register_as(
    world: &World,
    memory: &mut [u64],
    access: u64,
    key: u64,
    flags: u64,
) -> *mut FidMr {
    let mut mr = null_mut();
    // SAFETY: the memory outlives the region, as every test here closes it.
    unsafe {
        let reg = (*(*world.domain).mr).reg;
        let (start, length) = (memory.as_ptr().cast(), size_of_val(memory));
        let place = &raw mut mr;
        let domain = world.domain.cast();
        assert_eq!(reg(domain, start, length, access, 0, key, flags, place, null_mut()), 0);
    }
    mr
}

#[test]
fn a_peer_writes_and_reads_registered_memory() {
    let Some(host) = host("a_peer_writes_and_reads_registered_memory") else { return };
    let _alone = crate::life_cycle::alone();
    let world = World::new(host, 2);
    let from = world.nodes[0];
    let mut memory = vec![0_u64; 2000];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let (sent, mut back) = (vec![0xab_u64; 1500], vec![0_u64; 1500]);
    // SAFETY: buffers and region live until the completions have come. The application
    // said nothing of registration modes: offsets, and a key of its own.
    unsafe {
        let (ops, key, none) = (&*(*from.ep).rma, (*mr).key, null_mut::<c_void>());
        assert_eq!(key, 17);
        assert_eq!((ops.write)(from.ep, sent.as_ptr().cast(), 12_000, none, 1, 800, key, none), 0);
        assert_eq!(world.completion(from).flags, 1 << 2 | flag::WRITE);
        let place = back.as_mut_ptr().cast();
        assert_eq!((ops.read)(from.ep, place, 12_000, none, 1, 800, key, none), 0);
        assert_eq!(world.completion(from).flags, 1 << 2 | flag::READ);
        assert_eq!(back, sent);
        assert_eq!((memory[99], memory[100]), (0, 0xab));
        // Beyond the end: an error completion, and the endpoint goes on.
        assert_eq!((ops.write)(from.ep, sent.as_ptr().cast(), 8, none, 1, 16_000, key, none), 0);
        assert!(world.nodes[0].outcome(&world.nodes).is_err_and(|error| error.err > 0));
        assert_eq!((ops.read)(from.ep, place, 8, none, 1, 800, key, none), 0);
        world.completion(from);
    }
    assert_eq!(close(world.domain), code::BUSY);
    assert_eq!(close(mr), 0);
    assert_eq!(close(mr), code::BADF);
}

/// ADIOS2 registers what a rank has written, which may be nothing, and tells its peers of the key; LCI names families
/// of operations as access.
#[test]
fn a_region_may_be_empty_and_its_access_name_families() {
    let Some(host) = host("a_region_may_be_empty_and_its_access_name_families") else { return };
    let world = World::new(host, 2);
    let (from, mut word) = (world.nodes[0], 0_u64);
    // SAFETY: buffers and regions live until the completions have come.
    unsafe {
        let (ops, reg, none) = (&*(*from.ep).rma, (*(*world.domain).mr).reg, null_mut::<c_void>());
        let mut mr = null_mut();
        let access = flag::RMA | flag::MSG | flag::REMOTE_READ | flag::REMOTE_WRITE;
        let domain = world.domain.cast();
        assert_eq!(reg(domain, none, 0, access, 0, KEY, 0, &raw mut mr, none), 0);
        assert_eq!((*mr).key, KEY);
        let place = (&raw mut word).cast();
        assert_eq!((ops.read)(from.ep, place, 0, none, 1, 0, KEY, none), 0);
        assert_eq!(world.completion(from).flags, flag::RMA | flag::READ);
        assert_eq!((ops.read)(from.ep, place, 1, none, 1, 0, KEY, none), 0);
        assert!(from.outcome(&world.nodes).is_err_and(|error| error.err == -code::INVAL));
        assert_eq!(close(mr), 0);
    }
}

/// "desc: Descriptor associated with the local data buffer" (fi_rma(3)): ours is fi_mr_desc's, and no call
/// needs one. Buffers that do not lie in its region go as any others.
#[test]
fn operations_take_the_descriptors_of_their_buffers() {
    let Some(host) = host("operations_take_the_descriptors_of_their_buffers") else { return };
    let _alone = crate::life_cycle::alone();
    let world = World::new(host, 2);
    let from = world.nodes[0];
    let (mut memory, mut own) = (vec![0_u64; 2000], vec![0xab_u64; 2000]);
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let local = register_as(&world, &mut own, flag::READ | flag::WRITE, KEY + 1, 0);
    let mut other = vec![0xcd_u64; 2000];
    for start in [own.as_mut_ptr(), other.as_mut_ptr()] {
        // SAFETY: buffers and regions live until the completions have come.
        unsafe {
            let (ops, none, start) =
                (&*(*from.ep).rma, null_mut::<c_void>(), start.cast::<c_void>());
            let mut desc = (*local).mem_desc;
            assert!(!desc.is_null());
            let sent = *start.cast::<u64>();
            assert_eq!((ops.write)(from.ep, start, 16_000, desc, 1, 0, KEY, none), 0);
            world.completion(from);
            assert_eq!(memory, vec![sent; 2000]);
            memory.fill(sent + 1);
            let (iov, descs) = (Iovec { base: start, len: 16_000 }, &raw mut desc);
            assert_eq!((ops.readv)(from.ep, &raw const iov, descs, 1, 1, 0, KEY, none), 0);
            world.completion(from);
            assert_eq!(*start.cast::<u64>(), sent + 1);
            memory.fill(0);
            // There may be room for more.
            let target = RmaIov { addr: 0, len: 50_000, key: KEY };
            let msg = MsgRma {
                msg_iov: &raw const iov,
                desc: descs,
                iov_count: 1,
                addr: 1,
                rma_iov: &raw const target,
                rma_iov_count: 1,
                context: none,
                data: 0,
            };
            assert_eq!((ops.writemsg)(from.ep, &raw const msg, 1 << 24), 0);
            world.completion(from);
            assert_eq!(memory, vec![sent + 1; 2000]);
        }
    }
    assert_eq!((close(local), close(mr)), (0, 0));
}

#[test]
fn what_is_committed_is_in_persistent_memory() {
    let Some(host) = host("what_is_committed_is_in_persistent_memory") else { return };
    let world = World::new(host, 2);
    let from = world.nodes[0];
    let (mut lasting, mut passing, sent) = (vec![0_u64; 4], vec![0_u64; 4], 7_u64);
    let persistent = register_as(&world, &mut lasting, flag::REMOTE_WRITE, 17, flag::RMA_PMEM);
    let volatile = register_as(&world, &mut passing, flag::REMOTE_WRITE, 18, 0);
    let iov = Iovec { base: (&raw const sent).cast_mut().cast(), len: 8 };
    // SAFETY: buffers and regions live until the completions have come.
    unsafe {
        assert_eq!((*world.info).caps & flag::RMA_PMEM, flag::RMA_PMEM);
        let ops = &*(*from.ep).rma;
        let commit = |key, context: usize| {
            let target = RmaIov { addr: 8, len: 8, key };
            let msg = MsgRma {
                msg_iov: &raw const iov,
                desc: null_mut(),
                iov_count: 1,
                addr: 1,
                rma_iov: &raw const target,
                rma_iov_count: 1,
                context: context as *mut c_void,
                data: 0,
            };
            (ops.writemsg)(from.ep, &raw const msg, flag::COMMIT_COMPLETE)
        };
        assert_eq!(commit(17, 1), 0);
        world.completion(from);
        assert_eq!((&raw const lasting[1]).read_volatile(), 7);
        assert_eq!(commit(18, 2), 0);
        assert!(world.nodes[0].outcome(&world.nodes).is_err_and(|error| error.err > 0));
    }
    assert_eq!((close(persistent), close(volatile)), (0, 0));
}

/// A long write whose initiator does not poll stays half done; that is the initiator's
/// affair alone.
#[test]
fn a_target_waits_for_no_initiator() {
    let Some(host) = host("a_target_waits_for_no_initiator") else { return };
    const WORDS: usize = 2 << 20;
    let world = World::new(host, 3);
    let [from, to, other] = [world.nodes[0], world.nodes[1], world.nodes[2]];
    let mut memory = vec![0_u64; WORDS];
    let mr = register(&world, &mut memory, flag::REMOTE_WRITE);
    let (sent, none) = (vec![7_u64; WORDS], null_mut::<c_void>());
    let at = |word: usize| {
        // SAFETY: the memory is there; the peer writes whole words of 7.
        unsafe { memory.as_ptr().add(word).read_volatile() }
    };
    let start = std::time::Instant::now();
    // SAFETY: buffers and region live until all is over.
    unsafe {
        let write = (*(*from.ep).rma).write;
        assert_eq!(write(from.ep, sent.as_ptr().cast(), 8 * WORDS, none, 1, 0, 17, none), 0);
    }
    while at(0) == 0 {
        assert_eq!((from.read().err(), to.read().err()), (Some(code::AGAIN), Some(code::AGAIN)));
        assert!(start.elapsed() < crate::world::PATIENCE, "nothing was written");
    }
    // Now the initiator is elsewhere.
    for _ in 0..1000 {
        to.progress();
    }
    assert_eq!(at(WORDS - 1), 0, "the whole of it was under way at once");
    // SAFETY: there is no buffer.
    unsafe {
        assert_eq!(((*(*to.ep).msg).recv)(to.ep, none, 0, none, u64::MAX, none), 0);
        assert_eq!(((*(*other.ep).msg).send)(other.ep, none, 0, none, 1, none), 0);
    }
    while let Err(status) = to.read() {
        assert_eq!(status, code::AGAIN);
        other.progress();
        assert!(start.elapsed() < crate::world::PATIENCE, "another peer's message did not come");
    }
    assert_eq!(close(mr), 0);
    let left = (0..WORDS).map(at).filter(|&word| word == 0).count();
    assert!(world.nodes[0].outcome(&world.nodes).is_err_and(|error| error.err > 0));
    assert_eq!((0..WORDS).map(at).filter(|&word| word == 0).count(), left);
}

#[test]
fn a_peer_adds_and_compares() {
    let Some(host) = host("a_peer_adds_and_compares") else { return };
    const SUM: u32 = 2;
    const CSWAP: u32 = 12;
    let world = World::new(host, 2);
    let from = world.nodes[0];
    let mut memory = vec![40_u64];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let changes = counter(&world);
    // Of both, each operation counts once.
    assert_eq!(bind(mr, changes, flag::REMOTE_READ | flag::REMOTE_WRITE), 0);
    // SAFETY: as above.
    unsafe {
        let (ops, key, none) = (&*(*from.ep).atomic, (*mr).key, null_mut::<c_void>());
        let (two, mut before) = (2_u64, 0_u64);
        let (two, place) = ((&raw const two).cast(), (&raw mut before).cast());
        let status =
            (ops.readwrite)(from.ep, two, 1, none, place, none, 1, 0, key, UINT64, SUM, none);
        assert_eq!(status, 0);
        world.completion(from);
        assert_eq!((before, (&raw const memory[0]).read_volatile()), (40, 42));
        let (compare, swap) = (42_u64, 7_u64);
        let (compare, swap) = ((&raw const compare).cast(), (&raw const swap).cast());
        let status = (ops.compwrite)(
            from.ep, swap, 1, none, compare, none, place, none, 1, 0, key, UINT64, CSWAP, none,
        );
        assert_eq!(status, 0);
        world.completion(from);
        assert_eq!((before, (&raw const memory[0]).read_volatile()), (42, 7));
        // "whenever a remote RMA write or atomic operation modifies the memory region" (fi_mr(3)).
        assert_eq!(counts(changes), (2, 0));
        let mut count = 0;
        assert_eq!((ops.readwritevalid)(from.ep, UINT64, SUM, &raw mut count), 0);
        assert!(count >= 1);
        assert_eq!((ops.writevalid)(from.ep, 99, SUM, &raw mut count), code::OPNOTSUPP);
        let query = (*(*world.domain).ops).query_atomic;
        let mut attr = AtomicAttr { count: 0, size: 0 };
        assert_eq!(query(world.domain, UINT64, CSWAP, &raw mut attr, 1 << 59), 0);
        assert_eq!(attr.size, 8);
        assert_eq!(query(world.domain, UINT64, CSWAP, null_mut(), 1 << 59), code::INVAL);
        // "If the FI_TAGGED bit is set, the provider will indicate if it supports atomic operations to
        // tagged receive buffers" (fi_atomic(3)).
        for flags in [flag::TAGGED, flag::TAGGED | 1 << 59] {
            let (place, op) = (&raw mut attr, if flags == flag::TAGGED { SUM } else { CSWAP });
            assert_eq!(query(world.domain, UINT64, op, place, flags), code::OPNOTSUPP);
        }
        assert_eq!(query(world.domain, UINT64, SUM, &raw mut attr, 3 << 58), code::BADFLAGS);
    }
    assert_eq!((close(mr), close(changes)), (0, 0));
}

#[test]
fn a_key_is_given_once() {
    let Some(host) = host("a_key_is_given_once") else { return };
    let world = World::new(host, 0);
    let mut memory = vec![0_u64; 4];
    let mr = register(&world, &mut memory, flag::REMOTE_READ);
    let mut other = null_mut();
    // SAFETY: the memory outlives the region.
    unsafe {
        let reg = (*(*world.domain).mr).reg;
        let (start, none) = (memory.as_ptr().cast(), null_mut());
        const NOKEY: i32 = -266;
        let mut again = |access, offset, key, flags| {
            let place = &raw mut other;
            reg(world.domain.cast(), start, 32, access, offset, key, flags, place, none)
        };
        assert_eq!(again(flag::REMOTE_READ, 0, 17, 0), NOKEY);
        assert_eq!(again(flag::REMOTE_READ, 5, 18, 0), code::INVAL);
        assert_eq!(again(1 << 40, 0, 18, 0), code::INVAL);
        assert_eq!(again(flag::REMOTE_READ, 0, 18, 1 << 40), code::BADFLAGS);
    }
    assert_eq!(close(mr), 0);
}

/// "fine grained control over the transmit capabilities associated with an endpoint", and the same
/// of what it receives (fi_endpoint(3)).
#[test]
fn a_side_can_what_its_own_attributes_say() {
    let Some(host) = host("a_side_can_what_its_own_attributes_say") else { return };
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | flag::RMA;
        let messages = flag::MSG | flag::SEND;
        // SAFETY: hints have all attributes.
        unsafe {
            (*hints.tx_attr).caps = messages | flag::RMA | flag::READ | flag::WRITE;
            (*hints.rx_attr).caps = flag::TAGGED | flag::RECV | flag::RMA | flag::REMOTE_READ;
        }
    });
    let from = world.add_node(&mut cq_attr(), 0);
    world.add_node(&mut cq_attr(), 0);
    let mut memory = vec![0_u64; 4];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let other = world.open_ep();
    assert_eq!(bind(other, mr, 0), 0, "as fi_mr_bind: it changes nothing");
    let flagged = [bind(other, mr, flag::REMOTE_WRITE), bind(mr, other, flag::REMOTE_WRITE)];
    assert_eq!(flagged, [code::BADFLAGS; 2]);
    assert_eq!(close(other), code::BUSY, "but the order in which both are closed");
    let (mut word, none) = (7_u64, null_mut::<c_void>());
    // SAFETY: buffer and region live until the completions have come.
    unsafe {
        let (ops, place) = (&*(*from.ep).rma, (&raw mut word).cast::<c_void>());
        assert_eq!((ops.write)(from.ep, place, 8, none, 1, 0, 17, none), 0);
        assert!(world.nodes[0].outcome(&world.nodes).is_err_and(|error| error.err > 0));
        assert_eq!((ops.read)(from.ep, place, 8, none, 1, 0, 17, none), 0);
        world.completion(from);
        assert_eq!((&raw const word).read_volatile(), 0, "read, and not written before");
        // Messages are what it sends, and tagged ones what it receives.
        let (ops, tagged) = (&*(*from.ep).msg, &*(*from.ep).tagged);
        let refused = code::OPNOTSUPP as isize;
        assert_eq!((tagged.inject)(from.ep, place, 8, 1, 5), refused);
        assert_eq!((ops.recv)(from.ep, place, 8, none, u64::MAX, none), refused);
        assert_eq!((tagged.recv)(from.ep, place, 8, none, u64::MAX, 5, 0, none), 0);
        assert_eq!((ops.inject)(from.ep, place, 8, 1), 0);
    }
    assert_eq!((close(mr), close(other)), (0, 0));
}

/// "Operations that complete in error that are not associated with valid operational context will
/// use the endpoint context in any error reporting structures." Those that succeed have none.
#[test]
fn what_has_no_context_fails_with_the_endpoints() {
    let Some(host) = host("what_has_no_context_fails_with_the_endpoints") else { return };
    let mut world = World::new(host, 1);
    let (here, none) = ((&raw const world).cast_mut().cast::<c_void>(), null_mut::<c_void>());
    let mut ep = null_mut();
    // SAFETY: the domain is open, the info libfabric's.
    let status = unsafe {
        let open = (*(*world.domain).ops).endpoint;
        open(world.domain, world.info, &raw mut ep, here)
    };
    assert_eq!(status, 0);
    let (node, other) = (world.add(ep, &mut cq_attr(), 0), world.nodes[0]);
    let (mut room, word) = ([0_u8; 4], [7_u8; 8]);
    for (length, context) in [(4, none), (8, here)] {
        // SAFETY: the endpoints are open; the room and the word live until both have completed.
        unsafe {
            let recv = (*(*ep).msg).recv;
            assert_eq!(recv(ep, room.as_mut_ptr().cast(), 4, none, u64::MAX, none), 0);
        }
        assert_eq!(other.send(&word[..length], 1, 0), 0);
        let told = node.outcome(&world.nodes);
        let told = told.map_or_else(|error| error.op_context, |entry| entry.op_context);
        assert_eq!(told, context, "{length} bytes into 4");
        world.completion(other);
    }
    // SAFETY: as above; no region has this key.
    unsafe {
        let (rma, word) = (&*(*ep).rma, word.as_ptr().cast());
        assert_eq!((rma.write)(ep, word, 8, none, 0, 0, 99, none), 0);
        assert_eq!((rma.inject)(ep, word, 8, 0, 0, 99), 0);
    }
    for _ in 0..2 {
        assert_eq!(node.outcome(&world.nodes).err().unwrap().op_context, here);
    }
}

/// fi_mr(3): "The raw key support functions are usable with all registered memory regions".
#[test]
fn keys_have_a_raw_form() {
    let Some(host) = host("keys_have_a_raw_form") else { return };
    let world = World::new(host, 0);
    let mut memory = [0_u64; 4];
    let mr = register(&world, &mut memory, flag::REMOTE_READ);
    let (mut base, mut bytes, mut size, mut key) = (7_u64, [0_u8; 16], 4_usize, 0_u64);
    let mut raw = MrRawAttr {
        flags: 0,
        base_addr: &raw mut base,
        raw_key: bytes.as_mut_ptr(),
        key_size: &raw mut size,
    };
    // SAFETY: the objects are open; what the commands take is there.
    unsafe {
        let of_region = (*(*mr).fid.ops).control;
        let told = of_region(mr.cast(), GET_RAW_MR, (&raw mut raw).cast());
        assert_eq!((told, size), (code::TOOSMALL, 8), "and how much it takes");
        assert_eq!(of_region(mr.cast(), GET_RAW_MR, (&raw mut raw).cast()), 0);
        assert_eq!(size, 8);
        raw.flags = 1;
        assert_eq!(of_region(mr.cast(), GET_RAW_MR, (&raw mut raw).cast()), code::BADFLAGS);
        let (raw_key, place) = (bytes.as_mut_ptr(), &raw mut key);
        let mut map = MrMapRaw { flags: 0, base_addr: base, raw_key, key_size: 8, key: place };
        let of_domain = (*(*world.domain).fid.ops).control;
        assert_eq!(of_domain(world.domain.cast(), MAP_RAW_MR, (&raw mut map).cast()), 0);
        assert_eq!(key, (*mr).key);
        assert_eq!(of_domain(world.domain.cast(), UNMAP_KEY, (&raw mut key).cast()), 0);
        map.key_size = 4;
        let refused = of_domain(world.domain.cast(), MAP_RAW_MR, (&raw mut map).cast());
        assert_eq!(refused, code::INVAL);
    }
    assert_eq!(close(mr), 0);
}

/// Of FI_ATOMIC_READ "the source buffer operand … is ignored and may be NULL" (fi_atomic(3)), and so
/// is a list of such.
#[test]
fn a_read_has_no_operands() {
    let Some(host) = host("a_read_has_no_operands") else { return };
    let world = World::new(host, 1);
    let (node, none) = (world.nodes[0], null_mut::<c_void>());
    let (mut memory, mut found) = ([42_u64; 1], 0_u64);
    let mr = register(&world, &mut memory, flag::REMOTE_READ);
    let mut results = Ioc { addr: (&raw mut found).cast(), count: 1 };
    // SAFETY: the endpoint is open, and the result outlives the operation.
    unsafe {
        let fetch = (*(*node.ep).atomic).readwritev;
        let (nowhere, place) = (std::ptr::null(), &raw mut results);
        let posted = fetch(
            node.ep,
            nowhere,
            null_mut(),
            1,
            place,
            null_mut(),
            1,
            0,
            0,
            KEY,
            UINT64,
            READ,
            none,
        );
        assert_eq!(posted, 0);
    }
    world.completion(node);
    assert_eq!(found, 42);
    assert_eq!(close(mr), 0);
}

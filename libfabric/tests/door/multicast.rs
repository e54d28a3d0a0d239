//! Multicast groups. Reference: fi_cm(3), `fi_join`; fi_endpoint(3), FI_MULTICAST.

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
};

use crate::{
    abi::{
        fid::{FidEp, FidEq, FidMc},
        info::Info,
        message::Msg,
    },
    code,
    datagrams::{asks_for_datagrams, datagrams},
    flag,
    host::host,
    vectors::{next_event, open_eq},
    world::{self, World, bind, cq_attr},
};

const MULTICAST: u64 = 1 << 5;

pub fn asks_for_groups(hints: &mut Info) {
    asks_for_datagrams(hints);
    hints.caps = flag::MSG | MULTICAST;
}

/// 239.x.y.`number` of AF_INET: a group of this process.
fn group(number: u8) -> [u8; 16] {
    let [low, high, ..] = std::process::id().to_le_bytes();
    let mut group = [0_u8; 16];
    group[0] = 2;
    group[4..8].copy_from_slice(&[239, high, low, number]);
    group
}

/// Adds endpoints that are bound to one event queue, which closes after them.
fn add_members(world: &mut World, count: usize) -> *mut FidEq {
    let eq = open_eq(world);
    world.queue = eq;
    for _ in 0..count {
        let ep = world.open_ep();
        assert_eq!(bind(ep, eq, 0), 0);
        world.add(ep, &mut cq_attr(), 0);
    }
    eq
}

fn join(ep: *mut FidEp, group: &[u8; 16], flags: u64) -> Result<*mut FidMc, c_int> {
    let (mut mc, context) = (null_mut(), 0x77 as *mut c_void);
    // SAFETY: the endpoint is open; the group is an address of its format.
    match unsafe { ((*(*ep).cm).join)(ep, group.as_ptr().cast(), flags, &raw mut mc, context) } {
        0 => Ok(mc),
        status => {
            assert!(mc.is_null());
            Err(status)
        }
    }
}

/// The next event, which has to say that `mc` is joined.
fn is_joined(eq: *mut FidEq, mc: *mut FidMc) {
    const JOIN_COMPLETE: u32 = 6;
    let (event, entry) = next_event(eq).unwrap();
    assert_eq!((event, entry.fid), (JOIN_COMPLETE, mc.cast()));
    assert_eq!(entry.context as usize, 0x77);
}

/// fi_cm(3), `fi_join`, and `fi_mc_addr` with FI_MULTICAST.
#[test]
fn a_group_is_joined_sent_to_and_left() {
    let Some(host) = host("a_group_is_joined_sent_to_and_left") else { return };
    let mut world = World::empty(host, asks_for_groups);
    // SAFETY: libfabric's info, with all attributes.
    unsafe {
        assert_eq!((*world.info).caps & MULTICAST, MULTICAST);
        assert_eq!((*(*world.info).tx_attr).caps & MULTICAST, MULTICAST);
    }
    let eq = add_members(&mut world, 3);
    let joined: Vec<_> =
        (0..3).map(|node| join(world.nodes[node].ep, &group(1), 0).unwrap()).collect();
    joined.iter().for_each(|&mc| is_joined(eq, mc));
    let words = [[1_u8; 8], [2_u8; 8], [3_u8; 8]];
    let mut received = [[0_u8; 8]; 3];
    for (from, word) in words.iter().enumerate() {
        let others: Vec<_> = (0..3).filter(|&to| to != from).collect();
        // SAFETY: all buffers live until their completions have come.
        unsafe {
            for &to in &others {
                let (ep, place) = (world.nodes[to].ep, received[to].as_mut_ptr().cast::<c_void>());
                let recv = (*(*ep).msg).recv;
                assert_eq!(recv(ep, place, 8, null_mut(), u64::MAX, place), 0);
            }
            let (ep, mc_addr) = (world.nodes[from].ep, (*joined[from]).fi_addr);
            let iov = libc::iovec { iov_base: word.as_ptr().cast_mut().cast(), iov_len: 8 };
            let msg = Msg {
                msg_iov: (&raw const iov).cast(),
                iov_count: 1,
                addr: mc_addr,
                ..std::mem::zeroed()
            };
            let sendmsg = (*(*ep).msg).sendmsg;
            assert_eq!(sendmsg(ep, &raw const msg, MULTICAST), 0);
        }
        assert_eq!(world.completion(world.nodes[from]).flags, flag::MSG | flag::SEND);
        for to in others {
            assert_eq!(world.completion(world.nodes[to]).len, 8);
            assert_eq!(received[to], *word);
        }
    }
    // Who has joined keeps its endpoint open, and leaves by closing the group.
    assert_eq!(world::close(world.nodes[0].ep), code::BUSY);
    joined.into_iter().for_each(|mc| assert_eq!(world::close(mc), 0));
    let again = join(world.nodes[0].ep, &group(1), flag::SEND).unwrap();
    is_joined(eq, again);
    assert_eq!(world::close(again), 0);
}

/// "The endpoint must be configured for transmit operations to use this flag, or an error will
/// occur", and for receive operations likewise; without a flag it joins as far as it can.
#[test]
fn a_group_is_joined_as_far_as_an_endpoint_goes() {
    let Some(host) = host("a_group_is_joined_as_far_as_an_endpoint_goes") else { return };
    for (direction, other) in [(flag::SEND, flag::RECV), (flag::RECV, flag::SEND)] {
        let mut world = World::empty(host, |hints| {
            asks_for_groups(hints);
            hints.caps |= direction;
        });
        let eq = add_members(&mut world, 1);
        let ep = world.nodes[0].ep;
        for flags in [other, direction | other] {
            assert_eq!(join(ep, &group(3), flags), Err(code::BADFLAGS));
        }
        for flags in [0, direction] {
            let mc = join(ep, &group(3), flags).unwrap();
            is_joined(eq, mc);
            assert_eq!(world::close(mc), 0);
        }
    }
}

#[test]
fn what_is_no_group_is_not_joined() {
    let Some(host) = host("what_is_no_group_is_not_joined") else { return };
    let mut world = World::empty(host, asks_for_groups);
    add_members(&mut world, 1);
    let ep = world.nodes[0].ep;
    let mut one = group(2);
    one[4..8].copy_from_slice(&[127, 0, 0, 1]);
    assert_eq!(join(ep, &one, 0), Err(code::INVAL));
    assert_eq!(join(ep, &group(2), 1 << 50), Err(code::BADFLAGS));
    // SAFETY: the endpoint is open; null is what is tried.
    unsafe {
        let (join, mut mc, group) = ((*(*ep).cm).join, null_mut(), group(2));
        let place = group.as_ptr().cast();
        assert_eq!(join(ep, place, 0, null_mut(), null_mut()), code::INVAL);
        assert_eq!(join(ep, null(), 0, &raw mut mc, null_mut()), code::INVAL);
    }
    let mc = join(ep, &group(2), 0).unwrap();
    assert_eq!(join(ep, &group(2), 0), Err(code::INVAL), "a second time");
    // An event queue is needed, and the capability, which has to be asked for where hints say any.
    let without = datagrams(host, 1);
    assert_eq!(join(without.nodes[0].ep, &group(2), 0), Err(code::NOEQ));
    let mut without = World::empty(host, |hints| {
        asks_for_datagrams(hints);
        hints.caps = flag::MSG;
    });
    add_members(&mut without, 1);
    assert_eq!(join(without.nodes[0].ep, &group(2), 0), Err(code::OPNOTSUPP));
    assert_eq!(world::close(mc), 0);
}

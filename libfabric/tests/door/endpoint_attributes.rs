//! What the attributes of endpoints say, and what endpoints make of them. Reference: fi_endpoint(3),
//! "ENDPOINT ATTRIBUTES", "TRANSMIT CONTEXT ATTRIBUTES", "RECEIVE CONTEXT ATTRIBUTES".

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
};

use crate::{
    abi::{fid::FidEp, info::Info},
    code,
    contexts::{NAMED_RX_CTX, open_sep, rx_context, scalable_world_that, tx_context},
    flag,
    host::host,
    kind,
    one_sided::register,
    tagged::Message,
    world::{Node, World, auth_key, bind, close, cq_attr, enable, info, info_of},
};

const NONE: *mut c_void = null_mut();

/// "A value of -1 guarantees ordering for any data size."
#[test]
fn any_size_is_ordered() {
    let Some(host) = host("any_size_is_ordered") else { return };
    for (kind, expected) in
        [(kind::RDM, usize::MAX), (kind::MSG, usize::MAX), (kind::DGRAM, 0), (kind::SOCK_STREAM, 0)]
    {
        // SAFETY: hints and answers have all attributes.
        unsafe {
            let found = info(host, |hints| (*hints.ep_attr).kind = kind).unwrap();
            let ep = &*(*found).ep_attr;
            let told = [ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size];
            assert_eq!(told, [expected; 3], "type {kind}");
            (host.freeinfo)(found);
        }
    }
}

/// "Provider specific protocols will be indicated by having the upper bit of the protocol value set
/// to one."
#[test]
fn a_protocol_has_to_match() {
    let Some(host) = host("a_protocol_has_to_match") else { return };
    let asked = |protocol: u32, version: u32| {
        // SAFETY: hints and answers have all attributes.
        unsafe {
            let found = info(host, |hints| {
                let ep = &mut *hints.ep_attr;
                (ep.protocol, ep.protocol_version) = (protocol, version);
            })?;
            let told = ((*(*found).ep_attr).protocol, (*(*found).ep_attr).protocol_version);
            (host.freeinfo)(found);
            Ok::<_, c_int>(told)
        }
    };
    let (protocol, version) = asked(0, 0).unwrap();
    assert_eq!(protocol >> 31, 1);
    assert!(version > 0);
    // "Providers that support different versions of the same protocol should inter-operate": this
    // one speaks a single version, and promises no other.
    assert_eq!(asked(protocol, version), Ok((protocol, version)));
    for other in [version - 1, version + 1] {
        assert_eq!(asked(protocol, other), Err(code::NODATA));
    }
    const RXM: u32 = 9;
    assert_eq!(asked(RXM, 0), Err(code::NODATA));
}

/// "If the caps field is 0 on input to fi_getinfo(3), the applicable capability bits from the fi_info
/// structure will be used." "On return from fi_getinfo(3), the mode will be set only to those
/// constraints specific to transmit operations": there are none.
#[test]
fn what_a_side_leaves_open_is_the_infos() {
    let Some(host) = host("what_a_side_leaves_open_is_the_infos") else { return };
    const CONTEXT: u64 = 1 << 59;
    // SAFETY: answers have all attributes.
    unsafe {
        let found = info(host, |hints| {
            (hints.caps, hints.mode) = (flag::MSG | flag::RMA, CONTEXT);
        })
        .unwrap();
        let (tx, rx) = (&*(*found).tx_attr, &*(*found).rx_attr);
        let both = flag::MSG | flag::RMA;
        let transmits = both | flag::SEND | flag::READ | flag::WRITE;
        let receives = both | flag::RECV | flag::REMOTE_READ | flag::REMOTE_WRITE;
        assert_eq!(tx.caps & (transmits | receives), transmits);
        assert_eq!(rx.caps & (transmits | receives), receives);
        assert_eq!([tx.caps, rx.caps].map(|caps| caps & !(*found).caps), [0, 0]);
        assert_eq!([(*found).mode, tx.mode, rx.mode], [0; 3]);
        (host.freeinfo)(found);
    }
}

/// A size of 0 leaves it to us; what is larger than can be is refused.
#[test]
fn sizes_have_a_default_and_a_maximum() {
    let Some(host) = host("sizes_have_a_default_and_a_maximum") else { return };
    const MOST: usize = 65_536;
    let asked = |size: usize| {
        // SAFETY: hints and answers have all attributes.
        unsafe {
            let found = info(host, |hints| {
                ((*hints.tx_attr).size, (*hints.rx_attr).size) = (size, size);
            })?;
            let told = [(*(*found).tx_attr).size, (*(*found).rx_attr).size];
            (host.freeinfo)(found);
            Ok::<_, c_int>(told)
        }
    };
    for (size, told) in [(0, 1024), (1, 1), (MOST, MOST)] {
        assert_eq!(asked(size), Ok([told; 2]), "{size}");
    }
    assert_eq!(asked(MOST + 1), Err(code::NODATA));
}

/// "A provider must return a tag format that supports the requested number of fields, with each field
/// being at least the size requested"; "a series of bits set to 0" in front would be bits "which are
/// ignored by the provider", of which there are none.
#[test]
fn tags_have_the_fields_that_are_asked_for() {
    let Some(host) = host("tags_have_the_fields_that_are_asked_for") else { return };
    const TOP: u64 = 1 << 63;
    let open = |asked| {
        // SAFETY: hints have all attributes.
        World::empty(host, |hints| unsafe { (*hints.ep_attr).mem_tag_format = asked })
    };
    for (asked, told) in [(0x30ff, 0xffff_ffff_ffff_f0ff), (TOP, TOP), (1, u64::MAX)] {
        // SAFETY: answers have all attributes.
        let answer = unsafe { (*(*open(asked).info).ep_attr).mem_tag_format };
        assert_eq!(answer, told, "{asked:#x}");
    }
    let mut world = open(0x30ff);
    let [from, to] = [(); 2].map(|()| world.add_node(&mut cq_attr(), 0));
    let mut rooms = [[0_u8; 8]; 3];
    let [masked, other, top] = &mut rooms;
    let masked = Message { ignore: 0x0f00, ..Message::of(masked, 0x3a55) };
    for receive in [masked, Message::of(other, 0x3055), Message::of(top, TOP | 0x3055)] {
        assert_eq!(receive.receive(to, 0), 0);
    }
    for (tag, byte) in [(TOP | 0x3055, 1), (0x3055, 2), (0x3055, 3)] {
        let mut sent = [byte; 8];
        Message::of(&mut sent, tag).send(from, 0);
        assert_eq!(world.completion(to).tag, tag);
        world.completion(from);
    }
    assert_eq!(rooms.map(|room| room[0]), [2, 3, 1]);
}

/// "It is a hint to the provider of the total available space that may be needed to buffer messages
/// that are received for which there is no matching receive operation. The provider may adjust or
/// ignore this value."
#[test]
fn what_is_buffered_is_a_hint() {
    let Some(host) = host("what_is_buffered_is_a_hint") else { return };
    // SAFETY: hints have all attributes.
    let mut world = World::empty(host, |hints| unsafe { (*hints.rx_attr).total_buffered_recv = 1 });
    // SAFETY: answers have all attributes.
    assert_eq!(unsafe { (*(*world.info).rx_attr).total_buffered_recv }, 1);
    let [from, to] = [(); 2].map(|()| world.add_node(&mut cq_attr(), 0));
    let (sent, mut room) = (vec![7_u8; 5_000], vec![0_u8; 5_000]);
    // SAFETY: the endpoints are open, and the buffers outlive them.
    unsafe {
        let send = (*(*from.ep).msg).send;
        assert_eq!(send(from.ep, sent.as_ptr().cast(), sent.len(), NONE, 1, NONE), 0);
        (0..100).for_each(|_| [from, to].into_iter().for_each(Node::progress));
        let recv = (*(*to.ep).msg).recv;
        assert_eq!(recv(to.ep, room.as_mut_ptr().cast(), room.len(), NONE, u64::MAX, NONE), 0);
    }
    assert_eq!(world.completion(to).len, sent.len());
    assert_eq!(room, sent);
}

/// Options of version 2.0: FI_OPT_MAX_MSG_SIZE, FI_OPT_MAX_TAGGED_SIZE, FI_OPT_MAX_RMA_SIZE,
/// FI_OPT_INJECT_MSG_SIZE, FI_OPT_INJECT_TAGGED_SIZE, FI_OPT_INJECT_RMA_SIZE and
/// FI_OPT_INJECT_ATOMIC_SIZE tell what the attributes say, FI_OPT_MAX_ATOMIC_SIZE the most that is
/// atomic. "Providers that don't support this option will return -FI_ENOPROTOOPT": none is set.
#[test]
fn options_tell_the_sizes_of_the_attributes() {
    let Some(host) = host("options_tell_the_sizes_of_the_attributes") else { return };
    // SAFETY: hints have all attributes.
    let world = World::empty(host, |hints| unsafe { (*hints.tx_attr).inject_size = 100 });
    const ATOMIC: usize = 4096;
    let ep = world.open_ep();
    // SAFETY: the endpoint is open, and the place is that long.
    unsafe {
        let message = (*(*world.info).ep_attr).max_msg_size;
        let told = [(12, message), (13, message), (14, message), (15, ATOMIC)];
        let injected = [(16, 100), (17, 100), (18, 100), (19, 100)];
        for (option, told) in told.into_iter().chain(injected) {
            let (mut value, mut length) = (0_usize, 8);
            let place = (&raw mut value).cast::<c_void>();
            let (ops, fid) = (&*(*ep).ops, ep.cast());
            assert_eq!((ops.getopt)(fid, 0, option, place, &raw mut length), 0);
            assert_eq!((value, length), (told, 8), "option {option}");
            assert_eq!((ops.setopt)(fid, 0, option, place, 8), code::NOPROTOOPT);
        }
    }
    assert_eq!(close(ep), 0);
}

/// What an endpoint cannot do has no size.
#[test]
fn options_tell_no_size_of_what_an_endpoint_cannot_do() {
    let Some(host) = host("options_tell_no_size_of_what_an_endpoint_cannot_do") else { return };
    // Which options, from 12 on, are not 0: what messages, tagged messages, RMA and atomics may have
    // at most, and then what may be injected.
    // SAFETY: hints have all attributes.
    let sides = |hints: &mut Info, transmit, receive| unsafe {
        ((*hints.tx_attr).caps, (*hints.rx_attr).caps) = (transmit, receive);
    };
    type Change<'a> = &'a dyn Fn(&mut Info);
    let cases: [(Change<'_>, [i32; 8]); 6] = [
        (&|hints| hints.caps = flag::MSG, [1, 0, 0, 0, 1, 0, 0, 0]),
        (&|hints| hints.caps = flag::TAGGED | flag::RECV, [0, 1, 0, 0, 0, 0, 0, 0]),
        (&|hints| hints.caps = flag::RMA | flag::READ, [0, 0, 1, 0, 0, 0, 0, 0]),
        (&|hints| hints.caps = flag::RMA | flag::ATOMIC | flag::REMOTE_WRITE, [0; 8]),
        (
            &|hints| {
                hints.caps = flag::MSG | flag::TAGGED;
                sides(hints, flag::TAGGED | flag::SEND, flag::MSG | flag::RECV);
            },
            [1, 1, 0, 0, 0, 1, 0, 0],
        ),
        (
            &|hints| {
                hints.caps = flag::RMA | flag::ATOMIC;
                sides(hints, flag::ATOMIC | flag::WRITE, flag::RMA | flag::REMOTE_WRITE);
            },
            [0, 0, 0, 1, 0, 0, 0, 1],
        ),
    ];
    for (change, expected) in cases {
        let world = World::empty(host, change);
        let ep = world.open_ep();
        sizes_are(ep, expected);
        assert_eq!(close(ep), 0);
    }
    let world = scalable_world_that(host, flag::MSG | flag::RMA);
    let sep = open_sep(&world).expect("a scalable endpoint");
    let transmit = tx_context(sep, 0, null_mut()).unwrap();
    let receive = rx_context(sep, 0, null_mut()).unwrap();
    sizes_are(transmit, [1, 0, 1, 0, 1, 0, 1, 0]);
    sizes_are(receive, [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((close(transmit), close(receive), close(sep)), (0, 0, 0));
}

#[track_caller]
fn sizes_are(ep: *mut FidEp, expected: [i32; 8]) {
    let size = |option| {
        let (mut value, mut length) = (usize::MAX, 8);
        // SAFETY: the endpoint is open, and the place is that long.
        unsafe {
            let place = (&raw mut value).cast::<c_void>();
            assert_eq!(((*(*ep).ops).getopt)(ep.cast(), 0, option, place, &raw mut length), 0);
        }
        i32::from(value > 0)
    };
    assert_eq!(std::array::from_fn(|nth| size(12 + nth as c_int)), expected);
}

/// FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE, FI_OPT_TX_SIZE, FI_OPT_RX_SIZE, and those of devices:
/// FI_OPT_FI_HMEM_P2P, FI_OPT_XPU_TRIGGER, FI_OPT_CUDA_API_PERMITTED.
#[test]
fn options_of_what_there_is_not_are_refused() {
    let Some(host) = host("options_of_what_there_is_not_are_refused") else { return };
    let world = World::empty(host, |_| {});
    let ep = world.open_ep();
    for option in (4..=10).chain([20, 99, -1]) {
        let (mut value, mut length) = (0_usize, 8);
        // SAFETY: the endpoint is open, and the place is that long.
        let answers = unsafe {
            let (place, ops) = ((&raw mut value).cast::<c_void>(), &*(*ep).ops);
            let told = (ops.getopt)(ep.cast(), 0, option, place, &raw mut length);
            [told, (ops.setopt)(ep.cast(), 0, option, place, 8)]
        };
        assert_eq!(answers, [code::NOPROTOOPT; 2], "option {option}");
    }
    assert_eq!(close(ep), 0);
}

/// FI_OPT_SHARED_MEMORY_PERMITTED, a bool: "This option only applies to the fi_setopt call … When set
/// to false, shared memory will not be used". Here is no other way to a peer.
#[test]
fn shared_memory_is_an_option() {
    let Some(host) = host("shared_memory_is_an_option") else { return };
    const PERMITTED: c_int = 11;
    let mut world = World::empty(host, |_| {});
    let ep = world.open_ep();
    let set = |permitted: bool, length| {
        let value = (&raw const permitted).cast::<c_void>();
        // SAFETY: the endpoint is open; of another length nothing is read.
        unsafe { ((*(*ep).ops).setopt)(ep.cast(), 0, PERMITTED, value, length) }
    };
    assert_eq!((set(true, 1), set(true, 8)), (0, code::INVAL));
    // SAFETY: answers have all attributes; the name is a C string.
    let name = unsafe { std::ffi::CStr::from_ptr((*(*world.info).domain_attr).name) };
    let refused = if name == c"kestrel-shm" { code::OPNOTSUPP } else { 0 };
    assert_eq!((set(false, 1), set(true, 1)), (refused, 0));
    let (mut value, mut length) = (0_usize, 8);
    // SAFETY: as above, and the place is that long.
    unsafe {
        let place = (&raw mut value).cast::<c_void>();
        let getopt = (*(*ep).ops).getopt;
        assert_eq!(getopt(ep.cast(), 0, PERMITTED, place, &raw mut length), code::NOPROTOOPT);
    }
    world.add(ep, &mut cq_attr(), 0);
    assert_eq!(set(true, 1), code::OPBADSTATE, "it is enabled");
}

/// The options of a scalable endpoint: whether its contexts share memory, which none of them says by
/// itself, and sizes. What there is for receives alone is a receive context's.
#[test]
fn a_scalable_endpoint_has_options_for_all_contexts() {
    let Some(host) = host("a_scalable_endpoint_has_options_for_all_contexts") else { return };
    const PERMITTED: c_int = 11;
    let world = World::empty(host, |hints| hints.caps = flag::MSG | NAMED_RX_CTX);
    let sep = open_sep(&world).unwrap();
    let set = |ep: *mut FidEp, name, permitted: bool, length| {
        let value = [usize::from(permitted)];
        // SAFETY: the endpoint is open; as much as is read is there.
        unsafe { ((*(*ep).ops).setopt)(ep.cast(), 0, name, value.as_ptr().cast(), length) }
    };
    let get = |name| {
        let (mut value, mut length) = (usize::MAX, 8);
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: as above, and the place is that long.
        match unsafe { ((*(*sep).ops).getopt)(sep.cast(), 0, name, place, &raw mut length) } {
            0 => Ok(value),
            status => Err(status),
        }
    };
    // SAFETY: answers have all attributes; the name is a C string.
    let name = unsafe { std::ffi::CStr::from_ptr((*(*world.info).domain_attr).name) };
    let refused = if name == c"kestrel-shm" { code::OPNOTSUPP } else { 0 };
    assert_eq!(set(sep, PERMITTED, false, 1), refused);
    assert_eq!((set(sep, PERMITTED, true, 1), set(sep, PERMITTED, true, 8)), (0, code::INVAL));
    // FI_OPT_CM_DATA_SIZE, which nobody sets, and the sizes of messages and of what there is none of.
    assert_eq!((get(1), set(sep, 1, true, 8)), (Ok(0), code::INVAL));
    // SAFETY: as above.
    let longest = unsafe { (*(*world.info).ep_attr).max_msg_size };
    assert_eq!((get(12), get(13), get(17)), (Ok(longest), Ok(0), Ok(0)));
    for name in (2..=10).chain([0, 20]) {
        let unknown = code::NOPROTOOPT;
        assert_eq!((get(name), set(sep, name, true, 8)), (Err(unknown), unknown), "option {name}");
    }
    assert_eq!(get(PERMITTED), Err(code::NOPROTOOPT));
    let context = tx_context(sep, 0, null_mut()).unwrap();
    assert_eq!(set(context, PERMITTED, true, 1), code::INVAL, "it is the whole endpoint's");
    assert_eq!(set(sep, PERMITTED, true, 1), 0, "none is enabled");
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!((bind(sep, world.av, 0), bind(context, cq, flag::SEND), enable(context)), (0, 0, 0));
    assert_eq!(set(sep, PERMITTED, true, 1), code::OPBADSTATE, "one is enabled");
    assert_eq!((close(context), close(cq), close(sep)), (0, 0, 0));
    assert_eq!(set(sep, PERMITTED, true, 1), code::BADF);
}

/// "This field is ignored unless the fabric is opened with API version 1.5 or greater": endpoints
/// with different keys talk then.
#[test]
fn endpoints_of_older_applications_have_no_keys() {
    let Some(host) = host("endpoints_of_older_applications_have_no_keys") else { return };
    const V1_4: u32 = 1 << 16 | 4;
    let mut world = World::over(host, info_of(host, V1_4, |_| {}).unwrap());
    for key in [b"one", b"two"] {
        // SAFETY: the info has all attributes; libfabric frees the keys.
        unsafe {
            let ep = &mut *(*world.info).ep_attr;
            libc::free(ep.auth_key.cast());
            (ep.auth_key, ep.auth_key_size) = auth_key(key);
        }
        world.add_node(&mut cq_attr(), 0);
    }
    let [from, to] = [world.nodes[0], world.nodes[1]];
    // SAFETY: the endpoints are open; there are no buffers.
    unsafe {
        assert_eq!(((*(*to.ep).msg).recv)(to.ep, NONE, 0, NONE, u64::MAX, NONE), 0);
        assert_eq!(((*(*from.ep).msg).send)(from.ep, NONE, 0, NONE, 1, NONE), 0);
    }
    world.completion(to);
}

/// "FI_RECV: … This binding automatically includes FI_REMOTE_WRITE": remote data of writes, which is
/// told on a selective queue as well.
#[test]
fn a_receive_queue_is_that_of_remote_writes() {
    let Some(host) = host("a_receive_queue_is_that_of_remote_writes") else { return };
    for selective in [0, flag::SELECTIVE_COMPLETION] {
        let mut world = World::new(host, 1);
        let from = world.nodes[0];
        let queues = [(); 2].map(|()| world.open_cq(&mut cq_attr()).unwrap());
        let ep = world.open_ep();
        assert_eq!(bind(ep, queues[0], flag::SEND), 0);
        assert_eq!(bind(ep, queues[1], flag::RECV | selective), 0);
        assert_eq!((bind(ep, world.av, 0), enable(ep)), (0, 0));
        let (to, sends) = (Node { cq: queues[1], ep }, Node { cq: queues[0], ep });
        assert_eq!(world.insert(ep), 1);
        world.nodes.push(to);
        let mut memory = [0_u64; 1];
        let mr = register(&world, &mut memory, flag::REMOTE_WRITE);
        let word = 7_u64;
        // SAFETY: the endpoint is open, and the word is there until the completion.
        unsafe {
            let writedata = (*(*from.ep).rma).writedata;
            let at = (&raw const word).cast();
            assert_eq!(writedata(from.ep, at, 8, NONE, 99, 1, 0, 17, NONE), 0);
        }
        let told = world.completion(to);
        let flags = flag::RMA | flag::REMOTE_WRITE | flag::REMOTE_CQ_DATA;
        assert_eq!((told.flags, told.data), (flags, 99));
        assert_eq!(sends.read().err(), Some(code::AGAIN));
        assert_eq!(close(mr), 0);
        world.nodes.pop();
        assert_eq!([close(ep), close(queues[0]), close(queues[1])], [0; 3]);
    }
}

/// Who narrows what was found leaves the attributes of its sides as they were. So do OpenFAM and Lamellar.
#[test]
fn what_is_narrowed_is_narrowed_on_both_sides() {
    let Some(host) = host("what_is_narrowed_is_narrowed_on_both_sides") else { return };
    let world = World::empty(host, |hints| hints.caps = flag::MSG | flag::RMA | flag::ATOMIC);
    let target = flag::REMOTE_READ | flag::REMOTE_WRITE;
    // SAFETY: the info has all attributes.
    unsafe {
        let info = &mut *world.info;
        assert_ne!((*info.tx_attr).caps & flag::MSG, 0);
        info.caps = flag::RMA | flag::READ | flag::WRITE | flag::ATOMIC | target;
    }
    let (ep, cq) = (world.open_ep(), world.open_cq(&mut cq_attr()).unwrap());
    let all = flag::SEND | flag::RECV;
    assert_eq!([bind(ep, world.av, 0), bind(ep, cq, all), enable(ep)], [0; 3]);
    let node = Node { cq, ep };
    assert_eq!(node.send(&[1], 0, 0), code::OPNOTSUPP as isize, "it is for no messages");
    assert_eq!([close(ep), close(cq)], [0; 2]);
    // What nobody offers is refused there as ever.
    // SAFETY: as above.
    unsafe { (*(*world.info).tx_attr).caps |= 1 << 62 };
    assert_eq!(world.try_open_ep().err(), Some(code::INVAL));
}

/// "The capabilities must be a subset of those requested of the associated endpoint": of all of them,
/// though a side has only what means something there. Sandia OpenSHMEM opens its targets so.
#[test]
fn a_side_may_name_what_means_nothing_there() {
    let Some(host) = host("a_side_may_name_what_means_nothing_there") else { return };
    let target = flag::RMA | flag::ATOMIC | flag::REMOTE_READ | flag::REMOTE_WRITE;
    let world = World::empty(host, |hints| {
        hints.caps = target;
        // SAFETY: hints have all attributes.
        unsafe {
            (*hints.tx_attr).caps = flag::RMA | flag::ATOMIC;
            (*hints.rx_attr).caps = target;
        }
    });
    // And so asked again, as an application may that keeps its own attributes.
    // SAFETY: the info has all attributes.
    unsafe { (*(*world.info).tx_attr).caps = flag::RMA | flag::ATOMIC };
    let (ep, cq) = (world.open_ep(), world.open_cq(&mut cq_attr()).unwrap());
    let all = flag::SEND | flag::RECV;
    assert_eq!([bind(ep, world.av, 0), bind(ep, cq, all), enable(ep)], [0; 3]);
    assert_eq!([close(ep), close(cq)], [0; 2]);
}

//! Address vectors that endpoints are bound to, and that processes share. Reference: fi_av(3).

use std::{
    ffi::{CStr, CString, c_int, c_void},
    net::{IpAddr, Ipv4Addr},
    ptr::null_mut,
    time::Instant,
};

use kestrel_core::address::Address;
use kestrel_tests::process::{Peer, child_role, listen_to_parent, say};

use crate::{
    abi::{attributes::AvAttr, fid::FidEp, info::Info},
    auth_keys::AUTH_KEY,
    code,
    connections::name,
    contexts::{completion, open_sep},
    flag,
    host::host,
    kind,
    one_sided::register,
    vectors::{EVENT, STRINGS, SYMMETRIC, Vector, next_event, open_eq},
    world::{Node, PATIENCE, World, av_attr, bind, close, cq_attr, enable},
};

const NONE: *mut c_void = null_mut();
const NOTAVAIL: u64 = u64::MAX;
const READ: u64 = 1 << 8;
const USER_ID: u64 = 1 << 41;
const SOURCE_ERR: u64 = 1 << 50;
const ADDRNOTAVAIL: c_int = 99;

/// An endpoint bound to a vector of its own.
pub fn node_with(world: &World, vector: &Vector) -> Node {
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    let ep = world.open_ep();
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), 0);
    assert_eq!((bind(ep, vector.av, 0), enable(ep)), (0, 0));
    Node { cq, ep }
}

pub fn name_of(ep: *mut FidEp) -> [u8; 16] {
    let (mut address, mut length) = ([0_u8; 16], 16);
    // SAFETY: the endpoint is open, and the buffer has that length.
    unsafe {
        let place = address.as_mut_ptr().cast();
        assert_eq!(((*(*ep).cm).getname)(ep.cast(), place, &raw mut length), 0);
    }
    address
}

pub fn insert_name(vector: &Vector, name: &[u8; 16], fi_addr: &mut u64, flags: u64) -> c_int {
    // SAFETY: the vector is open, the name an address of its format.
    unsafe {
        ((*(*vector.av).ops).insert)(vector.av, name.as_ptr().cast(), 1, fi_addr, flags, NONE)
    }
}

/// Drives both until the first's queue says something: what, with an entry and its source.
pub fn next_of(node: Node, other: Node) -> (isize, [u64; 6], u64) {
    let start = Instant::now();
    loop {
        let (mut entry, mut source) = ([0_u64; 6], 7);
        // SAFETY: there is room for an entry and its source.
        let status = unsafe {
            let read = (*(*node.cq).ops).readfrom;
            read(node.cq, entry.as_mut_ptr().cast(), 1, &raw mut source)
        };
        if status != code::AGAIN as isize {
            return (status, entry, source);
        }
        other.progress();
        assert!(start.elapsed() < PATIENCE);
    }
}

/// Sends a message to itself, and answers whom the completion says that it is from.
fn source_of_own(node: Node, to: u64) -> u64 {
    let mut word = 5_u64;
    let start = Instant::now();
    // SAFETY: the word lives until all is over.
    unsafe {
        let ops = &*(*node.ep).msg;
        let place = (&raw mut word).cast::<c_void>();
        assert_eq!((ops.recv)(node.ep, place, 8, NONE, u64::MAX, place), 0);
        while (ops.inject)(node.ep, place, 8, to) != 0 {
            node.progress();
        }
        loop {
            let (mut entry, mut source) = ([0_u64; 6], 7);
            let read = (*(*node.cq).ops).readfrom;
            match read(node.cq, entry.as_mut_ptr().cast(), 1, &raw mut source) {
                1 if entry[1] & flag::RECV != 0 => return source,
                1 => {}
                status => assert_eq!(status, code::AGAIN as isize),
            }
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

/// fi_cq(3): "the completion will then be reported through fi_cq_readerr with error code
/// -FI_EADDRNOTAVAIL", with the address as its data, "which may be passed directly into an
/// fi_av_insert call".
#[test]
fn a_stranger_comes_with_its_address() {
    let Some(host) = host("a_stranger_comes_with_its_address") else { return };
    let world = World::empty(host, |hints| hints.caps = flag::MSG | flag::SOURCE | SOURCE_ERR);
    // SAFETY: the info is open.
    assert_ne!(unsafe { (*world.info).caps } & SOURCE_ERR, 0);
    let vectors = [Vector::open(&world, 0), Vector::open(&world, 0)];
    let [stranger, teller] = vectors.each_ref().map(|vector| node_with(&world, vector));
    let mut to = 0;
    assert_eq!(insert_name(&vectors[0], &name_of(teller.ep), &mut to, 0), 1);
    let mut word = 5_u64;
    let place = (&raw mut word).cast::<c_void>();
    let receive = || {
        // SAFETY: the word lives until all is over.
        unsafe {
            assert_eq!(((*(*teller.ep).msg).recv)(teller.ep, place, 8, NONE, u64::MAX, place), 0);
            let other = 6_u64;
            let bytes = (&raw const other).cast::<c_void>();
            while ((*(*stranger.ep).msg).inject)(stranger.ep, bytes, 8, to) != 0 {
                stranger.progress();
            }
        }
        let (status, _, source) = next_of(teller, stranger);
        (status, source)
    };
    assert_eq!(receive().0, code::AVAIL as isize);
    let error = teller.read_error().unwrap();
    assert_eq!((error.err, error.len, error.op_context), (ADDRNOTAVAIL, 8, place));
    assert_eq!(error.flags, flag::MSG | flag::RECV);
    assert_eq!(error.err_data_size, 16);
    let mut known = 7;
    // SAFETY: the data is the provider's until the next read.
    let name = unsafe { &*error.err_data.cast::<[u8; 16]>() };
    assert_eq!(name, &name_of(stranger.ep));
    assert_eq!(insert_name(&vectors[1], name, &mut known, 0), 1);
    assert_eq!(receive(), (1, known));
    assert_eq!(word, 6);
    for node in [stranger, teller] {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
}

#[test]
fn completions_tell_user_ids() {
    let Some(host) = host("completions_tell_user_ids") else { return };
    let world = World::empty(host, |hints| hints.caps = flag::MSG | flag::SOURCE | USER_ID);
    // SAFETY: the info is open.
    assert_ne!(unsafe { (*world.info).caps } & USER_ID, 0);
    // By insertion: the array is read, and then written.
    let vector = Vector::open(&world, 0);
    let node = node_with(&world, &vector);
    let mut fi_addr = 4711;
    let keyed = insert_name(&vector, &name_of(node.ep), &mut fi_addr, USER_ID | AUTH_KEY);
    assert_eq!(keyed, code::INVAL, "a vector without keys");
    fi_addr = 4711;
    assert_eq!(insert_name(&vector, &name_of(node.ep), &mut fi_addr, USER_ID), 1);
    assert_eq!((fi_addr, source_of_own(node, 0)), (0, 4711));
    // By its service, and among those of its node, as well.
    let name = name_of(node.ep);
    let ip =
        CString::new(Ipv4Addr::from([name[4], name[5], name[6], name[7]]).to_string()).unwrap();
    let port = CString::new(u16::from_be_bytes([name[2], name[3]]).to_string()).unwrap();
    for services in [1, 2] {
        assert_eq!(vector.remove(&mut [0]), 0);
        let (mut found, ip, port) = ([815, 816], ip.as_ptr(), port.as_ptr());
        let places = found.as_mut_ptr();
        // SAFETY: the vector is open, the names are C strings, and there is room for both.
        let count = unsafe {
            let ops = &*(*vector.av).ops;
            match services {
                1 => (ops.insertsvc)(vector.av, ip, port, places, USER_ID, NONE),
                _ => (ops.insertsym)(vector.av, ip, 1, port, services, places, USER_ID, NONE),
            }
        };
        assert_eq!((count, found), (services as c_int, [0, [816, 1][services - 1]]));
        assert_eq!(source_of_own(node, 0), 815);
    }
    // SAFETY: the vectors are open.
    let set = |vector: &Vector, fi_addr, id, flags| unsafe {
        ((*(*vector.av).ops).set_user_id)(vector.av, fi_addr, id, flags)
    };
    assert_eq!(set(&vector, 0, 5, 0), code::INVAL, "the vector was opened without");
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], USER_ID, NONE), code::INVAL, "no ids");
    assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    // By vector: nobody has a name until it is given.
    let vector = Vector::open(&world, USER_ID);
    let node = node_with(&world, &vector);
    let name = name_of(node.ep);
    assert_eq!(insert_name(&vector, &name, &mut fi_addr, USER_ID), code::INVAL);
    assert_eq!(insert_name(&vector, &name, &mut fi_addr, 0), 1);
    assert_eq!((fi_addr, source_of_own(node, 0)), (0, NOTAVAIL));
    assert_eq!((set(&vector, 0, 4712, 0), source_of_own(node, 0)), (0, 4712));
    assert_eq!((set(&vector, 1, 5, 0), set(&vector, 0, 5, 1)), (code::INVAL, code::BADFLAGS));
    assert_eq!((close(node.ep), close(node.cq)), (0, 0));
}

/// "Attempting to insert a duplicate copy of the same address into an AV may result in undefined
/// behavior": here each leads to the peer, in one order, and the lowest is told of it.
#[test]
fn duplicates_reach_the_same_peer() {
    let Some(host) = host("duplicates_reach_the_same_peer") else { return };
    let world = World::empty(host, told_and_directed);
    let vectors = [Vector::open(&world, 0), Vector::open(&world, 0)];
    let nodes @ [us, them] = vectors.each_ref().map(|vector| node_with(&world, vector));
    let insert = |vector: &Vector, node: Node| {
        let mut fi_addr = NOTAVAIL;
        assert_eq!(insert_name(vector, &name_of(node.ep), &mut fi_addr, 0), 1);
        fi_addr
    };
    assert_eq!([insert(&vectors[0], them), insert(&vectors[0], them)], [0, 1]);
    assert_eq!(insert(&vectors[1], us), 0);
    let words = [[1_u8; 8], [2; 8], [3; 8], [4; 8]];
    let mut room = [0_u8; 8];
    for (word, to) in words.iter().zip([0, 1, 0, 1]) {
        assert_eq!(us.send(word, to, 0), 0);
    }
    for word in words {
        assert_eq!((them.receive(&mut room, NOTAVAIL, 0), completion(them, &nodes).1), (0, 0));
        assert_eq!(room, word);
        completion(us, &nodes);
    }
    // A receive that is directed at either takes from it; and what is removed leaves the other.
    for (directed, source) in [(1, 0), (0, 0), (1, 1)] {
        if source == 1 {
            assert_eq!(vectors[0].remove(&mut [0]), 0);
        }
        assert_eq!((us.receive(&mut room, directed, 0), them.send(&words[0], 0, 0)), (0, 0));
        assert_eq!(completion(us, &nodes).1, source);
        completion(them, &nodes);
    }
    assert_eq!((us.send(&words[1], 1, 0), them.receive(&mut room, 0, 0)), (0, 0));
    completion(them, &nodes);
    assert_eq!(room, words[1]);
    for node in nodes {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
}

fn told_and_directed(hints: &mut Info) {
    hints.caps = flag::MSG | flag::SOURCE | flag::DIRECTED_RECV;
}

/// An address of IPv4 is the same where it is written as one of IPv6: as a target, as a source and as
/// what receives are directed at. Strings can be of either family.
#[test]
fn a_mapped_address_is_the_same_peer() {
    let Some(host) = host("a_mapped_address_is_the_same_peer") else { return };
    let world = World::empty(host, |hints| {
        told_and_directed(hints);
        hints.addr_format = STRINGS;
    });
    for flags in [0, SYMMETRIC] {
        let vectors = [Vector::open(&world, flags), Vector::open(&world, flags)];
        let nodes = vectors.each_ref().map(|vector| node_with(&world, vector));
        let texts = nodes.map(|node| mapped(&name(node.ep)));
        // Numbers that are not the same at both.
        assert_eq!(insert_text(&vectors[0], c"fi_sockaddr_in://10.0.0.1:1"), 0);
        let numbers = [insert_text(&vectors[0], &texts[1]), insert_text(&vectors[1], &texts[0])];
        assert_eq!(numbers, [1, 0]);
        let (word, mut room) = ([7_u8; 8], [0_u8; 8]);
        // The first time nothing was sent to the other one, nor was anything directed at it.
        for (at, directed) in [(1, false), (1, true), (0, true), (0, false)] {
            let (node, peer) = (nodes[at], nodes[1 - at]);
            let from = if directed { numbers[at] } else { NOTAVAIL };
            assert_eq!(node.receive(&mut room, from, 0), 0);
            assert_eq!(peer.send(&word, numbers[1 - at], 0), 0);
            assert_eq!((completion(node, &nodes).1, room), (numbers[at], word));
            completion(peer, &nodes);
        }
        // It is told as it was inserted.
        let (mut text, mut length) = ([0_u8; 64], 64);
        // SAFETY: the vector is open, and the buffer has that length.
        let status = unsafe {
            let (av, place) = (vectors[0].av, text.as_mut_ptr().cast());
            ((*(*av).ops).lookup)(av, 1, place, &raw mut length)
        };
        assert_eq!((status, &text[..length]), (0, texts[1].to_bytes_with_nul()));
        for node in nodes {
            assert_eq!((close(node.ep), close(node.cq)), (0, 0));
        }
    }
}

/// An address string of IPv4 as one of IPv6.
fn mapped(text: &[u8]) -> CString {
    let address: Address =
        CStr::from_bytes_with_nul(text).unwrap().to_str().unwrap().parse().unwrap();
    let IpAddr::V4(ip) = address.ip() else { panic!("{address} is not of IPv4") };
    let (ip, port) = (ip.to_ipv6_mapped(), address.port());
    CString::new(format!("fi_sockaddr_in6://[{ip}]:{port}")).unwrap()
}

fn insert_text(vector: &Vector, text: &CStr) -> u64 {
    let (list, mut fi_addr) = ([text.as_ptr()], NOTAVAIL);
    // SAFETY: the vector is open, and has strings.
    let count = unsafe {
        let insert = (*(*vector.av).ops).insert;
        insert(vector.av, list.as_ptr().cast(), 1, &raw mut fi_addr, 0, NONE)
    };
    assert_eq!(count, 1);
    fi_addr
}

fn named(name: &CStr, flags: u64) -> AvAttr {
    AvAttr { name: name.as_ptr(), flags, ..av_attr() }
}

/// A process inserts its own address; another one reads the vector, and sends there.
#[test]
fn a_named_vector_is_shared_between_processes() {
    let Some(host) = host("a_named_vector_is_shared_between_processes") else { return };
    let name = format!("door-{}", std::process::id());
    let c_name = CString::new(name.clone()).unwrap();
    let world = World::empty(host, |_| {});
    let mut attr = named(&c_name, READ);
    assert_eq!(Vector::try_open(&world, &mut attr).err(), Some(code::NOENT));
    attr.flags = 0;
    let vector = Vector::try_open(&world, &mut attr).unwrap();
    assert!(!attr.map_addr.is_null(), "the map_addr used is returned");
    let numbers = attr.map_addr.cast::<u64>();
    let node = node_with(&world, &vector);
    let mut fi_addr = 7;
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], 0, NONE), 1);
    assert_eq!(insert_name(&vector, &name_of(node.ep), &mut fi_addr, 0), 1);
    // SAFETY: the vector is open, so its memory is mapped.
    assert_eq!((fi_addr, unsafe { numbers.add(1).read_volatile() }), (1, 1));
    let mut peer = Peer::start(&format!("named {name} {fi_addr}"));
    assert_eq!(peer.hear(), "sent");
    let mut word = 0_u64;
    // SAFETY: the word lives until the completion has come.
    unsafe {
        let recv = (*(*node.ep).msg).recv;
        assert_eq!(recv(node.ep, (&raw mut word).cast(), 8, NONE, u64::MAX, NONE), 0);
    }
    assert_eq!(world.completion(node).len, 8);
    assert_eq!(word, 4711);
    // The one who made it goes; the other still has it, and a third finds it.
    assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    drop(vector);
    attr.flags = READ;
    let again = Vector::try_open(&world, &mut attr).unwrap();
    assert!(again.lookup(fi_addr).is_ok());
    drop(again);
    peer.order("end");
    assert_eq!(peer.hear(), "closed");
    assert_eq!(Vector::try_open(&world, &mut attr).err(), Some(code::NOENT), "nothing is left");
    peer.succeed();
}

/// Names that the application gives come with asynchronous insertions, too.
#[test]
fn asynchronous_insertions_take_ids() {
    let Some(host) = host("asynchronous_insertions_take_ids") else { return };
    let world = World::empty(host, |hints| hints.caps = flag::MSG | flag::SOURCE | USER_ID);
    let (vector, eq) = (Vector::open(&world, EVENT), open_eq(&world));
    assert_eq!(bind(vector.av, eq, 0), 0);
    let (from, to) = (node_with(&world, &vector), node_with(&world, &vector));
    for (node, id) in [(from, 70_u64), (to, 71)] {
        let mut fi_addr = id;
        assert_eq!(insert_name(&vector, &name_of(node.ep), &mut fi_addr, USER_ID), 0);
        assert_eq!((fi_addr, next_event(eq).unwrap().1.data), (id - 70, 1));
    }
    let mut room = [0_u8; 8];
    assert_eq!(to.receive(&mut room, u64::MAX, 0), 0);
    assert_eq!(from.send(&[5; 8], 1, 0), 0);
    let (_, _, source) = next_of(to, from);
    assert_eq!((source, room), (70, [5; 8]));
    for node in [from, to] {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
    drop(vector);
    assert_eq!(close(eq), 0);
}

/// "The map_addr field is ignored if name is NULL."
#[test]
fn a_vector_without_a_name_is_nowhere() {
    let Some(host) = host("a_vector_without_a_name_is_nowhere") else { return };
    let world = World::empty(host, |_| {});
    let nowhere = 0x1000 as *mut c_void;
    let mut attr = AvAttr { map_addr: nowhere, ..av_attr() };
    let vector = Vector::try_open(&world, &mut attr).unwrap();
    assert_eq!(attr.map_addr, nowhere, "as it was");
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], 0, NONE), 1);
}

/// "-FI_EDOMAIN: A resource domain was not bound to the endpoint or an attempt was made to bind
/// multiple domains."
#[test]
fn another_domains_objects_are_refused() {
    let Some(host) = host("another_domains_objects_are_refused") else { return };
    let [here, there] = [World::new(host, 0), World::new(host, 0)];
    let sep = open_sep(&here).unwrap();
    assert_eq!([bind(sep, there.av, 0), bind(sep, here.av, 0)], [code::DOMAIN, 0]);
    // SAFETY: hints have all attributes.
    let sockets = World::empty(host, |hints| unsafe { (*hints.ep_attr).kind = kind::SOCK_DGRAM });
    let socket = sockets.open_ep();
    assert_eq!([bind(socket, here.av, 0), bind(socket, sockets.av, 0)], [code::DOMAIN, 0]);
    let (mut ours, mut theirs) = ([0_u64; 2], [0_u64; 2]);
    let ours = register(&here, &mut ours, flag::REMOTE_READ);
    let theirs = register(&there, &mut theirs, flag::REMOTE_READ);
    let ep = here.open_ep();
    assert_eq!([bind(ep, theirs, 0), bind(ep, ours, 0)], [code::DOMAIN, 0]);
    assert_eq!([bind(theirs, ep, 0), bind(ours, ep, 0)], [code::DOMAIN, 0]);
    let all = [ours.cast::<FidEp>(), theirs.cast(), ep, socket, sep];
    assert_eq!(all.map(close), [0; 5]);
}

/// What [`Peer`] starts.
pub fn child() {
    let Some(role) = child_role().filter(|role| role[0] == "named") else { return };
    let host = host("child").expect("it was there a moment ago");
    let orders = listen_to_parent();
    let name = CString::new(role[1].clone()).unwrap();
    let fi_addr: u64 = role[2].parse().unwrap();
    let world = World::empty(host, |_| {});
    let mut attr = named(&name, READ);
    let listing = Vector::try_open(&world, &mut attr).unwrap();
    // SAFETY: the vector is open, so its memory is mapped.
    assert_eq!(unsafe { attr.map_addr.cast::<u64>().add(1).read_volatile() }, fi_addr);
    drop(listing);
    attr.map_addr = 0x1000 as *mut c_void;
    let vector = Vector::try_open(&world, &mut attr).unwrap();
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], 0, NONE), 0, "it is for reading");
    assert_eq!(vector.remove(&mut [fi_addr]), code::ACCES);
    let node = node_with(&world, &vector);
    let word = 4711_u64;
    let start = Instant::now();
    // SAFETY: the word is there.
    while unsafe { ((*(*node.ep).msg).inject)(node.ep, (&raw const word).cast(), 8, fi_addr) } != 0
    {
        node.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    say("sent");
    while orders.try_recv().is_err() {
        node.progress();
    }
    assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    drop(vector);
    say("closed");
}

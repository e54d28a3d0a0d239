//! Authorization keys in address vectors: domains that were opened with FI_AV_AUTH_KEY.
//! Reference: fi_av(3), `fi_av_insert_auth_key`.

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
};

use crate::{
    abi::{
        attributes::Iovec,
        info::Info,
        message::{Msg, MsgTagged},
    },
    code,
    contexts::{SHARED, open_shared, open_sharer},
    flag,
    host::{Host, host},
    kind,
    multicast::asks_for_groups,
    sockets::{iovec, message},
    vector_use::{insert_name, name_of, next_of, node_with},
    vectors::Vector,
    world::{Node, World, auth_key, close, cq_attr, info},
};

const NONE: *mut c_void = null_mut();
const CONNREFUSED: c_int = 111;
const ANY: u64 = u64::MAX;
const AV_AUTH_KEY: usize = usize::MAX;
pub const AUTH_KEY: u64 = 1 << 57;
const USER_ID: u64 = 1 << 41;
const SOURCE_ERR: u64 = 1 << 50;

/// A domain whose keys are in address vectors.
pub fn keyed() -> Option<World> {
    let host = host("authorization keys in address vectors")?;
    Some(World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | flag::RMA | flag::SOURCE | flag::DIRECTED_RECV;
        ask(hints);
    }))
}

fn ask(hints: &mut Info) {
    // SAFETY: hints have all attributes.
    unsafe { (*hints.domain_attr).auth_key_size = AV_AUTH_KEY };
}

pub fn insert_key(vector: &Vector, key: &[u8], flags: u64) -> Result<u64, c_int> {
    let mut handle = 7;
    // SAFETY: the vector is open, the key has that size.
    let status = unsafe {
        let insert = (*(*vector.av).ops).insert_auth_key;
        insert(vector.av, key.as_ptr().cast(), key.len(), &raw mut handle, flags)
    };
    if status == 0 { Ok(handle) } else { Err(status) }
}

/// A key as a buffer of so many bytes gets it, and its length.
fn lookup_key(vector: &Vector, fi_addr: u64, room: usize) -> Result<(Vec<u8>, usize), c_int> {
    let (mut key, mut length) = (vec![0; room], room);
    // SAFETY: the vector is open, the buffer has that length.
    let status = unsafe {
        let lookup = (*(*vector.av).ops).lookup_auth_key;
        lookup(vector.av, fi_addr, key.as_mut_ptr().cast(), &raw mut length)
    };
    if status == 0 { Ok((key, length)) } else { Err(status) }
}

fn remove(vector: &Vector, mut fi_addr: u64, flags: u64) -> c_int {
    // SAFETY: the vector is open.
    unsafe { ((*(*vector.av).ops).remove)(vector.av, &raw mut fi_addr, 1, flags) }
}

/// Inserts an endpoint's name for a key.
pub fn meet(vector: &Vector, node: Node, handle: u64) -> u64 {
    let mut fi_addr = handle;
    assert_eq!(insert_name(vector, &name_of(node.ep), &mut fi_addr, AUTH_KEY), 1);
    fi_addr
}

/// A vector with two keys.
pub struct Keys {
    pub vector: Vector,
    pub handles: [u64; 2],
}

impl Keys {
    pub fn insert(world: &World) -> Keys {
        let vector = Vector::open(world, 0);
        let handles = [b"blue", b"pink"].map(|key| insert_key(&vector, key, 0).unwrap());
        Keys { vector, handles }
    }

    /// Inserts an endpoint's name for each key.
    pub fn meet(&self, node: Node) -> [u64; 2] {
        self.handles.map(|handle| meet(&self.vector, node, handle))
    }
}

/// Drives both until the first has a completion, with its source.
fn completion(node: Node, other: Node) -> ([u64; 6], u64) {
    let (status, entry, source) = next_of(node, other);
    assert_eq!(status, 1);
    (entry, source)
}

#[test]
fn a_domain_takes_its_keys_from_vectors() {
    let Some(world) = keyed() else { return };
    let host = host("a_domain_takes_its_keys_from_vectors").unwrap();
    // SAFETY: the info is libfabric's, made by this library of this version.
    unsafe {
        let attr = &*(*world.info).domain_attr;
        assert_eq!((attr.auth_key_size, attr.auth_key), (AV_AUTH_KEY, null_mut()));
        assert_eq!(attr.max_ep_auth_key, 64);
    }
    let refused = |change: fn(&mut Info)| assert_eq!(info(host, change), Err(code::NODATA));
    // SAFETY: hints have all attributes.
    unsafe {
        // "If domain auth_key_size is set to the value FI_AV_AUTH_KEY, auth_key must be NULL."
        refused(|hints| {
            (*hints.domain_attr).auth_key = auth_key(b"key").0;
            ask(hints);
        });
        // "If the domain is opened with FI_AV_AUTH_KEY, auth_key_size must be 0."
        refused(|hints| {
            let attr = &mut *hints.ep_attr;
            (attr.auth_key, attr.auth_key_size) = auth_key(b"key");
            ask(hints);
        });
        refused(|hints| {
            (*hints.ep_attr).kind = kind::MSG;
            ask(hints);
        });
        // Nothing says which of them a message to a group proves.
        refused(|hints| {
            asks_for_groups(hints);
            ask(hints);
        });
    }
    let mut ep = null_mut();
    // SAFETY: the domain is open, the info libfabric's; its key is there while it is read.
    unsafe {
        let attr = &mut *(*world.info).ep_attr;
        let mut key = *b"key";
        (attr.auth_key, attr.auth_key_size) = (key.as_mut_ptr(), key.len());
        let open = (*(*world.domain).ops).endpoint;
        assert_eq!(open(world.domain, world.info, &raw mut ep, NONE), code::INVAL);
        (attr.auth_key, attr.auth_key_size) = (null_mut(), 0);
        // Nor has a stream a vector that its keys could be in.
        let stream = info(host, |hints| (*hints.ep_attr).kind = kind::SOCK_STREAM).unwrap();
        assert_eq!(open(world.domain, stream, &raw mut ep, NONE), code::INVAL);
        (host.freeinfo)(stream);
    }
}

#[test]
fn keys_are_inserted_looked_up_and_removed() {
    let Some(world) = keyed() else { return };
    let vector = Vector::open(&world, 0);
    let key = b"a key of some length";
    let handle = insert_key(&vector, key, 0).unwrap();
    assert_ne!(handle, ANY);
    assert_eq!(insert_key(&vector, key, 1), Err(code::BADFLAGS), "flags must be 0");
    assert_eq!(insert_key(&vector, &[1; 513], 0), Err(code::INVAL));
    assert_eq!(insert_key(&vector, &[], 0), Err(code::INVAL));
    assert_eq!(lookup_key(&vector, handle, 20), Ok((key.to_vec(), 20)));
    assert_eq!(lookup_key(&vector, handle, 5), Ok((b"a key".to_vec(), 20)), "cut, and told");
    // An address is for the key that was passed in, and has its number as ever.
    let mut fi_addrs = [handle, 5];
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut fi_addrs[..1], AUTH_KEY, NONE), 1);
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut fi_addrs[1..], 0, NONE), 1);
    assert_eq!(fi_addrs, [0, 1]);
    assert_eq!(lookup_key(&vector, 0, 20), Ok((key.to_vec(), 20)));
    assert_eq!(lookup_key(&vector, 1, 20), Err(code::INVAL), "it was inserted without one");
    assert_eq!(vector.lookup(0), vector.lookup(1));
    assert_eq!(vector.insert(&["10.0.0.2:1"], &mut [0], AUTH_KEY, NONE), 0, "no key's handle");
    assert_eq!(vector.insert(&["10.0.0.2:1"], &mut [], AUTH_KEY, NONE), code::INVAL);
    assert_eq!(vector.insert(&["10.0.0.2:1"], &mut [0], USER_ID, NONE), code::INVAL);
    // While an endpoint is enabled with it a key stays.
    let node = node_with(&world, &vector);
    assert_eq!((remove(&vector, handle, AUTH_KEY), close(node.ep)), (code::BUSY, 0));
    assert_eq!(close(node.cq), 0);
    assert_eq!(remove(&vector, handle, 0), code::INVAL, "it is no address");
    assert_eq!(remove(&vector, 0, AUTH_KEY), code::INVAL, "it is no key");
    assert_eq!(remove(&vector, handle, 2), code::BADFLAGS);
    assert_eq!((remove(&vector, handle, AUTH_KEY), remove(&vector, 0, 0)), (0, 0));
    assert_eq!(lookup_key(&vector, handle, 20), Err(code::INVAL));
    drop(vector);
    // Elsewhere there are none.
    let host = host("keys_are_inserted_looked_up_and_removed").unwrap();
    let world = World::empty(host, |_| {});
    let vector = Vector::open(&world, 0);
    assert_eq!(insert_key(&vector, key, 0), Err(code::INVAL));
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [0], AUTH_KEY, NONE), code::INVAL);
}

#[test]
fn receives_are_directed_by_key() {
    let Some(world) = keyed() else { return };
    let (ours, theirs) = (Keys::insert(&world), Keys::insert(&world));
    let (us, them) = (node_with(&world, &ours.vector), node_with(&world, &theirs.vector));
    let to = ours.meet(them);
    let from = theirs.meet(us);
    let mut words = [0_u64; 4];
    let place = |at: usize, words: &mut [u64; 4]| (&raw mut words[at]).cast::<c_void>();
    // SAFETY: the words outlive the operations.
    unsafe {
        let (msg, tagged) = (&*(*them.ep).msg, &*(*them.ep).tagged);
        // The key that comes last first, so that only it can take its message.
        for (at, key) in [(0, 1), (1, 0)] {
            let iov = Iovec { base: place(at, &mut words), len: 8 };
            let (addr, context) = (theirs.handles[key], key as *mut c_void);
            let (msg_iov, desc) = (&raw const iov, null_mut());
            let post = Msg { msg_iov, desc, iov_count: 1, addr, context, data: 0 };
            assert_eq!((msg.recvmsg)(them.ep, &raw const post, AUTH_KEY), 0);
            assert_eq!((msg.recvmsg)(them.ep, &raw const post, 0), code::INVAL as isize);
            let iov = Iovec { base: place(at + 2, &mut words), len: 8 };
            let post = MsgTagged {
                msg_iov: &raw const iov,
                desc: null_mut(),
                iov_count: 1,
                addr,
                tag: 4,
                ignore: 0,
                context,
                data: 0,
            };
            assert_eq!((tagged.recvmsg)(them.ep, &raw const post, AUTH_KEY), 0);
        }
        for key in [0, 1] {
            let word = 100 + key as u64;
            let word = (&raw const word).cast::<c_void>();
            while ((*(*us.ep).msg).inject)(us.ep, word, 8, to[key]) != 0 {
                us.progress();
            }
            while ((*(*us.ep).tagged).inject)(us.ep, word, 8, to[key], 4) != 0 {
                us.progress();
            }
            for _ in 0..2 {
                let (entry, source) = completion(them, us);
                assert_eq!((entry[0], source), (key as u64, from[key]));
            }
        }
    }
    assert_eq!(words, [101, 100, 101, 100]);
    for object in [us, them] {
        assert_eq!((close(object.ep), close(object.cq)), (0, 0));
    }
}

/// "The buffers usable by any endpoint bound to the shared receive context" (fi_endpoint(3)).
#[test]
fn shared_receives_are_directed_by_key() {
    let Some(host) = host("shared_receives_are_directed_by_key") else { return };
    let world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | flag::SOURCE | flag::DIRECTED_RECV;
        ask(hints);
        // SAFETY: hints have all attributes.
        unsafe { (*hints.ep_attr).rx_ctx_cnt = SHARED };
    });
    let (ours, theirs) = (Keys::insert(&world), Keys::insert(&world));
    let (stx, srx) = open_shared(&world);
    let them = [(); 2].map(|()| open_sharer(&world, &[theirs.vector.av.cast(), srx]));
    // SAFETY: the info is libfabric's. Who sends receives by itself.
    unsafe { (*(*world.info).ep_attr).rx_ctx_cnt = 1 };
    let us = node_with(&world, &ours.vector);
    let (to, from) = (them.map(|node| ours.meet(node)), theirs.meet(us));
    let mut words = [0_u64; 2];
    // SAFETY: the words outlive the operations.
    unsafe {
        let recvmsg = (*(*srx).msg).recvmsg;
        // The key that comes last first, so that only it can take its message.
        for key in [1, 0] {
            let iov = Iovec { base: (&raw mut words[key]).cast(), len: 8 };
            let (addr, context) = (theirs.handles[key], key as *mut c_void);
            let (msg_iov, desc) = (&raw const iov, null_mut());
            let post = Msg { msg_iov, desc, iov_count: 1, addr, context, data: 0 };
            assert_eq!(recvmsg(srx, &raw const post, AUTH_KEY), 0);
            assert_eq!(recvmsg(srx, &raw const post, 0), code::INVAL as isize);
        }
        for key in [0, 1] {
            let word = 100 + key as u64;
            let (word, to) = ((&raw const word).cast::<c_void>(), to[key][key]);
            while ((*(*us.ep).msg).inject)(us.ep, word, 8, to) != 0 {
                us.progress();
            }
            let (entry, source) = completion(them[key], us);
            assert_eq!((entry[0], source), (key as u64, from[key]));
        }
    }
    assert_eq!(words, [100, 101]);
    for object in [us, them[0], them[1]] {
        assert_eq!((close(object.ep), close(object.cq)), (0, 0));
    }
    assert_eq!((close(stx), close(srx)), (0, 0));
}

/// What error events call a key is the user's to say, in a vector that was opened for that. They
/// have a source since version 1.20.
#[test]
fn keys_have_user_ids() {
    let Some(world) = keyed() else { return };
    for flags in [0, USER_ID] {
        let vector = Vector::open(&world, flags);
        let handle = insert_key(&vector, b"blue", 0).unwrap();
        // SAFETY: the vector is open.
        let set = |fi_addr, flags| unsafe {
            ((*(*vector.av).ops).set_user_id)(vector.av, fi_addr, 4711, flags)
        };
        assert_eq!(set(handle, AUTH_KEY) == 0, flags == USER_ID);
        assert_ne!(set(0, AUTH_KEY), 0, "it is no key");
        assert_ne!(set(handle, 0), 0, "it is no address");
        assert_eq!(set(handle, AUTH_KEY | 1), code::BADFLAGS);
    }
}

/// Whom the error events of messages name that a stranger sends by the second of two keys, in a vector that was
/// opened with these flags, where the key has each of these ids in turn; and the key's handle. Only entries of
/// version 1.20 have a source: the installed libfabric, which may be older, writes that version into the fabric's
/// object and nothing else.
fn strangers_told(host: &'static Host, flags: u64, ids: &[Option<u64>]) -> (Vec<u64>, u64) {
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::SOURCE | SOURCE_ERR | USER_ID;
        ask(hints);
    });
    world.reopen_as(1 << 16 | 20);
    let (ours, theirs) = (Vector::open(&world, 0), Vector::open(&world, flags));
    let key = insert_key(&ours, b"pink", 0).unwrap();
    let [_, handle] = [b"blue", b"pink"].map(|key| insert_key(&theirs, key, 0).unwrap());
    let (us, them) = (node_with(&world, &ours), node_with(&world, &theirs));
    let to = meet(&ours, them, key);
    let (mut room, word) = ([0_u8; 8], 5_u64);
    let mut told = Vec::new();
    for &id in ids {
        if let Some(id) = id {
            // SAFETY: the vector is open.
            let status =
                unsafe { ((*(*theirs.av).ops).set_user_id)(theirs.av, handle, id, AUTH_KEY) };
            assert_eq!(status, 0);
        }
        assert_eq!(them.receive(&mut room, ANY, 0), 0);
        // SAFETY: the endpoint is open, and the word is there.
        while unsafe { ((*(*us.ep).msg).inject)(us.ep, (&raw const word).cast(), 8, to) } != 0 {
            us.progress();
        }
        let error = them.outcome(&[us]).err().expect("it is a stranger's");
        assert_eq!(error.err, -code::ADDRNOTAVAIL);
        told.push(error.src_addr);
    }
    for object in [us, them] {
        assert_eq!((close(object.ep), close(object.cq)), (0, 0));
    }
    (told, handle)
}

#[test]
fn error_events_give_the_keys_handle() {
    let Some(host) = host("error_events_give_the_keys_handle") else { return };
    let (told, handle) = strangers_told(host, 0, &[None]);
    assert_eq!(told, [handle]);
}

#[test]
fn error_events_tell_the_users_ids() {
    let Some(host) = host("error_events_tell_the_users_ids") else { return };
    let (told, _) = strangers_told(host, USER_ID, &[None, Some(4711)]);
    assert_eq!(told, [ANY, 4711]);
}

/// What fi_av_insertsvc and fi_av_insertsym insert is for a key as well.
#[test]
fn services_are_inserted_for_keys() {
    let Some(world) = keyed() else { return };
    let Keys { vector, handles } = Keys::insert(&world);
    let mut fi_addr = handles[1];
    assert_eq!(vector.service(c"10.0.0.1", Some(c"7"), &mut fi_addr, AUTH_KEY, NONE), 1);
    assert_eq!((fi_addr, lookup_key(&vector, 0, 4)), (0, Ok((b"pink".to_vec(), 4))));
    let mut fi_addrs = [handles[0], handles[1], handles[1], handles[0]];
    assert_eq!(vector.symmetric(c"10.0.0.2", 2, 2, &mut fi_addrs, AUTH_KEY, NONE), 4);
    assert_eq!(fi_addrs, [1, 2, 3, 4]);
    for (fi_addr, key) in (1..).zip([b"blue", b"pink", b"pink", b"blue"]) {
        assert_eq!(lookup_key(&vector, fi_addr, 4), Ok((key.to_vec(), 4)));
    }
    // What is no key's handle fails alone.
    let mut fi_addrs = [handles[0], 4711];
    assert_eq!(vector.symmetric(c"10.0.0.4", 2, 1, &mut fi_addrs, AUTH_KEY, NONE), 1);
    assert_eq!(fi_addrs, [5, ANY]);
}

/// "Later authorization key insertions will not propagate to already enabled endpoints."
#[test]
fn only_the_keys_of_the_enabling_count() {
    let Some(world) = keyed() else { return };
    let (ours, theirs) = (Vector::open(&world, 0), Keys::insert(&world));
    let blue = insert_key(&ours, b"blue", 0).unwrap();
    let (us, them) = (node_with(&world, &ours), node_with(&world, &theirs.vector));
    let pink = insert_key(&ours, b"pink", 0).unwrap();
    let (late, mut none) = (meet(&ours, them, pink), 0);
    assert_eq!(insert_name(&ours, &name_of(them.ep), &mut none, 0), 1);
    let (word, mut room) = ([1_u8; 8], [0_u8; 8]);
    for (fi_addr, expected) in [
        (late, code::NOKEY),
        (none, code::NOKEY),
        // "Otherwise, the fi_addr_t will be treated as an fi_addr_t returned from the fi_av_insert".
        (blue, code::INVAL),
        (pink, code::INVAL),
    ] {
        // SAFETY: the endpoint is open, and the word is there.
        let written = unsafe {
            let write = (*(*us.ep).rma).write;
            write(us.ep, word.as_ptr().cast(), 8, NONE, fi_addr, 0, 0, NONE)
        };
        let posted = [us.send(&word, fi_addr, 0), us.receive(&mut room, fi_addr, 0), written];
        assert_eq!(posted, [expected as isize; 3], "{fi_addr:#x}");
    }
    let known = meet(&ours, them, blue);
    let iov = [iovec(&mut room)];
    let mut receive_by = |addr: u64| {
        let post = Msg { addr, context: 5 as *mut c_void, ..message(&iov) };
        // SAFETY: the room outlives the endpoint's use of it.
        unsafe { ((*(*us.ep).msg).recvmsg)(us.ep, &raw const post, AUTH_KEY) as c_int }
    };
    assert_eq!([pink, known, blue].map(&mut receive_by), [code::INVAL, code::INVAL, 0]);
    let [back, _] = theirs.meet(us);
    assert_eq!(them.send(&word, back, 0), 0);
    assert_eq!((completion(us, them).0[0], room), (5, word));
    // Who is enabled now has both.
    let other = node_with(&world, &ours);
    assert_eq!(them.receive(&mut room, ANY, 6), 0);
    assert_eq!(other.send(&[2; 8], late, 7), 0);
    assert!([other, them].iter().all(|node| node.outcome(&[other, them]).is_ok()));
    for node in [us, them, other] {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
}

/// "Only peer endpoints that are programmed to use the same authorization key may communicate"
/// (fi_endpoint(3)): wherever they have it from.
#[test]
fn who_proves_no_key_is_not_heard() {
    let Some(world) = keyed() else { return };
    let host = host("who_proves_no_key_is_not_heard").unwrap();
    let theirs = Keys::insert(&world);
    let them = node_with(&world, &theirs.vector);
    let (words, mut room) = ([[1_u8; 8], [2; 8]], [0_u8; 8]);
    assert_eq!(them.receive(&mut room, ANY, 0), 0);
    let is_refused = |node: Node, to: u64| {
        assert_eq!(node.send(&words[0], to, 0), 0);
        let error = node.outcome(&[them]).err().expect("they have no key in common");
        assert_eq!(error.err, CONNREFUSED);
    };
    // By a key that it has, and the other one has not.
    let ours = Vector::open(&world, 0);
    let [third, _] = [&b"third"[..], b"blue"].map(|key| insert_key(&ours, key, 0).unwrap());
    let us = node_with(&world, &ours);
    is_refused(us, meet(&ours, them, third));
    // Endpoints with a key of their own, or without one.
    for key in [&b"fourth"[..], b"", b"blue"] {
        let mut plain = World::empty(host, |hints| {
            // SAFETY: hints have all attributes.
            let attr = unsafe { &mut *hints.ep_attr };
            (attr.auth_key, attr.auth_key_size) = auth_key(key);
        });
        let node = plain.add_node(&mut cq_attr(), 0);
        let to = plain.insert(them.ep);
        if key != b"blue" {
            is_refused(node, to);
            continue;
        }
        let [known, _] = theirs.meet(node);
        assert_eq!(node.send(&words[1], to, 0), 0);
        assert_eq!((completion(them, node).1, room), (known, words[1]));
    }
    for node in [us, them] {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
}

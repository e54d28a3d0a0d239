//! Authorization keys in address vectors: domains that were opened with FI_AV_AUTH_KEY.
//! Reference: fi_av(3), `fi_av_insert_auth_key`.

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
    time::Instant,
};

use crate::{
    abi::{
        attributes::{Iovec, MrAttr, MrAuthKey},
        fid::FidMr,
        info::Info,
        message::{Msg, MsgTagged},
    },
    code,
    contexts::{SHARED, open_shared, open_sharer},
    flag,
    host::host,
    kind,
    multicast::asks_for_groups,
    vector_use::{insert_name, name_of, next_of, node_with},
    vectors::Vector,
    world::{Node, PATIENCE, World, auth_key, close, info},
};

const NONE: *mut c_void = null_mut();
const ANY: u64 = u64::MAX;
const AV_AUTH_KEY: usize = usize::MAX;
const AUTH_KEY: u64 = 1 << 57;
const USER_ID: u64 = 1 << 41;
const SOURCE_ERR: u64 = 1 << 50;
const RMA: u64 = 1 << 2;
/// A mode of memory regions.
const VIRT_ADDR: i32 = 1 << 2;

/// A domain whose keys are in address vectors.
fn keyed() -> Option<World> {
    let host = host("authorization keys in address vectors")?;
    Some(World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | RMA | flag::SOURCE | flag::DIRECTED_RECV;
        ask(hints);
    }))
}

fn ask(hints: &mut Info) {
    // SAFETY: hints have all attributes.
    unsafe { (*hints.domain_attr).auth_key_size = AV_AUTH_KEY };
}

fn insert_key(vector: &Vector, key: &[u8], flags: u64) -> Result<u64, c_int> {
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
fn meet(vector: &Vector, node: Node, handle: u64) -> u64 {
    let mut fi_addr = handle;
    assert_eq!(insert_name(vector, &name_of(node.ep), &mut fi_addr, AUTH_KEY), 1);
    fi_addr
}

/// A vector with two keys.
struct Keys {
    vector: Vector,
    handles: [u64; 2],
}

impl Keys {
    fn insert(world: &World) -> Keys {
        let vector = Vector::open(world, 0);
        let handles = [b"blue", b"pink"].map(|key| insert_key(&vector, key, 0).unwrap());
        Keys { vector, handles }
    }

    /// Inserts an endpoint's name for each key.
    fn meet(&self, node: Node) -> [u64; 2] {
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

/// Error events say so to an application of version 1.20, whose entries have a source: the installed
/// libfabric, which may be older, writes that version into the fabric's object and nothing else.
#[test]
fn error_events_tell_the_users_ids() {
    let host = host("error_events_tell_the_users_ids");
    let Some(host) = host else { return };
    let mut world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::SOURCE | SOURCE_ERR | USER_ID;
        ask(hints);
    });
    world.reopen_as(1 << 16 | 20);
    let ours = Vector::open(&world, 0);
    let key = insert_key(&ours, b"blue", 0).unwrap();
    let theirs = Vector::open(&world, USER_ID);
    let handle = insert_key(&theirs, b"blue", 0).unwrap();
    let (us, them) = (node_with(&world, &ours), node_with(&world, &theirs));
    let to = meet(&ours, them, key);
    let (mut room, word) = (0_u64, 5_u64);
    for id in [None, Some(4711)] {
        if let Some(id) = id {
            // SAFETY: the vector is open.
            let status =
                unsafe { ((*(*theirs.av).ops).set_user_id)(theirs.av, handle, id, AUTH_KEY) };
            assert_eq!(status, 0);
        }
        // SAFETY: the room outlives the receive.
        unsafe {
            let recv = (*(*them.ep).msg).recv;
            assert_eq!(recv(them.ep, (&raw mut room).cast(), 8, NONE, ANY, NONE), 0);
            while ((*(*us.ep).msg).inject)(us.ep, (&raw const word).cast(), 8, to) != 0 {
                us.progress();
            }
        }
        assert_eq!(next_of(them, us).0, code::AVAIL as isize);
        let error = them.read_error().unwrap();
        assert_eq!((error.err, error.src_addr), (-code::ADDRNOTAVAIL, id.unwrap_or(ANY)));
    }
    for object in [us, them] {
        assert_eq!((close(object.ep), close(object.cq)), (0, 0));
    }
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

#[test]
fn regions_are_registered_for_keys() {
    let Some(world) = keyed() else { return };
    let (ours, theirs) = (Keys::insert(&world), Keys::insert(&world));
    let (us, them) = (node_with(&world, &ours.vector), node_with(&world, &theirs.vector));
    let to = ours.meet(them);
    let one = meet(&theirs.vector, us, theirs.handles[1]);
    let (mut memory, word) = (0_u64, 4711_u64);
    let base = (&raw mut memory).cast::<c_void>();
    let iov = Iovec { base, len: 8 };
    let mut mr: *mut FidMr = null_mut();
    // SAFETY: the memory outlives the regions, the words their operations.
    unsafe {
        let ops = &*(*world.domain).mr;
        let domain = world.domain.cast();
        let status = (ops.reg)(domain, base, 8, flag::REMOTE_WRITE, 0, 1, 0, &raw mut mr, NONE);
        assert_eq!(status, code::NOSYS, "fi_mr_regattr must be used");
        let register = |source: u64, size: usize, flags: u64| {
            let mut key = MrAuthKey { av: theirs.vector.av, src_addr: source };
            let mut attr: MrAttr = std::mem::zeroed();
            (attr.mr_iov, attr.iov_count) = (&raw const iov, 1);
            attr.access = flag::REMOTE_WRITE;
            (attr.auth_key, attr.auth_key_size) = ((&raw mut key).cast(), size);
            let mut mr: *mut FidMr = null_mut();
            match (ops.regattr)(domain, &raw const attr, flags, &raw mut mr) {
                0 => Ok(mr),
                status => Err(status),
            }
        };
        let size = size_of::<MrAuthKey>();
        assert_eq!(register(ANY, 0, 0), Err(code::INVAL), "a key must be given");
        assert_eq!(register(theirs.handles[0], size, 0), Err(code::INVAL), "a key is no address");
        for (source, flags, permitted) in [
            (ANY, 0, [true, true]),
            (theirs.handles[0], AUTH_KEY, [true, false]),
            (one, 0, [false, true]),
        ] {
            let region = register(source, size, flags).unwrap();
            for (to, permitted) in to.into_iter().zip(permitted) {
                let virtual_addresses = (*(*world.info).domain_attr).mr_mode & VIRT_ADDR != 0;
                let at = if virtual_addresses { base as u64 } else { 0 };
                let write = (*(*us.ep).rma).write;
                let source = (&raw const word).cast();
                let status = write(us.ep, source, 8, NONE, to, at, (*region).key, NONE);
                assert_eq!(status, 0);
                let start = Instant::now();
                let found = loop {
                    match us.read() {
                        Ok(_) => break true,
                        Err(code::AGAIN) => them.progress(),
                        Err(code::AVAIL) => {
                            assert_eq!(us.read_error().unwrap().err, -code::ACCES);
                            break false;
                        }
                        Err(status) => panic!("{status}"),
                    }
                    assert!(start.elapsed() < PATIENCE);
                };
                assert_eq!((found, memory), (permitted, if permitted { word } else { 0 }));
                memory = 0;
            }
            assert_eq!(close(region), 0);
        }
    }
    for object in [us, them] {
        assert_eq!((close(object.ep), close(object.cq)), (0, 0));
    }
}

/// "If resources are still associated with the AV when attempting to close, the call will return
/// -FI_EBUSY."
#[test]
fn a_vector_closes_after_the_regions_for_its_keys() {
    let Some(world) = keyed() else { return };
    let vector = Vector::open(&world, 0);
    insert_key(&vector, b"blue", 0).unwrap();
    let mut memory = 0_u64;
    let iov = Iovec { base: (&raw mut memory).cast(), len: 8 };
    let mut mr: *mut FidMr = null_mut();
    // SAFETY: the memory outlives the region.
    unsafe {
        let mut key = MrAuthKey { av: vector.av, src_addr: ANY };
        let mut attr: MrAttr = std::mem::zeroed();
        (attr.mr_iov, attr.iov_count, attr.access) = (&raw const iov, 1, flag::REMOTE_WRITE);
        (attr.auth_key, attr.auth_key_size) = ((&raw mut key).cast(), size_of::<MrAuthKey>());
        let regattr = (*(*world.domain).mr).regattr;
        // What was not registered is no use of the vector.
        let refused = regattr(world.domain.cast(), &raw const attr, 1 << 40, &raw mut mr);
        assert_eq!(refused, code::BADFLAGS);
        assert_eq!(regattr(world.domain.cast(), &raw const attr, 0, &raw mut mr), 0);
    }
    assert_eq!((close(vector.av), close(mr), close(vector.av)), (code::BUSY, 0, 0));
}

//! Memory regions for authorization keys of address vectors. Reference: fi_mr(3), fi_av(3).

use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
};

use crate::{
    abi::{
        attributes::{Iovec, MrAttr, MrAuthKey},
        fid::FidMr,
    },
    auth_keys::{AUTH_KEY, Keys, insert_key, keyed, meet},
    code, flag,
    vector_use::node_with,
    vectors::Vector,
    world::{Node, World, close},
};

const NONE: *mut c_void = null_mut();
const ANY: u64 = u64::MAX;
/// A mode of memory regions.
const VIRT_ADDR: i32 = 1 << 2;
const SIZE: usize = size_of::<MrAuthKey>();

/// Registers a word for writes, for whoever `source` is in a vector; with so many bytes of that.
fn register(
    world: &World,
    vector: &Vector,
    word: *mut u64,
    (source, size): (u64, usize),
    flags: u64,
) -> Result<*mut FidMr, c_int> {
    let mut key = MrAuthKey { av: vector.av, src_addr: source };
    let iov = Iovec { base: word.cast(), len: 8 };
    let mut mr: *mut FidMr = null_mut();
    // SAFETY: the domain is open, and the word outlives the region.
    let status = unsafe {
        let mut attr: MrAttr = std::mem::zeroed();
        (attr.mr_iov, attr.iov_count, attr.access) = (&raw const iov, 1, flag::REMOTE_WRITE);
        (attr.auth_key, attr.auth_key_size) = ((&raw mut key).cast(), size);
        let regattr = (*(*world.domain).mr).regattr;
        regattr(world.domain.cast(), &raw const attr, flags, &raw mut mr)
    };
    if status == 0 { Ok(mr) } else { Err(status) }
}

/// Whether the first of the nodes may write to the second one's word, as `to` in its own vector.
fn may_write(
    world: &World,
    [us, them]: [Node; 2],
    to: u64,
    region: *mut FidMr,
    word: *mut u64,
) -> bool {
    let new = 4711_u64;
    // SAFETY: the region is open, the domain's info libfabric's, and the word there.
    let (key, virtual_addresses) = unsafe {
        word.write_volatile(0);
        ((*region).key, (*(*world.info).domain_attr).mr_mode & VIRT_ADDR != 0)
    };
    let at = if virtual_addresses { word as u64 } else { 0 };
    // SAFETY: the endpoint is open, and what is written outlives the operation.
    let status = unsafe {
        let write = (*(*us.ep).rma).write;
        write(us.ep, (&raw const new).cast(), 8, NONE, to, at, key, NONE)
    };
    assert_eq!(status, 0);
    let done = us.outcome(&[them]).map_err(|error| error.err);
    assert!(done.as_ref().is_ok() || done.as_ref().is_err_and(|&error| error == -code::ACCES));
    // SAFETY: the word is there.
    assert_eq!(unsafe { word.read_volatile() }, if done.is_ok() { new } else { 0 });
    done.is_ok()
}

#[test]
fn regions_are_registered_for_keys() {
    let Some(world) = keyed() else { return };
    let (ours, theirs) = (Keys::insert(&world), Keys::insert(&world));
    let nodes @ [us, them] = [&ours, &theirs].map(|keys: &Keys| node_with(&world, &keys.vector));
    let to = ours.meet(them);
    let one = meet(&theirs.vector, us, theirs.handles[1]);
    let mut memory = 0_u64;
    let (word, mut mr) = (&raw mut memory, null_mut());
    // SAFETY: the domain is open, and the word outlives all.
    let refused = unsafe {
        let (domain, reg) = (world.domain, (*(*world.domain).mr).reg);
        reg(domain.cast(), word.cast(), 8, flag::REMOTE_WRITE, 0, 1, 0, &raw mut mr, NONE)
    };
    assert_eq!(refused, code::NOSYS, "fi_mr_regattr must be used");
    let register = |source, flags| register(&world, &theirs.vector, word, source, flags);
    assert_eq!(register((ANY, 0), 0), Err(code::INVAL), "a key must be given");
    let blue = (theirs.handles[0], SIZE);
    assert_eq!(register(blue, 0), Err(code::INVAL), "a key is no address");
    for (source, flags, permitted) in [
        ((ANY, SIZE), 0, [true, true]),
        (blue, AUTH_KEY, [true, false]),
        ((one, SIZE), 0, [false, true]),
    ] {
        let region = register(source, flags).unwrap();
        assert_eq!(to.map(|to| may_write(&world, nodes, to, region, word)), permitted);
        assert_eq!(close(region), 0);
    }
    for node in nodes {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
    }
}

/// "Later authorization key insertions will not propagate to already enabled endpoints and memory
/// regions."
#[test]
fn a_region_keeps_the_keys_of_its_registration() {
    let Some(world) = keyed() else { return };
    let (ours, theirs) = (Vector::open(&world, 0), Vector::open(&world, 0));
    let handles = [b"blue", b"late"].map(|key| insert_key(&ours, key, 0).unwrap());
    insert_key(&theirs, b"blue", 0).unwrap();
    let mut memory = 0_u64;
    let word = &raw mut memory;
    let register = || register(&world, &theirs, word, (ANY, SIZE), 0).unwrap();
    let early = register();
    insert_key(&theirs, b"late", 0).unwrap();
    // An endpoint that is enabled now hears who proves the late key.
    let nodes = [&ours, &theirs].map(|vector| node_with(&world, vector));
    let to = handles.map(|handle| meet(&ours, nodes[1], handle));
    let may = |region| to.map(|to| may_write(&world, nodes, to, region, word));
    assert_eq!((may(early), close(early)), ([true, false], 0));
    let late = register();
    assert_eq!((may(late), close(late)), ([true, true], 0));
    for node in nodes {
        assert_eq!((close(node.ep), close(node.cq)), (0, 0));
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
    let word = &raw mut memory;
    let register = |flags| register(&world, &vector, word, (ANY, SIZE), flags);
    // What was not registered is no use of the vector.
    assert_eq!(register(1 << 40), Err(code::BADFLAGS));
    let mr = register(0).unwrap();
    assert_eq!((close(vector.av), close(mr), close(vector.av)), (code::BUSY, 0, 0));
}

//! What an application should not do: an error code, and no crash.

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
};

use crate::{
    abi::{
        attributes::{CntrAttr, EqAttr, Iovec},
        message::MsgTagged,
    },
    code, flag,
    host::host,
    world::{World, av_attr, bind, close, cq_attr},
};

#[test]
fn null_where_objects_go() {
    let Some(host) = host("null_where_objects_go") else { return };
    let world = World::new(host, 1);
    let (domain, fabric, none) = (world.domain, world.fabric, null_mut::<c_void>());
    // SAFETY: every call is made to be refused for its null pointers.
    unsafe {
        let ops = &*(*domain).ops;
        assert_eq!((ops.cq_open)(domain, null_mut(), null_mut(), none), code::INVAL);
        assert_eq!((ops.cq_open)(domain, &mut cq_attr(), null_mut(), none), code::INVAL);
        assert_eq!((ops.av_open)(domain, null_mut(), &mut null_mut(), none), code::INVAL);
        assert_eq!((ops.av_open)(domain, &mut av_attr(), null_mut(), none), code::INVAL);
        assert_eq!((ops.endpoint)(domain, null_mut(), &mut null_mut(), none), code::INVAL);
        assert_eq!((ops.endpoint)(domain, world.info, null_mut(), none), code::INVAL);
        assert_eq!((ops.cntr_open)(domain, null_mut(), null_mut(), none), code::INVAL);
        assert_eq!((ops.poll_open)(domain, none, null_mut()), code::INVAL);
        let ops = &*(*fabric).ops;
        assert_eq!((ops.domain)(fabric, null_mut(), &mut null_mut(), none), code::INVAL);
        assert_eq!((ops.eq_open)(fabric, null_mut(), null_mut(), none), code::INVAL);
        assert_eq!((ops.wait_open)(fabric, null_mut(), null_mut()), code::INVAL);
        assert_eq!((ops.trywait)(fabric, null_mut(), 1), code::INVAL);
        assert_eq!((ops.trywait)(fabric, &mut null_mut(), 1), code::INVAL);
        let ep = world.nodes[0].ep;
        assert_eq!(bind(ep, none, 0), code::INVAL);
        assert_eq!(bind(ep, domain, 0), code::INVAL);
        let mr = &*(*domain).mr;
        let register = mr.reg;
        let status = register(domain.cast(), none, 8, 0, 0, 0, 0, null_mut(), none);
        assert_eq!(status, code::INVAL);
        assert_eq!((mr.regattr)(domain.cast(), null(), 0, &mut null_mut()), code::INVAL);
        assert_eq!(
            (mr.regv)(domain.cast(), null(), 2, 0, 0, 0, 0, &mut null_mut(), none),
            code::INVAL
        );
    }
}

#[test]
fn null_where_data_goes() {
    let Some(host) = host("null_where_data_goes") else { return };
    let world = World::new(host, 1);
    let (node, none) = (world.nodes[0], null_mut::<c_void>());
    let ep = node.ep;
    let refused = code::INVAL as isize;
    // SAFETY: as above.
    unsafe {
        let (msg, tagged) = (&*(*ep).msg, &*(*ep).tagged);
        assert_eq!((msg.send)(ep, none, 8, none, 0, none), refused);
        assert_eq!((msg.sendmsg)(ep, null(), 0), refused);
        assert_eq!((msg.sendv)(ep, null(), null_mut(), 2, 0, none), refused);
        assert_eq!((tagged.inject)(ep, none, 8, 0, 0), refused);
        assert_eq!((tagged.recvmsg)(ep, null(), 0), refused);
        let iov = [const { Iovec { base: null_mut(), len: 0 } }; 9];
        assert_eq!((tagged.sendv)(ep, iov.as_ptr(), null_mut(), 9, 0, 0, none), refused);
        let rma = &*(*ep).rma;
        assert_eq!((rma.write)(ep, none, 8, none, 0, 0, 0, none), refused);
        assert_eq!((rma.readmsg)(ep, null(), 0), refused);
        let atomic = &*(*ep).atomic;
        assert_eq!((atomic.writemsg)(ep, null(), 0), refused);
        assert_eq!((atomic.inject)(ep, none, 1, 0, 0, 0, 77, 77), code::OPNOTSUPP as isize);
        assert_eq!(((*(*node.cq).ops).readerr)(node.cq, null_mut(), 0), refused);
        let cm = &*(*ep).cm;
        assert_eq!((cm.getname)(ep.cast(), none, null_mut()), code::INVAL);
        let (mut name, mut length) = ([0_u8; 4], 4_usize);
        let status = (cm.getname)(ep.cast(), name.as_mut_ptr().cast(), &raw mut length);
        assert_eq!((status, length), (code::TOOSMALL, 16));
        assert_eq!((cm.getpeer)(ep, none, null_mut()), code::NOSYS);
        assert_eq!((cm.connect)(ep, none, none, 0), code::INVAL);
    }
}

#[test]
fn flags_and_kinds_that_nobody_knows() {
    let Some(host) = host("flags_and_kinds_that_nobody_knows") else { return };
    let world = World::new(host, 1);
    let ep = world.nodes[0].ep;
    let none = null_mut::<c_void>();
    let open = |change: fn(&mut crate::abi::attributes::CqAttr)| {
        let mut attr = cq_attr();
        change(&mut attr);
        world.open_cq(&mut attr).err()
    };
    assert_eq!(open(|attr| attr.flags = 1 << 40), Some(code::BADFLAGS));
    assert_eq!(open(|attr| attr.format = 9), Some(code::INVAL));
    assert_eq!(open(|attr| attr.wait_obj = 4), Some(code::NOSYS));
    assert_eq!(open(|attr| attr.wait_obj = 2), Some(code::INVAL));
    assert_eq!(bind(ep, world.av, 5), code::BADFLAGS);
    // SAFETY: the objects are open; what is wrong is numbers only.
    unsafe {
        let msg = MsgTagged { addr: 0, ..std::mem::zeroed() };
        let sendmsg = (*(*ep).tagged).sendmsg;
        assert_eq!(sendmsg(ep, &raw const msg, 1 << 62), code::BADFLAGS as isize);
        assert_eq!(sendmsg(ep, &raw const msg, flag::MSG), code::BADFLAGS as isize);
        assert_eq!(sendmsg(ep, &raw const msg, flag::PEEK), code::BADFLAGS as isize);
        let unknown = MsgTagged { addr: 99, ..std::mem::zeroed() };
        assert_eq!(sendmsg(ep, &raw const unknown, 0), code::INVAL as isize);
        let ops = &*(*ep).ops;
        let (mut value, mut length) = (0_usize, 8_usize);
        let place = (&raw mut value).cast::<c_void>();
        assert_eq!((ops.getopt)(ep.cast(), 0, 99, place, &raw mut length), code::NOPROTOOPT);
        assert_eq!((ops.getopt)(ep.cast(), 7, 0, place, &raw mut length), code::NOPROTOOPT);
        assert_eq!((ops.getopt)(ep.cast(), 0, 0, place, &raw mut length), 0);
        length = 3;
        let told = (ops.getopt)(ep.cast(), 0, 0, place, &raw mut length);
        assert_eq!((told, length), (code::TOOSMALL, 8), "and how much it takes");
        assert_eq!((ops.setopt)(ep.cast(), 0, 0, place, 3), code::INVAL);
        assert_eq!(((*(*ep).fid.ops).control)(ep.cast(), 1234, none), code::NOSYS);
        let ops = &*(*world.domain).ops;
        let mut attr = CntrAttr { flags: 1, ..std::mem::zeroed() };
        assert_eq!((ops.cntr_open)(world.domain, &mut attr, &mut null_mut(), none), code::BADFLAGS);
        assert_eq!((ops.scalable_ep)(world.domain, world.info, null_mut(), none), code::INVAL);
        assert_eq!((ops.stx_ctx)(world.domain, null_mut(), null_mut(), none), code::INVAL);
        assert_eq!((ops.srx_ctx)(world.domain, null_mut(), null_mut(), none), code::INVAL);
        assert_eq!(
            (ops.endpoint2)(world.domain, world.info, &mut null_mut(), 1, none),
            code::BADFLAGS
        );
        let ops = &*(*world.fabric).ops;
        let listens = (ops.passive_ep)(world.fabric, world.info, &mut null_mut(), none);
        assert_eq!(listens, code::INVAL, "endpoints of type RDM do not");
        let mut attr = EqAttr { flags: 1 << 40, ..std::mem::zeroed() };
        assert_eq!((ops.eq_open)(world.fabric, &mut attr, &mut null_mut(), none), code::BADFLAGS);
        assert_eq!(
            (ops.domain2)(world.fabric, world.info, &mut null_mut(), 1, none),
            code::BADFLAGS
        );
    }
}

#[test]
fn attributes_of_a_wrong_size() {
    let Some(host) = host("attributes_of_a_wrong_size") else { return };
    let world = World::new(host, 0);
    let mut ep = null_mut();
    // SAFETY: the info is libfabric's, and has all attributes.
    unsafe {
        let (ops, attr) = (&*(*world.domain).ops, &mut *(*world.info).tx_attr);
        let endpoint = ops.endpoint;
        let usual = std::mem::replace(&mut attr.size, usize::MAX);
        assert_eq!(endpoint(world.domain, world.info, &raw mut ep, null_mut()), code::INVAL);
        attr.size = usual;
        assert_eq!(endpoint(world.domain, world.info, &raw mut ep, null_mut()), 0);
        assert_eq!(close(ep), 0);
        // An address that is shorter than it says it is.
        (*world.info).src_addr = libc::calloc(1, 16);
        (*world.info).src_addrlen = 3;
        assert_eq!(endpoint(world.domain, world.info, &raw mut ep, null_mut()), code::INVAL);
    }
}

#[test]
fn address_vectors_refuse_what_is_no_address() {
    let Some(host) = host("address_vectors_refuse_what_is_no_address") else { return };
    let world = World::new(host, 1);
    let none = null_mut::<c_void>();
    let zeroes = [0_u8; 64];
    // SAFETY: the buffers have these lengths.
    unsafe {
        let ops = &*(*world.av).ops;
        let bytes = zeroes.as_ptr().cast::<c_void>();
        assert_eq!((ops.insert)(world.av, null(), 1, null_mut(), 0, none), code::INVAL);
        assert_eq!((ops.insert)(world.av, bytes, 1, null_mut(), 1 << 40, none), code::BADFLAGS);
        let (mut fi_addrs, mut errors) = ([7_u64; 2], [9 as c_int; 2]);
        let context = errors.as_mut_ptr().cast();
        let inserted = (ops.insert)(world.av, bytes, 2, fi_addrs.as_mut_ptr(), 1 << 58, context);
        assert_eq!((inserted, fi_addrs), (0, [u64::MAX; 2]));
        assert_eq!(errors, [-code::INVAL; 2]);
        let mut gone = 55_u64;
        assert_eq!((ops.remove)(world.av, &raw mut gone, 1, 0), code::INVAL);
        let mut length = 0;
        assert_eq!((ops.lookup)(world.av, 0, none, &raw mut length), 0);
        assert_eq!(length, 16);
        assert_eq!((ops.lookup)(world.av, 55, none, &raw mut length), code::INVAL);
        assert!((ops.straddr)(world.av, null(), null_mut(), null_mut()).is_null());
    }
}

//! Fabrics and domains that hints name, and that answers of fi_getinfo refer to. Reference:
//! fi_domain(3), "domain"; fi_fabric(3), "fabric".

use std::{ffi::c_int, ptr::null_mut};

use kestrel_tests::process::{Peer, child_role, say};

use crate::{
    abi::{
        fid::{FidDomain, FidFabric},
        info::Info,
    },
    code,
    host::{Host, host},
    world::{World, close, info},
};

const LOCAL_COMM: u64 = 1 << 51;
const REMOTE_COMM: u64 = 1 << 52;
/// FI_MR_VIRT_ADDR, FI_MR_ALLOCATED and FI_MR_PROV_KEY.
const BASIC_EQUIVALENT: c_int = 1 << 4 | 1 << 5 | 1 << 6;

/// A process of its own: here no other test opens or closes anything.
#[test]
fn answers_refer_to_what_is_open() {
    if host("answers_refer_to_what_is_open").is_none() {
        return;
    }
    Peer::start("instances").be_done();
}

/// What the first answer refers to, for hints that name these.
fn told(
    host: &Host,
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
) -> Result<(*mut FidFabric, *mut FidDomain), c_int> {
    // SAFETY: hints and answers have all attributes.
    unsafe {
        let name = |hints: &mut Info| {
            ((*hints.fabric_attr).fabric, (*hints.domain_attr).domain) = (fabric, domain);
        };
        let found = info(host, name)?;
        let told = ((*(*found).fabric_attr).fabric, (*(*found).domain_attr).domain);
        (host.freeinfo)(found);
        Ok(told)
    }
}

/// What [`Peer`] starts.
pub fn child() {
    let Some(_) = child_role().filter(|role| role[0] == "instances") else { return };
    let host = host("child").expect("it was there a moment ago");
    let (no_fabric, no_domain) = (null_mut(), null_mut());
    assert_eq!(told(host, no_fabric, no_domain), Ok((null_mut(), null_mut())));
    let [first, second] = [(); 2].map(|()| World::empty(host, |_| {}));
    let of = |world: &World| Ok((world.fabric, world.domain));
    assert_eq!(told(host, no_fabric, no_domain), of(&first), "the first opened instance");
    for world in [&first, &second] {
        assert_eq!(told(host, world.fabric, no_domain), of(world));
        assert_eq!(told(host, no_fabric, world.domain), of(world));
        assert_eq!(told(host, world.fabric, world.domain), of(world));
    }
    assert_eq!(told(host, first.fabric, second.domain), Err(code::NODATA));
    let to_all = World::empty(host, |hints| hints.caps |= LOCAL_COMM | REMOTE_COMM);
    let named = told(host, to_all.fabric, to_all.domain);
    assert_eq!(named, of(&to_all), "one that was asked for more serves as well");
    drop(to_all);
    // An instance that was opened otherwise serves nobody who asks for something else.
    // SAFETY: hints and answers have all attributes.
    unsafe {
        let registers = |hints: &mut Info| (*hints.domain_attr).mr_mode = BASIC_EQUIVALENT;
        let found = info(host, registers).unwrap();
        assert!((*(*found).domain_attr).domain.is_null());
        assert_eq!((*(*found).fabric_attr).fabric, first.fabric);
        (host.freeinfo)(found);
        let found = info(host, |hints| {
            registers(hints);
            (*hints.domain_attr).domain = first.domain;
        });
        assert!((*(*found.unwrap()).domain_attr).domain.is_null());
        (host.freeinfo)(found.unwrap());
    }
    // An info that refers to a domain opens another one all the same.
    // SAFETY: the info has all attributes.
    unsafe { (*(*second.info).domain_attr).domain = first.domain };
    assert_eq!(close(second.open_ep()), 0);
    let closed = (first.fabric, first.domain);
    drop(first);
    assert_eq!(told(host, no_fabric, no_domain), of(&second));
    assert_eq!(told(host, closed.0, no_domain), Err(code::NODATA), "it is closed");
    assert_eq!(told(host, no_fabric, closed.1), Err(code::NODATA));
    // Memory that is no object, and of which nothing may be read.
    let nothing = std::ptr::dangling_mut::<FidDomain>();
    assert_eq!(told(host, no_fabric, nothing), Err(code::NODATA));
    assert_eq!(told(host, nothing.cast(), no_domain), Err(code::NODATA));
    let elsewhere = info(host, |hints| {
        // SAFETY: hints have all attributes; libfabric frees the name.
        unsafe {
            (*hints.domain_attr).domain = second.domain;
            (*hints.domain_attr).name = libc::strdup(c"elsewhere".as_ptr());
        }
    });
    assert_eq!(elsewhere, Err(code::NODATA));
    drop(second);
    assert_eq!(told(host, no_fabric, no_domain), Ok((null_mut(), null_mut())));
    say("done");
}

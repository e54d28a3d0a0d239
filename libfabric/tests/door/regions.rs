//! Memory regions and what belongs to them: regions that are part of others, and endpoints that are
//! bound. Reference: fi_mr(3).

use std::{ffi::c_int, ptr::null_mut};

use crate::{
    abi::{
        attributes::{Iovec, MrAttr},
        fid::FidMr,
    },
    code, flag,
    host::host,
    one_sided::register,
    world::{World, bind, close},
};

const V2_0: u32 = 2 << 16;
const NONE: *mut FidMr = null_mut();

/// `fi_mr_regattr`, of some words of what is at `memory`, as part of `base`.
fn register_part(
    world: &World,
    memory: &[u64],
    base: *mut FidMr,
    key: u64,
) -> Result<*mut FidMr, c_int> {
    let iov = Iovec { base: memory.as_ptr().cast_mut().cast(), len: size_of_val(memory) };
    let mut mr = null_mut();
    // SAFETY: zeroes are the defaults; the domain is open, and the memory outlives its regions.
    unsafe {
        let attr = MrAttr {
            mr_iov: &raw const iov,
            iov_count: 1,
            access: flag::REMOTE_READ,
            requested_key: key,
            base_mr: base,
            ..std::mem::zeroed()
        };
        let regattr = (*(*world.domain).mr).regattr;
        match regattr(world.domain.cast(), &raw const attr, 0, &raw mut mr) {
            0 => Ok(mr),
            status => Err(status),
        }
    }
}

/// "The sub-MR must be fully contained within the base MR; however, the sub-MR has its own
/// authorization keys and access rights." "When fi_close is called on the base MR, the call would fail
/// if there are any outstanding sub-MRs."
#[test]
fn a_part_is_inside_its_region_and_closed_before_it() {
    let Some(host) = host("a_part_is_inside_its_region_and_closed_before_it") else { return };
    let mut world = World::new(host, 0);
    world.reopen_as(V2_0);
    let memory = vec![0_u64; 64];
    let base = register_part(&world, &memory[8..32], NONE, 1).unwrap();
    for outside in [&memory[7..9], &memory[31..33], &memory[40..41], &memory[0..64]] {
        assert_eq!(register_part(&world, outside, base, 2).err(), Some(code::INVAL));
    }
    let parts = [&memory[8..32], &memory[8..9], &memory[31..32]];
    let parts = [2, 3, 4].map(|key| register_part(&world, parts[key - 2], base, key as u64));
    for part in parts.map(Result::unwrap) {
        assert_eq!(close(base), code::BUSY);
        assert_eq!(close(part), 0);
    }
    // What was refused holds nothing.
    assert_eq!(close(base), 0);
    assert_eq!(register_part(&world, &memory[8..9], base, 2).err(), Some(code::INVAL), "closed");
    let other = World::new(host, 0);
    let elsewhere = register_part(&other, &memory, NONE, 1).unwrap();
    assert_eq!(register_part(&world, &memory[8..9], elsewhere, 2).err(), Some(code::DOMAIN));
    assert_eq!(close(elsewhere), 0);
}

/// The attributes of an older application end before the field.
#[test]
fn an_older_application_has_no_parts() {
    let Some(host) = host("an_older_application_has_no_parts") else { return };
    let world = World::new(host, 0);
    let memory = vec![0_u64; 8];
    let nothing = std::ptr::dangling_mut::<FidMr>();
    let mr = register_part(&world, &memory, nothing, 1).unwrap();
    assert_eq!(close(mr), 0);
}

/// "For MRs that are associated with an endpoint …, the MR must be closed before the endpoint."
#[test]
fn an_endpoint_closes_after_the_regions_that_it_is_bound_to() {
    let Some(host) = host("an_endpoint_closes_after_the_regions_that_it_is_bound_to") else {
        return;
    };
    let world = World::new(host, 1);
    let mut memory = [0_u64; 8];
    for endpoint_first in [false, true] {
        let ep = world.open_ep();
        let mr = register(&world, &mut memory, flag::REMOTE_WRITE);
        let bound = if endpoint_first { bind(ep, mr, 0) } else { bind(mr, ep, 0) };
        assert_eq!(bound, 0);
        assert_eq!(close(ep), code::BUSY);
        assert_eq!((close(mr), close(ep)), (0, 0));
    }
}

//! The fabrics and domains that are open: what hints may name, and what answers refer to.
//! Reference: fi_fabric(3), fi_domain(3), "domain".
//!
//! An application may pass a pointer to something that it has closed, so that nothing here looks
//! into an object: pointers are compared with those of what is open.

use std::ptr::null_mut;

use kestrel_core::info::{DomainAttributes, EndpointType, Info};

use crate::{
    abi::fid::{FidDomain, FidFabric},
    per_process::PerProcess,
};

/// A fabric or a domain that is open.
struct Instance {
    object: usize,
    /// The fabric of a domain; 0: it is a fabric.
    fabric: usize,
    /// What a domain was opened with.
    info: Option<Info>,
}

/// In the order in which they were opened. What a parent has opened is not for its forked children.
static OPEN: PerProcess<Vec<Instance>> = PerProcess::new();

/// An object that is known to be open, until this is dropped.
pub struct Known(usize);

impl Known {
    pub fn fabric(fabric: *mut FidFabric) -> Known {
        Known::add(fabric as usize, 0, None)
    }

    pub fn domain(domain: *mut FidDomain, fabric: *mut FidFabric, info: &Info) -> Known {
        Known::add(domain as usize, fabric as usize, Some(info.clone()))
    }

    fn add(object: usize, fabric: usize, info: Option<Info>) -> Known {
        OPEN.lock().push(Instance { object, fabric, info });
        Known(object)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        OPEN.lock().retain(|instance| instance.object != self.0);
    }
}

fn find<R>(ask: impl Fn(&Instance) -> Option<R>) -> Option<R> {
    OPEN.lock().iter().find_map(ask)
}

/// The fabric that was opened first, of those that are open, or null.
pub fn first_fabric() -> *mut FidFabric {
    let first = find(|it| (it.fabric == 0).then_some(it.object));
    first.map_or(null_mut(), |object| object as *mut FidFabric)
}

/// Whether endpoints that `found` describes can be opened on a domain that was opened with `open`, and
/// are as it says: the domain says how memory is registered, who serialises and drives what, and how
/// addresses are written.
pub fn serves(open: &Info, found: &Info) -> bool {
    let connected = |info: &Info| info.endpoint.kind == EndpointType::Msg;
    // One that can do more serves as well.
    let domain =
        DomainAttributes { caps: open.domain.caps & found.domain.caps, ..open.domain.clone() };
    domain == found.domain
        && open.address_format == found.address_format
        && connected(open) == connected(found)
}

/// The domain on `fabric` that was opened first, of those that serve `found`, or null.
pub fn first_domain(fabric: *mut FidFabric, found: &Info) -> *mut FidDomain {
    let of_fabric = |it: &Instance| it.fabric != 0 && it.fabric == fabric as usize;
    let is_it = |it: &Instance| it.info.as_ref().is_some_and(|open| serves(open, found));
    let first = find(|it| (of_fabric(it) && is_it(it)).then_some(it.object));
    first.map_or(null_mut(), |object| object as *mut FidDomain)
}

/// Whether a fabric is open.
pub fn has_fabric(fabric: *mut FidFabric) -> bool {
    find(|it| (it.fabric == 0 && it.object == fabric as usize).then_some(())).is_some()
}

/// What a domain that is open was opened with, and its fabric.
pub fn domain(domain: *mut FidDomain) -> Option<(Info, *mut FidFabric)> {
    let is_it = |it: &Instance| it.object == domain as usize;
    let found = |it: &Instance| Some((it.info.clone()?, it.fabric as *mut FidFabric));
    find(|it| if is_it(it) { found(it) } else { None })
}

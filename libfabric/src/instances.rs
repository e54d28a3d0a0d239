//! The fabrics and domains that are open: what hints may name, and what answers refer to.
//! Reference: fi_fabric(3), fi_domain(3), "domain".
//!
//! An application may pass a pointer to something that it has closed, so that nothing here looks
//! into an object: pointers are compared with those of what is open.

use std::{
    ptr::null_mut,
    sync::{Mutex, MutexGuard, PoisonError},
};

use kestrel_shm::fork_guard;

use crate::abi::fid::{FidDomain, FidFabric};

/// A fabric or a domain that is open.
struct Instance {
    object: usize,
    /// The fabric of a domain; 0: it is a fabric.
    fabric: usize,
    name: String,
    /// Tells a forked child that it is its parent's.
    generation: u32,
}

/// In the order in which they were opened.
static OPEN: Mutex<Vec<Instance>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Instance>> {
    // Nothing in here panics half-way.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An object that is known to be open, until this is dropped.
pub struct Known(usize);

impl Known {
    pub fn fabric(fabric: *mut FidFabric) -> Known {
        Known::add(fabric as usize, 0, String::new())
    }

    pub fn domain(domain: *mut FidDomain, fabric: *mut FidFabric, name: &str) -> Known {
        Known::add(domain as usize, fabric as usize, name.to_owned())
    }

    fn add(object: usize, fabric: usize, name: String) -> Known {
        let generation = fork_guard::generation();
        open().push(Instance { object, fabric, name, generation });
        Known(object)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        open().retain(|instance| instance.object != self.0);
    }
}

fn find<R>(ask: impl Fn(&Instance) -> Option<R>) -> Option<R> {
    let open = open();
    open.iter().filter(|instance| !fork_guard::forked(instance.generation)).find_map(ask)
}

/// The fabric that was opened first, of those that are open, or null.
pub fn first_fabric() -> *mut FidFabric {
    let first = find(|it| (it.fabric == 0).then_some(it.object));
    first.map_or(null_mut(), |object| object as *mut FidFabric)
}

/// The domain of that name on `fabric` that was opened first, of those that are open, or null.
pub fn first_domain(fabric: *mut FidFabric, name: &str) -> *mut FidDomain {
    let of_fabric = |it: &Instance| it.fabric != 0 && it.fabric == fabric as usize;
    let first = find(|it| (of_fabric(it) && it.name == name).then_some(it.object));
    first.map_or(null_mut(), |object| object as *mut FidDomain)
}

/// Whether a fabric is open.
pub fn has_fabric(fabric: *mut FidFabric) -> bool {
    find(|it| (it.fabric == 0 && it.object == fabric as usize).then_some(())).is_some()
}

/// The name and the fabric of a domain that is open.
pub fn domain(domain: *mut FidDomain) -> Option<(String, *mut FidFabric)> {
    let is_it = |it: &Instance| it.fabric != 0 && it.object == domain as usize;
    find(|it| is_it(it).then(|| (it.name.clone(), it.fabric as *mut FidFabric)))
}

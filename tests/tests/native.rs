//! The native door by itself: what a program gets that names `kestrel` alone.

use kestrel::{Flags, Hints, MemoryRange, MemoryRegionAttributes, MemoryRegionMode};

/// The key and the base of a region for which `KEY` was asked for, by these hints; and where its
/// memory is.
fn registered(hints: &Hints) -> (u64, u64, u64) {
    let info = kestrel::discover(Some(hints)).unwrap().remove(0);
    let domain = kestrel::open_domain(&info).unwrap();
    let mut memory = vec![0_u8; 4096];
    let address = memory.as_mut_ptr() as u64;
    let attributes = MemoryRegionAttributes {
        ranges: &[MemoryRange { address, len: memory.len() as u64 }],
        access: Flags::REMOTE_READ | Flags::REMOTE_WRITE,
        requested_key: KEY,
        ..Default::default()
    };
    // SAFETY: no endpoint is open here, so nobody reaches the memory, and it outlives the region.
    let region = unsafe { domain.register_memory(&attributes) }.unwrap();
    let (key, base) = (region.key(), region.base());
    domain.close_memory(&region).unwrap();
    domain.close().unwrap();
    (key, base, address)
}

const KEY: u64 = 4711;

#[test]
fn keys_are_the_callers_where_that_was_agreed_on() {
    let hints = Hints::new().caps(Flags::RMA);
    let (key, base, _) = registered(&hints.clone().memory_region_mode(MemoryRegionMode::empty()));
    assert_eq!((key, base), (KEY, 0));
    let mode = MemoryRegionMode::VIRT_ADDR | MemoryRegionMode::ALLOCATED;
    let (key, base, address) = registered(&hints.clone().memory_region_mode(mode));
    assert_eq!((key, base), (KEY, address));
}

#[test]
fn who_says_nothing_of_keys_gets_ours() {
    for hints in [Hints::new(), Hints::new().caps(Flags::RMA), Hints::new().caps(Flags::TAGGED)] {
        let (key, base, address) = registered(&hints);
        assert_ne!(key, KEY);
        assert_eq!(base, address);
    }
}

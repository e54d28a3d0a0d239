//! Memory regions: ranges of the application's memory that peers may reach,
//! each under a key. Reference: fi_mr(3).
//!
//! Registering, closing and looking up take one mutex: the control path. What
//! a target does on behalf of peers goes through a region's gate ([`access`]),
//! which takes none, and which closing waits for.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::bind_count::BindCount;
use crate::engine::permitted::Permitted;
use crate::flags::{FAMILY, Flags};
use crate::info::MemoryRegionMode;
use crate::window::Publisher;

#[allow(unsafe_code)]
pub mod access;
pub mod adapter;
pub mod audience;
pub mod descriptor;
mod error;
#[allow(unsafe_code)]
mod persistence;
#[allow(unsafe_code)]
pub mod registration;

use access::Gate;
use adapter::Adapter;
use audience::Audience;
pub use error::MemoryRegionError;
use registration::Events;

/// "No key": never the key of a region. libfabric's `FI_KEY_NOTAVAIL`.
pub const KEY_NOTAVAIL: u64 = u64::MAX;

/// What an application may allow.
const ACCESS: Flags = Flags::SEND
    .union(Flags::RECV)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::COLLECTIVE);

/// What says nothing of an access, and may be named with it: families of operations. So does LCI.
const FAMILIES: Flags = FAMILY.union(Flags::RMA).union(Flags::ATOMIC);

/// Consecutive bytes of the application's memory. An address is only a
/// number here: nothing is read or written through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Where it begins.
    pub address: u64,
    /// In bytes.
    pub len: u64,
}

/// What to register. Reference: `struct fi_mr_attr`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryRegionAttributes<'a> {
    /// What it consists of, one behind another as peers see it.
    pub ranges: &'a [MemoryRange],
    /// Any of `SEND`, `RECV`, `READ`, `WRITE`, `REMOTE_READ`, `REMOTE_WRITE`, `COLLECTIVE`. `MSG`, `TAGGED`, `RMA`
    /// and `ATOMIC` mean nothing here.
    pub access: Flags,
    /// "Reserved for future use and must be 0."
    pub offset: u64,
    /// Heeded unless the registry's mode has `PROV_KEY`, of what others reach: `access` has a `REMOTE_` flag.
    pub requested_key: u64,
    /// `RMA_EVENT`, `RMA_PMEM`, or nothing.
    pub flags: Flags,
    /// The application's own, given back with events.
    pub context: u64,
    /// Whom it is for, where endpoints have their keys from address vectors; none: whoever is heard.
    pub audience: Option<&'a Audience>,
}

/// A registered region.
#[derive(Debug)]
pub struct MemoryRegion {
    key: u64,
    ranges: Box<[MemoryRange]>,
    access: Flags,
    flags: Flags,
    context: u64,
    base: u64,
    len: u64,
    /// Whether the application maps nothing else there, as it has agreed. "When unset [...] the
    /// underlying virtual address to physical page mapping is allowed to change, and the provider
    /// will ensure the corresponding MR is updated accordingly" (fi_mr(3), FI_MR_ALLOCATED).
    keeps_pages: bool,
    binds: BindCount,
    gate: Gate,
    events: Events,
    adapter: Adapter,
    audience: Option<Audience>,
}

impl MemoryRegion {
    /// What peers name the region by.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// What it consists of.
    pub fn ranges(&self) -> &[MemoryRange] {
        &self.ranges
    }

    /// What may be done with it, and by whom.
    pub fn access(&self) -> Flags {
        self.access
    }

    /// What it was registered with.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// The application's own.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The remote address of the region's first byte: with `VIRT_ADDR` its
    /// own address, else 0.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The length of all ranges together, in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing in it: a program that has no data registers that, too, and tells of its key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The endpoints and counters bound to it: they count themselves in and out here.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn binds(&self) -> &BindCount {
        &self.binds
    }
}

/// The regions of a domain, by key.
#[derive(Debug)]
pub struct MemoryRegionRegistry {
    mode: MemoryRegionMode,
    iov_limit: usize,
    regions: Mutex<Regions>,
}

#[derive(Default)]
struct Regions {
    by_key: HashMap<u64, Arc<MemoryRegion>>,
    /// What tells peers of endpoints of regions, as far as those may reach any.
    publishers: Vec<(Weak<dyn Publisher>, Permitted)>,
    /// How many keys of our own were made.
    serial: u64,
    /// Its secret turns serial numbers into keys that a peer cannot guess.
    secret: RandomState,
}

impl std::fmt::Debug for Regions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.by_key.values()).finish()
    }
}

impl MemoryRegionRegistry {
    /// A registry for a domain with this mode, as negotiated (`BASIC` and
    /// `SCALABLE` included), and at most `iov_limit` ranges a region.
    pub fn new(mode: MemoryRegionMode, iov_limit: usize) -> Self {
        let mode = if mode.contains(MemoryRegionMode::BASIC) {
            MemoryRegionMode::BASIC_EQUIVALENT
        } else {
            mode
        };
        MemoryRegionRegistry { mode, iov_limit, regions: Mutex::default() }
    }

    /// Whether keys are ours to choose.
    pub(crate) fn chooses_keys(&self) -> bool {
        self.mode.contains(MemoryRegionMode::PROV_KEY)
    }

    /// Registers ranges of memory under one key.
    ///
    /// Ownership: the memory stays the application's. Nothing is read here; who may
    /// call this has the promise of [`Self::register_unowned`] about the ranges.
    /// # Errors
    /// [`MemoryRegionError::KeyInUse`] for a requested key that is taken; the other variants for
    /// attributes of a bad form.
    /// # Reference
    /// fi_mr(3): `fi_mr_regattr`
    pub(crate) fn register(
        &self,
        attributes: &MemoryRegionAttributes<'_>,
    ) -> Result<Arc<MemoryRegion>, MemoryRegionError> {
        self.check(attributes)?;
        let mut regions = self.lock();
        // "The MR key must be provided by a remote process when performing RMA or atomic operations to a memory
        // region" (fi_mr(3)): of what none reaches, programs ask for the same key again and again.
        let is_reached = attributes.access.intersects(Flags::REMOTE_READ | Flags::REMOTE_WRITE);
        let key = if self.chooses_keys() || !is_reached {
            regions.next_key()
        } else if attributes.requested_key == KEY_NOTAVAIL {
            return Err(MemoryRegionError::ReservedKey { key: KEY_NOTAVAIL });
        } else {
            attributes.requested_key
        };
        let Entry::Vacant(place) = regions.by_key.entry(key) else {
            return Err(MemoryRegionError::KeyInUse { key });
        };
        let by_address = self.mode.contains(MemoryRegionMode::VIRT_ADDR);
        let region = Arc::new(MemoryRegion {
            key,
            ranges: attributes.ranges.into(),
            access: attributes.access & ACCESS,
            flags: attributes.flags,
            context: attributes.context,
            base: if by_address { first_address(attributes.ranges) } else { 0 },
            len: attributes.ranges.iter().map(|range| range.len).sum(),
            keeps_pages: self.mode.contains(MemoryRegionMode::ALLOCATED),
            binds: BindCount::default(),
            gate: Gate::default(),
            events: Events::default(),
            adapter: Adapter::default(),
            audience: attributes.audience.cloned(),
        });
        place.insert(region.clone());
        for (publisher, permitted) in &regions.publishers {
            publisher.upgrade().inspect(|publisher| region.publish(&**publisher, *permitted));
        }
        Ok(region)
    }

    /// Has `publisher` tell its peers of all regions that there are, and of those to come, as long as it
    /// is there: what is `permitted` of each.
    pub(crate) fn publish_by(&self, publisher: &Arc<dyn Publisher>, permitted: Permitted) {
        let mut regions = self.lock();
        for region in regions.by_key.values() {
            region.forget_ended_leases();
            region.publish(&**publisher, permitted);
        }
        regions.publishers.retain(|(known, _)| known.strong_count() > 0);
        regions.publishers.push((Arc::downgrade(publisher), permitted));
    }

    /// The region behind `key`.
    ///
    /// Cost: takes the registry's mutex. Engines remember what they find here (`engine/regions.rs`).
    pub fn lookup(&self, key: u64) -> Option<Arc<MemoryRegion>> {
        self.lock().by_key.get(&key).cloned()
    }

    /// Runs `work` while `region`, which is registered here, is sure not to close.
    ///
    /// # Errors
    /// [`MemoryRegionError::NotRegistered`]: it is closed, or another registry's.
    pub(crate) fn while_open(
        &self,
        region: &MemoryRegion,
        work: impl FnOnce() -> Result<(), MemoryRegionError>,
    ) -> Result<(), MemoryRegionError> {
        let regions = self.lock();
        let key = region.key;
        let known = regions.by_key.get(&key).filter(|known| std::ptr::eq(&***known, region));
        known.map_or(Err(MemoryRegionError::NotRegistered { key }), |_| work())
    }

    /// Closes a region; its key finds nothing from then on, and may be requested again. What
    /// peers were doing to its memory at this moment is over when this returns.
    ///
    /// # Errors
    /// [`MemoryRegionError::Bind`] while something is bound to it, and it stays registered;
    /// [`MemoryRegionError::NotRegistered`] for another registry's region.
    pub fn close(&self, region: &Arc<MemoryRegion>) -> Result<(), MemoryRegionError> {
        let mut regions = self.lock();
        let key = region.key;
        let Entry::Occupied(place) = regions.by_key.entry(key) else {
            return Err(MemoryRegionError::NotRegistered { key });
        };
        if !Arc::ptr_eq(place.get(), region) {
            return Err(MemoryRegionError::NotRegistered { key });
        }
        region.binds.close()?;
        // The key may be another's from here on, and nobody reaches this one by it.
        region.announce_end();
        place.remove();
        drop(regions);
        region.gate.close();
        region.adapter.revoke();
        Ok(())
    }

    /// Ends what peers of `audiences` were leased of any region, as [`MemoryRegion::end_leases`] does, and
    /// what they are told.
    pub(crate) fn end_leases(&self, audiences: &HashSet<u64>) {
        let mut locked = self.lock();
        locked.publishers.retain(|(publisher, _)| {
            publisher.upgrade().is_some_and(|publisher| !audiences.contains(&publisher.audience()))
        });
        let regions: Vec<_> = locked.by_key.values().cloned().collect();
        drop(locked);
        regions.iter().for_each(|region| region.end_leases(|known| audiences.contains(&known)));
    }

    /// How many regions are registered: a domain with any does not close.
    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    /// Whether none is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn check(&self, attributes: &MemoryRegionAttributes<'_>) -> Result<(), MemoryRegionError> {
        let count = attributes.ranges.len();
        if count == 0 || count > self.iov_limit {
            return Err(MemoryRegionError::RangeCount { count, count_max: self.iov_limit });
        }
        let mut total = 0_u64;
        for (index, &MemoryRange { address, len }) in attributes.ranges.iter().enumerate() {
            let fits = address.checked_add(len.saturating_sub(1)).is_some();
            total = match total.checked_add(len) {
                Some(sum) if fits => sum,
                _ => {
                    return Err(MemoryRegionError::BadRange { index, address, len });
                }
            };
        }
        if !ACCESS.union(FAMILIES).contains(attributes.access) {
            return Err(MemoryRegionError::UnknownAccess { access: attributes.access.bits() });
        }
        if attributes.offset != 0 {
            return Err(MemoryRegionError::Offset { offset: attributes.offset });
        }
        if !attributes.flags.difference(Flags::RMA_EVENT | Flags::RMA_PMEM).is_empty() {
            return Err(MemoryRegionError::UnsupportedFlags { flags: attributes.flags.bits() });
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Regions> {
        // Nothing under the mutex leaves the map half changed.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the first byte is; of nothing, where that would be.
fn first_address(ranges: &[MemoryRange]) -> u64 {
    let first = ranges.iter().find(|range| range.len > 0).or(ranges.first());
    first.map_or(0, |range| range.address)
}

impl Regions {
    /// A key of our own: not in use, and not to be guessed from other keys,
    /// so that a key that outlives its region finds nothing. Nor is it an address.
    fn next_key(&mut self) -> u64 {
        loop {
            self.serial += 1;
            let key = self.secret.hash_one(self.serial) | 1 << 63;
            if key != KEY_NOTAVAIL && !self.by_key.contains_key(&key) {
                return key;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::{Errno, HasErrno};

    const PAGE: MemoryRange = MemoryRange { address: 0x1000, len: 4096 };
    const NEXT: MemoryRange = MemoryRange { address: 0x9000, len: 10 };

    fn attributes<'a>(ranges: &'a [MemoryRange], requested_key: u64) -> MemoryRegionAttributes<'a> {
        let access = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
        MemoryRegionAttributes { ranges, access, requested_key, ..Default::default() }
    }

    fn scalable() -> MemoryRegionRegistry {
        MemoryRegionRegistry::new(MemoryRegionMode::empty(), 4)
    }

    #[test]
    fn a_requested_key_is_honoured_once_at_a_time() {
        let registry = scalable();
        let region = registry.register(&attributes(&[PAGE, NEXT], 0xc0de)).unwrap();
        assert_eq!((region.key(), region.base(), region.len()), (0xc0de, 0, 4106));
        assert_eq!(region.ranges(), [PAGE, NEXT]);
        let taken = registry.register(&attributes(&[NEXT], 0xc0de)).unwrap_err();
        assert_eq!(
            (taken, taken.errno()),
            (MemoryRegionError::KeyInUse { key: 0xc0de }, Errno::NOKEY)
        );
        registry.close(&region).unwrap();
        assert!(registry.lookup(0xc0de).is_none());
        registry.register(&attributes(&[NEXT], 0xc0de)).unwrap();
        assert_eq!(registry.lookup(0xc0de).unwrap().ranges(), [NEXT]);
        let reserved = registry.register(&attributes(&[NEXT], u64::MAX)).unwrap_err();
        assert_eq!(reserved, MemoryRegionError::ReservedKey { key: u64::MAX });
    }

    /// Programs register many that nobody reaches, and ask for key 0 each time.
    #[test]
    fn what_nobody_reaches_takes_no_key() {
        let registry = scalable();
        let access = Flags::SEND | Flags::RECV | Flags::READ | Flags::WRITE;
        let local =
            || registry.register(&MemoryRegionAttributes { access, ..attributes(&[PAGE], 0) });
        let regions = [local().unwrap(), local().unwrap()];
        assert_ne!(regions[0].key(), regions[1].key());
        let reached = registry.register(&attributes(&[NEXT], 0)).unwrap();
        assert_eq!(reached.key(), 0);
        assert!(regions.iter().all(|region| region.key() != 0));
    }

    #[test]
    fn provider_keys_ignore_the_request_and_never_return() {
        let registry = MemoryRegionRegistry::new(MemoryRegionMode::BASIC, 1);
        let mut keys = std::collections::HashSet::new();
        for _ in 0..1000 {
            let region = registry.register(&attributes(&[PAGE], 7)).unwrap();
            assert_eq!(region.base(), 0x1000);
            assert!(keys.insert(region.key()), "a key came twice");
            registry.close(&region).unwrap();
        }
        assert!(registry.is_empty());
        let keep: Vec<_> =
            (0..2).map(|_| registry.register(&attributes(&[PAGE], 7)).unwrap()).collect();
        assert_eq!((registry.len(), keep[0].key() == keep[1].key()), (2, false));
    }

    #[test]
    fn bad_attributes_are_refused_with_their_values() {
        let registry = scalable();
        let refuse =
            |attributes: MemoryRegionAttributes<'_>| registry.register(&attributes).unwrap_err();
        let count = |count| MemoryRegionError::RangeCount { count, count_max: 4 };
        assert_eq!(refuse(attributes(&[], 1)), count(0));
        assert_eq!(refuse(attributes(&[PAGE; 5], 1)), count(5));
        let past = MemoryRange { address: u64::MAX, len: 2 };
        let bad = MemoryRegionError::BadRange { index: 0, address: u64::MAX, len: 2 };
        assert_eq!(refuse(attributes(&[past], 1)), bad);
        let huge = MemoryRange { address: 1, len: u64::MAX };
        assert!(matches!(
            refuse(attributes(&[huge, PAGE], 1)),
            MemoryRegionError::BadRange { index: 1, .. }
        ));
        let offset = MemoryRegionAttributes { offset: 8, ..attributes(&[PAGE], 1) };
        assert_eq!(refuse(offset), MemoryRegionError::Offset { offset: 8 });
        let access = MemoryRegionAttributes { access: Flags::MORE, ..attributes(&[PAGE], 1) };
        let unknown = MemoryRegionError::UnknownAccess { access: Flags::MORE.bits() };
        assert_eq!(refuse(access), unknown);
        let flags = MemoryRegionAttributes { flags: Flags::MORE, ..attributes(&[PAGE], 1) };
        assert_eq!(refuse(flags).errno(), Errno::BADFLAGS);
        assert!(registry.is_empty());
        let last_byte = MemoryRange { address: u64::MAX, len: 1 };
        registry.register(&attributes(&[last_byte], 1)).unwrap();
    }

    #[test]
    fn families_of_operations_are_no_access() {
        let registry = scalable();
        let access = Flags::RMA | Flags::MSG | Flags::TAGGED | Flags::ATOMIC | Flags::REMOTE_READ;
        let named = MemoryRegionAttributes { access, ..attributes(&[PAGE], 1) };
        assert_eq!(registry.register(&named).unwrap().access(), Flags::REMOTE_READ);
    }

    #[test]
    fn a_bound_region_does_not_close_and_stays_findable() {
        let registry = scalable();
        let region = registry.register(&attributes(&[PAGE], 1)).unwrap();
        region.binds().bind().unwrap();
        assert_eq!(registry.close(&region).unwrap_err().errno(), Errno::BUSY);
        assert!(registry.lookup(1).is_some());
        region.binds().unbind().unwrap();
        registry.close(&region).unwrap();
        let twice = registry.close(&region).unwrap_err();
        assert_eq!(twice, MemoryRegionError::NotRegistered { key: 1 });
        let stranger = scalable().register(&attributes(&[PAGE], 2)).unwrap();
        registry.register(&attributes(&[PAGE], 2)).unwrap();
        assert_eq!(registry.close(&stranger), Err(MemoryRegionError::NotRegistered { key: 2 }));
    }
}

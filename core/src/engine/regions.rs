//! The regions that an engine has found by their keys: looked up without a lock.

use std::{collections::HashSet, num::NonZeroU8, sync::Arc};

use crate::{
    engine::permitted::Permitted,
    memory_region::{MemoryRegion, MemoryRegionRegistry, access::Refusal},
    window::{Access, Publisher},
};

/// Regions that are remembered: a power of two.
const PLACES: usize = 64;

/// The regions that peers have used lately. A key has one place, and shares it
/// with others, so a peer that guesses keys costs itself the registry's mutex
/// and us no memory.
pub struct KnownRegions {
    registry: Arc<MemoryRegionRegistry>,
    places: Box<[Option<Arc<MemoryRegion>>; PLACES]>,
    /// What tells peers of the domain's regions before they ask.
    publisher: Option<Arc<dyn Publisher>>,
}

/// Where an engine remembers a region. A receive keeps that instead of the key, since it is a byte: so
/// another region may be there by then.
#[derive(Clone, Copy, Debug)]
pub struct Noted(NonZeroU8);

#[inline(always)]
fn place_of(key: u64) -> usize {
    // The upper bits of a product depend on all bits of the key.
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.trailing_zeros())) as usize
}

impl KnownRegions {
    /// Nothing is known yet.
    pub fn new(registry: Arc<MemoryRegionRegistry>) -> KnownRegions {
        let places = Box::new([const { None }; PLACES]);
        KnownRegions { registry, places, publisher: None }
    }

    /// Whether keys are ours to choose, so that nobody knows one but from the application.
    pub fn keys_are_secret(&self) -> bool {
        self.registry.chooses_keys()
    }

    /// The region behind `key`. Cost: no lock if it was used lately.
    #[inline(always)]
    pub fn find(&mut self, key: u64) -> Result<&Arc<MemoryRegion>, Refusal> {
        let place = &mut self.places[place_of(key)];
        let known = place.as_ref().is_some_and(|known| known.key() == key && !known.is_closed());
        if !known {
            look_up(place, &self.registry, key);
        }
        place.as_ref().filter(|known| known.key() == key).ok_or(Refusal::Key)
    }

    /// Has the domain's regions told of by `publisher`, of which an engine has one, as far as it is `permitted`
    /// by now: until leases end.
    pub fn publish_by(&mut self, publisher: Arc<dyn Publisher>, permitted: Permitted) {
        if self.publisher.is_none() && Access::of(permitted).is_any() {
            self.registry.publish_by(&publisher, permitted);
            self.publisher = Some(publisher);
        }
    }

    /// Ends what peers of `audiences` were leased of any region of the domain, and what all are told.
    pub fn end_leases(&mut self, mut audiences: HashSet<u64>) {
        audiences.extend(self.publisher.take().map(|publisher| publisher.audience()));
        self.registry.end_leases(&audiences);
    }

    /// Remembers the region behind `key`, if there is one.
    pub fn note(&mut self, key: u64) -> Option<Noted> {
        self.find(key).ok()?;
        NonZeroU8::new(place_of(key) as u8 + 1).map(Noted)
    }

    /// The region that is remembered there.
    pub fn noted(&self, place: Noted) -> Option<&Arc<MemoryRegion>> {
        self.places[usize::from(place.0.get()) - 1].as_ref()
    }
}

#[cold]
#[inline(never)]
fn look_up(place: &mut Option<Arc<MemoryRegion>>, registry: &MemoryRegionRegistry, key: u64) {
    if let Some(found) = registry.lookup(key) {
        *place = Some(found);
    } else if place.as_ref().is_some_and(|known| known.is_closed()) {
        *place = None;
    }
}

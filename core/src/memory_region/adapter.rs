//! A region as adapters know it, so that peers reach it without our processor.
//!
//! It is registered when a peer asks, or gets a message that lies in it, with the access that the region
//! has: once for all peers that share a registration, which are those of one device, or for a peer
//! alone. Where peers can be told of regions before they ask ([`Publisher`]), it is told of when it is
//! registered with the domain. And it is registered for our own operations, when the first long one says
//! that its buffer lies in it. When the region is closed all of that ends, before the close returns. A region whose use is counted is not
//! registered: an adapter counts nothing. Nor does a device get one whose pages may change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{MemoryRegion, access::Access as Entered};
use crate::{
    engine::permitted::Permitted,
    flags::Flags,
    memory::Piece,
    window::{Access, Lease, OwnRegistration, Publisher, Registration, RegistrationRequest},
};

/// What became of a region's registrations.
enum State {
    /// Those that there are.
    Open(Open),
    /// There may be none any more.
    Never,
}

/// Whether our own adapter has the memory.
#[derive(Default)]
enum Own {
    #[default]
    NotYet,
    Registered(OwnRegistration),
    /// It cannot: not tried again, which could take long.
    Refused,
}

#[derive(Default)]
struct Open {
    /// For peers, by their audiences: one alone, those of a device, or those of a publisher.
    leased: Vec<(u64, Arc<dyn Registration>)>,
    /// For our own adapter alone.
    own: Own,
}

/// A region's registrations with adapters.
pub struct Adapter {
    state: Mutex<State>,
}

impl Default for Adapter {
    fn default() -> Self {
        Adapter { state: Mutex::new(State::Open(Open::default())) }
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Adapter")
    }
}

impl Adapter {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is one value, replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deregisters for good: no adapter touches the memory when this returns.
    pub(super) fn revoke(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Never);
        let State::Open(Open { leased, own }) = before else {
            return;
        };
        // First all of them, then each is waited for: what waits is not the sum.
        leased.iter().for_each(|(_, registration)| registration.revoke());
        drop((leased, own));
    }
}

impl MemoryRegion {
    /// What a peer of `audience` may reach of the region by an adapter, if `permitted` and the
    /// region allow any of it; atomically if `atomics`. The first time `register` registers it.
    pub(crate) fn lease(
        &self,
        permitted: Permitted,
        atomics: bool,
        audience: u64,
        register: impl FnOnce(&RegistrationRequest) -> Option<Arc<dyn Registration>>,
    ) -> Option<Lease> {
        let access = self.access_by_adapters(permitted, atomics);
        self.while_leased(access, |registrations, whole, lease| {
            registrations.retain(|(_, registration)| !registration.is_over());
            let known = registrations.iter().find(|(known, _)| *known == audience);
            let remote_key = match known {
                Some((_, registration)) => registration.remote_key(),
                None => {
                    let registration = register(&RegistrationRequest {
                        memory: whole,
                        access: self.access_by_adapters(Permitted::ALL, atomics),
                        local_write: self.access.intersects(Flags::RECV | Flags::READ),
                        keeps_pages: self.keeps_pages,
                    })?;
                    let remote_key = registration.remote_key();
                    registrations.push((audience, registration));
                    remote_key
                }
            };
            Some(Lease { remote_key, ..lease })
        })
    }

    /// Tells all peers of `publisher` of the region, if it is for all, and `permitted` and the region
    /// allow any of it. They ask where there is no room for it.
    pub(crate) fn publish(&self, publisher: &dyn Publisher, permitted: Permitted) {
        if self.audience.is_some() {
            return;
        }
        self.while_leased(self.access_by_adapters(permitted, false), |leased, _, lease| {
            leased.push((publisher.audience(), publisher.publish(self.key, &lease)?));
            Some(())
        });
    }

    /// What an adapter may do of what is permitted.
    fn access_by_adapters(&self, permitted: Permitted, atomics: bool) -> Access {
        Access::of(permitted.by_adapters(atomics).within(self.access))
    }

    /// Has `give` lease the region for `access`, unless nothing of it may be leased. It gets those who have
    /// leases, and the lease, but for the key.
    fn while_leased<R>(
        &self,
        access: Access,
        give: impl FnOnce(&mut Vec<(u64, Arc<dyn Registration>)>, Piece, Lease) -> Option<R>,
    ) -> Option<R> {
        let kind =
            if access.write || access.atomic { Flags::REMOTE_WRITE } else { Flags::REMOTE_READ };
        // Closing waits for this, and deregisters after it.
        let entered = self.access_as(kind).ok()?;
        let whole = self.as_one_piece(&entered);
        let counted = self.flags.contains(Flags::RMA_EVENT) || self.events.all().next().is_some();
        let mut state = self.adapter.lock();
        let State::Open(Open { leased, .. }) = &mut *state else {
            return None;
        };
        let whole = whole.filter(|_| access.is_any() && !counted)?;
        let address = whole.as_ptr().addr() as u64;
        let lease = Lease { base: self.base, length: self.len, address, remote_key: 0, access };
        give(leased, whole, lease)
    }

    /// Ends what peers were leased whose audience `is_meant`: their adapters touch no memory of it when this
    /// returns. Who asks again gets another lease.
    #[cold]
    pub(crate) fn end_leases(&self, is_meant: impl Fn(u64) -> bool) {
        // Who closes the region waits for the lock, and so for what this waits for.
        if let State::Open(Open { leased, .. }) = &mut *self.adapter.lock() {
            let meant = leased.iter().filter(|(known, _)| is_meant(*known));
            meant.for_each(|(_, registration)| registration.revoke());
            leased.retain(|(known, _)| !is_meant(*known));
        }
    }

    /// Peers begin nothing more with what they were leased. [`Adapter::revoke`] waits for them.
    pub(super) fn announce_end(&self) {
        if let State::Open(Open { leased, .. }) = &*self.adapter.lock() {
            leased.iter().for_each(|(_, registration)| registration.revoke());
        }
    }

    /// Forgets leases that are over.
    pub(super) fn forget_ended_leases(&self) {
        if let State::Open(Open { leased, .. }) = &mut *self.adapter.lock() {
            leased.retain(|(_, registration)| !registration.is_over());
        }
    }

    /// Whether messages of ours may be sent from `piece` as it lies in the region, and peers may read there.
    pub(crate) fn lends(&self, piece: Piece) -> bool {
        self.access_as(Flags::SEND | Flags::REMOTE_READ).is_ok_and(|entered| {
            self.as_one_piece(&entered).is_some_and(|whole| whole.contains(piece))
        })
    }

    /// All of the region, if it is one piece: no adapter has several, or nothing.
    fn as_one_piece(&self, entered: &Entered<'_>) -> Option<Piece> {
        let whole = entered.contiguous(0, self.len);
        (!whole.is_empty() && whole.len() as u64 == self.len).then_some(whole)
    }

    /// The registration with our own adapter that `piece` lies in, if the region is for operations of
    /// ours of that `kind`: `READ`, `WRITE` or `RECV`. The first time `register` registers all of the
    /// region for that, and for no peer: with a device, so that the memory has to keep its pages. It ends
    /// with the region, and what is still under way then.
    pub(crate) fn registered_as_own(
        &self,
        piece: Piece,
        kind: Flags,
        register: impl FnOnce(Piece, bool) -> Option<OwnRegistration>,
    ) -> Option<OwnRegistration> {
        // Closing waits for this, and deregisters after it.
        let entered = self.access_as(kind).ok()?;
        let holds = |whole: &Piece| self.keeps_pages && whole.contains(piece);
        let whole = self.as_one_piece(&entered).filter(holds)?;
        let mut state = self.adapter.lock();
        let State::Open(Open { own, .. }) = &mut *state else {
            return None;
        };
        if let Own::NotYet = own {
            let made = register(whole, self.access.intersects(Flags::RECV | Flags::READ));
            *own = made.map_or(Own::Refused, Own::Registered);
        }
        match own {
            Own::Registered(registration) => Some(registration.clone()),
            Own::NotYet | Own::Refused => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::{super::*, *};

    struct Lent;

    impl Registration for Lent {
        fn remote_key(&self) -> u32 {
            7
        }
    }

    /// No adapter registers nothing.
    #[test]
    fn what_is_empty_is_not_leased() {
        let registry = MemoryRegionRegistry::new(MemoryRegionMode::ALLOCATED, 2);
        let access = Flags::REMOTE_READ | Flags::WRITE;
        let nothing = MemoryRange { address: 0, len: 0 };
        for ranges in [&[nothing][..], &[nothing; 2]] {
            let attributes = MemoryRegionAttributes { ranges, access, ..Default::default() };
            let region = registry.register(&attributes).unwrap();
            assert!(region.is_empty());
            assert!(region.lease(Permitted::ALL, false, 1, |_| unreachable!()).is_none());
            let own = region.registered_as_own(Piece::EMPTY, Flags::WRITE, |_, _| unreachable!());
            assert!(own.is_none());
            registry.close(&region).unwrap();
        }
        // Beside others it is none of them, and the first byte has the first address.
        let mode = MemoryRegionMode::ALLOCATED | MemoryRegionMode::VIRT_ADDR;
        let registry = MemoryRegionRegistry::new(mode, 2);
        let page = MemoryRange { address: 0x1000, len: 4096 };
        let ranges = &[nothing, page];
        let attributes = MemoryRegionAttributes { ranges, access, ..Default::default() };
        let region = registry.register(&attributes).unwrap();
        let lease = region.lease(Permitted::ALL, false, 1, |_| Some(Arc::new(Lent))).unwrap();
        assert_eq!((region.base(), lease.address, lease.length), (0x1000, 0x1000, 4096));
    }

    /// The keys of what it has told of.
    #[derive(Default)]
    struct Told(Mutex<Vec<u64>>);

    impl Publisher for Told {
        fn audience(&self) -> u64 {
            9
        }

        fn publish(&self, key: u64, _: &Lease) -> Option<Arc<dyn Registration>> {
            self.0.lock().unwrap().push(key);
            Some(Arc::new(Lent))
        }
    }

    #[test]
    fn peers_are_told_of_what_is_for_all_as_long_as_somebody_tells_them() {
        let registry = MemoryRegionRegistry::new(MemoryRegionMode::empty(), 2);
        let page = MemoryRange { address: 0x1000, len: 4096 };
        let register = |requested_key, ranges: &[MemoryRange], access, flags| {
            let attributes = MemoryRegionAttributes {
                ranges,
                access,
                requested_key,
                flags,
                ..Default::default()
            };
            registry.register(&attributes).unwrap()
        };
        let plain = |key| register(key, &[page], Flags::REMOTE_READ, Flags::empty());
        let told = Arc::new(Told::default());
        let keys = || std::mem::take(&mut *told.0.lock().unwrap());
        plain(1);
        let publisher = told.clone() as Arc<dyn Publisher>;
        registry.publish_by(&publisher, Permitted::ALL);
        let closed = plain(2);
        assert_eq!(keys(), [1, 2]);
        register(3, &[page], Flags::REMOTE_READ, Flags::RMA_EVENT);
        register(4, &[page; 2], Flags::REMOTE_READ, Flags::empty());
        register(5, &[page], Flags::WRITE, Flags::empty());
        assert_eq!(keys(), [0; 0]);
        registry.close(&closed).unwrap();
        let leases = |region: &MemoryRegion| match &*region.adapter.lock() {
            State::Open(open) => open.leased.len(),
            State::Never => 0,
        };
        let last = plain(6);
        assert_eq!((keys(), leases(&last), leases(&closed)), (vec![6], 1, 0));
        registry.end_leases(&HashSet::from([9]));
        let (after, told) = (plain(7), keys());
        assert_eq!((told.len(), leases(&last), leases(&after)), (0, 0, 0));
        registry.publish_by(&publisher, Permitted::ALL);
        assert_eq!((keys().len(), leases(&last)), (3, 1));
        assert_eq!(Arc::strong_count(&publisher), 2, "whoever tells is not kept");
    }

    /// A peer that is at the memory for as long as this says.
    struct Busy(Arc<std::sync::Barrier>);

    impl Registration for Busy {
        fn remote_key(&self) -> u32 {
            7
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.wait();
            self.0.wait();
        }
    }

    #[test]
    fn a_close_waits_for_leases_that_another_thread_ends() {
        let registry = MemoryRegionRegistry::new(MemoryRegionMode::empty(), 1);
        let ranges = &[MemoryRange { address: 0x1000, len: 4096 }];
        let access = Flags::REMOTE_READ;
        let attributes = MemoryRegionAttributes { ranges, access, ..Default::default() };
        let region = registry.register(&attributes).unwrap();
        let busy = Arc::new(std::sync::Barrier::new(2));
        let lent = Arc::new(Busy(busy.clone()));
        assert!(region.lease(Permitted::ALL, false, 1, |_| Some(lent)).is_some());
        std::thread::scope(|scope| {
            scope.spawn(|| region.end_leases(|_| true));
            busy.wait();
            let closing = scope.spawn(|| registry.close(&region).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            let waits = !closing.is_finished();
            busy.wait();
            assert!(waits);
        });
    }

    #[test]
    fn leases_end_for_some_audiences_alone() {
        let registry = MemoryRegionRegistry::new(MemoryRegionMode::empty(), 1);
        let regions = [1, 2].map(|requested_key| {
            let ranges = &[MemoryRange { address: 0x1000, len: 4096 }];
            let access = Flags::REMOTE_READ;
            let attributes =
                MemoryRegionAttributes { ranges, access, requested_key, ..Default::default() };
            registry.register(&attributes).unwrap()
        });
        // Which of three audiences it has to be registered for.
        let registered = |region: &MemoryRegion| {
            [1, 2, 3].map(|audience| {
                let mut anew = false;
                let lease = region.lease(Permitted::ALL, false, audience, |_| {
                    anew = true;
                    Some(Arc::new(Lent))
                });
                assert!(lease.is_some());
                anew
            })
        };
        assert!(regions.iter().all(|region| registered(region) == [true; 3]));
        registry.end_leases(&HashSet::from([1, 3]));
        assert!(regions.iter().all(|region| registered(region) == [true, false, true]));
    }
}

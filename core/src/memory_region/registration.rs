//! Registering on a domain: where the promise about the memory is given, and
//! what is told when peers use it.

use std::sync::{Arc, OnceLock};

use super::{MemoryRegion, MemoryRegionAttributes, MemoryRegionError, MemoryRegionRegistry};
use crate::address_vector::AddressVector;
use crate::completion_counter::CompletionCounter;
use crate::counter::CounterCell;
use crate::domain::Domain;
use crate::flags::Flags;
use crate::transport::Provider;

/// The counters bound to a region.
#[derive(Debug, Default)]
pub struct Events {
    read: OnceLock<Arc<CounterCell>>,
    write: OnceLock<Arc<CounterCell>>,
}

impl Events {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<CounterCell>> {
        self.read.get().into_iter().chain(self.write.get())
    }
}

impl MemoryRegion {
    /// Whether anything counts what peers do to it.
    pub(crate) fn is_counted(&self) -> bool {
        self.events.all().next().is_some()
    }

    /// Has `counter` count what `flags` say, or refuses where one does.
    fn bind_counter(
        &self,
        counter: &Arc<CounterCell>,
        flags: Flags,
    ) -> Result<(), MemoryRegionError> {
        let places =
            [(Flags::REMOTE_READ, &self.events.read), (Flags::REMOTE_WRITE, &self.events.write)];
        let wanted = || places.iter().filter(|(kind, _)| flags.contains(*kind));
        let bound = MemoryRegionError::CounterBound { key: self.key };
        if wanted().any(|(_, place)| place.get().is_some()) {
            return Err(bound);
        }
        for (_, place) in wanted() {
            counter.binds().bind()?;
            if place.set(counter.clone()).is_err() {
                // Another thread was first.
                let _ = counter.binds().unbind();
                return Err(bound);
            }
        }
        Ok(())
    }

    /// A peer has read the region, or written to it (`REMOTE_READ`, `REMOTE_WRITE`), or both at once:
    /// then a counter of both counts it once.
    #[inline(always)]
    pub(crate) fn count(&self, kinds: Flags) {
        let written = self.events.write.get().filter(|_| kinds.contains(Flags::REMOTE_WRITE));
        let read = self.events.read.get().filter(|_| kinds.contains(Flags::REMOTE_READ));
        let is_written_too =
            |read: &&Arc<CounterCell>| written.is_some_and(|it| Arc::ptr_eq(it, read));
        for counter in written.into_iter().chain(read.filter(|read| !is_written_too(read))) {
            counter.add(1);
        }
    }
}

impl MemoryRegionRegistry {
    /// Registers memory of no domain: for whoever drives an engine by itself.
    ///
    /// # Safety
    /// As [`Domain::register_memory`], until [`Self::close`] returned.
    pub unsafe fn register_unowned(
        &self,
        attributes: &MemoryRegionAttributes<'_>,
    ) -> Result<Arc<MemoryRegion>, MemoryRegionError> {
        self.register(attributes)
    }
}

/// Lets go of the vector that a region's keys are from: "If resources are still associated with the
/// AV when attempting to close, the call will return -FI_EBUSY" (fi_av(3)).
fn unbind(vector: Option<&Arc<AddressVector>>) {
    if let Some(vector) = vector {
        // Counted when the region was registered, so this cannot fail.
        let _ = vector.binds().unbind();
    }
}

impl<P: Provider> Domain<P> {
    /// Registers memory that peers may reach, as its access says.
    ///
    /// Cost: cold; takes a lock and allocates.
    /// # Errors
    /// [`MemoryRegionError::KeyInUse`] for a requested key that is taken; the other variants for
    /// attributes of a bad form.
    /// # Safety
    /// Until [`Self::close_memory`] returned, and beyond that where it names a case in which a write may still come,
    /// the ranges are valid for reads if `REMOTE_READ` is allowed and for writes if `REMOTE_WRITE` is, and this program
    /// puts up with peers doing so at any time.
    /// # Reference
    /// fi_mr(3), `fi_mr_regattr`
    pub unsafe fn register_memory(
        &self,
        attributes: &MemoryRegionAttributes<'_>,
    ) -> Result<Arc<MemoryRegion>, MemoryRegionError> {
        let vector = attributes.audience.map(|audience| &audience.vector);
        self.uses().bind()?;
        let counted = vector.map_or(Ok(()), |vector| vector.binds().bind());
        let region = counted.map_err(MemoryRegionError::from).and_then(|()| {
            self.memory_regions().register(attributes).inspect_err(|_| unbind(vector))
        });
        if region.is_err() {
            // Counted above, so this cannot fail.
            let _ = self.uses().unbind();
        }
        region
    }

    /// Closes a region. Peers cannot reach it any more, and nothing they were doing with it is still under way when
    /// this returns, but for one case: a peer of this host that was stopped (SIGSTOP) in the middle of a write of up
    /// to 4 KiB, and stays so for a second. That write may still come when it goes on: see `docs/security.md`.
    /// # Errors
    /// [`MemoryRegionError::NotRegistered`] if it is closed or another domain's,
    /// [`MemoryRegionError::Bind`] while something is bound to it.
    /// # Reference
    /// fi_mr(3), `fi_close`
    pub fn close_memory(&self, region: &Arc<MemoryRegion>) -> Result<(), MemoryRegionError> {
        if self.provider().forked() {
            // Nothing reaches this copy; who was at it when the parent forked is at it for ever.
            return Ok(());
        }
        self.memory_regions().close(region)?;
        for counter in region.events.all() {
            // Both were counted when they were bound or registered, so neither can fail.
            let _ = counter.binds().unbind();
        }
        let _ = self.uses().unbind();
        unbind(region.audience.as_ref().map(|audience| &audience.vector));
        Ok(())
    }

    /// Has `counter` count what peers do to `region`: `REMOTE_WRITE`, `REMOTE_READ` or both.
    /// Reading the counter drives every endpoint of the domain from now on.
    /// # Errors
    /// [`MemoryRegionError::UnsupportedFlags`] for other flags,
    /// [`MemoryRegionError::OtherDomain`] for a counter of another domain,
    /// [`MemoryRegionError::NotRegistered`] for a region that is closed, or another domain's,
    /// [`MemoryRegionError::CounterBound`] if one is bound already.
    /// # Reference
    /// fi_mr(3), `fi_mr_bind`
    pub fn bind_memory_counter(
        &self,
        region: &MemoryRegion,
        counter: &CompletionCounter<P>,
        flags: Flags,
    ) -> Result<(), MemoryRegionError> {
        let known = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
        if flags.is_empty() || !known.contains(flags) {
            return Err(MemoryRegionError::UnsupportedFlags { flags: flags.bits() });
        }
        if !std::ptr::eq(&**counter.domain(), self) {
            return Err(MemoryRegionError::OtherDomain);
        }
        // Whoever closes it releases what is bound by then.
        self.memory_regions()
            .while_open(region, || region.bind_counter(counter.counter(), flags))?;
        // What a peer has been told of the region would go uncounted.
        region.adapter.revoke();
        counter.drive_domain();
        Ok(())
    }
}

//! The counters of one-sided operations that are bound to an endpoint.

use std::sync::Arc;

use crate::{
    bind_count::BindError, completion_counter::CompletionCounter, engine::report::OneSidedCounters,
    engine::unit::Unit, flags::Flags, transport::Provider,
};

/// What a counter can be bound for, beside sends and receives.
pub const KINDS: Flags =
    Flags::READ.union(Flags::WRITE).union(Flags::REMOTE_READ).union(Flags::REMOTE_WRITE);

const EACH: [Flags; 4] = [Flags::READ, Flags::WRITE, Flags::REMOTE_READ, Flags::REMOTE_WRITE];

/// One counter at most for each of [`KINDS`].
pub struct OneSided<P: Provider>([Option<Arc<CompletionCounter<P>>>; 4]);

impl<P: Provider> Default for OneSided<P> {
    fn default() -> Self {
        OneSided([const { None }; 4])
    }
}

impl<P: Provider> OneSided<P> {
    fn places(&self, kinds: Flags) -> impl Iterator<Item = usize> + use<P> {
        (0..EACH.len()).filter(move |&place| kinds.contains(EACH[place]))
    }

    /// Whether a counter is bound for any of `kinds`.
    pub fn has_any(&self, kinds: Flags) -> bool {
        self.places(kinds).any(|place| self.0[place].is_some())
    }

    /// Binds a counter for `kinds`, for which none is bound.
    pub fn bind(
        &mut self,
        counter: &Arc<CompletionCounter<P>>,
        kinds: Flags,
    ) -> Result<(), BindError> {
        for place in self.places(kinds) {
            counter.counter().binds().bind()?;
            self.0[place] = Some(counter.clone());
        }
        Ok(())
    }

    /// The plain counters, for the engine.
    pub fn counters(&self) -> OneSidedCounters {
        let [read, write, remote_read, remote_write] =
            self.0.each_ref().map(|bound| bound.as_ref().map(|counter| counter.counter().clone()));
        OneSidedCounters { read, write, remote_read, remote_write }
    }

    /// Has the counters drive `unit`.
    pub fn add_unit(&self, unit: &Arc<Unit<P>>) {
        self.0.iter().flatten().for_each(|counter| counter.add_unit(unit));
    }

    /// Lets go of the counters.
    pub fn release(&mut self, unit: Option<&Arc<Unit<P>>>) {
        for counter in self.0.iter_mut().filter_map(Option::take) {
            if let Some(unit) = unit {
                counter.units().remove(unit);
            }
            // Counted when it was bound, so this cannot fail.
            let _ = counter.counter().binds().unbind();
        }
    }
}

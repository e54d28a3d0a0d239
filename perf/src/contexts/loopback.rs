//! The transmit and the receive context of one index, of which each message goes to the other.

use super::Lane;
use super::endpoint::{Contexts, at_context};
use crate::end::{End, TAG};
use crate::fabric::{FabricError, await_one, inject_word};
use kestrel::Domain;
use kestrel_core::endpoint::EndpointOptions;
use kestrel_core::scalable_endpoint::ContextCounts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages between two looks at whether to stop.
const BATCH: u64 = 16;

pub struct Loopback {
    transmit: End,
    receive: End,
    /// The receive context.
    own: u64,
}

impl Loopback {
    /// All pairs of contexts of one endpoint.
    pub fn open(
        domain: &Arc<Domain>,
        options: &EndpointOptions,
        count: usize,
    ) -> Result<Vec<Self>, FabricError> {
        let counts = ContextCounts { transmit: count, receive: count };
        let contexts = Contexts::open(domain, options, counts)?;
        let own = contexts.learn(&contexts)?;
        let pair = |index| {
            let (transmit, receive) = (contexts.transmit(index)?, contexts.receive(index)?);
            Ok(Loopback { transmit, receive, own: at_context(own, index) })
        };
        (0..count).map(pair).collect()
    }

    /// One message from the transmit context to the receive context.
    #[inline(always)]
    fn exchange(&self) -> Result<(), FabricError> {
        let mut word = 0_u64;
        // SAFETY: the word outlives the receive: its completion is waited for.
        unsafe { self.receive.receive(&raw mut word, 0)? };
        inject_word(&self.transmit.endpoint, &self.transmit.queue, 7, self.own, TAG)?;
        await_one(&self.receive.queue)?;
        assert_eq!(word, 7);
        Ok(())
    }
}

impl Lane for Loopback {
    const THREADS: usize = 1;
    const WHAT: &str = "contexts that send to themselves";

    fn work(&self, _: usize, stop: &AtomicBool) -> Result<u64, FabricError> {
        let mut moved = 0;
        while !stop.load(Ordering::Relaxed) {
            (0..BATCH).try_for_each(|_| self.exchange())?;
            moved += BATCH;
        }
        Ok(moved)
    }
}

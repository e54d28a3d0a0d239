//! Connection requests: what an endpoint that accepts is opened from.

use std::fmt;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

use crate::{
    address::Address,
    connection::{ConnectionError, manager::Promise},
    engine::{BURST_MAX, submission::Submission, unit::Unit},
    primitive::yield_now,
    transport::Provider,
};

/// How long rejecting waits for the rejection to leave.
const REJECT_WAIT: Duration = Duration::from_millis(100);

/// A request that was taken from its passive endpoint, which can still reject it. Dropped without
/// having been accepted, it is rejected.
pub struct ConnectionRequest<P: Provider> {
    pub(super) unit: Arc<Unit<P>>,
    pub(super) handle: u64,
    pub(super) asked: AskedFor,
    is_returned: bool,
}

/// Whether a request is answered: it can be once, by the endpoint that accepts it, by
/// `fi_reject`, or by nobody who was asked.
#[derive(Clone, Default)]
pub struct Answer(Arc<AtomicBool>);

impl Answer {
    /// True for the first.
    pub(crate) fn give(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    fn is_given(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who asks for a connection, and whom.
pub struct AskedFor {
    /// Who asks.
    pub(crate) address: Address,
    /// Who was asked.
    pub(crate) listener: Address,
    /// What the answer names.
    pub(crate) nonce: u64,
    /// That it is answered.
    pub(crate) answer: Answer,
}

impl<P: Provider> ConnectionRequest<P> {
    pub(super) fn take(unit: &Arc<Unit<P>>, handle: u64) -> Result<Self, ConnectionError> {
        let asked = unit.with(|engine| engine.take_request(handle))??;
        Ok(ConnectionRequest { unit: unit.clone(), handle, asked, is_returned: false })
    }

    /// Who asks.
    pub fn address(&self) -> Address {
        self.asked.address
    }

    /// The address of the passive endpoint that was asked, which the endpoint that accepts goes by.
    pub fn listener(&self) -> Address {
        self.asked.listener
    }

    /// What names it.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Whether it was rejected meanwhile, or its caller is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.asked.answer.is_given()
    }

    /// Gives it back: it waits for an answer again, as before it was taken.
    pub(crate) fn give_back(mut self) {
        // If the caller or the listener is gone, there is nothing to wait for.
        let _ = self.unit.with(|engine| engine.return_request(self.handle));
        self.is_returned = true;
    }

    /// For the endpoint that accepts: who asks, what the answer names, and what it promises.
    ///
    /// # Errors
    /// [`ConnectionError::RequestOver`]: it was rejected meanwhile.
    pub(crate) fn accept(self) -> Result<(Address, u64, Box<dyn Promise>), ConnectionError> {
        if !self.asked.answer.give() {
            return Err(ConnectionError::RequestOver { handle: self.handle });
        }
        let (unit, handle) = (self.unit.clone(), self.handle);
        let promise = Acceptance { unit, handle, is_kept: false };
        Ok((self.asked.address, self.asked.nonce, Box::new(promise)))
    }
}

/// The promise of who accepted a request.
struct Acceptance<P: Provider> {
    /// The listener's.
    unit: Arc<Unit<P>>,
    handle: u64,
    is_kept: bool,
}

impl<P: Provider> Promise for Acceptance<P> {
    fn keep(mut self: Box<Self>) {
        self.is_kept = true;
    }
}

impl<P: Provider> Drop for Acceptance<P> {
    fn drop(&mut self) {
        if !self.is_kept {
            // Maybe from within that very engine, which lets acceptors catch up. If the listener is
            // gone, so is its lane, which the caller sees.
            self.unit.submit_due(Submission::Withdrawn(self.handle));
        }
    }
}

impl<P: Provider> fmt::Debug for ConnectionRequest<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRequest")
            .field("handle", &self.handle)
            .field("address", &self.asked.address)
            .field("listener", &self.asked.listener)
            .field("is_answered", &self.asked.answer.is_given())
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Drop for ConnectionRequest<P> {
    fn drop(&mut self) {
        if !self.is_returned && !self.asked.answer.is_given() {
            // If the caller or the listener is gone, there is nobody to tell.
            let _ = reject(&self.unit, self.handle, Vec::new(), true);
        }
    }
}

/// Turns a request of a listener's down, and lets the rejection leave: a lane to the caller has to be
/// made for it, and who rejects may not drive the listener any more. A caller that is not found in so
/// short a time, as it is where nothing is wrong with it, hears of it when the listener is driven.
pub(super) fn reject<P: Provider>(
    unit: &Unit<P>,
    handle: u64,
    data: Vec<u8>,
    unanswered: bool,
) -> Result<(), ConnectionError> {
    let caller = unit.with(|engine| engine.reject(handle, data, unanswered))??;
    let start = Instant::now();
    while unit.with(|engine| engine.has_control(caller)).unwrap_or(false)
        && start.elapsed() < REJECT_WAIT
    {
        unit.progress(BURST_MAX);
        yield_now();
    }
    Ok(())
}

//! Connection requests: what an endpoint that accepts is opened from.

use std::sync::Arc;

use crate::{
    address::Address, connection::ConnectionError, engine::unit::Unit, transport::Provider,
};

/// A request that was taken from its passive endpoint. Dropped without having been
/// accepted, it is rejected.
pub struct ConnectionRequest<P: Provider> {
    pub(super) unit: Arc<Unit<P>>,
    pub(super) handle: u64,
    pub(super) asked: AskedFor,
    pub(super) accepted: bool,
}

/// Who asks for a connection, and whom.
pub struct AskedFor {
    /// Who asks.
    pub(crate) address: Address,
    /// Who was asked.
    pub(crate) listener: Address,
    /// What the answer names.
    pub(crate) nonce: u64,
}

impl<P: Provider> ConnectionRequest<P> {
    pub(super) fn take(unit: &Arc<Unit<P>>, handle: u64) -> Result<Self, ConnectionError> {
        let asked = unit.with(|engine| engine.take_request(handle))??;
        Ok(ConnectionRequest { unit: unit.clone(), handle, asked, accepted: false })
    }

    /// Who asks.
    pub fn address(&self) -> Address {
        self.asked.address
    }

    /// The address of the passive endpoint that was asked, which the endpoint that accepts goes by.
    pub fn listener(&self) -> Address {
        self.asked.listener
    }

    /// For the endpoint that accepts: who asks, and what the answer names. What is returned
    /// beside that keeps the listener's lane open while it lives.
    pub(crate) fn accept(mut self) -> (Address, u64, Arc<Unit<P>>) {
        self.accepted = true;
        (self.asked.address, self.asked.nonce, self.unit.clone())
    }
}

impl<P: Provider> Drop for ConnectionRequest<P> {
    fn drop(&mut self) {
        if !self.accepted {
            // If the caller or the listener is gone, there is nobody to tell.
            let _ = self.unit.with(|engine| engine.reject(self.handle, Vec::new(), true));
        }
    }
}

//! A peer that makes its handshakes through the connection manager by hand.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use kestrel_verbs::{
    fake::{FakeFabric, FakeId, FakeManager, FakeOptions},
    manager::{Happening, ManagedId, Manager},
    testing::{
        BUFFER_BYTES,
        private::{Ask, Parties, decode_refusal},
        wire::RejectReason,
    },
    verbs::{Marks, RemoteMemory, Verbs},
};

use super::PATIENCE;

/// A peer that is no kestrel, or pretends to be one.
pub struct Raw {
    pub manager: Arc<FakeManager>,
    pub to: SocketAddr,
}

impl Raw {
    pub fn on(fabric: &FakeFabric, to: SocketAddr) -> Raw {
        let device = Arc::new(fabric.device(FakeOptions::default()));
        Raw { manager: Arc::new(device.open_manager().unwrap()), to }
    }

    pub fn next(&self) -> Happening<FakeId> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.manager.next_event() {
                return event.happening;
            }
            assert!(start.elapsed() < PATIENCE, "in vain: an event");
            std::thread::yield_now();
        }
    }

    pub fn parties(&self) -> Parties {
        Parties::new([127, 0, 0, 1].into(), self.to, 77)
    }

    pub fn question(&self) -> Ask {
        let credit = RemoteMemory { address: 4096, key: 1 };
        Ask { incarnation: 5, port: 7, buffer_bytes: BUFFER_BYTES as u16, credit, nonce: 1 }
    }

    /// Asks with that private data: the id, and what comes of it.
    pub fn ask(&self, data: &[u8]) -> (FakeId, Happening<FakeId>) {
        let own = SocketAddr::from(([127, 0, 0, 1], 0));
        let id = self.manager.resolve(1, own, self.to, Marks::default(), PATIENCE).unwrap();
        assert!(matches!(self.next(), Happening::AddressResolved));
        id.resolve_route(PATIENCE).unwrap();
        assert!(matches!(self.next(), Happening::RouteResolved));
        id.ask(77, data).unwrap();
        (id, self.next())
    }

    pub fn refusal(&self, data: &[u8]) -> Option<RejectReason> {
        match self.ask(data).1 {
            Happening::Refused { data } => decode_refusal(&data).ok(),
            _ => panic!("not refused"),
        }
    }
}

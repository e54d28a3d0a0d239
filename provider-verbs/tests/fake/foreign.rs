//! A program that is no kestrel has rdma_cm's port at the address of an endpoint, which takes connections over
//! TCP there.

use std::time::Instant;

use crate::common::{PATIENCE, adopt, managed_provider, open, provider, raw_managed::Raw, stream};
use kestrel_core::transport::{Transport, TransportEvent};
use kestrel_verbs::{
    fake::{FakeFabric, FakeId, FakeOptions},
    manager::{Happening, ManagedId, Manager, ManagerEvent},
};

/// Connects to an endpoint beside which somebody says this to whoever asks through the manager.
fn connect_beside(say: impl Fn(&FakeId)) {
    let fabric = FakeFabric::default();
    let ours = managed_provider(&fabric, FakeOptions::default());
    let theirs = provider(&fabric, FakeOptions::default());
    let (mut one, mut other) = (open(&ours), open(&theirs));
    let raw = Raw::on(&fabric, other.address().socket_addr());
    let foreign = raw.manager.bind(1, raw.to).unwrap();
    foreign.listen().unwrap();
    one.connect(0, other.address());
    let (start, mut asked) = (Instant::now(), 0);
    let event = loop {
        if let Some(event) = one.event() {
            break event;
        }
        if let Some(ManagerEvent { happening: Happening::Asked { id, .. }, .. }) =
            raw.manager.next_event()
        {
            say(&id);
            asked += 1;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: an outcome");
        std::thread::yield_now();
    };
    assert!(asked > 0 && matches!(event, TransportEvent::Connected { peer: 0, .. }), "{event:?}");
    adopt(&mut other, 0);
    stream(&mut one, &mut other, 0, 50);
}

#[test]
fn who_refuses_by_rdma_cm_does_not_hide_an_endpoint() {
    connect_beside(|id| id.refuse(&[]).unwrap());
}

#[test]
fn who_accepts_by_rdma_cm_does_not_hide_an_endpoint() {
    connect_beside(|id| id.answer(9, &[1; 52]).unwrap());
}

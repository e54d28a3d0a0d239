//! Connections whose TCP does not reach the peer's host any more, since it goes by another network.

use std::time::{Duration, Instant};

use crate::common::{connect, event, open, provider, stream, take};
use kestrel_core::transport::{Transport, TransportEvent};
use kestrel_verbs::fake::{FakeFabric, FakeOptions};

/// Longer than signs of life are asked for apart, twice.
const WATCHED: Duration = Duration::from_millis(2_500);

#[test]
fn a_connection_outlives_its_line() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let (mut one, mut other) = (open(&provider), open(&provider));
    connect(&mut one, &mut other, 0);
    connect(&mut other, &mut one, 0);
    stream(&mut one, &mut other, 0, 100);
    provider.mute_lines();
    let before = fabric.tally().carried;
    let start = Instant::now();
    while start.elapsed() < WATCHED {
        for end in [&mut one, &mut other] {
            assert!(take(end).is_none());
            let told = end.event();
            assert!(told.is_none(), "{told:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(fabric.tally().carried >= before + 4, "both ends of both have asked");
    stream(&mut one, &mut other, 0, 100);
    stream(&mut other, &mut one, 0, 100);
}

/// Its device does not answer: that is noticed though nothing was sent.
#[test]
fn a_host_that_vanishes_is_noticed_all_the_same() {
    let fabric = FakeFabric::default();
    let provider = provider(&fabric, FakeOptions::default());
    let (mut one, mut other) = (open(&provider), open(&provider));
    connect(&mut one, &mut other, 0);
    stream(&mut one, &mut other, 0, 100);
    provider.mute_lines();
    fabric.break_queue_pairs();
    for end in [&mut one, &mut other] {
        let told = event(end);
        assert!(matches!(told, TransportEvent::Lost { peer: 0, .. }), "{told:?}");
        end.disconnect(0);
    }
    connect(&mut one, &mut other, 1);
    stream(&mut one, &mut other, 1, 100);
}

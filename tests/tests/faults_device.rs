//! A device that fails: whoever waits for what can come no more is told.

use std::sync::Arc;

use kestrel::composite::CompositeProvider;
use kestrel_core::{
    address_vector::{AddressVector, AddressVectorAttributes},
    domain::Sharing,
    endpoint::PostError,
    error::Errno,
    event_queue::{ErrorEvent, EventQueue},
    flags::Flags,
    scalable_endpoint::ScalableEndpoint,
    transport::Provider,
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Options, World},
    contexts::{BITS, Context, counts, naming},
    fake::{fake_bed, fake_provider},
    link::{self, LISTENER, Listener},
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

/// What the endpoints of a world report when their device fails.
fn told<P: Provider>(world: &World<P>, events: &EventQueue) -> Vec<ErrorEvent> {
    let mut told = Vec::new();
    world.drive("each endpoint reports the device", || {
        told.extend(events.read_error());
        told.len() == world.nodes.len()
    });
    for error in &told {
        assert_eq!(error.error, Errno::NODEV, "{}", error.reason);
        assert!(error.reason.contains("has failed: the test says so"), "{}", error.reason);
    }
    assert!(events.is_empty());
    told
}

fn world<P: Provider>(bed: &Bed<P>, options: Options) -> (World<P>, Arc<EventQueue>) {
    let events = link::events();
    (bed.world_with(2, &Options { events: Some(events.clone()), ..options }), events)
}

/// "Critical errors are reported through the event queue associated with the EP" (fi_endpoint(3)). What is posted for
/// anybody ends: nobody is left who could send.
#[test]
fn who_waits_for_a_message_hears_of_its_device() {
    for options in [Options::default(), Options::datagrams()] {
        let (bed, _fabric) = fake_bed(VerbsOptions::default());
        let is_tagged = !options.endpoint.datagrams;
        let (world, events) = world(&bed, options);
        let tag = is_tagged.then_some(7);
        world.nodes[0].receive(8, None, 1);
        world.nodes[0].receive(8, tag, 2);
        bed.provider.device().remove();
        told(&world, &events);
        let failed = [(); 2].map(|()| world.received(0).bad(Errno::NODEV).context);
        assert!(failed == [1, 2] || failed == [2, 1], "{failed:?}");
        let refused = world.nodes[0].endpoint.receive(vec![3], u64::MAX, 4).unwrap_err();
        assert_eq!((refused.error, refused.buffer), (PostError::NoTransport, vec![3]));
        world.nothing_more();
    }
}

/// Peers of this host are reached by another way, and go on.
#[test]
fn who_is_reached_otherwise_goes_on() {
    let near = ShmProvider::new(ShmOptions::default()).unwrap();
    let far =
        fake_provider(&FakeFabric::default(), FakeOptions::default(), VerbsOptions::default());
    let device = far.device().clone();
    let provider = Arc::new(CompositeProvider::both(near, far));
    let (world, events) = world(&Bed { provider, sharing: Sharing::Shared }, Options::default());
    world.nodes[1].receive(8, None, 1);
    device.remove();
    told(&world, &events);
    world.nodes[0].send(vec![5; 8], 1, None, 2);
    assert_eq!(world.received(1).context(), 1);
    world.sent(0).good();
    world.nothing_more();
}

/// By its own name each, and not those that are closed.
#[test]
fn contexts_hear_of_their_device() {
    for closes in [false, true] {
        let (bed, _fabric) = fake_bed(VerbsOptions::default());
        let (domain, events) = (bed.domain(Default::default()), link::events());
        domain.bind_event_queue(&events).unwrap();
        let portal = ScalableEndpoint::open(&domain, naming(), counts(1, 1)).unwrap();
        let vector = AddressVectorAttributes { rx_ctx_bits: BITS, ..Default::default() };
        portal.bind_address_vector(&Arc::new(AddressVector::open(vector).unwrap())).unwrap();
        portal.enable().unwrap();
        let (transmit, receive) = (
            portal.transmit_context(0, naming()).unwrap(),
            portal.receive_context(0, naming()).unwrap(),
        );
        transmit.announce_as(1);
        receive.announce_as(2);
        let transmit = Context::enabled(transmit, Flags::TRANSMIT);
        let receive = Context::enabled(receive, Flags::RECV);
        if closes {
            transmit.endpoint.close();
        }
        let expected = if closes { vec![2] } else { vec![1, 2] };
        bed.provider.device().remove();
        let mut told = Vec::new();
        link::drive("the contexts report the device", &[&receive], || {
            told.extend(events.read_error().map(|error| error.fid));
            told.len() == expected.len()
        });
        assert_eq!(told, expected);
        receive.poll();
        assert!(events.read_error().is_none());
    }
}

/// Nobody asks it any more.
#[test]
fn a_listener_hears_of_its_device() {
    let (bed, _fabric): (Bed<RcProvider<FakeDevice>>, _) = fake_bed(VerbsOptions::default());
    let listener = Listener::listening(&bed);
    bed.provider.device().remove();
    let mut error = None;
    link::drive("the listener reports the device", &[], || {
        listener.events.progress();
        error = listener.events.read_error();
        error.is_some()
    });
    let error = error.unwrap();
    assert_eq!((error.fid, error.error), (LISTENER, Errno::NODEV), "{}", error.reason);
}

//! The order of what is told of connections. Reference: fi_cm(3).

use std::time::{Duration, Instant};

use kestrel_core::{
    domain::DomainOptions,
    endpoint::Endpoint,
    error::Errno,
    event_queue::{Event, EventRead},
    transport::Provider,
};

use crate::{
    bed::Bed,
    link::{self, Driven, ENDPOINT, End, Listener},
};

/// Who asks twice has heard before that the first request succeeded, and said so. Who accepted it
/// hears that first as well, although another endpoint of his does.
pub fn a_connection_is_told_of_before_the_next_request<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let first = End::calling(bed, listener.passive.address(), &[]);
    let request = listener.take(&[&first]);
    let domain = bed.domain(DomainOptions::default());
    let endpoint = Endpoint::open_for(&domain, link::options(), request).unwrap();
    let acceptor = End::reporting_to(listener.events.clone(), &domain, endpoint);
    acceptor.endpoint.accept(&[]).unwrap();
    // The caller last: what it says of its success is not met yet.
    link::drive("it is accepted", &[&listener, &first], || !first.events.is_empty());
    let second = End::calling(bed, listener.passive.address(), &[]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        [&first, &second].iter().for_each(|end| end.drive());
    }
    let event = acceptor.event(&[&first, &second]);
    assert!(matches!(event, Event::Connected { fid: ENDPOINT, .. }), "{event:?}");
    listener.request(&[&first, &second]);
}

/// "A rejected or failed connection request will generate an error event", also of who accepted it and
/// was closed before the connection stood, whenever that was.
pub fn who_accepts_and_goes_is_told_of<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    for rounds in 0..12 {
        let caller = End::calling(bed, listener.passive.address(), &[]);
        caller.endpoint.receive(vec![0; 16], 0, 1).unwrap();
        let acceptor = End::acceptor(bed, listener.take(&[&caller]));
        acceptor.endpoint.accept(&[]).unwrap();
        for _ in 0..rounds {
            acceptor.drive();
            caller.drive();
        }
        drop(acceptor);
        link::drive("an event comes", &[&caller, &listener], || !caller.events.is_empty());
        match caller.events.read() {
            EventRead::Event(event) => {
                assert!(matches!(event, Event::Connected { .. }), "{event:?}");
                caller.sees_shutdown(&[&listener]);
            }
            _ => {
                let error = caller.events.read_error().unwrap();
                let expected = [Errno::CONNREFUSED, Errno::CONNABORTED];
                assert!(expected.contains(&error.error), "{error:?}");
                if rounds == 0 {
                    assert!(error.reason.contains("went at once"), "{error:?}");
                }
            }
        }
        let done = caller.done(&[&listener]);
        assert_eq!((done.errno, done.context), (Some(Errno::CANCELED), 1));
    }
    assert!(listener.has_nothing());
}

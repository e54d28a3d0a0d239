//! The order of what is told of connections. Reference: fi_cm(3).

use std::time::{Duration, Instant};

use kestrel_core::{
    domain::DomainOptions, endpoint::Endpoint, event_queue::Event, transport::Provider,
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

//! The event queue of a domain, and of endpoints. Reference: fi_domain(3), `fi_domain_bind`; fi_eq(3).

use std::ptr::null_mut;

use crate::{
    code,
    connections::{CONNECTED, End, Place, are_told},
    flag,
    host::host,
    one_sided::register,
    vectors::{AV_COMPLETE, EVENT, Vector, next_event, open_eq},
    waiting::{descriptor, is_readable},
    world::{World, bind, close, enable},
};

const MR_COMPLETE: u32 = 4;
const REG_MR: u64 = 1 << 59;

#[test]
fn a_vector_reports_to_its_domain_until_it_has_a_queue() {
    let Some(host) = host("a_vector_reports_to_its_domain_until_it_has_a_queue") else { return };
    let mut world = World::empty(host, |_| {});
    let (events, own) = (open_eq(&world), open_eq(&world));
    world.queue = events;
    // The domain may have its queue after the vector was opened.
    let vector = Vector::open(&world, EVENT);
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], 0, null_mut()), code::NOEQ);
    assert_eq!(bind(world.domain, events, 1), code::BADFLAGS);
    assert_eq!((bind(world.domain, events, 0), bind(world.domain, own, 0)), (0, code::INVAL));
    for vector in [vector, Vector::open(&world, EVENT)] {
        assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], 0, null_mut()), 0);
        let (event, entry) = next_event(events).unwrap();
        assert_eq!((event, entry.fid, entry.data), (AV_COMPLETE, vector.av.cast(), 1));
        assert_eq!((bind(vector.av, own, 0), bind(vector.av, own, 0)), (0, code::INVAL));
        assert_eq!(vector.insert(&["10.0.0.2:1"], &mut [], 0, null_mut()), 0);
        assert_eq!(next_event(own).unwrap().1.fid, vector.av.cast());
        assert_eq!(next_event(events).err(), Some(code::AGAIN));
    }
    assert_eq!((close(own), close(events)), (0, code::BUSY));
}

#[test]
fn registrations_are_reported_to_who_asks() {
    let Some(host) = host("registrations_are_reported_to_who_asks") else { return };
    for (flags, reported) in [(0, false), (REG_MR, true)] {
        let mut world = World::empty(host, |_| {});
        let events = open_eq(&world);
        world.queue = events;
        assert_eq!(bind(world.domain, events, flags), 0);
        let mut memory = [0_u64; 8];
        let region = register(&world, &mut memory, flag::REMOTE_READ);
        let found = next_event(events).map(|(event, entry)| (event, entry.fid));
        let expected = if reported { Ok((MR_COMPLETE, region.cast())) } else { Err(code::AGAIN) };
        assert_eq!((found, close(region)), (expected, 0));
    }
}

#[test]
fn connections_are_reported_to_their_domain() {
    let Some(host) = host("connections_are_reported_to_their_domain") else { return };
    let place = Place::listening(host);
    let (address, events) = (crate::connections::name(place.pep), place.open_eq());
    let caller = place.open_alone(place.info).unwrap();
    assert_eq!(caller.connect(&address, &[]), code::NOEQ);
    assert_eq!(bind(place.domain, events, 0), 0);
    // One has a queue of its own, which goes first.
    let own = place.open_eq();
    let caller = End { eq: events, ..caller };
    assert_eq!(caller.connect(&address, b""), 0);
    assert_eq!(bind(caller.ep, own, 0), code::OPBADSTATE);
    let request = place.request(caller);
    let acceptor = End { eq: own, ..place.open_alone(request.info).unwrap() };
    // SAFETY: the info is not used any more.
    unsafe { (host.freeinfo)(request.info) };
    assert_eq!((bind(acceptor.ep, own, 0), acceptor.accept(b"hello")), (0, 0));
    are_told([caller, acceptor]);
    assert_eq!(caller.sees(CONNECTED), b"hello");
    assert_eq!(acceptor.sees(CONNECTED), b"");
    for end in [caller, acceptor] {
        assert_eq!((close(end.ep), close(end.cq)), (0, 0));
    }
    assert_eq!((close(own), close(events)), (0, code::BUSY));
    place.close_with(events);
}

/// Also without `fi_trywait`, which not everybody calls: endpoints that come and go wake who sleeps, and
/// leave nothing to be read.
#[test]
fn a_queue_that_was_read_empty_is_silent() {
    let Some(host) = host("a_queue_that_was_read_empty_is_silent") else { return };
    let place = Place::listening(host);
    let events = place.open_eq();
    let fd = descriptor(events);
    let end = place.open_alone(place.info).unwrap();
    assert_eq!((bind(end.ep, events, 0), enable(end.ep)), (0, 0));
    assert_eq!(next_event(events).err(), Some(code::AGAIN));
    assert!(!is_readable(fd, 0), "after the endpoint came");
    assert_eq!((close(end.ep), close(end.cq)), (0, 0));
    assert_eq!(next_event(events).err(), Some(code::AGAIN));
    assert!(!is_readable(fd, 0), "after it went");
    assert_eq!(close(events), 0);
    place.close();
}

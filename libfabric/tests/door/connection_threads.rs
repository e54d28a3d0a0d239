//! Connected endpoints and FI_THREAD_DOMAIN, which serializes what belongs to a domain: event queues
//! belong to its fabric. Reference: fi_domain(3), fi_endpoint(3).

use std::{
    ffi::c_int,
    ptr::null_mut,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use crate::{
    abi::fid::FidEq,
    code,
    connections::{CONNECTED, End, Place, are_told},
    host::host,
    kind,
    world::{PATIENCE, World, info},
};

const THREAD_DOMAIN: u32 = 3;
const MESSAGES: u64 = 20_000;
/// Receives at a time, each into room of its own.
const ROOMS: usize = 64;

/// A queue for another thread.
struct Events(*mut FidEq);

// SAFETY: event queues are for any thread.
unsafe impl Send for Events {}

impl Events {
    /// Reads until it is told to stop, and drives who reports there. There are no events.
    fn read_until(self, stop: &AtomicBool) {
        let (mut event, mut bytes) = (0, [0_u8; 64]);
        while !stop.load(Ordering::Relaxed) {
            // SAFETY: the queue is open, and the buffer has that length.
            let status = unsafe {
                ((*(*self.0).ops).read)(self.0, &raw mut event, bytes.as_mut_ptr().cast(), 64, 0)
            };
            assert_eq!(status as c_int, code::AGAIN);
        }
    }
}

/// What one end sends the other gets once each and in order, while another thread reads its event
/// queue.
#[test]
fn an_event_queue_is_read_beside_a_completion_queue() {
    let Some(host) = host("an_event_queue_is_read_beside_a_completion_queue") else { return };
    let place = Place::that(host, kind::MSG, |hints| {
        // SAFETY: hints have all attributes.
        unsafe { (*hints.domain_attr).threading = THREAD_DOMAIN };
    });
    assert_eq!(place.listen(), 0);
    let caller = place.caller(b"");
    let acceptor = place.acceptor(&place.request(caller));
    assert_eq!(acceptor.accept(&[]), 0);
    are_told([caller, acceptor]);
    assert_eq!((caller.sees(CONNECTED), acceptor.sees(CONNECTED)), (vec![], vec![]));
    let (stop, events) = (AtomicBool::new(false), Events(acceptor.eq));
    std::thread::scope(|scope| {
        scope.spawn(|| events.read_until(&stop));
        exchange(caller, acceptor);
        stop.store(true, Ordering::Relaxed);
    });
    caller.close();
    acceptor.close();
    place.close();
}

fn exchange(from: End, to: End) {
    let (mut rooms, start) = ([[0_u8; 8]; ROOMS], Instant::now());
    let (mut sent, mut posted, mut received) = (0_u64, 0, 0);
    while received < MESSAGES {
        while posted < received + ROOMS as u64 && posted < MESSAGES {
            let room = &mut rooms[posted as usize % ROOMS];
            assert_eq!(to.node().receive(room, 0, posted as usize), 0);
            posted += 1;
        }
        while sent < posted {
            let bytes = sent.to_ne_bytes();
            // SAFETY: the endpoint is open, and the bytes are read during the call.
            let status =
                unsafe { ((*(*from.ep).msg).inject)(from.ep, bytes.as_ptr().cast(), 8, 0) };
            match status as c_int {
                0 => sent += 1,
                code::AGAIN => break,
                other => panic!("{other}"),
            }
        }
        from.node().progress();
        match to.node().read() {
            Ok(entry) => {
                assert_eq!(entry.op_context as u64, received);
                assert_eq!(u64::from_ne_bytes(rooms[received as usize % ROOMS]), received);
                received += 1;
            }
            Err(status) => assert_eq!(status, code::AGAIN),
        }
        assert!(start.elapsed() < PATIENCE, "{received} of {sent} messages");
    }
}

/// The completion queues of a domain for other types of endpoints are for one thread, with
/// FI_THREAD_DOMAIN.
#[test]
fn such_a_domain_of_another_type_has_no_connected_endpoints() {
    let Some(host) = host("such_a_domain_of_another_type_has_no_connected_endpoints") else {
        return;
    };
    // SAFETY: hints have all attributes; the info is libfabric's, and the domain is open.
    unsafe {
        let connected = info(host, |hints| (*hints.ep_attr).kind = kind::MSG).unwrap();
        for (threading, expected) in [(0, 0), (THREAD_DOMAIN, code::INVAL)] {
            let world = World::empty(host, |hints| (*hints.domain_attr).threading = threading);
            let (mut ep, open) = (null_mut(), (*(*world.domain).ops).endpoint);
            assert_eq!(open(world.domain, connected, &raw mut ep, null_mut()), expected);
            if expected == 0 {
                assert_eq!(crate::world::close(ep), 0);
            }
        }
        (host.freeinfo)(connected);
    }
}

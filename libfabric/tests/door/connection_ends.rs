//! What is said at the beginning of a connection, and what becomes of operations at its end.
//! Reference: fi_cm(3).

use std::{ffi::c_void, ptr::null_mut, time::Instant};

use crate::{
    code,
    connections::{
        CONNECTED, CONNREFUSED, End, Place, SHUTDOWN, drive_until_error, has_event, read_error,
    },
    flag,
    host::host,
    world::{Node, PATIENCE},
};

/// FI_OPT_CM_DATA_SIZE.
const DATA_SIZE: usize = 256;

/// Who asked with these bytes, and who accepted with others; what each was told.
fn connect(place: &Place, asks: &[u8], answers: &[u8]) -> ([End; 2], [Vec<u8>; 2]) {
    let caller = place.caller(asks);
    let request = place.request(caller);
    let acceptor = place.acceptor(&request);
    assert_eq!(acceptor.accept(answers), 0);
    let start = Instant::now();
    while !has_event(caller.eq) | !has_event(acceptor.eq) {
        assert!(start.elapsed() < PATIENCE, "no connection came about");
    }
    let answer = caller.sees(CONNECTED);
    assert_eq!(acceptor.sees(CONNECTED), b"");
    ([caller, acceptor], [request.data, answer])
}

/// "The fi_connect, fi_accept, and fi_reject calls will silently truncate any application data which
/// cannot fit into underlying protocol messages."
#[test]
fn data_beyond_what_fits_is_cut() {
    let Some(host) = host("data_beyond_what_fits_is_cut") else { return };
    let place = Place::listening(host);
    for length in [DATA_SIZE, DATA_SIZE + 1, 300] {
        let data = |first: usize| (first..first + length).map(|at| at as u8).collect::<Vec<_>>();
        let (asks, answers) = (data(1), data(2));
        let (ends, told) = connect(&place, &asks, &answers);
        assert!(told[0] == asks[..DATA_SIZE] && told[1] == answers[..DATA_SIZE], "{length}");
        ends.into_iter().for_each(End::close);
        let caller = place.caller(&asks);
        let request = place.request(caller);
        assert!(request.data == asks[..DATA_SIZE]);
        // SAFETY: the info is valid until it is freed.
        unsafe {
            assert_eq!(place.reject((*request.info).handle, &answers), 0);
            (host.freeinfo)(request.info);
        }
        drive_until_error(place.events, caller.eq);
        assert_eq!(read_error(caller.eq), (CONNREFUSED, answers[..DATA_SIZE].to_vec()));
        caller.close();
    }
    place.close();
}

/// "All canceled completions will be written before fi_shutdown returns."
#[test]
fn a_shutdown_cancels_what_is_outstanding() {
    let Some(host) = host("a_shutdown_cancels_what_is_outstanding") else { return };
    let place = Place::listening(host);
    let ([caller, acceptor], _) = connect(&place, b"", b"");
    let node = Node { cq: caller.cq, ep: caller.ep };
    let mut rooms = [[0_u8; 8]; 4];
    let mut posted: Vec<*mut c_void> = Vec::new();
    for (at, room) in rooms.iter_mut().enumerate() {
        let room: *mut c_void = room.as_mut_ptr().cast();
        // SAFETY: the endpoint is open, and the rooms outlive it.
        let status = unsafe {
            let (msg, tagged) = (&*(*caller.ep).msg, &*(*caller.ep).tagged);
            match at % 2 {
                0 => (msg.recv)(caller.ep, room, 8, null_mut(), u64::MAX, room),
                _ => (tagged.recv)(caller.ep, room, 8, null_mut(), u64::MAX, 5, 0, room),
            }
        };
        assert_eq!(status, 0);
        posted.push(room);
    }
    // Nobody receives it, and it is too long to be taken in advance.
    let long = vec![7_u8; 4 << 20];
    // SAFETY: as above.
    let status = unsafe {
        let place = long.as_ptr().cast::<c_void>();
        let send = (*(*caller.ep).msg).send;
        send(caller.ep, place, long.len(), null_mut(), 0, place.cast_mut())
    };
    assert_eq!((status, node.read().err()), (0, Some(code::AGAIN)));
    posted.push(long.as_ptr().cast_mut().cast());
    assert_eq!(caller.shutdown(0), 0);
    // The peer makes no progress meanwhile.
    let mut canceled = Vec::new();
    while node.read().err() == Some(code::AVAIL) {
        let error = node.read_error().unwrap();
        assert_eq!(error.err, -code::CANCELED);
        assert_ne!(error.flags & (flag::SEND | flag::RECV), 0);
        canceled.push(error.op_context);
    }
    canceled.sort_unstable();
    posted.sort_unstable();
    assert_eq!(canceled, posted);
    assert_eq!(acceptor.sees(SHUTDOWN), b"");
    assert_eq!(node.read().err(), Some(code::AGAIN));
    caller.close();
    acceptor.close();
    place.close();
}

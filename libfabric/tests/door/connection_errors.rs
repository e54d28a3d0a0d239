//! What becomes of requests that do not become connections. Reference: fi_cm(3).

use std::{
    ffi::{CStr, c_char, c_int},
    ptr::{null, null_mut},
    time::{Duration, Instant},
};

use kestrel_tests::scale::unspoilt;

use crate::{
    abi::fid::{Fid, FidEq},
    code,
    connections::{
        BACKLOG, CONNECTED, CONNREFUSED, End, ISCONN, Place, are_told, drive_until_error,
        has_event, name, read_error,
    },
    host::host,
    world::{PATIENCE, close},
};

/// `fi_eq_strerror`, into a buffer of that length.
fn words(eq: *mut FidEq, prov_errno: c_int, length: usize) -> String {
    let mut buffer = [0 as c_char; 256];
    assert!(length <= buffer.len());
    // SAFETY: the queue is open, and the buffer is at least so long.
    unsafe {
        let told = ((*(*eq).ops).strerror)(eq, prov_errno, null(), buffer.as_mut_ptr(), length);
        CStr::from_ptr(told).to_str().unwrap().to_owned()
    }
}

#[test]
fn errors_are_told_in_words() {
    let Some(host) = host("errors_are_told_in_words") else { return };
    let place = Place::new(host);
    let mut one: c_int = 1;
    // SAFETY: the endpoint is open, and the argument of this command is an `int *`.
    unsafe {
        let control = (*(*place.pep).fid.ops).control;
        assert_eq!(control(place.pep.cast(), BACKLOG, (&raw mut one).cast()), 0);
    }
    assert_eq!(place.listen(), 0);
    let waits = place.caller(b"");
    let request = place.request(waits);
    let turned_away = place.caller(b"");
    drive_until_error(place.events, turned_away.eq);
    assert_eq!(read_error(turned_away.eq), (CONNREFUSED, Vec::new()));
    let full = words(turned_away.eq, CONNREFUSED, 256);
    assert!(full.contains("backlog"), "{full}");
    assert_eq!(words(turned_away.eq, CONNREFUSED, 8), full[..7]);
    assert_eq!(words(turned_away.eq, CONNREFUSED, 0), full);
    assert_eq!(words(turned_away.eq, 22, 256), words(place.events, 22, 256), "another error");
    // SAFETY: the info is valid until it is freed.
    unsafe {
        assert_eq!(place.reject((*request.info).handle, b"no"), 0);
        (host.freeinfo)(request.info);
    }
    drive_until_error(place.events, waits.eq);
    assert_eq!(read_error(waits.eq), (CONNREFUSED, b"no".to_vec()));
    // fi_connect "may only be called on an endpoint once in its lifetime", whatever became of it; and
    // nothing comes for what is posted any more.
    assert_eq!(waits.connect(&name(place.pep), &[]), ISCONN);
    assert_eq!(waits.node().receive(&mut [0; 8], 0, 0), code::NOTCONN as isize);
    let rejected = words(waits.eq, CONNREFUSED, 256);
    assert!(rejected.contains("application"), "{rejected}");
    // Where nobody is: a port that was just closed may be another test's by now, and this one, which
    // is too low to be given to anybody, is nobody's.
    let mut address = name(place.pep);
    address[2..4].copy_from_slice(&9_u16.to_be_bytes());
    let caller = place.open_ep(place.info).unwrap();
    assert_eq!(caller.connect(&address, &[]), 0);
    drive_until_error(place.events, caller.eq);
    let (errno, _) = read_error(caller.eq);
    let nobody = words(caller.eq, errno, 256);
    assert!(nobody.contains("nobody listens"), "{nobody}");
    for end in [waits, turned_away, caller] {
        end.close();
    }
    place.close();
}

#[test]
fn a_request_is_rejected_after_its_endpoint_failed() {
    let Some(host) = host("a_request_is_rejected_after_its_endpoint_failed") else { return };
    let place = Place::listening(host);
    let handle_of = |info: *mut crate::abi::info::Info| -> *mut Fid {
        // SAFETY: the info is valid.
        unsafe { (*info).handle }
    };
    // With the endpoint still open, which can accept no more.
    let caller = place.caller(b"");
    let request = place.request(caller);
    let handle = handle_of(request.info);
    let acceptor = place.open_ep(request.info).unwrap();
    assert_eq!(place.open_ep(request.info).err(), Some(code::CONNABORTED), "one endpoint each");
    assert_eq!(place.reject(handle, b"it failed"), 0);
    assert_eq!(acceptor.accept(&[]), code::CONNABORTED);
    drive_until_error(place.events, caller.eq);
    assert_eq!(read_error(caller.eq), (CONNREFUSED, b"it failed".to_vec()));
    caller.close();
    acceptor.close();
    // SAFETY: the info is not used any more.
    unsafe { (host.freeinfo)(request.info) };
    // The passive endpoint closes it, and nobody else.
    let caller = place.caller(b"");
    let request = place.request(caller);
    let handle = handle_of(request.info);
    assert_eq!(close(handle), code::NOSYS);
    assert_eq!(place.reject(handle, b"it was asked for"), 0);
    drive_until_error(place.events, caller.eq);
    assert_eq!(read_error(caller.eq), (CONNREFUSED, b"it was asked for".to_vec()));
    caller.close();
    // SAFETY: the info is not used any more.
    unsafe { (host.freeinfo)(request.info) };
    // What was accepted, or went with its endpoint, is no handle any more.
    for accepts in [true, false] {
        let caller = place.caller(b"");
        let request = place.request(caller);
        let handle = handle_of(request.info);
        let acceptor = place.acceptor(&request);
        if accepts {
            assert_eq!((acceptor.accept(&[]), place.reject(handle, b"")), (0, code::INVAL));
            are_told([caller, acceptor]);
            assert_eq!((caller.sees(CONNECTED), acceptor.sees(CONNECTED)), (vec![], vec![]));
            acceptor.close();
        } else {
            acceptor.close();
            assert_eq!(place.reject(handle, b""), code::INVAL);
            drive_until_error(place.events, caller.eq);
            assert_eq!(read_error(caller.eq), (CONNREFUSED, Vec::new()));
        }
        caller.close();
    }
    assert_eq!(place.reject(null_mut(), b""), code::INVAL);
    place.close();
}

/// A request's handle is closed by what answers it, whoever has an info of it: nothing may be left there.
#[test]
fn an_info_whose_handle_is_gone_opens_nothing() {
    let Some(host) = host("an_info_whose_handle_is_gone_opens_nothing") else { return };
    let place = Place::listening(host);
    let caller = place.caller(b"");
    let request = place.request(caller);
    // SAFETY: the info is valid until it is freed, which does not look at the handle either.
    unsafe {
        let answered = (*request.info).handle;
        assert_eq!(place.reject(answered, b""), 0);
        for handle in [answered, std::ptr::without_provenance_mut(8)] {
            (*request.info).handle = handle;
            assert_eq!(place.open_ep(request.info).err(), Some(code::INVAL));
        }
        (host.freeinfo)(request.info);
    }
    drive_until_error(place.events, caller.eq);
    assert_eq!(read_error(caller.eq), (CONNREFUSED, Vec::new()));
    caller.close();
    place.close();
}

/// Callers that go are many, where there is a storm of them, and who cannot open an endpoint for one
/// need not reject it.
#[test]
fn the_handle_of_a_caller_that_is_gone_goes_with_the_attempt_to_accept() {
    let Some(host) = host("the_handle_of_a_caller_that_is_gone") else { return };
    let (place, start) = (Place::listening(host), Instant::now());
    loop {
        let caller = place.caller(b"");
        let request = place.request(caller);
        caller.close();
        (0..100).for_each(|_| assert!(!has_event(place.events)));
        // SAFETY: the info is valid until it is freed, and the handle with it; a closed one is known.
        let (opened, rejected) = unsafe {
            let (opened, handle) = (place.open_ep(request.info), (*request.info).handle);
            let rejected = opened.is_err().then(|| place.reject(handle, b""));
            (host.freeinfo)(request.info);
            (opened, rejected)
        };
        match opened {
            // It has not been heard of.
            Ok(acceptor) => acceptor.close(),
            Err(errno) => {
                assert_eq!((errno, rejected), (code::CONNABORTED, Some(code::INVAL)));
                break;
            }
        }
        assert!(start.elapsed() < PATIENCE, "it never goes");
    }
    place.close();
}

/// "A rejected or failed connection request will generate an error event", also if who accepted it is
/// closed before its caller has heard of it.
#[test]
fn who_accepts_and_goes_is_told_of() {
    let Some(host) = host("who_accepts_and_goes_is_told_of") else { return };
    let place = Place::listening(host);
    let caller = place.caller(b"");
    let acceptor = place.acceptor(&place.request(caller));
    assert_eq!(acceptor.accept(&[]), 0);
    acceptor.close();
    drive_until_error(place.events, caller.eq);
    assert_eq!(read_error(caller.eq), (CONNREFUSED, Vec::new()));
    let why = words(caller.eq, CONNREFUSED, 256);
    assert!(why.contains("went at once"), "{why}");
    caller.close();
    place.close();
}

/// "A rejected … connection request will generate an error event", of a listener whose queue nobody reads any
/// more: fi_reject lets it leave, for 100 ms at most.
#[test]
fn a_rejection_leaves_though_nobody_reads_any_more() {
    let Some(host) = host("a_rejection_leaves_though_nobody_reads_any_more") else { return };
    const REJECT_WAIT: Duration = Duration::from_millis(100);
    let place = Place::listening(host);
    unspoilt(|| {
        let caller = place.caller(b"");
        let (request, start) = (place.request(caller), Instant::now());
        // SAFETY: the info is valid until it is freed.
        unsafe {
            assert_eq!(place.reject((*request.info).handle, b"not today"), 0);
            (host.freeinfo)(request.info);
        }
        let has_left = start.elapsed() < REJECT_WAIT;
        if has_left {
            drive_until_error(caller.eq, caller.eq);
            assert_eq!(read_error(caller.eq), (CONNREFUSED, b"not today".to_vec()));
        }
        caller.close();
        has_left
    });
    place.close();
}

/// No FI_CONNREQ names a passive endpoint that is closed, and whoever asks there is refused. A request that an
/// endpoint was opened for keeps anybody else from that address, and can be accepted.
#[test]
fn a_closed_listener_tells_of_nobody_and_refuses_who_asks() {
    let Some(host) = host("a_closed_listener_tells_of_nobody_and_refuses_who_asks") else { return };
    let (mut place, start) = (Place::listening(host), Instant::now());
    let taken = place.caller(b"");
    let acceptor = place.acceptor(&place.request(taken));
    let waits = place.caller(b"");
    while !has_event(place.events) {
        has_event(waits.eq);
        assert!(start.elapsed() < PATIENCE, "no request came");
    }
    let address = name(place.pep);
    assert_eq!(close(place.pep), 0);
    assert!(!has_event(place.events), "it named what is closed");
    let late = place.open_ep(place.info).unwrap();
    assert_eq!(late.connect(&address, &[]), 0);
    for asks in [waits, late] {
        drive_until_error(place.events, asks.eq);
        assert_eq!(read_error(asks.eq), (CONNREFUSED, Vec::new()));
        assert!(!has_event(place.events));
    }
    assert_eq!(acceptor.accept(&[]), 0);
    are_told([taken, acceptor]);
    assert_eq!((taken.sees(CONNECTED), acceptor.sees(CONNECTED)), (vec![], vec![]));
    [waits, late, taken, acceptor].into_iter().for_each(End::close);
    place.pep = place.open_pep(place.info);
    place.close();
}

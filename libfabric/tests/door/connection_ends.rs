//! What is said at the beginning of a connection, and what becomes of operations at its end.
//! Reference: fi_cm(3).

use std::{
    ffi::c_void,
    ptr::null_mut,
    time::{Duration, Instant},
};

use kestrel_core::address::Address;
use kestrel_tests::process::{Peer, child_role, listen_to_parent};

use crate::{
    abi::{attributes::EqErrEntry, info::Info},
    calls::{self, Arguments},
    code,
    connections::{
        CONNECTED, CONNREFUSED, End, Place, SHUTDOWN, are_told, drive_until_error, has_event, name,
        read_error,
    },
    flag,
    host::host,
    kind,
    names::bytes,
    socket_losses::say_for_ever,
    world::{PATIENCE, bind, close, enable},
};

const ANY: u64 = u64::MAX;
/// FI_OPT_CM_DATA_SIZE.
const DATA_SIZE: usize = 256;

/// Who asked with these bytes, and who accepted with others; what each was told.
pub fn connect(place: &Place, asks: &[u8], answers: &[u8]) -> ([End; 2], [Vec<u8>; 2]) {
    let caller = place.caller(asks);
    let request = place.request(caller);
    let acceptor = place.acceptor(&request);
    assert_eq!(acceptor.accept(answers), 0);
    are_told([caller, acceptor]);
    let answer = caller.sees(CONNECTED);
    assert_eq!(acceptor.sees(CONNECTED), b"");
    ([caller, acceptor], [request.data, answer])
}

/// Opens something with an info of the application's own, for that address.
fn open_at<T>(place: &Place, address: &[u8], open: impl FnOnce(&mut Info) -> T) -> T {
    // SAFETY: the info is libfabric's, and afterwards what it was; the address is there so long.
    unsafe {
        let info = &mut *place.info;
        let before = (info.handle, info.src_addr, info.src_addrlen);
        (info.src_addr, info.src_addrlen) = (address.as_ptr().cast_mut().cast(), address.len());
        let opened = open(info);
        (info.handle, info.src_addr, info.src_addrlen) = before;
        opened
    }
}

/// The acceptor's own info may say where, whatever port it names: that of the listener is taken. A
/// request that no endpoint could be opened for waits on.
#[test]
fn a_request_is_accepted_at_an_address() {
    let Some(host) = host("a_request_is_accepted_at_an_address") else { return };
    let place = Place::listening(host);
    let caller = place.caller(b"");
    let request = place.request(caller);
    let open = |info: &mut Info| {
        // SAFETY: the request's info is valid until it is freed.
        info.handle = unsafe { (*request.info).handle };
        place.open_ep(info)
    };
    let elsewhere = open_at(&place, &bytes("192.0.2.1:0"), open);
    assert_eq!(elsewhere.err(), Some(code::ADDRNOTAVAIL));
    let acceptor = open_at(&place, &name(place.pep), open).expect("an endpoint");
    // SAFETY: the info is not used any more.
    unsafe { (host.freeinfo)(request.info) };
    assert_eq!(acceptor.accept(b""), 0);
    are_told([caller, acceptor]);
    assert_eq!((caller.sees(CONNECTED), acceptor.sees(CONNECTED)), (vec![], vec![]));
    assert_eq!(name(acceptor.ep), name(place.pep));
    caller.close();
    acceptor.close();
    place.close();
}

/// A passive endpoint that a thread waits for, on a descriptor, is closed all the same.
#[test]
fn a_listener_that_is_waited_for_gives_its_port_up() {
    let Some(host) = host("a_listener_that_is_waited_for_gives_its_port_up") else { return };
    let place = Place::new(host);
    let (eq, pep) = (place.open_eq(), place.open_pep(place.info));
    // SAFETY: the endpoint is open.
    let listen = || unsafe { ((*(*pep).cm).listen)(pep) };
    assert_eq!((bind(pep, eq, 0), listen()), (0, 0));
    let (address, start, mut fid) = (name(pep), Instant::now(), eq.cast());
    // SAFETY: the fabric and the queue are open.
    while unsafe { ((*(*place.fabric).ops).trywait)(place.fabric, &raw mut fid, 1) } != 0 {
        assert!(start.elapsed() < PATIENCE, "there is always something");
    }
    assert_eq!(close(pep), 0);
    let next = open_at(&place, &address, |info| place.open_pep(info));
    assert_eq!((close(next), close(eq)), (0, 0));
    place.close();
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
    let node = caller.node();
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

/// "Outbound data transfers cannot be initiated on a connection-oriented endpoint until an
/// FI_CONNECTED event has been generated. However, receive buffers may be associated with an
/// endpoint anytime."
#[test]
fn nothing_is_sent_without_a_connection() {
    let Some(host) = host("nothing_is_sent_without_a_connection") else { return };
    let place = Place::listening(host);
    let transmits = || calls::all(Arguments::good()).into_iter().filter(|call| !call.receives());
    let is_refused = |end: End| {
        for call in transmits() {
            assert_eq!(call.on(end.ep), code::NOTCONN as isize, "{}", call.name);
        }
    };
    let caller = place.open_ep(place.info).unwrap();
    let mut rooms = [[0_u8; 8]; 2];
    assert_eq!(enable(caller.ep), 0);
    is_refused(caller);
    assert_eq!(caller.node().receive(&mut rooms[0], ANY, 1), 0);
    assert_eq!(caller.connect(&name(place.pep), b""), 0);
    is_refused(caller);
    let acceptor = place.acceptor(&place.request(caller));
    assert_eq!(enable(acceptor.ep), 0);
    assert_eq!(acceptor.node().receive(&mut rooms[1], ANY, 1), 0);
    is_refused(acceptor);
    assert_eq!(acceptor.accept(b""), 0);
    is_refused(acceptor);
    let (ends, words) = ([caller, acceptor], [[1_u8; 8], [2; 8]]);
    are_told(ends);
    let nodes = ends.map(End::node);
    for (end, word) in ends.into_iter().zip(&words) {
        assert_eq!((end.sees(CONNECTED), end.node().send(word, 0, 2)), (vec![], 0));
    }
    for node in nodes {
        let done = [node.outcome(&nodes), node.outcome(&nodes)];
        let mut contexts = done.map(|done| done.ok().map(|entry| entry.op_context as usize));
        contexts.sort_unstable();
        assert_eq!(contexts, [Some(1), Some(2)]);
    }
    assert_eq!(rooms, [words[1], words[0]]);
    ends.into_iter().for_each(End::close);
    place.close();
}

/// "Any queued completions associated with asynchronous operations posted to the endpoint may still
/// be retrieved from the corresponding completion queue(s) after an endpoint has been shutdown": and
/// what is complete for its sender is there for its receiver.
#[test]
fn what_was_sent_before_a_shutdown_arrives() {
    let Some(host) = host("what_was_sent_before_a_shutdown_arrives") else { return };
    const COUNT: usize = 8;
    let place = Place::listening(host);
    let ([caller, acceptor], _) = connect(&place, b"", b"");
    let nodes = [caller.node(), acceptor.node()];
    let (words, mut rooms) = ([(); COUNT].map(|()| [7_u8; 100]), [[0_u8; 100]; COUNT]);
    let mut receive = |tag: usize| {
        let (place, context) = (rooms[tag].as_mut_ptr().cast(), tag as *mut c_void);
        // SAFETY: the endpoint is open, and the room outlives it.
        let posted = unsafe {
            let recv = (*(*acceptor.ep).tagged).recv;
            recv(acceptor.ep, place, 100, null_mut(), ANY, tag as u64, 0, context)
        };
        assert_eq!(posted, 0);
    };
    // Some are waited for, the others are not.
    (0..COUNT).step_by(2).for_each(&mut receive);
    for (tag, word) in words.iter().enumerate() {
        // SAFETY: the endpoint is open, and the words outlive it.
        let sent = unsafe {
            let (send, start) = ((*(*caller.ep).tagged).send, word.as_ptr().cast());
            send(caller.ep, start, 100, null_mut(), 0, tag as u64, null_mut())
        };
        assert_eq!((sent, nodes[0].outcome(&nodes).is_ok()), (0, true));
    }
    assert_eq!(caller.shutdown(0), 0);
    caller.close();
    assert_eq!(acceptor.sees(SHUTDOWN), b"");
    (1..COUNT).step_by(2).for_each(receive);
    assert_eq!(acceptor.shutdown(0), 0);
    let found = [(); COUNT].map(|()| nodes[1].outcome(&[]).ok().map(|entry| entry.tag));
    let mut tags = found.map(|tag| tag.expect("what had completed is not affected"));
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..COUNT as u64) && rooms == words);
    acceptor.close();
    place.close();
}

/// "An FI_SHUTDOWN event will be generated for an endpoint when the remote peer issues a disconnect
/// using fi_shutdown or abruptly closes the endpoint."
#[test]
fn an_abrupt_close_is_a_shutdown() {
    let Some(host) = host("an_abrupt_close_is_a_shutdown") else { return };
    let place = Place::listening(host);
    for caller_goes in [true, false] {
        let ([caller, acceptor], _) = connect(&place, b"", b"");
        let [goes, stays] = if caller_goes { [caller, acceptor] } else { [acceptor, caller] };
        is_left(stays, || goes.close());
    }
    place.close();
}

/// "If the peer system is reachable and a service or kernel agent on the peer system is able to
/// notify the local endpoint": so it is with a process that is killed.
#[test]
fn a_killed_peer_is_a_shutdown() {
    let Some(host) = host("a_killed_peer_is_a_shutdown") else { return };
    let place = Place::listening(host);
    let (mut peer, acceptor) = connected_process(&place, kind::MSG);
    is_left(acceptor, || peer.kill());
    place.close();
}

/// It is told of the loss of its peer, and its receives are canceled.
fn is_left(end: End, go: impl FnOnce()) {
    let mut room = [0_u8; 8];
    assert_eq!(end.node().receive(&mut room, ANY, 1), 0);
    go();
    assert_eq!(end.sees(SHUTDOWN), b"");
    let error = end.node().outcome(&[]).err().expect("nobody sent anything");
    assert_eq!((error.err, error.op_context as usize), (-code::CANCELED, 1));
    assert_eq!(end.node().send(&[1; 8], 0, 2), code::NOTCONN as isize);
    end.close();
}

/// A process that has connected to the place, which listens, and the endpoint here.
pub fn connected_process(place: &Place, kind: u32) -> (Peer, End) {
    let address = Address::from_bytes(&name(place.pep)).unwrap().socket_addr();
    let peer = Peer::start(&format!("connects {kind} {address}"));
    let acceptor = place.acceptor(&place.request(None));
    assert_eq!(acceptor.accept(b""), 0);
    assert_eq!(acceptor.sees(CONNECTED), b"");
    (peer, acceptor)
}

/// What [`Peer`] starts, which ends when it is killed.
pub fn child() {
    let Some(role) = child_role().filter(|role| role[0] == "connects") else { return };
    let _parent = listen_to_parent();
    let host = host("child").expect("it was there a moment ago");
    let place = Place::of(host, role[1].parse().unwrap());
    let end = place.open_ep(place.info).unwrap();
    assert_eq!(end.connect(&bytes(&role[2]), b""), 0);
    assert_eq!(end.sees(CONNECTED), b"");
    if end.cq.is_null() {
        say_for_ever(end.ep);
    }
    loop {
        std::thread::sleep(PATIENCE);
    }
}

/// Who asks twice has heard before that the first request succeeded. Who accepted it hears that
/// first as well, in the queue that both events go to.
#[test]
fn a_connection_is_told_of_before_the_next_request() {
    let Some(host) = host("a_connection_is_told_of_before_the_next_request") else { return };
    let place = Place::listening(host);
    let first = place.caller(b"");
    let request = place.request(first);
    let acceptor = End { eq: place.events, ..place.open_alone(request.info).unwrap() };
    // SAFETY: the info is not used any more.
    unsafe { (host.freeinfo)(request.info) };
    assert_eq!((bind(acceptor.ep, acceptor.eq, 0), acceptor.accept(b"")), (0, 0));
    // The caller last: what it says of its success is not met yet.
    let start = Instant::now();
    while !has_event(first.eq) {
        has_event(place.events);
        assert!(start.elapsed() < PATIENCE, "no connection came about");
    }
    let second = place.caller(b"");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        has_event(first.eq);
        has_event(second.eq);
    }
    assert_eq!(acceptor.sees(CONNECTED), b"");
    let next = place.acceptor(&place.request(second));
    [first, second, next].into_iter().for_each(End::close);
    assert_eq!((close(acceptor.ep), close(acceptor.cq)), (0, 0));
    place.close();
}

/// Who only peeks at a queue drives what is to come into it; and "application data … is limited to the
/// buffer space provided" (fi_eq(3)).
#[test]
fn a_peek_finds_a_request_and_a_short_read_takes_it() {
    let Some(host) = host("a_peek_finds_a_request_and_a_short_read_takes_it") else { return };
    let place = Place::listening(host);
    let caller = place.caller(b"hello");
    let (mut event, mut room, start) = (0_u32, [0_u8; 64], Instant::now());
    // SAFETY: the queue is open, and the buffer has these lengths.
    unsafe {
        let (read, at) = ((*(*place.events).ops).read, room.as_mut_ptr().cast());
        while read(place.events, &raw mut event, at, 64, flag::PEEK) < 0 {
            caller.node().progress();
            assert!(start.elapsed() < PATIENCE, "no request came");
        }
        assert_eq!(read(place.events, &raw mut event, at, 8, 0), code::TOOSMALL as isize);
        at.cast::<u8>().write_bytes(0, 64);
        assert_eq!(read(place.events, &raw mut event, at, 18, 0), 18);
        assert_eq!(&room[16..20], b"he\0\0");
        let info = u64::from_ne_bytes(room[8..16].try_into().unwrap()) as *mut Info;
        assert_eq!(place.reject((*info).handle, b""), 0);
        (host.freeinfo)(info);
    }
    drive_until_error(place.events, caller.eq);
    // Without data there is none to point at.
    // SAFETY: the queue is open, and there is room for the entry.
    let entry = unsafe {
        let mut entry: EqErrEntry = std::mem::zeroed();
        assert!(((*(*caller.eq).ops).readerr)(caller.eq, &raw mut entry, 0) > 0);
        entry
    };
    assert_eq!((entry.err, entry.err_data.is_null(), entry.err_data_size), (CONNREFUSED, true, 0));
    caller.close();
    place.close();
}

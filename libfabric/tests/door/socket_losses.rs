//! Streams whose peers go without a word, or do not keep to the rules. Reference: fi_endpoint(3),
//! "SOCKET ENDPOINTS".

use std::time::{Duration, Instant};

use kestrel_tests::bed::pattern;

use crate::{
    abi::fid::FidEp,
    code,
    connection_ends::connected_process,
    connections::{CONNECTED, End, Place, are_told, name},
    host::{Host, host},
    kind,
    sockets::{AGAIN, fill, receive, send, wait},
    world::PATIENCE,
};

/// Bytes of a segment at most.
const SEGMENT_MAX: usize = 8 << 10;
/// What a process says again and again.
const SAYING: usize = 100_000;

/// All that comes, and how it ends.
fn receive_to_end(ep: *mut FidEp) -> (Vec<u8>, Result<(), isize>) {
    let (mut found, start) = (Vec::new(), Instant::now());
    loop {
        match receive(ep, 30_000) {
            Ok(part) if part.is_empty() => return (found, Ok(())),
            Ok(part) => found.extend(part),
            Err(AGAIN) => wait(ep, libc::POLLIN),
            Err(error) => return (found, Err(error)),
        }
        assert!(start.elapsed() < PATIENCE, "there is no end");
    }
}

/// What is told of a loss is told of everything that is tried after it.
fn is_lost(ep: *mut FidEp) {
    let lost = code::CONNRESET as isize;
    assert_eq!((receive(ep, 8), send(ep, b"late", 0)), (Err(lost), lost));
    for events in [libc::POLLIN, libc::POLLOUT, libc::POLLHUP, libc::POLLERR] {
        wait(ep, events);
    }
}

/// A stream that an endpoint of messages is connected to, which speaks the same, but for how its
/// segments are numbered and for the end; and the places of both.
fn called_by_another(host: &'static Host) -> ([Place; 2], End, End) {
    let (place, elsewhere) = (Place::listening_as(host, kind::SOCK_STREAM), Place::new(host));
    let caller = elsewhere.open_ep(elsewhere.info).unwrap();
    assert_eq!(caller.connect(&name(place.pep), b""), 0);
    let stream = place.acceptor(&place.request(caller));
    assert_eq!(stream.accept(b""), 0);
    are_told([caller, stream]);
    assert_eq!((caller.sees(CONNECTED), stream.sees(CONNECTED)), (vec![], vec![]));
    ([place, elsewhere], caller, stream)
}

/// Sends what may be a segment, with its number or without one.
fn send_segment(from: End, bytes: &[u8], number: Option<u64>) {
    let (ep, start, none) = (from.ep, bytes.as_ptr().cast(), std::ptr::null_mut());
    // SAFETY: the endpoint is open, and the bytes outlive it.
    let sent = unsafe {
        let calls = &*(*ep).msg;
        match number {
            Some(data) => (calls.senddata)(ep, start, bytes.len(), none, data, 0, none),
            None => (calls.send)(ep, start, bytes.len(), none, 0, none),
        }
    };
    assert_eq!(sent, 0);
}

/// "A negative value on error": a peer that goes without a word leaves what had arrived, and then an
/// error; 0 bytes would be an end.
#[test]
fn a_loss_is_no_end() {
    let Some(host) = host("a_loss_is_no_end") else { return };
    let (places, rude, stream) = called_by_another(host);
    send_segment(rude, b"before", Some(0));
    assert!(rude.node().outcome(&[]).is_ok());
    rude.close();
    let expected = (b"before".to_vec(), Err(code::CONNRESET as isize));
    assert_eq!(receive_to_end(stream.ep), expected);
    is_lost(stream.ep);
    stream.close();
    places.into_iter().for_each(Place::close);
}

/// Who sends what is no segment, or none that is the next, is let go.
#[test]
fn what_is_no_segment_ends_the_stream() {
    let Some(host) = host("what_is_no_segment_ends_the_stream") else { return };
    let long = [1_u8; SEGMENT_MAX + 1];
    for (bytes, number) in [(&long[..], Some(0)), (&long[..10], Some(1)), (&long[..10], None)] {
        let (places, liar, stream) = called_by_another(host);
        send_segment(liar, bytes, number);
        // It is driven by its own queue.
        let start = Instant::now();
        while receive(stream.ep, 8) == Err(AGAIN) {
            liar.node().progress();
            assert!(start.elapsed() < PATIENCE, "the stream goes on");
        }
        is_lost(stream.ep);
        [liar, stream].into_iter().for_each(End::close);
        places.into_iter().for_each(Place::close);
    }
}

/// Who is killed leaves what had arrived, and an error; what it had no room for is no reason to wait.
#[test]
fn a_killed_peer_is_a_loss() {
    let Some(host) = host("a_killed_peer_is_a_loss") else { return };
    let place = Place::listening_as(host, kind::SOCK_STREAM);
    let (mut peer, stream) = connected_process(&place, kind::SOCK_STREAM);
    let mut found = Vec::new();
    while found.len() < 30_000 {
        wait(stream.ep, libc::POLLIN);
        found.extend(receive(stream.ep, 30_000 - found.len()).unwrap());
    }
    stuff(stream.ep);
    peer.kill();
    let (rest, end) = receive_to_end(stream.ep);
    assert_eq!(end, Err(code::CONNRESET as isize));
    found.extend(rest);
    let said = pattern(1, SAYING);
    assert!(found.iter().zip(said.iter().cycle()).all(|(found, said)| found == said));
    is_lost(stream.ep);
    assert_eq!(stream.shutdown(0), code::TIMEDOUT, "what it took is lost");
    stream.close();
    place.close();
}

/// Sends until there is no room, and none comes for a while, since nobody receives it.
fn stuff(ep: *mut FidEp) {
    let (bytes, mut taken, mut since) = (vec![2; 64 << 20], 0, Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        let more = fill(ep, &bytes[taken..]);
        if more > 0 {
            (taken, since) = (taken + more, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a process does that receives nothing, until it is killed.
pub fn say_for_ever(ep: *mut FidEp) {
    let (bytes, mut sent) = (pattern(1, SAYING), 0);
    loop {
        match send(ep, &bytes[sent..], 0) {
            AGAIN => std::thread::sleep(Duration::from_millis(1)),
            count => sent = (sent + usize::try_from(count).unwrap()) % SAYING,
        }
    }
}

//! Messages that are buffered, and their senders: how much is held, what other types of endpoints
//! do, and what becomes of it all when somebody goes. Reference: fi_msg(3), "Buffered Receives".

use std::{collections::VecDeque, ffi::c_void, ptr::null_mut};

use kestrel_tests::process::eventually;

use crate::{
    abi::{attributes::CqTaggedEntry, fid::FidPoll},
    buffered::{BUFFERED_LIMIT, buffering, bytes, get, send, set, starts_with, take, world},
    code,
    connection_ends::connect,
    connections::{End, Place},
    datagrams::asks_for_datagrams,
    flag,
    host::host,
    kind,
    tagged::{CLAIM, DISCARD, MORE},
    world::{Node, World, close, cq_attr},
};

/// All that is announced to the node, while both are driven, until nothing is for a long while.
fn announced(to: Node, from: Node) -> VecDeque<CqTaggedEntry> {
    let first = to.outcome(&[from]).ok().expect("an announcement");
    let (mut found, mut quiet) = (VecDeque::from([first]), 0);
    while quiet < 10_000 {
        from.progress();
        quiet += 1;
        match to.read() {
            Ok(entry) => {
                found.push_back(entry);
                quiet = 0;
            }
            Err(status) => assert_eq!(status, code::AGAIN),
        }
    }
    found
}

/// "Buffered receives must be claimed or discarded in a timely manner. Failure to do so may result in
/// increased memory usage for network buffering or communication stalls": the one up to a bound, and
/// then the other.
#[test]
fn what_nobody_claims_stops_its_sender() {
    let Some(host) = host("what_nobody_claims_stops_its_sender") else { return };
    const LENGTH: usize = 4 << 20;
    let mut world = World::empty(host, buffering);
    let from = world.add_node(&mut cq_attr(), 0);
    let ep = world.open_ep();
    assert_eq!(set(ep, BUFFERED_LIMIT, usize::MAX), 0);
    // What an endpoint may hold is the most that the limit may be.
    let budget = get(ep, BUFFERED_LIMIT).unwrap();
    assert_eq!(set(ep, BUFFERED_LIMIT, LENGTH), 0);
    let to = world.add(ep, &mut cq_attr(), 0);
    let (bytes, count) = (bytes(LENGTH), 3 * budget / LENGTH);
    (0..count).for_each(|_| send(from, &bytes, None));
    let mut held = announced(to, from);
    let mut most = held.len();
    for _ in 0..count {
        let entry = held.pop_front().unwrap_or_else(|| world.completion(to));
        assert_eq!((entry.len, entry.flags), (LENGTH, flag::MSG | flag::RECV));
        starts_with(&entry, &bytes);
        assert_eq!(take(to, &entry, &mut [], DISCARD), 0);
        held.extend(to.read());
        most = most.max(held.len());
    }
    assert!(most * LENGTH <= 2 * budget, "{most} messages were held");
    for _ in 0..count {
        assert_eq!(world.completion(from).flags, flag::MSG | flag::SEND);
    }
}

/// A message is announced to the second of these, and claimed there.
fn is_announced(from: Node, to: Node, length: usize) {
    let (bytes, mut room) = (bytes(length), vec![0; length]);
    send(from, &bytes, None);
    let entry = to.outcome(&[from]).ok().expect("an announcement");
    let more = if length > 16 << 10 { MORE } else { 0 };
    assert_eq!((entry.len, entry.flags), (length, flag::MSG | flag::RECV | more));
    starts_with(&entry, &bytes[..length.min(64)]);
    assert_eq!(take(to, &entry, &mut room, CLAIM), 0);
    let claimed = to.outcome(&[from]).ok().expect("the claim completes");
    assert_eq!((claimed.len, claimed.flags), (length, flag::MSG | flag::RECV | CLAIM));
    assert!(room == bytes, "{length} bytes");
    assert!(from.outcome(&[to]).is_ok());
}

#[test]
fn connected_endpoints_announce_too() {
    let Some(host) = host("connected_endpoints_announce_too") else { return };
    let place = Place::that(host, kind::MSG, buffering);
    assert_eq!(place.listen(), 0);
    let (ends, _) = connect(&place, b"", b"");
    let [caller, acceptor] = ends.map(End::node);
    for length in [8, 300, 70_000] {
        is_announced(caller, acceptor, length);
        is_announced(acceptor, caller, length);
    }
    ends.into_iter().for_each(End::close);
    place.close();
}

#[test]
fn datagrams_are_announced_too() {
    let Some(host) = host("datagrams_are_announced_too") else { return };
    let world = world(host, |hints| {
        asks_for_datagrams(hints);
        buffering(hints);
    });
    for length in [0, 8, 500] {
        is_announced(world.nodes[0], world.nodes[1], length);
    }
}

/// What is here of a message outlives its sender; what is not is an error of the claim.
#[test]
fn a_sender_that_closes_fails_the_claims_of_its_messages() {
    let Some(host) = host("a_sender_that_closes_fails_the_claims_of_its_messages") else { return };
    const LONG: usize = 1 << 20;
    let mut world = world(host, buffering);
    world.add_node(&mut cq_attr(), 0);
    let (from, to, other) = (world.nodes.remove(0), world.nodes[0], world.nodes[1]);
    let messages = [300, LONG].map(bytes);
    messages.iter().for_each(|bytes| send(from, bytes, None));
    let announced = [(); 2].map(|()| to.outcome(&[from]).ok().expect("an announcement"));
    assert_eq!((close(from.ep), close(from.cq)), (0, 0));
    for _ in 0..500 {
        assert_eq!(to.read().err(), Some(code::AGAIN));
    }
    for (bytes, entry) in messages.iter().zip(&announced) {
        starts_with(entry, &bytes[..64]);
        let mut room = vec![0; bytes.len()];
        assert_eq!(take(to, entry, &mut room, CLAIM), 0);
        match to.outcome(&[]) {
            Ok(claimed) => assert!((claimed.len, room) == (300, bytes.clone())),
            Err(lost) => assert_eq!((lost.err, bytes.len()), (-code::CONNRESET, LONG)),
        }
        assert_eq!(take(to, entry, &mut [], DISCARD), code::INVAL as isize, "it is gone");
    }
    is_announced(other, to, 70_000);
}

/// "A provider may discard previously completed operations from the associated completion queue(s)"
/// (fi_endpoint(3), fi_close): announcements lead to memory that is gone.
#[test]
fn announcements_go_with_their_endpoint() {
    let Some(host) = host("announcements_go_with_their_endpoint") else { return };
    let mut world = world(host, buffering);
    let (from, to) = (world.nodes[0], world.nodes.remove(1));
    send(from, &bytes(300), None);
    let (mut poll, mut ready): (*mut FidPoll, *mut c_void) = (null_mut(), null_mut());
    // SAFETY: the objects are open, and there is room for one context.
    unsafe {
        let open = (*(*world.domain).ops).poll_open;
        assert_eq!(open(world.domain, null_mut(), &raw mut poll), 0);
        let ops = &*(*poll).ops;
        assert_eq!((ops.poll_add)(poll, to.cq.cast(), 0), 0);
        eventually("a message is announced", || {
            from.progress();
            (ops.poll)(poll, &raw mut ready, 1) == 1
        });
        assert_eq!(close(poll), 0);
    }
    assert_eq!(close(to.ep), 0);
    assert_eq!(to.read().err(), Some(code::AGAIN));
    assert_eq!(close(to.cq), 0);
}

#[test]
fn a_receiver_that_closes_lets_go_of_its_senders() {
    let Some(host) = host("a_receiver_that_closes_lets_go_of_its_senders") else { return };
    const LENGTHS: [usize; 5] = [0, 300, 16 << 10, 70_000, 1 << 20];
    let mut world = world(host, buffering);
    let (from, to) = (world.nodes[0], world.nodes.remove(1));
    let messages = LENGTHS.map(bytes);
    messages.iter().for_each(|bytes| send(from, bytes, None));
    for length in LENGTHS {
        let announced = to.outcome(&[from]).ok().expect("an announcement");
        assert_eq!(announced.len, length);
    }
    assert_eq!((close(to.ep), close(to.cq)), (0, 0));
    let sent = LENGTHS.map(|_| from.outcome(&[]).map_err(|error| error.err).map(|_| ()));
    // What was buffered whole has arrived; the rest of what is long has not.
    assert_eq!(sent.iter().filter(|sent| sent.is_ok()).count(), 3, "{sent:?}");
    assert!(sent.iter().all(|sent| sent.is_ok() || *sent == Err(-code::CONNRESET)), "{sent:?}");
    for _ in 0..500 {
        assert_eq!(from.read().err(), Some(code::AGAIN), "each is over once");
    }
}

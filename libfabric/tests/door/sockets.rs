//! Socket endpoints. Reference: fi_endpoint(3), "SOCKET ENDPOINTS".

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    time::Instant,
};

use kestrel_tests::bed::pattern;

use crate::{
    abi::{
        attributes::Iovec,
        fid::{FidAv, FidEp},
        info::Info,
        message::Msg,
    },
    code,
    connection_ends::connect,
    connections::{CONNECTED, End, Place, SHUTDOWN, are_told, name},
    flag,
    host::{Host, host},
    kind,
    world::{self, PATIENCE, World, bind, close, cq_attr, enable},
};

const GETWAIT: c_int = 5;
const GETWAITOBJ: c_int = 16;
const WAIT_FD: c_int = 3;
const BACKLOG: c_int = 7;
pub const AGAIN: isize = -11;
const SHUT: isize = -108;
const MSGSIZE: isize = -90;
const REFUSED_FLAGS: isize = -260;

pub fn send(ep: *mut FidEp, bytes: &[u8], to: u64) -> isize {
    // SAFETY: the endpoint is open, and the bytes are there.
    unsafe {
        let send = (*(*ep).msg).send;
        send(ep, bytes.as_ptr().cast(), bytes.len(), null_mut(), to, null_mut())
    }
}

pub fn receive(ep: *mut FidEp, room: usize) -> Result<Vec<u8>, isize> {
    let mut buffer = vec![0_u8; room];
    // SAFETY: the endpoint is open, and the buffer has that length.
    let count = unsafe {
        let recv = (*(*ep).msg).recv;
        recv(ep, buffer.as_mut_ptr().cast(), room, null_mut(), u64::MAX, null_mut())
    };
    buffer.truncate(usize::try_from(count).map_err(|_| count)?);
    Ok(buffer)
}

fn control(ep: *mut FidEp, command: c_int) -> Result<c_int, c_int> {
    let mut value = -1;
    // SAFETY: the endpoint is open, and the argument of these commands is an `int *`.
    let status = unsafe { ((*(*ep).fid.ops).control)(ep.cast(), command, (&raw mut value).cast()) };
    if status == 0 { Ok(value) } else { Err(status) }
}

/// Waits on the descriptor until poll(2) says this.
pub fn wait(ep: *mut FidEp, events: i16) {
    let (fd, start) = (control(ep, GETWAIT).unwrap(), Instant::now());
    loop {
        let mut entry = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one entry, as the count says.
        unsafe { libc::poll(&raw mut entry, 1, 1000) };
        if entry.revents & events != 0 {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{fd} shows {:#x}, not {events:#x}", entry.revents);
    }
}

pub fn connected(host: &'static Host) -> (Place, End, End) {
    let place = Place::listening_as(host, kind::SOCK_STREAM);
    let ([caller, acceptor], _) = connect(&place, b"", b"");
    (place, caller, acceptor)
}

pub fn iovec(buffer: &mut [u8]) -> Iovec {
    Iovec { base: buffer.as_mut_ptr().cast(), len: buffer.len() }
}

pub fn message(iov: &[Iovec]) -> Msg {
    // SAFETY: zeroes and null pointers are a message without bytes.
    let empty: Msg = unsafe { std::mem::zeroed() };
    Msg { msg_iov: iov.as_ptr(), iov_count: iov.len(), ..empty }
}

/// "The return value from send and receive operations indicate the number of bytes transferred
/// on success, or a negative value on error, including -FI_EAGAIN".
#[test]
fn a_stream_is_sent_and_received_by_every_call() {
    let Some(host) = host("a_stream_is_sent_and_received_by_every_call") else { return };
    let (place, caller, acceptor) = connected(host);
    assert_eq!(caller.peer(64), Ok(name(acceptor.ep)));
    let (one, other) = (caller.ep, acceptor.ep);
    assert_eq!(receive(other, 8), Err(AGAIN));
    assert_eq!(send(one, b"send ", 99), 5);
    let (mut first, mut second) = (*b"sen", *b"dv ");
    // SAFETY: the endpoints are open, and what is passed lives through the calls.
    unsafe {
        let calls = &*(*one).msg;
        let iov = [iovec(&mut first), iovec(&mut second)];
        assert_eq!((calls.sendv)(one, iov.as_ptr(), null_mut(), 2, 0, null_mut()), 6);
        let mut third = *b"sendmsg ";
        let iov = [iovec(&mut third)];
        assert_eq!((calls.sendmsg)(one, &message(&iov), 0), 8);
        assert_eq!((calls.sendmsg)(one, &message(&iov), flag::REMOTE_CQ_DATA), REFUSED_FLAGS);
        assert_eq!((calls.sendmsg)(one, null(), 0) as c_int, code::INVAL);
        assert_eq!((calls.inject)(one, c"inject".as_ptr().cast(), 6, 0), 6);
        assert_eq!((calls.send)(one, null(), 5, null_mut(), 0, null_mut()) as c_int, code::INVAL);
        let data = (calls.senddata)(one, null(), 0, null_mut(), 1, 0, null_mut());
        assert_eq!(data as c_int, code::NOSYS);
    }
    let expected = b"send sendv sendmsg inject";
    let mut found = Vec::new();
    while found.len() < expected.len() {
        wait(other, libc::POLLIN);
        let (mut head, mut tail) = ([0; 2], [0; 3]);
        let iov = [iovec(&mut head), iovec(&mut tail)];
        // SAFETY: as above.
        let count = unsafe {
            let calls = &*(*other).msg;
            let peeked = (calls.recvmsg)(other, &message(&iov), flag::PEEK);
            let count = (calls.recvv)(other, iov.as_ptr(), null_mut(), 2, 0, null_mut());
            assert!(peeked > 0 && count >= peeked);
            count as usize
        };
        found.extend_from_slice(&[&head[..], &tail].concat()[..count]);
    }
    assert_eq!(found, expected);
    assert_eq!(caller.shutdown(0), 0);
    assert_eq!(send(one, b"late", 0), SHUT);
    wait(other, libc::POLLHUP);
    assert_eq!(receive(other, 8), Ok(Vec::new()));
    acceptor.sees(SHUTDOWN);
    caller.close();
    acceptor.close();
    place.close();
}

/// FI_GETWAIT: "The file descriptor may be used for notification that the endpoint is ready to
/// send or receive data."
#[test]
fn a_descriptor_tells_of_room_and_of_data() {
    let Some(host) = host("a_descriptor_tells_of_room_and_of_data") else { return };
    let (place, caller, acceptor) = connected(host);
    let fd = control(caller.ep, GETWAIT);
    assert_eq!((control(caller.ep, GETWAIT), control(caller.ep, GETWAITOBJ)), (fd, Ok(WAIT_FD)));
    assert_eq!(control(caller.ep, BACKLOG), Err(code::NOSYS));
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let (from, to) = (caller.ep as usize, acceptor.ep as usize);
        let sender = scope.spawn({
            let bytes = &bytes;
            move || {
                let (from, mut sent) = (from as *mut FidEp, 0);
                while sent < bytes.len() {
                    match send(from, &bytes[sent..], 0) {
                        AGAIN => wait(from, libc::POLLOUT),
                        count => sent += usize::try_from(count).unwrap(),
                    }
                }
            }
        });
        while found.len() < bytes.len() {
            match receive(to as *mut FidEp, 30_000) {
                Err(AGAIN) => wait(to as *mut FidEp, libc::POLLIN),
                part => found.extend(part.unwrap()),
            }
        }
        sender.join().unwrap();
    });
    assert!(found == bytes);
    caller.close();
    acceptor.close();
    place.close();
}

/// "Unlike UNIX sockets, socket endpoint must still be declared as either active or passive": one
/// takes a passive one over.
#[test]
fn a_stream_takes_a_passive_endpoint_over() {
    let Some(host) = host("a_stream_takes_a_passive_endpoint_over") else { return };
    let place = Place::listening_as(host, kind::SOCK_STREAM);
    let reserved = Place::of(host, kind::SOCK_STREAM);
    let address = name(reserved.pep);
    let caller = place.instead_of(&reserved);
    assert_eq!((name(caller.ep), reserved.listen()), (address.clone(), code::OPBADSTATE));
    assert_eq!(caller.connect(&name(place.pep), b""), 0);
    let acceptor = place.acceptor(&place.request(caller));
    assert_eq!(acceptor.accept(b""), 0);
    are_told([caller, acceptor]);
    assert_eq!((caller.sees(CONNECTED), acceptor.sees(CONNECTED)), (vec![], vec![]));
    assert_eq!((caller.peer(64), acceptor.peer(64)), (Ok(name(acceptor.ep)), Ok(address)));
    assert_eq!(send(acceptor.ep, b"hello", 0), 5);
    wait(caller.ep, libc::POLLIN);
    assert_eq!(receive(caller.ep, 8).unwrap(), b"hello");
    [caller, acceptor].into_iter().for_each(End::close);
    [reserved, place].into_iter().for_each(Place::close);
}

/// "Socket endpoints behave like non-blocking sockets": no call waits for a peer that does nothing.
#[test]
fn a_full_stream_and_an_empty_one_answer_at_once() {
    let Some(host) = host("a_full_stream_and_an_empty_one_answer_at_once") else { return };
    let (place, caller, acceptor) = connected(host);
    assert_eq!(receive(acceptor.ep, 8), Err(AGAIN));
    let bytes = pattern(1, 64 << 20);
    let taken = fill(caller.ep, &bytes);
    let mut found = Vec::new();
    while found.len() < taken {
        wait(acceptor.ep, libc::POLLIN);
        found.extend(receive(acceptor.ep, taken).unwrap());
    }
    assert!(found == bytes[..taken]);
    assert_eq!(receive(acceptor.ep, 8), Err(AGAIN));
    wait(caller.ep, libc::POLLOUT);
    assert_eq!(send(caller.ep, b"more", 0), 4);
    [caller, acceptor].into_iter().for_each(End::close);
    place.close();
}

/// Sends until there is no room; how much was taken.
pub fn fill(ep: *mut FidEp, bytes: &[u8]) -> usize {
    let mut taken = 0;
    loop {
        match send(ep, &bytes[taken..], 0) {
            AGAIN => return taken,
            count => taken += usize::try_from(count).unwrap(),
        }
        assert!(taken < bytes.len(), "there is no end to what is taken");
    }
}

/// "In order to support select and poll semantics": one thread, and one poll(2), for all of them.
#[test]
fn many_streams_share_a_domain() {
    let Some(host) = host("many_streams_share_a_domain") else { return };
    const COUNT: usize = 12;
    const LENGTH: usize = 30_000;
    let place = Place::listening_as(host, kind::SOCK_STREAM);
    let pairs = [(); COUNT].map(|()| connect(&place, b"", b"").0);
    for (number, [caller, _]) in pairs.iter().enumerate() {
        assert_eq!(send(caller.ep, &pattern(number as u64, LENGTH), 0), LENGTH as isize);
    }
    let mut descriptors = pairs.map(|[_, acceptor]| libc::pollfd {
        fd: control(acceptor.ep, GETWAIT).unwrap(),
        events: libc::POLLIN,
        revents: 0,
    });
    let (mut found, start) = ([(); COUNT].map(|()| Vec::new()), Instant::now());
    while found.iter().any(|found| found.len() < LENGTH) {
        // SAFETY: so many entries are there.
        let ready = unsafe { libc::poll(descriptors.as_mut_ptr(), COUNT as u64, 1000) };
        assert!(ready > 0 || start.elapsed() < PATIENCE, "nothing comes");
        for (number, entry) in descriptors.iter().enumerate() {
            if entry.revents & libc::POLLIN != 0 {
                found[number].extend(receive(pairs[number][1].ep, LENGTH).unwrap());
            }
        }
    }
    for (number, found) in found.iter().enumerate() {
        assert!(*found == pattern(number as u64, LENGTH), "a stream's own bytes");
    }
    pairs.into_iter().flatten().for_each(End::close);
    place.close();
}

fn asks_for_datagrams(hints: &mut Info) {
    // SAFETY: hints have all attributes.
    unsafe { (*hints.ep_attr).kind = kind::SOCK_DGRAM }
}

/// A socket endpoint of datagrams, in the address vector of the world.
fn datagrams(world: &World) -> *mut FidEp {
    let ep = world.open_ep();
    assert_eq!(bind(ep, world.av, 0), 0);
    assert_eq!(enable(ep), 0);
    insert(world.av, &name(ep));
    ep
}

fn insert(av: *mut FidAv, address: &[u8]) {
    // SAFETY: the vector is open, and one address is there.
    let count = unsafe {
        let insert = (*(*av).ops).insert;
        insert(av, address.as_ptr().cast(), 1, null_mut(), 0, null_mut())
    };
    assert_eq!(count, 1);
}

#[test]
fn datagrams_are_whole() {
    let Some(host) = host("datagrams_are_whole") else { return };
    let world = World::empty(host, asks_for_datagrams);
    let (one, other) = (datagrams(&world), datagrams(&world));
    assert_eq!(receive(other, 8), Err(AGAIN));
    for text in [&b"first"[..], b"", b"the third is cut"] {
        assert_eq!(send(one, text, 1), text.len() as isize);
        wait(other, libc::POLLIN);
        assert_eq!(receive(other, 9).unwrap(), &text[..text.len().min(9)]);
    }
    assert_eq!(receive(other, 8), Err(AGAIN));
    // SAFETY: libfabric's info, with all attributes.
    let longest = unsafe { (*(*world.info).ep_attr).max_msg_size };
    assert_eq!(send(one, &vec![1; longest], 1), longest as isize);
    wait(other, libc::POLLIN);
    assert_eq!(receive(other, longest).map(|found| found.len()), Ok(longest));
    assert_eq!(send(one, &vec![1; longest + 1], 1), MSGSIZE);
    assert_eq!(send(one, b"to nobody", 99) as c_int, code::INVAL);
    for ep in [one, other] {
        assert_eq!(close(ep), 0);
    }
}

/// "Socket endpoints are not associated with completion queues or counters", and "support a
/// subset of message operations".
#[test]
fn what_sockets_have_not_is_refused() {
    let Some(host) = host("what_sockets_have_not_is_refused") else { return };
    let world = World::empty(host, asks_for_datagrams);
    let ep = world.open_ep();
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!(bind(ep, cq, flag::SEND | flag::RECV), code::BADFLAGS);
    assert_eq!(bind(ep, cq, 0), code::INVAL);
    assert_eq!(send(ep, b"early", 0) as c_int, code::OPBADSTATE);
    assert_eq!(receive(ep, 8).unwrap_err() as c_int, code::OPBADSTATE);
    // SAFETY: the endpoint is open; what it does not have looks at nothing.
    unsafe {
        let refused = ((*(*ep).tagged).send)(ep, null(), 0, null_mut(), 0, 0, null_mut());
        assert_eq!(refused as c_int, code::NOSYS);
        let refused = ((*(*ep).rma).read)(ep, null_mut(), 0, null_mut(), 0, 0, 0, null_mut());
        assert_eq!(refused as c_int, code::NOSYS);
        assert_eq!(((*(*ep).ops).cancel)(ep.cast(), null_mut()) as c_int, code::NOSYS);
        let control = (*(*ep).fid.ops).control;
        assert_eq!(control(ep.cast(), GETWAIT, null_mut::<c_void>()), code::INVAL);
    }
    assert_eq!((close(ep), close(cq)), (0, 0));
    assert_eq!(send(ep, b"late", 0) as c_int, code::BADF);
    assert_eq!(receive(ep, 8).unwrap_err() as c_int, code::BADF);
}

/// They are for who asks for them, and told as what they are.
#[test]
fn sockets_are_found_by_who_asks_for_them() {
    let Some(host) = host("sockets_are_found_by_who_asks_for_them") else { return };
    for kind in [kind::SOCK_STREAM, kind::SOCK_DGRAM] {
        let ask = |caps: u64| {
            world::info(host, |hints| {
                hints.caps = caps;
                // SAFETY: hints have all attributes.
                unsafe { (*hints.ep_attr).kind = kind }
            })
        };
        let info = ask(flag::MSG).unwrap();
        // SAFETY: libfabric's info, with all attributes.
        unsafe {
            let (ep, tx) = (&*(*info).ep_attr, &*(*info).tx_attr);
            assert_eq!((ep.kind, tx.rma_iov_limit, ep.mem_tag_format), (kind, 0, 0));
            assert_eq!((*info).caps & (flag::TAGGED | flag::READ | flag::SOURCE), 0);
            (host.freeinfo)(info);
        }
        assert_eq!(ask(flag::TAGGED).err(), Some(code::NODATA));
    }
    let info = world::info(host, |_| {}).unwrap();
    let mut next = info;
    while !next.is_null() {
        // SAFETY: as above.
        unsafe {
            assert!((*(*next).ep_attr).kind < kind::SOCK_STREAM);
            next = (*next).next;
        }
    }
    // SAFETY: as above.
    unsafe { (host.freeinfo)(info) };
}

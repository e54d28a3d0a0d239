//! Streams: socket endpoints that are connected. Reference: fi_endpoint(3), "SOCKET ENDPOINTS".

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    address_vector::{AddressVector, AddressVectorAttributes},
    domain::DomainOptions,
    endpoint::{EndpointError, EndpointOptions, PostError},
    error::{Errno, HasErrno},
    event_queue::Event,
    flags::Flags,
    memory::Pieces,
    socket_endpoint::{
        Readiness, SEGMENT_MAX, SEND_BUFFER, SocketEndpoint, SocketError, SocketKind,
    },
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, pattern, same},
    link::{ENDPOINT, End, Listener, drive},
    scale::{PATIENCE, leaves_in_time, unspoilt},
    socket::{ERROR, HANG_UP, IN, OUT, Pair, Stream, shown, shows},
};

/// "A reliable, connection-oriented data transfer service that does not maintain message
/// boundaries."
pub fn bytes_arrive_in_order_however_they_are_cut<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let bytes = pattern(1, 600_000);
    for (one, other) in [(&caller, &acceptor), (&acceptor, &caller)] {
        let (mut sent, mut found, mut part) = (0, Vec::new(), vec![0; 70_000]);
        let start = Instant::now();
        for turn in 0_usize.. {
            let most = 1 + (turn * 7919) % 40_000;
            if sent < bytes.len() {
                match one.socket.send(&bytes[sent..(sent + most).min(bytes.len())]) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error, SocketError::Again),
                }
            }
            let room = 1 + (turn * 104_729) % part.len();
            match other.socket.receive(&mut part[..room]) {
                Ok(count) => found.extend_from_slice(&part[..count]),
                Err(error) => assert_eq!(error, SocketError::Again),
            }
            if found.len() == bytes.len() {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{sent} sent, {} received", found.len());
        }
        same(&found, &bytes, "the stream");
    }
}

/// "Buffers passed into send and receive operations revert to the control of the application
/// upon returning", and "the return value … indicate\[s\] the number of bytes transferred".
pub fn a_buffer_is_free_when_the_call_returns<P: Provider>(bed: &Bed<P>) {
    let memory = Memory::from(pattern(2, 3000));
    let room = Memory::zeroed(5000);
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let cut = memory.cut(&[1000, 0, 1999, 1]);
    let sent = caller.socket.send_pieces(Pieces::Many(&cut), 0, Flags::empty());
    assert_eq!(sent, Ok(3000));
    memory.scribble();
    assert_eq!(caller.socket.inject(b"injected", 0), Ok(8));
    let expected = [pattern(2, 3000), b"injected".to_vec()].concat();
    let mut found = Vec::new();
    while found.len() < expected.len() {
        acceptor.socket.wait(Readiness::RECEIVE, Some(PATIENCE)).unwrap();
        let cut = room.cut(&[7, 0, 1000, 3]);
        // What is only looked at stays.
        let peeked = acceptor.socket.receive_pieces(Pieces::Many(&cut), Flags::PEEK).unwrap();
        let looked_at = room.bytes()[..peeked.length].to_vec();
        room.scribble();
        let taken = acceptor.socket.receive_pieces(Pieces::Many(&cut), Flags::empty()).unwrap();
        assert!(taken.length >= peeked.length);
        same(&room.bytes()[..peeked.length], &looked_at, "what was looked at");
        found.extend_from_slice(&room.bytes()[..taken.length]);
    }
    same(&found, &expected, "what was gathered and scattered");
}

/// "-FI_EAGAIN if the endpoint cannot send or receive any data because of full or empty queues".
pub fn a_full_buffer_takes_no_more<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let bytes = pattern(3, 4 << 20);
    assert_eq!(acceptor.socket.receive(&mut [0; 8]), Err(SocketError::Again));
    let taken = caller.stuff(&bytes);
    assert!((SEND_BUFFER..bytes.len()).contains(&taken), "{taken}");
    assert_eq!(caller.socket.send(&bytes), Err(SocketError::Again));
    assert_eq!(caller.socket.inject(b"no part of it", 0), Err(SocketError::Again));
    assert_eq!(caller.socket.readiness(), Readiness::empty());
    same(&acceptor.receive(taken), &bytes[..taken], "what was taken");
    assert_eq!(acceptor.socket.receive(&mut [0; 8]), Err(SocketError::Again));
    caller.send(b"more");
    assert_eq!(acceptor.receive(4), b"more");
}

/// Who fills both directions before it receives is not stuck.
pub fn both_directions_may_be_full<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let bytes = pattern(4, 4 << 20);
    let (there, back) = (caller.stuff(&bytes), acceptor.stuff(&bytes));
    assert!(there.min(back) >= SEND_BUFFER);
    same(&acceptor.receive(there), &bytes[..there], "one direction");
    same(&caller.receive(back), &bytes[..back], "the other");
    caller.send(b"on");
    assert_eq!(acceptor.receive(2), b"on");
}

/// Nothing is sent by a send of nothing, and nothing taken by a receive into nothing.
pub fn nothing_is_a_length<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    assert_eq!(caller.socket.send(&[]), Ok(0));
    assert_eq!(acceptor.socket.receive(&mut []), Ok(0));
    caller.send(b"x");
    acceptor.socket.wait(Readiness::RECEIVE, Some(PATIENCE)).unwrap();
    assert_eq!(acceptor.socket.receive(&mut []), Ok(0));
    assert_eq!(acceptor.receive(1), b"x");
    assert_eq!(acceptor.socket.receive(&mut [0; 8]), Err(SocketError::Again));
}

/// "Active socket endpoints are associated with a file descriptor that is signaled whenever the
/// endpoint is ready to send and/or receive data": without a call of the application's.
pub fn the_descriptor_shows_what_there_is<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let caller = Stream::calling(bed, listener.passive.address());
    let fd = caller.socket.descriptor().unwrap();
    assert_eq!(caller.socket.descriptor(), Ok(fd), "there is one");
    assert_eq!(shown(fd), 0, "not connected");
    let acceptor = Stream::acceptor(bed, listener.take(&[&caller]));
    acceptor.socket.accept(&[]).unwrap();
    shows(fd, OUT);
    acceptor.connected(&[&listener]);
    acceptor.send(b"hello");
    shows(fd, IN | OUT);
    assert_eq!(caller.receive(3), b"hel");
    assert_eq!(shown(fd), IN | OUT, "there is more");
    assert_eq!(caller.receive(2), b"lo");
    assert_eq!(shown(fd), OUT, "there is no more");
    let bytes = pattern(5, 4 << 20);
    let taken = caller.stuff(&bytes);
    assert_eq!(shown(fd), 0, "the buffer is full");
    same(&acceptor.receive(taken), &bytes[..taken], "what was taken");
    shows(fd, OUT);
    acceptor.socket.shutdown().unwrap();
    shows(fd, IN | OUT | HANG_UP);
    assert_eq!(caller.socket.receive(&mut [0; 8]), Ok(0));
}

/// Bytes that were taken leave while the application waits elsewhere, on the descriptor alone.
pub fn a_descriptor_wakes_who_sleeps_on_it<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let (asks, answers) =
        (caller.socket.descriptor().unwrap(), acceptor.socket.descriptor().unwrap());
    for round in 0..50_u8 {
        shows(asks, OUT);
        assert_eq!(caller.socket.send(&[round]), Ok(1));
        shows(answers, IN | OUT);
        assert_eq!(acceptor.receive(1), [round]);
        assert_eq!(acceptor.socket.receive(&mut [0; 1]), Err(SocketError::Again));
    }
}

/// The end of a stream comes after its last byte, and is told again and again.
pub fn an_end_comes_after_the_last_byte<P: Provider>(bed: &Bed<P>) {
    for length in [0, 1, SEGMENT_MAX, 30_000] {
        unspoilt(|| ends_after(bed, length));
    }
}

fn ends_after<P: Provider>(bed: &Bed<P>, length: usize) -> bool {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let (bytes, mut shutdown) = (pattern(6, length), Ok(()));
    caller.send(&bytes);
    if !leaves_in_time(|| shutdown = caller.socket.shutdown()) {
        return false;
    }
    shutdown.unwrap();
    caller.socket.shutdown().unwrap();
    assert_eq!(caller.socket.send(b"late"), Err(SocketError::ShutDown));
    assert_eq!(caller.socket.receive(&mut [0; 8]), Ok(0));
    let (found, end) = acceptor.receive_to_end();
    same(&found, &bytes, "all that was sent");
    assert_eq!(end, Ok(()));
    assert_eq!(acceptor.socket.receive(&mut [0; 8]), Ok(0));
    let told = acceptor.event(&[&caller]);
    assert_eq!(told, Ok(Event::Shutdown { fid: ENDPOINT }));
    assert_eq!(acceptor.socket.send(b"late"), Err(SocketError::Reset));
    true
}

/// Closing shuts down: what was taken arrives, although nobody has received it then.
pub fn a_closed_stream_has_delivered_what_was_taken<P: Provider>(bed: &Bed<P>) {
    unspoilt(|| {
        let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
        // As much as any transport's segments bring to buffers that are posted.
        let bytes = pattern(7, 8000);
        assert_eq!(caller.socket.send(&bytes), Ok(bytes.len()));
        if !leaves_in_time(|| drop(caller)) {
            return false;
        }
        let (found, end) = acceptor.receive_to_end();
        same(&found, &bytes, "all that was sent");
        assert_eq!(end, Ok(()));
        true
    });
}

/// A peer that takes nothing keeps nobody, who is told how much is lost; and so is the peer.
pub fn what_cannot_be_delivered_is_told<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let bytes = pattern(8, 4 << 20);
    let taken = caller.stuff(&bytes);
    let start = Instant::now();
    let Err(SocketError::NotDelivered { bytes: lost }) = caller.socket.shutdown() else {
        panic!("all of it was delivered");
    };
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(lost > 0 && lost <= taken);
    let (found, end) = acceptor.receive_to_end();
    assert_eq!(end, Err(SocketError::Reset));
    assert!(found.len() + lost >= taken, "{} arrived, {lost} of {taken} lost", found.len());
    same(&found, &bytes[..found.len()], "what arrived");
}

/// A stream that was accepted, from a connected endpoint: it speaks the same, but for the end, and as it is
/// told to.
fn rude<P: Provider>(bed: &Bed<P>) -> (End<P>, Stream<P>, Listener<P>) {
    let listener = Listener::listening(bed);
    let rude = End::calling(bed, listener.passive.address(), &[]);
    let acceptor = Stream::acceptor(bed, listener.take(&[&rude]));
    acceptor.socket.accept(&[]).unwrap();
    rude.connected(&[&acceptor, &listener]);
    acceptor.connected(&[&rude]);
    (rude, acceptor, listener)
}

/// A peer that goes without a word leaves what had arrived, and then an error.
pub fn a_loss_is_no_end<P: Provider>(bed: &Bed<P>) {
    let (rude, acceptor, _listener) = rude(bed);
    let fd = acceptor.socket.descriptor().unwrap();
    rude.endpoint.send_data(b"before".to_vec(), 0, 0, 1).unwrap();
    rude.done(&[&acceptor]).good();
    drop(rude);
    let (found, end) = acceptor.receive_to_end();
    assert_eq!((&found[..], end), (&b"before"[..], Err(SocketError::Reset)));
    assert_eq!(acceptor.socket.send(b"late"), Err(SocketError::Reset));
    assert_eq!(acceptor.socket.receive(&mut [0; 8]), Err(SocketError::Reset));
    shows(fd, IN | OUT | HANG_UP | ERROR);
    assert_eq!(acceptor.socket.shutdown(), Ok(()));
}

/// Who waits to send to a peer that is gone is told so, though nothing of what it had sent was read.
pub fn a_loss_is_told_before_the_rest_is_read<P: Provider>(bed: &Bed<P>) {
    let (rude, acceptor, _listener) = rude(bed);
    let fd = acceptor.socket.descriptor().unwrap();
    let bytes = many_segments(&rude, &acceptor);
    drop(rude);
    drive("the loss is noticed", &[], || acceptor.socket.send(b"late") == Err(SocketError::Reset));
    acceptor.socket.wait(Readiness::SEND, Some(PATIENCE)).unwrap();
    shows(fd, IN | OUT);
    assert_eq!(acceptor.receive_to_end(), (bytes, Err(SocketError::Reset)));
    shows(fd, IN | OUT | HANG_UP | ERROR);
}

/// Sends a segment for every buffer that a stream has, and more.
fn many_segments<P: Provider>(rude: &End<P>, acceptor: &Stream<P>) -> Vec<u8> {
    let bytes = pattern(5, 80);
    for (number, byte) in (0..).zip(&bytes) {
        rude.endpoint.send_data(vec![*byte], 0, number, 1).unwrap();
        rude.done(&[acceptor]).good();
    }
    bytes
}

/// An end is no loss, though buffers were posted for what came before it when the stream was over.
pub fn an_end_is_found_behind_what_waits<P: Provider>(bed: &Bed<P>) {
    let (rude, acceptor, _listener) = rude(bed);
    let fd = acceptor.socket.descriptor().unwrap();
    let bytes = many_segments(&rude, &acceptor);
    rude.endpoint.send_data(vec![], 0, bytes.len() as u64, 1).unwrap();
    rude.done(&[&acceptor]).good();
    rude.endpoint.shutdown().unwrap();
    drive("the shutdown is noticed", &[&rude], || {
        acceptor.socket.send(b"late") == Err(SocketError::Reset)
    });
    assert_eq!(acceptor.receive_to_end(), (bytes, Ok(())));
    shows(fd, IN | OUT | HANG_UP);
}

/// Who goes on after the end of its stream is let go, and what it sends then is no part of it.
pub fn nothing_is_received_behind_an_end<P: Provider>(bed: &Bed<P>) {
    let (liar, acceptor, _listener) = rude(bed);
    for (number, bytes) in [b"", &b"x"[..]].into_iter().enumerate() {
        liar.endpoint.send_data(bytes.to_vec(), 0, number as u64, 1).unwrap();
    }
    drive("it is let go", &[&liar], || {
        let received = acceptor.socket.receive(&mut [0; 8]);
        assert!(matches!(received, Ok(0) | Err(SocketError::Again)), "{received:?}");
        !liar.events.is_empty()
    });
    liar.sees_shutdown(&[]);
    assert_eq!(acceptor.socket.receive(&mut [0; 8]), Ok(0));
}

/// Who sends what is no segment, or none that is the next, is let go.
pub fn what_is_no_segment_ends_the_stream<P: Provider>(bed: &Bed<P>) {
    for (length, number) in [(SEGMENT_MAX + 1, Some(0)), (10, Some(1)), (10, None)] {
        no_segment(bed, vec![1; length], number);
    }
}

fn no_segment<P: Provider>(bed: &Bed<P>, bytes: Vec<u8>, number: Option<u64>) {
    let (liar, acceptor, _listener) = rude(bed);
    match number {
        Some(number) => liar.endpoint.send_data(bytes, 0, number, 1).unwrap(),
        None => liar.endpoint.send(bytes, 0, 1).unwrap(),
    }
    drive("the stream ends", &[&liar], || {
        acceptor.socket.receive(&mut [0; 8]) == Err(SocketError::Reset)
    });
}

/// Before it is connected a stream sends and receives nothing; nor does one that is rejected.
pub fn nothing_passes_without_a_connection<P: Provider>(bed: &Bed<P>) {
    let listener = Listener::listening(bed);
    let caller = Stream::caller(bed);
    let disabled = SocketError::Post(PostError::NotEnabled);
    assert_eq!(caller.socket.send(b"early"), Err(disabled.clone()));
    assert_eq!(caller.socket.receive(&mut [0; 8]), Err(disabled));
    assert_eq!(caller.socket.shutdown().unwrap_err().errno(), Errno::NOTCONN);
    // Who is refused is not enabled.
    let address = listener.passive.address().with_port(0);
    assert_eq!(caller.socket.connect(address, &[]).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(caller.socket.accept(&[]).unwrap_err().errno(), Errno::INVAL);
    caller.socket.enable().unwrap();
    assert_eq!(caller.socket.enable().unwrap_err().errno(), Errno::OPBADSTATE);
    assert_eq!(caller.socket.send(b"early"), Err(SocketError::NotConnected));
    assert_eq!(caller.socket.receive(&mut [0; 8]), Err(SocketError::NotConnected));
    assert_eq!(caller.socket.shutdown().unwrap_err().errno(), Errno::NOTCONN);
    caller.socket.connect(listener.passive.address(), b"data").unwrap();
    let fd = caller.socket.descriptor().unwrap();
    let asked = listener.request(&[&caller]);
    assert_eq!(asked.data, b"data");
    listener.passive.reject(asked.handle, b"no").unwrap();
    let error = caller.event(&[&listener]).unwrap_err();
    assert_eq!((error.error, &error.error_data[..]), (Errno::CONNREFUSED, &b"no"[..]));
    assert_eq!(caller.socket.send(b"late"), Err(SocketError::NotConnected));
    assert_eq!(caller.socket.receive(&mut [0; 8]), Err(SocketError::NotConnected));
    shows(fd, IN | OUT | HANG_UP | ERROR);
}

/// "Socket endpoints are not associated with completion queues or counters", and not told what
/// only they could answer.
pub fn what_streams_have_not_is_refused<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let one = Memory::zeroed(1);
    for flags in [Flags::REMOTE_CQ_DATA, Flags::DELIVERY_COMPLETE, Flags::FENCE, Flags::TAGGED] {
        let refused = Err(SocketError::BadFlags { flags });
        assert_eq!(caller.socket.send_pieces(one.all(), 0, flags), refused);
    }
    for flags in [Flags::CLAIM, Flags::DISCARD, Flags::MULTI_RECV] {
        let refused = acceptor.socket.receive_pieces(one.all(), flags);
        assert_eq!(refused, Err(SocketError::BadFlags { flags }));
    }
    let pieces = one.cut(&[0; 9]);
    let many = PostError::TooManyPieces { count: 9, limit: 8 };
    let refused = caller.socket.send_pieces(Pieces::Many(&pieces), 0, Flags::empty());
    assert_eq!(refused, Err(many.into()));
    let limit = EndpointOptions::default().inject_size;
    let long = SocketError::TooLong { length: limit + 1, limit };
    assert_eq!(caller.socket.inject(&vec![0; limit + 1], 0), Err(long));
    let vector = AddressVector::open(AddressVectorAttributes::default()).unwrap();
    let stream = Stream::caller(bed);
    let bound = stream.socket.bind_address_vector(&vector.into()).unwrap_err();
    assert_eq!(bound, SocketError::NotForThisType { object: "address vector" });
    let domain = bed.domain(DomainOptions::default());
    let options = EndpointOptions::default();
    let alone = SocketEndpoint::open(&domain, SocketKind::Stream, options).unwrap();
    assert_eq!(alone.enable(), Err(EndpointError::NoEventQueue.into()));
}

/// Waits answer what they waited for, or nothing when their time is over.
pub fn a_wait_ends_with_what_it_waits_for<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor, listener: _listener } = Pair::new(bed);
    let short = Some(Duration::from_millis(20));
    assert_eq!(acceptor.socket.wait(Readiness::RECEIVE, short), Ok(Readiness::empty()));
    let late = acceptor.socket.receive_blocking(&mut [0; 8], short);
    assert_eq!(late, Err(SocketError::Again));
    assert_eq!(acceptor.socket.wait(Readiness::SEND, None), Ok(Readiness::SEND));
    caller.send(b"x");
    let both = Readiness::RECEIVE | Readiness::SEND;
    assert_eq!(acceptor.socket.wait(Readiness::RECEIVE, None), Ok(Readiness::RECEIVE));
    assert_eq!(acceptor.socket.wait(both, None), Ok(both));
    assert_eq!(acceptor.receive(1), b"x");
    let taken = caller.stuff(&pattern(9, 4 << 20));
    assert_eq!(caller.socket.wait(Readiness::SEND, short), Ok(Readiness::empty()));
    acceptor.receive(taken);
    assert_eq!(caller.socket.wait(Readiness::SEND, None), Ok(Readiness::SEND));
}

/// "Unlike UNIX sockets, socket endpoint\[s\] must still be declared as either active or passive":
/// one takes a passive one over.
pub fn a_stream_takes_a_passive_endpoint_over<P: Provider>(bed: &Bed<P>) {
    let (listener, reserved) = (Listener::listening(bed), Listener::open(bed));
    let address = reserved.passive.address();
    let options = EndpointOptions::default();
    let caller = Stream::open(bed, |domain| {
        SocketEndpoint::open_instead_of(domain, options, &reserved.passive)
    });
    assert_eq!(caller.socket.address(), address);
    caller.socket.connect(listener.passive.address(), &[]).unwrap();
    let request = listener.take(&[&caller]);
    assert_eq!(request.address(), address);
    let acceptor = Stream::acceptor(bed, request);
    acceptor.socket.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
    acceptor.connected(&[&caller, &listener]);
    assert_eq!(caller.socket.peer(), Ok(acceptor.socket.address()));
    acceptor.send(b"hello");
    assert_eq!(caller.receive(5), b"hello");
    let again = caller.socket.connect(listener.passive.address(), &[]).unwrap_err();
    assert_eq!(again.errno(), Errno::ISCONN);
}

/// A domain has many streams, which one helper drives, and each of them its own bytes.
pub fn many_streams_share_a_domain<P: Provider>(bed: &Bed<P>) {
    const COUNT: usize = 12;
    let pairs: Vec<Pair<P>> = (0..COUNT).map(|_| Pair::new(bed)).collect();
    let bytes = |index| pattern(100 + index as u64, 30_000);
    for (index, pair) in pairs.iter().enumerate() {
        pair.caller.send(&bytes(index));
    }
    for (index, pair) in pairs.iter().enumerate().rev() {
        same(&pair.acceptor.receive(30_000), &bytes(index), "a stream's own bytes");
    }
}

/// Who waits for events outside may be about to look when the stream is closed.
pub fn a_wait_for_events_keeps_no_domain<P: Provider>(bed: &Bed<P>) {
    let Pair { caller, acceptor: _acceptor, listener: _listener } = Pair::new(bed);
    let (events, domain) = (caller.events.clone(), Arc::downgrade(caller.socket.domain()));
    let (start, mut wait) = (Instant::now(), None);
    while wait.is_none() {
        wait = events.prepare_wait();
        assert!(start.elapsed() < PATIENCE, "in vain: something is always there");
    }
    drop(caller);
    assert_eq!(domain.strong_count(), 0);
    drop(wait);
}

//! Which lanes a poll looks at, by counting them; and what a forked child does to groups.

use std::{net::IpAddr, sync::Arc};

use kestrel_core::{
    address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC},
    completion_queue::{CompletionQueue, Entry},
    config::LaneChunks,
    domain::{Domain, DomainOptions},
    endpoint::{Endpoint, EndpointOptions},
    flags::Flags,
    group::Spread,
    ring::filling::Filling,
    transport::{Multicast as _, Opening, Provider, Service},
    wire::{TAGGED, WAITS},
};
use kestrel_tests::fork::{fork, wait};

use super::*;
use crate::{
    PoolMemory, ShmOptions, ShmProvider, StationOptions,
    lane::{LOOKS, filling},
    region::LANE_CHUNK_BYTES_FIRST,
};

const LANES: u32 = 200;

fn next_event(transport: &mut ShmTransport) -> TransportEvent {
    loop {
        if let Some(event) = transport.event() {
            return event;
        }
        std::thread::yield_now();
    }
}

/// A transport with lanes from that many peers, none of which has spoken, and the peers.
fn with_lanes(count: u32) -> (ShmTransport, Vec<Station>) {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let mut transport = provider.open(None, &[]).unwrap();
    let stations = (0..count).map(|_| open_station()).collect::<Vec<_>>();
    for (peer, station) in stations.iter().enumerate() {
        station.connect(0, transport.address().socket_addr());
        let TransportEvent::Incoming { ticket, .. } = next_event(&mut transport) else {
            panic!("nobody connects");
        };
        transport.adopt(peer as PeerIndex, ticket);
    }
    (transport, stations)
}

fn open_station() -> Station {
    Station::open(StationOptions {
        address: None,
        default_ip: IpAddr::from([127, 0, 0, 1]),
        auth_key: Vec::new(),
        keys_follow: false,
        service: Service::Reliable,
        admits: None,
        incarnation: None,
        pool: PoolMemory::create(4096).unwrap(),
        connect_timeout: Duration::from_secs(20),
        cma: false,
    })
    .unwrap()
}

/// An endpoint over shared memory, and where its operations complete.
fn open_endpoint() -> (Arc<Endpoint<ShmProvider>>, Arc<CompletionQueue<ShmProvider>>) {
    let provider = Arc::new(ShmProvider::new(ShmOptions::default()).unwrap());
    let domain = Domain::open(provider, DomainOptions::default()).unwrap();
    let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    let vector = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
    endpoint.bind_address_vector(&vector).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
    endpoint.enable().unwrap();
    (endpoint, queue)
}

/// The sending end of a lane, without an endpoint.
struct Sender {
    lane: SendLane,
    pool: ChunkPool,
    filling: NonNull<Filling>,
    _pool_memory: PoolMemory,
}

impl Sender {
    /// Of a station that has asked for a connection.
    fn connected(station: &Station) -> Sender {
        let event = std::iter::repeat_with(|| station.next_event()).flatten().next();
        let Some(StationEvent::Connected { lane, bell, peer, .. }) = event else {
            panic!("not connected");
        };
        let pool_memory = PoolMemory::create(1 << 16).unwrap();
        let pool = ChunkPool::new(&pool_memory, 4096);
        let filling = NonNull::from(filling(&lane));
        let lane = SendLane::new(lane, bell, peer, OwnChunks::None, 4096);
        Sender { lane, pool, filling, _pool_memory: pool_memory }
    }

    fn push(&mut self, tag: u64, flags: u8, content: &[u8]) {
        let mut content = content.to_vec();
        // SAFETY: the content lives through the call.
        let piece = unsafe { Piece::new(content.as_mut_ptr(), content.len()) };
        let copier = Copier::choose("memcpy").unwrap();
        let (pool, head) = (&mut self.pool, Head::new(Kind::Eager, flags));
        let lane = &mut self.lane;
        let pushed =
            lane.push(|| Means { pool, copier: &copier, other_way: None }, head, tag, &[], piece);
        assert!(pushed.unwrap());
    }

    /// The second packet, which is shown while it is copied in, is not there yet after all.
    fn take_back(&self) {
        // SAFETY: it lies in the lane's memory, which lives as long as the lane.
        let filling = unsafe { self.filling.as_ref() };
        (0..2).for_each(|part| filling.fill(part, 0));
    }
}

/// How many looks at lanes `polls` empty polls take.
fn lanes_looked_at(transport: &mut ShmTransport, polls: u32) -> usize {
    let before = LOOKS.get();
    for _ in 0..polls {
        assert!(transport.arrival().is_none());
    }
    LOOKS.get() - before
}

#[test]
fn lanes_that_never_spoke_cost_a_poll_no_more_than_the_few_that_are_always_looked_at() {
    let (mut transport, stations) = with_lanes(LANES);
    // Two looks apart: the first notes where each lane stands, the second finds it there.
    lanes_looked_at(&mut transport, 2 * LOOKS_PER_QUIETENING * ROUNDS_PER_QUIET + ROUNDS_PER_QUIET);
    assert_eq!((transport.active.len(), transport.quiet.len()), (0, LANES as usize));
    let polls = 1000;
    assert_eq!(lanes_looked_at(&mut transport, polls), (polls / ROUNDS_PER_QUIET) as usize);
    // They are heard all the same, after no more polls than it takes to go round.
    Sender::connected(&stations[77]).push(5, 0, &[]);
    let polls = (1..).find(|_| {
        let arrival = transport.arrival();
        arrival.is_some_and(|arrival| arrival.peer == 77 && arrival.word == 5)
    });
    assert!(polls.unwrap() <= (LANES + 2) * ROUNDS_PER_QUIET);
    transport.consume();
    assert_eq!(transport.active.len(), 1, "who speaks is polled from now on");
}

#[test]
fn few_lanes_stay_where_they_are() {
    let (mut transport, _stations) = with_lanes(ACTIVE_MAX as u32);
    lanes_looked_at(&mut transport, 3 * LOOKS_PER_QUIETENING * ROUNDS_PER_QUIET);
    assert_eq!((transport.active.len(), transport.quiet.len()), (ACTIVE_MAX, 0));
}

/// Whether a quiet lane is heard while each of `loud` lanes has a packet whenever it is looked at, or but
/// for the time right after one was taken.
fn is_heard_beside(loud: &[usize], always: bool) -> bool {
    let (mut transport, stations) = with_lanes(ACTIVE_MAX as u32 + 4);
    lanes_looked_at(&mut transport, 3 * LOOKS_PER_QUIETENING * ROUNDS_PER_QUIET);
    let mut senders: Vec<_> = loud.iter().map(|&peer| Sender::connected(&stations[peer])).collect();
    // Those that are loud are heard: nothing else speaks yet.
    senders.iter_mut().for_each(|sender| sender.push(1, 0, &[]));
    for _ in 0..loud.len() {
        assert!(std::iter::repeat_with(|| transport.arrival()).flatten().next().is_some());
        transport.consume();
    }
    assert_eq!(transport.active.len(), loud.len());
    senders.iter_mut().for_each(|sender| sender.push(1, 0, &[]));
    let quiet = ACTIVE_MAX + 3;
    Sender::connected(&stations[quiet]).push(2, 0, &[]);
    let mut taken = None;
    let arrivals = (ACTIVE_MAX + 6) * loud.len() * (ROUNDS_PER_QUIET * STREAK_MAX) as usize;
    (0..arrivals).any(|_| {
        let peer = if always { taken.take() } else { None };
        peer.into_iter().for_each(|peer: usize| senders[peer].push(1, 0, &[]));
        let speaking = transport.arrival().expect("somebody always speaks").peer as usize;
        transport.consume();
        if speaking == quiet {
            return true;
        }
        taken.replace(speaking).into_iter().for_each(|peer| senders[peer].push(1, 0, &[]));
        false
    })
}

/// No poll ever finds nothing.
#[test]
fn a_flood_keeps_no_quiet_lane_waiting() {
    assert!(is_heard_beside(&[0], true), "one lane, whose streak goes on and on");
    assert!(is_heard_beside(&[0, 1, 2], true), "several, streak by streak");
    assert!(is_heard_beside(&[0, 1, 2], false), "several, a packet each in turn");
}

/// A peer that was stopped while it copies in a message: the packet comes again with every poll, and
/// is found each time before the lanes that are quiet.
#[test]
fn who_is_stopped_in_the_middle_of_a_packet_keeps_no_quiet_lane_waiting() {
    const PEERS: usize = ACTIVE_MAX + 4;
    let (endpoint, queue) = open_endpoint();
    let stations: Vec<Station> = (0..PEERS).map(|_| open_station()).collect();
    let read = || queue.read(&mut [Entry::default()]);
    let mut lanes = Vec::new();
    for station in &stations {
        station.connect(0, endpoint.address().socket_addr());
        lanes.push(Sender::connected(station));
    }
    let (stopped, quiet) = (0, PEERS - 1);
    endpoint.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 1, 0, 1).unwrap();
    lanes[stopped].push(1, TAGGED, &[]);
    // All of them are known, and have been silent for two looks.
    for _ in 0..3 * LOOKS_PER_QUIETENING * ROUNDS_PER_QUIET {
        let _ = read();
    }
    lanes[stopped].push(2, TAGGED | WAITS, &[1; 4 << 10]);
    lanes[stopped].take_back();
    let polls = (PEERS as u32 + 2) * ROUNDS_PER_QUIET;
    for _ in 0..polls {
        assert!(read().is_err(), "nobody asks for it, and it is not all there");
    }
    endpoint.receive_tagged(vec![0; 8], FI_ADDR_UNSPEC, 3, 0, 3).unwrap();
    lanes[quiet].push(3, TAGGED, &[]);
    assert!((0..polls).any(|_| read().is_ok()), "it is never looked at");
}

/// Each side gives those back that are its own, one after the other.
#[test]
fn lanes_that_fell_silent_give_the_pages_of_their_chunks_back() {
    const PAGES: usize = LANE_CHUNK_BYTES_FIRST / 4096;
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let [mut from, mut to] = [0, 1].map(|_| provider.open(None, &[]).unwrap());
    from.connect(0, to.address());
    assert!(matches!(next_event(&mut from), TransportEvent::Connected { .. }));
    let TransportEvent::Incoming { ticket, .. } = next_event(&mut to) else {
        panic!("nobody connects");
    };
    to.adopt(0, ticket);
    let memory = Arc::clone(to.peers[0].receive.as_ref().unwrap().memory());
    let mut content = vec![1; 8 << 10];
    // SAFETY: the content lives through the call.
    let piece = unsafe { Piece::new(content.as_mut_ptr(), content.len()) };
    assert!(from.push(0, Head::new(Kind::Eager, 0), 1, &[], piece));
    assert_eq!(to.arrival().map(|arrival| arrival.length), Some(8 << 10));
    to.consume();
    // As long as it takes to look at each of one peer.
    let quiet = |transport: &mut ShmTransport| {
        for _ in 0..=LOOKS_PER_QUIETENING * ROUNDS_PER_QUIET {
            assert!(transport.arrival().is_none());
        }
    };
    [&mut from, &mut to].into_iter().for_each(quiet);
    for (transport, left) in [(&mut from, PAGES / 2), (&mut to, 0)] {
        assert_eq!(memory.chunk_pages(), left + PAGES / 2, "not so soon");
        let since = &mut transport.peers[0].silence.since;
        *since = since.expect("it was looked at").checked_sub(SILENCE);
        quiet(transport);
        assert_eq!(memory.chunk_pages(), left);
    }
}

/// Who is answered while a packet of another is in hand may turn out to be a liar.
#[test]
fn a_packet_in_hand_outlasts_the_lanes_of_others() {
    let (mut transport, stations) = with_lanes(3);
    Sender::connected(&stations[0]).push(1, 0, &[]);
    let arrival = std::iter::repeat_with(|| transport.arrival()).flatten().next().unwrap();
    assert_eq!((arrival.peer, arrival.word), (0, 1));
    transport.disconnect(1);
    transport.hang_up(2);
    transport.consume();
    assert!(transport.arrival().is_none(), "it was taken");
    let mut sender = Sender::connected(&stations[1]);
    let lane = transport.peers[0].receive.as_ref().unwrap();
    assert_eq!((lane.position(), sender.lane.is_closed()), (1, true));
    sender.push(2, 0, &[]);
    assert!(transport.arrival().is_none(), "nobody looks there");
}

/// Most indices may be those of peers that another transport of the endpoint serves.
#[test]
fn only_peers_with_a_lane_are_gone_through() {
    const PEERS: [PeerIndex; 3] = [1000, 7, 500];
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let mut transport = provider.open(None, &[]).unwrap();
    let mut others = Vec::from(PEERS.map(|_| provider.open(None, &[]).unwrap()));
    for (peer, other) in PEERS.into_iter().zip(&mut others) {
        connect(&mut transport, other, peer);
        connect(other, &mut transport, peer);
    }
    assert_eq!(transport.connected, PEERS);
    // It closes its ends.
    others.pop();
    // Where it may have sent before, that is asked first.
    transport.arm();
    transport.is_quiet();
    assert!(transport.peers[500].seen_closed, "the last of them is looked at");
    assert!(matches!(next_event(&mut transport), TransportEvent::Closed { peer: 500 }));
    transport.hang_up(7);
    assert_eq!(transport.connected, PEERS, "there is the lane to it");
    let process = transport.send_lane(7).unwrap().peer.process;
    transport.translate(StationEvent::Died { process });
    let told = transport.events.iter().map(|(event, _)| event.end_of());
    assert!(told.eq([7, 500, 1000].map(Some)), "in the order of their indices");
    for (gone, left) in [(1000, &[500, 7][..]), (500, &[7]), (7, &[])] {
        transport.disconnect(gone);
        assert_eq!(transport.connected, left);
    }
}

/// Connects them; each calls the other that.
fn connect(from: &mut ShmTransport, to: &mut ShmTransport, peer: PeerIndex) {
    from.connect(peer, to.address());
    assert!(matches!(next_event(from), TransportEvent::Connected { .. }));
    let TransportEvent::Incoming { ticket, .. } = next_event(to) else {
        panic!("nobody connects");
    };
    to.adopt(peer, ticket);
}

/// Sends a payload that takes much of a chunk, if there is room.
fn push_long(from: &mut ShmTransport, peer: PeerIndex, fill: u8) -> bool {
    let mut content = [fill; 3000];
    // SAFETY: the content lives through the call.
    let piece = unsafe { Piece::new(content.as_mut_ptr(), content.len()) };
    from.push(peer, Head::new(Kind::Eager, 0), 0, &[], piece)
}

/// Takes a payload, if there is one: what it is filled with.
fn take_long(to: &mut ShmTransport) -> Option<u8> {
    let length = to.arrival()?.length;
    let mut content = vec![0; length];
    // SAFETY: the content lives through the call.
    to.copy_out(0, unsafe { Piece::new(content.as_mut_ptr(), length) });
    to.consume();
    assert!(content.iter().all(|&byte| byte == content[0]), "parts of two payloads");
    Some(content[0])
}

/// What was published is the receiver's to read after its sender has let go of the lane, whenever it comes
/// to it.
#[test]
fn chunks_of_a_closed_lane_stay_until_they_are_read() {
    let lane_chunks = LaneChunks::Off;
    let options =
        ShmOptions { chunk_count: 16, chunk_bytes: 4096, lane_chunks, ..Default::default() };
    let provider = ShmProvider::new(options).unwrap();
    let [mut from, mut late, mut other] = [(); 3].map(|()| provider.open(None, &[]).unwrap());
    connect(&mut from, &mut late, 0);
    connect(&mut from, &mut other, 1);
    let lent = (0..).take_while(|_| push_long(&mut from, 0, 7)).count();
    assert!((4..16).contains(&lent), "{lent}");
    from.disconnect(0);
    // Every chunk that is free comes round.
    for _ in 0..100 {
        assert!(push_long(&mut from, 1, 9));
        assert_eq!(take_long(&mut other), Some(9));
    }
    for read in 0..lent {
        assert_eq!(take_long(&mut late), Some(7), "{read} of {lent}");
    }
    for _ in 0..2 * ROUNDS_PER_QUIET {
        assert!(from.arrival().is_none());
    }
    assert!(from.closing.is_empty(), "they are lent to others again");
}

#[test]
fn chunks_of_a_closed_lane_come_back_when_its_receiver_has_gone() {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let [mut from, mut late] = [(); 2].map(|()| provider.open(None, &[]).unwrap());
    connect(&mut from, &mut late, 0);
    for _ in 0..8 {
        assert!(push_long(&mut from, 0, 7));
    }
    from.disconnect(0);
    assert!(from.closing.len() == 1 || from.lane_chunks == OwnChunks::All);
    drop(late);
    for _ in 0..2 * ROUNDS_PER_QUIET {
        assert!(from.arrival().is_none());
    }
    assert!(from.closing.is_empty());
}

/// The lane is there before the endpoint that asked for it knows: the receiver hears of the close all
/// the same.
#[test]
fn a_lane_that_never_went_into_use_ends_with_a_goodbye() {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let [mut from, mut to] = [0, 1].map(|_| provider.open(None, &[]).unwrap());
    from.connect(0, to.address());
    while !from.has_event() {
        std::thread::yield_now();
    }
    drop(from);
    let TransportEvent::Incoming { ticket, .. } = next_event(&mut to) else {
        panic!("nobody connects");
    };
    to.adopt(0, ticket);
    let arrival = to.arrival().expect("it says goodbye");
    assert_eq!((arrival.peer, arrival.head.kind), (0, Kind::Bye as u8));
}

/// It has its parent's lists before it, and neither leaves groups nor drops out of them.
#[test]
fn a_forked_child_takes_nobody_out_of_a_list() {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    let opening = || Opening { service: Service::Datagrams, ..Opening::default() };
    let [mut one, mut other] = [0, 1].map(|_| provider.open_as(opening()).unwrap());
    let [low, high, ..] = std::process::id().to_le_bytes();
    let groups = [1, 2].map(|number| Address::new([237, high, low, number].into(), 0));
    for group in groups {
        assert_eq!(one.join(group, true), Ok(Spread::Listed));
        assert_eq!(other.join(group, true), Ok(Spread::Listed));
        assert_eq!(other.members(group), Some(vec![one.itself()]));
    }
    let child = fork(|| {
        // SAFETY: the child drops its own copy, once, and ends without another look at it.
        let mut copy = unsafe { std::ptr::read(&raw const one) };
        copy.leave(groups[0]);
        drop(copy);
        0
    });
    assert_eq!(wait(child), 0);
    for group in groups {
        assert_eq!(other.members(group), None, "nothing has changed");
    }
    drop(one);
    for group in groups {
        assert_eq!(other.members(group), Some(Vec::new()));
    }
}

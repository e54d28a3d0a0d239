//! Which lanes a poll looks at, by counting them; and what a forked child does to groups.

use std::net::IpAddr;

use kestrel_core::transport::{Opening, Provider, Service};
use kestrel_tests::fork::{fork, wait};

use super::*;
use crate::{PoolMemory, ShmOptions, ShmProvider, StationOptions};

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
        incarnation: None,
        pool: PoolMemory::create(4096).unwrap(),
        connect_timeout: Duration::from_secs(20),
        cma: false,
    })
    .unwrap()
}

/// What `polls` empty polls look at: every active lane each time, and one quiet one now and then.
fn lanes_looked_at(transport: &mut ShmTransport, polls: u32) -> usize {
    let mut looked = 0;
    for _ in 0..polls {
        let quiet = usize::from(transport.empty_polls + 1 >= POLLS_PER_QUIET);
        looked += transport.active.len() + quiet * transport.quiet.len().min(1);
        assert!(transport.arrival().is_none());
    }
    looked
}

#[test]
fn lanes_that_never_spoke_cost_a_poll_no_more_than_the_few_that_are_always_looked_at() {
    let (mut transport, stations) = with_lanes(LANES);
    // Two looks apart: the first notes where each lane stands, the second finds it there.
    lanes_looked_at(&mut transport, 2 * SWEEPS_PER_LOOK * POLLS_PER_QUIET + POLLS_PER_QUIET);
    assert_eq!((transport.active.len(), transport.quiet.len()), (0, LANES as usize));
    let polls = 1000;
    assert_eq!(lanes_looked_at(&mut transport, polls), (polls / POLLS_PER_QUIET) as usize);
    // They are heard all the same, after no more polls than it takes to go round.
    let StationEvent::Connected { lane, bell, peer, .. } = stations[77].next_event().unwrap()
    else {
        panic!("not connected");
    };
    let mut sender = SendLane::new(lane, bell, peer, OwnChunks::None, 4096);
    let memory = PoolMemory::create(1 << 16).unwrap();
    let mut pool = ChunkPool::new(&memory, 4096);
    let copier = Copier::choose("memcpy").unwrap();
    let head = Head::new(Kind::Eager, 0);
    let means = Means { pool: &mut pool, copier: &copier, other_way: None };
    assert!(sender.push(means, head, 5, &[], Piece::EMPTY).unwrap());
    let polls = (1..).find(|_| {
        let arrival = transport.arrival();
        arrival.is_some_and(|arrival| arrival.peer == 77 && arrival.word == 5)
    });
    assert!(polls.unwrap() <= (LANES + 2) * POLLS_PER_QUIET);
    transport.consume();
    assert_eq!(transport.active.len(), 1, "who speaks is polled from now on");
}

#[test]
fn few_lanes_stay_where_they_are() {
    let (mut transport, _stations) = with_lanes(ACTIVE_MAX as u32);
    lanes_looked_at(&mut transport, 3 * SWEEPS_PER_LOOK * POLLS_PER_QUIET);
    assert_eq!((transport.active.len(), transport.quiet.len()), (ACTIVE_MAX, 0));
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

//! Peers that give no send buffer back: they grant credit, and take nothing.

use std::net::TcpListener;

use crate::common::{
    Scene, connect, event,
    intruder::Intruder,
    provider, push,
    raw::{Raw, path_end},
    take_soon, wait_until,
};
use kestrel_core::{
    address::Address,
    memory::Piece,
    transport::{PeerIndex, Room, Transport, TransportEvent, Windows as _},
    window::{Access, Direction, Request, Started},
};
use kestrel_verbs::{
    fake::FakeOptions,
    memory::Memory,
    verbs::{PathEnd, QueuePair, RemoteAccess, RemoteMemory, Role, Verb},
};

/// More than it takes to keep all buffers.
const HOGS: u32 = 9;
const LONG: usize = 8000;

/// A peer that the victim has connected to, and that has posted no receive.
struct Hog {
    peer: PeerIndex,
    intruder: Intruder,
    credit: RemoteMemory,
    _raw: Raw,
}

impl Hog {
    fn of(scene: &mut Scene, peer: PeerIndex) -> Hog {
        let intruder = Intruder::on(&scene.fabric, FakeOptions::default(), Role::Receives);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        scene.victim.connect(peer, Address::from(listener.local_addr().unwrap()));
        let mut raw = Raw::accept(&listener);
        let hello = raw.welcome(intruder.end());
        let first_packet = path_end().first_packet;
        intruder.pair.connect(first_packet, &intruder.origin(), &hello.end).unwrap();
        match event(&mut scene.victim) {
            TransportEvent::Connected { peer: connected, .. } => assert_eq!(connected, peer),
            other => panic!("{other:?}"),
        }
        Hog { peer, intruder, credit: hello.credit, _raw: raw }
    }

    /// Grants that many packets in all.
    fn grant(&self, packets: u32) {
        let fill = |memory: &Memory| {
            let word = u64::from(packets) | u64::from(!packets) << 32;
            [word, 1 << 20, !(1 << 20)].iter().enumerate().for_each(|(nth, word)| {
                memory.set_word(nth * 8, *word);
            });
        };
        self.intruder.post(24, fill, Verb::Write(self.credit));
    }

    /// Has as much sent to it as the victim sends: how many packets.
    fn swallow(&self, scene: &mut Scene) -> u32 {
        const AHEAD: u32 = 32;
        let mut sent = 0;
        loop {
            self.grant(sent + AHEAD);
            let before = sent;
            while push(&mut scene.victim, self.peer, sent.into(), LONG) {
                sent += 1;
            }
            if sent == before {
                return sent;
            }
        }
    }

    /// Opens a window to it, whose writes with data it never takes.
    fn open_window(&self, scene: &mut Scene) -> Intruder {
        let access = RemoteAccess { write: true, ..RemoteAccess::default() };
        let role = Role::Admits { access, immediates: 32 };
        let target = Intruder::on(&scene.fabric, FakeOptions::default(), role);
        let [numbers, path, ..] = scene.victim.invite(self.peer).unwrap();
        let theirs = PathEnd { queue_pair: numbers as u32, ..target.end() };
        target.pair.connect(path_end().first_packet, &target.origin(), &theirs).unwrap();
        let gid = target.end().gid;
        let half = |at| u64::from_le_bytes(gid[at..at + 8].try_into().unwrap());
        let carries_data = 1 << 33;
        let ours = [target.pair.number().into(), path | carries_data, half(0), half(8)];
        assert!(scene.victim.open_window(self.peer, ours));
        target
    }
}

fn write(memory: &mut [u8], data: Option<u32>) -> Request {
    // SAFETY: the memory outlives the operation.
    let local = unsafe { Piece::of(memory) };
    let (direction, local_key) = (Direction::Write, None);
    Request { token: 1, direction, address: 0, remote_key: 0, local, data, local_key }
}

#[test]
fn who_takes_no_packets_leaves_buffers_to_others() {
    let mut scene = Scene::on(provider);
    let hogs = [1, 2].map(|peer| Hog::of(&mut scene, peer));
    let kept: u32 = hogs.iter().map(|hog| hog.swallow(&mut scene)).sum();
    assert!(kept >= 64, "{kept}");
    scene.goes_on();
}

#[test]
fn where_others_keep_all_buffers_payload_goes_inline() {
    let mut scene = Scene::on(provider);
    let (mut victim_to_friend, hogs) = (0, 1..=HOGS);
    let hogs: Vec<Hog> = hogs.map(|peer| Hog::of(&mut scene, peer)).collect();
    hogs.iter().for_each(|hog| _ = hog.swallow(&mut scene));
    let Scene { victim, friend, .. } = &mut scene;
    connect(victim, friend, 0);
    let mut short = 0;
    wait_until("there is room for something", || match victim.room(0, LONG) {
        Room::Full => false,
        Room::Bytes(bytes) => {
            short = bytes;
            true
        }
    });
    assert!(short > 0 && short < FakeOptions::default().inline_bytes_max, "{short}");
    for _ in 0..20 {
        assert_eq!(victim.room(0, LONG), Room::Bytes(short), "from now on at once");
        assert!(push(victim, 0, victim_to_friend, short));
        assert_eq!(take_soon(friend), (0, victim_to_friend, short));
        victim_to_friend += 1;
    }
}

#[test]
fn a_window_that_takes_no_data_leaves_buffers_to_others() {
    let mut scene = Scene::on(provider);
    let mut memory = vec![0; LONG];
    let mut fill = |scene: &mut Scene, peer| {
        let hog = Hog::of(scene, peer);
        let target = hog.open_window(scene);
        let request = write(&mut memory, Some(1));
        let started = (0..).take_while(|_| scene.victim.start(peer, &request) == Started::Yes);
        let started = started.count();
        scene.victim.flush();
        (hog, target, started)
    };
    let mut hogs = vec![fill(&mut scene, 1), fill(&mut scene, 2)];
    let kept: usize = hogs.iter().map(|(.., started)| started).sum();
    assert!(kept >= 64, "{kept}");
    scene.goes_on();
    // With more of them an operation gets no buffer, and goes as packets.
    hogs.extend((3..=HOGS).map(|peer| fill(&mut scene, peer)));
    let Scene { victim, friend, .. } = &mut scene;
    let ours = victim.invite(0).unwrap();
    let access = Access { write: true, ..Access::default() };
    let theirs = friend.admit(0, ours, access).unwrap();
    assert!(victim.open_window(0, theirs));
    let request = write(&mut memory, None);
    assert_eq!(victim.start(0, &request), Started::NoRoom);
    wait_until("it is not waited for", || victim.start(0, &request) == Started::Refused);
    let short = write(&mut memory[..8], None);
    assert_eq!(victim.start(0, &short), Started::Yes, "inline");
}

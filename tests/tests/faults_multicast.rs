//! Multicast groups whose members are listed: who is killed, restarted or stopped, between
//! processes over shared memory, and on the mock.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use kestrel_core::{
    address::Address,
    completion_queue::Entry,
    domain::Sharing,
    endpoint::Group,
    flags::Flags,
    mock::{MockOptions, MockProvider},
    transport::Provider,
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    bed::{Bed, Memory, Node, Options, Send, World},
    figures::{descriptors, mappings},
    fork::{fork, wait},
    link::events,
    process::{Peer, child_role, eventually, listen_to_parent, say},
    reserved::own_address,
    scale::{PATIENCE, scaled},
};

/// Datagrams that are held for a peer that is looked for.
const HELD_MAX: u64 = 64;

fn bed() -> Bed<ShmProvider> {
    let provider = ShmProvider::new(ShmOptions::default()).unwrap();
    Bed { provider: Arc::new(provider), sharing: Sharing::Shared }
}

fn mock() -> Bed<MockProvider> {
    let provider = MockProvider::new(MockOptions::default());
    Bed { provider: Arc::new(provider), sharing: Sharing::Exclusive }
}

fn options(address: Option<Address>) -> Options {
    let mut options = Options { events: Some(events()), ..Options::datagrams() };
    options.endpoint.address = address;
    options
}

fn join<P: Provider>(node: &Node<P>, group: Address, flags: Flags) -> Group<P> {
    node.endpoint.join(group, flags).unwrap()
}

/// A group of this process, one for each test.
fn group(number: u8) -> Address {
    let [low, high, ..] = std::process::id().to_le_bytes();
    Address::new(Ipv4Addr::new(238, high, low, number).into(), 0)
}

fn parsed(text: &str) -> Address {
    text.parse::<SocketAddr>().unwrap().into()
}

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[..] {
        ["hears", group, at] => receives(Some(parsed(group)), parsed(at)),
        ["receives", at] => receives(None, parsed(at)),
        ["joins-and-leaves", group] => joins_and_leaves(parsed(group)),
        _ => panic!("{role:?}"),
    }
}

/// Says what comes, until it is killed: of a group, if it joins one.
fn receives(group: Option<Address>, at: Address) {
    let _parent = listen_to_parent();
    let node = bed().stranger(&options(Some(at)));
    for context in 0..200 {
        node.receive(8, None, context);
    }
    let _joined = group.map(|group| join(&node, group, Flags::RECV));
    say(&format!("ready {}", node.endpoint.address().socket_addr()));
    loop {
        let mut entry = [Entry::default()];
        if node.receives.read_blocking(&mut entry, Some(PATIENCE)).is_ok() {
            let [mut entry] = entry;
            let bytes = entry.take_buffer().unwrap();
            say(&format!("heard {}", u64::from_ne_bytes(bytes[..8].try_into().unwrap())));
            node.receive(8, None, 0);
        }
    }
}

fn joins_and_leaves(group: Address) {
    let _parent = listen_to_parent();
    let bed = bed();
    let nodes: Vec<_> = (0..3).map(|_| bed.stranger(&options(None))).collect();
    let before = (descriptors(), mappings("kestrel-group"), threads());
    for _ in 0..scaled(5, 20, 200) {
        let joined: Vec<_> = nodes.iter().map(|node| join(node, group, Flags::empty())).collect();
        // One that was joined may be listed for a moment.
        eventually("a thread, once for all", || threads() == before.2 + 1);
        assert_eq!(mappings("kestrel-group"), 1, "once, for all");
        drop(joined);
    }
    eventually("the thread has ended", || threads() == before.2);
    assert_eq!((descriptors(), mappings("kestrel-group")), (before.0, before.1));
    say("done");
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Who sends to a group, and the processes that hear it.
struct Speaker {
    group: Address,
    joined: Group<ShmProvider>,
    world: World<ShmProvider>,
    said: u64,
}

impl Speaker {
    fn new(group: Address) -> Speaker {
        let world = World { nodes: vec![bed().stranger(&options(None))] };
        let joined = join(&world.nodes[0], group, Flags::SEND);
        Speaker { group, joined, world, said: 0 }
    }

    /// A process that has joined, and where it is.
    fn hearer(&self, at: &str) -> (Peer, String) {
        let group = self.group.with_port(1).socket_addr();
        started(&format!("hears {group} {at}"))
    }

    fn say(&mut self) {
        self.said += 1;
        let memory = Memory::from(self.said.to_ne_bytes().to_vec());
        let flags = Flags::MULTICAST | Flags::INJECT;
        let send = Send { pieces: memory.all(), flags, ..Send::default() };
        self.world.nodes[0].post_send(self.joined.address(), &send).unwrap();
        self.world.sent(0).good();
    }

    /// What was said last is heard, as the next thing.
    #[track_caller]
    fn is_heard_by<'a>(&self, hearers: impl IntoIterator<Item = &'a Peer>) {
        let expected = format!("heard {}", self.said);
        for hearer in hearers {
            assert_eq!(self.next(hearer), expected);
        }
    }

    #[track_caller]
    fn next(&self, hearer: &Peer) -> String {
        let start = Instant::now();
        loop {
            self.world.poll(1);
            if let Some(said) = hearer.heard() {
                return said;
            }
            assert!(start.elapsed() < PATIENCE, "message {} was not heard", self.said);
        }
    }

    fn dropped(&self) -> u64 {
        self.world.nodes[0].endpoint.dropped().unwrap().sent
    }
}

fn started(role: &str) -> (Peer, String) {
    let mut peer = Peer::start(role);
    let at = peer.hear_after("ready");
    (peer, at)
}

const ANYWHERE: &str = "127.0.0.1:0";

/// All others hear everything, whoever is killed, and whoever comes hears what follows.
#[test]
fn members_are_killed_and_the_others_go_on() {
    let mut speaker = Speaker::new(group(1));
    let mut hearers: Vec<_> = (0..3).map(|_| speaker.hearer(ANYWHERE).0).collect();
    for _ in 0..2 {
        speaker.say();
        speaker.is_heard_by(&hearers);
    }
    for round in 0..scaled(2, 4, 20) {
        hearers[0].kill();
        hearers.remove(0);
        for _ in 0..5 {
            speaker.say();
            speaker.is_heard_by(&hearers);
        }
        // Killed before it is sent to for the first time.
        let (mut unmet, _) = speaker.hearer(ANYWHERE);
        unmet.kill();
        unmet.finish();
        hearers.push(speaker.hearer(ANYWHERE).0);
        speaker.say();
        speaker.is_heard_by(&hearers);
        let dropped = speaker.dropped();
        speaker.say();
        speaker.is_heard_by(&hearers);
        assert_eq!(speaker.dropped(), dropped, "round {round}: who is gone is no member");
    }
}

/// Who is at a member's address later hears only if it joins.
#[test]
fn who_takes_a_members_address_is_no_member() {
    let mut speaker = Speaker::new(group(2));
    let (stays, _) = speaker.hearer(ANYWHERE);
    let (mut killed, at) = speaker.hearer(&own_address().socket_addr().to_string());
    speaker.say();
    speaker.is_heard_by([&stays, &killed]);
    for _ in 0..3 {
        killed.kill();
        killed.finish();
        let (mut deaf, _) = started(&format!("receives {at}"));
        for _ in 0..3 {
            speaker.say();
            speaker.is_heard_by([&stays]);
        }
        speaker.world.poll(1000);
        assert_eq!(deaf.heard(), None, "it has not joined");
        deaf.kill();
        deaf.finish();
        // The next one joins, and hears the first message after that.
        (killed, _) = speaker.hearer(&at);
        speaker.say();
        speaker.is_heard_by([&stays, &killed]);
    }
}

/// What finds no room at one is dropped for that one alone, and it hears again when it goes on.
#[test]
fn a_stopped_member_stops_nobody() {
    let mut speaker = Speaker::new(group(3));
    let [goes_on, stopped] = [0, 1].map(|_| speaker.hearer(ANYWHERE).0);
    speaker.say();
    speaker.is_heard_by([&goes_on, &stopped]);
    // SAFETY: signals to a child that is not reaped.
    let signal = |signal| unsafe { assert_eq!(libc::kill(stopped.pid(), signal), 0) };
    signal(libc::SIGSTOP);
    while speaker.dropped() == 0 {
        speaker.say();
        speaker.is_heard_by([&goes_on]);
        assert!(speaker.said < 10_000, "its lane is never full");
    }
    let missed = speaker.said;
    signal(libc::SIGCONT);
    // All but what was dropped, in order.
    for number in 2..missed {
        assert_eq!(speaker.next(&stopped), format!("heard {number}"));
    }
    speaker.say();
    speaker.is_heard_by([&goes_on, &stopped]);
}

/// Endpoints of one process have a group's list once, and nothing of it stays.
#[test]
fn who_leaves_leaves_nothing_behind() {
    let mut peer =
        Peer::start(&format!("joins-and-leaves {}", group(4).with_port(1).socket_addr()));
    assert_eq!(peer.hear(), "done");
}

/// It has its parent's list before it, and is no member.
#[test]
fn a_forked_child_leaves_no_group() {
    let (bed, group) = (bed(), group(6));
    let world = World { nodes: (0..2).map(|_| bed.stranger(&options(None))).collect() };
    let joined: Vec<_> = world.nodes.iter().map(|node| join(node, group, Flags::empty())).collect();
    let child = fork(|| {
        // SAFETY: the child drops its own copies, once, and ends without another look at them.
        drop(unsafe { (std::ptr::read(&raw const joined), std::ptr::read(&raw const world)) });
        0
    });
    assert_eq!(wait(child), 0);
    world.nodes[1].receive(8, None, 1);
    let word = Memory::from(vec![7; 8]);
    let send = Send { pieces: word.all(), flags: Flags::MULTICAST, ..Send::default() };
    world.nodes[0].post_send(joined[0].address(), &send).unwrap();
    assert_eq!(world.received(1).context(), 1);
}

fn mock_world(
    bed: &Bed<MockProvider>,
    count: usize,
) -> (World<MockProvider>, Vec<Group<MockProvider>>) {
    let world = World { nodes: (0..count).map(|_| bed.stranger(&options(None))).collect() };
    let joined = world.nodes.iter().map(|node| join(node, group(5), Flags::empty())).collect();
    (world, joined)
}

/// The first sends so many words to the group; how many it has dropped by then.
fn sends(world: &World<MockProvider>, to: &Group<MockProvider>, count: u64) -> u64 {
    let word = Memory::from(vec![7; 8]);
    let send = Send { pieces: word.all(), flags: Flags::MULTICAST, ..Send::default() };
    for _ in 0..count {
        world.nodes[0].post_send(to.address(), &send).unwrap();
        world.sent(0).good();
    }
    world.nodes[0].endpoint.dropped().unwrap().sent
}

/// What waits for members that are looked for is bounded, and complete all the same.
#[test]
fn so_much_is_held_for_each_member() {
    let bed = mock();
    let (world, joined) = mock_world(&bed, 3);
    bed.provider.delay_connections(100_000);
    let count = HELD_MAX + 10;
    assert_eq!(sends(&world, &joined[0], count), 2 * 10, "of each of two");
    for node in [1, 2] {
        (0..count).for_each(|context| world.nodes[node].receive(8, None, context));
    }
    let heard = |node: usize| world.waiting(node).1 as u64;
    let held = MockOptions::default().lane_packets as u64;
    world.drive("what was held comes", || (1..3).all(|node| heard(node) >= held));
    world.poll(100);
    // A new lane has room for so many, and those that find none are dropped.
    assert_eq!((heard(1), heard(2)), (held, held));
    assert_eq!(sends(&world, &joined[0], 1), 2 * (count - held));
    world.drive("the next comes", || (1..3).all(|node| heard(node) == held + 1));
}

#[test]
fn a_member_without_room_is_one_alone() {
    let bed = mock();
    let (world, joined) = mock_world(&bed, 3);
    for node in [1, 2] {
        (0..20).for_each(|context| world.nodes[node].receive(8, None, context));
    }
    assert_eq!(sends(&world, &joined[0], 1), 0);
    (1..3).for_each(|node| drop(world.received(node).good()));
    bed.provider.block(world.nodes[1].endpoint.address(), 3);
    assert_eq!(sends(&world, &joined[0], 5), 3);
    world.drive("all comes to one", || world.waiting(2).1 == 5);
    world.poll(50);
    assert_eq!(world.waiting(1).1, 2);
}

/// Who is found to be gone is taken from the list, at once where nobody is there any more.
#[test]
fn a_dead_member_is_no_member() {
    let bed = mock();
    for meets in [false, true] {
        let (mut world, mut joined) = mock_world(&bed, 3);
        if meets {
            sends(&world, &joined[0], 1);
            world.poll(10);
        }
        let address = world.nodes[1].endpoint.address();
        bed.provider.kill(address);
        assert_eq!(sends(&world, &joined[0], 3), 0, "nothing is held for who is gone, or dropped");
        // Another one at that address has not joined.
        joined.remove(1);
        world.nodes.remove(1);
        let other = bed.stranger(&options(Some(address)));
        let again = join(&other, group(5), Flags::RECV);
        (0..9).for_each(|context| other.receive(8, None, context));
        world.nodes.push(other);
        sends(&world, &joined[0], 1);
        world.drive("who has joined hears", || world.waiting(2).1 == 1);
        bed.provider.kill(address);
        drop(again);
        world.nodes.remove(2);
        let deaf = bed.stranger(&options(Some(address)));
        (0..9).for_each(|context| deaf.receive(8, None, context));
        world.nodes.push(deaf);
        sends(&world, &joined[0], 1);
        world.poll(100);
        assert_eq!(world.waiting(2).1, 0, "who has not does not");
        let dropped = sends(&world, &joined[0], 1);
        assert_eq!(dropped, 1, "what was held for the dead one, and no more");
    }
}

/// Who is connected already need not be the member that is listed at its address.
#[test]
fn a_peer_at_a_dead_members_address_is_no_member() {
    let bed = mock();
    let mut nodes: Vec<_> = (0..2).map(|_| bed.stranger(&options(None))).collect();
    let dead = nodes.remove(1);
    let _joined = join(&dead, group(7), Flags::RECV);
    let address = dead.endpoint.address();
    bed.provider.kill(address);
    nodes.push(bed.stranger(&options(Some(address))));
    let world = World { nodes };
    let to = world.nodes[0].vector.insert_one(address).unwrap();
    (0..9).for_each(|context| world.nodes[1].receive(8, None, context));
    world.nodes[0].endpoint.inject(&[1; 8], to).unwrap();
    world.received(1).good();
    let joined = join(&world.nodes[0], group(7), Flags::SEND);
    sends(&world, &joined, 1);
    world.poll(100);
    assert_eq!(sends(&world, &joined, 3), 1, "what was held for the dead one, and no more");
    world.poll(100);
    assert_eq!(world.waiting(1).1, 0, "it has not joined");
    world.nodes[0].endpoint.inject(&[2; 8], to).unwrap();
    world.received(1).good();
}

//! Messages that are seen while their sender copies them in: of a sender that is stopped in the
//! middle of one, which keeps nobody else waiting, and of one that is killed there.

use std::time::{Duration, Instant};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC, endpoint::EndpointOptions, flags::Flags, mock::MockOptions,
};
use kestrel_tests::{
    bed::{Memory, Options, Receive, Send, pattern, same},
    mock::mock_bed,
    node::{Done, Node, says_gone},
    process::{Peer, child_role, listen_to_parent, say},
    random::Random,
    scale::{PATIENCE, mostly_take_less_than, scaled},
};

/// Of one packet, and long enough to be seen early.
const LENGTH: usize = 8 << 10;
/// Of two packets, each of them seen early.
const LENGTH_LONG: usize = 60 << 10;
/// What is written in order is written in pieces of so much, each from its first byte to its last.
const IN_ORDER_MAX: usize = 2 << 10;
/// What the survivor may need after a death.
const WITHIN: Duration = Duration::from_secs(1);
/// Contexts of the survivor's operations.
const MESSAGE: u64 = 1;
const ANSWER: u64 = 2;
const FRIENDLY: u64 = 3;
const IN_VAIN: u64 = 4;

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role, address]) if role == "talker" => talk(address),
        other => panic!("{other:?}"),
    }
}

/// How long the talker's messages are.
fn length_of(number: u64) -> usize {
    if (number / 2).is_multiple_of(2) { LENGTH } else { LENGTH_LONG }
}

/// Sends one message after the other to `address`, each when the one before was answered: its
/// receiver waits for each.
fn talk(address: &str) {
    let _parent = listen_to_parent();
    let node = Node::open();
    let to = node.insert_text(address);
    say(&format!("ready {}", node.address().socket_addr()));
    for number in 0_u64.. {
        node.endpoint.receive(vec![0; 8], to, 1).unwrap();
        let bytes = Memory::from(vec![number as u8; length_of(number)]);
        // MPIs ask for this level.
        let flags = if number % 2 == 0 { Flags::empty() } else { Flags::DELIVERY_COMPLETE };
        let send = Send { pieces: bytes.all(), context: 2, flags, ..Send::default() };
        node.endpoint.post_send(send.post(to)).unwrap();
        for _ in 0..2 {
            node.next().well();
        }
    }
}

/// Who hears a talker, and has a friend beside it.
struct Listener {
    node: Node,
    friend: Node,
    to_node: u64,
    heard: u64,
    friendly: u64,
}

impl Listener {
    fn new() -> Listener {
        let (node, friend) = (Node::open(), Node::open());
        let to_node = friend.insert(node.address());
        let mut listener = Listener { node, friend, to_node, heard: 0, friendly: 0 };
        listener.hear_the_friend(FI_ADDR_UNSPEC);
        listener
    }

    /// Starts somebody who talks to us.
    fn invite(&mut self) -> (Peer, u64) {
        let address = self.node.address().socket_addr();
        let mut talker = Peer::start(&format!("talker {address}"));
        let from = self.node.insert_text(&talker.hear_after("ready "));
        self.heard = 0;
        self.await_message(from);
        (talker, from)
    }

    fn await_message(&self, from: u64) {
        self.node.endpoint.receive(vec![0xff; LENGTH_LONG], from, MESSAGE).unwrap();
    }

    /// Takes what has come, and answers the talker.
    fn poll(&mut self, from: u64) {
        let Some(done) = self.node.poll() else { return };
        match done.context() {
            MESSAGE => {
                let bytes = done.well().take_buffer().unwrap();
                let (length, is_whole) = (length_of(self.heard), |&byte| byte == self.heard as u8);
                assert!(bytes[..length].iter().all(is_whole), "message {}", self.heard);
                assert!(bytes[length..].iter().all(|&byte| byte == 0xff), "beyond {length} bytes");
                self.heard += 1;
                self.await_message(from);
                self.node.endpoint.send(vec![0; 8], from, ANSWER).unwrap();
            }
            ANSWER => drop(done.well()),
            _ => {
                done.well();
                self.friendly += 1;
            }
        }
    }

    /// The friend sends as well, and that arrives whatever the talker does.
    fn hear_the_friend(&mut self, from: u64) {
        let before = self.friendly;
        let buffer = vec![0; LENGTH];
        self.node.endpoint.receive_tagged(buffer, FI_ADDR_UNSPEC, 7, 0, FRIENDLY).unwrap();
        self.friend.endpoint.send_tagged(vec![1; LENGTH], self.to_node, 7, 1).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut sent = false;
        while !(sent && self.friendly > before) {
            sent |= self.friend.poll().map(Done::well).is_some();
            self.poll(from);
            assert!(Instant::now() < deadline, "the friend is kept waiting");
        }
    }

    fn poll_for(&mut self, from: u64, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            self.poll(from);
        }
    }
}

#[test]
fn who_is_stopped_keeps_nobody_waiting() {
    let mut listener = Listener::new();
    let (talker, from) = listener.invite();
    // SAFETY: the process is a child of ours that was not waited for.
    let signal = |signal| unsafe { assert_eq!(libc::kill(talker.pid(), signal), 0) };
    let mut random = Random::new(11);
    for _ in 0..scaled(50, 500, 5_000) {
        listener.poll_for(from, Duration::from_micros(random.below(2_000)));
        signal(libc::SIGSTOP);
        listener.hear_the_friend(from);
        signal(libc::SIGCONT);
    }
    let heard = listener.heard;
    let deadline = Instant::now() + PATIENCE;
    while listener.heard < heard + 10 {
        listener.poll(from);
        assert!(Instant::now() < deadline, "the talker does not go on");
    }
}

#[test]
fn who_is_killed_fails_what_waits_for_it() {
    let mut listener = Listener::new();
    let (mut random, mut ends) = (Random::new(12), Vec::new());
    for _ in 0..scaled(5, 30, 300) {
        let (mut talker, from) = listener.invite();
        let deadline = Instant::now() + PATIENCE;
        while listener.heard == 0 {
            listener.poll(from);
            assert!(Instant::now() < deadline, "the talker says nothing");
        }
        listener.poll_for(from, Duration::from_micros(random.below(2_000)));
        // What comes for it waits for the talker alone, and nothing does.
        let buffer = vec![0; 8];
        listener.node.endpoint.receive_tagged(buffer, from, 9, 0, IN_VAIN).unwrap();
        talker.kill();
        let killed = Instant::now();
        let error = loop {
            match listener.node.poll() {
                Some(Done::Badly(error)) if error.context == IN_VAIN => break error,
                Some(Done::Badly(error)) => assert!(says_gone(error.errno), "{error:?}"),
                // It was sent before.
                _ => {}
            }
            assert!(killed.elapsed() < PATIENCE, "nobody says that it is gone");
        };
        assert!(says_gone(error.errno), "{error:?}");
        ends.push(killed.elapsed());
        while let Some(done) = listener.node.poll() {
            // The receive of a message, if none had come for it.
            if let Done::Badly(error) = done {
                assert!(says_gone(error.errno), "{error:?}");
            }
        }
        listener.node.vector.remove(&[from]).unwrap();
        listener.hear_the_friend(FI_ADDR_UNSPEC);
    }
    mostly_take_less_than(WITHIN, ends);
}

/// A transport's copy has no order of its own, and there is only one where the receiver asks for it: also of what
/// is seen while it comes.
#[test]
fn what_is_seen_is_written_in_order() {
    let of_one_go = [false, true].map(|data_in_order| {
        let bed = mock_bed(MockOptions::default());
        let endpoint = EndpointOptions { data_in_order, ..EndpointOptions::default() };
        let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
        world.warm_up();
        let address = world.nodes[1].endpoint.address();
        for tag in 1..4 {
            let (bytes, into) =
                (Memory::from(pattern(tag, LENGTH_LONG)), Memory::zeroed(LENGTH_LONG));
            let tag = Some((tag, 0));
            let receive = Receive { pieces: into.all(), tag, ..Receive::default() };
            world.nodes[1].post_receive(&receive).unwrap();
            let send =
                Send { pieces: bytes.all(), tag: tag.map(|(tag, _)| tag), ..Send::default() };
            world.nodes[0].post_send(1, &send).unwrap();
            world.received(1).good();
            world.sent(0).good();
            same(&into.bytes(), &bytes.bytes(), "seen");
        }
        assert!(bed.provider.shown(address) > 0, "it can be seen");
        bed.provider.largest_copy(address)
    });
    assert!(of_one_go[0] > IN_ORDER_MAX && of_one_go[1] <= IN_ORDER_MAX, "{of_one_go:?}");
}

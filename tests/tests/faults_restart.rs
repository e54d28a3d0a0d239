//! A peer that is killed and comes again at the same address is another one:
//! nothing of the old is taken for the new, and nothing has to be set up anew.

use std::time::{Duration, Instant};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC, error::Errno, flags::Flags, transport::Transport,
};
use kestrel_tests::{
    node::{Done, Node, NodeOptions, Wait, says_gone},
    process::{Peer, child_role, eventually, listen_to_parent, say},
    reserved::own_address,
    scale::{PATIENCE, scaled},
    traffic::{Mix, Operation, Traffic},
};

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role, own, parent, life]) if role == "again" => {
            again(own.parse().unwrap(), parent, life.parse().unwrap());
        }
        Some([role, own, parent]) if role == "twice" => twice(own.parse().unwrap(), parent),
        other => panic!("{other:?}"),
    }
}

/// Two endpoints of one process at a fixed address, one after the other, that send a message each.
fn twice(own: std::net::SocketAddr, parent: &str) {
    let orders = listen_to_parent();
    loop {
        let node = Node::with(&NodeOptions::at(own.into()));
        let to = node.insert_text(parent);
        node.endpoint.send_tagged(vec![1; 8], to, QUESTION, 1).unwrap();
        node.next().well();
        say("sent");
        orders.recv().unwrap();
    }
}

/// One life at a fixed address: answers each message, with its life's number in the data, and
/// floods the parent with messages that nobody receives yet.
fn again(own: std::net::SocketAddr, parent: &str, life: u64) {
    let _parent = listen_to_parent();
    let node = Node::with(&NodeOptions::at(own.into()));
    let to = node.insert_text(parent);
    for index in 0..40u64 {
        let mut buffer = vec![life as u8; 1 << (index % 12)];
        buffer[0] = index as u8;
        let level = if index % 2 == 0 { Flags::DELIVERY_COMPLETE } else { Flags::MATCH_COMPLETE };
        node.endpoint.set_default_flags(Flags::TRANSMIT | level).unwrap();
        node.endpoint.send_tagged_data(buffer, to, FLOOD, life, 100 + index).unwrap();
    }
    node.endpoint.set_default_flags(Flags::TRANSMIT).unwrap();
    for context in 0..8 {
        node.endpoint.receive_tagged(vec![0; 200_000], to, QUESTION, 0, context).unwrap();
    }
    say("ready");
    loop {
        let Some(done) = node.within(PATIENCE, Wait::Sleeping) else {
            continue;
        };
        let Done::Well(mut entry) = done else { panic!("{done:?}") };
        if !entry.flags().contains(Flags::RECV) {
            continue;
        }
        let mut buffer = entry.take_buffer().unwrap();
        let length = entry.length as usize;
        assert!(
            buffer[..length].iter().all(|&byte| byte == life as u8),
            "a message of another life"
        );
        let context = entry.context;
        node.endpoint.send_tagged_data(buffer[..length].to_vec(), to, ANSWER, life, 1000).unwrap();
        buffer.fill(0);
        node.endpoint.receive_tagged(buffer, to, QUESTION, 0, context).unwrap();
    }
}

const QUESTION: u64 = 1;
const ANSWER: u64 = 2;
const FLOOD: u64 = 3;

/// Sends a question of `length` bytes and receives the answer of this life.
fn ask(node: &Node, to: u64, life: u64, length: usize) {
    node.endpoint.receive_tagged(vec![0; length], to, ANSWER, 0, 1).unwrap();
    node.endpoint.send_tagged(vec![life as u8; length], to, QUESTION, 2).unwrap();
    for _ in 0..2 {
        let mut entry = node.next().well();
        if entry.flags().contains(Flags::RECV) {
            assert_eq!((entry.data, entry.length as usize), (life, length));
            assert!(entry.take_buffer().unwrap().iter().all(|&byte| byte == life as u8));
        }
    }
}

/// Receives what all lives so far have sent unasked: whose, and how much of it.
fn read_flood(node: &Node) -> Vec<u64> {
    let mut lives = Vec::new();
    loop {
        node.endpoint.peek_tagged(FI_ADDR_UNSPEC, FLOOD, 0, Flags::empty(), 5).unwrap();
        if let Done::Badly(error) = node.next() {
            assert_eq!(error.errno, Errno::NOMSG);
            return lives;
        }
        node.endpoint.receive_tagged(vec![0; 4096], FI_ADDR_UNSPEC, FLOOD, 0, 6).unwrap();
        match node.next() {
            Done::Well(mut entry) => {
                let buffer = entry.take_buffer().unwrap();
                let message = &buffer[1..entry.length as usize];
                assert!(message.iter().all(|&byte| byte == entry.data as u8), "{entry:?}");
                lives.push(entry.data);
            }
            Done::Badly(error) => assert!(says_gone(error.errno), "{error:?}"),
        }
    }
}

/// A death is known by then.
const WITHIN: Duration = Duration::from_secs(1);

/// Waits until the operation with `context` has failed because its peer, just killed, is gone; how long
/// that took.
fn expect_end(node: &Node, context: u64) -> Duration {
    let killed = Instant::now();
    let error = node.next().badly();
    assert_eq!(error.context, context);
    assert!(says_gone(error.errno), "{error:?}");
    killed.elapsed()
}

#[test]
fn a_restarted_peer_is_another_one() {
    let node = Node::open();
    let own = node.address().socket_addr();
    // Used by one life after another.
    let address = own_address().socket_addr();
    let to = node.insert(address.into());
    let lives = scaled(5, 50, 200) as u64;
    let mut quickest = Duration::MAX;
    for life in 1..=lives {
        let mut peer = Peer::start(&format!("again {address} {own} {life}"));
        assert_eq!(peer.hear(), "ready");
        // What earlier lives left is of earlier lives, what this one sends is its own.
        if life % 3 == 0 {
            let flood = read_flood(&node);
            assert!(flood.is_sorted() && flood.iter().all(|&from| from <= life), "{flood:?}");
            assert!(flood.iter().any(|&from| from < life), "nothing is left of earlier lives");
        }
        for length in [1, 40, 700, 20_000, 150_000] {
            ask(&node, to, life, length);
        }
        // Under way at the death: a receive that no message finds.
        node.endpoint.receive_tagged(vec![0; 8], to, 99, 0, life).unwrap();
        if life % 2 == 0 {
            // And messages that are never matched, in every stage.
            let mut traffic = Traffic::new(to, 9, life, Mix::default());
            for length in [8u64, 5_000, 100_000] {
                traffic.post_level(&node, 77 << 48 | length, Flags::MATCH_COMPLETE, false);
            }
            peer.kill();
            let mut left = 4;
            while left > 0 {
                let done = node.next();
                if done.context() >> 48 == 9 {
                    assert!(traffic.take(done).is_none());
                } else {
                    assert_eq!(done.badly().context, life);
                }
                left -= 1;
            }
            assert_eq!(traffic.under_way(Operation::Send), 0);
            assert_eq!(traffic.failed.len(), 3);
        } else {
            peer.kill();
            quickest = quickest.min(expect_end(&node, life));
        }
    }
    assert!(quickest < WITHIN, "the quickest of all took {quickest:?}");
    let flood = read_flood(&node);
    println!("{lives} lives; {} messages of the last ones were still there", flood.len());
    assert!(!flood.is_empty() && flood.is_sorted(), "{flood:?}");
}

/// The lane of the second endpoint is there before the end of the first one is heard.
#[test]
fn a_process_that_opened_its_endpoint_anew_is_missed_when_it_dies() {
    let times: Vec<_> = std::iter::repeat_with(missed_after).take(3).collect();
    assert!(times.iter().any(|&time| time < WITHIN), "{times:?}");
}

/// How long it takes.
fn missed_after() -> Duration {
    let node = Node::open();
    let own = node.address().socket_addr();
    let address = own_address().socket_addr();
    let to = node.insert(address.into());
    let receive = |context| {
        node.endpoint.receive_tagged(vec![0; 8], to, QUESTION, 0, context).unwrap();
    };
    let mut peer = Peer::start(&format!("twice {address} {own}"));
    receive(1);
    assert_eq!(node.next().well().context, 1);
    assert_eq!(peer.hear(), "sent");
    peer.order("again");
    assert_eq!(peer.hear(), "sent");
    eventually("the second lane is there", || {
        node.endpoint.inspect(|transport| transport.has_event()).unwrap()
    });
    assert!(node.poll().is_none());
    receive(2);
    assert_eq!(node.next().well().context, 2);
    receive(3);
    peer.kill();
    expect_end(&node, 3)
}

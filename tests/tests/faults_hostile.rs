//! A hostile peer: it connects properly, then writes garbage into every byte that
//! it may write. The victim lives on, within its memory, and an honest third
//! peer, whose messages check themselves, notices nothing.

#[path = "hostile/attacker.rs"]
mod attacker;

use std::time::{Duration, Instant};

use kestrel_core::{address_vector::FI_ADDR_UNSPEC, config::CmaPolicy, flags::Flags};
use kestrel_shm::ShmOptions;
use kestrel_tests::{
    figures,
    node::{Done, Node, NodeOptions, Wait},
    process::{Peer, child_role, listen_to_parent, say},
    reserved::own_address,
    scale::{PATIENCE, scaled, skip},
    traffic::{self, Mix, Operation, Traffic},
};

/// The tag of receives that take whatever the attacker sends; the low bits do not count.
const GARBAGE: u64 = 9 << 56;
const GARBAGE_IGNORE: u64 = (1 << 56) - 1;
/// What an attacker may make its victim hold beside the budget. Units: KiB.
const GROWTH_MAX_KIB: u64 = 160 << 10;

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[..] {
        ["victim", honest, hostile, wait, copy] => {
            let wait = if wait == "sleeps" { Wait::Sleeping } else { Wait::Polling };
            victim(honest, hostile, wait, copy);
        }
        ["attacker", own, victim, seed, count] => attacker::attack(
            own.parse().unwrap(),
            victim.parse().unwrap(),
            seed.parse().unwrap(),
            count.parse().unwrap(),
        ),
        _ => panic!("{role:?}"),
    }
}

/// No receives from anyone: those that the attacker could fill are posted apart.
fn honest_mix() -> Mix {
    Mix { undirected: false, backlog: 0, ..Mix::default() }
}

fn victim(honest: &str, hostile: &str, wait: Wait, copy: &str) {
    let orders = listen_to_parent();
    let shm = ShmOptions { copy: copy.into(), cma: CmaPolicy::On, ..ShmOptions::default() };
    let node = Node::with(&NodeOptions { shm, ..NodeOptions::default() });
    let (friend, enemy) = (node.insert_text(honest), node.insert_text(hostile));
    let mut honest = Traffic::new(friend, 1, 11, honest_mix());
    let mut bait = Bait { node: &node, enemy, under_way: 0, sent: 0 };
    say(&format!("ready {}", node.address().socket_addr()));
    loop {
        honest.post(&node);
        bait.post();
        let pause = if wait == Wait::Sleeping { Duration::from_millis(20) } else { Duration::ZERO };
        let mut next = node.within(pause, wait);
        while let Some(done) = next {
            if let Some(done) = honest.take(done) {
                bait.take(done);
            }
            next = node.poll();
        }
        assert!(honest.failed.is_empty(), "{:?}", honest.failed);
        if orders.try_recv().is_ok() {
            say(&format!("alive {} {}", figures::status_kib("VmRSS"), figures::descriptors()));
        }
    }
}

/// What the victim has to do with the attacker: receives that it may fill, and sends to it.
struct Bait<'a> {
    node: &'a Node,
    enemy: u64,
    under_way: usize,
    sent: u64,
}

const BAIT_ID: u64 = 2 << 48;
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
const MULTI: u64 = 3;

impl Bait<'_> {
    fn post(&mut self) {
        while self.under_way < 32 {
            self.sent += 1;
            let endpoint = &self.node.endpoint;
            let length = [8, 100, 5_000, 60_000, 500_000][self.sent as usize % 5];
            let posted = match self.sent % 8 {
                0 => endpoint.receive_multi(vec![0; 4096], FI_ADDR_UNSPEC, BAIT_ID | MULTI),
                1..=2 => endpoint.receive(vec![0; length], FI_ADDR_UNSPEC, BAIT_ID | RECEIVE),
                3..=5 => endpoint.receive_tagged(
                    vec![0; length],
                    FI_ADDR_UNSPEC,
                    GARBAGE,
                    GARBAGE_IGNORE,
                    BAIT_ID | RECEIVE,
                ),
                other => {
                    let level = if other == 6 { Flags::DELIVERY_COMPLETE } else { Flags::empty() };
                    endpoint.set_default_flags(Flags::TRANSMIT | level).unwrap();
                    let sent = endpoint.send_tagged(vec![1; length], self.enemy, 5, BAIT_ID | SEND);
                    endpoint.set_default_flags(Flags::TRANSMIT).unwrap();
                    sent
                }
            };
            if posted.is_err() {
                return;
            }
            self.under_way += 1;
        }
    }

    fn take(&mut self, done: Done) {
        assert_eq!(done.context() >> 48, BAIT_ID >> 48, "{done:?}");
        // A multi-receive buffer is let go once; its messages are reported one by one.
        let last = match &done {
            Done::Well(entry) if entry.context & 0xff == MULTI => {
                entry.flags().contains(Flags::MULTI_RECV)
            }
            Done::Badly(error) if error.context & 0xff == MULTI => false,
            _ => true,
        };
        self.under_way -= usize::from(last);
    }
}

/// The honest third: its messages with the victim must all come, and be right.
struct Honest {
    node: Node,
    traffic: Option<Traffic>,
}

impl Honest {
    fn exchange(&mut self, until: impl Fn(&Traffic) -> bool) {
        let traffic = self.traffic.as_mut().expect("the victim is known");
        let deadline = Instant::now() + PATIENCE;
        while !until(traffic) {
            assert!(Instant::now() < deadline, "the victim hangs: {}", traffic.describe());
            traffic.post(&self.node);
            for _ in 0..64 {
                let Some(done) = self.node.poll() else { break };
                assert!(traffic.take(done).is_none());
            }
            assert!(traffic.failed.is_empty(), "{:?}", traffic.failed);
        }
    }
}

/// One victim, and an attacker that goes through `count` rounds of garbage from `seed` on.
fn attack(wrapper: &[&str], wait: &str, copy: &str, seed: u64, count: usize) {
    let mut honest = Honest { node: Node::open(), traffic: None };
    let own = honest.node.address().socket_addr();
    let hostile = own_address().socket_addr();
    let role = format!("victim {own} {hostile} {wait} {copy}");
    let mut victim = Peer::start_under(wrapper, &role);
    let address = victim.hear_after("ready ");
    let to = honest.node.insert_text(&address);
    honest.traffic = Some(Traffic::new(to, 1, seed, honest_mix()));
    honest.exchange(|traffic| traffic.received > 50);
    victim.order("how are you");
    let before = status(&victim.hear());
    let mut attacker = Peer::start(&format!("attacker {hostile} {address} {seed} {count}"));
    let mut last = Instant::now();
    let mut said = String::new();
    let last_words = loop {
        let goal = honest.traffic.as_ref().map_or(0, |traffic| traffic.received) + 20;
        honest.exchange(|traffic| traffic.received >= goal);
        assert!(victim.runs(), "the victim died in {said}");
        while let Some(words) = attacker.heard() {
            last = Instant::now();
            said = words;
        }
        if said.starts_with("done") {
            break said;
        }
        assert!(last.elapsed() < PATIENCE, "the attacker is stuck in {said}");
    };
    attacker.succeed();
    let received = honest.traffic.as_ref().map_or(0, |traffic| traffic.received);
    honest.exchange(|traffic| traffic.received > received + 50);
    victim.order("how are you");
    let after = status(&victim.hear());
    println!(
        "{last_words}; victim (KiB, descriptors): {before:?}, then {after:?}; {received} honest"
    );
    assert!(after.0 < before.0 + GROWTH_MAX_KIB, "the victim's memory grew: {after:?}");
    assert!(after.1 < before.1 + 40, "the victim's descriptors stay: {after:?}");
    assert!(honest.traffic.as_ref().unwrap().under_way(Operation::Send) <= honest_mix().sends);
    victim.succeed();
}

/// Resident memory and open descriptors, as the victim says.
fn status(said: &str) -> (u64, u64) {
    let mut numbers = said.split(' ').skip(1).map(|word| word.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn garbage_hurts_nobody_else_while_the_victim_polls() {
    attack(&[], "polls", "auto", 1, scaled(24, 160, 3000));
}

#[test]
fn garbage_hurts_nobody_else_while_the_victim_sleeps() {
    attack(&[], "sleeps", "auto", 100_000, scaled(16, 80, 1000));
}

/// Reads outside of what is mapped, or freed, are seen by valgrind even where they do not crash.
#[test]
fn garbage_is_read_within_bounds() {
    let name = "garbage_is_read_within_bounds";
    let found = std::process::Command::new("valgrind").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip(name, "valgrind is not installed");
    }
    if scaled(0, 1, 1) == 0 {
        return skip(name, "not at this scale");
    }
    let wrapper =
        ["valgrind", "-q", "--error-exitcode=99", "--exit-on-first-error=yes", "--vgdb=no"];
    attack(&wrapper, "polls", "memcpy", 500_000, scaled(8, 16, 200));
}

/// What the module of the attacker needs to name.
pub const GARBAGE_TAG: u64 = GARBAGE | traffic::SENTINEL;

//! kill -9 of a peer at random moments of mixed traffic: nothing that depends on
//! it hangs or vanishes, and nothing of it stays behind.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    config::CmaPolicy,
    domain::{DomainOptions, ProgressMode},
    error::Errno,
    flags::Flags,
    memory::Piece,
    ring::claims::{CLAIMS, Help},
    transport::{Provider, SingleCopy as _, Transport, TransportEvent},
    wire::{Head, Kind, WAITS},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{
    figures::{self, Counting},
    node::{Done, Node, NodeOptions, Wait, says_gone},
    process::{Peer, child_role, listen_to_parent, say},
    random::Random,
    scale::{PATIENCE, mostly_take_less_than, scaled, takes_less_than},
    traffic::{self, Mix, Operation, Traffic},
};

#[global_allocator]
static MEMORY: Counting = Counting::new();

/// What a survivor may need after a death.
const WITHIN: Duration = Duration::from_secs(1);

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role, address, seed, silent, driver]) if role == "victim" => {
            let driver = if driver == "Helper" { Driver::Helper } else { Driver::Caller };
            victim(address, seed.parse().unwrap(), silent == "silent", driver);
        }
        Some([role, address]) if role == "claims" => claims(address.parse().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Who drives the endpoints of both sides.
#[derive(Clone, Copy, Debug)]
enum Driver {
    /// The thread that polls.
    Caller,
    /// A helper, beside it.
    Helper,
}

impl Driver {
    fn open(self) -> Node {
        let progress = match self {
            Driver::Caller => ProgressMode::Manual,
            Driver::Helper => ProgressMode::Automatic,
        };
        let domain = DomainOptions { progress, ..DomainOptions::default() };
        Node::with(&NodeOptions { domain, ..NodeOptions::default() })
    }
}

/// Exchanges messages with `address` until it is killed. One that is silent
/// sends nothing unasked, so that the survivor is the one who connects.
fn victim(address: &str, seed: u64, silent: bool, driver: Driver) {
    let _parent = listen_to_parent();
    let node = driver.open();
    let to = node.insert_text(address);
    let mut mix = Mix::default();
    if silent {
        mix.sends = 0;
    }
    let mut traffic = Traffic::new(to, 1, seed, mix);
    traffic.post(&node);
    say(&format!("ready {}", node.address().socket_addr()));
    loop {
        traffic.post(&node);
        while let Some(done) = node.poll() {
            assert!(traffic.take(done).is_none());
        }
    }
}

/// Bytes of a message that both sides copy: many polls' worth, in blocks of one MiB.
const LONG: usize = 32 << 20;
const BLOCKS: u32 = 32;

/// Announces messages to `address`, and claims a block of each, which it does not write.
fn claims(address: std::net::SocketAddr) {
    let _parent = listen_to_parent();
    let options = ShmOptions { cma: CmaPolicy::On, ..ShmOptions::default() };
    let mut transport = ShmProvider::new(options).unwrap().open(None, &[]).unwrap();
    say(&format!("ready {}", transport.address().socket_addr()));
    transport.connect(0, address.into());
    let mut lanes = 0;
    while lanes < 2 {
        match transport.event() {
            Some(TransportEvent::Incoming { ticket, .. }) => transport.adopt(0, ticket),
            Some(TransportEvent::Connected { .. }) => {}
            Some(other) => panic!("{other:?}"),
            None => continue,
        }
        lanes += 1;
    }
    let message = vec![0_u8; LONG];
    for name in 0..CLAIMS as u64 {
        let words = [name, LONG as u64, 0, 0, message.as_ptr() as u64];
        assert!(transport.push(0, Head::new(Kind::Long, WAITS), 0, &words, Piece::EMPTY));
    }
    for slot in 0..CLAIMS {
        let mut help = Help::new(slot, slot as u16 + 1, BLOCKS).unwrap();
        while help.take(transport.claims_to(0).unwrap()).is_none() {
            std::hint::spin_loop();
        }
    }
    say("claimed");
    loop {
        std::thread::park();
    }
}

/// Who lives through all deaths: one endpoint, and one beside it that sends to it.
struct Survivor {
    driver: Driver,
    node: Node,
    friend: Node,
    to_node: u64,
    random: Random,
    /// How long what depended on the dead took to end.
    ends: Vec<Duration>,
    messages: u64,
}

impl Survivor {
    fn new(seed: u64, driver: Driver) -> Survivor {
        let (node, friend) = (driver.open(), driver.open());
        let to_node = friend.insert(node.address());
        let mut survivor = Survivor {
            driver,
            node,
            friend,
            to_node,
            random: Random::new(seed),
            ends: Vec::new(),
            messages: 0,
        };
        survivor.befriend();
        survivor
    }

    /// Connects the two survivors, both ways, before anything is counted.
    fn befriend(&mut self) {
        let to_friend = self.node.insert(self.friend.address());
        for (from, to, there) in
            [(&self.friend, self.to_node, &self.node), (&self.node, to_friend, &self.friend)]
        {
            there.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 1).unwrap();
            from.endpoint.send(vec![1; 8], to, 1).unwrap();
            let deadline = Instant::now() + PATIENCE;
            let mut left = 2;
            while left > 0 {
                left -= usize::from(from.poll().map(Done::well).is_some());
                left -= usize::from(there.poll().map(Done::well).is_some());
                assert!(Instant::now() < deadline, "the survivors do not connect");
            }
        }
    }

    /// One peer's life and death.
    fn live_through(&mut self, moment: usize, wait: Wait) {
        let silent = if moment.is_multiple_of(3) { "silent" } else { "talks" };
        let address = self.node.address().socket_addr();
        let role = format!("victim {address} {moment} {silent} {:?}", self.driver);
        let mut peer = Peer::start(&role);
        let to = self.node.insert_text(&peer.hear_after("ready "));
        let mut traffic = Traffic::new(to, 1 + moment as u64, moment as u64, Mix::default());
        let alive = Duration::from_micros(self.random.below(20_000));
        // Liveness begins with the first contact, so there is one whoever talks.
        let seed = traffic::seed(&mut self.random, 8);
        let first = traffic::tag(traffic::ANY, seed);
        traffic.post_level(&self.node, first, Flags::empty(), false);
        traffic.post_sentinel(&self.node);
        let killed = match wait {
            Wait::Polling => self.kill_while_polling(&mut traffic, &mut peer, alive),
            Wait::Sleeping => self.kill_while_sleeping(&mut traffic, &mut peer, alive),
        };
        self.await_end(&mut traffic, killed, wait);
        self.messages += traffic.sent + traffic.received;
        for (operation, error) in &traffic.failed {
            assert!(says_gone(error.errno), "{operation:?}: {error:?}");
            assert!(!error.reason.is_empty());
            // An undirected receive ends with a peer only if its message was under way.
            let matched = error.source_address.is_some();
            assert!(*operation != Operation::ReceiveAny || matched, "{error:?}");
        }
        self.node.vector.remove(&[to]).unwrap();
        self.fill_undirected(&mut traffic);
        self.drop_backlog();
    }

    fn kill_while_polling(
        &mut self,
        traffic: &mut Traffic,
        peer: &mut Peer,
        alive: Duration,
    ) -> Instant {
        let deadline = Instant::now() + alive;
        while Instant::now() < deadline {
            traffic.post(&self.node);
            while let Some(done) = self.node.poll() {
                assert!(traffic.take(done).is_none());
            }
        }
        peer.kill();
        Instant::now()
    }

    /// The peer dies while this side sleeps, with everything posted.
    fn kill_while_sleeping(
        &mut self,
        traffic: &mut Traffic,
        peer: &mut Peer,
        alive: Duration,
    ) -> Instant {
        for _ in 0..self.random.below(24) {
            traffic.post(&self.node);
        }
        std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                std::thread::sleep(alive);
                peer.kill();
                Instant::now()
            });
            // At the latest the directed receives end with the peer.
            while traffic.under_way(Operation::ReceiveDirected) > 0 {
                let done = self.node.within(PATIENCE, Wait::Sleeping);
                let done = done.unwrap_or_else(|| panic!("no news: {}", traffic.describe()));
                // Nothing is posted again: what is posted after the death waits for a new peer.
                assert!(traffic.take(done).is_none());
            }
            killer.join().unwrap()
        })
    }

    /// Waits until everything that depends on the dead peer has ended.
    fn await_end(&mut self, traffic: &mut Traffic, killed: Instant, wait: Wait) {
        loop {
            let depends =
                traffic.under_way(Operation::Send) + traffic.under_way(Operation::ReceiveDirected);
            if depends == 0 {
                // What came with the last of them.
                let Some(done) = self.node.poll() else { break };
                assert!(traffic.take(done).is_none());
                continue;
            }
            let left = (killed + PATIENCE).saturating_duration_since(Instant::now());
            let Some(done) = self.node.within(left, wait) else {
                panic!("{:?} after the death: {}", killed.elapsed(), traffic.describe());
            };
            assert!(traffic.take(done).is_none());
        }
        self.ends.push(killed.elapsed());
    }

    /// Undirected receives are still posted: the friend's messages find them.
    fn fill_undirected(&mut self, traffic: &mut Traffic) {
        let count = traffic.under_way(Operation::ReceiveAny);
        for _ in 0..count {
            let length = self.random.below(100) as usize;
            let seed = traffic::seed(&mut self.random, length);
            let message = traffic::content(seed);
            let tag = traffic::tag(traffic::ANY, seed);
            self.friend.endpoint.inject_tagged(&message, self.to_node, tag).unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        while traffic.under_way(Operation::ReceiveAny) > 0 {
            assert!(Instant::now() < deadline, "no longer posted: {}", traffic.describe());
            assert!(self.friend.poll().is_none());
            if let Some(done) = self.node.poll() {
                if let Done::Badly(error) = &done {
                    assert!(error.source_address.is_some(), "not matched, but failed: {error:?}");
                }
                assert!(traffic.take(done).is_none());
            }
        }
    }

    /// What the dead had sent and nobody received is still there, and is dropped.
    fn drop_backlog(&mut self) -> usize {
        let mut dropped = 0;
        loop {
            let flags = Flags::DISCARD;
            self.node.endpoint.peek_tagged(FI_ADDR_UNSPEC, 0, u64::MAX, flags, 7).unwrap();
            match self.node.next() {
                Done::Well(_) => dropped += 1,
                Done::Badly(error) => {
                    assert_eq!(error.errno, Errno::NOMSG, "{error:?}");
                    return dropped;
                }
            }
        }
    }
}

/// What a survivor holds.
#[derive(Debug)]
#[allow(dead_code, reason = "some figures are only printed")]
struct Holdings {
    descriptors: usize,
    lanes: usize,
    pools: usize,
    mappings: usize,
    bytes: i64,
    resident_kib: u64,
    size_kib: u64,
}

impl Holdings {
    fn now() -> Holdings {
        Holdings {
            descriptors: figures::descriptors(),
            lanes: figures::mappings("kestrel-lane"),
            pools: figures::mappings("kestrel-pool"),
            mappings: figures::mappings(""),
            bytes: MEMORY.bytes(),
            resident_kib: figures::status_kib("VmRSS"),
            size_kib: figures::status_kib("VmSize"),
        }
    }
}

/// Descriptors and memory are counted, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn deaths(count: usize, wait: Wait, driver: Driver) {
    let _alone = alone();
    let mut survivor = Survivor::new(count as u64, driver);
    // The first few grow pools and tables to what they need.
    for moment in 0..5 {
        survivor.live_through(moment, wait);
    }
    let (before, files) = (Holdings::now(), figures::FilesBefore::now());
    for moment in 5..5 + count {
        survivor.live_through(moment, wait);
    }
    let after = Holdings::now();
    println!(
        "{count} deaths, {wait:?}, {driver:?}: {} messages, ends after {:?}\n  before {before:?}\n  after  \
         {after:?}",
        survivor.messages, survivor.ends
    );
    assert!(survivor.messages > 0);
    mostly_take_less_than(WITHIN, std::mem::take(&mut survivor.ends));
    assert_eq!(before.lanes, after.lanes);
    assert_eq!(before.pools, after.pools);
    let deadline = Instant::now() + PATIENCE;
    while figures::descriptors() > before.descriptors {
        assert!(Instant::now() < deadline, "{} descriptors stay", figures::descriptors());
    }
    // A peer record of a few hundred bytes stays for each address that was ever spoken to.
    let grown = after.bytes - before.bytes;
    assert!(grown < (count as i64) * 1024 + (64 << 10), "{grown} bytes of heap stay");
    assert_eq!(files.left(), [] as [&str; 0]);
}

#[test]
fn survivors_that_poll_get_errors_and_keep_nothing() {
    deaths(scaled(5, 50, 500), Wait::Polling, Driver::Caller);
}

#[test]
fn survivors_that_sleep_get_errors_and_keep_nothing() {
    deaths(scaled(5, 50, 500), Wait::Sleeping, Driver::Caller);
}

#[test]
fn survivors_with_helpers_that_poll_get_errors_and_keep_nothing() {
    deaths(scaled(3, 25, 250), Wait::Polling, Driver::Helper);
}

#[test]
fn survivors_with_helpers_that_sleep_get_errors_and_keep_nothing() {
    deaths(scaled(3, 25, 250), Wait::Sleeping, Driver::Helper);
}

/// Nobody writes what it had claimed: to wait for that would hold up all peers, for each message anew.
#[test]
fn a_sender_killed_while_it_writes_is_not_waited_for() {
    let _alone = alone();
    // A sender that lives has 200 ms, for each.
    takes_less_than(Duration::from_millis(400), longest_poll_after_a_death);
}

fn longest_poll_after_a_death() -> Duration {
    let shm = ShmOptions { cma: CmaPolicy::On, ..ShmOptions::default() };
    let node = Node::with(&NodeOptions { shm, ..NodeOptions::default() });
    let mut peer = Peer::start(&format!("claims {}", node.address().socket_addr()));
    let to = node.insert_text(&peer.hear_after("ready "));
    for context in 0..CLAIMS as u64 {
        node.endpoint.receive(vec![0; LONG], to, context).unwrap();
    }
    node.endpoint.send(vec![1; 8], to, 9).unwrap();
    assert_eq!(node.next().well().context, 9);
    while peer.heard().is_none_or(|said| said != "claimed") {
        assert!(node.poll().is_none());
        std::thread::sleep(Duration::from_millis(2));
    }
    peer.kill();
    let (mut left, mut longest) = (CLAIMS, Duration::ZERO);
    let killed = Instant::now();
    while left > 0 {
        let start = Instant::now();
        let done = node.poll();
        longest = longest.max(start.elapsed());
        assert!(killed.elapsed() < PATIENCE, "{left} receives do not fail");
        if let Some(done) = done {
            assert!(says_gone(done.badly().errno));
            left -= 1;
        }
    }
    longest
}

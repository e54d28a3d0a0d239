//! What becomes of operations of every kind when a peer goes: its cable, or its process.
//!
//!   outage serve ADDRESS ASKER     takes what comes, and lets a region be reached
//!   outage ask ADDRESS PEER        keeps operations of every kind under way until one fails; then
//!                                  waits until all have ended, and until the peer is reached again
//!   outage serve-connected ADDRESS      the same over connected endpoints, accepted one after the other
//!   outage ask-connected ADDRESS PEER   the same, until a connection stands again
//!
//! With OUTAGE_LOG it says what it does.

mod asker;
mod connected;

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use asker::Asker;
use connected::Place;
use kestrel::{
    Address, CompletionQueue, Endpoint, Entry, Event, EventQueue, EventRead, FI_ADDR_UNSPEC, Flags,
    Hints, ReadError,
};
use kestrel_tests::{
    bed::{Memory, pattern},
    one_sided::{BOTH, expose_in},
    opened::{Opened, run_on_words},
};
use tracing_subscriber::filter::LevelFilter;

/// The end of every wait.
const PATIENCE: Duration = Duration::from_secs(120);
/// The region's bytes: what operations of each kind have for themselves.
const SHARE: usize = 300_000;
/// So many of each kind end well before it says so.
const ENOUGH: u64 = 5;
/// A counter of 8 bytes behind the shares of writes and of reads.
const COUNTER: u64 = 2 * SHARE as u64;
/// Tags: messages that the peer takes, and one that it never does.
const TAKEN: u64 = 1;
const LEFT: u64 = 2;

/// Contexts of who serves.
const MESSAGES: u64 = 10;
const TOLD: u64 = 11;
const DIRECTED: u64 = 12;
const HELLO: u64 = 13;

type Failure = Box<dyn std::error::Error>;

/// What is kept under way, by the context of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
enum Kind {
    Short = 1,
    Long,
    /// It is never matched.
    Unmatched,
    Write,
    Read,
    FetchAdd,
    /// From the peer, which sends nothing like that.
    Receive,
}

const KINDS: [Kind; 7] = {
    use Kind::*;
    [Short, Long, Unmatched, Write, Read, FetchAdd, Receive]
};

fn main() -> ExitCode {
    if std::env::var_os("OUTAGE_LOG").is_some() {
        let log = tracing_subscriber::fmt().with_max_level(LevelFilter::DEBUG);
        log.with_writer(std::io::stderr).init();
    }
    run_on_words("outage", run)
}

fn run(words: &[&str]) -> Result<(), Failure> {
    match *words {
        ["serve", own, asker] => Node::open(own, asker).and_then(|node| node.serve()),
        ["ask", own, peer] => Node::open(own, peer).and_then(Asker::run),
        ["serve-connected", own, ..] => Place::at(own).and_then(|place| place.serve()),
        ["ask-connected", own, peer] => Place::at(own).and_then(|place| place.ask(peer)),
        _ => Err("outage serve | ask | serve-connected | ask-connected ADDRESS …".into()),
    }
}

/// An endpoint that knows one peer, or is connected to it.
struct Node {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    /// Of its connection, if it has one.
    events: Option<Arc<EventQueue>>,
    peer: u64,
}

/// An operation that has ended: its context, and its completion or why it failed.
type Ended = (u64, Result<Entry, String>);

impl Node {
    fn open(own: &str, peer: &str) -> Result<Node, Failure> {
        let Opened { endpoint, queue, peers, .. } = Opened::at(own, &Hints::new())?;
        endpoint.enable()?;
        let peer = peers.insert_one(Address::from(peer.parse::<SocketAddr>()?))?;
        Ok(Node { endpoint, queue, events: None, peer })
    }

    /// Whether it had a connection that is over.
    fn is_shut_down(&self) -> Result<bool, Failure> {
        let Some(events) = &self.events else {
            return Ok(false);
        };
        match events.read() {
            EventRead::Empty => Ok(false),
            EventRead::Event(Event::Shutdown { .. }) => Ok(true),
            other => Err(format!("{other:?}: {:?}", events.read_error()).into()),
        }
    }

    /// The next operation that has ended; none if none does within 50 ms.
    fn next(&self) -> Result<Option<Ended>, Failure> {
        let mut entry = [Entry::default()];
        match self.queue.read_blocking(&mut entry, Some(Duration::from_millis(50))) {
            Ok(_) => {
                let [entry] = entry;
                Ok(Some((entry.context, Ok(entry))))
            }
            Err(ReadError::Empty) => Ok(None),
            Err(ReadError::ErrorAvailable) => {
                let error = self.queue.read_error().ok_or("an error that is none")?;
                Ok(Some((error.context, Err(format!("{}: {}", error.errno, error.reason)))))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Receives and forgets, and tells who asks where the region is; while its connection stands, if it has
    /// one.
    fn serve(self) -> Result<(), Failure> {
        let memory = Memory::from(pattern(1, COUNTER as usize + 8));
        let domain = self.endpoint.domain();
        let region = expose_in(domain, &[memory.piece()], BOTH, 7, Flags::empty())?;
        let receive = |context| {
            self.endpoint.receive_tagged(vec![0; SHARE], FI_ADDR_UNSPEC, TAKEN, 0, context)
        };
        for _ in 0..16 {
            receive(MESSAGES)?;
        }
        let told = [region.base().to_le_bytes(), region.key().to_le_bytes()].concat();
        self.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, HELLO)?;
        let start = Instant::now();
        println!("serving");
        while start.elapsed() < 2 * PATIENCE && !self.is_shut_down()? {
            match self.next()? {
                Some((HELLO, ended)) => {
                    ended?;
                    self.endpoint.send(told.clone(), self.peer, TOLD)?;
                    self.endpoint.receive(vec![0; 8], self.peer, DIRECTED)?;
                }
                Some((MESSAGES, _)) => receive(MESSAGES)?,
                Some((DIRECTED, Err(reason))) => println!("a directed receive failed: {reason}"),
                _ => {}
            }
        }
        Ok(())
    }
}

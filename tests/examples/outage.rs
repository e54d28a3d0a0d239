//! What becomes of operations of every kind when a peer goes: its cable, or its process.
//!
//!   outage serve ADDRESS ASKER     takes what comes, and lets a region be reached
//!   outage ask ADDRESS PEER        keeps operations of every kind under way until one fails; then
//!                                  waits until all have ended, and until the peer is reached again
//!
//! With OUTAGE_LOG it says what it does.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel::{Address, CompletionQueue, Endpoint, Entry, FI_ADDR_UNSPEC, Flags, Hints, ReadError};
use kestrel_core::{
    endpoint::PostError,
    error::{Errno, HasErrno},
    one_sided::RemoteSegment,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
};
use kestrel_tests::{
    bed::{Memory, pattern},
    one_sided::{Atomic, BOTH, expose_in},
    opened::Opened,
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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["serve", own, asker] => Node::open(own, asker).and_then(|node| node.serve()),
        ["ask", own, peer] => Node::open(own, peer).and_then(Asker::run),
        _ => Err("outage serve ADDRESS ASKER | ask ADDRESS PEER".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outage {arguments:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An endpoint that knows one peer.
struct Node {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    peer: u64,
}

/// An operation that has ended: its context, and its completion or why it failed.
type Ended = (u64, Result<Entry, String>);

impl Node {
    fn open(own: &str, peer: &str) -> Result<Node, Failure> {
        let Opened { endpoint, queue, peers, .. } = Opened::at(own, &Hints::new())?;
        endpoint.enable()?;
        let peer = peers.insert_one(Address::from(peer.parse::<SocketAddr>()?))?;
        Ok(Node { endpoint, queue, peer })
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

    /// Receives and forgets, and tells who asks where the region is.
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
        while start.elapsed() < 2 * PATIENCE {
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

/// How an operation of ours has ended: well, or why not.
type Outcome = (Kind, Result<(), String>);

struct Asker {
    node: Node,
    /// Where the peer's region begins, and its key.
    region: (u64, u64),
    operand: Memory,
    before: Memory,
    /// How many of each kind have ended well.
    good: BTreeMap<Kind, u64>,
}

impl Asker {
    fn run(node: Node) -> Result<(), Failure> {
        let region = Asker::told(&node)?;
        let (operand, before) = (Memory::from(1_u64.to_le_bytes().to_vec()), Memory::zeroed(8));
        let mut asker = Asker { node, region, operand, before, good: BTreeMap::new() };
        let mut posted: Vec<Kind> = KINDS.to_vec();
        for &kind in &posted {
            asker.post(kind)?;
        }
        let start = Instant::now();
        let (mut last, mut is_told) = (Instant::now(), false);
        // Until the first fails.
        let (kind, reason) = loop {
            match asker.next(&mut posted)? {
                Some((kind, Ok(()))) => {
                    last = Instant::now();
                    asker.post(kind)?;
                    posted.push(kind);
                }
                Some((kind, Err(reason))) => break (kind, reason),
                None => {}
            }
            // Those that end by themselves.
            let ended = |kind: &Kind| asker.good.get(kind).is_some_and(|&good| good >= ENOUGH);
            if !is_told && KINDS.iter().filter(|kind| ended(kind)).count() == KINDS.len() - 2 {
                println!("all kinds are under way");
                is_told = true;
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("nothing fails: {:?} ended well", asker.good).into());
            }
        };
        Asker::failed(kind, &reason, last);
        while !posted.is_empty() {
            if let Some((kind, Err(reason))) = asker.next(&mut posted)? {
                Asker::failed(kind, &reason, last);
            }
            if last.elapsed() > PATIENCE {
                return Err(format!("{posted:?} do not end").into());
            }
        }
        println!("all have ended {} ms after the last success", last.elapsed().as_millis());
        asker.reach_again()
    }

    fn failed(kind: Kind, reason: &str, last: Instant) {
        println!("{kind:?} failed after {} ms: {reason}", last.elapsed().as_millis());
    }

    /// Asks the peer for its region.
    fn told(node: &Node) -> Result<(u64, u64), Failure> {
        node.endpoint.receive(vec![0; 16], FI_ADDR_UNSPEC, TOLD)?;
        node.endpoint.send(vec![0; 8], node.peer, HELLO)?;
        let start = Instant::now();
        // Where a packet is lost, the answer may come before the question is known to have arrived.
        let (mut asked, mut answer) = (false, None);
        while start.elapsed() < PATIENCE {
            match node.next()? {
                Some((HELLO, ended)) => asked = ended.map(|_| true)?,
                Some((_, ended)) => answer = ended?.take_buffer(),
                None => {}
            }
            if let (true, Some(told)) = (asked, &answer) {
                let word = |at| u64::from_le_bytes(told[at..at + 8].try_into().expect("8 bytes"));
                return Ok((word(0), word(8)));
            }
        }
        Err("the peer says nothing".into())
    }

    /// Posts one as soon as there is room.
    fn post(&self, kind: Kind) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            match self.try_to_post(kind) {
                Err(error) if error.errno() == Errno::AGAIN && start.elapsed() < PATIENCE => {
                    std::thread::yield_now();
                }
                posted => return Ok(posted?),
            }
        }
    }

    fn try_to_post(&self, kind: Kind) -> Result<(), PostError> {
        let (endpoint, to) = (&self.node.endpoint, self.node.peer);
        let ((base, key), context) = (self.region, kind as u64);
        let posted = match kind {
            Kind::Short => endpoint.send_tagged(vec![1; 64], to, TAKEN, context),
            Kind::Long => endpoint.send_tagged(vec![1; SHARE], to, TAKEN, context),
            Kind::Unmatched => endpoint.send_tagged(vec![1; SHARE], to, LEFT, context),
            Kind::Write => {
                let share = base + SHARE as u64;
                endpoint.write(pattern(2, SHARE), to, share, key, context)
            }
            Kind::Read => endpoint.read(vec![0; SHARE], to, base, key, context),
            Kind::Receive => endpoint.receive_tagged(vec![0; 8], to, LEFT, 0, context),
            Kind::FetchAdd => return self.fetch_and_add(to, base + COUNTER, key, context),
        };
        posted.map_err(|refused| refused.error)
    }

    fn fetch_and_add(
        &self,
        to: u64,
        address: u64,
        key: u64,
        context: u64,
    ) -> Result<(), PostError> {
        let (operation, datatype, form) = (AtomicOperation::Sum, Datatype::Uint64, Form::Fetch);
        let segments = &[RemoteSegment { address, length: 8, key }];
        let (operands, results) = (self.operand.all(), self.before.all());
        let call = AtomicCall { operation, datatype, form };
        let atomic = Atomic { operands, results, segments, context, ..Atomic::new(call) };
        self.node.endpoint.post_atomic(atomic.post(to))
    }

    /// The next of our operations that has ended, taken from those that are under way.
    fn next(&mut self, posted: &mut Vec<Kind>) -> Result<Option<Outcome>, Failure> {
        let Some((context, ended)) = self.node.next()? else {
            return Ok(None);
        };
        let nth = posted.iter().position(|&kind| kind as u64 == context);
        let kind = posted.swap_remove(nth.ok_or(format!("{context} has ended twice"))?);
        let mut entry = match ended {
            Ok(entry) => entry,
            Err(reason) => return Ok(Some((kind, Err(reason)))),
        };
        if [Kind::Unmatched, Kind::Receive].contains(&kind) {
            return Err(format!("{kind:?} ended well").into());
        }
        let read = (kind == Kind::Read).then(|| entry.take_buffer()).flatten();
        if read.is_some_and(|read| read != pattern(1, COUNTER as usize + 8)[..SHARE]) {
            return Err("what was read is another".into());
        }
        *self.good.entry(kind).or_default() += 1;
        Ok(Some((kind, Ok(()))))
    }

    /// Sends until the peer, or who came in its place, has a message.
    fn reach_again(&self) -> Result<(), Failure> {
        let (start, mut attempts) = (Instant::now(), 0);
        while start.elapsed() < PATIENCE {
            attempts += 1;
            self.post(Kind::Short)?;
            let ended = loop {
                match self.node.next()? {
                    Some((context, ended)) if context == Kind::Short as u64 => break ended,
                    _ if start.elapsed() > PATIENCE => return Err("a send does not end".into()),
                    _ => {}
                }
            };
            if ended.is_ok() {
                println!("reached again by attempt {attempts}");
                return Ok(());
            }
        }
        Err("the peer is never reached again".into())
    }
}

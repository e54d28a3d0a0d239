//! Datagrams between two hosts, with discovery and all that belongs to an endpoint.
//!
//!   datagrams serve ADDRESS              sends everything back, to whoever sends
//!   datagrams ask ADDRESS PEER COUNT     asks so often, and tells how many answers came; each
//!                                        has to be whole, and to come once
//!   datagrams outlast ADDRESS PEER MS    asks each so many milliseconds until answers have come, ceased
//!                                        and come again, and tells what became of its sends
//!   datagrams hear ADDRESS GROUP COUNT   hears so many messages to a multicast group, or those
//!                                        that come, each whole and once
//!   datagrams speak ADDRESS GROUP COUNT  sends so many there
//!
//! With DATAGRAMS_LOG it says what it does.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel::{
    Address, AddressVector, CompletionQueue, Endpoint, EndpointType, Entry, Errno, EventQueue,
    EventQueueAttributes, FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, Flags, HasErrno, Hints, ReadError,
};
use kestrel_tests::{
    bed::pattern,
    hints::with_class,
    opened::{Opened, run_on_words},
};
use tracing_subscriber::filter::LevelFilter;

/// After so long without an answer it is lost.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// After so long without a message a group's speaker is done: it may be kept from its core meanwhile.
const SPEAKER_SILENT: Duration = Duration::from_secs(10);
/// A peer is asked for so long until it answers for the first time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Questions that wait for their answers at once.
const WINDOW: u64 = 8;
/// Context of sends; those of receives are the places of their buffers.
const SEND: u64 = u64::MAX;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    if std::env::var_os("DATAGRAMS_LOG").is_some() {
        let log = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO);
        log.with_writer(std::io::stderr).without_time().init();
    }
    run_on_words("datagrams", run)
}

fn run(words: &[&str]) -> Result<(), Failure> {
    match *words {
        ["serve", own] => Node::open(own).and_then(|node| node.serve()),
        ["ask", own, peer, count] => Node::open(own).and_then(|node| node.ask(peer, count)),
        ["outlast", own, peer, ms] => Node::open(own).and_then(|node| node.outlast(peer, ms)),
        ["hear", own, group, count] => Node::open(own).and_then(|node| node.hear(group, count)),
        ["speak", own, group, count] => Node::open(own).and_then(|node| node.speak(group, count)),
        _ => Err("datagrams serve | ask | outlast | hear | speak ADDRESS …".into()),
    }
}

/// What has ended.
enum Ended {
    /// A receive: the datagram, and who sent it.
    Came { bytes: Vec<u8>, source: u64 },
    /// A send, and why it failed if it did.
    Sent { context: u64, failed: Option<String> },
}

/// How far who asks through an outage has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Nobody,
    Answered,
    Silent,
    Again,
}

impl Phase {
    /// The phase after an answer, the one before which came so long ago.
    fn after_an_answer(self, since: Duration) -> Phase {
        match self {
            Phase::Nobody => {
                println!("answers come");
                Phase::Answered
            }
            Phase::Silent => {
                println!("answers come again after {} ms", since.as_millis());
                Phase::Again
            }
            Phase::Answered | Phase::Again => self,
        }
    }
}

/// What became of the sends of who asks through an outage.
#[derive(Debug, Default)]
struct Asked {
    /// When each of those began that have not ended.
    under_way: HashMap<u64, Instant>,
    posted: u64,
    /// For want of room.
    refused: u64,
    failed: u64,
    /// Why the last of those failed.
    reason: String,
    longest: Duration,
}

impl Asked {
    fn ended(&mut self, context: u64, failed: Option<String>) -> Result<(), Failure> {
        let began = self.under_way.remove(&context).ok_or("a send ended twice")?;
        self.longest = self.longest.max(began.elapsed());
        if let Some(reason) = failed {
            (self.failed, self.reason) = (self.failed + 1, reason);
        }
        Ok(())
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { posted, refused, failed, reason, longest, .. } = self;
        let longest = longest.as_millis();
        writeln!(f, "of {posted} sends {failed} failed, the longest took {longest} ms")?;
        write!(f, "{refused} times there was no room; the last failed for: {reason}")
    }
}

struct Node {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    peers: Arc<AddressVector>,
    longest: usize,
}

impl Node {
    fn open(own: &str) -> Result<Node, Failure> {
        let hints = with_class(Hints::new().endpoint_type(EndpointType::Dgram))?;
        let Opened { info, endpoint, queue, peers } = Opened::at(own, &hints)?;
        let longest = info.endpoint.max_msg_size;
        println!("domain {}, {longest} bytes at most", info.domain.name);
        let events = Arc::new(EventQueue::open(EventQueueAttributes::default())?);
        endpoint.bind_event_queue(&events, 0)?;
        endpoint.enable()?;
        for context in 0..2 * WINDOW {
            endpoint.receive(vec![0; longest], FI_ADDR_UNSPEC, context)?;
        }
        Ok(Node { endpoint, queue, peers, longest })
    }

    /// The next datagram, and who sent it; none if none comes in time.
    fn next(&self, patience: Duration) -> Result<Option<(Vec<u8>, u64)>, Failure> {
        let start = Instant::now();
        while start.elapsed() < patience {
            match self.ended(patience)? {
                None => return Ok(None),
                Some(Ended::Came { bytes, source }) => return Ok(Some((bytes, source))),
                Some(Ended::Sent { failed: Some(reason), .. }) => return Err(reason.into()),
                Some(Ended::Sent { failed: None, .. }) => {}
            }
        }
        Ok(None)
    }

    /// The next operation that has ended; none if none does in time.
    fn ended(&self, patience: Duration) -> Result<Option<Ended>, Failure> {
        let mut entry = [Entry::default()];
        match self.queue.read_blocking(&mut entry, Some(patience)) {
            Ok(_) => {}
            Err(ReadError::Empty) => return Ok(None),
            Err(ReadError::ErrorAvailable) => {
                let error = self.queue.read_error().ok_or("an error that is none")?;
                let reason = format!("{}: {}", error.errno, error.reason);
                if error.context < 2 * WINDOW {
                    return Err(format!("a receive failed: {reason}").into());
                }
                return Ok(Some(Ended::Sent { context: error.context, failed: Some(reason) }));
            }
            Err(error) => return Err(error.into()),
        }
        let [mut entry] = entry;
        if entry.context >= 2 * WINDOW {
            return Ok(Some(Ended::Sent { context: entry.context, failed: None }));
        }
        let whole = entry.take_buffer().ok_or("a receive without its buffer")?;
        let bytes = whole[..entry.length as usize].to_vec();
        self.endpoint.receive(whole, FI_ADDR_UNSPEC, entry.context)?;
        Ok(Some(Ended::Came { bytes, source: entry.source }))
    }

    /// The first eight bytes of a datagram say who asks: where it is to be answered. An answer that
    /// cannot be sent is lost, as any may be.
    fn serve(&self) -> Result<(), Failure> {
        println!("serving");
        loop {
            let Some(Ended::Came { bytes, source }) = self.ended(PATIENCE)? else {
                continue;
            };
            let to = if source == FI_ADDR_NOTAVAIL { self.insert_asker(&bytes)? } else { source };
            self.endpoint.send(bytes, to, SEND)?;
        }
    }

    fn insert_asker(&self, bytes: &[u8]) -> Result<u64, Failure> {
        let octets: [u8; 4] = bytes[..4].try_into()?;
        let port = u16::from_le_bytes(bytes[4..6].try_into()?);
        Ok(self.peers.insert_one(Address::new(octets.into(), port))?)
    }

    fn ask(&self, peer: &str, count: &str) -> Result<(), Failure> {
        let (peer, count): (SocketAddr, u64) = (peer.parse()?, count.parse()?);
        let to = self.peers.insert_one(Address::from(peer))?;
        let start = Instant::now();
        // Until the peer is there, and has found us.
        while start.elapsed() < PATIENCE {
            self.endpoint.send(self.question(u64::MAX), to, SEND)?;
            if self.next(Duration::from_millis(500))?.is_some() {
                break;
            }
        }
        let (mut waiting, mut answered) = (HashSet::new(), HashSet::new());
        let mut asked = 0;
        while asked < count || !waiting.is_empty() {
            while asked < count && (waiting.len() as u64) < WINDOW {
                self.endpoint.send(self.question(asked), to, SEND)?;
                waiting.insert(asked);
                asked += 1;
            }
            match self.next(LOST_AFTER)? {
                None => waiting.clear(),
                Some((bytes, _)) => {
                    let number = u64::from_le_bytes(bytes[8..16].try_into()?);
                    if bytes != self.question(number) {
                        return Err(format!("answer {number} is another").into());
                    }
                    waiting.remove(&number);
                    if number != u64::MAX && !answered.insert(number) {
                        return Err(format!("answer {number} came twice").into());
                    }
                }
            }
        }
        println!("{} answers to {count} questions", answered.len());
        Ok(())
    }

    /// Asks until answers have come, ceased and come again, and goes on until all that was posted has ended.
    fn outlast(&self, peer: &str, ms: &str) -> Result<(), Failure> {
        let pause = Duration::from_millis(ms.parse()?);
        let to = self.peers.insert_one(Address::from(peer.parse::<SocketAddr>()?))?;
        let (mut asked, mut answered) = (Asked::default(), HashSet::new());
        let (start, mut phase) = (Instant::now(), Phase::Nobody);
        let (mut asked_at, mut last) = (start, start);
        while phase != Phase::Again || !asked.under_way.is_empty() {
            if start.elapsed() > 2 * PATIENCE {
                let left = asked.under_way.len();
                return Err(format!("{phase:?}, {left} sends do not end; {asked}").into());
            }
            if phase != Phase::Again && asked_at.elapsed() >= pause {
                asked_at = Instant::now();
                self.ask_once(to, &mut asked)?;
            }
            match self.ended(Duration::from_millis(5))? {
                None => {}
                Some(Ended::Sent { context, failed }) => asked.ended(context, failed)?,
                Some(Ended::Came { bytes, .. }) => {
                    let number = u64::from_le_bytes(bytes[8..16].try_into()?);
                    if number >= asked.posted || bytes != self.question(number) {
                        return Err(format!("answer {number} is another").into());
                    }
                    if !answered.insert(number) {
                        return Err(format!("answer {number} came twice").into());
                    }
                    phase = phase.after_an_answer(last.elapsed());
                    last = Instant::now();
                }
            }
            if phase == Phase::Answered && last.elapsed() > LOST_AFTER {
                println!("no answers come any more");
                phase = Phase::Silent;
            }
        }
        println!("{} answers; {asked}", answered.len());
        Ok(())
    }

    /// Asks, if there is room for it.
    fn ask_once(&self, to: u64, asked: &mut Asked) -> Result<(), Failure> {
        let context = 2 * WINDOW + asked.posted;
        match self.endpoint.send(self.question(asked.posted), to, context) {
            Ok(()) => {
                asked.under_way.insert(context, Instant::now());
                asked.posted += 1;
            }
            Err(refused) if refused.error.errno() == Errno::AGAIN => asked.refused += 1,
            Err(refused) => return Err(refused.error.into()),
        }
        Ok(())
    }

    fn hear(&self, group: &str, count: &str) -> Result<(), Failure> {
        let (group, count): (IpAddr, u64) = (group.parse()?, count.parse()?);
        let _joined = self.endpoint.join(Address::new(group, 0), Flags::RECV)?;
        println!("hears");
        let (mut heard, mut patience) = (HashSet::new(), PATIENCE);
        while (heard.len() as u64) < count {
            let Some((bytes, _)) = self.next(patience)? else {
                break;
            };
            patience = SPEAKER_SILENT;
            let number = u64::from_le_bytes(bytes[..8].try_into()?);
            if number >= count {
                return Err(format!("message {number} of {count} was never sent").into());
            }
            if bytes != self.message(number) || !heard.insert(number) {
                return Err(format!("message {number} is another, or came twice").into());
            }
        }
        println!("heard {} of {count} messages", heard.len());
        Ok(())
    }

    fn speak(&self, group: &str, count: &str) -> Result<(), Failure> {
        let (group, count): (IpAddr, u64) = (group.parse()?, count.parse()?);
        let joined = self.endpoint.join(Address::new(group, 0), Flags::SEND)?;
        self.endpoint.set_default_flags(Flags::TRANSMIT | Flags::MULTICAST)?;
        for number in 0..count {
            self.endpoint.send(self.message(number), joined.address(), SEND)?;
            // Nobody says when there is room for more.
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// A number, and as many bytes of its own as it says.
    fn message(&self, number: u64) -> Vec<u8> {
        let length = (number.wrapping_mul(97) % (self.longest as u64 - 7)) as usize;
        [number.to_le_bytes().to_vec(), pattern(number, length)].concat()
    }

    /// Who asks, the number, and as many bytes of its own as the number says.
    fn question(&self, number: u64) -> Vec<u8> {
        let own = self.endpoint.address().socket_addr();
        let std::net::IpAddr::V4(ip) = own.ip() else { panic!("version 4 is used here") };
        let mut bytes = ip.octets().to_vec();
        bytes.extend(own.port().to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(number.to_le_bytes());
        let length = (number.wrapping_mul(97) % (self.longest as u64 - 15)) as usize;
        bytes.extend(pattern(number, length));
        bytes
    }
}

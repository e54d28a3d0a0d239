//! Two endpoints on two hosts: one sends back what the other sends, packet by packet.
//!
//!   echo serve 10.9.0.2:7000               sends everything back, to whoever sends
//!   echo ask 10.9.0.2:7000 COUNT           checks COUNT answers, and closes
//!   echo ask 10.9.0.2:7000 COUNT idle      then waits, silent, for the peer's end
//!   echo ask 10.9.0.2:7000 COUNT busy      the same, still asking
//!
//! FI_KESTREL_CONNECT_BY chooses what connects, FI_KESTREL_PEER_TIMEOUT how long an answer is waited
//! for, ECHO_DSCP the code point of its packets; with ECHO_LOG it says what it does.

use std::{
    env, process,
    time::{Duration, Instant},
};

use kestrel_core::{
    address::Address,
    config::Config,
    memory::Piece,
    transport::{Opening, PeerIndex, Provider, Transport, TransportEvent},
    wire::{Head, Kind},
};
use kestrel_verbs::{VerbsOptions, VerbsProvider, VerbsTransport};

/// The end of every wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long without an answer is worth a line; an emulated machine alone stops for a second or two.
const LONG: Duration = Duration::from_secs(6);
const LENGTHS: [usize; 5] = [0, 8, 200, 1500, 8000];

fn main() {
    if env::var_os("ECHO_LOG").is_some() {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        log.with_writer(std::io::stderr).without_time().init();
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let config = Config::from_lookup(|name| env::var(name).ok()).unwrap();
    let provider =
        VerbsProvider::new(VerbsOptions::from(&config)).unwrap_or_else(|e| fail(&e.reason));
    match words[..] {
        ["serve", own] => serve(&provider, address(own)),
        ["ask", to, count] => ask(&provider, address(to), count.parse().unwrap(), None),
        ["ask", to, count, then] => {
            ask(&provider, address(to), count.parse().unwrap(), Some(then == "busy"));
        }
        _ => fail("echo serve ADDRESS | echo ask ADDRESS COUNT [idle|busy]"),
    }
}

fn fail(why: &str) -> ! {
    eprintln!("{why}");
    process::exit(1)
}

fn address(text: &str) -> Address {
    text.parse::<std::net::SocketAddr>().unwrap().into()
}

fn open(provider: &VerbsProvider, at: Option<Address>) -> VerbsTransport {
    let dscp = env::var("ECHO_DSCP").ok().map(|dscp| dscp.parse().unwrap());
    let opening = Opening { address: at, dscp, ..Opening::default() };
    provider.open_as(opening).unwrap_or_else(|error| fail(&error.reason))
}

/// Sends one packet, numbered, of one byte over and over; whether there was room.
fn push(transport: &mut VerbsTransport, peer: PeerIndex, number: u64, length: usize) -> bool {
    let mut bytes = vec![number as u8; length];
    let head = Head::new(Kind::Eager, 0);
    // SAFETY: a packet is copied before `push` returns, and the bytes live until then.
    let pushed = transport.push(peer, head, number, &[], unsafe { Piece::of(&mut bytes) });
    transport.flush();
    pushed
}

/// Takes the next packet, checked: its sender, number and length.
fn take(transport: &mut VerbsTransport) -> Option<(PeerIndex, u64, usize)> {
    let arrival = transport.arrival()?;
    let mut bytes = vec![0; arrival.length];
    // SAFETY: the bytes outlive the copy.
    transport.copy_out(0, unsafe { Piece::of(&mut bytes) });
    if bytes.iter().any(|byte| *byte != arrival.word as u8) {
        fail("the content of a packet is wrong");
    }
    transport.consume();
    Some((arrival.peer, arrival.word, arrival.length))
}

fn serve(provider: &VerbsProvider, own: Address) {
    let mut transport = open(provider, Some(own));
    let mut waiting: Vec<(PeerIndex, u64, usize)> = Vec::new();
    let mut peers: Vec<Address> = Vec::new();
    loop {
        match transport.event() {
            Some(TransportEvent::Incoming { ticket, address, .. }) => {
                let peer = peers.len() as PeerIndex;
                peers.push(address);
                transport.adopt(peer, ticket);
                transport.connect(peer, address);
            }
            Some(
                event @ (TransportEvent::Died { peer }
                | TransportEvent::Lost { peer, .. }
                | TransportEvent::Closed { peer }),
            ) => {
                if let TransportEvent::Lost { reason, .. } = event {
                    eprintln!("lost: {reason}");
                }
                transport.disconnect(peer);
                waiting.retain(|(to, ..)| *to != peer);
            }
            Some(TransportEvent::Failed { reason, .. } | TransportEvent::Broken { reason, .. }) => {
                eprintln!("{}", reason.reason);
            }
            Some(TransportEvent::Down { reason, .. }) => return eprintln!("{}", reason.reason),
            Some(TransportEvent::Connected { .. } | TransportEvent::Overheard { .. }) => {}
            None => {
                waiting.extend(take(&mut transport));
                // In order: what finds no room holds up what is behind it.
                let mut sent = 0;
                while let Some(&(to, number, length)) = waiting.get(sent)
                    && push(&mut transport, to, number, length)
                {
                    sent += 1;
                }
                waiting.drain(..sent);
                sleep(&mut transport, Duration::from_millis(1));
            }
        }
    }
}

fn sleep(transport: &mut VerbsTransport, at_most: Duration) {
    transport.arm();
    VerbsTransport::fence_armed();
    if transport.is_quiet() {
        VerbsTransport::sleep(&[transport.bell()], Some(at_most));
    }
    transport.disarm();
}

/// Whether both connections stand: there, and back.
fn connect(transport: &mut VerbsTransport, to: Address) {
    let start = Instant::now();
    transport.connect(0, to);
    let mut ways = 0;
    while ways < 2 {
        match transport.event() {
            Some(TransportEvent::Connected { incarnation, .. }) => {
                println!("connected to incarnation {incarnation:x} after {:?}", start.elapsed());
                ways += 1;
            }
            Some(TransportEvent::Incoming { ticket, .. }) => {
                transport.adopt(0, ticket);
                ways += 1;
            }
            Some(TransportEvent::Failed { reason, .. }) => fail(&reason.reason),
            Some(other) => fail(&format!("{other:?}")),
            None => sleep(transport, Duration::from_millis(1)),
        }
        if start.elapsed() > PATIENCE {
            fail("no connection");
        }
    }
}

fn ask(provider: &VerbsProvider, to: Address, count: u64, then: Option<bool>) {
    let mut transport = open(provider, None);
    connect(&mut transport, to);
    let (mut asked, mut answered) = (0u64, 0u64);
    let mut last = Instant::now();
    let mut told = false;
    loop {
        if let Some(event) = transport.event() {
            // What a test waits for; without `then` it is one event too many.
            println!("ended {} ms after the last answer: {event:?}", last.elapsed().as_millis());
            process::exit(if told { 0 } else { 1 });
        }
        let more = asked < count || then == Some(true);
        if more && asked < answered + 16 {
            let length = LENGTHS[asked as usize % LENGTHS.len()];
            asked += u64::from(push(&mut transport, 0, asked, length));
        }
        while let Some((_, number, length)) = take(&mut transport) {
            if (number, length) != (answered, LENGTHS[answered as usize % LENGTHS.len()]) {
                fail("an answer is out of order");
            }
            answered += 1;
            if told && last.elapsed() > LONG {
                println!("goes on after {} ms", last.elapsed().as_millis());
            }
            last = Instant::now();
        }
        if answered >= count && !told {
            println!("{count} answers");
            told = true;
            if then.is_none() {
                return;
            }
        }
        if last.elapsed() > PATIENCE {
            fail(&format!("{answered} answers, and none for {PATIENCE:?}"));
        }
        if told {
            sleep(&mut transport, Duration::from_millis(1));
        }
    }
}

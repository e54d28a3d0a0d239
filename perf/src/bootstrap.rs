//! How ranks that rank 0 did not start find each other: at its TCP address, which `--listen` and
//! `--connect` name, or the [launcher](crate::launcher).

use crate::link::{Link, LinkError};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long ranks look for each other.
const MEET_MAX: Duration = Duration::from_secs(60);
const HELLO_MAX: Duration = Duration::from_secs(5);
/// A hello has no more bytes.
const HELLO_BYTES_MAX: u32 = 1024;
/// How long rank 0 listens to one who has called and says nothing.
const SILENCE_MAX: Duration = Duration::from_secs(1);
const HINT: &str = " (ranks on several hosts: --connect HOST:PORT, an address of rank 0's host)";
const GREETING: &str = concat!("kestrel-perf ", env!("CARGO_PKG_VERSION"));

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("cannot listen at {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("no address for {address}: {source}")]
    Resolve { address: String, source: std::io::Error },
    #[error("nobody answers at {address} ({last}); is rank 0 listening there?{HINT}")]
    Connect { address: String, last: std::io::Error },
    #[error("only {present} of {size} ranks came within {} s{HINT}", MEET_MAX.as_secs())]
    Missing { present: usize, size: usize },
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("rank 0 is {0:?}, and this is {GREETING}")]
    Version(String),
}

#[derive(Serialize, Deserialize)]
struct Hello {
    greeting: String,
    rank: usize,
}

/// Where rank 0 listens whom others call by `address`: at all of its host's, on that port, where the host
/// knows its own name as one that no other host reaches.
pub fn reachable(address: &str) -> String {
    let is_loopback = |places: Vec<SocketAddr>| {
        !places.is_empty() && places.iter().all(|place| place.ip().is_loopback())
    };
    let is_literal = address.parse::<SocketAddr>().is_ok();
    let resolved = || address.to_socket_addrs().map(Iterator::collect);
    match address.rsplit_once(':') {
        Some((host, port))
            if !is_literal && host != "localhost" && resolved().is_ok_and(is_loopback) =>
        {
            format!("0.0.0.0:{port}")
        }
        _ => address.to_owned(),
    }
}

/// Rank 0: waits for ranks 1 to `size - 1`. Strangers are sent away.
pub fn gather(address: &str, size: usize) -> Result<Vec<Link>, BootstrapError> {
    let listen = |source| BootstrapError::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).map_err(listen)?;
    gather_at(&listener, size).map_err(|error| match error {
        Gathering::Socket(source) => listen(source),
        Gathering::Missing(present) => BootstrapError::Missing { present, size },
    })
}

/// Why not all came: how many did.
#[derive(Debug)]
enum Gathering {
    Socket(std::io::Error),
    Missing(usize),
}

fn gather_at(listener: &TcpListener, size: usize) -> Result<Vec<Link>, Gathering> {
    listener.set_nonblocking(true).map_err(Gathering::Socket)?;
    let began = Instant::now();
    let mut links: Vec<Option<Link>> = (1..size).map(|_| None).collect();
    while links.iter().any(Option::is_none) {
        if began.elapsed() > MEET_MAX {
            return Err(Gathering::Missing(1 + links.iter().flatten().count()));
        }
        match listener.accept() {
            Ok((stream, from)) => {
                if let Err(why) = admit(stream, &mut links) {
                    let _ =
                        writeln!(std::io::stderr(), "kestrel-perf: {from} was sent away: {why}");
                }
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    Ok(links.into_iter().flatten().collect())
}

/// Takes a caller in if it says hello properly and its place is free.
///
/// # Errors
/// Why it does not come in.
fn admit(stream: TcpStream, links: &mut [Option<Link>]) -> Result<(), String> {
    let said = |error: LinkError| error.to_string();
    stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true))
        .and_then(|()| stream.set_write_timeout(Some(SILENCE_MAX)))
        .map_err(|error| error.to_string())?;
    let mut link = Link::from(stream);
    let hello: Hello = link.receive_up_to(HELLO_BYTES_MAX, SILENCE_MAX).map_err(said)?;
    link.send(&GREETING).map_err(said)?;
    if hello.greeting != GREETING {
        return Err(format!("it is {:?}, and this is {GREETING}", hello.greeting));
    }
    let rank = hello.rank;
    let place = rank.checked_sub(1).and_then(|index| links.get_mut(index));
    let place = place.ok_or_else(|| format!("there is no rank {rank}"))?;
    if place.is_some() {
        return Err(format!("rank {rank} is here already"));
    }
    *place = Some(link);
    Ok(())
}

/// Another rank: finds rank 0.
pub fn call(address: &str, rank: usize) -> Result<Link, BootstrapError> {
    let resolve = |source| BootstrapError::Resolve { address: address.to_owned(), source };
    let places: Vec<SocketAddr> = address.to_socket_addrs().map_err(resolve)?.collect();
    let began = Instant::now();
    let stream = loop {
        match connect_any(&places) {
            Ok(stream) => break stream,
            Err(_) if began.elapsed() < MEET_MAX => std::thread::sleep(Duration::from_millis(20)),
            Err(last) => {
                return Err(BootstrapError::Connect { address: address.to_owned(), last });
            }
        }
    };
    // Only a matter of speed.
    let _ = stream.set_nodelay(true);
    let mut link = Link::from(stream);
    link.send(&Hello { greeting: GREETING.to_owned(), rank })?;
    let greeting: String = link.receive(MEET_MAX)?;
    if greeting == GREETING { Ok(link) } else { Err(BootstrapError::Version(greeting)) }
}

/// A name may have several addresses, not all of which rank 0 listens at.
fn connect_any(places: &[SocketAddr]) -> std::io::Result<TcpStream> {
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    for place in places {
        match TcpStream::connect_timeout(place, HELLO_MAX) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_meet_and_strangers_do_not_matter() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let gathering = std::thread::spawn(move || gather_at(&listener, 3));
        drop(TcpStream::connect(address));
        // Says nothing, and is here until the others are.
        let _silent = TcpStream::connect(address);
        let second = std::thread::spawn(move || call(&format!("localhost:{}", address.port()), 2));
        call(&address.to_string(), 1).expect("rank 1 comes in");
        second.join().expect("no panic").expect("rank 2 comes in");
        assert_eq!(gathering.join().expect("no panic").expect("all came").len(), 2);
    }

    #[test]
    fn who_is_of_another_version_or_too_many_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut links = [None];
        let mut hello = |greeting: &str, rank| {
            let mut caller = Link::from(TcpStream::connect(address).expect("it is called"));
            caller.send(&Hello { greeting: greeting.to_owned(), rank }).expect("sent");
            admit(listener.accept().expect("the caller").0, &mut links).err()
        };
        assert!(hello("kestrel-perf 0", 1).is_some_and(|why| why.contains("kestrel-perf 0")));
        assert!(hello(GREETING, 7).is_some_and(|why| why.contains("no rank 7")));
        assert!(hello(GREETING, 1).is_none());
        assert!(hello(GREETING, 1).is_some_and(|why| why.contains("here already")));
    }

    #[test]
    fn rank_0_listens_where_others_reach_it() {
        for address in ["192.0.2.1:7000", "127.0.0.1:7000", "[::1]:7000", "localhost:7000", "?"] {
            assert_eq!(reachable(address), address);
        }
        assert_eq!(reachable("127.1:7000"), "0.0.0.0:7000", "resolves to loopback, and is a name");
    }
}

//! How ranks that rank 0 did not start find each other: at its TCP address, which `--listen` and
//! `--connect` name, or the [launcher](crate::launcher).

use crate::link::{Link, LinkError};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long ranks look for each other.
const MEET_MAX: Duration = Duration::from_secs(60);
const HELLO_MAX: Duration = Duration::from_secs(5);
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

/// Rank 0: waits for ranks 1 to `size - 1`. Strangers are sent away.
pub fn gather(address: &str, size: usize) -> Result<Vec<Link>, BootstrapError> {
    let listen = |source| BootstrapError::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    let began = Instant::now();
    let mut links: Vec<Option<Link>> = (1..size).map(|_| None).collect();
    while links.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => admit(stream, &mut links),
            Err(_) if began.elapsed() < MEET_MAX => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => {
                let present = 1 + links.iter().flatten().count();
                return Err(BootstrapError::Missing { present, size });
            }
        }
    }
    Ok(links.into_iter().flatten().collect())
}

/// Takes a caller in if it says hello properly and its place is free.
fn admit(stream: TcpStream, links: &mut [Option<Link>]) {
    if stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).is_err() {
        return;
    }
    let mut link = Link::from(stream);
    let Ok(hello) = link.receive::<Hello>(HELLO_MAX) else {
        return;
    };
    if link.send(&GREETING).is_err() || hello.greeting != GREETING {
        return;
    }
    if let Some(place) = hello.rank.checked_sub(1).and_then(|index| links.get_mut(index)) {
        place.get_or_insert(link);
    }
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
        let address = "127.0.0.1:29475";
        let gathering = std::thread::spawn(|| gather(address, 3));
        std::thread::sleep(Duration::from_millis(50));
        drop(TcpStream::connect(address));
        let second = std::thread::spawn(|| call("localhost:29475", 2));
        call(address, 1).expect("rank 1 comes in");
        second.join().expect("no panic").expect("rank 2 comes in");
        assert_eq!(gathering.join().expect("no panic").expect("all came").len(), 2);
    }
}

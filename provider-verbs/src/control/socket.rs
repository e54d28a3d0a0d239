//! The TCP sockets of the control thread. Nothing here blocks.

#![allow(unsafe_code)]

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use kestrel_core::fork_guard::Unshared;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
        sockopt,
    },
    time::Timespec,
};

use super::wire::{HEAD_BYTES, MESSAGE_BYTES_MAX, Message, WireError};

/// Connections that may wait to be accepted; the kernel takes net.core.somaxconn if that is less.
const BACKLOG: i32 = 4096;
/// After so long without a sign of life a peer's host counts as gone, where a peer need not be
/// believed in for longer.
const SILENCE: Duration = Duration::from_secs(5);
/// Probes that may stay without an answer, after as long a silence as there is between them.
const PROBES: u32 = 4;

/// A connection of ours alone: its end, and this process's, is told though a forked child lives on.
pub type Socket = Unshared<TcpStream>;
/// What takes them, as well.
pub type Listener = Unshared<OwnedFd>;

/// How long a silent peer is believed in, so that one that does not answer for `peer_timeout` is still
/// there: TCP repeats what is not acknowledged after 0.2 s and then after twice as long each time, and
/// gives up at the end without a last try.
pub fn silence_max(peer_timeout: Duration) -> Duration {
    (2 * peer_timeout + Duration::from_secs(1)).max(SILENCE)
}

fn new_socket(address: SocketAddr) -> Result<Unshared<OwnedFd>, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(Unshared::new(socket_with(family, SocketType::STREAM, flags, None)?))
}

/// Listens at `address`; port 0 lets the kernel choose one.
pub fn open_listener(address: SocketAddr) -> Result<(Listener, SocketAddr), Errno> {
    let socket = new_socket(address)?;
    // Connections of an endpoint that was closed may still be fading away there.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    let bound: SocketAddr = rustix::net::getsockname(&socket)?.try_into()?;
    Ok((socket, address_with_port(address, bound.port())))
}

fn address_with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Whether a connection waits to be taken.
pub fn is_readable(listener: &Listener) -> bool {
    is_ready(listener, PollFlags::IN)
}

/// Whether connecting is over, for better or for worse.
pub fn is_writable(socket: &TcpStream) -> bool {
    is_ready(socket, PollFlags::OUT)
}

fn is_ready(socket: &impl AsFd, flags: PollFlags) -> bool {
    let mut fds = [PollFd::new(socket, flags)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Takes the next connection, if one waits: it, and where it comes from.
pub fn accept(listener: &Listener, silence_max: Duration) -> Result<Socket, Errno> {
    let socket = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let socket = Unshared::new(socket);
    prepare(&socket, silence_max)?;
    Ok(socket.map(TcpStream::from))
}

/// Begins to connect from the IP address of `own` to `to`.
pub fn begin_connect(
    own: SocketAddr,
    to: SocketAddr,
    silence_max: Duration,
) -> Result<Socket, Errno> {
    let socket = new_socket(to)?;
    if own.is_ipv4() == to.is_ipv4() {
        // The peer compares: an endpoint's connections come from its own IP address.
        bind_without_port(&socket, address_with_port(own, 0))?;
    }
    prepare(&socket, silence_max)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.map(TcpStream::from)),
        Err(errno) => Err(errno),
    }
}

/// Binds the IP address alone: the port is chosen with the connection, and many may share one.
fn bind_without_port(socket: &OwnedFd, own: SocketAddr) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an `int`, whose size is told. A kernel that lacks the option
    // (before 4.2) refuses it, and chooses the port at once.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
    bind(socket, &own)
}

/// Small messages at once, and a bound on how long a silent peer is believed in: on probes, and on
/// what was sent and is not acknowledged.
fn prepare(socket: &OwnedFd, silence_max: Duration) -> Result<(), Errno> {
    // The kernel counts whole seconds.
    let apart = Duration::from_secs((silence_max / (PROBES + 1)).as_secs_f64().ceil() as u64);
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, apart)?;
    sockopt::set_tcp_keepintvl(socket, apart)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    sockopt::set_tcp_user_timeout(socket, silence_max.as_millis() as u32)
}

/// Sends a message whole. They are few and short, so that a socket without room for one has a
/// peer that does not read.
pub fn send(mut socket: &TcpStream, message: &[u8]) -> io::Result<()> {
    match socket.write(message)? {
        written if written == message.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// What came of a look at a socket.
#[derive(Debug)]
pub enum Received {
    /// Not a whole message yet.
    Nothing,
    /// A message, and its bytes.
    Message(Message, Vec<u8>),
    /// The peer hung up, or its host did.
    Gone(String),
    /// The peer's host is not reached: its kernel said nothing of the connection.
    Silent(String),
    /// Something that is no message.
    Bad(WireError),
}

/// Reads on: `input` holds what came of a message so far.
pub fn receive(mut socket: &TcpStream, input: &mut Vec<u8>) -> Received {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    loop {
        match Message::decode(input) {
            Err(error) => return Received::Bad(error),
            Ok(Some((message, length))) => {
                let bytes = input.drain(..length).collect();
                return Received::Message(message, bytes);
            }
            Ok(None) => {}
        }
        debug_assert!(input.len() < MESSAGE_BYTES_MAX.max(HEAD_BYTES));
        let room = MESSAGE_BYTES_MAX - input.len();
        match socket.read(&mut buffer[..room]) {
            Ok(0) => return Received::Gone("it hung up".into()),
            Ok(count) => input.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_silence(&error) => return Received::Silent(error.to_string()),
            Err(error) => return Received::Gone(error.to_string()),
        }
    }
}

/// Whether the network is at fault, and not the peer.
fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    [TimedOut, HostUnreachable, NetworkUnreachable, NetworkDown].contains(&error.kind())
        || error.raw_os_error() == Some(libc::EHOSTDOWN)
}

/// Ends a connection for good, also where a forked child still has a copy of it.
pub fn hang_up(socket: &TcpStream) {
    // ENOTCONN: the peer was quicker.
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_tries_again_after_a_peer_may_have_been_silent() {
        for ms in [100, 1_500, 2_000, 3_200, 12_000, 30_000, 3_600_000] {
            let (peer_timeout, given_up) =
                (Duration::from_millis(ms), silence_max(Duration::from_millis(ms)));
            let first = Duration::from_millis(200);
            let tries = (1..32).map(|n| first * ((1_u64 << n) - 1) as u32);
            let last = tries.take_while(|at| *at < given_up).last().unwrap();
            assert!(last >= peer_timeout, "{ms} ms: last try at {last:?} of {given_up:?}");
        }
        assert_eq!(silence_max(Duration::from_millis(1_500)), SILENCE);
    }

    #[test]
    fn what_the_peers_kernel_says_is_no_silence() {
        let is_silence = |number| is_silence(&io::Error::from_raw_os_error(number));
        let networks = [
            libc::ETIMEDOUT,
            libc::EHOSTUNREACH,
            libc::ENETUNREACH,
            libc::ENETDOWN,
            libc::EHOSTDOWN,
        ];
        assert!(networks.into_iter().all(is_silence));
        assert!(![libc::ECONNRESET, libc::EPIPE, libc::ECONNREFUSED].into_iter().any(is_silence));
    }
}

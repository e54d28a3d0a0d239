//! The control sockets: abstract names, messages with descriptors, and who is at the other end.
//!
//! An endpoint's name is `"\0kestrel/1/<address>:<port>"`, for datagrams
//! `"\0kestrel/1/datagrams/<address>:<port>"`: an abstract unix socket of type
//! SEQPACKET, which the kernel frees with its last descriptor, whoever dies. Abstract names are
//! per network namespace, and any user may take one: so both sides check the other's uid.
//!
//! Nothing here blocks.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use kestrel_core::{fork_guard::Unshared, transport::Service};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use rustix::time::Timespec;

use super::wire::MESSAGE_BYTES_MAX;
use crate::sys::{self, PeerCredentials};

/// A socket that a forked child does not keep: of a parent that is killed it would hold the name, and
/// hide the end.
pub(crate) type Socket = Unshared<OwnedFd>;

/// The most descriptors that any message carries.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// Connections that may wait to be accepted. The kernel takes the smaller of this and
/// net.core.somaxconn; beyond it, connectors are told to try again.
const BACKLOG: i32 = 4096;

/// How much the kernel is believed to offer; tests take some of it away.
static OFFERED: AtomicU8 = AtomicU8::new(Offered::PeerPidfd as u8);

/// What a kernel has to tell of a peer's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Offered {
    /// The socket's hang-up alone.
    Socket,
    /// A pidfd of any PID (Linux 5.3).
    PidfdOpen,
    /// A pidfd of the socket's peer (Linux 6.5).
    PeerPidfd,
}

/// Makes this process behave as on a kernel that offers no more than that.
pub fn pretend_kernel_offers(offered: Offered) {
    OFFERED.store(offered as u8, Ordering::Relaxed);
}

fn offers(offered: Offered) -> bool {
    OFFERED.load(Ordering::Relaxed) >= offered as u8
}

/// The name of the endpoint at `address`, less the zero byte in front that makes it abstract.
pub fn abstract_name(service: Service, address: SocketAddr) -> String {
    match service {
        Service::Reliable => format!("kestrel/1/{address}"),
        Service::Datagrams => format!("kestrel/1/datagrams/{address}"),
    }
}

fn unix_address(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn new_socket() -> Result<Socket, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(Unshared::new(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?))
}

/// Takes the name of `address`, and listens.
pub(crate) fn open_listener(service: Service, address: SocketAddr) -> Result<Socket, Errno> {
    listen_as(&abstract_name(service, address))
}

/// Takes a name, and listens.
pub(crate) fn listen_as(name: &str) -> Result<Socket, Errno> {
    let socket = take_name(name)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes a name, at which nobody can connect: whoever has it, has it alone.
pub(crate) fn take_name(name: &str) -> Result<Socket, Errno> {
    let socket = new_socket()?;
    bind(&socket, &unix_address(name)?)?;
    Ok(socket)
}

/// Connects to the endpoint at `address`: at once or not at all.
pub(crate) fn open_connection(service: Service, address: SocketAddr) -> Result<Socket, Errno> {
    connect_to(&abstract_name(service, address))
}

/// Connects to whoever listens as `name`: at once or not at all.
pub(crate) fn connect_to(name: &str) -> Result<Socket, Errno> {
    let socket = new_socket()?;
    connect(&socket, &unix_address(name)?)?;
    Ok(socket)
}

pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<Socket, Errno> {
    Ok(Unshared::new(accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?))
}

/// Whether a peer with these credentials is of our own user.
///
/// A user that has no name in our user namespace shows as the overflow uid. If that is also who
/// we are, and not every uid has a name here, we cannot tell friend from stranger: nobody passes.
pub(crate) fn same_user(peer: PeerCredentials) -> bool {
    static AMBIGUOUS: OnceLock<Option<u32>> = OnceLock::new();
    let own = geteuid().as_raw();
    let ambiguous = *AMBIGUOUS.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/uid_map").ok()?;
        if map.split_whitespace().eq(["0", "0", "4294967295"]) {
            return None;
        }
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        overflow.trim().parse().ok()
    });
    peer.uid == own && ambiguous != Some(own)
}

/// How the death of a socket's peer will be known.
pub(crate) enum Liveness {
    Pidfd(OwnedFd),
    /// No pidfd can be had: the socket has to stay open.
    Socket,
    /// It is dead.
    Dead,
}

/// The peer's pidfd. To be called while the socket is connected.
pub(crate) fn liveness(
    socket: BorrowedFd<'_>,
    peer: PeerCredentials,
) -> Result<Liveness, io::Error> {
    if offers(Offered::PeerPidfd) {
        match sys::peer_pidfd(socket) {
            Ok(pidfd) => return Ok(Liveness::Pidfd(pidfd)),
            Err(error) => match error.raw_os_error() {
                Some(libc::ESRCH | libc::ENODATA) => return Ok(Liveness::Dead),
                Some(libc::EMFILE | libc::ENFILE) => return Err(error),
                // The kernel does not know the option, or a filter forbids it.
                _ => {}
            },
        }
    }
    if !offers(Offered::PidfdOpen) {
        return Ok(Liveness::Socket);
    }
    let Some(pid) = peer.pid.and_then(Pid::from_raw) else {
        return Ok(Liveness::Socket);
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        // The peer may have died, and its PID gone to another, before the call. A socket that is
        // connected afterwards says that it had not.
        Ok(_) if hung_up(socket) => Ok(Liveness::Dead),
        Ok(pidfd) => Ok(Liveness::Pidfd(pidfd)),
        Err(Errno::SRCH) => Ok(Liveness::Dead),
        Err(errno @ (Errno::MFILE | Errno::NFILE)) => Err(errno.into()),
        Err(_) => Ok(Liveness::Socket),
    }
}

fn hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Sends one message, whole or not at all.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

/// What was found on a socket.
pub(crate) enum Received {
    Message(Packet),
    /// Nothing yet.
    Empty,
    /// The other side closed it.
    Closed,
}

/// A message as it came. Dropping it closes its descriptors.
pub(crate) struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
    /// The message was longer than any of ours.
    pub oversize: bool,
    /// There were descriptors that the kernel did not give us: too many, or no room for them.
    pub descriptors_lost: bool,
}

pub(crate) fn receive(socket: BorrowedFd<'_>) -> Received {
    match receive_once(socket) {
        // unix(7) does not say so: a peer that closes with data unread resets us, and that hides,
        // once, what it had sent before: perhaps the reason.
        Err(Errno::CONNRESET) => receive_once(socket).unwrap_or(Received::Closed),
        Err(_) => Received::Closed,
        Ok(received) => received,
    }
}

fn receive_once(socket: BorrowedFd<'_>) -> Result<Received, Errno> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let message = match received {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Empty),
        other => other?,
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            descriptors.extend(fds);
        }
    }
    // No message of ours is empty, so nothing is lost by taking an empty one for the end.
    if message.bytes == 0 {
        return Ok(Received::Closed);
    }
    bytes.truncate(message.bytes);
    Ok(Received::Message(Packet {
        bytes,
        descriptors,
        oversize: message.flags.contains(ReturnFlags::TRUNC),
        descriptors_lost: message.flags.contains(ReturnFlags::CTRUNC),
    }))
}

/// Lets nothing more in, so that what is in the queue now is all that ever will be.
pub(crate) fn stop_receiving(socket: &Socket) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
}

/// Ends the conversation, whoever else holds a copy of the socket. What was sent is still read.
/// A listener that is hung up refuses connections.
pub(crate) fn hang_up(socket: &Socket) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// Ends a listener, and hangs up on whoever is in its queue: a forked child may have a copy of it, which
/// would keep them waiting.
pub(crate) fn close_listener(listener: &Socket) {
    hang_up(listener);
    // Nobody joins them any more.
    for _ in 0..=BACKLOG {
        if accept(listener.as_fd()).is_err() {
            return;
        }
    }
}

//! A peer that is no station: what it says, and what it passes, is the test's.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::LazyLock;

use kestrel_core::address::Address;
use kestrel_core::transport::Service;
use kestrel_shm::LANE_BYTES;
use kestrel_shm::testing::abstract_name;
use kestrel_shm::testing::wire::{Hello, Message, Reply};
use kestrel_tests::reserved::own_address;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::*;

/// The address that the raw peers of this process go by.
pub fn own() -> SocketAddr {
    static OWN: LazyLock<Address> = LazyLock::new(own_address);
    OWN.socket_addr()
}

pub fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

pub fn name(address: SocketAddr) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(abstract_name(Service::Reliable, address).as_bytes()).unwrap()
}

/// Takes the name of `address`, as its endpoint would.
pub fn listen_at(address: SocketAddr) -> OwnedFd {
    listen_at_with(address, 10)
}

/// The same, with so long a queue.
pub fn listen_at_with(address: SocketAddr, backlog: i32) -> OwnedFd {
    let listener = socket();
    bind(&listener, &name(address)).unwrap();
    listen(&listener, backlog).unwrap();
    listener
}

/// Connects if there is room in the queue.
pub fn try_connect(to: SocketAddr) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&socket, &name(to)).is_ok().then_some(socket)
}

pub fn raw_connect(to: SocketAddr) -> OwnedFd {
    let socket = socket();
    connect(&socket, &name(to)).unwrap();
    socket
}

pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); 2048];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Everything that the other side says until it closes: the test fails by its harness's own limit
/// if it never does.
pub fn read_all(socket: &OwnedFd) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut resets = 0;
    loop {
        let mut bytes = [0; 2048];
        let mut none = RecvAncillaryBuffer::default();
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut none, RecvFlags::empty()) {
            Ok(message) if message.bytes > 0 => {
                messages.push(Message::parse(&bytes[..message.bytes]).unwrap());
            }
            Err(rustix::io::Errno::CONNRESET) if resets == 0 => resets = 1,
            _ => return messages,
        }
    }
}

pub fn reply() -> Reply {
    Reply {
        asymmetric: false,
        keep_socket: false,
        reads_you: false,
        incarnation: 77,
        address: own(),
        nonce_address: 0,
        nonce: [0; 16],
    }
}

pub fn hello(to: SocketAddr) -> Message {
    Message::Hello(Hello {
        from: reply(),
        to,
        pool_bytes: 4096,
        lane_bytes: LANE_BYTES as u32,
        key: b"test".to_vec(),
    })
}

pub fn next_message(raw: &OwnedFd) -> Option<Message> {
    let mut bytes = [0; 2048];
    let (_, len) = recv(raw, &mut bytes[..], RecvFlags::empty()).unwrap();
    Message::parse(&bytes[..len]).ok()
}

pub fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes as u64).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// What passes with a HELLO beside the bell: lane, pool and the mark of the sender's end.
pub fn parcel() -> (OwnedFd, OwnedFd, OwnedFd) {
    (memfd(LANE_BYTES, sealed()), memfd(4096, sealed()), memfd(4096, sealed()))
}

pub fn sealed() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

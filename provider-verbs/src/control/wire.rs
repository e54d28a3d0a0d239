//! What the two sides of a connection say to each other over TCP, byte by byte.
//!
//! Every message has a head of 12 bytes: magic, version, kind, length. All integers are
//! little-endian, all lengths fixed; a byte too many or too few makes a message bad.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use kestrel_core::{transport::Service, wire};
use thiserror::Error;

use crate::{
    device::LinkLayer,
    receipt::Receipt,
    verbs::{PathEnd, RemoteMemory, is_mtu},
};

/// The version of the handshake, above that of the packets.
pub const VERSION: u16 = 3 << 8 | wire::VERSION;
const _: () = assert!(wire::VERSION < 1 << 8);

/// A version in words: of the handshake, and of the packets.
pub fn text_of(version: u16) -> String {
    format!("{}.{}", version >> 8, version & 0xff)
}

const MAGIC: [u8; 4] = *b"KSTV";
/// Magic, version, kind, length.
pub const HEAD_BYTES: usize = 12;
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 256;
/// Bytes of a nonce, and of a proof.
pub const NONCE_BYTES: usize = 32;

pub type Nonce = [u8; NONCE_BYTES];

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    #[error("it does not begin as a message does")]
    Magic,
    #[error("version {} of the protocol, and we speak {}", text_of(*theirs), text_of(VERSION))]
    OtherVersion { theirs: u16 },
    #[error("no message of kind {kind} has {bytes} bytes")]
    Length { kind: u16, bytes: u32 },
    #[error("{what} has the value {value}")]
    Field { what: &'static str, value: u64 },
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RejectReason {
    #[error("the keys differ")]
    Key = 1,
    #[error("the versions differ")]
    Version = 2,
    #[error("another endpoint listens there")]
    Wanted = 3,
    #[error("the sender's address is not its own")]
    Address = 4,
    #[error(
        "it has nothing left for us: no queue pair, buffer or registered memory, no place for one more \
         sender of datagrams of our host; or its device has failed"
    )]
    Resources = 5,
    #[error("it cannot reach our device from its own")]
    Path = 6,
    #[error("its packets are of another length")]
    Limits = 7,
    #[error("it is an endpoint of another type")]
    Service = 8,
    #[error(
        "it is in another InfiniBand subnet: FI_KESTREL_CONNECT_BY=rdma_cm asks the subnet manager \
         for the way, for connections"
    )]
    Subnet = 9,
    #[error("it is in another partition, or a limited member of one as we are")]
    Partition = 10,
}

impl RejectReason {
    pub fn of(value: u32) -> Option<RejectReason> {
        use RejectReason::*;
        [Key, Version, Wanted, Address, Resources, Path, Limits, Service, Subnet, Partition]
            .into_iter()
            .find(|reason| *reason as u32 == value)
    }
}

/// What the side that connects says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub incarnation: u64,
    /// Where it listens.
    pub from: SocketAddr,
    /// Whom it wants.
    pub wanted: SocketAddr,
    pub end: PathEnd,
    pub buffer_bytes: u32,
    /// Where its credit is to be written; nowhere for datagrams.
    pub credit: RemoteMemory,
    pub nonce: Nonce,
    /// What it is going to send on. A message of another kind says so.
    pub service: Service,
}

/// What the other side answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    pub incarnation: u64,
    pub from: SocketAddr,
    pub end: PathEnd,
    pub buffer_bytes: u32,
}

/// One message. HELLO and ACCEPT end with a proof, which is none of this module's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Greeting(Nonce),
    Hello(Box<Hello>),
    Accept(Box<Accept>),
    Reject(RejectReason),
    Confirm,
    /// The endpoint closes, or its end of the connection. What came to it, be it on another connection
    /// of the two.
    End(Receipt),
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Greeting(_) => 1,
            Message::Hello(hello) => match hello.service {
                Service::Reliable => 2,
                Service::Datagrams => 7,
            },
            Message::Accept(_) => 3,
            Message::Reject(_) => 4,
            Message::Confirm => 5,
            Message::End(_) => 6,
        }
    }

    /// The bytes, with zeroes where a proof goes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(MESSAGE_BYTES_MAX));
        out.bytes(&MAGIC);
        out.u16(VERSION);
        out.u16(self.kind());
        out.u32(0);
        match self {
            Message::Greeting(nonce) => out.bytes(nonce),
            Message::Hello(hello) => {
                out.u64(hello.incarnation);
                out.address(hello.from);
                out.end(&hello.end);
                out.u32(hello.buffer_bytes);
                out.address(hello.wanted);
                out.u64(hello.credit.address);
                out.u32(hello.credit.key);
                out.bytes(&hello.nonce);
                out.bytes(&[0; NONCE_BYTES]);
            }
            Message::Accept(accept) => {
                out.u64(accept.incarnation);
                out.address(accept.from);
                out.end(&accept.end);
                out.u32(accept.buffer_bytes);
                out.bytes(&[0; NONCE_BYTES]);
            }
            Message::Reject(reason) => out.u32(*reason as u32),
            Message::Confirm => {}
            Message::End(receipt) => out.u64(receipt.to_word()),
        }
        let length = out.0.len() as u32;
        out.0[8..12].copy_from_slice(&length.to_le_bytes());
        out.0
    }

    /// The first message of `bytes` and its length; none if it is not whole yet.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, WireError> {
        // What is no message is recognized by its first bytes, however few come.
        let begun = bytes.len().min(MAGIC.len());
        if bytes[..begun] != MAGIC[..begun] {
            return Err(WireError::Magic);
        }
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let mut head = Reader(&head[4..]);
        let (version, kind, length) = (head.u16(), head.u16(), head.u32());
        if version != VERSION {
            return Err(WireError::OtherVersion { theirs: version });
        }
        let expected = length_of(kind).ok_or(WireError::Length { kind, bytes: length })?;
        if length as usize != expected {
            return Err(WireError::Length { kind, bytes: length });
        }
        let Some(whole) = bytes.get(..expected) else {
            return Ok(None);
        };
        let message = Message::read(kind, Reader(&whole[HEAD_BYTES..]))?;
        Ok(Some((message, expected)))
    }

    fn read(kind: u16, mut body: Reader<'_>) -> Result<Message, WireError> {
        Ok(match kind {
            1 => Message::Greeting(body.array()),
            2 | 7 => Message::Hello(Box::new(Hello {
                incarnation: body.incarnation()?,
                from: body.address()?,
                end: body.end()?,
                buffer_bytes: body.u32(),
                wanted: body.address()?,
                credit: RemoteMemory { address: body.u64(), key: body.u32() },
                nonce: body.array(),
                service: if kind == 2 { Service::Reliable } else { Service::Datagrams },
            })),
            3 => Message::Accept(Box::new(Accept {
                incarnation: body.incarnation()?,
                from: body.address()?,
                end: body.end()?,
                buffer_bytes: body.u32(),
            })),
            4 => {
                let value = body.u32();
                let what = "the reason of a refusal";
                let reason = RejectReason::of(value);
                Message::Reject(reason.ok_or(WireError::Field { what, value: value.into() })?)
            }
            5 => Message::Confirm,
            _ => Message::End(Receipt::from_word(body.u64())),
        })
    }
}

/// The length of a message of this kind.
fn length_of(kind: u16) -> Option<usize> {
    const ADDRESS: usize = ADDRESS_BYTES;
    const END: usize = 36;
    let body = match kind {
        1 => NONCE_BYTES,
        2 | 7 => 8 + ADDRESS + END + 4 + ADDRESS + 12 + 2 * NONCE_BYTES,
        3 => 8 + ADDRESS + END + 4 + NONCE_BYTES,
        4 => 4,
        5 => 0,
        6 => 8,
        _ => return None,
    };
    Some(HEAD_BYTES + body)
}

/// Bytes of an address.
pub const ADDRESS_BYTES: usize = 24;

/// An address as it stands in messages.
pub fn address_bytes(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let mut out = Writer(Vec::with_capacity(ADDRESS_BYTES));
    out.address(address);
    out.0.try_into().expect("an address has that many bytes")
}

/// Whether two addresses are one endpoint's. Which of its links an address belongs to each host says in its
/// own way.
pub fn is_one_place(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

/// The address that bytes stand for.
pub fn address_of(bytes: &[u8; ADDRESS_BYTES]) -> Result<SocketAddr, WireError> {
    Reader(bytes).address()
}

pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn address(&mut self, address: SocketAddr) {
        let (family, scope, octets) = match address {
            SocketAddr::V4(v4) => (4, 0, v4.ip().to_ipv6_mapped().octets()),
            SocketAddr::V6(v6) => (6, v6.scope_id(), v6.ip().octets()),
        };
        self.u16(family);
        self.u16(address.port());
        self.u32(scope);
        self.bytes(&octets);
    }

    fn end(&mut self, end: &PathEnd) {
        self.u32(end.queue_pair);
        self.u32(end.first_packet);
        self.u16(end.lid);
        self.u16(end.partition_key);
        self.u32(u32::from(end.link_layer == LinkLayer::InfiniBand));
        self.bytes(&end.gid);
        self.u32(end.mtu_bytes);
    }
}

/// Reads what `length_of` has found to be there.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        *first
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A port that somebody listens at.
    pub(super) fn port(&mut self) -> Result<u16, WireError> {
        match self.u16() {
            0 => Err(WireError::Field { what: "a port", value: 0 }),
            port => Ok(port),
        }
    }

    /// Two bytes that mean nothing yet.
    pub(super) fn zero(&mut self, what: &'static str) -> Result<(), WireError> {
        match self.u16() {
            0 => Ok(()),
            value => Err(WireError::Field { what, value: value.into() }),
        }
    }

    pub(super) fn incarnation(&mut self) -> Result<u64, WireError> {
        match self.u64() {
            0 => Err(WireError::Field { what: "an incarnation", value: 0 }),
            incarnation => Ok(incarnation),
        }
    }

    fn address(&mut self) -> Result<SocketAddr, WireError> {
        let (family, port, scope) = (self.u16(), self.u16(), self.u32());
        let ip = Ipv6Addr::from(self.array::<16>());
        let address = match (family, ip.to_ipv4_mapped()) {
            (4, Some(v4)) if scope == 0 => SocketAddr::new(IpAddr::V4(v4), port),
            (6, None) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
            _ => return Err(WireError::Field { what: "an address family", value: family.into() }),
        };
        if port == 0 {
            return Err(WireError::Field { what: "a port", value: 0 });
        }
        Ok(address)
    }

    fn end(&mut self) -> Result<PathEnd, WireError> {
        let check = |what, value: u32, good: bool| {
            if good { Ok(value) } else { Err(WireError::Field { what, value: value.into() }) }
        };
        let (queue_pair, first_packet) = (self.u32(), self.u32());
        check("a queue pair", queue_pair, queue_pair >> 24 == 0)?;
        check("a packet's number", first_packet, first_packet >> 24 == 0)?;
        let (lid, partition_key) = (self.u16(), self.u16());
        let link_layer = match self.u32() {
            0 => LinkLayer::Ethernet,
            1 => LinkLayer::InfiniBand,
            other => return Err(WireError::Field { what: "a link layer", value: other.into() }),
        };
        let gid = self.array();
        let mtu_bytes = self.u32();
        check("an MTU", mtu_bytes, is_mtu(mtu_bytes))?;
        // What is connected like this carries no reads.
        let reads_max = 1;
        Ok(PathEnd {
            queue_pair,
            first_packet,
            lid,
            partition_key,
            link_layer,
            gid,
            mtu_bytes,
            reads_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> PathEnd {
        PathEnd {
            queue_pair: 0x12_3456,
            first_packet: 0xff_ffff,
            lid: 7,
            partition_key: 0x8001,
            link_layer: LinkLayer::InfiniBand,
            gid: [3; 16],
            mtu_bytes: 4096,
            reads_max: 1,
        }
    }

    fn messages() -> Vec<Message> {
        let hello = Hello {
            incarnation: u64::MAX,
            from: "10.9.0.1:7".parse().unwrap(),
            wanted: "[fe80::1%4]:65535".parse().unwrap(),
            end: end(),
            buffer_bytes: 8192,
            credit: RemoteMemory { address: 1 << 40, key: 99 },
            nonce: [5; NONCE_BYTES],
            service: Service::Reliable,
        };
        let datagrams = Hello { service: Service::Datagrams, ..hello.clone() };
        let accept = Accept {
            incarnation: 1,
            from: "[::1]:9".parse().unwrap(),
            end: PathEnd { link_layer: LinkLayer::Ethernet, ..end() },
            buffer_bytes: 1,
        };
        vec![
            Message::Greeting([1; NONCE_BYTES]),
            Message::Hello(Box::new(hello)),
            Message::Hello(Box::new(datagrams)),
            Message::Accept(Box::new(accept)),
            Message::Reject(RejectReason::Path),
            Message::Confirm,
            Message::End(Receipt { received: u32::MAX, credit_key: 7 }),
        ]
    }

    #[test]
    fn messages_come_back_as_they_went() {
        for message in messages() {
            let mut bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            let length = bytes.len();
            for part in 0..length {
                assert_eq!(Message::decode(&bytes[..part]), Ok(None), "{message:?}");
            }
            bytes.push(77);
            assert_eq!(Message::decode(&bytes), Ok(Some((message, length))));
        }
    }

    #[test]
    fn garbage_is_recognized_by_its_first_byte() {
        assert_eq!(Message::decode(b"GET / HTTP/1.1"), Err(WireError::Magic));
        assert_eq!(Message::decode(b"K"), Ok(None));
        assert_eq!(Message::decode(b"k"), Err(WireError::Magic));
    }

    #[test]
    fn every_lie_of_a_head_has_its_name() {
        let good = Message::Confirm.encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Message::decode(&bytes).unwrap_err()
        };
        let other = VERSION & 0xff00 | 2;
        assert_eq!(with(4, 2), WireError::OtherVersion { theirs: other });
        assert_eq!(with(6, 0), WireError::Length { kind: 0, bytes: 12 });
        assert_eq!(with(8, 13), WireError::Length { kind: 5, bytes: 13 });
    }

    /// No byte of a HELLO can be changed so that something panics.
    #[test]
    fn every_byte_of_a_hello_may_be_anything() {
        let good = messages()[1].encode();
        let mut refused = 0;
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                refused += usize::from(Message::decode(&bytes).is_err());
            }
        }
        assert!(refused > 60, "{refused}");
    }
}

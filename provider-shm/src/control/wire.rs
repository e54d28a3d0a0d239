//! The four messages of a handshake, byte by byte.
//!
//! ```text
//! sender (connects)                          receiver (listens)
//!   HELLO   lane, pool, bell, end mark    →    checks, maps, probes
//!   checks, probes                        ←    ACCEPT  bell, end mark     or REJECT reason
//!   CONFIRM                               →    the lane is in use
//! ```
//!
//! All integers are little-endian. Every message starts with 12 bytes: magic `KSTL`, version,
//! kind, length of the whole. Whatever does not parse says which field and value it was.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use thiserror::Error;

use crate::cma::NONCE_BYTES;

/// "KSTL", read as little-endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"KSTL");
/// The version of the whole protocol: the handshake, what it hands over, and the packets in it.
pub const VERSION: u16 = kestrel_core::wire::VERSION;
/// The longest key that a handshake carries.
pub const KEY_BYTES_MAX: usize = 512;
/// No message is longer.
pub const MESSAGE_BYTES_MAX: usize = HELLO_BYTES + KEY_BYTES_MAX;

const HEADER_BYTES: usize = 12;
/// A HELLO without its key.
const HELLO_BYTES: usize = 112;

/// The sender registered for asymmetric fences.
const FLAG_ASYMMETRIC: u32 = 1;
/// The sender knows the peer's death only by this socket: keep it open.
const FLAG_KEEP_SOCKET: u32 = 2;
/// In an ACCEPT: its sender can read the other's memory.
const FLAG_READS_YOU: u32 = 4;
const FLAGS_KNOWN: u32 = FLAG_ASYMMETRIC | FLAG_KEEP_SOCKET | FLAG_READS_YOU;

/// What kind of message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Hello = 1,
    Accept = 2,
    Reject = 3,
    Confirm = 4,
}

/// What both sides say of themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub asymmetric: bool,
    pub keep_socket: bool,
    /// Whether it has found out that it can read the other's memory.
    pub reads_you: bool,
    pub incarnation: u64,
    pub address: SocketAddr,
    /// Where the nonce of the probe lies in the sender's memory; 0: do not probe.
    pub nonce_address: u64,
    pub nonce: [u8; NONCE_BYTES],
}

/// The first message, from the side that connects and will send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub from: Reply,
    /// Whom the sender believes to have reached.
    pub to: SocketAddr,
    pub pool_bytes: u64,
    pub lane_bytes: u32,
    pub key: Vec<u8>,
}

/// The last message: the lane is in use from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm;

/// Why a receiver does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[repr(u32)]
pub enum RejectReason {
    #[error("the keys differ")]
    Key = 1,
    #[error("the versions of the protocol differ")]
    Version = 2,
    #[error("it is another endpoint than the one asked for")]
    Address = 3,
    #[error("it did not accept the descriptors that it was passed")]
    Descriptors = 4,
    #[error("it has no file descriptor left")]
    OutOfDescriptors = 5,
    #[error("it could not map the lane or the pool")]
    Memory = 6,
    #[error("the address that we go by is not this process's own")]
    NotOurAddress = 7,
    #[error("it has as many lanes from this process as it takes")]
    TooManyLanes = 8,
    #[error(
        "our pools would have more bytes there than it maps of one process: it takes 4 GiB, or 1,024 \
         times its own pool if that is more (FI_KESTREL_CHUNK_SIZE times FI_KESTREL_CHUNK_COUNT; lower \
         them here, or set them alike in all processes)"
    )]
    TooLargePools = 9,
}

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Hello(Hello),
    Accept(Reply),
    Reject(RejectReason),
    Confirm(Confirm),
}

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    #[error("the message has {have} bytes, too few for {what}")]
    Short { what: &'static str, have: usize },
    #[error("the magic is {found:#010x}")]
    Magic { found: u32 },
    #[error("the version is {found}, ours is {VERSION}")]
    Version { found: u16 },
    #[error("the kind is {found}")]
    Kind { found: u16 },
    #[error("the length field says {said}, the message has {have} bytes")]
    Length { said: u32, have: usize },
    #[error("unknown flags {found:#x}")]
    Flags { found: u32 },
    #[error("the address family is {found}")]
    Family { found: u16 },
    #[error("the address has port 0, or is unspecified")]
    Unspecified,
    #[error("it goes by the address {found}")]
    OtherAddress { found: SocketAddr },
    #[error("a reserved field is {found:#x}")]
    Reserved { found: u64 },
    #[error("the incarnation is 0")]
    Incarnation,
    #[error("the reject reason is {found}")]
    Reason { found: u32 },
    #[error("the key has {found} bytes, at most {KEY_BYTES_MAX} are allowed")]
    KeyLength { found: usize },
    #[error("the lane has {found} bytes, ours have {}", crate::region::LANE_BYTES)]
    LaneBytes { found: u32 },
    #[error("the message is longer than {MESSAGE_BYTES_MAX} bytes")]
    Oversize,
    #[error("a {found:?} came instead of {expected}")]
    Unexpected { found: Kind, expected: &'static str },
    #[error("{found} descriptors came, {expected} belong to the message")]
    DescriptorCount { found: usize, expected: usize },
    #[error("more descriptors came than any message has")]
    TooManyDescriptors,
}

impl Message {
    pub fn kind(&self) -> Kind {
        match self {
            Message::Hello(_) => Kind::Hello,
            Message::Accept(_) => Kind::Accept,
            Message::Reject(_) => Kind::Reject,
            Message::Confirm(_) => Kind::Confirm,
        }
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MESSAGE_BYTES_MAX);
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        out.extend((self.kind() as u16).to_le_bytes());
        out.extend([0; 4]);
        match self {
            Message::Hello(hello) => {
                put_reply(&mut out, &hello.from);
                put_address(&mut out, &hello.to);
                out.extend(hello.pool_bytes.to_le_bytes());
                out.extend(hello.lane_bytes.to_le_bytes());
                out.extend((hello.key.len() as u32).to_le_bytes());
                out.extend(&hello.key);
            }
            Message::Accept(reply) => put_reply(&mut out, reply),
            Message::Reject(reason) => out.extend((*reason as u32).to_le_bytes()),
            Message::Confirm(Confirm) => out.extend([0; 4]),
        }
        let length = out.len() as u32;
        out[8..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// Reads a message that a peer sent.
    pub fn parse(bytes: &[u8]) -> Result<Message, WireError> {
        let mut input = Input { bytes, what: "a header" };
        let magic = input.u32()?;
        if magic != MAGIC {
            return Err(WireError::Magic { found: magic });
        }
        let version = input.u16()?;
        if version != VERSION {
            return Err(WireError::Version { found: version });
        }
        let kind = input.u16()?;
        let said = input.u32()?;
        if said as usize != bytes.len() {
            return Err(WireError::Length { said, have: bytes.len() });
        }
        let message = match kind {
            1 => Message::Hello(input.named("a HELLO").hello()?),
            2 => Message::Accept(input.named("an ACCEPT").reply()?),
            3 => Message::Reject(input.named("a REJECT").reason()?),
            4 => match input.named("a CONFIRM").u32()? {
                0 => Message::Confirm(Confirm),
                found => {
                    return Err(WireError::Reserved { found: found.into() });
                }
            },
            found => return Err(WireError::Kind { found }),
        };
        if !input.bytes.is_empty() {
            return Err(WireError::Length { said, have: bytes.len() - input.bytes.len() });
        }
        Ok(message)
    }
}

fn put_reply(out: &mut Vec<u8>, reply: &Reply) {
    let mut flags = 0;
    if reply.asymmetric {
        flags |= FLAG_ASYMMETRIC;
    }
    if reply.keep_socket {
        flags |= FLAG_KEEP_SOCKET;
    }
    if reply.reads_you {
        flags |= FLAG_READS_YOU;
    }
    out.extend(flags.to_le_bytes());
    out.extend(reply.incarnation.to_le_bytes());
    put_address(out, &reply.address);
    out.extend(reply.nonce_address.to_le_bytes());
    out.extend(reply.nonce);
}

/// Bytes of an address.
pub(crate) const ADDRESS_BYTES: usize = 24;

/// Family (4 or 6), port, scope, and 16 bytes of address, of which version 4 uses the first four.
pub(crate) fn address_bytes(address: &SocketAddr) -> [u8; ADDRESS_BYTES] {
    let (family, scope, mut octets) = match address {
        SocketAddr::V4(_) => (4u16, 0, [0u8; 16]),
        SocketAddr::V6(v6) => (6u16, v6.scope_id(), v6.ip().octets()),
    };
    if let IpAddr::V4(v4) = address.ip() {
        octets[..4].copy_from_slice(&v4.octets());
    }
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..2].copy_from_slice(&family.to_le_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_le_bytes());
    bytes[4..8].copy_from_slice(&scope.to_le_bytes());
    bytes[8..].copy_from_slice(&octets);
    bytes
}

/// The address that these bytes are.
pub(crate) fn address_of(bytes: &[u8; ADDRESS_BYTES]) -> Result<SocketAddr, WireError> {
    Input { bytes, what: "the address" }.address()
}

fn put_address(out: &mut Vec<u8>, address: &SocketAddr) {
    out.extend(address_bytes(address));
}

/// What is left of a message.
struct Input<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl Input<'_> {
    fn named(&mut self, what: &'static str) -> &mut Self {
        self.what = what;
        self
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let short = WireError::Short { what: self.what, have: self.bytes.len() };
        let (head, tail) = self.bytes.split_first_chunk::<N>().ok_or(short)?;
        self.bytes = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Result<SocketAddr, WireError> {
        let family = self.u16()?;
        let port = self.u16()?;
        let scope = self.u32()?;
        let octets = self.array::<16>()?;
        let (head, tail) = octets.split_first_chunk::<4>().expect("4 is less than 16");
        let address = match family {
            4 if scope != 0 || tail != [0; 12] => {
                return Err(WireError::Reserved { found: scope.into() });
            }
            4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*head)), port),
            6 => SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into(),
            found => return Err(WireError::Family { found }),
        };
        if port == 0 || address.ip().to_canonical().is_unspecified() {
            return Err(WireError::Unspecified);
        }
        Ok(address)
    }

    fn reply(&mut self) -> Result<Reply, WireError> {
        let flags = self.u32()?;
        if flags & !FLAGS_KNOWN != 0 {
            return Err(WireError::Flags { found: flags });
        }
        let incarnation = self.u64()?;
        if incarnation == 0 {
            return Err(WireError::Incarnation);
        }
        Ok(Reply {
            asymmetric: flags & FLAG_ASYMMETRIC != 0,
            keep_socket: flags & FLAG_KEEP_SOCKET != 0,
            reads_you: flags & FLAG_READS_YOU != 0,
            incarnation,
            address: self.address()?,
            nonce_address: self.u64()?,
            nonce: self.array()?,
        })
    }

    fn hello(&mut self) -> Result<Hello, WireError> {
        let from = self.reply()?;
        let to = self.address()?;
        let pool_bytes = self.u64()?;
        let lane_bytes = self.u32()?;
        if lane_bytes as usize != crate::region::LANE_BYTES {
            return Err(WireError::LaneBytes { found: lane_bytes });
        }
        let key_bytes = self.u32()? as usize;
        if key_bytes > KEY_BYTES_MAX {
            return Err(WireError::KeyLength { found: key_bytes });
        }
        let short = WireError::Short { what: self.what, have: self.bytes.len() };
        let (key, tail) = self.bytes.split_at_checked(key_bytes).ok_or(short)?;
        self.bytes = tail;
        Ok(Hello { from, to, pool_bytes, lane_bytes, key: key.to_vec() })
    }

    fn reason(&mut self) -> Result<RejectReason, WireError> {
        Ok(match self.u32()? {
            1 => RejectReason::Key,
            2 => RejectReason::Version,
            3 => RejectReason::Address,
            4 => RejectReason::Descriptors,
            5 => RejectReason::OutOfDescriptors,
            6 => RejectReason::Memory,
            7 => RejectReason::NotOurAddress,
            8 => RejectReason::TooManyLanes,
            9 => RejectReason::TooLargePools,
            found => return Err(WireError::Reason { found }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Reply {
        Reply {
            asymmetric: true,
            keep_socket: false,
            reads_you: true,
            incarnation: 0x1122_3344_5566_7788,
            address: "127.0.0.1:50000".parse().unwrap(),
            nonce_address: 0x7fff_0000_1000,
            nonce: *b"0123456789abcdef",
        }
    }

    fn every_message() -> Vec<Message> {
        vec![
            Message::Hello(Hello {
                from: reply(),
                to: "[fe80::1%3]:50001".parse().unwrap(),
                pool_bytes: 1 << 20,
                lane_bytes: crate::region::LANE_BYTES as u32,
                key: b"a job's key".to_vec(),
            }),
            Message::Accept(reply()),
            Message::Reject(RejectReason::Descriptors),
            Message::Confirm(Confirm),
        ]
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        for message in every_message() {
            assert_eq!(Message::parse(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn a_hello_has_the_length_that_was_promised() {
        let hello = every_message().remove(0).encode();
        assert_eq!(hello.len(), HELLO_BYTES + b"a job's key".len());
    }

    #[test]
    fn no_part_of_a_message_is_a_message() {
        for message in every_message() {
            let bytes = message.encode();
            for cut in 0..bytes.len() {
                Message::parse(&bytes[..cut]).unwrap_err();
            }
            Message::parse(&[&bytes[..], &[0]].concat()).unwrap_err();
        }
    }

    #[test]
    fn every_bad_field_is_named() {
        let mutated = |message: &Message, at: usize, with: &[u8]| {
            let mut bytes = message.encode();
            bytes[at..at + with.len()].copy_from_slice(with);
            Message::parse(&bytes).unwrap_err()
        };
        let all = every_message();
        let hello = &all[0];
        assert_eq!(
            mutated(hello, 0, b"HTTP"),
            WireError::Magic { found: u32::from_le_bytes(*b"HTTP") }
        );
        let found = VERSION + 1;
        assert_eq!(mutated(hello, 4, &found.to_le_bytes()), WireError::Version { found });
        assert_eq!(mutated(hello, 6, &[7, 0]), WireError::Kind { found: 7 });
        assert_eq!(mutated(hello, 8, &[1, 0, 0, 0]), WireError::Length { said: 1, have: 123 });
        assert_eq!(mutated(hello, 12, &[0, 1, 0, 0]), WireError::Flags { found: 256 });
        assert_eq!(mutated(hello, 16, &[0; 8]), WireError::Incarnation);
        assert_eq!(mutated(hello, 24, &[5, 0]), WireError::Family { found: 5 });
        assert_eq!(mutated(hello, 26, &[0, 0]), WireError::Unspecified);
        assert_eq!(mutated(hello, 32, &[0; 4]), WireError::Unspecified);
        assert_eq!(mutated(hello, 28, &[1]), WireError::Reserved { found: 1 });
        assert_eq!(mutated(hello, 104, &[1, 0, 0, 0]), WireError::LaneBytes { found: 1 });
        assert_eq!(mutated(hello, 108, &[1, 2, 0, 0]), WireError::KeyLength { found: 513 });
        assert!(matches!(mutated(hello, 108, &[200, 0, 0, 0]), WireError::Short { .. }));
        assert_eq!(mutated(hello, 108, &[1, 0, 0, 0]), WireError::Length { said: 123, have: 113 });
        assert_eq!(mutated(&all[2], 12, &[99, 0, 0, 0]), WireError::Reason { found: 99 });
        assert_eq!(mutated(&all[3], 12, &[1, 0, 0, 0]), WireError::Reserved { found: 1 });
    }

    #[test]
    fn no_byte_makes_the_parser_panic_or_lie() {
        for message in every_message() {
            let bytes = message.encode();
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[at] = value;
                    if let Ok(read) = Message::parse(&bytes) {
                        assert_eq!(read.encode(), bytes);
                    }
                }
            }
        }
    }
}

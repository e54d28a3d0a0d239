//! What the two sides of a connection say to each other through the connection manager, byte by
//! byte: the private data of its messages.
//!
//! A request has room for 56 bytes. So it says what the connection manager does not say itself, and
//! its proof is half as long. All integers are little-endian; what follows is padding.

use std::net::{IpAddr, SocketAddr};

use super::{
    proof::{self, Speaker},
    wire::{Reader, RejectReason, VERSION, WireError, Writer, address_bytes},
};
use crate::{
    manager::{ANSWER_BYTES_MAX, REFUSAL_BYTES_MAX, REQUEST_BYTES_MAX},
    verbs::{RemoteMemory, is_mtu},
};

const MAGIC: [u8; 4] = *b"KSTM";
/// Bytes of the proof of a request, and of an answer.
const REQUEST_PROOF_BYTES: usize = 16;
const ANSWER_PROOF_BYTES: usize = 32;
const REQUEST_SAYS: usize = 40;
pub const REQUEST_BYTES: usize = REQUEST_SAYS + REQUEST_PROOF_BYTES;
const ANSWER_SAYS: usize = 20;
pub const ANSWER_BYTES: usize = ANSWER_SAYS + ANSWER_PROOF_BYTES;
pub const REFUSAL_BYTES: usize = 8;
const _: () = assert!(
    REQUEST_BYTES <= REQUEST_BYTES_MAX
        && ANSWER_BYTES <= ANSWER_BYTES_MAX
        && REFUSAL_BYTES <= REFUSAL_BYTES_MAX
);

/// What the side that connects says of itself. The connection manager says its IP address and its
/// queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub incarnation: u64,
    /// Where it listens.
    pub port: u16,
    pub buffer_bytes: u16,
    /// Where its credit is to be written.
    pub credit: RemoteMemory,
    pub nonce: u64,
}

/// What the other side answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub incarnation: u64,
    pub port: u16,
    pub buffer_bytes: u16,
    /// The longest packets that it takes, where those of the way that the request names are longer:
    /// that is the caller's own on Ethernet. 0 elsewhere.
    pub mtu_bytes: u16,
}

/// Who asks whom, as each side sees it by itself: what the proofs vouch for beside the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parties {
    pub caller: SocketAddr,
    pub wanted: SocketAddr,
    /// The caller's.
    pub queue_pair: u32,
}

impl Parties {
    /// Scopes are dropped: each host numbers its own.
    pub fn new(caller: IpAddr, wanted: SocketAddr, queue_pair: u32) -> Parties {
        let caller = SocketAddr::new(caller, 0);
        Parties { caller, wanted: SocketAddr::new(wanted.ip(), wanted.port()), queue_pair }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = address_bytes(self.caller).to_vec();
        bytes.extend(address_bytes(self.wanted));
        bytes.extend(self.queue_pair.to_le_bytes());
        bytes
    }
}

fn head() -> Writer {
    let mut out = Writer(Vec::with_capacity(REQUEST_BYTES));
    out.bytes(&MAGIC);
    out.u16(VERSION);
    out
}

/// What follows the head, of which `bytes` have to be there.
fn body(data: &[u8], bytes: usize) -> Result<Reader<'_>, WireError> {
    if data.get(..MAGIC.len()) != Some(&MAGIC[..]) {
        return Err(WireError::Magic);
    }
    let short = WireError::Length { kind: 0, bytes: data.len() as u32 };
    let mut reader = Reader(data.get(MAGIC.len()..REFUSAL_BYTES.min(bytes)).ok_or(short)?);
    let theirs = reader.u16();
    if theirs != VERSION {
        return Err(WireError::OtherVersion { theirs });
    }
    Ok(Reader(data.get(MAGIC.len() + 2..bytes).ok_or(short)?))
}

impl Ask {
    /// The private data of a request.
    pub fn encode(&self, key: &[u8], parties: &Parties) -> Vec<u8> {
        let mut out = head();
        out.u16(self.port);
        out.u64(self.incarnation);
        out.u16(self.buffer_bytes);
        out.u16(0);
        out.u64(self.credit.address);
        out.u32(self.credit.key);
        out.u64(self.nonce);
        let proof = proof::of_parts(key, Speaker::Asks, &[&parties.bytes(), &out.0]);
        out.bytes(&proof[..REQUEST_PROOF_BYTES]);
        out.0
    }

    /// What the private data of a request say, if they are such.
    pub fn decode(data: &[u8]) -> Result<Ask, WireError> {
        let mut body = body(data, REQUEST_BYTES)?;
        let (port, incarnation, buffer_bytes) = (body.port()?, body.incarnation()?, body.u16());
        body.zero("what is reserved")?;
        let credit = RemoteMemory { address: body.u64(), key: body.u32() };
        Ok(Ask { incarnation, port, buffer_bytes, credit, nonce: body.u64() })
    }

    /// Whether they prove the key, for these parties.
    pub fn is_proved(data: &[u8], key: &[u8], parties: &Parties) -> bool {
        let Some((says, proof)) = data.get(..REQUEST_BYTES).map(|data| data.split_at(REQUEST_SAYS))
        else {
            return false;
        };
        proof::is_of_parts(key, Speaker::Asks, &[&parties.bytes(), says], proof)
    }
}

impl Reply {
    /// The private data of an answer to `asked`, by a queue pair of ours.
    pub fn encode(&self, key: &[u8], parties: &Parties, asked: &[u8], queue_pair: u32) -> Vec<u8> {
        let mut out = head();
        out.u16(self.port);
        out.u64(self.incarnation);
        out.u16(self.buffer_bytes);
        out.u16(self.mtu_bytes);
        let parts = [&parties.bytes()[..], request_of(asked), &queue_pair.to_le_bytes(), &out.0];
        let proof = proof::of_parts(key, Speaker::Answers, &parts);
        out.bytes(&proof);
        out.0
    }

    /// What the private data of an answer say, if they are such.
    pub fn decode(data: &[u8]) -> Result<Reply, WireError> {
        let mut body = body(data, ANSWER_BYTES)?;
        let (port, incarnation, buffer_bytes) = (body.port()?, body.incarnation()?, body.u16());
        let mtu_bytes = body.u16();
        if mtu_bytes != 0 && !is_mtu(mtu_bytes.into()) {
            return Err(WireError::Field { what: "an MTU", value: mtu_bytes.into() });
        }
        Ok(Reply { incarnation, port, buffer_bytes, mtu_bytes })
    }

    /// The longest packets that go there, if they are bounded.
    pub fn mtu_bytes_max(&self) -> u32 {
        if self.mtu_bytes == 0 { u32::MAX } else { self.mtu_bytes.into() }
    }

    /// Whether they prove the key, in answer to what was `asked`, by that queue pair of theirs.
    pub fn is_proved(
        data: &[u8],
        key: &[u8],
        parties: &Parties,
        asked: &[u8],
        queue_pair: u32,
    ) -> bool {
        let Some((says, proof)) = data.get(..ANSWER_BYTES).map(|data| data.split_at(ANSWER_SAYS))
        else {
            return false;
        };
        let parts = [&parties.bytes()[..], request_of(asked), &queue_pair.to_le_bytes(), says];
        proof::is_of_parts(key, Speaker::Answers, &parts, proof)
    }
}

/// Without the padding.
fn request_of(asked: &[u8]) -> &[u8] {
    &asked[..asked.len().min(REQUEST_BYTES)]
}

/// The private data of a refusal.
pub fn encode_refusal(reason: RejectReason) -> Vec<u8> {
    let mut out = head();
    out.u16(reason as u16);
    out.0
}

/// The reason that the private data of a refusal say, if they are such.
pub fn decode_refusal(data: &[u8]) -> Result<RejectReason, WireError> {
    let value = u32::from(body(data, REFUSAL_BYTES)?.u16());
    let what = "the reason of a refusal";
    RejectReason::of(value).ok_or(WireError::Field { what, value: value.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"job 17";

    fn parties() -> Parties {
        let caller = "10.9.0.2:0".parse().unwrap();
        Parties { caller, wanted: "10.9.0.1:7000".parse().unwrap(), queue_pair: 0x1234 }
    }

    fn ask() -> Ask {
        let credit = RemoteMemory { address: 0x0102_0304_0506_0708, key: 9 };
        Ask { incarnation: 5, port: 7001, buffer_bytes: 8192, credit, nonce: 77 }
    }

    fn reply() -> Reply {
        Reply { incarnation: 6, port: 7000, buffer_bytes: 8192, mtu_bytes: 1024 }
    }

    #[test]
    fn what_is_said_is_heard() {
        let mut data = ask().encode(KEY, &parties());
        assert_eq!((data.len(), Ask::decode(&data)), (REQUEST_BYTES_MAX, Ok(ask())));
        assert!(Ask::is_proved(&data, KEY, &parties()));
        let mut answer = reply().encode(KEY, &parties(), &data, 7);
        data.resize(90, 0);
        answer.resize(ANSWER_BYTES_MAX, 0);
        assert_eq!(Reply::decode(&answer), Ok(reply()));
        assert!(Reply::is_proved(&answer, KEY, &parties(), &data, 7));
        let mut refusal = encode_refusal(RejectReason::Limits);
        refusal.resize(REFUSAL_BYTES_MAX, 0);
        assert_eq!(decode_refusal(&refusal), Ok(RejectReason::Limits));
    }

    /// A proof is good for its key, its parties and its bytes alone.
    #[test]
    fn a_proof_is_bound_to_everything() {
        let data = ask().encode(KEY, &parties());
        assert!(!Ask::is_proved(&data, b"job 18", &parties()));
        let others = [
            Parties { caller: "10.9.0.3:0".parse().unwrap(), ..parties() },
            Parties { wanted: "10.9.0.1:7001".parse().unwrap(), ..parties() },
            Parties { queue_pair: 0x1235, ..parties() },
        ];
        for other in others {
            assert!(!Ask::is_proved(&data, KEY, &other), "{other:?}");
        }
        for at in 0..REQUEST_BYTES {
            let mut bad = data.clone();
            bad[at] ^= 1;
            assert!(!Ask::is_proved(&bad, KEY, &parties()), "byte {at}");
        }
        let answer = reply().encode(KEY, &parties(), &data, 7);
        assert!(!Reply::is_proved(&answer, KEY, &parties(), &data, 8));
        assert!(!Reply::is_proved(&answer, KEY, &parties(), &answer, 7));
        assert!(!Reply::is_proved(&answer, b"", &parties(), &data, 7));
        // Neither is the other's.
        assert!(!Ask::is_proved(&answer, KEY, &parties()));
    }

    #[test]
    fn garbage_is_none_of_it_and_another_version_is_named() {
        let good = ask().encode(KEY, &parties());
        assert_eq!(Ask::decode(b""), Err(WireError::Magic));
        assert_eq!(Ask::decode(&[0x5a; 56]), Err(WireError::Magic));
        assert!(matches!(Ask::decode(&good[..55]), Err(WireError::Length { .. })));
        assert!(matches!(Ask::decode(&good[..5]), Err(WireError::Length { .. })));
        let mut other = good.clone();
        other[4] = other[4].wrapping_add(1);
        let theirs = VERSION.wrapping_add(1);
        assert_eq!(Ask::decode(&other), Err(WireError::OtherVersion { theirs }));
        for (at, field) in [(6..8, "a port"), (8..16, "an incarnation")] {
            let mut bad = good.clone();
            bad[at].fill(0);
            assert_eq!(Ask::decode(&bad), Err(WireError::Field { what: field, value: 0 }));
        }
        let mut answer = Reply { mtu_bytes: 0, ..reply() }.encode(KEY, &parties(), &good, 7);
        assert_eq!(Reply::decode(&answer).unwrap().mtu_bytes_max(), u32::MAX);
        answer[18] = 1;
        assert_eq!(Reply::decode(&answer), Err(WireError::Field { what: "an MTU", value: 1 }));
        assert!(decode_refusal(&[0; 148]).is_err() && Reply::decode(&[0; 196]).is_err());
        let mut unknown = encode_refusal(RejectReason::Key);
        unknown[6] = 99;
        assert!(matches!(decode_refusal(&unknown), Err(WireError::Field { value: 99, .. })));
    }
}

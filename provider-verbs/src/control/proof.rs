//! Proof that both sides have the same key, without the key on the wire.
//!
//! HMAC-SHA-256 over a label, both sides' nonces and the message itself, whose last bytes are
//! the proof. Fresh nonces of both sides keep an old proof from being used again, the label keeps
//! one side's from being sent back to it.

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::wire::{NONCE_BYTES, Nonce};
use crate::verbs::group_gid;

/// Whose message it is.
#[derive(Clone, Copy, Debug)]
pub enum Speaker {
    Connects,
    Accepts,
    /// Through the connection manager.
    Asks,
    Answers,
}

impl Speaker {
    fn label(self) -> &'static [u8] {
        match self {
            Speaker::Connects => b"kestrel-verbs connects",
            Speaker::Accepts => b"kestrel-verbs accepts",
            Speaker::Asks => b"kestrel-verbs asks",
            Speaker::Answers => b"kestrel-verbs answers",
        }
    }
}

/// The key of queue pairs of datagrams whose endpoints have this key: others' packets are dropped
/// by the device. The highest bit, which asks for a privilege, is not set.
pub fn queue_key(key: &[u8]) -> u32 {
    let digest = mac_over(key, b"kestrel-verbs datagrams", &[]).finalize().into_bytes();
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3] & 0x7f])
}

/// What the pass of datagrams has from the key that was proved, of endpoints with several: who
/// has another key is not heard, and whoever has the key is taken for no one else.
pub fn key_pass(key: &[u8]) -> u64 {
    first_word(key, &[b"kestrel-verbs pass"])
}

/// What datagrams to a group carry: who has another key is not heard.
pub fn group_pass(key: &[u8], group: IpAddr) -> u64 {
    first_word(key, &[b"kestrel-verbs group", &group_gid(group)])
}

fn first_word(key: &[u8], parts: &[&[u8]]) -> u64 {
    let digest = mac_over(key, b"", parts).finalize().into_bytes();
    u64::from_le_bytes(*digest.first_chunk().expect("a digest is longer"))
}

fn mac_of(key: &[u8], speaker: Speaker, nonces: [&Nonce; 2], message: &[u8]) -> Hmac<Sha256> {
    mac_over(key, speaker.label(), &[nonces[0], nonces[1], &message[..message.len() - NONCE_BYTES]])
}

/// Writes the proof over the last bytes of `message`. The nonces are those of the side that
/// accepts and of the side that connects.
pub fn sign(key: &[u8], speaker: Speaker, nonces: [&Nonce; 2], message: &mut [u8]) {
    let proof = mac_of(key, speaker, nonces, message).finalize().into_bytes();
    let at = message.len() - NONCE_BYTES;
    message[at..].copy_from_slice(&proof);
}

/// Whether the last bytes of `message` prove the key, compared in constant time.
pub fn is_signed(key: &[u8], speaker: Speaker, nonces: [&Nonce; 2], message: &[u8]) -> bool {
    let proof = &message[message.len() - NONCE_BYTES..];
    mac_of(key, speaker, nonces, message).verify_slice(proof).is_ok()
}

fn mac_over(key: &[u8], label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(label);
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// The proof of what stands in these parts, of which the first bytes may do.
pub fn of_parts(key: &[u8], speaker: Speaker, parts: &[&[u8]]) -> [u8; NONCE_BYTES] {
    mac_over(key, speaker.label(), parts).finalize().into_bytes().into()
}

/// Whether `proof` is that, or as much of its beginning, compared in constant time.
pub fn is_of_parts(key: &[u8], speaker: Speaker, parts: &[&[u8]], proof: &[u8]) -> bool {
    mac_over(key, speaker.label(), parts).verify_truncated_left(proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_queue_key() {
        assert_eq!(queue_key(b"one"), queue_key(b"one"));
        assert_ne!(queue_key(b"one"), queue_key(b"other"));
        assert!((0..=255_u8).all(|key| queue_key(&[key]) < 1 << 31));
    }

    #[test]
    fn a_proof_holds_for_its_key_speaker_nonces_and_bytes_alone() {
        let (ours, theirs) = ([1; NONCE_BYTES], [2; NONCE_BYTES]);
        let mut message = vec![7; 100];
        sign(b"key", Speaker::Connects, [&ours, &theirs], &mut message);
        assert!(is_signed(b"key", Speaker::Connects, [&ours, &theirs], &message));
        assert!(!is_signed(b"", Speaker::Connects, [&ours, &theirs], &message));
        assert!(!is_signed(b"key", Speaker::Accepts, [&ours, &theirs], &message));
        assert!(!is_signed(b"key", Speaker::Connects, [&theirs, &ours], &message));
        message[0] ^= 1;
        assert!(!is_signed(b"key", Speaker::Connects, [&ours, &theirs], &message));
    }
}

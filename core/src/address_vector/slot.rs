//! One entry of an address vector: a sequence lock (H.-J. Boehm, "Can seqlocks get along with
//! programming language memory models?", MSPC 2012) whose reader needs no retry.
//!
//! Word 0 is the state, words 1 to 3 are the address. Invariants:
//!
//! 1. Only the holder of the writers' lock stores into an entry.
//! 2. The state alternates between an address and none; each state with an address is used
//!    once, since the version in it only grows.
//! 3. The address's words change only while the state says that there is none.
//!
//! So if a reader sees one state with an address before and after it reads the words, the
//! words belong to it (3). If it sees two different ones, the entry was vacant at some moment
//! in between (2), and "nobody" is a true answer for that moment: the reader returns it
//! instead of trying again.
//!
//! Whatever the words hold, reading them gives an address or none: in memory that other
//! processes share they may hold anything.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::address::Address;
use crate::primitive::{AtomicU64, Ordering, fence};

/// 32 bytes, two to a cache line.
pub type Slot = [AtomicU64; SLOT_WORDS];

/// How many words an entry has.
pub const SLOT_WORDS: usize = 4;

const FAMILY_MASK: u64 = 0b11;
const VACANT: u64 = 0;
const FAMILY_V4: u64 = 1;
const FAMILY_V6: u64 = 2;
/// What the entry holds is told by the run that its index lies in, if it lies in one.
const DEFERRED: u64 = 3;
const PORT_SHIFT: u32 = 2;
const VERSION_SHIFT: u32 = 18;

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Vacant,
    Address(Address),
    /// See the run.
    Deferred,
}

/// An entry with nothing in it.
pub fn vacant() -> Slot {
    std::array::from_fn(|_| AtomicU64::new(VACANT))
}

/// An entry that runs tell of.
pub fn deferred() -> Slot {
    std::array::from_fn(|at| {
        AtomicU64::new(if at == 0 { 1 << VERSION_SHIFT | DEFERRED } else { 0 })
    })
}

/// What is in the entry. Wait-free: five loads.
pub fn read(slot: &Slot) -> Content {
    let state = slot[0].load(Ordering::Acquire); // V1: pairs with V2 in publish()
    match state & FAMILY_MASK {
        VACANT => return Content::Vacant,
        DEFERRED => return Content::Deferred,
        _ => {}
    }
    let words = load_words(slot);
    fence(Ordering::Acquire); // V3: pairs with V4 in publish()
    if slot[0].load(Ordering::Relaxed) != state {
        return Content::Vacant; // It was, meanwhile: see the head of this file.
    }
    Content::Address(unpack(state, words))
}

/// What is in the entry, for the holder of the writers' lock, whom no write can disturb.
pub fn read_exclusive(slot: &Slot) -> Content {
    let state = slot[0].load(Ordering::Relaxed);
    match state & FAMILY_MASK {
        VACANT => Content::Vacant,
        DEFERRED => Content::Deferred,
        _ => Content::Address(unpack(state, load_words(slot))),
    }
}

/// The version of what is in the entry, never 0 and never the same for two publications;
/// none if it is vacant. Wait-free.
pub fn version(slot: &Slot) -> Option<u64> {
    let state = slot[0].load(Ordering::Acquire); // V1
    (state & FAMILY_MASK != VACANT).then_some(state >> VERSION_SHIFT)
}

/// Whether anything has ever been in the entry.
pub fn was_used(slot: &Slot) -> bool {
    slot[0].load(Ordering::Relaxed) != VACANT
}

/// Fills the entry, which is vacant. The caller holds the writers' lock.
pub fn publish(slot: &Slot, address: Address) {
    let old = slot[0].load(Ordering::Relaxed);
    debug_assert_eq!(old & FAMILY_MASK, VACANT);
    let (family_and_port, words) = pack(address);
    fence(Ordering::Release); // V4: pairs with V3 in read(): new words are not seen before the vacancy
    for (word, value) in slot[1..].iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    let version = ((old >> VERSION_SHIFT) + 1) << VERSION_SHIFT;
    slot[0].store(version | family_and_port, Ordering::Release); // V2: pairs with V1
}

/// Empties the entry. The caller holds the writers' lock.
pub fn vacate(slot: &Slot) {
    let version = slot[0].load(Ordering::Relaxed) >> VERSION_SHIFT;
    slot[0].store(version << VERSION_SHIFT, Ordering::Relaxed);
}

fn load_words(slot: &Slot) -> [u64; 3] {
    std::array::from_fn(|at| slot[at + 1].load(Ordering::Relaxed))
}

/// An address as the low part of a state, and words.
fn pack(address: Address) -> (u64, [u64; 3]) {
    let (family, words) = match address.socket_addr() {
        SocketAddr::V4(v4) => (FAMILY_V4, [v4.ip().to_bits().into(), 0, 0]),
        SocketAddr::V6(v6) => {
            let bits = v6.ip().to_bits();
            let rest = u64::from(v6.flowinfo()) << 32 | u64::from(v6.scope_id());
            (FAMILY_V6, [(bits >> 64) as u64, bits as u64, rest])
        }
    };
    (u64::from(address.port()) << PORT_SHIFT | family, words)
}

/// The inverse of [`pack`], for a state with an address.
fn unpack(state: u64, words: [u64; 3]) -> Address {
    let port = (state >> PORT_SHIFT) as u16;
    let socket_addr = if state & FAMILY_MASK == FAMILY_V4 {
        SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from_bits(words[0] as u32), port))
    } else {
        let ip = Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]));
        SocketAddr::V6(SocketAddrV6::new(ip, port, (words[2] >> 32) as u32, words[2] as u32))
    };
    socket_addr.into()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_every_field() {
        for text in ["0.0.0.0:0", "255.254.253.252:65535", "[::]:0", "[1:2:3:4:5:6:7:8]:9"] {
            let address = Address::from(text.parse::<SocketAddr>().unwrap());
            let (state, words) = pack(address);
            assert_eq!(unpack(7 << VERSION_SHIFT | state, words), address);
        }
        let ip = "fe80::ffff".parse().unwrap();
        let address =
            Address::from(SocketAddr::V6(SocketAddrV6::new(ip, 1, u32::MAX, 0xdead_beef)));
        let (state, words) = pack(address);
        assert_eq!(unpack(state, words), address);
    }

    #[test]
    fn a_version_is_never_used_twice() {
        let slot = vacant();
        let address = Address::from("1.2.3.4:5".parse::<SocketAddr>().unwrap());
        assert_eq!(version(&slot), None);
        publish(&slot, address);
        let first = version(&slot).unwrap();
        assert_eq!(read_exclusive(&slot), Content::Address(address));
        vacate(&slot);
        assert_eq!((version(&slot), read(&slot)), (None, Content::Vacant));
        publish(&slot, address);
        assert!(version(&slot).unwrap() > first);
        let late = deferred();
        assert_eq!((read(&late), version(&late)), (Content::Deferred, Some(1)));
        assert_eq!(std::mem::size_of::<Slot>(), 32);
    }
}

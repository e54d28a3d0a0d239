//! Who hears a multicast group on this host: a list in memory that all who have joined it map.
//! Reference: fi_cm(3), `fi_join`.
//!
//! The memory has a name ([`crate::named_memory`]) made of the group's address and of a
//! fingerprint of the key, so that those with another key are in another group. It lives as long
//! as one process has joined.
//!
//! Words, of 64 bits: 0 says what this is; 1 counts changes, and whoever sends looks whether it is
//! as it was; from 8 on follow the slots, four words each: an incarnation, or 0 where nobody is,
//! and an address as in a handshake. Its invariants are
//! those of [`members`], by which nobody waits for a lock to send or to leave: only a join holds the
//! memory's.
//!
//! What a process that dies leaves behind is a slot that is filled or vacant, and at worst a change
//! that was not counted, which only its own membership needed.
//!
//! A process of our own user may write anything, at any time. Whatever a slot holds is a member or
//! none, and slots are as many as there are, however many that process says.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hmac::{Hmac, KeyInit, Mac};
use kestrel_core::address::{Address, canonical};
use kestrel_core::address_vector::SharedMemory;
use kestrel_core::error::{Errno, HasErrno};
use kestrel_core::group::Member;
use kestrel_core::ring::members;
use sha2::Sha256;
use thiserror::Error;

use crate::control::wire;
use crate::named_memory::{Name, NamedMemory, NamedMemoryError, Opening};

/// Who can hear one group at a time.
pub(crate) const MEMBERS_MAX: usize = 1024;

/// `KSTLMC`, and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"KSTLMC\0\x01");
const WHAT: usize = 0;
const CHANGES: usize = 1;
const HEAD_WORDS: usize = 8;
const ADDRESS_WORDS: usize = wire::ADDRESS_BYTES / size_of::<u64>();
const SLOT_WORDS: usize = 1 + ADDRESS_WORDS;
const TABLE_BYTES: usize = (HEAD_WORDS + MEMBERS_MAX * SLOT_WORDS) * size_of::<u64>();

type Slot = [AtomicU64; SLOT_WORDS];

/// Why a group cannot be joined.
#[derive(Debug, Error)]
pub(crate) enum GroupError {
    #[error(transparent)]
    Memory(#[from] NamedMemoryError),
    #[error("what is shared for {name} is no list of members")]
    Foreign { name: String },
    #[error("the list of members is kept by another process: {reason}")]
    Locked { reason: String },
    #[error("{MEMBERS_MAX} endpoints of this host hear the group already")]
    Full,
}

impl HasErrno for GroupError {
    fn errno(&self) -> Errno {
        match self {
            GroupError::Memory(error) => error.errno(),
            GroupError::Foreign { .. } => Errno::BUSY,
            GroupError::Locked { .. } => Errno::AGAIN,
            GroupError::Full => Errno::NOSPC,
        }
    }
}

/// The lists that the endpoints of one provider have open: each is mapped once, and given to other
/// processes by one thread, whoever has joined.
#[derive(Default)]
pub(crate) struct GroupTables(Mutex<HashMap<String, Weak<GroupTable>>>);

impl GroupTables {
    /// The list of a group, made if nobody has it.
    pub(crate) fn open(&self, key: &[u8], group: IpAddr) -> Result<Arc<GroupTable>, GroupError> {
        let name = name_of(key, group);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, table| table.strong_count() > 0);
        if let Some(table) = open.get(&name).and_then(Weak::upgrade) {
            return Ok(table);
        }
        let table = Arc::new(GroupTable::open(&name)?);
        open.insert(name, Arc::downgrade(&table));
        Ok(table)
    }
}

/// The key is in it, and cannot be read out of it.
fn name_of(key: &[u8], group: IpAddr) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(b"kestrel-shm group");
    let digest = mac.finalize().into_bytes();
    let print = u128::from_be_bytes(*digest.first_chunk().expect("a digest is longer"));
    format!("{group}/{print:032x}")
}

/// The list of one group.
pub(crate) struct GroupTable {
    memory: NamedMemory,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Vacant,
    Member(Member),
    /// An incarnation, with what is no address.
    Nonsense(u64),
}

impl GroupTable {
    fn open(name: &str) -> Result<GroupTable, GroupError> {
        let memory = NamedMemory::open_as(Name::Group(name), TABLE_BYTES, Opening::Write)?;
        let words = memory.words();
        // Zeroes are an empty list, which its maker is about to name.
        let what = words[WHAT].load(Ordering::Relaxed);
        if words.len() < TABLE_BYTES / size_of::<u64>() || (what != MAGIC && what != 0) {
            return Err(GroupError::Foreign { name: name.to_owned() });
        }
        words[WHAT].store(MAGIC, Ordering::Relaxed);
        Ok(GroupTable { memory })
    }

    fn slots(&self) -> &[Slot] {
        let (slots, _) = self.memory.words()[HEAD_WORDS..].as_chunks();
        &slots[..MEMBERS_MAX]
    }

    /// A number that is another one after each change. Cost: one load.
    pub(crate) fn changes(&self) -> u64 {
        members::changes(&self.memory.words()[CHANGES])
    }

    fn count_change(&self) {
        members::count_change(&self.memory.words()[CHANGES]);
    }

    /// Who hears the group, but for `own`; each address once.
    pub(crate) fn members(&self, own: Address) -> Vec<Member> {
        let mut seen = HashSet::from([own]);
        let members = self.slots().iter().filter_map(|slot| match read(slot) {
            Content::Member(member) => Some(member),
            _ => None,
        });
        members.filter(|member| seen.insert(member.address)).collect()
    }

    /// Adds a member, in the place of any other at its address: nobody else can be there.
    pub(crate) fn add(
        &self,
        member: Member,
        is_deserted: impl Fn(Address) -> bool,
    ) -> Result<(), GroupError> {
        let locked = self.memory.lock();
        let _held = locked.map_err(|reason| GroupError::Locked { reason })?;
        self.vacate(|other| other.address == member.address);
        if self.vacant().is_none() {
            self.vacate(|other| is_deserted(other.address));
        }
        write(self.vacant().ok_or(GroupError::Full)?, member);
        self.count_change();
        Ok(())
    }

    /// Takes a member out, if it is there.
    pub(crate) fn remove(&self, member: Member) {
        if self.vacate(|other| other == member) {
            self.count_change();
        }
    }

    fn vacant(&self) -> Option<&Slot> {
        self.slots().iter().find(|slot| read(slot) == Content::Vacant)
    }

    /// Vacates the slots of those members, and of what is none. Whether there were any.
    fn vacate(&self, goes: impl Fn(Member) -> bool) -> bool {
        let mut any = false;
        for slot in self.slots() {
            let incarnation = match read(slot) {
                Content::Member(member) if goes(member) => member.incarnation,
                Content::Nonsense(incarnation) => incarnation,
                _ => continue,
            };
            any |= members::vacate(slot, incarnation);
        }
        any
    }
}

fn read(slot: &Slot) -> Content {
    let Some((incarnation, words)) = members::read::<ADDRESS_WORDS>(slot) else {
        return Content::Vacant;
    };
    let mut bytes = [0; wire::ADDRESS_BYTES];
    for (part, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    match wire::address_of(&bytes) {
        Ok(address) => {
            let address = Address::from(canonical(address));
            Content::Member(Member { address, incarnation })
        }
        Err(_) => Content::Nonsense(incarnation),
    }
}

/// Fills a vacant slot. The caller holds the memory's lock.
fn write(slot: &Slot, member: Member) {
    let bytes = wire::address_bytes(&member.address.socket_addr());
    let mut words = [0; ADDRESS_WORDS];
    for (word, part) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
        *word = u64::from_le_bytes(part.try_into().expect("eight bytes"));
    }
    members::fill(slot, member.incarnation, &words);
}

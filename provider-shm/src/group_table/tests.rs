//! What stands in a list of members, and what a process of our own user may write into it.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU32;

use super::*;

/// A list that no other test has.
fn new_table() -> GroupTable {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    GroupTable::open(&format!("test/{}-{number}", std::process::id())).unwrap()
}

fn nth(n: u32) -> Address {
    Address::new(Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 7)
}

fn member(n: u32, incarnation: u64) -> Member {
    Member { address: nth(n), incarnation }
}

fn add(table: &GroupTable, member: Member) {
    table.add(member, |_| false).unwrap();
}

#[test]
fn members_come_and_go_and_each_change_is_counted() {
    let table = new_table();
    let mut seen = HashSet::from([table.changes()]);
    let mut is_new = |what: &str| assert!(seen.insert(table.changes()), "{what}");
    add(&table, member(1, 10));
    is_new("one joins");
    add(&table, member(2, 20));
    is_new("another joins");
    assert_eq!(table.members(nth(9)), [member(1, 10), member(2, 20)]);
    assert_eq!(table.members(nth(1)), [member(2, 20)], "who asks is left out");
    table.remove(member(1, 10));
    is_new("one leaves");
    assert_eq!(table.members(nth(9)), [member(2, 20)]);
    let changes = table.changes();
    table.remove(member(1, 10));
    table.remove(member(2, 21));
    assert_eq!(table.changes(), changes, "neither is there");
    let six = Address::from("[fe80::1%7]:9".parse::<std::net::SocketAddr>().unwrap());
    let six = Member { address: six, incarnation: 30 };
    add(&table, six);
    assert_eq!(table.members(nth(9)), [six, member(2, 20)]);
}

/// Who joins at an address has it: whoever is listed there was killed.
#[test]
fn one_at_an_address_is_listed_the_last() {
    let table = new_table();
    for incarnation in 1..=MEMBERS_MAX as u64 + 1 {
        add(&table, member(1, incarnation));
        assert_eq!(table.members(nth(9)), [member(1, incarnation)]);
    }
}

#[test]
fn a_full_list_has_room_when_somebody_is_gone() {
    let table = new_table();
    (0..MEMBERS_MAX as u32).for_each(|n| add(&table, member(n, 1)));
    assert_eq!(table.members(nth(9999)).len(), MEMBERS_MAX);
    let full = table.add(member(5000, 1), |_| false).unwrap_err();
    assert_eq!(full.errno(), Errno::NOSPC);
    table.add(member(5000, 1), |address| address == nth(17)).unwrap();
    let members = table.members(nth(9999));
    assert!(members.contains(&member(5000, 1)) && !members.contains(&member(17, 1)));
    table.remove(member(3, 1));
    add(&table, member(6000, 1));
}

#[test]
fn those_with_another_key_have_another_list() {
    let (tables, group) = (GroupTables::default(), IpAddr::from([239, 1, 2, 3]));
    let key = format!("key {}", std::process::id());
    let one = tables.open(key.as_bytes(), group).unwrap();
    let same = tables.open(key.as_bytes(), group).unwrap();
    assert!(Arc::ptr_eq(&one, &same), "a process has it once");
    // Another provider, as another process has it.
    let elsewhere = GroupTables::default().open(key.as_bytes(), group).unwrap();
    let other_key = tables.open(b"another key", group).unwrap();
    let other_group = tables.open(key.as_bytes(), [239, 1, 2, 4].into()).unwrap();
    add(&one, member(1, 1));
    assert_eq!(elsewhere.members(nth(9)), [member(1, 1)]);
    assert!(other_key.members(nth(9)).is_empty() && other_group.members(nth(9)).is_empty());
    let name = name_of(key.as_bytes(), group);
    assert!(name.starts_with("239.1.2.3/") && !name.contains(&key), "{name}");
}

/// It lives as long as one has it.
#[test]
fn a_list_that_nobody_has_is_gone() {
    let (tables, group) = (GroupTables::default(), IpAddr::from([239, 1, 2, 5]));
    let key = format!("gone {}", std::process::id());
    let table = tables.open(key.as_bytes(), group).unwrap();
    add(&table, member(1, 1));
    drop(table);
    assert!(tables.open(key.as_bytes(), group).unwrap().members(nth(9)).is_empty());
}

/// A cheap generator: what it makes is anything.
fn garbage(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Whatever the words are, each address is told once, those that are told are addresses, and who
/// joins finds room among what is none.
#[test]
fn anything_may_stand_in_it() {
    let table = new_table();
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..20 {
        for (at, word) in table.memory.words().iter().enumerate() {
            let any = garbage(&mut state);
            let is_family = at >= HEAD_WORDS && (at - HEAD_WORDS) % SLOT_WORDS == 1;
            // Half of the slots with what may be an address.
            let likely = is_family && any & 1 == 0;
            word.store(if likely { (any & !0xffff) | 6 } else { any }, Ordering::Relaxed);
        }
        let members = table.members(nth(9));
        assert!((1..=MEMBERS_MAX).contains(&members.len()));
        let addresses: HashSet<_> = members.iter().map(|member| member.address).collect();
        assert_eq!(addresses.len(), members.len());
        assert!(members.iter().all(|member| member.address.port() != 0 && member.incarnation != 0));
        add(&table, member(1, 7));
        assert!(table.members(nth(9)).contains(&member(1, 7)));
        table.remove(member(1, 7));
    }
}

#[test]
fn one_address_again_and_again_is_one_member() {
    let table = new_table();
    (1..100).for_each(|n| add(&table, member(n, 5)));
    let first: [u64; SLOT_WORDS] =
        std::array::from_fn(|at| table.slots()[0][at].load(Ordering::Relaxed));
    for (number, slot) in table.slots().iter().enumerate() {
        slot.iter().zip(first).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        slot[0].store(number as u64 + 1, Ordering::Relaxed);
    }
    assert_eq!(table.members(nth(9)), [member(1, 1)]);
}

/// What is given in place of a list is not taken for one.
#[test]
fn other_memory_is_refused() {
    let name = format!("test/{}-foreign", std::process::id());
    let table = GroupTable::open(&name).unwrap();
    table.memory.words()[WHAT].store(0x1234, Ordering::Relaxed);
    let refused = GroupTable::open(&name).err().unwrap();
    assert_eq!(refused.errno(), Errno::BUSY, "{refused}");
    let short = format!("test/{}-short", std::process::id());
    let _short = NamedMemory::open_as(Name::Group(&short), 4096, Opening::Write).unwrap();
    let refused = GroupTable::open(&short).err().unwrap();
    assert_eq!(refused.errno(), Errno::BUSY, "{refused}");
}

/// Who keeps the lock stops those who join, for a while, and nobody else.
#[test]
fn only_a_join_waits_for_the_lock() {
    let name = format!("test/{}-locked", std::process::id());
    let (table, hostile) = (GroupTable::open(&name).unwrap(), GroupTable::open(&name).unwrap());
    add(&table, member(1, 1));
    let held = hostile.memory.lock().unwrap();
    let refused = table.add(member(2, 2), |_| false).unwrap_err();
    assert_eq!(refused.errno(), Errno::AGAIN, "{refused}");
    assert_eq!(table.members(nth(9)), [member(1, 1)]);
    table.remove(member(1, 1));
    assert!(table.members(nth(9)).is_empty());
    drop(held);
    add(&table, member(2, 2));
}

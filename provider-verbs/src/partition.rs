//! Which entry of a port's P_Key table packets carry, and who understands them.

/// Of a P_Key: its owner is a full member of the partition.
pub const FULL_MEMBER: u16 = 0x8000;
/// The P_Key of the partition that every port is in at first.
const DEFAULT: u16 = 0xffff;

/// An entry of a port's P_Key table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    pub index: u16,
    pub key: u16,
}

/// Whether its owner is a full member: limited members of a partition cannot talk to each other.
pub fn is_full(key: u16) -> bool {
    key & FULL_MEMBER != 0
}

/// Whether both are of one partition, be it as full or as limited members.
pub fn is_same(one: u16, other: u16) -> bool {
    (one ^ other) & !FULL_MEMBER == 0
}

/// The entry of the partition that is asked for, or of any: a full member's before a limited one's, and the
/// first of these.
pub fn choose(table: &[u16], asked: Option<u16>) -> Option<Partition> {
    let entries = (0..).zip(table).map(|(index, key)| Partition { index, key: *key });
    let suits = |key| key != 0 && asked.is_none_or(|asked| is_same(key, asked));
    let suiting = entries.filter(|entry| suits(entry.key));
    let best = suiting.min_by_key(|entry| (!is_full(entry.key), entry.index));
    // Devices without partitions have no table, or an empty one.
    let default = asked.is_none().then_some(Partition { index: 0, key: DEFAULT });
    best.or(default)
}

/// The partition of a group that IP over InfiniBand has named, or rdma_cm in the same way; none: the
/// GID tells no partition. Reference: RFC 4391, section 4
pub fn of_group(gid: [u8; 16]) -> Option<u16> {
    let form = u16::from_be_bytes([gid[2], gid[3]]);
    // rdma_cm has another signature (0x01) for ids of datagrams.
    let names = gid[0] == 0xff && [0x401b, 0x601b, 0x4001, 0x6001].contains(&form);
    names.then(|| u16::from_be_bytes([gid[4], gid[5]]))
}

/// A table for readers, without the entries that are free.
pub fn list(table: &[u16]) -> String {
    let keys = table.iter().filter(|key| **key != 0);
    let keys: Vec<String> = keys.map(|key| format!("{key:#06x}")).collect();
    if keys.is_empty() { "empty".into() } else { keys.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [u16; 6] = [0xffff, 0x0001, 0, 0x8001, 0x8001, 0x0002];

    #[test]
    fn without_a_wish_the_first_full_membership_is_used() {
        let first = |table: &[u16]| choose(table, None).unwrap();
        assert_eq!(first(&TABLE), Partition { index: 0, key: 0xffff });
        assert_eq!(first(&[0x8005, 0xffff]), Partition { index: 0, key: 0x8005 });
        let tenant = Partition { index: 1, key: 0x8005 };
        assert_eq!(first(&[0x7fff, 0x8005]), tenant, "as in clouds, where the default is limited");
        assert_eq!(first(&[0, 0x8005]), tenant);
        assert_eq!(first(&[0, 0x7fff, 0x0005]), Partition { index: 1, key: 0x7fff });
        for none in [&[][..], &[0]] {
            assert_eq!(first(none), Partition { index: 0, key: 0xffff });
        }
    }

    #[test]
    fn full_membership_goes_before_limited_whichever_was_written() {
        for asked in [0x8001, 0x0001] {
            assert_eq!(choose(&TABLE, Some(asked)), Some(Partition { index: 3, key: 0x8001 }));
        }
        for asked in [0x8002, 0x0002] {
            assert_eq!(choose(&TABLE, Some(asked)), Some(Partition { index: 5, key: 0x0002 }));
        }
        assert_eq!(choose(&TABLE, Some(0x7fff)), Some(Partition { index: 0, key: 0xffff }));
        assert_eq!(choose(&TABLE, Some(0x8003)), None);
    }

    #[test]
    fn groups_of_ip_over_infiniband_name_their_partition() {
        let partition = |text: &str| of_group(text.parse::<std::net::Ipv6Addr>().unwrap().octets());
        assert_eq!(partition("ff12:401b:8001::f09:807"), Some(0x8001));
        assert_eq!(partition("ff15:601b:ffff::1"), Some(0xffff));
        assert_eq!(partition("ff12:4001:8001::f09:807"), Some(0x8001), "as rdma_cm names it");
        assert_eq!(partition("ff12:a01b:8001::1"), None, "which the subnet manager has assigned");
        assert_eq!(partition("::ffff:239.9.8.7"), None);
    }

    #[test]
    fn a_table_is_listed_without_what_is_free() {
        assert_eq!(list(&TABLE), "0xffff, 0x0001, 0x8001, 0x8001, 0x0002");
        assert_eq!(list(&[0, 0]), "empty");
    }
}

//! The IP address of endpoints that ask for none.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::MetadataExt,
    sync::LazyLock,
};

/// Where endpoints of this host and network namespace are that ask for no address: one of 127.64.0.0/10, which
/// every host has, chosen by what tells hosts apart. Were all at 127.0.0.1, an endpoint of another host could have
/// the name of one here, and who was told that name by mistake would speak to the wrong one. IPv6 has one such address
/// alone, ::1, which is that of endpoints with addresses of FI_SOCKADDR_IN6.
pub fn own_ip() -> IpAddr {
    static OWN: LazyLock<IpAddr> = LazyLock::new(|| {
        let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |it| it.ino());
        ip_of(&boot, namespace)
    });
    *OWN
}

/// The loopback address of the same family: where a port of any address is, so that others who have the port alone
/// find it.
pub fn loopback_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

fn ip_of(boot: &[u8], namespace: u64) -> IpAddr {
    let mut hasher = DefaultHasher::new();
    hasher.write(boot);
    hasher.write_u64(namespace);
    let number = hasher.finish() & ((1 << 22) - 1);
    Ipv4Addr::from_bits(0x7f40_0000 | number as u32).into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn hosts_and_namespaces_have_addresses_of_their_own() {
        let mut all = HashSet::new();
        for host in 0..100_u32 {
            let boot = format!("{host:08x}-7a35-4e0c-9d56-0f5d2c1b9a77\n");
            for namespace in 0..10 {
                let ip = ip_of(boot.as_bytes(), 4_026_531_840 + namespace);
                assert!(ip.is_loopback(), "{ip}");
                all.insert(ip);
            }
        }
        assert!(all.len() > 990, "{} of 1,000", all.len());
        assert_eq!(own_ip(), own_ip());
    }
}

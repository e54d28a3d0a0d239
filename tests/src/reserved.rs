//! Addresses and groups that nobody else has: no test beside this one, in this process or in another.
//!
//! What an endpoint was given and gave back is no such address. The next one that is opened, by whatever test,
//! may be given it.

use std::{
    net::{IpAddr, Ipv4Addr, TcpListener},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicU16, Ordering},
    },
};

use kestrel_core::address::Address;

/// The first port of all. Those that are chosen for endpoints, and for connections, are above 32,767, and from 1024
/// on in the mock, which opens no thousand beside who is here.
const FIRST: u16 = 2048;
/// How many each process has, and how many processes may have so many of one host.
const PORTS: u16 = 500;
const SHARES: u16 = 60;

/// An address of this host's.
pub fn own_address() -> Address {
    own_addresses(1)
}

/// The first of so many addresses whose ports follow each other. Their host is one of loopback's, which no
/// other process of this PID namespace has.
pub fn own_addresses(count: u16) -> Address {
    // Numbers of processes have 22 bits. It is neither 127.0.0.1 nor the last one.
    let own = u32::from(Ipv4Addr::new(127, 0, 0, 0)) | std::process::id() << 2 | 2;
    reserve(Ipv4Addr::from(own).into(), FIRST, count)
}

/// The same at the host of `address`, which may be the only one that a device has.
pub fn beside(address: Address, count: u16) -> Address {
    reserve(address.ip(), FIRST + share() * PORTS, count)
}

/// Which share of a host's ports this process has: by a name that it holds as long as it runs.
fn share() -> u16 {
    static SHARE: OnceLock<(u16, UnixDatagram)> = OnceLock::new();
    let hold = |share| {
        let name = SocketAddr::from_abstract_name(format!("kestrel-tests/{share}")).ok()?;
        Some((share, UnixDatagram::bind_addr(&name).ok()?))
    };
    SHARE.get_or_init(|| (0..SHARES).find_map(hold).expect("a share that nobody has")).0
}

fn reserve(host: IpAddr, first: u16, count: u16) -> Address {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    loop {
        let taken = TAKEN.fetch_add(count, Ordering::Relaxed);
        assert!(taken + count <= PORTS, "there are no more ports");
        // A service of this computer's may listen there on all its hosts.
        let is_free = |port| TcpListener::bind((host, port)).is_ok();
        if (first + taken..first + taken + count).all(is_free) {
            return Address::new(host, first + taken);
        }
    }
}

/// A group, without a port.
pub fn own_group() -> Address {
    static NUMBER: AtomicU8 = AtomicU8::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let [low, high, ..] = std::process::id().to_le_bytes();
    Address::new(Ipv4Addr::new(239, high, low, number).into(), 0)
}

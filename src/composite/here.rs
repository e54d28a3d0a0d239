//! Which addresses are this host's.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
};

use kestrel_core::address::Address;

/// Whether the address is one of this host: those alone can be bound. Where that cannot be told, for want
/// of descriptors say, it is.
pub(crate) fn is_here(address: Address) -> bool {
    if address.ip().is_loopback() || !address.names_a_host() {
        return true;
    }
    match UdpSocket::bind(address.with_port(0).socket_addr()) {
        Ok(_) => !anything_can_be_bound(address.ip()) || is_assigned(address.ip()),
        // There is no such family, or the address is of a link and does not say of which.
        Err(error) => {
            error.kind() != ErrorKind::AddrNotAvailable
                && ![Some(libc::EAFNOSUPPORT), Some(libc::EINVAL)].contains(&error.raw_os_error())
        }
    }
}

/// Whether whoever is at `peer` is on the host of an endpoint at `own`. Their IP addresses may be the same, though
/// this host has lost it since the endpoint was opened.
pub(super) fn is_beside(own: Address, peer: Address) -> bool {
    own.ip() == peer.ip() || is_here(peer)
}

/// The address from which packets to `peer` leave.
pub(crate) fn source_to(peer: Address) -> io::Result<IpAddr> {
    let any: IpAddr = match peer.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing; it asks the kernel for the way.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer.with_port(peer.port().max(1)).socket_addr())?;
    Ok(socket.local_addr()?.ip().to_canonical())
}

/// Whether an interface has the address, as the kernel lists them for this thread's network.
fn is_assigned(ip: IpAddr) -> bool {
    let listed = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    match ip {
        IpAddr::V4(ip) => listed("fib_trie").is_ok_and(|trie| {
            let lines: Vec<&str> = trie.lines().map(str::trim).collect();
            let leaf = format!("|-- {ip}");
            lines.windows(2).any(|pair| pair[0] == leaf && pair[1] == "/32 host LOCAL")
        }),
        IpAddr::V6(ip) => {
            let digits = format!("{:032x}", ip.to_bits());
            listed("if_inet6").is_ok_and(|list| list.lines().any(|line| line.starts_with(&digits)))
        }
    }
}

/// Whether the network namespace lets processes bind addresses that it does not have, as hosts are set
/// up that take the address of one that fails.
fn anything_can_be_bound(ip: IpAddr) -> bool {
    let family = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
    let setting = fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    setting.is_ok_and(|setting| setting.trim() != "0")
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::{net::SocketAddr, process::Command, thread};

    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;

    /// In a namespace of the thread's own, which only an administrator can make.
    #[test]
    fn an_address_that_can_be_bound_and_is_nobodys_is_not_here() {
        let address = |text: &str| Address::from(text.parse::<SocketAddr>().unwrap());
        let look = move || {
            // SAFETY: what is the thread's own from here on is its network, which no memory depends on.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            let ip = |words: &str| Command::new("ip").args(words.split(' ')).status();
            for words in
                ["link set lo up", "addr add 10.77.0.1/24 dev lo", "addr add 10.77.0.2/24 dev lo"]
            {
                assert!(ip(words)?.success(), "ip {words}");
            }
            fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1")?;
            UdpSocket::bind("192.0.2.9:0").expect("anything can be bound");
            let asked = ["192.0.2.9:7", "10.77.0.3:7", "10.77.0.1:7", "10.77.0.2:7", "0.0.0.0:7"];
            io::Result::Ok(asked.map(address).map(is_here))
        };
        match thread::spawn(look).join().unwrap() {
            Ok(found) => assert_eq!(found, [false, false, true, true, true]),
            Err(error) => println!("SKIPPED: no network namespace of our own: {error}"),
        }
    }
}

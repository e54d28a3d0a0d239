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
        Ok(_) => leads_to_itself(address) || !anything_can_be_bound(address.ip()),
        Err(error) => {
            let has_no_such_family = error.raw_os_error() == Some(libc::EAFNOSUPPORT);
            error.kind() != ErrorKind::AddrNotAvailable && !has_no_such_family
        }
    }
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

fn leads_to_itself(address: Address) -> bool {
    source_to(address).is_ok_and(|from| from == address.ip())
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
    use std::{net::SocketAddr, thread};

    use rustix::thread::{UnshareFlags, unshare_unsafe};

    use super::*;

    /// In a namespace of the thread's own, which only an administrator can make.
    #[test]
    fn an_address_that_can_be_bound_and_is_nobodys_is_not_here() {
        let address = |text: &str| Address::from(text.parse::<SocketAddr>().unwrap());
        let look = move || {
            // SAFETY: what is the thread's own from here on is its network, which no memory depends on.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1")?;
            UdpSocket::bind("192.0.2.9:0").expect("anything can be bound");
            io::Result::Ok(["192.0.2.9:7", "127.0.0.1:7", "0.0.0.0:7"].map(address).map(is_here))
        };
        match thread::spawn(look).join().unwrap() {
            Ok(found) => assert_eq!(found, [false, true, true]),
            Err(error) => println!("SKIPPED: no network namespace of our own: {error}"),
        }
    }
}

//! Socket addresses as C has them.

use std::{
    mem,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
};

use kestrel_core::address::canonical;

/// A socket address in C's form.
pub struct SocketAddress(libc::sockaddr_storage);

impl SocketAddress {
    pub fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        // SAFETY: the structure holds integers only, which may be zero.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let at = &raw mut storage;
        // SAFETY: the storage is large and aligned enough for the structure of any family.
        unsafe {
            match address {
                SocketAddr::V4(v4) => {
                    let to = &mut *at.cast::<libc::sockaddr_in>();
                    to.sin_family = libc::AF_INET as u16;
                    to.sin_port = v4.port().to_be();
                    to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                }
                SocketAddr::V6(v6) => {
                    let to = &mut *at.cast::<libc::sockaddr_in6>();
                    to.sin6_family = libc::AF_INET6 as u16;
                    to.sin6_port = v6.port().to_be();
                    to.sin6_addr.s6_addr = v6.ip().octets();
                    to.sin6_scope_id = v6.scope_id();
                }
            }
        }
        SocketAddress(storage)
    }
}

/// The address in C's form at `from`; none if it is of another family.
///
/// # Safety
/// It is readable, and as long as its family says.
pub unsafe fn address_at<T>(from: *const T) -> Option<SocketAddr> {
    // SAFETY: as this function was promised.
    unsafe {
        match i32::from((*from.cast::<libc::sockaddr>()).sa_family) {
            libc::AF_INET => {
                let v4 = &*from.cast::<libc::sockaddr_in>();
                let ip = v4.sin_addr.s_addr.to_ne_bytes();
                Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                let v6 = &*from.cast::<libc::sockaddr_in6>();
                let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                Some(canonical(SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_form_of_c() {
        for text in ["10.9.0.1:7000", "[2001:db8::7]:1", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut in_c = SocketAddress::from(address);
            // SAFETY: an address in C's form.
            assert_eq!(unsafe { address_at(in_c.as_mut_ptr()) }, Some(address));
        }
    }
}

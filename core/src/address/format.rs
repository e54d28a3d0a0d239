//! How addresses are written. Reference: fi_getinfo(3), "ADDRESSING FORMATS".

use super::{Address, AddressError};

/// How addresses are written, with libfabric's values. Reference: fi_getinfo(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AddressFormat {
    /// As it suits.
    #[default]
    Unspec = 0,
    /// An IPv4 or an IPv6 address, as its family says.
    SockAddr = 1,
    /// A `struct sockaddr_in`: IPv4.
    In = 2,
    /// A `struct sockaddr_in6`: IPv6.
    In6 = 3,
    /// Text, as `fi_sockaddr_in://10.0.0.1:7471`.
    Str = 9,
    /// As `SockAddr`; since version 2.3.
    SockAddrIp = 17,
}

impl AddressFormat {
    /// The value that libfabric gives this format.
    pub const fn value(self) -> u32 {
        self as u32
    }

    /// libfabric's name, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            AddressFormat::Unspec => "FI_FORMAT_UNSPEC",
            AddressFormat::SockAddr => "FI_SOCKADDR",
            AddressFormat::In => "FI_SOCKADDR_IN",
            AddressFormat::In6 => "FI_SOCKADDR_IN6",
            AddressFormat::Str => "FI_ADDR_STR",
            AddressFormat::SockAddrIp => "FI_SOCKADDR_IP",
        }
    }

    /// Whether `address` can be written in this format.
    pub const fn holds(self, address: &Address) -> bool {
        match self {
            AddressFormat::Unspec
            | AddressFormat::SockAddr
            | AddressFormat::SockAddrIp
            | AddressFormat::Str => true,
            AddressFormat::In => address.ip().is_ipv4(),
            AddressFormat::In6 => address.ip().is_ipv6(),
        }
    }
}

impl TryFrom<u32> for AddressFormat {
    type Error = AddressError;

    fn try_from(value: u32) -> Result<Self, AddressError> {
        Ok(match value {
            0 => AddressFormat::Unspec,
            1 => AddressFormat::SockAddr,
            2 => AddressFormat::In,
            3 => AddressFormat::In6,
            9 => AddressFormat::Str,
            17 => AddressFormat::SockAddrIp,
            _ => return Err(AddressError::UnknownFormat { value }),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn formats_have_the_values_of_libfabric() {
        for (format, value) in [
            (AddressFormat::Unspec, 0),
            (AddressFormat::SockAddr, 1),
            (AddressFormat::In, 2),
            (AddressFormat::In6, 3),
            (AddressFormat::Str, 9),
            (AddressFormat::SockAddrIp, 17),
        ] {
            assert_eq!(format.value(), value);
            assert_eq!(AddressFormat::try_from(value), Ok(format));
        }
        assert_eq!(AddressFormat::try_from(4), Err(AddressError::UnknownFormat { value: 4 }));
        let six = Address::from("[::1]:5".parse::<SocketAddr>().unwrap());
        assert!(!AddressFormat::In.holds(&six));
        assert!(AddressFormat::SockAddr.holds(&six) && AddressFormat::SockAddrIp.holds(&six));
    }
}

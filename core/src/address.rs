//! An endpoint's address: a socket address, in the forms that libfabric knows.
//!
//! `sockaddr` bytes (what `fi_av_insert` is given), [`AddressFormat`] (what
//! `fi_info::addr_format` says) and the string form `FI_ADDR_STR`. Names and
//! services are resolved elsewhere: that needs the system.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Deref;
use std::str::FromStr;

use crate::error::{Errno, HasErrno};

mod format;
pub use format::AddressFormat;

/// `AF_INET` and `AF_INET6` of Linux, the only system that kestrel runs on.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

const SOCKADDR_IN_LEN: usize = 16;
const SOCKADDR_IN6_LEN: usize = 28;

const SCHEME: &str = "fi_sockaddr";
const SCHEME_IN: &str = "fi_sockaddr_in";
const SCHEME_IN6: &str = "fi_sockaddr_in6";

/// Where an endpoint is reached: an IP address and a port.
///
/// Two are equal if they lead to the same place, however they are written: an IPv4 address may be
/// mapped into IPv6, and flow information is no part of a place.
#[derive(Clone, Copy, Debug)]
pub struct Address(SocketAddr);

impl PartialEq for Address {
    #[inline]
    fn eq(&self, other: &Address) -> bool {
        self.0 == other.0 || self.canonical() == other.canonical()
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical().hash(state);
    }
}

impl PartialOrd for Address {
    fn partial_cmp(&self, other: &Address) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Address {
    fn cmp(&self, other: &Address) -> Ordering {
        self.canonical().cmp(&other.canonical())
    }
}

/// Why bytes or a string are no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has its message")]
pub enum AddressError {
    #[error("an address of {len} bytes is too short: {needed} are needed")]
    TooShort { len: usize, needed: usize },
    #[error("address family {family} is neither AF_INET ({AF_INET}) nor AF_INET6 ({AF_INET6})")]
    UnknownFamily { family: u16 },
    #[error("'{text}' is not of the form fi_sockaddr_in://1.2.3.4:5 or fi_sockaddr_in6://[::1]:5")]
    Unparsable { text: String },
    #[error("{address} is no address of the format {}", .format.name())]
    OtherFormat { address: Address, format: AddressFormat },
    #[error("address format {value} is not one that kestrel knows")]
    UnknownFormat { value: u32 },
}

impl HasErrno for AddressError {
    fn errno(&self) -> Errno {
        Errno::INVAL
    }
}

/// An address as `struct sockaddr_in` or `struct sockaddr_in6`. Dereferences to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBytes {
    bytes: [u8; SOCKADDR_IN6_LEN],
    len: usize,
}

impl Deref for AddressBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// One form for addresses that mean the same endpoint: version 4 as such, and no flow label.
pub fn canonical(mut address: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_flowinfo(0);
    }
    address.set_ip(address.ip().to_canonical());
    address
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Address(address)
    }
}

impl From<Address> for SocketAddr {
    fn from(address: Address) -> Self {
        address.0
    }
}

impl Address {
    /// The address of port `port` at `ip`.
    pub const fn new(ip: IpAddr, port: u16) -> Self {
        Address(SocketAddr::new(ip, port))
    }

    /// The host; unspecified where it names none.
    pub const fn ip(&self) -> IpAddr {
        self.0.ip()
    }

    /// The port; 0 where it names none.
    pub const fn port(&self) -> u16 {
        self.0.port()
    }

    /// The same host, another port.
    pub fn with_port(mut self, port: u16) -> Self {
        self.0.set_port(port);
        self
    }

    /// The address, with what it leaves open from `present`: the host where it names none, and the
    /// port where it is 0.
    pub fn or(self, present: Address) -> Self {
        let host = if self.names_a_host() { self } else { present };
        host.with_port(if self.port() == 0 { present.port() } else { self.port() })
    }

    /// The same as the standard library has it.
    pub const fn socket_addr(&self) -> SocketAddr {
        self.0
    }

    /// The one way to write it that all others are held to.
    #[inline]
    pub fn canonical(&self) -> SocketAddr {
        canonical(self.0)
    }

    /// The format that says most about this address: [`AddressFormat::In`] or [`AddressFormat::In6`].
    pub const fn format(&self) -> AddressFormat {
        match self.0 {
            SocketAddr::V4(_) => AddressFormat::In,
            SocketAddr::V6(_) => AddressFormat::In6,
        }
    }

    /// The bytes of `struct sockaddr_in` (16) or `struct sockaddr_in6` (28).
    ///
    /// The family is in host order, port and address in network order, flow
    /// information as the socket address holds it (like `std`, unswapped).
    pub fn to_bytes(&self) -> AddressBytes {
        let mut bytes = [0; SOCKADDR_IN6_LEN];
        bytes[2..4].copy_from_slice(&self.0.port().to_be_bytes());
        let (family, len) = match self.0 {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (AF_INET, SOCKADDR_IN_LEN)
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (AF_INET6, SOCKADDR_IN6_LEN)
            }
        };
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        AddressBytes { bytes, len }
    }

    /// Reads `struct sockaddr_in` or `struct sockaddr_in6`; what follows it
    /// (of a `struct sockaddr_storage`, say) is ignored.
    ///
    /// # Errors
    /// [`AddressError::TooShort`] and [`AddressError::UnknownFamily`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let short = |needed| AddressError::TooShort { len: bytes.len(), needed };
        let family = bytes.first_chunk::<2>().ok_or(short(2))?;
        match u16::from_ne_bytes(*family) {
            AF_INET => {
                let b = bytes.first_chunk::<SOCKADDR_IN_LEN>().ok_or(short(SOCKADDR_IN_LEN))?;
                let ip = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
                Ok(Address(SocketAddrV4::new(ip, u16::from_be_bytes([b[2], b[3]])).into()))
            }
            AF_INET6 => {
                let b = bytes.first_chunk::<SOCKADDR_IN6_LEN>().ok_or(short(SOCKADDR_IN6_LEN))?;
                let word = |at: usize| u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
                let mut ip = [0; 16];
                ip.copy_from_slice(&b[8..24]);
                let port = u16::from_be_bytes([b[2], b[3]]);
                let v6 = SocketAddrV6::new(Ipv6Addr::from(ip), port, word(4), word(24));
                Ok(Address(v6.into()))
            }
            family => Err(AddressError::UnknownFamily { family }),
        }
    }

    /// Whether the address names one host: not `0.0.0.0`, however it is written, and not `::`.
    pub const fn names_a_host(&self) -> bool {
        !self.0.ip().to_canonical().is_unspecified()
    }
}

/// The string form, `FI_ADDR_STR`: `fi_sockaddr_in://1.2.3.4:5`. This is also what `fi_av_straddr` prints.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.0 {
            SocketAddr::V4(_) => SCHEME_IN,
            SocketAddr::V6(_) => SCHEME_IN6,
        };
        write!(f, "{scheme}://{}", self.0)
    }
}

/// Parses the string form. `fi_sockaddr://` takes either family; node and
/// service may be missing, as fi_getinfo(3) allows:
/// `address_format[://[node][:[service][/[field3]...][?[key=value]...]]]`.
/// Further fields and keys mean nothing to kestrel and are ignored, as libfabric ignores them.
impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let unparsable = || AddressError::Unparsable { text: text.to_owned() };
        let (scheme, place) = text.split_once("://").unwrap_or((text, ""));
        let (takes_v4, takes_v6) = match scheme {
            SCHEME => (true, true),
            SCHEME_IN => (true, false),
            SCHEME_IN6 => (false, true),
            _ => return Err(unparsable()),
        };
        let address = parse_place(place, takes_v4).ok_or_else(unparsable)?;
        match address {
            SocketAddr::V4(_) if takes_v4 => Ok(Address(address)),
            SocketAddr::V6(_) if takes_v6 => Ok(Address(address)),
            _ => Err(unparsable()),
        }
    }
}

/// Parses `[node][:[service]]`; an absent node is the wildcard of the family that `prefer_v4` says.
fn parse_place(place: &str, prefer_v4: bool) -> Option<SocketAddr> {
    let place = place.split(['/', '?']).next().unwrap_or_default();
    // A bracketed IPv6 node has colons of its own, so the service starts after the bracket.
    let node_end = match place.rfind(']') {
        Some(bracket) => bracket + 1,
        None => place.find(':').unwrap_or(place.len()),
    };
    let (node, rest) = place.split_at(node_end);
    let service = match rest.strip_prefix(':') {
        Some(service) => service,
        None if rest.is_empty() => "",
        None => return None,
    };
    let port = if service.is_empty() { 0 } else { parse_port(service)? };
    if node.is_empty() {
        let wildcard: IpAddr =
            if prefer_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        return Some(SocketAddr::new(wildcard, port));
    }
    if node.starts_with('[') {
        // std parses the scope (`%3`) only together with a port.
        format!("{node}:{port}").parse::<SocketAddrV6>().ok().map(SocketAddr::V6)
    } else {
        Some(SocketAddr::new(node.parse::<Ipv4Addr>().ok()?.into(), port))
    }
}

/// Parses a port; `str::parse` alone would also take `+5`.
fn parse_port(service: &str) -> Option<u16> {
    service.bytes().all(|b| b.is_ascii_digit()).then(|| service.parse().ok())?
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> Address {
        Address(text.parse().unwrap())
    }

    #[test]
    fn sockaddr_in_has_the_layout_of_linux() {
        let bytes = address("1.2.3.4:258").to_bytes();
        assert_eq!(&bytes[..], &[2, 0, 1, 2, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_leads_to_one_place_is_equal() {
        let (plain, mapped) = (address("1.2.3.4:5"), address("[::ffff:1.2.3.4]:5"));
        let marked = Address(SocketAddrV6::new("::1".parse().unwrap(), 5, 9, 0).into());
        assert_eq!((plain, marked), (mapped, address("[::1]:5")));
        assert_eq!((mapped.to_bytes().len(), mapped.format()), (28, AddressFormat::In6));
        let known = std::collections::HashSet::from([plain, marked]);
        assert!(known.contains(&mapped) && known.contains(&address("[::1]:5")));
        assert_eq!(plain.cmp(&mapped), Ordering::Equal);
        let scoped = Address(SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 0, 2).into());
        for other in ["1.2.3.4:6", "[::1.2.3.4]:5", "[fe80::1]:5"] {
            assert!(![plain, marked, scoped].contains(&address(other)), "{other}");
        }
    }

    #[test]
    fn sockaddr_in6_has_the_layout_of_linux() {
        let v6 = SocketAddrV6::new("fe80::1:2".parse().unwrap(), 5, 0x0a0b_0c0d, 7);
        let bytes = Address(v6.into()).to_bytes();
        assert_eq!(bytes.len(), 28);
        assert_eq!(&bytes[..8], &[10, 0, 0, 5, 0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!(&bytes[8..24], &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
        assert_eq!(&bytes[24..], &[7, 0, 0, 0]);
    }

    #[test]
    fn short_or_foreign_bytes_are_refused_with_their_values() {
        let short = |len, needed| Err(AddressError::TooShort { len, needed });
        assert_eq!(Address::from_bytes(&[]), short(0, 2));
        let v4 = address("1.2.3.4:5").to_bytes();
        assert_eq!(Address::from_bytes(&v4[..15]), short(15, 16));
        let v6 = address("[::1]:5").to_bytes();
        assert_eq!(Address::from_bytes(&v6[..27]), short(27, 28));
        // fi_av_test inserts all zeros as its bad address.
        assert_eq!(Address::from_bytes(&[0; 16]), Err(AddressError::UnknownFamily { family: 0 }));
    }

    #[test]
    fn a_sockaddr_storage_is_read_by_its_family() {
        let mut storage = [0xff; 128];
        storage[..16].copy_from_slice(&address("9.8.7.6:5432").to_bytes());
        assert_eq!(Address::from_bytes(&storage), Ok(address("9.8.7.6:5432")));
    }

    #[test]
    fn strings_are_those_of_libfabric() {
        assert_eq!(address("1.2.3.4:5").to_string(), "fi_sockaddr_in://1.2.3.4:5");
        assert_eq!(address("[::1]:5").to_string(), "fi_sockaddr_in6://[::1]:5");
        assert_eq!("fi_sockaddr://10.31.6.12:7471".parse(), Ok(address("10.31.6.12:7471")));
        assert_eq!("fi_sockaddr_in6://[fe80::6:12]:7471".parse(), Ok(address("[fe80::6:12]:7471")));
        assert_eq!("fi_sockaddr://[::1]:1".parse(), Ok(address("[::1]:1")));
        assert_eq!("fi_sockaddr_in://:5".parse(), Ok(address("0.0.0.0:5")));
        assert_eq!("fi_sockaddr_in://1.2.3.4".parse(), Ok(address("1.2.3.4:0")));
        assert_eq!("fi_sockaddr_in6://[fe80::1%3]:9".parse(), Ok(address("[fe80::1%3]:9")));
        assert_eq!("fi_sockaddr_in6".parse(), Ok(address("[::]:0")));
        assert_eq!("fi_sockaddr://10.31.6.12:7471?qos=3".parse(), Ok(address("10.31.6.12:7471")));
        assert_eq!("fi_sockaddr://[::1]:1/2?three=4".parse(), Ok(address("[::1]:1")));
    }

    #[test]
    fn strings_of_another_form_are_refused_whole() {
        for text in [
            "",
            "1.2.3.4:5",
            "fi_sockaddr_ib://1",
            "fi_sockaddr_in://[::1]:5",
            "fi_sockaddr_in6://1.2.3.4:5",
            "fi_sockaddr_in://1.2.3.4:65536",
            "fi_sockaddr_in://1.2.3.4:+5",
            "fi_sockaddr_in://host:5",
            "fi_sockaddr_in6://[::1]5",
            "fi_sockaddr_in6://::1:5",
        ] {
            let expected = AddressError::Unparsable { text: text.to_owned() };
            assert_eq!(text.parse::<Address>(), Err(expected));
        }
    }

    #[test]
    fn what_an_address_leaves_open_is_as_it_was() {
        for (asked, present, expected) in [
            ("1.2.3.4:5", "9.9.9.9:9", "1.2.3.4:5"),
            ("1.2.3.4:0", "9.9.9.9:9", "1.2.3.4:9"),
            ("0.0.0.0:5", "9.9.9.9:9", "9.9.9.9:5"),
            ("0.0.0.0:0", "9.9.9.9:9", "9.9.9.9:9"),
            ("[::ffff:0.0.0.0]:0", "9.9.9.9:9", "9.9.9.9:9"),
            ("[fe80::1%3]:0", "[::1]:9", "[fe80::1%3]:9"),
            ("[::]:5", "[fe80::1%3]:9", "[fe80::1%3]:5"),
        ] {
            assert_eq!(address(asked).or(address(present)), address(expected));
        }
    }

    fn any_address() -> impl Strategy<Value = Address> {
        let v4 = any::<([u8; 4], u16)>()
            .prop_map(|(ip, port)| SocketAddr::V4(SocketAddrV4::new(ip.into(), port)));
        let v6 = any::<([u8; 16], u16, u32, u32)>().prop_map(|(ip, port, flow, scope)| {
            SocketAddr::V6(SocketAddrV6::new(ip.into(), port, flow, scope))
        });
        prop_oneof![v4, v6].prop_map(Address)
    }

    proptest! {
        #[test]
        fn bytes_round_trip(address in any_address()) {
            prop_assert_eq!(Address::from_bytes(&address.to_bytes()), Ok(address));
        }

        #[test]
        fn strings_round_trip_but_for_flow_information(address in any_address()) {
            let mut expected = address.0;
            if let SocketAddr::V6(v6) = &mut expected { v6.set_flowinfo(0) }
            prop_assert_eq!(address.to_string().parse(), Ok(Address(expected)));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Address::from_bytes(&bytes);
        }

        #[test]
        fn no_string_panics(text in "(fi_sockaddr(_in6?)?)?(://)?[\\[\\]0-9:.%a-f]{0,20}") {
            let _ = text.parse::<Address>();
        }
    }
}

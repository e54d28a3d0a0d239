//! The addresses of a symmetric insert (`fi_av_insertsym`): a range of nodes
//! times a range of services, "all service addresses for a node will be
//! inserted before the next node is inserted" (fi_av(3)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::{AddressVectorError, Candidate};
use crate::address::Address;

/// A checked range of addresses, node by node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymmetricRange {
    base: Address,
    node_count: usize,
    service_count: usize,
}

impl SymmetricRange {
    /// The range that starts at `base`: `node_count` consecutive IP addresses
    /// with `service_count` consecutive ports each.
    ///
    /// # Errors
    /// [`AddressVectorError::PortRange`] and [`AddressVectorError::NodeRange`] if the range leaves the
    /// 65,536 ports or the addresses of the family.
    pub fn new(
        base: Address,
        node_count: usize,
        service_count: usize,
    ) -> Result<Self, AddressVectorError> {
        if service_count > usize::from(u16::MAX - base.port()) + 1 {
            return Err(AddressVectorError::PortRange { base, service_count });
        }
        let last_node = node_count.saturating_sub(1);
        if nth_node(base.ip(), last_node).is_none()
            || node_count.checked_mul(service_count).is_none()
        {
            return Err(AddressVectorError::NodeRange { base, node_count });
        }
        Ok(SymmetricRange { base, node_count, service_count })
    }

    /// The addresses of such a range, also where it leaves the ports or the addresses of the
    /// family: of those it is known that they cannot be.
    pub fn split(
        base: Address,
        node_count: usize,
        service_count: usize,
    ) -> impl Iterator<Item = Candidate> {
        let nodes = nodes_from(base.ip(), node_count);
        let services = service_count.min(usize::from(u16::MAX - base.port()) + 1);
        // One range of all nodes, unless each has services that there are not.
        let (ranges, per_range) = if services == service_count { (1, nodes) } else { (nodes, 1) };
        let missing = per_range * (service_count - services);
        let each = (0..ranges).filter_map(move |at| nth_node(base.ip(), at)).flat_map(move |ip| {
            let base = with_ip(base, ip);
            let range = SymmetricRange { base, node_count: per_range, service_count: services };
            let error = AddressVectorError::PortRange { base, service_count };
            [range.into(), Candidate::Failed { error, count: missing }]
        });
        let error = AddressVectorError::NodeRange { base, node_count };
        let beyond = (node_count - nodes) * service_count;
        each.chain(std::iter::once(Candidate::Failed { error, count: beyond }))
    }

    /// How many addresses the range has.
    pub fn len(&self) -> usize {
        self.node_count * self.service_count
    }

    /// Whether it has no address.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of one node, from `base` to its last port, and the same ports of the nodes
    /// behind it.
    pub(super) fn of_node(base: Address) -> Self {
        SymmetricRange {
            base,
            node_count: 1,
            service_count: usize::from(u16::MAX - base.port()) + 1,
        }
    }

    /// Its first address.
    pub fn base(&self) -> Address {
        self.base
    }

    /// The address at a position, in the order of insertion: behind the range's end it goes on
    /// with further nodes, as long as there are any.
    pub fn nth(&self, at: usize) -> Option<Address> {
        let node = at.checked_div(self.service_count)?;
        let service = at % self.service_count;
        let ip = nth_node(self.base.ip(), node)?;
        // new() has checked that the services are ports.
        let port = self.base.port() + service as u16;
        Some(with_ip(self.base, ip).with_port(port))
    }

    /// The position at which [`Self::nth`] has `address`.
    pub(super) fn position_of(&self, address: &Address) -> Option<usize> {
        let node = usize::try_from(nodes_between(self.base.ip(), address.ip())?).ok()?;
        let service = usize::from(address.port().checked_sub(self.base.port())?);
        let at = node.checked_mul(self.service_count)?.checked_add(service)?;
        (service < self.service_count && self.nth(at) == Some(*address)).then_some(at)
    }

    /// The addresses, in the order of insertion.
    pub fn addresses(self) -> impl Iterator<Item = Address> {
        // new() has checked both ends of both ranges, so none is missing.
        (0..self.len()).filter_map(move |at| self.nth(at))
    }
}

/// A node's place among all: an IPv4 address has that of the same address mapped into IPv6, since
/// an address is one however it is written.
pub(super) fn node_number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// How many nodes `to` lies behind `from`.
pub(super) fn nodes_between(from: IpAddr, to: IpAddr) -> Option<u128> {
    node_number(to).checked_sub(node_number(from))
}

/// The same port at another node of the network.
fn with_ip(base: Address, ip: IpAddr) -> Address {
    match (base.socket_addr(), ip) {
        (SocketAddr::V6(base), IpAddr::V6(ip)) => {
            let (flow, scope) = (base.flowinfo(), base.scope_id());
            SocketAddr::V6(SocketAddrV6::new(ip, base.port(), flow, scope)).into()
        }
        _ => Address::new(ip, base.port()),
    }
}

/// How many of `count` nodes there are from `base` on.
fn nodes_from(base: IpAddr, count: usize) -> usize {
    let further = match base {
        IpAddr::V4(ip) => u128::from(u32::MAX - ip.to_bits()),
        IpAddr::V6(ip) => u128::MAX - ip.to_bits(),
    };
    usize::try_from(further).map_or(count, |further| count.min(further.saturating_add(1)))
}

fn nth_node(base: IpAddr, node: usize) -> Option<IpAddr> {
    Some(match base {
        IpAddr::V4(ip) => {
            Ipv4Addr::from_bits(ip.to_bits().checked_add(u32::try_from(node).ok()?)?).into()
        }
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().checked_add(node as u128)?).into(),
    })
}

/// The name of the `node`th host after `name`: `host10` and 1 give `host11`.
///
/// "If node is a non-numeric string, such as a hostname, it must contain a
/// numeric suffix if nodecnt > 1" (fi_av(3)). Leading zeros keep the width:
/// after `node09` comes `node10`.
///
/// # Errors
/// [`AddressVectorError::NoNumericSuffix`] if `name` ends in no number that can be counted up.
pub fn symmetric_host_name(name: &str, node: usize) -> Result<String, AddressVectorError> {
    if node == 0 {
        return Ok(name.to_owned());
    }
    let refused = || AddressVectorError::NoNumericSuffix { name: name.to_owned() };
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let suffix = &name[stem.len()..];
    let first: u64 = suffix.parse().map_err(|_| refused())?;
    let number = first.checked_add(node as u64).ok_or_else(refused)?;
    Ok(format!("{stem}{number:0width$}", width = suffix.len()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse::<SocketAddr>().unwrap().into()
    }

    fn range(
        base: &str,
        nodes: usize,
        services: usize,
    ) -> Result<Vec<Address>, AddressVectorError> {
        Ok(SymmetricRange::new(address(base), nodes, services)?.addresses().collect())
    }

    #[test]
    fn the_example_of_the_manual_page() {
        let expected = ["10.1.1.1:5000", "10.1.1.1:5001", "10.1.1.2:5000", "10.1.1.2:5001"];
        assert_eq!(range("10.1.1.1:5000", 2, 2).unwrap(), expected.map(address));
    }

    #[test]
    fn ipv6_counts_across_groups_and_keeps_the_scope() {
        let expected = ["[fe80::1:ffff%4]:7", "[fe80::2:0%4]:7"];
        assert_eq!(range("[fe80::1:ffff%4]:7", 2, 1).unwrap(), expected.map(address));
    }

    #[test]
    fn a_range_ends_where_the_numbers_do() {
        assert_eq!(range("1.2.3.4:65534", 1, 2).unwrap().len(), 2);
        let base = address("1.2.3.4:65534");
        let ports = AddressVectorError::PortRange { base, service_count: 3 };
        assert_eq!(range("1.2.3.4:65534", 1, 3), Err(ports));
        assert_eq!(range("255.255.255.255:1", 1, 1).unwrap().len(), 1);
        let base = address("255.255.255.255:1");
        assert_eq!(
            range("255.255.255.255:1", 2, 1),
            Err(AddressVectorError::NodeRange { base, node_count: 2 })
        );
        assert_eq!(range("1.2.3.4:5", 0, 3).unwrap(), []);
        assert_eq!(range("1.2.3.4:5", 3, 0).unwrap(), []);
        assert_eq!(range("0.0.0.0:0", 1, 65_536).unwrap()[65_535], address("0.0.0.0:65535"));
    }

    #[test]
    fn what_leaves_the_numbers_fails_alone() {
        let split = |base: &str, nodes, services| {
            let all = SymmetricRange::split(address(base), nodes, services);
            let told = all.flat_map(|candidate| match candidate {
                Candidate::Range(range) => range.addresses().map(Some).collect(),
                Candidate::Failed { count, .. } => vec![None; count],
                Candidate::Address(address) => vec![Some(address)],
            });
            told.map(|found| found.map(|address| address.socket_addr().to_string()))
                .collect::<Vec<_>>()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            split("1.2.3.4:65534", 2, 3),
            [
                some("1.2.3.4:65534"),
                some("1.2.3.4:65535"),
                None,
                some("1.2.3.5:65534"),
                some("1.2.3.5:65535"),
                None
            ]
        );
        let last = "255.255.255.255:7";
        assert_eq!(split(last, 3, 1), [some(last), None, None]);
        let last = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:7";
        assert_eq!(split(last, 2, 1), [some(last), None]);
        assert_eq!(split("[fe80::1%4]:7", 2, 1), [some("[fe80::1%4]:7"), some("[fe80::2%4]:7")]);
        assert_eq!((split("1.2.3.4:5", 0, 3), split("1.2.3.4:5", 3, 0)), (vec![], vec![]));
    }

    #[test]
    fn host_names_count_by_their_suffix() {
        let name = |name, node| symmetric_host_name(name, node);
        assert_eq!(name("host10", 0).unwrap(), "host10");
        assert_eq!(name("host10", 1).unwrap(), "host11");
        assert_eq!(name("node09", 1).unwrap(), "node10");
        assert_eq!(name("node099", 901).unwrap(), "node1000");
        assert_eq!(name("login", 0).unwrap(), "login");
        let refused = AddressVectorError::NoNumericSuffix { name: "login".into() };
        assert_eq!(name("login", 1), Err(refused));
        assert!(name("n18446744073709551615", 1).is_err());
    }
}

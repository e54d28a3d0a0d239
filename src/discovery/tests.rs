//! What is found, in which order, and where endpoints are to be.

use super::*;
use crate::rdma::{Network, RdmaDevice};
use kestrel_core::{address::AddressFormat, config::TransportChoice, flags::Flags, info::Nic};

#[test]
fn without_hints_there_is_shared_memory() {
    let found = discover(None).unwrap();
    assert_eq!(found[0].domain.name, SHM_DOMAIN);
    assert!(found[0].caps.contains(Flags::TAGGED | Flags::MSG | Flags::DIRECTED_RECV));
}

#[test]
fn every_rejected_hint_is_told() {
    let mut hints = Hints::new().caps(Flags::TAGGED | Flags::MULTICAST);
    hints.transmit.inject_size = Some(1 << 30);
    let error = discover(Some(&hints)).unwrap_err();
    assert_eq!(error.errno(), Errno::NODATA);
    let text = error.to_string();
    assert!(text.contains("inject_size") && text.contains("1073741824"), "{text}");
    assert!(text.contains("MULTICAST"), "{text}");
}

#[test]
fn a_node_and_a_service_become_an_address() {
    let found = discover_at(Some("127.0.0.1"), Some("4711"), true, None).unwrap();
    assert_eq!(found[0].source.unwrap().to_string(), "fi_sockaddr_in://127.0.0.1:4711");
    assert!(found[0].destination.is_none());
    let found = discover_at(None, Some("4711"), false, None).unwrap();
    assert_eq!(found[0].destination.unwrap().port(), 4711);
}

#[test]
fn services_have_numbers_and_names() {
    let port = |service| resolve(None, Some(service)).map(|address| address.port()).ok();
    assert_eq!((port("0"), port("4711"), port("65535")), (Some(0), Some(4711), Some(65535)));
    for unknown in ["", "65536", "99999999", "-1", "+70000", " 70000", "no such service"] {
        assert!(port(unknown).is_none(), "{unknown}");
    }
    let names = std::fs::read_to_string("/etc/services").unwrap_or_default();
    if names.lines().any(|line| line.starts_with("http\t") || line.starts_with("http ")) {
        assert_eq!(resolve(Some("127.0.0.9"), Some("http")).unwrap().port(), 80);
    }
    let here = resolve_as(AddressFormat::In6, None, Some("7")).unwrap();
    assert_eq!(here.to_string(), "fi_sockaddr_in6://[::1]:7");
    let (text, format) = ("fi_sockaddr_in://127.0.0.1:7", AddressFormat::In);
    assert_eq!(resolve_as(format, Some(text), None).unwrap().to_string(), text);
    assert_eq!(
        resolve_as(AddressFormat::In6, Some(text), None).unwrap_err().errno(),
        Errno::NODATA
    );
    assert_eq!(resolve_as(format, Some(text), Some("7")).unwrap_err().errno(), Errno::INVAL);
}

#[test]
fn a_node_becomes_an_address_of_the_hints_format() {
    let ask = |format, node| {
        let hints = Hints::new().address_format(format);
        discover_at(Some(node), Some("7"), false, Some(&hints)).map(|found| found[0].destination)
    };
    assert!(ask(AddressFormat::In, "127.0.0.1").is_ok());
    let refused = ask(AddressFormat::In, "::1").unwrap_err().to_string();
    assert!(refused.contains("no address of FI_SOCKADDR_IN"), "{refused}");
    // Also what comes with an address that was resolved before.
    let mut hints = Hints::new().address_format(AddressFormat::In);
    let place = Some(Place::Peers(address("[2001:db8::1]:4711")));
    let found = on_machine(Asker::OfKestrel, Some(&hints), place);
    assert!(found.unwrap_err().to_string().contains("dest_addr"));
    hints.address_format = AddressFormat::Unspec;
    hints.source = Some(address("192.0.2.1:0"));
    let found = on_machine(Asker::OfKestrel, Some(&hints), place);
    assert_eq!(found.unwrap()[0].address_format, AddressFormat::SockAddr);
}

#[test]
fn what_cannot_be_resolved_is_told() {
    let error = discover_at(None, Some("nosuch"), false, None).unwrap_err();
    assert!(error.to_string().contains("nosuch"), "{error}");
}

/// Networks may have addresses of version 6 alone: who says nothing of their format is told of them, too, behind
/// others.
#[test]
fn a_device_is_found_at_whatever_addresses_it_has() {
    let [four, both, shm] = machine();
    let Reach::Rdma(mut six) = both else { panic!("a device") };
    six.name = "rxe2".into();
    six.addresses.remove(0);
    let reaches = [Reach::Rdma(six), four, shm];
    let found = |format| {
        let hints = Hints::new().caps(Flags::MSG).address_format(format);
        let config = Config::default();
        let found =
            choose(&reaches, &config, ApiVersion::NATIVE, Asker::OfKestrel, Some(&hints), None);
        let of =
            |info: Info| (info.domain.name, info.address_format, info.source.unwrap().to_string());
        let reliable =
            found.unwrap().into_iter().filter(|info| info.endpoint.kind == EndpointType::Rdm);
        reliable.map(of).collect::<Vec<_>>()
    };
    let of = |name: &str, format, address: &str| (name.to_owned(), format, address.to_owned());
    let four = of("rxe0", AddressFormat::In, "fi_sockaddr_in://192.0.2.1:0");
    let six = of("rxe2", AddressFormat::In6, "fi_sockaddr_in6://[2001:db8::7]:0");
    assert_eq!(found(AddressFormat::Unspec), [four.clone(), six.clone()]);
    assert_eq!(found(AddressFormat::In), [four]);
    assert_eq!(found(AddressFormat::In6), [six]);
}

fn machine() -> [Reach; 3] {
    let device = |name: &str, addresses: &[&str]| {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        Reach::Rdma(Box::new(RdmaDevice {
            name: name.into(),
            addresses,
            datagram_max: 960,
            has_groups: true,
            network: Network::Ethernet,
            nic: Nic { name: name.into(), ..Nic::default() },
        }))
    };
    [device("rxe0", &["192.0.2.1"]), device("rxe1", &["198.51.100.7", "2001:db8::7"]), Reach::Shm]
}

/// All that is found there.
fn on_machine(
    asker: Asker,
    hints: Option<&Hints>,
    place: Option<Place>,
) -> Result<Vec<Info>, DiscoveryError> {
    choose(&machine(), &Config::default(), ApiVersion::NATIVE, asker, hints, place)
}

/// The reliable endpoints to many peers that are found. The connected ones follow, in the same
/// places, and then those of datagrams.
fn find(hints: Option<&Hints>, place: Option<Place>) -> Vec<(String, Option<String>)> {
    find_for(Asker::OfKestrel, hints, place)
}

fn find_for(
    asker: Asker,
    hints: Option<&Hints>,
    place: Option<Place>,
) -> Vec<(String, Option<String>)> {
    let found = on_machine(asker, hints, place).unwrap_or_default();
    let order = [EndpointType::Rdm, EndpointType::Msg, EndpointType::Dgram];
    let place = |info: &Info| order.iter().position(|&kind| kind == info.endpoint.kind);
    assert!(found.is_sorted_by_key(place), "what was there before comes first");
    let plain = |address: Address| address.socket_addr().to_string();
    let tell = |info: &Info| (info.domain.name.clone(), info.source.map(plain));
    let [rdm, msg, datagrams] = [0, 1, 2].map(|kind| {
        found.iter().filter(|info| place(info) == Some(kind)).map(tell).collect::<Vec<_>>()
    });
    assert_eq!((&rdm, &rdm), (&msg, &datagrams));
    rdm
}

/// They are told as what they are: no tags, nothing one-sided, one packet each.
#[test]
fn datagrams_are_found_by_who_asks_for_them() {
    let mut hints = Hints::new().endpoint_type(EndpointType::Dgram);
    let found = discover(Some(&hints)).unwrap();
    let info = found.last().unwrap();
    assert_eq!((&info.domain.name[..], info.endpoint.kind), (SHM_DOMAIN, EndpointType::Dgram));
    assert!(!info.caps.intersects(Flags::TAGGED | Flags::RMA | Flags::ATOMIC | Flags::FENCE));
    assert_eq!(info.endpoint.max_msg_size, 8 << 10);
    assert!(info.caps.contains(Flags::MULTICAST) && info.transmit.caps.contains(Flags::MULTICAST));
    assert!(info.transmit.message_order.is_empty());
    hints.domain.name = Some(SHM_DOMAIN.into());
    assert_eq!(agree(&Config::default(), ApiVersion::NATIVE, &hints).as_ref(), Ok(info));
    assert!(discover(Some(&hints.clone().caps(Flags::TAGGED))).is_err());
    assert!(discover(Some(&hints.clone().max_msg_size(9 << 10))).is_err());
    let datagrams = Hints::new().endpoint_type(EndpointType::Dgram);
    let all = on_machine(Asker::OfKestrel, Some(&datagrams), None);
    let longest = all.unwrap().iter().map(|info| info.endpoint.max_msg_size).collect::<Vec<_>>();
    assert_eq!(longest, [960, 960, 8 << 10]);
    hints.domain.name = Some("nowhere".into());
    assert!(agree(&Config::default(), ApiVersion::NATIVE, &hints).is_err());
}

fn told(name: &str, source: Option<&str>) -> (String, Option<String>) {
    (name.into(), source.map(str::to_owned))
}

fn address(text: &str) -> Address {
    Address::from(text.parse::<std::net::SocketAddr>().unwrap())
}

#[test]
fn a_device_reaches_all_so_it_comes_first() {
    let all = [
        told("rxe0", Some("192.0.2.1:0")),
        told("rxe1", Some("198.51.100.7:0")),
        told(SHM_DOMAIN, None),
    ];
    assert_eq!(find(None, None), all);
    for info in on_machine(Asker::OfKestrel, None, None).unwrap() {
        let expected = (info.domain.name != SHM_DOMAIN).then_some(info.domain.name);
        assert_eq!(info.nic.map(|nic| nic.name), expected);
    }
    let mut named = Hints::new();
    named.domain.name = Some("rxe1".into());
    assert_eq!(find(Some(&named), None), all[1..2]);
    named.domain.name = Some("mlx5_0".into());
    assert!(find(Some(&named), None).is_empty());
}

const TO_ALL: Flags = Flags::LOCAL_COMM.union(Flags::REMOTE_COMM);

/// A job would be spread over both, and half of its ranks would reach nobody elsewhere.
#[test]
fn shared_memory_alone_is_no_device_beside_others() {
    let names = |asker, caps, place| -> Vec<String> {
        let found = find_for(asker, Some(&Hints::new().caps(caps)), place);
        found.into_iter().map(|(name, _)| name).collect()
    };
    let all = ["rxe0", "rxe1", SHM_DOMAIN];
    for asker in [Asker::OfKestrel, Asker::OfAnybody] {
        assert_eq!(names(asker, Flags::MSG, None), all[..2]);
        assert_eq!(names(asker, Flags::MSG | TO_ALL, None), all[..2]);
        assert_eq!(names(asker, Flags::MSG | Flags::LOCAL_COMM, None), all);
        assert_eq!(find_for(asker, None, None).len(), 3, "everything is listed");
    }
    // The devices are not on the way there.
    let here = Some(Place::Peers(address("127.0.0.1:4711")));
    assert_eq!(names(Asker::OfKestrel, Flags::MSG, here), [SHM_DOMAIN, "rxe0", "rxe1"]);
    assert_eq!(names(Asker::OfAnybody, Flags::MSG, here), all[..2]);
}

/// Programs that take what fits from any provider would run jobs of several hosts on it.
#[test]
fn shared_memory_alone_is_for_who_asks_for_it() {
    let ask = |asker, caps, domain: Option<&str>, config: &Config| {
        let mut hints = Hints::new().caps(caps);
        hints.domain.name = domain.map(str::to_owned);
        let found = choose(&[Reach::Shm], config, ApiVersion::NATIVE, asker, Some(&hints), None);
        found.map(|found| found[0].caps & TO_ALL).map_err(|error| error.to_string())
    };
    let (plain, here) = (Config::default(), Flags::LOCAL_COMM);
    for caps in [Flags::MSG, Flags::MSG | TO_ALL, Flags::MSG | Flags::REMOTE_COMM] {
        let told = ask(Asker::OfAnybody, caps, None, &plain).unwrap_err();
        assert!(told.contains("prov_name") && told.contains("this host alone"), "{told}");
        // Who names it has it, and what reaches other hosts only if that is asked for.
        let granted = if caps.intersects(Flags::REMOTE_COMM) { TO_ALL } else { here };
        assert_eq!(ask(Asker::OfKestrel, caps, None, &plain), Ok(granted));
        assert_eq!(ask(Asker::OfAnybody, caps, Some(SHM_DOMAIN), &plain), Ok(granted));
        let forced = Config { transport: TransportChoice::Shm, ..Config::default() };
        assert_eq!(ask(Asker::OfAnybody, caps, None, &forced), Ok(granted));
    }
    // What a domain is asked for says it as well: who opens one may have narrowed the rest.
    let mut narrowed = Hints::new().caps(Flags::MSG);
    (narrowed.domain.name, narrowed.domain.caps) = (Some(SHM_DOMAIN.into()), TO_ALL);
    let agreed = agree(&plain, ApiVersion::NATIVE, &narrowed).unwrap();
    assert_eq!(agreed.domain.caps & TO_ALL, TO_ALL);
    assert_eq!(ask(Asker::OfAnybody, Flags::MSG | here, None, &plain), Ok(here));
    assert_eq!(ask(Asker::OfAnybody, Flags::empty(), None, &plain), Ok(here));
    // Who has no hints rates what is found, and is not to find this the best.
    let one_sided = |asker| {
        let found = choose(&[Reach::Shm], &plain, ApiVersion::NATIVE, asker, None, None).unwrap();
        let Info { caps, transmit, receive, .. } = &found[0];
        assert!(caps.contains(Flags::MSG | Flags::TAGGED));
        (*caps | transmit.caps | receive.caps).intersects(Flags::RMA | Flags::ATOMIC | Flags::READ)
    };
    assert_eq!((one_sided(Asker::OfKestrel), one_sided(Asker::OfAnybody)), (true, false));
}

#[test]
fn a_source_chooses_the_device_that_owns_it() {
    let at = |text| find(None, Some(Place::Ours(address(text))));
    let here = "198.51.100.7:4711";
    // What the devices of this test have are no addresses of this host.
    assert_eq!(at(here), [told("rxe1", Some(here))]);
    let six = "[2001:db8::7]:4711";
    assert_eq!(at(six), [told("rxe1", Some(six))]);
    let nobody = "127.0.0.1:4711";
    assert_eq!(at(nobody), [told(SHM_DOMAIN, Some(nobody))]);
    let anywhere = |format| Place::Ours(resolve_source(format, None, Some("4711")).unwrap());
    let found = [
        told("rxe0", Some("192.0.2.1:4711")),
        told("rxe1", Some("198.51.100.7:4711")),
        told(SHM_DOMAIN, Some("127.0.0.1:4711")),
    ];
    let four = Some(anywhere(AddressFormat::Unspec));
    assert_eq!(find(None, four), found, "a port alone can be had anywhere");
    let six = Some(anywhere(AddressFormat::In6));
    let found = [told("rxe1", Some("[2001:db8::7]:4711")), told(SHM_DOMAIN, Some("[::1]:4711"))];
    assert_eq!(find(None, six), found, "where there is an address of that family");
    let found = discover_at(None, Some("4711"), true, None).unwrap();
    assert_eq!(found.last().unwrap().source, Some(address("127.0.0.1:4711")));
    let mut hints = Hints::new();
    hints.source = Some(address(here));
    assert_eq!(find(Some(&hints), None), at(here));
}

#[test]
fn the_source_is_of_the_peers_family() {
    let to = |text| find(None, Some(Place::Peers(address(text))));
    let names = |found: Vec<(String, Option<String>)>| -> Vec<_> {
        found.into_iter().map(|(name, source)| format!("{name} {source:?}")).collect()
    };
    let six = names(to("[2001:db8::1]:4711"));
    assert_eq!(six, ["rxe1 Some(\"[2001:db8::7]:0\")"]);
    let mut hints = Hints::new();
    hints.address_format = AddressFormat::In6;
    assert_eq!(find(Some(&hints), None).len(), 2, "rxe0 has no such address");
}

/// Shared memory is "for reaching a specified node" of this host alone.
#[test]
fn a_peer_of_another_host_is_reached_by_devices_alone() {
    let names = |text| -> Vec<String> {
        let found = find(None, Some(Place::Peers(address(text))));
        found.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names("192.0.2.9:4711"), ["rxe0", "rxe1"]);
    for here in ["127.0.0.1:4711", "127.0.0.9:0", "0.0.0.0:4711"] {
        assert!(names(here).contains(&SHM_DOMAIN.to_owned()), "{here}");
    }
    let elsewhere = Some(Place::Peers(address("192.0.2.9:4711")));
    let config = Config::default();
    let found =
        choose(&[Reach::Shm], &config, ApiVersion::NATIVE, Asker::OfKestrel, None, elsewhere);
    let told = found.unwrap_err().to_string();
    assert!(told.contains("dest_addr") && told.contains("192.0.2.9"), "{told}");
}

/// The endpoint could not be opened there.
#[test]
fn an_address_of_another_host_is_no_source() {
    let at = |text| {
        let place = Some(Place::Ours(address(text)));
        choose(&[Reach::Shm], &Config::default(), ApiVersion::NATIVE, Asker::OfKestrel, None, place)
    };
    let told = at("192.0.2.9:4711").unwrap_err().to_string();
    assert!(told.contains("src_addr") && told.contains("192.0.2.9"), "{told}");
    for here in ["127.0.0.9:4711", "[::1]:4711", "0.0.0.0:4711"] {
        assert!(at(here).is_ok(), "{here}");
    }
}

#[test]
fn the_way_to_a_peer_leads_through_the_address_that_is_its_own() {
    let own = |text: &str| {
        let mut info = discover(None).unwrap().swap_remove(0);
        info.destination = Some(address("127.0.0.1:4711"));
        info.source = Some(address(text));
        reach::is_on_the_way(&info)
    };
    assert!(own("127.0.0.1:0"));
    assert!(!own("192.0.2.1:0"));
}

#[test]
fn verbs_alone_without_a_device_is_an_error_that_says_why() {
    let lookup = |name: &str| match name {
        "FI_KESTREL_TRANSPORT" => Some("verbs".to_owned()),
        "FI_KESTREL_DEVICE" => Some("no_such_device".to_owned()),
        _ => None,
    };
    let config = Config::from_lookup(lookup).unwrap();
    let error =
        discover_with(&config, ApiVersion::NATIVE, Asker::OfKestrel, None, None).unwrap_err();
    assert!(matches!(error, DiscoveryError::NoDevice(_)), "{error:?}");
    assert_eq!(error.errno(), Errno::NODATA);
    assert!(error.to_string().starts_with("FI_KESTREL_TRANSPORT=verbs: "), "{error}");
}

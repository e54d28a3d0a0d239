//! What fi_getinfo makes of a node and a service: addresses that the rest of the interface takes.
//! Reference: fi_getinfo(3).

use std::{
    ffi::{CString, c_int, c_void},
    net::Ipv6Addr,
    ptr::{null, null_mut},
};

use crate::{
    abi::info::Info,
    code,
    connections::{Place, are_told, name},
    flag,
    host::{Host, host},
    kind,
    world::{VERSION, World},
};

/// FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_ADDR_STR and FI_SOCKADDR_IP.
const ANY: u32 = 1;
const IN: u32 = 2;
const IN6: u32 = 3;
const STRINGS: u32 = 9;
const IP: u32 = 17;
/// FI_NUMERICHOST.
const NUMERIC: u64 = 1 << 55;

/// What is found for a node, for hints that `change` makes of none.
pub fn find_with(
    host: &Host,
    (node, service): (Option<&str>, Option<&str>),
    flags: u64,
    change: impl FnOnce(&mut Info),
) -> Result<*mut Info, c_int> {
    let [node, service] = [node, service].map(|text| text.map(|text| CString::new(text).unwrap()));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
    let mut found = null_mut();
    // SAFETY: libfabric allocates hints with all attributes; all strings live on.
    unsafe {
        let hints = (host.dupinfo)(null());
        (*(*hints).fabric_attr).prov_name = libc::strdup(c"kestrel".as_ptr());
        change(&mut *hints);
        let (node, service) = (pointer(&node), pointer(&service));
        let status = (host.getinfo)(VERSION, node, service, flags, hints, &raw mut found);
        (host.freeinfo)(hints);
        if status == 0 { Ok(found) } else { Err(status) }
    }
}

/// An info of fi_getinfo opens a domain and an endpoint, whatever the node and the format: a name has
/// an address of the format's family, and a number of another family finds nothing.
#[test]
fn what_is_found_for_a_node_can_be_opened() {
    let Some(host) = host("what_is_found_for_a_node_can_be_opened") else { return };
    for (node, format, expected) in [
        ("127.0.0.1", 0, Some(IN)),
        ("127.0.0.1", IN, Some(IN)),
        ("127.0.0.1", IN6, None),
        ("127.0.0.1", ANY, Some(ANY)),
        ("::1", 0, Some(IN6)),
        ("::1", IN, None),
        ("::1", IN6, Some(IN6)),
        ("::1", STRINGS, Some(STRINGS)),
        ("localhost", IN, Some(IN)),
        ("127.0.0.1", IP, Some(IP)),
        ("::1", IP, Some(IP)),
    ] {
        for flags in [0, flag::SOURCE] {
            let port = "0";
            let found = find_with(host, (Some(node), Some(port)), flags, |hints| {
                hints.addr_format = format;
            });
            // SAFETY: what was found has all attributes.
            let told = found.map(|info| unsafe { (*info).addr_format });
            assert_eq!(told, expected.ok_or(code::NODATA), "{node} as format {format}");
            if let Ok(info) = found {
                let world = World::over(host, info);
                assert_eq!(crate::world::close(world.open_ep()), 0);
            }
        }
    }
}

/// 127.0.0.1, as hints have it, and its length.
fn loopback() -> (*mut c_void, usize) {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    // SAFETY: the copy has room for the address, and libfabric frees it.
    unsafe {
        let copy = libc::malloc(size_of_val(&address)).cast::<libc::sockaddr_in>();
        copy.write(address);
        (copy.cast(), size_of_val(&address))
    }
}

/// "src_addr … will be ignored in hints if FI_SOURCE flag is set", and dest_addr "unless the node and
/// service parameters are NULL or FI_SOURCE flag is set": also where the format cannot tell them.
#[test]
fn addresses_that_a_node_stands_instead_of_are_ignored() {
    let Some(host) = host("addresses_that_a_node_stands_instead_of_are_ignored") else { return };
    for (flags, ours) in [(flag::SOURCE, true), (0, false)] {
        for ignored in [true, false] {
            let found = find_with(host, (Some("::1"), Some("7000")), flags, |hints| {
                hints.addr_format = IN6;
                if ours == ignored {
                    (hints.src_addr, hints.src_addrlen) = loopback();
                } else {
                    (hints.dest_addr, hints.dest_addrlen) = loopback();
                }
            });
            assert_eq!(found.is_ok(), ignored, "flags {flags:#x}");
            if let Ok(found) = found {
                // SAFETY: libfabric's info.
                unsafe { (host.freeinfo)(found) };
            }
        }
    }
}

/// FI_NUMERICHOST: "the node parameter is a numeric string representation of a fabric address": with a
/// scope as well, and in the short forms of inet_aton(3).
#[test]
fn numbers_have_scopes_and_short_forms() {
    let Some(host) = host("numbers_have_scopes_and_short_forms") else { return };
    for (node, expected) in [
        ("127.1", Ok(&[2, 0, 27, 88, 127, 0, 0, 1][..])),
        ("::1%1", Ok(&[10, 0, 27, 88, 0, 0, 0, 0, 0, 0][..])),
        // The scope is there, and the address is not this host's.
        ("fe80::1%lo", Err(code::NODATA)),
        ("localhost", Err(code::NODATA)),
    ] {
        let found = find_with(host, (Some(node), Some("7000")), flag::SOURCE | NUMERIC, |_| {});
        let told = found.map(|found| {
            // SAFETY: libfabric's info, whose address is that long.
            unsafe {
                let length = (*found).src_addrlen;
                let source = std::slice::from_raw_parts((*found).src_addr.cast(), length).to_vec();
                (host.freeinfo)(found);
                source
            }
        });
        let start = told.as_ref().map(|told| &told[..expected.map_or(0, <[u8]>::len)]);
        assert_eq!(start.map_err(|&status| status), expected, "{node}");
        if let (28, Ok(told)) = (told.as_ref().map_or(0, Vec::len), &told) {
            assert_eq!(told[24..], 1_u32.to_ne_bytes(), "the scope");
        }
    }
}

/// A caller of another family than its listener's: the request's format can tell both addresses, so
/// that an endpoint is opened for it, and says who its peer is.
#[test]
fn a_caller_of_another_family_is_accepted() {
    let Some(host) = host("a_caller_of_another_family_is_accepted") else { return };
    let place = Place::listening(host);
    let own = find_with(host, (Some("::1"), Some("0")), flag::SOURCE, |hints| {
        hints.addr_format = IN6;
        // SAFETY: hints have all attributes.
        unsafe { (*hints.ep_attr).kind = kind::MSG };
    });
    let own = own.unwrap();
    let caller = place.open_ep(own).unwrap();
    let listener = name(place.pep);
    let mut mapped = [0; 28];
    mapped[..2].copy_from_slice(&10_u16.to_ne_bytes());
    mapped[2..4].copy_from_slice(&listener[2..4]);
    mapped[18..20].fill(0xff);
    mapped[20..24].copy_from_slice(&listener[4..8]);
    assert_eq!(caller.connect(&mapped, b""), 0);
    let request = place.request(caller);
    // SAFETY: the infos are libfabric's, and the first is not used any more.
    unsafe {
        (host.freeinfo)(own);
        let info = &*request.info;
        assert_eq!((info.addr_format, info.src_addrlen, info.dest_addrlen), (ANY, 16, 28));
    }
    let acceptor = place.acceptor(&request);
    assert_eq!(acceptor.accept(b""), 0);
    are_told([caller, acceptor]);
    let peer = acceptor.peer(64).unwrap();
    assert_eq!(
        (&peer[..2], &peer[8..24]),
        (&10_u16.to_ne_bytes()[..], &Ipv6Addr::LOCALHOST.octets()[..])
    );
    caller.close();
    acceptor.close();
    place.close();
}

/// "Node, service, or hints may be provided, with any combination being supported": the source of the
/// hints may be of another family than the node.
#[test]
fn addresses_of_two_families_have_a_format_for_both() {
    let Some(host) = host("addresses_of_two_families_have_a_format_for_both") else { return };
    let found = find_with(host, (Some("::1"), Some("4711")), 0, |hints| {
        (hints.src_addr, hints.src_addrlen) = loopback();
    });
    let world = World::over(host, found.unwrap());
    // SAFETY: the info has all attributes.
    let info = unsafe { &*world.info };
    assert_eq!((info.addr_format, info.src_addrlen, info.dest_addrlen), (ANY, 16, 28));
}

/// "Applications may also pass in an FI_ADDR_STR formatted address … as the node parameter. In such
/// cases, the service parameter must be NULL": what fi_getname gives in that format as well.
#[test]
fn a_node_may_be_an_address_string() {
    let Some(host) = host("a_node_may_be_an_address_string") else { return };
    let strings = |hints: &mut Info| hints.addr_format = STRINGS;
    let place = (Some("fi_sockaddr_in://127.0.0.1:0"), None);
    let world = World::over(host, find_with(host, place, flag::SOURCE, strings).unwrap());
    let ep = world.open_ep();
    let name = crate::connections::name(ep);
    let name = CString::from_vec_with_nul(name).unwrap().into_string().unwrap();
    assert!(name.starts_with("fi_sockaddr_in://127.0.0.1:") && !name.ends_with(":0"), "{name}");
    for flags in [0, NUMERIC] {
        let found = find_with(host, (Some(&name), None), flags, strings).unwrap();
        // SAFETY: libfabric's info; an address of this format is a string.
        unsafe {
            let peer = std::ffi::CStr::from_ptr((*found).dest_addr.cast());
            assert_eq!((peer.to_str(), (*found).addr_format), (Ok(&name[..]), STRINGS));
            (host.freeinfo)(found);
        }
        // Without a format that is asked for, it is that of the address.
        let found = find_with(host, (Some(&name), None), flags, |_| {}).unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(((*found).addr_format, (*found).dest_addrlen), (IN, 16));
            (host.freeinfo)(found);
        }
    }
    for (service, format) in [(None, IN6), (Some("7"), STRINGS)] {
        let place = (Some(&name[..]), service);
        let found = find_with(host, place, 0, |hints| hints.addr_format = format);
        assert_eq!(found, Err(code::NODATA), "{service:?}");
    }
    assert_eq!(crate::world::close(ep), 0);
}

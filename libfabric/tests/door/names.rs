//! Addresses that endpoints are given, and those that they connect to: fi_cm(3), `fi_setname`,
//! `fi_connect`.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    net::SocketAddr,
    ptr::{null, null_mut},
};

use kestrel_core::address::Address;
use kestrel_tests::reserved::{own_address, own_addresses};

use crate::{
    abi::{
        fid::{FidEp, FidPep},
        info::Info,
    },
    code,
    connections::name,
    contexts::{open_sep, scalable_world, tx_context},
    flag,
    host::{Host, host},
    kind,
    world::{self, bind, close, cq_attr, enable},
};

/// FI_SOCKADDR_IN, FI_SOCKADDR_IN6 and FI_ADDR_STR.
const IN: u32 = 2;
const IN6: u32 = 3;
const STRINGS: u32 = 9;

/// A fabric and a domain, and what is opened on them.
struct Place {
    host: &'static Host,
    info: *mut Info,
    fabric: *mut crate::abi::fid::FidFabric,
    domain: *mut crate::abi::fid::FidDomain,
}

impl Place {
    fn new(host: &'static Host, format: u32, kind: u32) -> Place {
        let info = world::info(host, |hints| {
            hints.addr_format = format;
            // SAFETY: hints have all attributes.
            unsafe { (*hints.ep_attr).kind = kind }
        });
        Place::of(host, info.expect("kestrel offers this"))
    }

    fn of(host: &'static Host, info: *mut Info) -> Place {
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        // SAFETY: the info is libfabric's; each place is valid.
        unsafe {
            assert_eq!((host.fabric)((*info).fabric_attr, &raw mut fabric, null_mut()), 0);
            let ops = &*(*fabric).ops;
            assert_eq!((ops.domain)(fabric, info, &raw mut domain, null_mut()), 0);
        }
        Place { host, info, fabric, domain }
    }

    fn endpoint(&self) -> Result<*mut FidEp, c_int> {
        let mut ep = null_mut();
        // SAFETY: the domain is open.
        let status = unsafe {
            ((*(*self.domain).ops).endpoint)(self.domain, self.info, &raw mut ep, null_mut())
        };
        if status == 0 { Ok(ep) } else { Err(status) }
    }

    fn passive(&self) -> *mut FidPep {
        let mut pep = null_mut();
        // SAFETY: the fabric is open.
        unsafe {
            let open = (*(*self.fabric).ops).passive_ep;
            assert_eq!(open(self.fabric, self.info, &raw mut pep, null_mut()), 0);
        }
        pep
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for status in [close(self.domain), close(self.fabric)] {
            assert!(std::thread::panicking() || status == 0, "closing: {status}");
        }
        // SAFETY: the info is not used any more.
        unsafe { (self.host.freeinfo)(self.info) };
    }
}

pub fn bytes(text: &str) -> Vec<u8> {
    Address::from(text.parse::<SocketAddr>().unwrap()).to_bytes().to_vec()
}

/// `fi_setname`, of a passive or an active endpoint: both begin alike, up to this table.
pub fn set_name<T>(endpoint: *mut T, bytes: &[u8]) -> c_int {
    let endpoint = endpoint.cast::<FidPep>();
    // SAFETY: the endpoint is open, and the address is there.
    unsafe {
        let setname = (*(*endpoint).cm).setname;
        setname(endpoint.cast(), bytes.as_ptr().cast_mut().cast(), bytes.len())
    }
}

fn connect(ep: *mut FidEp, address: *const c_void) -> c_int {
    // SAFETY: the endpoint is open, and what it takes for an address is there.
    unsafe { ((*(*ep).cm).connect)(ep, address, null(), 0) }
}

#[test]
fn what_is_no_address_string_is_refused() {
    let Some(host) = host("what_is_no_address_string_is_refused") else { return };
    let place = Place::new(host, STRINGS, kind::MSG);
    let (ep, pep) = (place.endpoint().unwrap(), place.passive());
    for text in [c"127.0.0.1:5000", c"somewhere", c"", c"fi_sockaddr_in://host:5"] {
        assert_eq!(connect(ep, text.as_ptr().cast()), code::INVAL, "{text:?}");
        for endpoint in [ep.cast(), pep] {
            assert_eq!(set_name(endpoint, text.to_bytes_with_nul()), code::INVAL, "{text:?}");
        }
    }
    // The string itself, as fi_getname gives it: only the queues are missing.
    let own = name(ep);
    let text = CStr::from_bytes_with_nul(&own).expect("a string");
    assert_eq!((connect(ep, text.as_ptr().cast()), set_name(ep, &own)), (code::NOCQ, 0));
    assert_eq!((close(ep), close(pep)), (0, 0));
}

#[test]
fn an_address_of_another_format_is_refused() {
    let Some(host) = host("an_address_of_another_format_is_refused") else { return };
    for (format, own, other) in [(IN, "127.0.0.1:0", "[::1]:0"), (IN6, "[::1]:0", "127.0.0.1:0")] {
        let place = Place::new(host, format, kind::MSG);
        let (ep, pep) = (place.endpoint().unwrap(), place.passive());
        // No longer than it is: what reads more than that can be seen to.
        let other = bytes(other).into_boxed_slice();
        assert_eq!(connect(ep, other.as_ptr().cast()), code::INVAL);
        for endpoint in [ep.cast(), pep] {
            let before = name(endpoint);
            assert_eq!(set_name(endpoint, &other), code::INVAL);
            assert_eq!(name(endpoint), before);
            assert_eq!(set_name(endpoint, &bytes(own)), 0);
        }
        assert_eq!((close(ep), close(pep)), (0, 0));
    }
}

#[test]
fn half_an_address_keeps_the_other_half() {
    let Some(host) = host("half_an_address_keeps_the_other_half") else { return };
    let place = Place::new(host, IN, kind::MSG);
    let (ep, pep) = (place.endpoint().unwrap(), place.passive());
    for endpoint in [ep.cast(), pep] {
        let whole = |bytes: &[u8]| Address::from_bytes(bytes).unwrap();
        let port = whole(&name(endpoint)).port();
        assert_eq!(set_name(endpoint, &bytes("127.0.7.9:0")), 0);
        let expected = Address::new([127, 0, 7, 9].into(), port);
        assert_eq!(whole(&name(endpoint)), expected, "the port stays");
        // A port that was free a moment ago.
        let free = place.passive();
        let port = whole(&name(free)).port();
        assert_eq!((close(free), set_name(endpoint, &bytes(&format!("0.0.0.0:{port}")))), (0, 0));
        assert_eq!(whole(&name(endpoint)), expected.with_port(port), "the host stays");
    }
    assert_eq!((close(ep), close(pep)), (0, 0));
}

#[test]
fn an_address_of_another_host_is_refused() {
    let Some(host) = host("an_address_of_another_host_is_refused") else { return };
    // Kept for documents: nobody has it.
    const ELSEWHERE: &CStr = c"192.0.2.1";
    let place = Place::new(host, IN, kind::MSG);
    let (ep, pep) = (place.endpoint().unwrap(), place.passive());
    for endpoint in [ep.cast(), pep] {
        let before = name(endpoint);
        for port in [0, 5000] {
            let elsewhere = bytes(&format!("{}:{port}", ELSEWHERE.to_str().unwrap()));
            assert_eq!(set_name(endpoint, &elsewhere), code::ADDRNOTAVAIL);
        }
        assert_eq!(name(endpoint), before);
    }
    assert_eq!((close(ep), close(pep)), (0, 0));
    drop(place);
    // As the source that fi_getinfo is told.
    let here = own_address();
    let service = CString::new(here.port().to_string()).unwrap();
    let here = CString::new(here.ip().to_string()).unwrap();
    for (node, expected) in [(ELSEWHERE, code::NODATA), (&here, 0)] {
        let (mut info, version, source) = (null_mut(), world::VERSION, flag::SOURCE);
        // SAFETY: the names are C strings, and the place is valid.
        let status = unsafe {
            let (node, service) = (node.as_ptr(), service.as_ptr());
            (host.getinfo)(version, node, service, source, null(), &raw mut info)
        };
        assert_eq!(status, expected, "{node:?}");
        if status == 0 {
            assert_eq!(close(Place::of(host, info).endpoint().unwrap()), 0);
        }
    }
}

#[test]
fn a_scalable_endpoint_is_named_until_a_context_is_enabled() {
    let Some(host) = host("a_scalable_endpoint_is_named_until_a_context_is_enabled") else {
        return;
    };
    let world = scalable_world(host);
    let [sep, other] = [(); 2].map(|()| open_sep(&world).unwrap());
    let transmit = tx_context(sep, 1, null_mut()).unwrap();
    let ([before, taken], free) = ([sep, other].map(name), own_addresses(2).to_bytes().to_vec());
    for (address, expected) in [
        (bytes("[::1]:0"), code::INVAL),
        (bytes("192.0.2.1:0"), code::ADDRNOTAVAIL),
        (taken, code::ADDRINUSE),
        (bytes("0.0.0.0:0"), 0),
    ] {
        assert_eq!(set_name(sep, &address), expected, "{address:?}");
        assert_eq!((name(sep), name(transmit)), (before.clone(), before.clone()));
    }
    assert_eq!(set_name(sep, &free), 0);
    assert_eq!((name(sep), name(transmit)), (free.clone(), free.clone()));
    // "The transmit and receive contexts share the transport-level address."
    assert_eq!(set_name(transmit, &before), code::INVAL);
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!((bind(sep, world.av, 0), enable(sep)), (0, 0));
    assert_eq!((bind(transmit, cq, flag::SEND), enable(transmit)), (0, 0));
    assert_eq!((set_name(sep, &before), name(sep)), (code::OPBADSTATE, free));
    assert_eq!([close(transmit), close(sep), close(other), close(cq)], [0; 4]);
    assert_eq!(set_name(sep, &before), code::BADF);
}

//! fi_getinfo: what there is, and what is refused.

use std::{
    ffi::{CStr, CString},
    mem,
    ptr::{null, null_mut},
};

use crate::{
    abi::{
        fid::Provider,
        info::{DomainAttr, FabricAttr, Info, TxAttr},
    },
    code,
    contexts::{NAMED_RX_CTX, SHARED, open_sep, tx_context},
    flag,
    host::{Host, host},
    kind,
    world::{VERSION, World, auth_key, close, info},
};

fn find(
    host: &Host,
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
) -> Result<*mut Info, i32> {
    let text = |text: Option<&str>| text.map(|text| CString::new(text).unwrap());
    let (node, service) = (text(node), text(service));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
    let mut found = null_mut();
    // SAFETY: all strings live on; libfabric allocates the list.
    let status = unsafe {
        (host.getinfo)(VERSION, pointer(&node), pointer(&service), flags, null(), &raw mut found)
    };
    if status == 0 { Ok(found) } else { Err(status) }
}

#[test]
fn without_hints_everything_is_told() {
    let Some(host) = host("without_hints_everything_is_told") else { return };
    let found = find(host, None, None, 0).unwrap();
    // SAFETY: libfabric's list, with all attributes.
    unsafe {
        let name = CStr::from_ptr((*(*found).fabric_attr).prov_name);
        assert_eq!(name, c"kestrel");
        assert!(!(*(*found).domain_attr).name.is_null());
        assert_eq!((*found).caps & (flag::MSG | flag::TAGGED), flag::MSG | flag::TAGGED);
        assert_eq!((*(*found).ep_attr).kind, kind::RDM);
        assert!((*(*found).tx_attr).inject_size >= 64);
        // A copy reads every tail of the version that is installed.
        let copy = (host.dupinfo)(found);
        (host.freeinfo)(copy);
        (host.freeinfo)(found);
    }
}

#[test]
fn no_utility_provider_is_put_over_kestrel() {
    let Some(host) = host("no_utility_provider_is_put_over_kestrel") else { return };
    let found = find(host, None, None, 0).unwrap();
    let mut next = found;
    // SAFETY: libfabric's list.
    unsafe {
        while !next.is_null() {
            let name = CStr::from_ptr((*(*next).fabric_attr).prov_name).to_string_lossy();
            assert!(!name.contains("kestrel;"), "{name}");
            next = (*next).next;
        }
        (host.freeinfo)(found);
    }
    // libfabric keeps this flag to itself; what comes of it is tested above.
    let _ = flag::CORE_PROVIDER_ONLY;
}

#[test]
fn node_and_service_become_an_address() {
    let Some(host) = host("node_and_service_become_an_address") else { return };
    let found = find(host, Some("127.0.0.1"), Some("4711"), flag::SOURCE).unwrap();
    // SAFETY: libfabric's list; an address of AF_INET has 16 bytes.
    unsafe {
        assert_eq!(((*found).src_addrlen, (*found).dest_addrlen), (16, 0));
        let bytes = std::slice::from_raw_parts((*found).src_addr.cast::<u8>(), 16);
        assert_eq!(bytes[2..8], [18, 103, 127, 0, 0, 1]);
        (host.freeinfo)(found);
    }
    let found = find(host, Some("127.0.0.1"), Some("4711"), 0).unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!(((*found).src_addrlen, (*found).dest_addrlen), (16, 16));
        (host.freeinfo)(found);
    }
    assert_eq!(find(host, Some("no such node"), Some("1"), 1 << 55), Err(code::NODATA));
}

/// # Safety
/// The hints have a domain's attributes.
unsafe fn set_domain_key(hints: &mut Info, key: &[u8]) {
    // SAFETY: the caller vouches for it.
    let attr = unsafe { &mut *hints.domain_attr };
    (attr.auth_key, attr.auth_key_size) = auth_key(key);
}

#[test]
fn authorization_keys_are_answered_and_copied() {
    let Some(host) = host("authorization_keys_are_answered_and_copied") else { return };
    // SAFETY: hints and answers have all attributes, and keys their sizes.
    unsafe {
        let found = info(host, |hints| {
            let attr = &mut *hints.ep_attr;
            (attr.auth_key, attr.auth_key_size) = auth_key(b"endpoint");
            set_domain_key(hints, b"job");
        })
        .unwrap();
        let copy = (host.dupinfo)(found);
        (host.freeinfo)(found);
        let (ep, domain) = (&*(*copy).ep_attr, &*(*copy).domain_attr);
        assert_eq!(std::slice::from_raw_parts(ep.auth_key, ep.auth_key_size), b"endpoint");
        assert_eq!(std::slice::from_raw_parts(domain.auth_key, domain.auth_key_size), b"job");
        (host.freeinfo)(copy);
    }
}

/// "This field is ignored unless the fabric is opened with API version 1.5 or greater."
#[test]
fn older_applications_have_no_keys() {
    let Some(host) = host("older_applications_have_no_keys") else { return };
    const V1_4: u32 = 1 << 16 | 4;
    for (version, size) in [(V1_4, 0), (VERSION, 3)] {
        let mut found = null_mut();
        // SAFETY: hints and answers have all attributes, and keys their sizes.
        unsafe {
            let hints = (host.dupinfo)(null());
            let attr = &mut *(*hints).ep_attr;
            (attr.auth_key, attr.auth_key_size) = auth_key(b"key");
            set_domain_key(&mut *hints, b"key");
            (*(*hints).fabric_attr).prov_name = libc::strdup(c"kestrel".as_ptr());
            let place = &raw mut found;
            assert_eq!((host.getinfo)(version, null(), null(), 0, hints, place), 0);
            assert_eq!((*(*found).ep_attr).auth_key_size, size);
            assert_eq!((*(*found).domain_attr).auth_key_size, size);
            (host.freeinfo)(hints);
            (host.freeinfo)(found);
        }
    }
}

#[test]
fn hints_that_cannot_be_met_find_nothing() {
    let Some(host) = host("hints_that_cannot_be_met_find_nothing") else { return };
    let refused = |change: fn(&mut Info)| assert_eq!(info(host, change), Err(code::NODATA));
    // SAFETY: hints have all attributes.
    unsafe {
        refused(|hints| (*hints.ep_attr).kind = 77);
        refused(|hints| (*hints.tx_attr).inject_size = 1 << 40);
        refused(|hints| (*hints.tx_attr).rma_iov_limit = 9);
        for kind in [kind::SOCK_STREAM, kind::SOCK_DGRAM] {
            let shared = info(host, |hints| {
                (*hints.ep_attr).kind = kind;
                (*hints.ep_attr).rx_ctx_cnt = SHARED;
            });
            assert_eq!(shared, Err(code::NODATA), "sockets share nothing");
        }
        refused(|hints| (*hints.domain_attr).mr_key_size = 100);
        refused(|hints| (*hints.domain_attr).threading = 4_000_000);
        refused(|hints| hints.caps = 1 << 47);
        refused(|hints| hints.addr_format = 4);
        refused(|hints| set_domain_key(hints, &[1; 513]));
    }
}

#[test]
fn traffic_classes_are_answered() {
    let Some(host) = host("traffic_classes_are_answered") else { return };
    let (low_latency, code_point, unknown) = (0x201, 0x100 | 46, 0x206);
    // SAFETY: hints and answers have all attributes.
    unsafe {
        for (own, domain, expected) in
            [(low_latency, 0, low_latency), (0, code_point, 0), (0, 0, 0)]
        {
            let found = info(host, |hints| {
                (*hints.tx_attr).tclass = own;
                (*hints.domain_attr).tclass = domain;
            })
            .unwrap();
            let answered = ((*(*found).tx_attr).tclass, (*(*found).domain_attr).tclass);
            assert_eq!(answered, (expected, domain));
            (host.freeinfo)(found);
        }
        let refused = info(host, |hints| (*hints.tx_attr).tclass = unknown);
        assert_eq!(refused, Err(code::NODATA));
    }
}

#[test]
fn what_is_asked_for_is_echoed() {
    let Some(host) = host("what_is_asked_for_is_echoed") else { return };
    for threading in 1..=5 {
        // SAFETY: hints and answers have all attributes.
        unsafe {
            let found = info(host, |hints| {
                (*hints.domain_attr).threading = threading;
                hints.caps = flag::TAGGED;
            })
            .unwrap();
            assert_eq!((*(*found).domain_attr).threading, threading);
            assert_eq!((*found).caps & (flag::MSG | flag::TAGGED), flag::TAGGED);
            (host.freeinfo)(found);
        }
    }
}

/// The newest version that there will ever be.
const NEWEST: u32 = u32::MAX;

#[test]
fn an_application_from_the_future_is_answered() {
    let Some(host) = host("an_application_from_the_future_is_answered") else { return };
    let mut found = null_mut();
    // SAFETY: the place is valid.
    let status = unsafe { (host.getinfo)(NEWEST, null(), null(), 0, null(), &raw mut found) };
    assert_eq!((status, found), (code::NOSYS, null_mut()), "libfabric itself is too old for it");
    // A libfabric as new as that would ask us.
    let provider = provider();
    // SAFETY: what is null is what is tested.
    unsafe {
        let getinfo = provider.getinfo;
        assert_eq!(getinfo(NEWEST, null(), null(), 0, null(), &raw mut found), 0);
        (host.freeinfo)(found);
        assert_eq!(getinfo(VERSION, null(), null(), 0, null(), null_mut()), code::INVAL);
        let (mut fabric, none) = (null_mut(), null_mut());
        let mut attr = FabricAttr {
            fabric: null_mut(),
            name: c"another".as_ptr().cast_mut(),
            prov_name: null_mut(),
            prov_version: 0,
            api_version: NEWEST,
        };
        let open = provider.fabric;
        assert_eq!(open(&raw mut attr, &raw mut fabric, none), code::NODATA);
        assert_eq!(open(null_mut(), &raw mut fabric, none), code::INVAL);
        assert_eq!(open(&raw mut attr, null_mut(), none), code::INVAL);
        attr.name = null_mut();
        assert_eq!(open(&raw mut attr, &raw mut fabric, none), 0);
        let domain = &mut null_mut();
        assert_eq!(((*(*fabric).ops).domain)(fabric, null_mut(), domain, none), code::INVAL);
        assert_eq!(crate::world::close(fabric), 0);
    }
}

/// fi_getinfo(3), "FLAGS" and "ERRORS": "FI_EBADFLAGS: The specified endpoint or domain capability or
/// operation flags are invalid"; FI_SOURCE: "either the node and/or service parameter must be
/// non-NULL". libfabric answers -FI_ENODATA, since no provider has anything then.
#[test]
fn flags_that_mean_nothing_are_refused() {
    let Some(host) = host("flags_that_mean_nothing_are_refused") else { return };
    const RESCAN: u64 = 1 << 35;
    const UNKNOWN: u64 = 1 << 20;
    if let Ok(found) = find(host, None, None, RESCAN) {
        // SAFETY: libfabric's list.
        unsafe { (host.freeinfo)(found) };
    } else {
        panic!("FI_RESCAN finds what there is");
    }
    let getinfo = provider().getinfo;
    for (flags, told) in
        [(UNKNOWN, code::BADFLAGS), (RESCAN | UNKNOWN, code::BADFLAGS), (flag::SOURCE, code::INVAL)]
    {
        assert_eq!(find(host, None, None, flags), Err(code::NODATA));
        let mut found = null_mut();
        // SAFETY: libfabric passes null for what is not given; the place is valid.
        let status = unsafe { getinfo(VERSION, null(), null(), flags, null(), &raw mut found) };
        assert_eq!((status, found), (told, null_mut()), "{flags:#x}");
    }
}

/// FI_TAGGED_MULTI_RECV and FI_TAGGED_DIRECTED_RECV are of version 2.0, whatever libfabric is
/// installed. Receives that may not be for anybody (FI_EXACT_DIRECTED_RECV), device memory and
/// other providers' objects are offered by no version.
#[test]
fn some_capabilities_came_with_a_version() {
    let Some(host) = host("some_capabilities_came_with_a_version") else { return };
    const PEER: u64 = 1 << 43;
    const HMEM: u64 = 1 << 47;
    const EXACT_DIRECTED_RECV: u64 = 1 << 48;
    let getinfo = provider().getinfo;
    for version in [VERSION, 2 << 16, 2 << 16 | 1, 2 << 16 | 6] {
        let ask = |caps: u64, answered: u64| {
            let mut found = null_mut();
            // SAFETY: zeroes are hints without attributes; answers are libfabric's to free.
            unsafe {
                let mut hints: Info = mem::zeroed();
                hints.caps = flag::TAGGED | flag::MSG | caps;
                let status = getinfo(version, null(), null(), 0, &raw const hints, &raw mut found);
                if status == 0 {
                    assert_eq!((*found).caps & (caps | answered), answered, "{version:#x}");
                    (host.freeinfo)(found);
                }
                status
            }
        };
        let two = version >= 2 << 16;
        for since in [flag::TAGGED_MULTI_RECV, flag::TAGGED_DIRECTED_RECV] {
            assert_eq!(ask(since, since), if two { 0 } else { code::NODATA });
        }
        // Before, the bit was FI_VARIABLE_MSG.
        assert!(!two || ask(EXACT_DIRECTED_RECV, 0) == code::NODATA);
        assert_eq!(ask(0, 0), 0);
        assert_eq!((ask(HMEM, 0), ask(PEER, 0)), (code::NODATA, code::NODATA));
    }
}

/// "The progress field defines the behavior of both control and data operations" (fi_domain(3)) since 2.0; before, there
/// is one for each.
#[test]
fn progress_is_of_both_kinds_since_2_0() {
    let Some(host) = host("progress_is_of_both_kinds_since_2_0") else { return };
    const AUTO: u32 = 1;
    const MANUAL: u32 = 2;
    for (version, control, expected) in
        [(VERSION, 0, MANUAL), (2 << 16, 0, AUTO), (2 << 16, MANUAL, MANUAL)]
    {
        let mut found = null_mut();
        // SAFETY: zeroes are hints without attributes; the answer is libfabric's to free.
        unsafe {
            let mut attr: DomainAttr = mem::zeroed();
            (attr.data_progress, attr.control_progress) = (AUTO, control);
            let hints = Info { domain_attr: &raw mut attr, ..mem::zeroed() };
            let getinfo = provider().getinfo;
            assert_eq!(getinfo(version, null(), null(), 0, &raw const hints, &raw mut found), 0);
            let told = &*(*found).domain_attr;
            assert_eq!((told.data_progress, told.control_progress), (AUTO, expected));
            (host.freeinfo)(found);
        }
    }
}

/// What libfabric holds of the library that it loaded.
pub fn provider() -> &'static Provider {
    let folder = std::env::var("FI_PROVIDER_PATH").expect("set when libfabric was loaded");
    let path = CString::new(format!("{folder}/libkestrel_fi.so")).unwrap();
    // SAFETY: the library is there already, and its entry has this type; libfabric called it
    // before, and what it answers is static.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW);
        assert!(!library.is_null(), "{path:?} is not loaded");
        let entry = libc::dlsym(library, c"fi_prov_ini".as_ptr());
        assert!(!entry.is_null());
        let entry: extern "C" fn() -> *mut Provider = mem::transmute(entry);
        &*entry()
    }
}

/// "If tclass is unset or set to FI_TC_UNSPEC, the endpoint will use the default traffic class
/// associated with the domain": the one that it is opened on, whatever else its info says.
#[test]
fn an_endpoint_has_its_domains_class() {
    let Some(host) = host("an_endpoint_has_its_domains_class") else { return };
    const OURS: u32 = 0x100 | 46;
    const OTHER: u32 = 0x201;
    let world = World::empty(host, |hints| {
        hints.caps = flag::MSG | NAMED_RX_CTX;
        // SAFETY: hints have all attributes.
        unsafe { (*hints.domain_attr).tclass = OURS };
    });
    for (asked, told) in [(0, OURS), (OTHER, OTHER)] {
        // SAFETY: the info has all attributes.
        unsafe {
            (*(*world.info).domain_attr).tclass = OTHER;
            (*(*world.info).tx_attr).tclass = asked;
        }
        let sep = open_sep(&world).unwrap();
        // SAFETY: attributes of zeroes are valid.
        let mut tx = unsafe { mem::zeroed::<TxAttr>() };
        let context = tx_context(sep, 0, &raw mut tx).unwrap();
        assert_eq!(tx.tclass, told);
        assert_eq!((close(context), close(sep)), (0, 0));
    }
}

//! Address vectors: every call of fi_av(3), as an application makes it.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
    ptr::{null, null_mut},
};

use kestrel_core::address::Address;

use crate::{
    abi::{
        attributes::{AvAttr, EqAttr, EqEntry, EqErrEntry},
        fid::{FidAv, FidEq},
    },
    code,
    host::{Host, host},
    kind,
    world::{World, av_attr, bind, close},
};

const NONE: *mut c_void = null_mut();
const NOTAVAIL: u64 = u64::MAX;
const MAP: u32 = 1;
const TABLE: u32 = 2;
/// FI_ADDR_STR.
pub const STRINGS: u32 = 9;
pub const AV_COMPLETE: u32 = 5;
const MORE: u64 = 1 << 18;
pub const EVENT: u64 = 1 << 24;
const SYNC_ERR: u64 = 1 << 58;
pub const SYMMETRIC: u64 = 1 << 59;

/// The bytes of `sockaddr_in`s, one after the other.
fn bytes(addresses: &[&str]) -> Vec<u8> {
    let parse =
        |text: &&str| Address::from(text.parse::<SocketAddr>().unwrap()).to_bytes().to_vec();
    addresses.iter().flat_map(parse).collect()
}

/// An address vector of a world.
pub struct Vector {
    pub av: *mut FidAv,
}

impl Vector {
    pub fn try_open(world: &World, attr: &mut AvAttr) -> Result<Vector, c_int> {
        let mut av = null_mut();
        // SAFETY: the domain is open.
        let status =
            unsafe { ((*(*world.domain).ops).av_open)(world.domain, attr, &raw mut av, NONE) };
        if status == 0 { Ok(Vector { av }) } else { Err(status) }
    }

    pub fn open(world: &World, flags: u64) -> Vector {
        Vector::try_open(world, &mut AvAttr { flags, ..av_attr() }).unwrap()
    }

    pub fn insert(
        &self,
        addresses: &[&str],
        fi_addrs: &mut [u64],
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        let bytes = bytes(addresses);
        let places = if fi_addrs.is_empty() { null_mut() } else { fi_addrs.as_mut_ptr() };
        // SAFETY: the vector is open, and there are so many addresses and places.
        unsafe {
            let insert = (*(*self.av).ops).insert;
            insert(self.av, bytes.as_ptr().cast(), addresses.len(), places, flags, context)
        }
    }

    pub fn service<'a>(
        &self,
        node: impl Into<Option<&'a CStr>>,
        service: Option<&CStr>,
        fi_addr: &mut u64,
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        let node = node.into().map_or(null(), CStr::as_ptr);
        let service = service.map_or(null(), CStr::as_ptr);
        // SAFETY: the vector is open, the names are C strings.
        unsafe {
            let insert = (*(*self.av).ops).insertsvc;
            insert(self.av, node, service, fi_addr, flags, context)
        }
    }

    pub fn symmetric(
        &self,
        node: &CStr,
        nodes: usize,
        services: usize,
        fi_addrs: &mut [u64],
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        assert_eq!(fi_addrs.len(), nodes * services);
        let service = c"5000".as_ptr();
        // SAFETY: the vector is open, the names are C strings, and there is room for as many.
        unsafe {
            let insert = (*(*self.av).ops).insertsym;
            let places = fi_addrs.as_mut_ptr();
            insert(self.av, node.as_ptr(), nodes, service, services, places, flags, context)
        }
    }

    pub fn lookup(&self, fi_addr: u64) -> Result<String, c_int> {
        let (mut room, mut length) = ([0_u8; 64], 64);
        // SAFETY: the vector is open, and the buffer has that length.
        let status = unsafe {
            ((*(*self.av).ops).lookup)(self.av, fi_addr, room.as_mut_ptr().cast(), &raw mut length)
        };
        if status != 0 {
            return Err(status);
        }
        Ok(Address::from_bytes(&room[..length]).unwrap().socket_addr().to_string())
    }

    pub fn remove(&self, fi_addrs: &mut [u64]) -> c_int {
        // SAFETY: the vector is open, and there are so many.
        unsafe { ((*(*self.av).ops).remove)(self.av, fi_addrs.as_mut_ptr(), fi_addrs.len(), 0) }
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        let status = close(self.av);
        assert!(std::thread::panicking() || status == 0 || status == code::BADF, "{status}");
    }
}

#[test]
fn indices_count_up_and_gaps_are_filled() {
    let Some(host) = host("indices_count_up_and_gaps_are_filled") else { return };
    let world = World::empty(host, |_| {});
    for (asked, kind, flags) in [(0, TABLE, 0), (TABLE, TABLE, SYMMETRIC), (MAP, MAP, 0)] {
        let mut attr = AvAttr { kind: asked, count: 4, ep_per_node: 2, flags, ..av_attr() };
        let vector = Vector::try_open(&world, &mut attr).unwrap();
        assert_eq!(attr.kind, kind, "the provider's choice is told");
        let all = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"];
        assert_eq!(vector.insert(&all[..1], &mut [], MORE, NONE), 1);
        assert_eq!(vector.insert(&all[1..], &mut [], 0, NONE), 2);
        assert_eq!(vector.insert(&[], &mut [], 0, NONE), 0);
        for (index, address) in (0..).zip(all) {
            assert_eq!(vector.lookup(index).as_deref(), Ok(address));
        }
        assert_eq!(vector.remove(&mut [1]), 0);
        assert_eq!((vector.lookup(1), vector.remove(&mut [1])), (Err(code::INVAL), code::INVAL));
        let mut found = [0; 2];
        assert_eq!(vector.insert(&["10.0.0.3:7", all[1]], &mut found, 0, NONE), 2);
        assert_eq!(found, [1, 3], "the lowest that is unused first");
        assert_eq!(vector.lookup(3).as_deref(), Ok(all[1]), "removed, and inserted again");
    }
}

#[test]
fn each_failed_address_is_told() {
    let Some(host) = host("each_failed_address_is_told") else { return };
    let world = World::empty(host, |_| {});
    let vector = Vector::open(&world, 0);
    let (mut found, mut errors) = ([7; 3], [7_i32; 3]);
    let addresses = ["10.0.0.1:1", "0.0.0.0:2", "10.0.0.1:3"];
    let context = errors.as_mut_ptr().cast();
    assert_eq!(vector.insert(&addresses, &mut found, SYNC_ERR, context), 2);
    const ADDRNOTAVAIL: i32 = 99;
    assert_eq!((found, errors), ([0, NOTAVAIL, 1], [0, ADDRNOTAVAIL, 0]));
    // Of another format than the domain's.
    assert_eq!(vector.insert(&["[::1]:5"], &mut found[..1], SYNC_ERR, context), 0);
    assert_eq!((found[0], errors[0]), (NOTAVAIL, -code::INVAL));
    let string = c"fi_sockaddr_in6://[::1]:2";
    assert_eq!(vector.service(string, None, &mut found[0], SYNC_ERR, context), 0);
    assert_eq!((found[0], errors[0]), (NOTAVAIL, -code::INVAL));
    // Where nothing is told, looking up does: each has the number of its position.
    let addresses = ["0.0.0.0:1", "10.0.0.2:1", "0.0.0.0:2", "10.0.0.2:2"];
    assert_eq!(vector.insert(&addresses, &mut [], 0, NONE), 2);
    let (none, at) = (Err(code::INVAL), |fi_addr| vector.lookup(fi_addr));
    assert_eq!((at(2), at(3).as_deref()), (none.clone(), Ok("10.0.0.2:1")));
    assert_eq!((at(4), at(5).as_deref(), at(6)), (none.clone(), Ok("10.0.0.2:2"), none));
}

/// "In both the synchronous and asynchronous modes of operation, the fi_addr buffer associated with
/// a failed or aborted insertion will be set to FI_ADDR_NOTAVAIL."
#[test]
fn a_call_that_fails_says_so_of_each_address() {
    let Some(host) = host("a_call_that_fails_says_so_of_each_address") else { return };
    let world = World::empty(host, |_| {});
    let vector = Vector::open(&world, 0);
    const UNKNOWN: u64 = 1 << 40;
    let addresses = ["10.0.0.1:1", "10.0.0.1:2"];
    let (mut found, mut errors) = ([7; 3], [7_i32; 3]);
    let context: *mut c_void = errors.as_mut_ptr().cast();
    let flags = UNKNOWN | SYNC_ERR;
    assert_eq!(vector.insert(&addresses, &mut found, flags, context), code::BADFLAGS);
    assert_eq!((found, errors), ([NOTAVAIL, NOTAVAIL, 7], [260, 260, 7]));
    (found, errors) = ([7; 3], [7; 3]);
    assert_eq!(vector.service(c"127.0.0.1", None, &mut found[0], SYNC_ERR, context), code::INVAL);
    assert_eq!((found, errors), ([NOTAVAIL, 7, 7], [22, 7, 7]));
    (found, errors) = ([7; 3], [7; 3]);
    assert_eq!(
        vector.symmetric(c"localhost", 2, 1, &mut found[..2], SYNC_ERR, context),
        code::INVAL
    );
    assert_eq!((found, errors), ([NOTAVAIL, NOTAVAIL, 7], [22, 22, 7]));
}

#[test]
fn what_does_not_fit_is_cut_and_its_length_told() {
    let Some(host) = host("what_does_not_fit_is_cut_and_its_length_told") else { return };
    let world = World::empty(host, |_| {});
    let vector = Vector::open(&world, 0);
    assert_eq!(vector.insert(&["10.0.0.1:258"], &mut [], 0, NONE), 1);
    let expected = bytes(&["10.0.0.1:258"]);
    // SAFETY: buffers have these lengths, or none are needed.
    unsafe {
        let ops = &*(*vector.av).ops;
        let (mut room, mut length) = ([9_u8; 16], 6);
        assert_eq!((ops.lookup)(vector.av, 0, room.as_mut_ptr().cast(), &raw mut length), 0);
        assert_eq!((&room[..6], &room[6..], length), (&expected[..6], &[9; 10][..], 16));
        length = 0;
        assert_eq!((ops.lookup)(vector.av, 0, NONE, &raw mut length), 0);
        assert_eq!(length, 16);
        // Never inserted, and printed all the same.
        let other = bytes(&["1.2.3.4:5"]);
        let (mut text, mut length) = ([9 as c_char; 40], 40);
        let told =
            (ops.straddr)(vector.av, other.as_ptr().cast(), text.as_mut_ptr(), &raw mut length);
        assert!(std::ptr::eq(told, text.as_ptr()));
        assert_eq!(CStr::from_ptr(told), c"fi_sockaddr_in://1.2.3.4:5");
        assert_eq!(length, 27);
        length = 0;
        let told = (ops.straddr)(vector.av, other.as_ptr().cast(), null_mut(), &raw mut length);
        assert_eq!((told.is_null(), length), (true, 27), "how much room it takes");
        length = 10;
        (ops.straddr)(vector.av, other.as_ptr().cast(), text.as_mut_ptr(), &raw mut length);
        assert_eq!((CStr::from_ptr(text.as_ptr()), length), (c"fi_sockad", 27));
    }
}

#[test]
fn services_are_inserted_by_name() {
    let Some(host) = host("services_are_inserted_by_name") else { return };
    let world = World::empty(host, |_| {});
    let vector = Vector::open(&world, 0);
    let mut found = 7;
    for (at, node, address) in
        [(0, c"127.0.0.1", "127.0.0.1:4711"), (1, c"localhost", "127.0.0.1:4711")]
    {
        assert_eq!(vector.service(node, Some(c"4711"), &mut found, 0, NONE), 1);
        assert_eq!((found, vector.lookup(at).as_deref()), (at, Ok(address)));
    }
    // "Applications may also pass in an FI_ADDR_STR formatted address as the node parameter."
    // Without a node it is this host, and a service has a number or a name: see fi_getinfo(3).
    assert_eq!(vector.service(None, Some(c"4712"), &mut found, 0, NONE), 1);
    assert_eq!((found, vector.lookup(2).as_deref()), (2, Ok("127.0.0.1:4712")));
    if std::fs::read_to_string("/etc/services").is_ok_and(|names| names.contains("\nhttp\t")) {
        assert_eq!(vector.service(c"10.9.8.7", Some(c"http"), &mut found, 0, NONE), 1);
        assert_eq!(vector.lookup(found).as_deref(), Ok("10.9.8.7:80"));
    }
    assert_eq!(vector.service(None, None, &mut found, 0, NONE), code::INVAL);
    let string = c"fi_sockaddr_in://10.9.8.7:65";
    assert_eq!(vector.service(string, None, &mut found, MORE, NONE), 1);
    assert_eq!(vector.lookup(found).as_deref(), Ok("10.9.8.7:65"));
    assert_eq!(vector.service(string, Some(c"65"), &mut found, 0, NONE), code::INVAL);
    let mut error = 0_i32;
    let context = (&raw mut error).cast();
    assert_eq!(vector.service(c"not a host", Some(c"1"), &mut found, SYNC_ERR, context), 0);
    assert_eq!((found, error), (NOTAVAIL, -code::NODATA));
}

#[test]
fn symmetric_insertion_goes_node_by_node() {
    let Some(host) = host("symmetric_insertion_goes_node_by_node") else { return };
    let world = World::empty(host, |_| {});
    for flags in [0, SYMMETRIC] {
        let vector = Vector::open(&world, flags);
        // The example of the page.
        let mut found = [7; 4];
        assert_eq!(vector.symmetric(c"10.1.1.1", 2, 2, &mut found, 0, NONE), 4);
        assert_eq!(found, [0, 1, 2, 3]);
        let expected = ["10.1.1.1:5000", "10.1.1.1:5001", "10.1.1.2:5000", "10.1.1.2:5001"];
        for (at, address) in (0..).zip(expected) {
            assert_eq!(vector.lookup(at).as_deref(), Ok(address));
        }
        // No address, but a name that ends in a number, and is known to every resolver.
        assert_eq!(vector.symmetric(c"127.9", 2, 2, &mut found, 0, NONE), 4);
        let expected = ["127.0.0.9:5000", "127.0.0.9:5001", "127.0.0.10:5000", "127.0.0.10:5001"];
        for (at, address) in (4..).zip(expected) {
            assert_eq!(vector.lookup(at).as_deref(), Ok(address));
        }
        assert_eq!(vector.symmetric(c"localhost", 2, 1, &mut found[..2], 0, NONE), code::INVAL);
        link_local_addresses_keep_their_scope(host, flags);
        // What would pass the last address fails alone.
        let mut errors = [0_i32; 4];
        let context = errors.as_mut_ptr().cast();
        assert_eq!(vector.symmetric(c"255.255.255.255", 2, 2, &mut found, SYNC_ERR, context), 2);
        assert_eq!((found, errors), ([8, 9, NOTAVAIL, NOTAVAIL], [0, 0, 22, 22]));
        // "Successful insertions will be updated to 0."
        errors.fill(7);
        let context = errors.as_mut_ptr().cast();
        assert_eq!(vector.symmetric(c"10.9.9.9", 2, 2, &mut found, SYNC_ERR, context), 4);
        assert_eq!(errors, [0; 4]);
        let (mut found, node, service) = (0, c"10.9.9.8", Some(c"1"));
        errors.fill(7);
        let context = errors.as_mut_ptr().cast();
        assert_eq!(vector.service(node, service, &mut found, SYNC_ERR, context), 1);
        assert_eq!(errors, [0, 7, 7, 7]);
        let (mut found, mut errors) = ([7; 4], [0_i32; 4]);
        let context = errors.as_mut_ptr().cast();
        assert_eq!(vector.symmetric(c"not a host1", 2, 2, &mut found, SYNC_ERR, context), 0);
        assert_eq!((found, errors), ([NOTAVAIL; 4], [-code::NODATA; 4]));
    }
}

/// The address counts up, and what comes behind it, the number or the name of an interface, stays.
fn link_local_addresses_keep_their_scope(host: &'static Host, flags: u64) {
    const IN6: u32 = 3;
    let world = World::empty(host, |hints| hints.addr_format = IN6);
    let (vector, mut found) = (Vector::open(&world, flags), [7; 2]);
    // SAFETY: the name is a C string.
    let loopback = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
    for (node, scope, ends) in
        [(c"fe80::1%2", 2, [1, 2]), (c"fe80::fffe%lo", loopback, [0xfffe, 0xffff])]
    {
        assert_eq!(vector.symmetric(node, 2, 1, &mut found, 0, NONE), 2, "{node:?}");
        for (fi_addr, end) in found.into_iter().zip(ends) {
            let (mut room, mut length) = ([0_u8; 28], 28);
            // SAFETY: the vector is open, the buffer has that length.
            unsafe {
                let (lookup, place) = ((*(*vector.av).ops).lookup, room.as_mut_ptr().cast());
                assert_eq!(lookup(vector.av, fi_addr, place, &raw mut length), 0);
            }
            let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, end);
            let expected = Address::from(SocketAddr::V6(SocketAddrV6::new(ip, 5000, 0, scope)));
            assert_eq!(room[..], expected.to_bytes()[..], "{node:?}");
        }
    }
}

#[test]
fn strings_are_inserted_by_reference_or_in_place() {
    let Some(host) = host("strings_are_inserted_by_reference_or_in_place") else { return };
    let world = World::empty(host, |hints| hints.addr_format = STRINGS);
    let vector = Vector::open(&world, 0);
    let (first, second) = (c"fi_sockaddr_in://10.0.0.1:1", c"fi_sockaddr_in6://[::1]:2");
    let mut found = [7; 3];
    // SAFETY: the strings end, the arrays are as long as is said.
    unsafe {
        let ops = &*(*vector.av).ops;
        let list = [first.as_ptr(), c"x".as_ptr(), second.as_ptr()];
        let places = found.as_mut_ptr();
        assert_eq!((ops.insert)(vector.av, list.as_ptr().cast(), 3, places, 0, NONE), 2);
        assert_eq!(found, [0, NOTAVAIL, 1]);
        // What fi_getname gives.
        assert_eq!((ops.insert)(vector.av, second.as_ptr().cast(), 1, places, 0, NONE), 1);
        let (mut room, mut length) = ([0 as c_char; 64], 64);
        for (fi_addr, text) in [(0, first), (2, second)] {
            assert_eq!(
                (ops.lookup)(vector.av, fi_addr, room.as_mut_ptr().cast(), &raw mut length),
                0
            );
            assert_eq!((CStr::from_ptr(room.as_ptr()), length), (text, text.count_bytes() + 1));
            (length, room) = (64, [0; 64]);
            (ops.straddr)(vector.av, text.as_ptr().cast(), room.as_mut_ptr(), &raw mut length);
            assert_eq!((CStr::from_ptr(room.as_ptr()), length), (text, text.count_bytes() + 1));
        }
    }
}

pub fn open_eq(world: &World) -> *mut FidEq {
    let mut eq = null_mut();
    // SAFETY: attributes of zeroes are valid; the fabric is open.
    unsafe {
        let mut attr: EqAttr = std::mem::zeroed();
        let open = (*(*world.fabric).ops).eq_open;
        assert_eq!(open(world.fabric, &raw mut attr, &raw mut eq, NONE), 0);
    }
    eq
}

/// The next event: its code, and what it says; or the error number.
pub fn next_event(eq: *mut FidEq) -> Result<(u32, EqEntry), c_int> {
    // SAFETY: there is room for the entry.
    unsafe {
        let (mut event, mut entry): (u32, EqEntry) = (0, std::mem::zeroed());
        let place = (&raw mut entry).cast();
        let got = ((*(*eq).ops).read)(eq, &raw mut event, place, size_of::<EqEntry>(), 0);
        if got < 0 { Err(got as c_int) } else { Ok((event, entry)) }
    }
}

fn next_error(eq: *mut FidEq) -> EqErrEntry {
    assert_eq!(next_event(eq).err(), Some(code::AVAIL));
    // SAFETY: there is room for the entry.
    unsafe {
        let mut error: EqErrEntry = std::mem::zeroed();
        let got = ((*(*eq).ops).readerr)(eq, &raw mut error, 0);
        assert_eq!(got, size_of::<EqErrEntry>() as isize);
        error
    }
}

#[test]
fn asynchronous_insertions_report_to_the_event_queue() {
    let Some(host) = host("asynchronous_insertions_report_to_the_event_queue") else { return };
    let world = World::empty(host, |_| {});
    let (vector, eq) = (Vector::open(&world, EVENT), open_eq(&world));
    let mut found = [7; 3];
    let context = found.as_mut_ptr().cast::<c_void>();
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut found, 0, context), code::NOEQ);
    assert_eq!(vector.service(c"10.0.0.1", Some(c"1"), &mut found[0], 0, context), code::NOEQ);
    assert_eq!(vector.symmetric(c"10.0.0.1", 1, 3, &mut found, 0, context), code::NOEQ);
    assert_eq!(found, [NOTAVAIL; 3], "the calls failed");
    assert_eq!((bind(vector.av, eq, 1), bind(vector.av, eq, 0)), (code::BADFLAGS, 0));
    assert_eq!((bind(vector.av, eq, 0), close(eq)), (code::INVAL, code::BUSY));
    // "There will be one EQ error entry generated for each failed address insertion, followed by
    // one non-error event".
    let addresses = ["0.0.0.0:1", "10.0.0.1:1", "0.0.0.0:2"];
    assert_eq!(vector.insert(&addresses, &mut found, MORE, context), 0);
    assert_eq!(found, [NOTAVAIL, 0, NOTAVAIL]);
    for at in [0, 2] {
        let error = next_error(eq);
        assert_eq!((error.fid, error.context, error.data), (vector.av.cast(), context, at));
        assert_eq!(error.err, 99);
    }
    let (event, entry) = next_event(eq).unwrap();
    assert_eq!((event, entry.fid, entry.data), (AV_COMPLETE, vector.av.cast(), 1));
    assert_eq!((entry.context, next_event(eq).err()), (context, Some(code::AGAIN)));
    // One event for each call, also if all of it fails; and FI_SYNC_ERR has nothing to tell here.
    assert_eq!(vector.service(c"not a host", Some(c"1"), &mut found[0], 0, NONE), 0);
    assert_eq!((next_error(eq).data, next_event(eq).unwrap().1.data), (0, 0));
    let errors = found.as_mut_ptr().cast();
    assert_eq!(vector.insert(&addresses, &mut [], SYNC_ERR, errors), code::INVAL);
    assert_eq!(vector.symmetric(c"10.0.0.2", 1, 3, &mut found, 0, context), 0);
    assert_eq!(next_event(eq).unwrap().1.data, 3);
    // What is inserted may go into a table unseen; and only a part of a range may fail.
    assert_eq!(vector.insert(&["10.0.0.8:1", "0.0.0.0:3"], &mut [], 0, context), 0);
    let error = next_error(eq);
    assert_eq!((error.context, error.data), (context, 1));
    assert_eq!(next_event(eq).unwrap().1.data, 1);
    assert_eq!(vector.symmetric(c"255.255.255.255", 2, 1, &mut found[..2], 0, context), 0);
    let error = next_error(eq);
    assert_eq!((error.context, error.data, found[1]), (context, 1, NOTAVAIL));
    assert_eq!(next_event(eq).unwrap().1.data, 1);
    assert_eq!(vector.symmetric(c"10.0.0.2", 1, 3, &mut found, 0, context), 0);
    // "any events queued on an event queue referencing the AV are left untouched"
    let av = vector.av;
    drop(vector);
    let (event, entry) = next_event(eq).unwrap();
    assert_eq!((event, entry.fid, entry.data), (AV_COMPLETE, av.cast(), 3));
    assert_eq!(close(eq), 0);
}

#[test]
fn a_vector_with_endpoints_does_not_close() {
    let Some(host) = host("a_vector_with_endpoints_does_not_close") else { return };
    let world = World::empty(host, |_| {});
    let vector = Vector::open(&world, 0);
    let ep = world.open_ep();
    assert_eq!((bind(ep, vector.av, 0), close(vector.av)), (0, code::BUSY));
    assert_eq!(vector.insert(&["10.0.0.1:1"], &mut [], 0, NONE), 1, "it is as it was");
    assert_eq!((close(ep), close(vector.av)), (0, 0));
    // SAFETY: hints have all attributes.
    let sockets = World::empty(host, |hints| unsafe { (*hints.ep_attr).kind = kind::SOCK_DGRAM });
    let (socket, vector) = (sockets.open_ep(), Vector::open(&sockets, 0));
    assert_eq!((bind(socket, vector.av, 0), close(vector.av)), (0, code::BUSY));
    assert_eq!((close(socket), close(vector.av)), (0, 0));
}

/// "-FI_EDOMAIN: … an attempt was made to bind multiple domains" (fi_endpoint(3)).
#[test]
fn another_domains_vector_is_refused() {
    let Some(host) = host("another_domains_vector_is_refused") else { return };
    let [here, there] = [World::new(host, 0), World::new(host, 0)];
    let ep = here.open_ep();
    assert_eq!(bind(ep, there.av, 0), code::DOMAIN);
    assert_eq!(bind(ep, here.av, 0), 0);
    assert_eq!(close(ep), 0);
}

//! Connected endpoints and passive ones. Reference: fi_cm(3).

use std::{
    ffi::{CStr, c_int, c_void},
    ptr::{null, null_mut},
    time::Instant,
};

use crate::{
    abi::{
        attributes::{EqAttr, EqErrEntry},
        fid::{Fid, FidCq, FidDomain, FidEp, FidEq, FidFabric, FidPep},
        info::Info,
    },
    code, flag,
    host::{Host, host},
    kind,
    waiting::WAIT_FD,
    world::{self, Node, PATIENCE, bind, close},
};

const CONNREQ: u32 = 1;
pub const CONNECTED: u32 = 2;
pub const SHUTDOWN: u32 = 3;
pub const BACKLOG: c_int = 7;
const CM_DATA_SIZE: c_int = 1;
pub const CONNREFUSED: i32 = 111;
pub const ISCONN: c_int = -106;

/// An event of a connection.
pub struct Event {
    code: u32,
    fid: *mut Fid,
    pub info: *mut Info,
    pub data: Vec<u8>,
}

/// A fabric and a domain for connected endpoints of one type, with a passive one that listens.
pub struct Place {
    host: &'static Host,
    kind: u32,
    pub info: *mut Info,
    pub fabric: *mut FidFabric,
    pub domain: *mut FidDomain,
    pub pep: *mut FidPep,
    pub events: *mut FidEq,
}

/// An endpoint with its queues.
#[derive(Clone, Copy)]
pub struct End {
    pub ep: *mut FidEp,
    /// Null, of a socket endpoint.
    pub cq: *mut FidCq,
    pub eq: *mut FidEq,
}

impl Place {
    pub fn new(host: &'static Host) -> Place {
        Place::of(host, kind::MSG)
    }

    /// For endpoints of type `kind`.
    pub fn of(host: &'static Host, kind: u32) -> Place {
        Place::that(host, kind, |_| {})
    }

    /// The same with hints that say more.
    pub fn that(host: &'static Host, kind: u32, change: fn(&mut Info)) -> Place {
        let info = world::info(host, |hints| {
            // SAFETY: hints have all attributes.
            unsafe { (*hints.ep_attr).kind = kind }
            change(hints);
        })
        .expect("kestrel offers connected endpoints");
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        // SAFETY: the info is libfabric's; each place is valid.
        unsafe {
            assert_eq!((host.fabric)((*info).fabric_attr, &raw mut fabric, null_mut()), 0);
            let ops = &*(*fabric).ops;
            assert_eq!((ops.domain)(fabric, info, &raw mut domain, null_mut()), 0);
        }
        let (pep, events) = (null_mut(), null_mut());
        let mut place = Place { host, kind, info, fabric, domain, pep, events };
        (place.pep, place.events) = (place.open_pep(info), place.open_eq());
        assert_eq!(bind(place.pep, place.events, 0), 0);
        place
    }

    /// A passive endpoint that is bound to nothing yet.
    pub fn open_pep(&self, info: *mut Info) -> *mut FidPep {
        let mut pep = null_mut();
        // SAFETY: the fabric is open, the info libfabric's.
        unsafe {
            let open = (*(*self.fabric).ops).passive_ep;
            assert_eq!(open(self.fabric, info, &raw mut pep, null_mut()), 0);
        }
        pep
    }

    pub fn listening(host: &'static Host) -> Place {
        Place::listening_as(host, kind::MSG)
    }

    pub fn listening_as(host: &'static Host, kind: u32) -> Place {
        let place = Place::of(host, kind);
        assert_eq!(place.listen(), 0);
        place
    }

    pub fn listen(&self) -> c_int {
        // SAFETY: the endpoint is open.
        unsafe { ((*(*self.pep).cm).listen)(self.pep) }
    }

    /// What is waited for inside, and outside.
    pub fn open_eq(&self) -> *mut FidEq {
        let mut eq = null_mut();
        // SAFETY: the fabric is open; zeroes are the defaults.
        unsafe {
            let mut attr = EqAttr { wait_obj: WAIT_FD, ..std::mem::zeroed() };
            let ops = &*(*self.fabric).ops;
            assert_eq!((ops.eq_open)(self.fabric, &raw mut attr, &raw mut eq, null_mut()), 0);
        }
        eq
    }

    /// Opens an endpoint without an event queue, with a handle or without.
    pub fn open_alone(&self, info: *mut Info) -> Result<End, c_int> {
        let mut end = End { ep: null_mut(), cq: null_mut(), eq: null_mut() };
        // SAFETY: the domain is open, the info libfabric's.
        unsafe {
            let ops = &*(*self.domain).ops;
            let status = (ops.endpoint)(self.domain, info, &raw mut end.ep, null_mut());
            if status != 0 {
                return Err(status);
            }
            if self.kind == kind::MSG {
                let (attr, cq) = (&mut world::cq_attr(), &raw mut end.cq);
                assert_eq!((ops.cq_open)(self.domain, attr, cq, null_mut()), 0);
                assert_eq!(bind(end.ep, end.cq, flag::SEND | flag::RECV), 0);
            }
        }
        Ok(end)
    }

    /// The same with an event queue of its own.
    pub fn open_ep(&self, info: *mut Info) -> Result<End, c_int> {
        let end = self.open_alone(info)?;
        let eq = self.open_eq();
        assert_eq!(bind(end.ep, eq, 0), 0);
        Ok(End { eq, ..end })
    }

    /// An endpoint that takes a passive one over.
    pub fn instead_of(&self, reserved: &Place) -> End {
        // SAFETY: the copy is libfabric's, and freed when it was used; the passive endpoint is open.
        unsafe {
            let info = (self.host.dupinfo)(self.info);
            (*info).handle = reserved.pep.cast();
            let end = self.open_ep(info).expect("an endpoint instead of the passive one");
            (self.host.freeinfo)(info);
            end
        }
    }

    /// An endpoint that asks the passive one, with `data`.
    pub fn caller(&self, data: &[u8]) -> End {
        let end = self.open_ep(self.info).expect("an endpoint");
        assert_eq!(end.connect(&name(self.pep), data), 0);
        end
    }

    /// The next request. A caller in this process is driven as well.
    pub fn request(&self, caller: impl Into<Option<End>>) -> Event {
        let (caller, start) = (caller.into(), Instant::now());
        while !has_event(self.events) {
            caller.map(|caller| has_event(caller.eq));
            assert!(start.elapsed() < PATIENCE, "no request came");
        }
        let event = read(self.events);
        assert_eq!((event.code, event.fid), (CONNREQ, self.pep.cast()));
        // SAFETY: an info of the application's, with all attributes, as fi_getinfo gives.
        unsafe {
            let (fabric, asked) = (&*(*event.info).fabric_attr, &*(*self.info).fabric_attr);
            assert_eq!(CStr::from_ptr(fabric.prov_name), c"kestrel");
            assert_eq!(fabric.api_version, asked.api_version);
        }
        event
    }

    /// Opens an endpoint for a request, whose info is freed.
    pub fn acceptor(&self, request: &Event) -> End {
        let end = self.open_ep(request.info).expect("an endpoint for the request");
        // SAFETY: the info is the application's, and not used any more.
        unsafe { (self.host.freeinfo)(request.info) };
        end
    }

    pub fn reject(&self, handle: *mut Fid, data: &[u8]) -> c_int {
        // SAFETY: the endpoint is open, and the data is there.
        unsafe { ((*(*self.pep).cm).reject)(self.pep, handle, data.as_ptr().cast(), data.len()) }
    }

    pub fn close(self) {
        self.close_with(null_mut());
    }

    /// Closes it, and the queue of its domain, if it has one.
    pub fn close_with(self, queue: *mut FidEq) {
        for status in [close(self.pep), close(self.events), close(self.domain)] {
            assert_eq!(status, 0);
        }
        assert!(queue.is_null() || close(queue) == 0);
        assert_eq!(close(self.fabric), 0);
        // SAFETY: the info is not used any more.
        unsafe { (self.host.freeinfo)(self.info) };
    }
}

impl End {
    pub fn node(self) -> Node {
        Node { cq: self.cq, ep: self.ep }
    }

    pub fn connect(self, address: &[u8], data: &[u8]) -> c_int {
        let (address, param) = (address.as_ptr().cast(), data.as_ptr().cast());
        // SAFETY: the endpoint is open, and address and data are there.
        unsafe { ((*(*self.ep).cm).connect)(self.ep, address, param, data.len()) }
    }

    pub fn accept(self, data: &[u8]) -> c_int {
        // SAFETY: the endpoint is open, and the data is there.
        unsafe { ((*(*self.ep).cm).accept)(self.ep, data.as_ptr().cast(), data.len()) }
    }

    pub fn shutdown(self, flags: u64) -> c_int {
        // SAFETY: the endpoint is open.
        unsafe { ((*(*self.ep).cm).shutdown)(self.ep, flags) }
    }

    /// The next event of the endpoint, which has to be this one; what came with it.
    pub fn sees(self, code: u32) -> Vec<u8> {
        let event = read(self.eq);
        assert_eq!((event.code, event.fid), (code, self.ep.cast()));
        event.data
    }

    /// What is written where there is room for so many bytes, and what lies behind it.
    fn peer_in(self, mut room: usize) -> Vec<u8> {
        let mut bytes = vec![0x5a; room + 8];
        // SAFETY: the endpoint is open, and the buffer is longer than its length says.
        unsafe {
            let getpeer = (*(*self.ep).cm).getpeer;
            getpeer(self.ep, bytes.as_mut_ptr().cast(), &raw mut room);
        }
        bytes
    }

    pub fn peer(self, room: usize) -> Result<Vec<u8>, (c_int, usize)> {
        let (mut bytes, mut length) = (vec![0_u8; 64], room);
        // SAFETY: the endpoint is open, and the buffer is longer than its length says.
        let status = unsafe {
            let getpeer = (*(*self.ep).cm).getpeer;
            getpeer(self.ep, bytes.as_mut_ptr().cast(), &raw mut length)
        };
        bytes.truncate(length);
        if status == 0 { Ok(bytes) } else { Err((status, length)) }
    }

    pub fn close(self) {
        assert_eq!(close(self.ep), 0);
        if !self.cq.is_null() {
            assert_eq!(close(self.cq), 0);
        }
        assert_eq!(close(self.eq), 0);
    }
}

/// The address of a passive or an active endpoint.
pub fn name<T>(endpoint: *mut T) -> Vec<u8> {
    let (mut bytes, mut length) = (vec![0_u8; 64], 64);
    let endpoint = endpoint.cast::<FidPep>();
    // SAFETY: both kinds of endpoint begin alike, up to this table.
    let status = unsafe {
        ((*(*endpoint).cm).getname)(endpoint.cast(), bytes.as_mut_ptr().cast(), &raw mut length)
    };
    assert_eq!(status, 0);
    bytes.truncate(length);
    bytes
}

/// `fi_eq_sread`, of one event that has to come.
fn read(eq: *mut FidEq) -> Event {
    let (mut code, mut bytes) = (0, [0_u8; 1024]);
    // SAFETY: the queue is open, and the buffer has that length.
    let length = unsafe {
        let sread = (*(*eq).ops).sread;
        let timeout = PATIENCE.as_millis() as c_int;
        sread(eq, &raw mut code, bytes.as_mut_ptr().cast(), bytes.len(), timeout, 0)
    };
    assert!(length >= 16, "no event: {length}");
    let word = |at: usize| usize::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let data = bytes[16..length as usize].to_vec();
    Event { code, fid: word(0) as *mut Fid, info: word(8) as *mut Info, data }
}

/// The next error of a queue: its number and its data.
pub fn read_error(eq: *mut FidEq) -> (i32, Vec<u8>) {
    let (mut code, mut bytes, start) = (0, [0_u8; 64], Instant::now());
    // SAFETY: the queue is open, and the buffers have these lengths.
    unsafe {
        let ops = &*(*eq).ops;
        loop {
            match (ops.sread)(eq, &raw mut code, bytes.as_mut_ptr().cast(), 64, 1000, 0) as i32 {
                code::AVAIL => break,
                code::AGAIN => assert!(start.elapsed() < PATIENCE, "no error came"),
                other => panic!("{other}, event {code}"),
            }
        }
        let mut entry: EqErrEntry = std::mem::zeroed();
        assert!((ops.readerr)(eq, &raw mut entry, 0) > 0);
        assert_eq!(entry.prov_errno & 0xffff, entry.err, "and which reason it has above");
        let data: &[u8] = match entry.err_data_size {
            0 => &[],
            size => std::slice::from_raw_parts(entry.err_data.cast(), size),
        };
        (entry.err, data.to_vec())
    }
}

#[test]
fn a_connection_is_asked_for_accepted_used_and_shut_down() {
    let Some(host) = host("a_connection_is_asked_for_accepted_used_and_shut_down") else { return };
    let place = Place::listening(host);
    let caller = place.caller(b"hello");
    let request = place.request(caller);
    assert_eq!(request.data, b"hello");
    let acceptor = place.acceptor(&request);
    assert_eq!(caller.peer(64), Err((code::NOTCONN, 64)));
    assert_eq!(caller.connect(&name(place.pep), &[]), ISCONN, "once in its lifetime");
    assert_eq!(acceptor.accept(b"welcome"), 0);
    are_told([caller, acceptor]);
    assert_eq!(caller.sees(CONNECTED), b"welcome");
    assert_eq!(acceptor.sees(CONNECTED), b"");
    // As with sockets: the acceptor goes by the address that was asked.
    assert_eq!(caller.peer(64), Ok(name(place.pep)));
    assert_eq!(name(acceptor.ep), name(place.pep));
    let whole = name(caller.ep);
    assert_eq!(acceptor.peer(8), Err((code::TOOSMALL, whole.len())));
    assert_eq!(acceptor.peer_in(8), [&whole[..8], &[0x5a; 8]].concat(), "what fits, and no more");
    pass_a_message(caller, acceptor);
    assert_eq!(caller.connect(&name(place.pep), &[]), ISCONN);
    assert_eq!(acceptor.accept(&[]), ISCONN);
    assert_eq!(caller.shutdown(1), code::BADFLAGS);
    assert_eq!(caller.shutdown(0), 0);
    assert_eq!(acceptor.sees(SHUTDOWN), b"");
    caller.close();
    acceptor.close();
    place.close();
}

/// Each side sleeps on its own queue, so the other one is driven by its reads: in turns, until both
/// have an event.
#[track_caller]
pub fn are_told(ends: [End; 2]) {
    let start = Instant::now();
    while !has_event(ends[0].eq) | !has_event(ends[1].eq) {
        assert!(start.elapsed() < PATIENCE, "no connection came about");
    }
}

/// `fi_eq_read` with FI_PEEK: drives, and takes nothing.
pub fn has_event(eq: *mut FidEq) -> bool {
    let (mut code, mut bytes) = (0, [0_u8; 1024]);
    // SAFETY: the queue is open, and the buffer has that length.
    let status = unsafe {
        let ops = &*(*eq).ops;
        // Driven by a read that finds no room for any event, and so takes none.
        (ops.read)(eq, &raw mut code, bytes.as_mut_ptr().cast(), 0, 0);
        (ops.read)(eq, &raw mut code, bytes.as_mut_ptr().cast(), 1024, flag::PEEK)
    };
    status > 0
}

/// "Ignored for connected endpoints", an address here and there.
fn pass_a_message(from: End, to: End) {
    let (mut buffer, message, nodes) = ([0_u8; 16], *b"over here", [from.node(), to.node()]);
    assert_eq!(nodes[1].receive(&mut buffer, 4711, 0), 0);
    assert_eq!(nodes[0].send(&message, 4711, 0), 0);
    for node in nodes {
        assert!(node.outcome(&nodes).is_ok());
    }
    assert_eq!(&buffer[..message.len()], message);
}

#[test]
fn a_rejection_is_an_error_with_data() {
    let Some(host) = host("a_rejection_is_an_error_with_data") else { return };
    let place = Place::listening(host);
    let caller = place.caller(b"?");
    let request = place.request(caller);
    // SAFETY: the info is valid until it is freed.
    let handle = unsafe { (*request.info).handle };
    assert_eq!(place.reject(null_mut(), b""), code::INVAL);
    assert_eq!(place.reject(place.pep.cast(), b""), code::INVAL);
    assert_eq!(place.reject(handle, b"no, thanks"), 0);
    assert_eq!(place.reject(handle, b""), code::INVAL);
    // An answered request is no handle any more.
    assert_eq!(place.open_ep(request.info).err(), Some(code::INVAL));
    // SAFETY: as above.
    unsafe { (host.freeinfo)(request.info) };
    drive_until_error(place.events, caller.eq);
    assert_eq!(read_error(caller.eq), (CONNREFUSED, b"no, thanks".to_vec()));
    caller.close();
    place.close();
}

pub fn drive_until_error(one: *mut FidEq, other: *mut FidEq) {
    let start = Instant::now();
    let (mut code, mut bytes) = (0, [0_u8; 8]);
    loop {
        // SAFETY: the queues are open, and no event fits.
        let status = unsafe {
            ((*(*one).ops).read)(one, &raw mut code, bytes.as_mut_ptr().cast(), 0, 0);
            ((*(*other).ops).read)(other, &raw mut code, bytes.as_mut_ptr().cast(), 0, 0)
        };
        if status as i32 == code::AVAIL {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no error came");
    }
}

#[test]
fn a_passive_endpoint_has_a_name_and_a_backlog() {
    let Some(host) = host("a_passive_endpoint_has_a_name_and_a_backlog") else { return };
    let place = Place::new(host);
    let whole = name(place.pep);
    // SAFETY: the endpoint is open; every buffer is as long as its length says.
    unsafe {
        let (ops, cm) = (&*(*place.pep).ops, &*(*place.pep).cm);
        let (mut bytes, mut length) = ([0xee_u8; 64], 6);
        let target: *mut c_void = bytes.as_mut_ptr().cast();
        assert_eq!((cm.getname)(place.pep.cast(), target, &raw mut length), code::TOOSMALL);
        assert_eq!((length, &bytes[..6], bytes[6]), (whole.len(), &whole[..6], 0xee));
        let control = (*(*place.pep).fid.ops).control;
        let (mut none, mut one): (c_int, c_int) = (0, 1);
        let fid: *mut Fid = place.pep.cast();
        assert_eq!(control(fid, BACKLOG, (&raw mut none).cast()), code::INVAL);
        assert_eq!(control(fid, BACKLOG, null_mut()), code::INVAL);
        assert_eq!(control(fid, BACKLOG, (&raw mut one).cast()), 0);
        let (mut size, mut length) = (0_usize, 8);
        let value: *mut c_void = (&raw mut size).cast();
        assert_eq!((ops.getopt)(fid, 0, CM_DATA_SIZE, value, &raw mut length), 0);
        assert_eq!(size, 256);
        // It is where it is told to be, until it listens.
        let other = Place::new(host);
        let free = name(other.pep);
        other.close();
        let set = |bytes: &[u8]| (cm.setname)(fid, bytes.as_ptr().cast_mut().cast(), bytes.len());
        assert_eq!(set(&[]), code::INVAL);
        assert_eq!(set(&free), 0);
        assert_eq!(name(place.pep), free);
        assert_eq!(place.listen(), 0);
        assert_eq!((place.listen(), set(&whole)), (code::OPBADSTATE, code::OPBADSTATE));
        // What RDM endpoints and those that are not connected answer.
        let end = place.open_ep(place.info).expect("an endpoint");
        assert_eq!(((*(*end.ep).cm).accept)(end.ep, null(), 0), code::INVAL);
        assert_eq!(end.shutdown(0), code::NOTCONN);
        end.close();
    }
    place.close();
}

#[test]
fn an_active_endpoint_takes_a_passive_one_over() {
    let Some(host) = host("an_active_endpoint_takes_a_passive_one_over") else { return };
    let (place, mut reserved) = (Place::listening(host), Place::new(host));
    let address = name(reserved.pep);
    let end = place.instead_of(&reserved);
    assert_eq!(name(end.ep), address);
    assert_eq!(reserved.listen(), code::OPBADSTATE);
    // "The passive endpoint is no longer bound to any fabric resources".
    assert_eq!(close(reserved.events), 0);
    reserved.events = reserved.open_eq();
    assert_eq!(bind(reserved.pep, reserved.events, 0), code::OPBADSTATE);
    assert_eq!(end.connect(&name(place.pep), &[]), 0);
    let request = place.request(end);
    // SAFETY: the info is not used any more; closing answers the request.
    unsafe { (host.freeinfo)(request.info) };
    end.close();
    reserved.close();
    place.close();
}

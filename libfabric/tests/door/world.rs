//! Objects of one process: a fabric, a domain, and endpoints that talk to each other.

use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
    time::{Duration, Instant},
};

use kestrel_tests::reserved::own_address;

use crate::{
    abi::{
        attributes::{AvAttr, CqAttr, CqErrEntry, CqTaggedEntry},
        fid::{Fid, FidAv, FidCq, FidDomain, FidEp, FidEq, FidFabric},
        info::Info,
    },
    code, flag,
    host::Host,
};

/// Version 1.17 of the interface.
pub const VERSION: u32 = 1 << 16 | 17;
/// What may take a while takes no longer than this.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Everything that is open on a fabric. Closed in order when it is dropped.
pub struct World {
    host: &'static Host,
    pub info: *mut Info,
    pub fabric: *mut FidFabric,
    pub domain: *mut FidDomain,
    pub av: *mut FidAv,
    pub nodes: Vec<Node>,
    /// The domain's, if it has one: closed after it.
    pub queue: *mut FidEq,
}

/// An endpoint with a queue of its own; it is in the address vector under its index.
#[derive(Clone, Copy)]
pub struct Node {
    pub cq: *mut FidCq,
    pub ep: *mut FidEp,
}

/// `fi_close`.
pub fn close<T>(object: *mut T) -> c_int {
    let fid = object.cast::<Fid>();
    // SAFETY: every object starts with a `struct fid`, also for a while after closing.
    unsafe { ((*(*fid).ops).close)(fid) }
}

/// `fi_control` with the command FI_ENABLE.
pub fn enable(ep: *mut FidEp) -> c_int {
    // SAFETY: the endpoint is open.
    unsafe { ((*(*ep).fid.ops).control)(ep.cast(), 6, null_mut()) }
}

/// `fi_ep_bind` and its siblings.
pub fn bind<T, U>(object: *mut T, other: *mut U, flags: u64) -> c_int {
    let fid = object.cast::<Fid>();
    // SAFETY: both start with a `struct fid`.
    unsafe { ((*(*fid).ops).bind)(fid, other.cast(), flags) }
}

/// What the first answer of fi_getinfo is, for hints that `change` makes of none.
pub fn info(host: &Host, change: impl FnOnce(&mut Info)) -> Result<*mut Info, c_int> {
    info_of(host, VERSION, change)
}

/// The same for an application of another `version`.
pub fn info_of(
    host: &Host,
    version: u32,
    change: impl FnOnce(&mut Info),
) -> Result<*mut Info, c_int> {
    let mut found = null_mut();
    // SAFETY: libfabric allocates hints with all attributes.
    unsafe {
        let hints = (host.dupinfo)(null());
        (*(*hints).fabric_attr).prov_name = libc::strdup(c"kestrel".as_ptr());
        change(&mut *hints);
        let status = (host.getinfo)(version, null(), null(), 0, hints, &raw mut found);
        (host.freeinfo)(hints);
        if status == 0 { Ok(found) } else { Err(status) }
    }
}

/// A key for hints, which libfabric frees.
pub fn auth_key(key: &[u8]) -> (*mut u8, usize) {
    // SAFETY: the copy has room for the key.
    unsafe {
        let copy = libc::malloc(key.len()).cast::<u8>();
        copy.copy_from_nonoverlapping(key.as_ptr(), key.len());
        (copy, key.len())
    }
}

pub fn av_attr() -> AvAttr {
    // SAFETY: zeroes are the defaults.
    unsafe { std::mem::zeroed() }
}

pub fn cq_attr() -> CqAttr {
    const TAGGED: u32 = 4;
    // SAFETY: zeroes are the defaults.
    CqAttr { format: TAGGED, ..unsafe { std::mem::zeroed() } }
}

impl World {
    /// A domain of its own for a test, without endpoints.
    pub fn empty(host: &'static Host, change: impl FnOnce(&mut Info)) -> World {
        World::over(host, info(host, change).expect("kestrel offers this"))
    }

    /// The same as an answer of fi_getinfo describes it.
    pub fn over(host: &'static Host, info: *mut Info) -> World {
        let mut world = World {
            host,
            info,
            fabric: null_mut(),
            domain: null_mut(),
            av: null_mut(),
            nodes: Vec::new(),
            queue: null_mut(),
        };
        // SAFETY: the info is libfabric's; each place is valid.
        unsafe {
            let fabric_attr = (*info).fabric_attr;
            assert_eq!((host.fabric)(fabric_attr, &raw mut world.fabric, null_mut()), 0);
            let ops = &*(*world.fabric).ops;
            let domain = &raw mut world.domain;
            assert_eq!((ops.domain)(world.fabric, info, domain, null_mut()), 0);
            let ops = &*(*world.domain).ops;
            let av = &raw mut world.av;
            assert_eq!((ops.av_open)(world.domain, &mut av_attr(), av, null_mut()), 0);
        }
        world
    }

    /// Such a domain with `count` endpoints.
    pub fn new(host: &'static Host, count: usize) -> World {
        let mut world = World::empty(host, |_| {});
        for _ in 0..count {
            world.add_node(&mut cq_attr(), 0);
        }
        world
    }

    /// Opens the domain again, without anything in it, for an application of another version.
    pub fn reopen_as(&mut self, version: u32) {
        assert!(self.nodes.is_empty());
        assert_eq!((close(self.av), close(self.domain)), (0, 0));
        // SAFETY: the fabric is open, the info libfabric's; each place is valid.
        unsafe {
            (*self.fabric).api_version = version;
            let (ops, domain) = (&*(*self.fabric).ops, &raw mut self.domain);
            assert_eq!((ops.domain)(self.fabric, self.info, domain, null_mut()), 0);
            let (ops, av) = (&*(*self.domain).ops, &raw mut self.av);
            assert_eq!((ops.av_open)(self.domain, &mut av_attr(), av, null_mut()), 0);
        }
    }

    pub fn open_cq(&self, attr: &mut CqAttr) -> Result<*mut FidCq, c_int> {
        let mut cq = null_mut();
        // SAFETY: the domain is open.
        let status =
            unsafe { ((*(*self.domain).ops).cq_open)(self.domain, attr, &raw mut cq, null_mut()) };
        if status == 0 { Ok(cq) } else { Err(status) }
    }

    pub fn open_ep(&self) -> *mut FidEp {
        self.try_open_ep().expect("an endpoint")
    }

    pub fn try_open_ep(&self) -> Result<*mut FidEp, c_int> {
        let mut ep = null_mut();
        // SAFETY: the domain is open, the info libfabric's.
        let status = unsafe {
            let ops = &*(*self.domain).ops;
            (ops.endpoint)(self.domain, self.info, &raw mut ep, null_mut())
        };
        if status == 0 { Ok(ep) } else { Err(status) }
    }

    /// Opens an endpoint, enables it and inserts its address.
    pub fn add_node(&mut self, attr: &mut CqAttr, flags: u64) -> Node {
        let ep = self.open_ep();
        self.add(ep, attr, flags)
    }

    /// The same with one that is open, and bound to whatever others are not.
    pub fn add(&mut self, ep: *mut FidEp, attr: &mut CqAttr, flags: u64) -> Node {
        let cq = self.open_cq(attr).expect("a queue");
        assert_eq!(bind(ep, cq, flag::SEND | flag::RECV | flags), 0);
        assert_eq!(bind(ep, self.av, 0), 0);
        assert_eq!(enable(ep), 0);
        assert_eq!(self.insert(ep), self.nodes.len() as u64);
        self.nodes.push(Node { cq, ep });
        Node { cq, ep }
    }

    /// Inserts the address of an endpoint into the address vector.
    pub fn insert(&self, ep: *mut FidEp) -> u64 {
        let (mut address, mut length) = ([0_u8; 64], 64);
        // SAFETY: the endpoint is open, and the buffer has this length.
        let status = unsafe {
            ((*(*ep).cm).getname)(ep.cast(), address.as_mut_ptr().cast(), &raw mut length)
        };
        assert_eq!(status, 0);
        self.insert_bytes(&address[..length])
    }

    /// Inserts an address where nobody is, nor will be.
    pub fn insert_nobody(&self) -> u64 {
        self.insert_bytes(&own_address().to_bytes())
    }

    fn insert_bytes(&self, address: &[u8]) -> u64 {
        let mut fi_addr = u64::MAX;
        // SAFETY: the vector is open, and one address is there.
        let count = unsafe {
            let insert = (*(*self.av).ops).insert;
            insert(self.av, address.as_ptr().cast(), 1, &raw mut fi_addr, 0, null_mut())
        };
        assert_eq!(count, 1);
        fi_addr
    }

    /// Reads from `node`'s queue until there is something, driving all the others.
    #[track_caller]
    pub fn completion(&self, node: Node) -> CqTaggedEntry {
        match node.outcome(&self.nodes) {
            Ok(entry) => entry,
            Err(error) => panic!("an operation failed: {}", error.err),
        }
    }
}

impl Node {
    pub fn read(self) -> Result<CqTaggedEntry, c_int> {
        // SAFETY: one entry is asked for, and there is room for it.
        unsafe {
            let mut entry: CqTaggedEntry = std::mem::zeroed();
            match ((*(*self.cq).ops).read)(self.cq, (&raw mut entry).cast(), 1) {
                1 => Ok(entry),
                status => Err(status as c_int),
            }
        }
    }

    /// What comes next, an entry or an error. With manual progress each endpoint is driven by its
    /// own queue: those of `others` are, until then.
    #[track_caller]
    pub fn outcome(self, others: &[Node]) -> Result<CqTaggedEntry, CqErrEntry> {
        let start = Instant::now();
        loop {
            match self.read() {
                Ok(entry) => return Ok(entry),
                Err(code::AGAIN) => others.iter().for_each(|other| other.progress()),
                Err(code::AVAIL) => return Err(self.read_error().expect("an error's entry")),
                Err(status) => panic!("reading a completion: {status}"),
            }
            assert!(start.elapsed() < PATIENCE, "no completion came");
        }
    }

    /// `fi_send`, of bytes that outlive its completion.
    pub fn send(self, bytes: &[u8], to: u64, context: usize) -> isize {
        let (start, context) = (bytes.as_ptr().cast(), context as *mut c_void);
        // SAFETY: the endpoint is open, and the bytes stay as long as is said above.
        unsafe { ((*(*self.ep).msg).send)(self.ep, start, bytes.len(), null_mut(), to, context) }
    }

    /// `fi_recv`, into room that outlives its completion.
    pub fn receive(self, room: &mut [u8], from: u64, context: usize) -> isize {
        let (start, context) = (room.as_mut_ptr().cast(), context as *mut c_void);
        // SAFETY: as above.
        unsafe { ((*(*self.ep).msg).recv)(self.ep, start, room.len(), null_mut(), from, context) }
    }

    /// `fi_cancel`.
    pub fn cancel(self, context: usize) -> c_int {
        // SAFETY: the endpoint is open; a context is only compared.
        unsafe { ((*(*self.ep).ops).cancel)(self.ep.cast(), context as *mut c_void) as c_int }
    }

    /// Drives progress, reading nothing.
    pub fn progress(self) {
        // SAFETY: nothing is asked for.
        unsafe { ((*(*self.cq).ops).read)(self.cq, null_mut(), 0) };
    }

    pub fn read_error(self) -> Result<CqErrEntry, c_int> {
        // SAFETY: there is room for an entry of any version.
        unsafe {
            let mut entry: CqErrEntry = std::mem::zeroed();
            match ((*(*self.cq).ops).readerr)(self.cq, &raw mut entry, 0) {
                1 => Ok(entry),
                status => Err(status as c_int),
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for node in &self.nodes {
            close(node.ep);
            close(node.cq);
        }
        let queue = || if self.queue.is_null() { 0 } else { close(self.queue) };
        for status in [close(self.av), close(self.domain), queue(), close(self.fabric)] {
            assert!(std::thread::panicking() || status == 0, "closing: {status}");
        }
        // SAFETY: libfabric's own info.
        unsafe { (self.host.freeinfo)(self.info) };
    }
}

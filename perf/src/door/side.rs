//! An endpoint behind libfabric, with its completion queue and address vector:
//! the calls that a C program makes, through the same tables.

use super::{DoorError, Library};
use crate::port::{Grant, Local, Outcome, Port, PortError, Verb};
use kestrel_core::flags::Flags;
use kestrel_core::info::{
    AddressVectorKind, CompletionFormat, EndpointType, MemoryRegionMode, MessageOrder, Progress,
    ResourceManagement, Threading,
};
use kestrel_fi_abi::attributes::{AvAttr, CqAttr, CqErrEntry, CqTaggedEntry};
use kestrel_fi_abi::constants::command::ENABLE;
use kestrel_fi_abi::fid::{Fid, FidAv, FidCq, FidDomain, FidEp, FidFabric, FidMr};
use kestrel_fi_abi::info::Info;
use serde::{Deserialize, Serialize};
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;

/// `-FI_EAGAIN` and `-FI_EAVAIL`.
const AGAIN: isize = -(libc::EAGAIN as isize);
const AVAIL: isize = -259;
/// `FI_ADDR_UNSPEC`.
const ANYBODY: u64 = u64::MAX;
/// Room for any provider's address.
const ADDRESS_BYTES_MAX: usize = 512;

/// Which endpoint to open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoorOptions {
    pub provider: String,
    /// Tagged messages always; remote memory access and atomics if asked for.
    pub one_sided: bool,
    /// Whether the provider is to make progress by itself; who cannot is not offered.
    pub automatic_progress: bool,
}

/// A completion as `fi_cq_read` writes it.
pub struct Entry(CqTaggedEntry);

impl Default for Entry {
    fn default() -> Entry {
        // SAFETY: the struct is plain data, for which zeroes are valid.
        Entry(unsafe { std::mem::zeroed() })
    }
}

/// The objects, null until they are open. Closed in reverse order.
pub struct Side {
    pub(super) library: Library,
    provider: String,
    pub(super) info: *mut Info,
    fabric: *mut FidFabric,
    pub(super) domain: *mut FidDomain,
    av: *mut FidAv,
    cq: *mut FidCq,
    pub(super) ep: *mut FidEp,
    inject_bytes_max: usize,
}

/// What an application on two cores asks for: one thread, which polls, if no other does; messages in
/// order, as MPIs want them; receives from one source; keys and addresses as the
/// provider likes them.
fn fill(hints: &mut Info, provider: CString, options: &DoorOptions) {
    let mut caps = Flags::TAGGED | Flags::DIRECTED_RECV;
    if options.one_sided {
        caps |= Flags::RMA | Flags::ATOMIC;
    }
    hints.caps = caps.bits();
    let progress = if options.automatic_progress { Progress::Auto } else { Progress::Manual };
    let mr_mode =
        MemoryRegionMode::VIRT_ADDR | MemoryRegionMode::ALLOCATED | MemoryRegionMode::PROV_KEY;
    // SAFETY: libfabric has allocated every attribute; it frees the name as it
    // frees its own, with `free`.
    unsafe {
        (*hints.fabric_attr).prov_name = libc::strdup(provider.as_ptr());
        (*hints.ep_attr).kind = EndpointType::Rdm.value();
        (*hints.tx_attr).msg_order = MessageOrder::SAS.bits();
        (*hints.rx_attr).msg_order = MessageOrder::SAS.bits();
        let domain = &mut *hints.domain_attr;
        domain.threading = Threading::Domain.value();
        domain.control_progress = progress.value();
        domain.data_progress = progress.value();
        domain.resource_mgmt = ResourceManagement::Enabled.value();
        domain.av_type = AddressVectorKind::Table.value();
        domain.mr_mode = mr_mode.bits() as c_int;
    }
}

impl Side {
    pub fn open(library: Library, options: &DoorOptions) -> Result<Side, DoorError> {
        let provider = options.provider.clone();
        let name = CString::new(provider.as_str()).unwrap_or_default();
        // SAFETY: the hints stay as libfabric made them but for plain values and a
        // name that it may free.
        let info = unsafe { library.info(|hints| fill(hints, name, options)) };
        let info = info.map_err(|status| DoorError::NotOffered {
            provider: provider.clone(),
            reason: library.reason(status.into()),
        })?;
        // SAFETY: the answer is complete.
        let inject_bytes_max = unsafe { (*(*info).tx_attr).inject_size };
        let mut side = Side {
            library,
            provider,
            info,
            fabric: null_mut(),
            domain: null_mut(),
            av: null_mut(),
            cq: null_mut(),
            ep: null_mut(),
            inject_bytes_max,
        };
        side.open_objects()?;
        Ok(side)
    }

    fn open_objects(&mut self) -> Result<(), DoorError> {
        // SAFETY: zeroes are the defaults of attributes.
        let (mut av_attr, mut cq_attr): (AvAttr, CqAttr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        av_attr.kind = AddressVectorKind::Table.value();
        cq_attr.format = CompletionFormat::Tagged.value();
        let none = null_mut::<c_void>();
        // SAFETY: the info is libfabric's, every place is valid, and each object is
        // open before the next is opened in it. Objects start with a `struct fid`.
        unsafe {
            let fabric_attr = (*self.info).fabric_attr;
            let fabric = &raw mut self.fabric;
            self.check("fi_fabric", (self.library.fabric)(fabric_attr, fabric, none))?;
            let open = (*(*self.fabric).ops).domain;
            let domain = &raw mut self.domain;
            self.check("fi_domain", open(self.fabric, self.info, domain, none))?;
            let ops = &*(*self.domain).ops;
            let av = &raw mut self.av;
            self.check("fi_av_open", (ops.av_open)(self.domain, &mut av_attr, av, none))?;
            let cq = &raw mut self.cq;
            self.check("fi_cq_open", (ops.cq_open)(self.domain, &mut cq_attr, cq, none))?;
            let ep = &raw mut self.ep;
            self.check("fi_endpoint", (ops.endpoint)(self.domain, self.info, ep, none))?;
            let fid = self.ep.cast::<Fid>();
            let ops = &*(*fid).ops;
            let both = (Flags::TRANSMIT | Flags::RECV).bits();
            self.check("fi_ep_bind", (ops.bind)(fid, self.cq.cast(), both))?;
            self.check("fi_ep_bind", (ops.bind)(fid, self.av.cast(), 0))?;
            self.check("fi_enable", (ops.control)(fid, ENABLE, none))
        }
    }

    /// The address that other sides insert.
    pub fn address(&self) -> Result<Vec<u8>, DoorError> {
        let (mut address, mut len) = (vec![0; ADDRESS_BYTES_MAX], ADDRESS_BYTES_MAX);
        // SAFETY: the endpoint is open, and the buffer has this length.
        let status = unsafe {
            let getname = (*(*self.ep).cm).getname;
            getname(self.ep.cast(), address.as_mut_ptr().cast(), &raw mut len)
        };
        self.check("fi_getname", status)?;
        address.truncate(len);
        Ok(address)
    }

    pub fn insert(&mut self, address: &[u8]) -> Result<u64, DoorError> {
        // Some providers read an address in its full length.
        let mut padded = vec![0; ADDRESS_BYTES_MAX.max(address.len())];
        padded[..address.len()].copy_from_slice(address);
        let mut known_as = ANYBODY;
        // SAFETY: the vector is open; there is one address, and a place for its number.
        let count = unsafe {
            let insert = (*(*self.av).ops).insert;
            insert(self.av, padded.as_ptr().cast(), 1, &raw mut known_as, 0, null_mut())
        };
        if count == 1 {
            return Ok(known_as);
        }
        self.check("fi_av_insert", count.min(-1))?;
        Ok(known_as)
    }

    pub(super) fn check(&self, call: &'static str, status: c_int) -> Result<(), DoorError> {
        if status == 0 { Ok(()) } else { Err(self.failed(call, status as isize)) }
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, call: &'static str, status: isize) -> DoorError {
        let reason = self.library.reason(status as i64);
        DoorError::Call { provider: self.provider.clone(), call, reason }
    }

    /// What a post's status says.
    #[inline(always)]
    pub(super) fn outcome(&self, call: &'static str, status: isize) -> Result<Outcome, PortError> {
        match status {
            0 => Ok(Outcome::Done),
            AGAIN => Ok(Outcome::Again),
            status => Err(self.failed(call, status).into()),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_failed(&self, status: isize) -> DoorError {
        if status != AVAIL {
            return self.failed("fi_cq_read", status);
        }
        // SAFETY: zeroes are valid, and there is room for an entry of any version.
        let error = unsafe {
            let mut entry: CqErrEntry = std::mem::zeroed();
            let readerr = (*(*self.cq).ops).readerr;
            if readerr(self.cq, &raw mut entry, 0) == 1 { entry.err } else { 0 }
        };
        DoorError::Operation(format!(
            "{}: {}",
            self.provider,
            self.library.reason(-i64::from(error))
        ))
    }
}

impl Port for Side {
    type Entry = Entry;
    type Region = *mut FidMr;

    #[inline(always)]
    fn context(entry: &Entry) -> u64 {
        entry.0.op_context as u64
    }

    fn inject_bytes_max(&self) -> usize {
        self.inject_bytes_max
    }

    #[inline(always)]
    unsafe fn inject(
        &mut self,
        bytes: *const u8,
        len: usize,
        to: u64,
        tag: u64,
    ) -> Result<Outcome, PortError> {
        // SAFETY: the endpoint is open; the caller vouches for the range.
        let status = unsafe { ((*(*self.ep).tagged).inject)(self.ep, bytes.cast(), len, to, tag) };
        self.outcome("fi_tinject", status)
    }

    #[inline(always)]
    unsafe fn send(
        &mut self,
        bytes: *const u8,
        len: usize,
        to: u64,
        tag: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        let context = context as *mut c_void;
        // SAFETY: the endpoint is open; the caller vouches for the range. No mode
        // asks for more of a context than to be a number.
        let status = unsafe {
            let send = (*(*self.ep).tagged).send;
            send(self.ep, bytes.cast(), len, null_mut(), to, tag, context)
        };
        self.outcome("fi_tsend", status)
    }

    #[inline(always)]
    unsafe fn receive(
        &mut self,
        bytes: *mut u8,
        len: usize,
        from: Option<u64>,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        let (from, context) = (from.unwrap_or(ANYBODY), context as *mut c_void);
        // SAFETY: as in `send`.
        let status = unsafe {
            let recv = (*(*self.ep).tagged).recv;
            recv(self.ep, bytes.cast(), len, null_mut(), from, tag, ignore, context)
        };
        self.outcome("fi_trecv", status)
    }

    #[inline(always)]
    fn poll(&mut self, entries: &mut [Entry]) -> Result<usize, PortError> {
        // SAFETY: the queue is open, and has entries of this format.
        let count = unsafe {
            ((*(*self.cq).ops).read)(self.cq, entries.as_mut_ptr().cast(), entries.len())
        };
        match count {
            0.. => Ok(count as usize),
            AGAIN => Ok(0),
            status => Err(self.read_failed(status).into()),
        }
    }

    unsafe fn expose(
        &mut self,
        bytes: *mut u8,
        len: usize,
    ) -> Result<(*mut FidMr, Grant), PortError> {
        // SAFETY: the caller vouches for the range.
        Ok(unsafe { self.register(bytes, len)? })
    }

    fn hide(&mut self, region: *mut FidMr) -> Result<(), PortError> {
        Ok(self.check("fi_close", close(region))?)
    }

    #[inline(always)]
    unsafe fn reach(
        &mut self,
        verb: Verb,
        local: Local,
        grant: Grant,
        to: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        // SAFETY: the caller vouches for the ranges.
        unsafe { self.post_one_sided(verb, local, grant, to, context) }
    }
}

/// `fi_close`; nothing for what was never opened.
fn close<T>(object: *mut T) -> c_int {
    let fid = object.cast::<Fid>();
    if fid.is_null() {
        return 0;
    }
    // SAFETY: every object starts with a `struct fid`, and is closed once.
    unsafe { ((*(*fid).ops).close)(fid) }
}

impl Drop for Side {
    fn drop(&mut self) {
        // What cannot be closed is left to the end of the process.
        for status in [close(self.ep), close(self.cq), close(self.av), close(self.domain)] {
            if status != 0 {
                return;
            }
        }
        close(self.fabric);
        // SAFETY: the info is libfabric's own, and nothing uses it any more.
        unsafe { (self.library.freeinfo)(self.info) };
    }
}

//! Address vectors. Reference: fi_av(3).

use std::{
    ffi::{c_char, c_int, c_void},
    ptr, slice,
    sync::Arc,
};

use kestrel::discovery;
use kestrel_core::{
    address::{Address, AddressError, AddressFormat},
    address_vector::{
        AddressVector, AddressVectorAttributes, AddressVectorError, AddressVectorFlags,
        FI_ADDR_NOTAVAIL, SymmetricRange, symmetric_host_name,
    },
    error::{Errno, HasErrno},
    info::AddressVectorKind,
};

use crate::{
    abi::{
        attributes::AvAttr,
        constants::{BADF, NOSYS},
        control::{OpsAv, OpsFid},
        fid::{Fid, FidAv, FidDomain, FidEq, class},
    },
    address, hints,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done, guarded},
    words,
};

/// What we keep of an address vector.
pub struct State {
    pub vector: Arc<AddressVector>,
    format: AddressFormat,
    _domain: Use,
}

static FID: OpsFid = OpsFid { close: object::close::<FidAv>, bind, ..FID_NOSYS };
static OPERATIONS: OpsAv =
    OpsAv { insert, insertsvc, insertsym, remove, lookup, straddr, ..OpsAv::refusing::<NOSYS>() };
static CLOSED: OpsAv = OpsAv::refusing::<BADF>();

impl Header for FidAv {
    type State = State;
    const NAME: &'static str = "address vector";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.ops = &raw const CLOSED;
    }
    fn close(state: &State) -> Result<(), Failure> {
        Ok(state.vector.close()?)
    }
}

/// Reference: fi_av(3), `fi_av_open`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    av: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    done("fi_av_open", || {
        // SAFETY: C passes an open domain and valid pointers or null.
        let (place, parent, attr) =
            unsafe { (object::out(av)?, object::owned(domain)?, attr.as_mut()) };
        let attr = attr.ok_or_else(|| Failure::null("the address vector's attributes"))?;
        if !attr.name.is_null() {
            return Err(Failure::new(Errno::NOSYS, "named address vectors are not supported"));
        }
        let rx_ctx_bits = u32::try_from(attr.rx_ctx_bits)
            .map_err(|_| Failure::new(Errno::INVAL, "rx_ctx_bits is negative"))?;
        let mut kind = AddressVectorKind::try_from(attr.kind)?;
        if kind == AddressVectorKind::Unspec {
            kind = parent.info.domain.address_vector_kind;
        }
        let vector = AddressVector::open(AddressVectorAttributes {
            kind,
            rx_ctx_bits,
            count: attr.count,
            ep_per_node: attr.ep_per_node,
            flags: AddressVectorFlags::from_bits_retain(attr.flags),
        })?;
        // "If FI_AV_UNSPEC was specified, the provider's choice is returned here."
        attr.kind = vector.attributes().kind.value();
        let state = State {
            vector: Arc::new(vector),
            format: parent.address_format(),
            _domain: Use::of(&parent.uses)?,
        };
        let fid = object::fid::<FidAv>(class::AV, context);
        *place = object::create(FidAv { fid, ops: &raw const OPERATIONS }, state);
        let bound = parent.event_queue.get();
        if let (true, Some((queue, _))) = (has_events(attr.flags), bound) {
            // SAFETY: just made.
            let vector = unsafe { &object::owned(*place)?.vector };
            vector.bind_event_queue(queue.clone(), *place as u64)?;
        }
        Ok(())
    })
}

fn has_events(flags: u64) -> bool {
    AddressVectorFlags::from_bits_retain(flags).contains(AddressVectorFlags::EVENT)
}

/// Binds the event queue that insertions report to.
unsafe extern "C" fn bind(av: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    done("fi_av_bind", || {
        if flags != 0 {
            return Err(Failure::flags("fi_av_bind", flags));
        }
        // SAFETY: C passes open objects.
        let (state, queue) =
            unsafe { (object::owned(av.cast::<FidAv>())?, object::checked::<FidEq>(other)?) };
        Ok(state.vector.bind_event_queue(queue.queue().clone(), av as u64)?)
    })
}

/// Where an insertion's results go.
struct Results {
    fi_addr: *mut u64,
    errors: *mut c_int,
    next: usize,
}

impl Results {
    /// # Safety
    /// `fi_addr` is null or valid for a write of each result, and so is `context` if the
    /// flags have `SYNC_ERR`.
    unsafe fn new(fi_addr: *mut u64, flags: u64, context: *mut c_void) -> Result<Self, Failure> {
        let flags = AddressVectorFlags::from_bits_retain(flags);
        let known = AddressVectorFlags::MORE | AddressVectorFlags::SYNC_ERR;
        if !known.contains(flags) {
            return Err(Failure::flags("fi_av_insert", flags.bits()));
        }
        let wants_errors = flags.contains(AddressVectorFlags::SYNC_ERR);
        if wants_errors && context.is_null() {
            return Err(Failure::null("where FI_SYNC_ERR reports"));
        }
        let errors = if wants_errors { context.cast() } else { ptr::null_mut() };
        Ok(Results { fi_addr, errors, next: 0 })
    }

    fn add(&mut self, result: Result<u64, AddressVectorError>) {
        let at = self.next;
        self.next += 1;
        // SAFETY: whoever made this vouched for both arrays.
        unsafe {
            if !self.fi_addr.is_null() {
                self.fi_addr.add(at).write(*result.as_ref().unwrap_or(&FI_ADDR_NOTAVAIL));
            }
            if !self.errors.is_null() {
                self.errors.add(at).write(result.as_ref().err().map_or(0, |error| error.errno().0));
            }
        }
        if let Err(error) = result {
            tracing::info!("address {at} was not inserted: {error}");
        }
    }
}

/// Inserts, and answers how many were; 0 where events will tell.
unsafe fn insert_each(
    state: &State,
    addresses: impl IntoIterator<Item = Result<Address, AddressError>>,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> Result<c_int, Failure> {
    // SAFETY: the caller vouches for it.
    let mut results = unsafe { Results::new(fi_addr, flags, context) }?;
    let report = |result| results.add(result);
    if state.vector.is_asynchronous() {
        state.vector.insert_with_events(addresses, context as u64, report)?;
        return Ok(0);
    }
    let count = state.vector.insert_each(addresses, report);
    Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
}

unsafe extern "C" fn insert(
    av: *mut FidAv,
    addresses: *const c_void,
    count: usize,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guarded("fi_av_insert", || {
        if addresses.is_null() && count > 0 {
            return Err(Failure::null("the addresses"));
        }
        // SAFETY: C passes an open vector, and arrays of that many entries.
        unsafe {
            let state = object::owned(av)?;
            let addresses = address::read_each(state.format, addresses, count);
            insert_each(state, addresses, fi_addr, flags, context)
        }
    })
}

unsafe extern "C" fn insertsvc(
    av: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guarded("fi_av_insertsvc", || {
        if node.is_null() || service.is_null() {
            return Err(Failure::null("the node or the service"));
        }
        // SAFETY: C passes an open vector, C strings, and room for one result.
        unsafe {
            let (node, service) = (hints::text(node), hints::text(service));
            let address = discovery::resolve(node.as_deref(), service.as_deref())?;
            insert_each(object::owned(av)?, [Ok(address)], fi_addr, flags, context)
        }
    })
}

unsafe extern "C" fn insertsym(
    av: *mut FidAv,
    node: *const c_char,
    node_count: usize,
    service: *const c_char,
    service_count: usize,
    fi_addr: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guarded("fi_av_insertsym", || {
        // SAFETY: C passes C strings or null.
        let (node, service) = unsafe { (hints::text(node), hints::text(service)) };
        let (Some(node), Some(service)) = (node, service) else {
            return Err(Failure::null("the node or the service"));
        };
        let addresses = symmetric(&node, node_count, &service, service_count)?;
        // SAFETY: C passes an open vector, and room for as many results.
        unsafe {
            insert_each(object::owned(av)?, addresses.into_iter().map(Ok), fi_addr, flags, context)
        }
    })
}

/// Node by node: an address counts up, a name counts up by its suffix.
fn symmetric(
    node: &str,
    node_count: usize,
    service: &str,
    service_count: usize,
) -> Result<Vec<Address>, Failure> {
    if node.parse::<std::net::IpAddr>().is_ok() {
        let base = discovery::resolve(Some(node), Some(service))?;
        return Ok(SymmetricRange::new(base, node_count, service_count)?.addresses().collect());
    }
    let mut addresses = Vec::new();
    for at in 0..node_count {
        let base = discovery::resolve(Some(&symmetric_host_name(node, at)?), Some(service))?;
        addresses.extend(SymmetricRange::new(base, 1, service_count)?.addresses());
    }
    Ok(addresses)
}

unsafe extern "C" fn remove(av: *mut FidAv, fi_addr: *mut u64, count: usize, flags: u64) -> c_int {
    done("fi_av_remove", || {
        if flags != 0 {
            return Err(Failure::flags("fi_av_remove", flags));
        }
        if fi_addr.is_null() && count > 0 {
            return Err(Failure::null("the addresses"));
        }
        // SAFETY: C passes an open vector, and that many addresses.
        unsafe {
            let fi_addrs = if count == 0 { &[] } else { slice::from_raw_parts(fi_addr, count) };
            Ok(object::owned(av)?.vector.remove(fi_addrs)?)
        }
    })
}

/// "The returned address is the same format as that used for insertion"; what does not
/// fit is cut off, and the length says so.
unsafe extern "C" fn lookup(
    av: *mut FidAv,
    fi_addr: u64,
    target: *mut c_void,
    length: *mut usize,
) -> c_int {
    done("fi_av_lookup", || {
        // SAFETY: C passes an open vector, and a buffer of that length.
        unsafe {
            let state = object::owned(av)?;
            let bytes = address::write(state.format, &state.vector.lookup(fi_addr)?);
            match address::fill(&bytes, target, length) {
                Err(failure) if failure.errno == Errno::TOOSMALL => Ok(()),
                outcome => outcome,
            }
        }
    })
}

unsafe extern "C" fn straddr(
    av: *mut FidAv,
    target: *const c_void,
    buffer: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    guarded("fi_av_straddr", || {
        if target.is_null() || buffer.is_null() || length.is_null() {
            return Err(Failure::null("the address, the buffer or its length"));
        }
        // SAFETY: C passes an open vector, an address in its format, and a buffer of
        // that length.
        unsafe {
            let state = object::owned(av)?;
            let mut addresses = address::read_each(state.format, target, 1);
            let address = addresses.next().ok_or_else(|| Failure::null("the address"))??;
            let text = state.vector.straddr(&address);
            let room = length.replace(text.len() + 1);
            words::tell(&text, buffer, room);
        }
        Ok(buffer.cast_const())
    })
}

//! Memory regions. Reference: fi_mr(3).

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
    sync::{Arc, Mutex, PoisonError},
};

use kestrel::Domain;
use kestrel_core::{
    address_vector::AddressVectorFlags,
    error::Errno,
    event_queue::Event,
    flags::Flags,
    info::ApiVersion,
    memory_region::{
        MemoryRange, MemoryRegion, MemoryRegionAttributes, audience::Audience,
        descriptor::Descriptor,
    },
    operation::IOV_LIMIT,
};

use crate::{
    abi::{
        attributes::{Iovec, MrAttr, MrAuthKey},
        constants::command,
        control::{OpsFid, OpsMr},
        fid::{Fid, FidAv, FidCntr, FidDomain, FidEp, FidMr, class},
    },
    domain, endpoint,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    raw_keys,
};

/// What we keep of a region.
pub struct State {
    region: Arc<MemoryRegion>,
    domain: Arc<Domain>,
    /// The endpoints that are bound to it: "the MR must be closed before the endpoint" (fi_mr(3)).
    endpoints: Mutex<Vec<Use>>,
    _base: Option<Base>,
    _domain: Use,
}

/// The region that another one is part of. "When fi_close is called on the base MR, the call would
/// fail if there are any outstanding sub-MRs" (fi_mr(3)).
struct Base(Arc<MemoryRegion>);

impl Base {
    fn of(region: &Arc<MemoryRegion>) -> Result<Base, Failure> {
        region.binds().bind()?;
        Ok(Base(region.clone()))
    }

    /// "The sub-MR must be fully contained within the base MR."
    fn check(&self, parts: &[MemoryRange]) -> Result<(), Failure> {
        let holds = |all: &MemoryRange, part: &MemoryRange| {
            let from = part.address.checked_sub(all.address);
            from.is_some_and(|from| from <= all.len && part.len <= all.len - from)
        };
        let outside = |part: &&MemoryRange| !self.0.ranges().iter().any(|all| holds(all, part));
        match parts.iter().find(outside) {
            None => Ok(()),
            Some(MemoryRange { address, len }) => {
                let reason = format!("{len} bytes from {address:#x} on are not in the base region");
                Err(Failure::new(Errno::INVAL, reason))
            }
        }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        // Counted when it was made, so this cannot fail.
        let _ = self.0.binds().unbind();
    }
}

impl State {
    /// Whether an endpoint of `domain` may be bound to the region.
    pub fn check_domain(&self, domain: &Arc<Domain>) -> Result<(), Failure> {
        domain::check_domain(&self.domain, domain, "memory region")
    }

    /// Binds an endpoint, which changes nothing here but the order in which both are closed.
    pub fn bind_endpoint(&self, endpoint: &endpoint::State) -> Result<(), Failure> {
        self.check_domain(endpoint.endpoint.domain())?;
        // Nothing that is done under it panics half-way.
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.push(Use::of(endpoint.uses())?);
        Ok(())
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidMr>, bind, control, ..FID_NOSYS };

/// The calls of a domain that register.
pub const OPERATIONS: OpsMr = OpsMr { size: size_of::<OpsMr>(), reg, regv, regattr };

impl Header for FidMr {
    type State = State;
    const NAME: &'static str = "memory region";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {}
    fn close(state: &State) -> Result<(), Failure> {
        Ok(state.domain.close_memory(&state.region)?)
    }
}

/// # Safety
/// `iov` is null or that many entries are there.
unsafe fn ranges(iov: *const Iovec, count: usize) -> Result<Vec<MemoryRange>, Failure> {
    if iov.is_null() && count > 0 {
        return Err(Failure::null("the list of buffers"));
    }
    // Before any is looked at.
    if count > IOV_LIMIT {
        let reason = format!("{count} buffers, where a region has {IOV_LIMIT} at most");
        return Err(Failure::new(Errno::INVAL, reason));
    }
    // SAFETY: the caller vouches for it.
    let iov = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(iov, count) } };
    let range = |entry: &Iovec| MemoryRange { address: entry.base as u64, len: entry.len as u64 };
    Ok(iov.iter().map(range).collect())
}

/// The region that a descriptor is of, which is no address and is followed nowhere; of null none.
#[inline(always)]
pub fn region_of(descriptor: *mut c_void) -> Option<Descriptor> {
    Descriptor::from_word(descriptor.addr() as u64)
}

/// Since when a list of descriptors is null or there: "Prior to libfabric 1.22, the desc parameter was
/// ignored" (fi_mr(3), on FI_MR_LOCAL, which is asked of nobody), whatever it points to.
const WITH_LISTS: ApiVersion = ApiVersion::new(1, 22);

/// Whether there may be a list, or it is a descriptor instead: programs pass that where a list of one is meant, which
/// other providers do not notice. Nothing lies in the first page, nor where a processor has no addresses.
#[inline(always)]
fn is_address(descriptors: *const *mut c_void) -> bool {
    (1 << 12..1 << 56).contains(&descriptors.addr())
}

/// Whether an application's lists of descriptors are followed.
#[derive(Clone, Copy)]
pub struct DescriptorLists(bool);

impl DescriptorLists {
    /// Those of an application of that version.
    pub fn of(version: ApiVersion) -> DescriptorLists {
        DescriptorLists(version >= WITH_LISTS)
    }

    /// The region of a list of one buffer.
    ///
    /// # Safety
    /// Where lists are followed there are as many descriptors as buffers, or `descriptors` is null.
    #[inline(always)]
    pub unsafe fn region(
        self,
        descriptors: *const *mut c_void,
        count: usize,
    ) -> Option<Descriptor> {
        if !self.0 || descriptors.is_null() || count != 1 {
            return None;
        }
        if !is_address(descriptors) {
            return region_of(descriptors.cast_mut().cast());
        }
        // SAFETY: the caller vouches for it.
        region_of(unsafe { *descriptors })
    }
}

/// # Safety
/// `domain` is a domain that is open.
unsafe fn register(
    domain: *mut Fid,
    attributes: &MemoryRegionAttributes<'_>,
    base: Option<Base>,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it.
    let (place, parent): (_, &domain::State) =
        unsafe { (object::out(mr)?, object::checked::<FidDomain>(domain)?) };
    let in_use = Use::of(&parent.uses)?;
    // SAFETY: by registering memory an application promises that it stays, and that it
    // puts up with what the access allows to peers.
    let region = unsafe { parent.domain.register_memory(attributes) }?;
    let (key, descriptor) = (region.key(), region.descriptor().map_or(0, Descriptor::to_word));
    let domain = parent.domain.clone();
    let endpoints = Mutex::default();
    let state = State { region, domain, endpoints, _base: base, _domain: in_use };
    let fid = object::fid::<FidMr>(class::MR, context);
    *place = object::create(
        FidMr { fid, mem_desc: ptr::without_provenance_mut(descriptor as usize), key },
        state,
    );
    let object = *place;
    if let (true, Some(queue)) = (parent.reports_regions(), parent.domain.event_queue()) {
        let (fid, context) = (object as u64, context as u64);
        queue.push(Event::MemoryRegionComplete { fid, context, data: 0 });
    }
    Ok(())
}

unsafe extern "C" fn reg(
    fid: *mut Fid,
    buffer: *const c_void,
    length: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let iov = Iovec { base: buffer.cast_mut(), len: length };
    // SAFETY: as this function's own contract.
    unsafe { regv(fid, &raw const iov, 1, access, offset, requested_key, flags, mr, context) }
}

unsafe extern "C" fn regv(
    fid: *mut Fid,
    iov: *const Iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    done("fi_mr_reg", || {
        // SAFETY: C passes an open domain, and that many buffers.
        unsafe {
            let attributes = MemoryRegionAttributes {
                ranges: &ranges(iov, count)?,
                access: Flags::from_bits_retain(access),
                offset,
                requested_key,
                flags: Flags::from_bits_retain(flags),
                context: context as u64,
                audience: None,
            };
            // "For domains opened with FI_AV_AUTH_KEY, fi_mr_reg is not supported and fi_mr_regattr
            // must be used."
            if object::checked::<FidDomain>(fid)?.info.domain.vector_keys {
                return Err(Failure::new(Errno::NOSYS, "the domain has FI_AV_AUTH_KEY"));
            }
            register(fid, &attributes, None, mr, context)
        }
    })
}

/// Whom a region is for, and the flags that are left: "If the domain is opened with
/// FI_AV_AUTH_KEY, auth_key must point to a user-defined struct fi_mr_auth_key" (fi_mr(3)).
///
/// # Safety
/// `domain` is an open domain, and the key is null or has its size; of such a domain, its vector
/// is open.
unsafe fn audience(
    domain: *mut Fid,
    attr: &MrAttr,
    flags: u64,
) -> Result<(Option<Audience>, u64), Failure> {
    // SAFETY: the caller vouches for it.
    let parent = unsafe { object::checked::<FidDomain>(domain) }?;
    let keyed = parent.info.domain.vector_keys;
    // "This field is ignored unless the fabric is opened with API version 1.5 or greater."
    if parent.version < ApiVersion::new(1, 5) {
        return Ok((None, flags));
    }
    let expected = if keyed { size_of::<MrAuthKey>() } else { 0 };
    if attr.auth_key_size != expected {
        let reason = format!("a key of {} bytes: it has {expected} here", attr.auth_key_size);
        return Err(Failure::new(Errno::INVAL, reason));
    }
    if !keyed {
        return Ok((None, flags));
    }
    if attr.auth_key.is_null() {
        return Err(Failure::null("auth_key"));
    }
    // SAFETY: it has the size, and need not be aligned.
    let MrAuthKey { av, src_addr } = unsafe { attr.auth_key.cast::<MrAuthKey>().read_unaligned() };
    // SAFETY: as above.
    let vector = &unsafe { object::checked::<FidAv>(av.cast()) }?.vector;
    let mark = AddressVectorFlags::AUTH_KEY;
    let marks = AddressVectorFlags::from_bits_retain(flags) & mark;
    Ok((Some(vector.audience(src_addr, marks)?), flags & !mark.bits()))
}

/// The region that one is to be part of: "If non-NULL, create a sub-MR from an existing memory region
/// specified by the base_mr field" (fi_mr(3)), which attributes have since version 2.0.
///
/// # Safety
/// `domain` is an open domain, the attributes are of its version, and the base is null or an object
/// that is open.
unsafe fn base(
    domain: *mut Fid,
    attr: &MrAttr,
    ranges: &[MemoryRange],
) -> Result<Option<Base>, Failure> {
    // SAFETY: the caller vouches for it.
    let parent = unsafe { object::checked::<FidDomain>(domain) }?;
    if parent.version < ApiVersion::new(2, 0) || attr.base_mr.is_null() {
        return Ok(None);
    }
    // SAFETY: as above.
    let whole = unsafe { object::checked::<FidMr>(attr.base_mr.cast_mut().cast()) }?;
    whole.check_domain(&parent.domain)?;
    let base = Base::of(&whole.region)?;
    base.check(ranges)?;
    Ok(Some(base))
}

unsafe extern "C" fn regattr(
    fid: *mut Fid,
    attr: *const MrAttr,
    flags: u64,
    mr: *mut *mut FidMr,
) -> c_int {
    done("fi_mr_regattr", || {
        // SAFETY: C passes valid attributes, of version 1.17 at least; no more is read, unless the
        // domain is of a later one.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("the attributes"))?;
        // The interface "is ignored unless the application has requested the FI_HMEM capability".
        // SAFETY: C passes an open domain, and as many buffers as it says.
        unsafe {
            let (audience, flags) = audience(fid, attr, flags)?;
            let ranges = ranges(attr.mr_iov, attr.iov_count)?;
            let base = base(fid, attr, &ranges)?;
            let attributes = MemoryRegionAttributes {
                ranges: &ranges,
                access: Flags::from_bits_retain(attr.access),
                offset: attr.offset,
                requested_key: attr.requested_key,
                flags: Flags::from_bits_retain(flags),
                context: attr.context as u64,
                audience: audience.as_ref(),
            };
            register(fid, &attributes, base, mr, attr.context)
        }
    })
}

/// Binds an endpoint or a counter.
/// Reference: fi_mr(3), `fi_mr_bind`.
unsafe extern "C" fn bind(mr: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    done("fi_mr_bind", || {
        if other.is_null() {
            return Err(Failure::null("what to bind"));
        }
        // SAFETY: C passes open objects.
        unsafe {
            let state = object::owned(mr.cast::<FidMr>())?;
            if (*other).ops == FidEp::operations() {
                if flags != 0 {
                    return Err(Failure::flags("fi_mr_bind", flags));
                }
                return state.bind_endpoint(object::checked::<FidEp>(other)?);
            }
            let counter = &object::checked::<FidCntr>(other)?.counter;
            let flags = Flags::from_bits_retain(flags);
            Ok(state.domain.bind_memory_counter(&state.region, counter, flags)?)
        }
    })
}

/// A region is enabled from the start; enabling it is allowed all the same.
unsafe extern "C" fn control(mr: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || match command {
        command::ENABLE => Ok(()),
        command::GET_RAW_MR => {
            // SAFETY: C passes an open region, and what the command takes.
            unsafe {
                let region = &object::owned(mr.cast::<FidMr>())?.region;
                raw_keys::tell(region.base(), region.key(), argument.cast())
            }
        }
        _ => Err(Failure::new(Errno::NOSYS, format!("command {command} of a memory region"))),
    })
}

//! Address vectors. Reference: fi_av(3).

mod auth_key;
mod insertion;

use std::{
    ffi::{c_char, c_int, c_void},
    slice,
    sync::Arc,
};

use kestrel::{Domain, address_vectors};
use kestrel_core::{
    address::AddressFormat,
    address_vector::{AddressVector, AddressVectorAttributes, AddressVectorFlags},
    error::Errno,
    info::AddressVectorKind,
};

use crate::{
    abi::{
        attributes::AvAttr,
        constants::{BADF, NOSYS},
        control::{OpsAv, OpsFid},
        fid::{Fid, FidAv, FidDomain, FidEq, class},
    },
    address, domain, hints,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done, guarded},
    words,
};

/// What we keep of an address vector.
pub struct State {
    pub vector: Arc<AddressVector>,
    /// Endpoints of others are not bound to it, and its event queue is the default.
    pub domain: Arc<Domain>,
    format: AddressFormat,
    _domain: Use,
}

impl State {
    /// The vector, for an endpoint of `domain` to be bound to it.
    pub fn vector_for(&self, domain: &Arc<Domain>) -> Result<&Arc<AddressVector>, Failure> {
        domain::check_domain(&self.domain, domain, "address vector")?;
        Ok(&self.vector)
    }
}

static FID: OpsFid = OpsFid { close: object::close::<FidAv>, bind, ..FID_NOSYS };
static OPERATIONS: OpsAv = OpsAv {
    insert: insertion::insert,
    insertsvc: insertion::insertsvc,
    insertsym: insertion::insertsym,
    remove,
    lookup,
    straddr,
    set_user_id,
    insert_auth_key: auth_key::insert,
    lookup_auth_key: auth_key::lookup,
    ..OpsAv::refusing::<NOSYS>()
};
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
        let rx_ctx_bits = u32::try_from(attr.rx_ctx_bits)
            .map_err(|_| Failure::new(Errno::INVAL, "rx_ctx_bits is negative"))?;
        let mut kind = AddressVectorKind::try_from(attr.kind)?;
        if kind == AddressVectorKind::Unspec {
            kind = parent.info.domain.address_vector_kind;
        }
        let attributes = AddressVectorAttributes {
            kind,
            rx_ctx_bits,
            count: attr.count,
            ep_per_node: attr.ep_per_node,
            flags: AddressVectorFlags::from_bits_retain(attr.flags),
            auth_keys: parent.info.domain.vector_keys,
        };
        // SAFETY: C passes a C string or null.
        let vector = match unsafe { hints::text(attr.name) } {
            None => AddressVector::open(attributes)?,
            Some(name) => {
                let domain = &parent.info.domain.name;
                let vector = address_vectors::open_named(domain, &name, attributes)?;
                // "If name is non-NULL and map_addr is 0, then the map_addr used by the provider
                // will be returned". Numbers mean the same whatever it is; it is where they are
                // listed, since libfabric's own test looks there for what others inserted.
                if let (true, Some(numbers)) = (attr.map_addr.is_null(), vector.shared_numbers()) {
                    attr.map_addr = numbers.as_ptr() as *mut c_void;
                }
                vector
            }
        };
        // "If FI_AV_UNSPEC was specified, the provider's choice is returned here."
        attr.kind = vector.attributes().kind.value();
        let state = State {
            vector: Arc::new(vector),
            domain: parent.domain.clone(),
            format: parent.address_format(),
            _domain: Use::of(&parent.uses)?,
        };
        let fid = object::fid::<FidAv>(class::AV, context);
        *place = object::create(FidAv { fid, ops: &raw const OPERATIONS }, state);
        Ok(())
    })
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

unsafe extern "C" fn remove(av: *mut FidAv, fi_addr: *mut u64, count: usize, flags: u64) -> c_int {
    done("fi_av_remove", || {
        let of_keys = flags == AddressVectorFlags::AUTH_KEY.bits();
        if flags != 0 && !of_keys {
            return Err(Failure::flags("fi_av_remove", flags));
        }
        if fi_addr.is_null() && count > 0 {
            return Err(Failure::null("the addresses"));
        }
        // SAFETY: C passes an open vector, and that many addresses.
        unsafe {
            let fi_addrs = if count == 0 { &[] } else { slice::from_raw_parts(fi_addr, count) };
            let vector = &object::owned(av)?.vector;
            let removed =
                if of_keys { vector.remove_auth_keys(fi_addrs) } else { vector.remove(fi_addrs) };
            Ok(removed?)
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
        if target.is_null() || length.is_null() {
            return Err(Failure::null("the address, or the buffer's length"));
        }
        // SAFETY: C passes an open vector, an address in its format, and a buffer of
        // that length.
        unsafe {
            let state = object::owned(av)?;
            let address = address::read_one(state.format, target)?;
            let text = state.vector.straddr(&address);
            let room = length.replace(text.len() + 1);
            // Without a buffer its length is all that is asked for.
            if !buffer.is_null() {
                words::tell(&text, buffer, room);
            }
        }
        Ok(buffer.cast_const())
    })
}

/// Reference: fi_av(3), `fi_av_set_user_id`.
unsafe extern "C" fn set_user_id(av: *mut FidAv, fi_addr: u64, user_id: u64, flags: u64) -> c_int {
    done("fi_av_set_user_id", || {
        // SAFETY: C passes an open vector.
        let vector = &unsafe { object::owned(av) }?.vector;
        match AddressVectorFlags::from_bits_retain(flags) {
            AddressVectorFlags::AUTH_KEY => Ok(vector.set_auth_key_id(fi_addr, user_id)?),
            none if none.is_empty() => Ok(vector.set_user_id(fi_addr, user_id)?),
            _ => Err(Failure::flags("fi_av_set_user_id", flags)),
        }
    })
}

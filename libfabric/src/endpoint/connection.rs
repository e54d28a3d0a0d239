//! Names of endpoints, and connections of those that have one. Reference: fi_cm(3).

use std::ffi::{c_int, c_void};

use kestrel_core::{
    address::{Address, AddressError, AddressFormat},
    error::Errno,
};

use super::State;
use crate::{
    abi::{
        constants::NOSYS,
        control::OpsCm,
        fid::{Fid, FidEp},
    },
    address, multicast,
    object::{self, Header},
    outcome::{Failure, done},
};

pub static OPERATIONS: OpsCm = OpsCm { join: multicast::join, ..operations::<FidEp>() };

/// The calls of whoever has a name.
pub const fn names<H: Header<State: Named>>() -> OpsCm {
    OpsCm { setname: setname::<H>, getname: getname::<H>, ..OpsCm::refusing::<NOSYS>() }
}

/// The calls of an endpoint that has a name, and may have a peer.
pub const fn operations<H: Header<State: Connects>>() -> OpsCm {
    OpsCm {
        getpeer: getpeer::<H>,
        connect: connect::<H>,
        accept: accept::<H>,
        shutdown: shutdown::<H>,
        ..names::<H>()
    }
}

/// Whoever has a name.
pub trait Named {
    /// How its addresses are written.
    fn format(&self) -> AddressFormat;
    fn address(&self) -> Address;
    fn set_address(&self, address: Address) -> Result<(), Failure>;
}

/// Whoever has a name, and may have a peer.
pub trait Connects: Named {
    fn peer(&self) -> Result<Address, Failure>;
    fn connect(&self, address: Address, data: &[u8]) -> Result<(), Failure>;
    fn accept(&self, data: &[u8]) -> Result<(), Failure>;
    fn shutdown(&self) -> Result<(), Failure>;
}

impl Named for State {
    fn format(&self) -> AddressFormat {
        self.format
    }
    fn address(&self) -> Address {
        self.endpoint.address()
    }
    fn set_address(&self, address: Address) -> Result<(), Failure> {
        Ok(self.endpoint.set_address(address)?)
    }
}

impl Connects for State {
    fn peer(&self) -> Result<Address, Failure> {
        Ok(self.endpoint.peer()?)
    }
    fn connect(&self, address: Address, data: &[u8]) -> Result<(), Failure> {
        Ok(self.endpoint.connect(address, data)?)
    }
    fn accept(&self, data: &[u8]) -> Result<(), Failure> {
        self.endpoint.accept(data)?;
        self.request.settle();
        Ok(())
    }
    fn shutdown(&self) -> Result<(), Failure> {
        Ok(self.endpoint.shutdown()?)
    }
}

/// The application's data that goes with a request or an answer.
///
/// # Safety
/// `data` is null or valid for reads of `length` bytes.
pub unsafe fn data<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    match length {
        0 => Ok(&[]),
        _ if data.is_null() => Err(Failure::null("the data")),
        // SAFETY: the caller vouches for it.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
    }
}

/// The address that a call names, which comes with its length or ends by itself: "The address must
/// be in the same format as that specified using fi_info: addr_format when the endpoint was
/// created" (fi_cm(3)).
///
/// # Safety
/// As [`address::read`], and [`address::read_one`] where there is no length.
pub unsafe fn named(
    format: AddressFormat,
    target: *const c_void,
    length: Option<usize>,
) -> Result<Address, Failure> {
    if target.is_null() {
        return Err(Failure::null("the address"));
    }
    // SAFETY: the caller vouches for it.
    let found = unsafe {
        match length {
            Some(length) => address::read(format.value(), target, length)?,
            None => Some(address::read_one(format, target)?),
        }
    };
    let address = found.ok_or_else(|| Failure::new(Errno::INVAL, "the address is empty"))?;
    if !format.holds(&address) {
        return Err(AddressError::OtherFormat { address, format }.into());
    }
    Ok(address)
}

/// "On output, addrlen is set to the size of the buffer needed to store the address";
/// -FI_ETOOSMALL if there were fewer.
unsafe extern "C" fn getname<H: Header<State: Named>>(
    ep: *mut Fid,
    target: *mut c_void,
    length: *mut usize,
) -> c_int {
    done("fi_getname", || {
        // SAFETY: C passes an open endpoint, and a buffer of that length.
        unsafe {
            let state = object::owned(ep.cast::<H>())?;
            let bytes = address::write(state.format(), &state.address());
            address::fill(&bytes, target, length)
        }
    })
}

unsafe extern "C" fn setname<H: Header<State: Named>>(
    ep: *mut Fid,
    target: *mut c_void,
    length: usize,
) -> c_int {
    done("fi_setname", || {
        // SAFETY: C passes an open endpoint, and an address of that length.
        unsafe {
            let state = object::owned(ep.cast::<H>())?;
            state.set_address(named(state.format(), target, Some(length))?)
        }
    })
}

unsafe extern "C" fn getpeer<H: Header<State: Connects>>(
    ep: *mut FidEp,
    target: *mut c_void,
    length: *mut usize,
) -> c_int {
    done("fi_getpeer", || {
        // SAFETY: C passes an open endpoint, and a buffer of that length.
        unsafe {
            let state = object::owned(ep.cast::<H>())?;
            let bytes = address::write(state.format(), &state.peer()?);
            address::fill(&bytes, target, length)
        }
    })
}

unsafe extern "C" fn connect<H: Header<State: Connects>>(
    ep: *mut FidEp,
    target: *const c_void,
    param: *const c_void,
    length: usize,
) -> c_int {
    done("fi_connect", || {
        // SAFETY: C passes an open endpoint, an address in its format, and that much data.
        unsafe {
            let state = object::owned(ep.cast::<H>())?;
            let address = named(state.format(), target, None)?;
            state.connect(address, data(param, length)?)
        }
    })
}

unsafe extern "C" fn accept<H: Header<State: Connects>>(
    ep: *mut FidEp,
    param: *const c_void,
    length: usize,
) -> c_int {
    done("fi_accept", || {
        // SAFETY: C passes an open endpoint, and that much data.
        unsafe { object::owned(ep.cast::<H>())?.accept(data(param, length)?) }
    })
}

unsafe extern "C" fn shutdown<H: Header<State: Connects>>(ep: *mut FidEp, flags: u64) -> c_int {
    done("fi_shutdown", || {
        if flags != 0 {
            return Err(Failure::flags("fi_shutdown", flags));
        }
        // SAFETY: C passes an open endpoint.
        unsafe { object::owned(ep.cast::<H>()) }?.shutdown()
    })
}

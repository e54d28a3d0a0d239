//! Names of endpoints, and connections of those that have one. Reference: fi_cm(3).

use std::ffi::{c_int, c_void};

use kestrel_core::{
    address::{Address, AddressFormat},
    error::Errno,
};

use super::State;
use crate::{
    abi::{
        constants::NOSYS,
        control::OpsCm,
        fid::{Fid, FidEp},
    },
    address, multicast, object,
    outcome::{Failure, done},
};

pub static OPERATIONS: OpsCm = OpsCm {
    setname,
    getname,
    getpeer,
    connect,
    accept,
    shutdown,
    join: multicast::join,
    ..OpsCm::refusing::<NOSYS>()
};

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

/// The address that a call names, which comes with its length or ends by itself.
///
/// # Safety
/// As [`address::read`], and [`address::read_each`] where there is no length.
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
            None => address::read_each(format, target, 1).next().transpose()?,
        }
    };
    found.ok_or_else(|| Failure::new(Errno::INVAL, "the address is empty"))
}

/// "On output, addrlen is set to the size of the buffer needed to store the address";
/// -FI_ETOOSMALL if there were fewer.
unsafe extern "C" fn getname(ep: *mut Fid, target: *mut c_void, length: *mut usize) -> c_int {
    done("fi_getname", || {
        // SAFETY: C passes an open endpoint, and a buffer of that length.
        unsafe {
            let state: &State = object::owned(ep.cast::<FidEp>())?;
            let bytes = address::write(state.format, &state.endpoint.address());
            address::fill(&bytes, target, length)
        }
    })
}

unsafe extern "C" fn setname(ep: *mut Fid, target: *mut c_void, length: usize) -> c_int {
    done("fi_setname", || {
        // SAFETY: C passes an open endpoint, and an address of that length.
        unsafe {
            let state = object::owned(ep.cast::<FidEp>())?;
            let address = named(state.format, target, Some(length))?;
            Ok(state.endpoint.set_address(address)?)
        }
    })
}

unsafe extern "C" fn getpeer(ep: *mut FidEp, target: *mut c_void, length: *mut usize) -> c_int {
    done("fi_getpeer", || {
        // SAFETY: C passes an open endpoint, and a buffer of that length.
        unsafe {
            let state = object::owned(ep)?;
            let bytes = address::write(state.format, &state.endpoint.peer()?);
            address::fill(&bytes, target, length)
        }
    })
}

unsafe extern "C" fn connect(
    ep: *mut FidEp,
    target: *const c_void,
    param: *const c_void,
    length: usize,
) -> c_int {
    done("fi_connect", || {
        // SAFETY: C passes an open endpoint, an address in its format, and that much data.
        unsafe {
            let state = object::owned(ep)?;
            let address = named(state.format, target, None)?;
            Ok(state.endpoint.connect(address, data(param, length)?)?)
        }
    })
}

unsafe extern "C" fn accept(ep: *mut FidEp, param: *const c_void, length: usize) -> c_int {
    done("fi_accept", || {
        // SAFETY: C passes an open endpoint, and that much data.
        unsafe { Ok(object::owned(ep)?.endpoint.accept(data(param, length)?)?) }
    })
}

unsafe extern "C" fn shutdown(ep: *mut FidEp, flags: u64) -> c_int {
    done("fi_shutdown", || {
        if flags != 0 {
            return Err(Failure::flags("fi_shutdown", flags));
        }
        // SAFETY: C passes an open endpoint.
        Ok(unsafe { object::owned(ep) }?.endpoint.shutdown()?)
    })
}

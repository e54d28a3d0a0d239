//! Names of endpoints; RDM endpoints have no connections to manage. Reference: fi_cm(3).

use std::ffi::{c_int, c_void};

use crate::{
    abi::{
        constants::NOSYS,
        control::OpsCm,
        fid::{Fid, FidEp},
    },
    address, object,
    outcome::done,
};

pub static OPERATIONS: OpsCm = OpsCm { getname, ..OpsCm::refusing::<NOSYS>() };

/// "On output, addrlen indicates the number of bytes necessary to store the address";
/// -FI_ETOOSMALL if there were fewer.
unsafe extern "C" fn getname(ep: *mut Fid, target: *mut c_void, length: *mut usize) -> c_int {
    done("fi_getname", || {
        // SAFETY: C passes an open endpoint, and a buffer of that length.
        unsafe {
            let state = object::owned(ep.cast::<FidEp>())?;
            let bytes = address::write(state.format, &state.endpoint.address());
            address::fill(&bytes, target, length)
        }
    })
}

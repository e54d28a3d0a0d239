//! Authorization keys of an address vector. Reference: fi_av(3), `fi_av_insert_auth_key`,
//! `fi_av_lookup_auth_key`.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use kestrel_core::error::Errno;

use crate::{
    abi::fid::FidAv,
    address, object,
    outcome::{Failure, done},
};

/// "The output of fi_av_insert_auth_key is an authorization key fi_addr_t handle"; flags "must be
/// 0".
pub unsafe extern "C" fn insert(
    av: *mut FidAv,
    key: *const c_void,
    length: usize,
    fi_addr: *mut u64,
    flags: u64,
) -> c_int {
    done("fi_av_insert_auth_key", || {
        if flags != 0 {
            return Err(Failure::flags("fi_av_insert_auth_key", flags));
        }
        if key.is_null() || fi_addr.is_null() {
            return Err(Failure::null("the key, or where its handle is written"));
        }
        // SAFETY: C passes an open vector, a key of that size, and room for the handle. More than
        // any allocation has is not looked at.
        unsafe {
            let key = match isize::try_from(length) {
                Ok(_) => slice::from_raw_parts(key.cast::<u8>(), length),
                Err(_) => return Err(Failure::new(Errno::INVAL, "no key is that long")),
            };
            *fi_addr = object::owned(av)?.vector.insert_auth_key(key)?;
        }
        Ok(())
    })
}

/// "If the actual authorization key is larger than what can fit into the buffer, it will be
/// truncated", and the size says so.
pub unsafe extern "C" fn lookup(
    av: *mut FidAv,
    fi_addr: u64,
    target: *mut c_void,
    length: *mut usize,
) -> c_int {
    done("fi_av_lookup_auth_key", || {
        // SAFETY: C passes an open vector, and a buffer of that length.
        unsafe {
            let key = object::owned(av)?.vector.lookup_auth_key(fi_addr)?;
            match address::fill(key.bytes(), target, length) {
                Err(failure) if failure.errno == Errno::TOOSMALL => Ok(()),
                outcome => outcome,
            }
        }
    })
}

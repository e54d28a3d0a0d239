//! Options, cancelling, and how much room is left. Reference: fi_endpoint(3).

use std::ffi::{c_int, c_void};

use kestrel_core::{endpoint::OptionName, error::Errno};

use super::{State, limits::Limits};
use crate::{
    abi::{
        constants::{NOSYS, OPT_ENDPOINT},
        control::OpsEp,
        fid::{Fid, FidEp},
    },
    object::{self, Header},
    outcome::{Failure, done, guarded},
};

pub static OPERATIONS: OpsEp = OpsEp {
    cancel,
    getopt: getopt::<FidEp>,
    setopt: setopt::<FidEp>,
    rx_size_left,
    tx_size_left,
    ..OpsEp::refusing::<NOSYS>()
};

fn check_level(level: c_int) -> Result<(), Failure> {
    if level == OPT_ENDPOINT {
        return Ok(());
    }
    Err(Failure::new(Errno::NOPROTOOPT, format!("options have no level {level}")))
}

/// Whoever has options.
pub trait Options {
    /// The sizes that some options tell, of who has them.
    fn limits(&self) -> Option<&Limits> {
        None
    }
    /// The value of any other.
    fn option(&self, name: OptionName) -> Result<usize, Failure>;
}

/// Whoever has options that can be changed.
pub trait ChangeableOptions {
    /// Changes one.
    fn set_option(&self, name: OptionName, value: usize) -> Result<(), Failure>;
}

impl Options for State {
    fn limits(&self) -> Option<&Limits> {
        Some(&self.limits)
    }
    fn option(&self, name: OptionName) -> Result<usize, Failure> {
        Ok(self.endpoint.option(name)?)
    }
}

impl ChangeableOptions for State {
    fn set_option(&self, name: OptionName, value: usize) -> Result<(), Failure> {
        Ok(self.endpoint.set_option(name, value)?)
    }
}

/// Every option that we tell is a `size_t`.
pub unsafe extern "C" fn getopt<H: Header<State: Options>>(
    fid: *mut Fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    done("fi_getopt", || {
        check_level(level)?;
        // SAFETY: C passes an open object, and a valid length or null.
        let (state, length) = unsafe { (object::owned(fid.cast::<H>())?, length.as_mut()) };
        let found = match state.limits().and_then(|limits| limits.option(name)) {
            Some(size) => size,
            None => state.option(OptionName::from_number(name)?)?,
        };
        // SAFETY: as above; the value is as long as the length says.
        unsafe { tell(found, value, length) }
    })
}

/// Gives the value of an option.
///
/// # Safety
/// `value` is null or valid for writes of as many bytes as `length` says.
unsafe fn tell(
    found: usize,
    value: *mut c_void,
    length: Option<&mut usize>,
) -> Result<(), Failure> {
    let length = length.ok_or_else(|| Failure::null("the length"))?;
    let room = std::mem::replace(length, size_of::<usize>());
    if room < size_of::<usize>() {
        return Err(Failure::new(Errno::TOOSMALL, format!("the value takes 8 bytes, not {room}")));
    }
    if value.is_null() {
        return Err(Failure::null("where the value goes"));
    }
    // SAFETY: the buffer is as long as a `size_t`.
    unsafe { value.cast::<usize>().write_unaligned(found) };
    Ok(())
}

pub unsafe extern "C" fn setopt<H: Header<State: ChangeableOptions>>(
    fid: *mut Fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    done("fi_setopt", || {
        check_level(level)?;
        // SAFETY: C passes an open object, and that many bytes.
        unsafe {
            let state = object::owned(fid.cast::<H>())?;
            let name = OptionName::from_number(name)?;
            let value = match name {
                OptionName::SharedMemoryPermitted => given::<u8>(value, length)?.into(),
                _ => given::<usize>(value, length)?,
            };
            state.set_option(name, value)
        }
    })
}

/// The value that an option is given, a number.
///
/// # Safety
/// `value` is null or valid for reads of `length` bytes, which are a `T` if they are as many.
unsafe fn given<T: Copy>(value: *const c_void, length: usize) -> Result<T, Failure> {
    if value.is_null() {
        return Err(Failure::null("the value"));
    }
    if length != size_of::<T>() {
        let reason = format!("the value takes {} bytes, not {length}", size_of::<T>());
        return Err(Failure::new(Errno::INVAL, reason));
    }
    // SAFETY: it has the size of one, and the caller vouches for the rest.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

unsafe extern "C" fn cancel(ep: *mut Fid, context: *mut c_void) -> isize {
    guarded("fi_cancel", || {
        // SAFETY: C passes an open endpoint.
        let state = unsafe { object::owned(ep.cast::<FidEp>()) }?;
        if context.is_null() {
            state.endpoint.sends_left()?;
        }
        check_cancelable(context)?;
        state.endpoint.cancel(context as u64)?;
        Ok(0)
    })
}

/// "Operations posted without a valid context parameter … cannot be canceled."
pub fn check_cancelable(context: *mut c_void) -> Result<(), Failure> {
    if context.is_null() {
        return Err(Failure::new(Errno::NOENT, "what has no context cannot be canceled"));
    }
    Ok(())
}

/// As many as was promised, but for what threads may be in each other's way.
unsafe extern "C" fn rx_size_left(ep: *mut FidEp) -> isize {
    guarded("fi_rx_size_left", || {
        // SAFETY: C passes an open endpoint.
        let state = unsafe { object::owned(ep) }?;
        Ok(state.endpoint.receives_left()?.min(state.limits.receives) as isize)
    })
}

unsafe extern "C" fn tx_size_left(ep: *mut FidEp) -> isize {
    guarded("fi_tx_size_left", || {
        // SAFETY: as above.
        Ok(unsafe { object::owned(ep) }?.endpoint.sends_left()? as isize)
    })
}

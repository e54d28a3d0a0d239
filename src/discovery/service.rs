//! Services: port numbers, or the names that the system knows for them.

use std::{
    ffi::{CStr, CString},
    ptr::{null, null_mut},
};

/// The port of a service: "service name or port number of address" (fi_getinfo(3)).
///
/// # Errors
/// The reason, in words.
pub(super) fn port(service: &str) -> Result<u16, String> {
    if !service.is_empty() && service.bytes().all(|byte| byte.is_ascii_digit()) {
        return service.parse().map_err(|error| format!("no port number: {error}"));
    }
    // The resolver takes "+70000" for a number, and what is left of it in 16 bits for a port.
    if !service.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        return Err("a service has a name or a number".into());
    }
    let name = CString::new(service).map_err(|error| format!("no name of a service: {error}"))?;
    named(&name)
}

/// What the system's resolver knows by that name, whatever the protocol.
fn named(service: &CStr) -> Result<u16, String> {
    // SAFETY: zeroes are the defaults of this struct.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_INET;
    let mut found = null_mut();
    // SAFETY: the name is a C string, no node is named, and the hints and the place are valid.
    let status = unsafe { libc::getaddrinfo(null(), service.as_ptr(), &hints, &mut found) };
    if status != 0 {
        // SAFETY: it answers a string that stays.
        let reason = unsafe { CStr::from_ptr(libc::gai_strerror(status)) };
        return Err(reason.to_string_lossy().into_owned());
    }
    // SAFETY: it succeeded, so there is an entry, of the family that was asked for; it is freed
    // once, after it was read.
    unsafe {
        let address = (*found).ai_addr.cast::<libc::sockaddr_in>().read_unaligned();
        libc::freeaddrinfo(found);
        Ok(u16::from_be(address.sin_port))
    }
}

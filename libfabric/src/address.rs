//! Addresses as C writes them: a `struct sockaddr` of some family, or a string.
//! Reference: fi_getinfo(3), "ADDRESSING FORMATS".

use std::{
    ffi::{CStr, c_char, c_void},
    net::IpAddr,
};

use kestrel_core::{
    address::{Address, AddressError, AddressFormat},
    error::Errno,
};

use crate::outcome::Failure;

const AF_INET6: u16 = 10;
const IN_LEN: usize = 16;
const IN6_LEN: usize = 28;

/// What every address of FI_ADDR_STR begins with, as far as it fills a pointer's place.
const STRING_START: [u8; size_of::<usize>()] = *b"fi_socka";

/// Reads one socket address, and says how many bytes it takes in an array of such.
///
/// # Safety
/// `start` is not null, and an address of that format, no string, is there.
unsafe fn read_socket(
    format: AddressFormat,
    start: *const u8,
) -> (Result<Address, AddressError>, usize) {
    // SAFETY: each such format begins with the family.
    let family = unsafe { start.cast::<u16>().read_unaligned() };
    let is_six = match format {
        AddressFormat::In => false,
        AddressFormat::In6 => true,
        _ => family == AF_INET6,
    };
    let length = if is_six { IN6_LEN } else { IN_LEN };
    // One of another family is as long as its own says, and refused.
    let there = if family == AF_INET6 { IN6_LEN } else { IN_LEN };
    // SAFETY: an address of that family is that long.
    let bytes = unsafe { std::slice::from_raw_parts(start, length.min(there)) };
    let address = Address::from_bytes(bytes);
    (address, length)
}

/// Reads an address that is a string, and says how many bytes it takes with its zero.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn read_string(text: *const c_char) -> (Result<Address, AddressError>, usize) {
    if text.is_null() {
        return (Err(AddressError::Unparsable { text: String::new() }), 0);
    }
    // SAFETY: not null, and the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    (text.to_string_lossy().parse(), text.count_bytes() + 1)
}

/// Reads an entry of an array of strings, and says how many bytes it takes there.
///
/// "When using the FI_ADDR_STR format, the addr parameter should reference an array of strings
/// (char **)" (fi_av(3)). Many pass what fi_getname gave them, the string itself; no pointer
/// looks like that, since no process has such an address.
///
/// # Safety
/// `start` is not null, and a pointer to a C string, or an address's string itself, is there.
unsafe fn read_string_entry(start: *const u8) -> (Result<Address, AddressError>, usize) {
    // SAFETY: a string has bytes up to its zero, which is no byte of the start; and a pointer
    // has as many.
    let is_text = (0..).zip(STRING_START).all(|(at, byte)| unsafe { *start.add(at) } == byte);
    if is_text {
        // SAFETY: it begins as an address's string does.
        return unsafe { read_string(start.cast()) };
    }
    // SAFETY: otherwise it is a pointer to a string.
    unsafe {
        let text = start.cast::<*const c_char>().read_unaligned();
        (read_string(text).0, size_of::<*const c_char>())
    }
}

/// Reads one address: a socket address, or the string itself.
///
/// # Safety
/// `start` is not null, and an address of that format is there.
pub unsafe fn read_one(
    format: AddressFormat,
    start: *const c_void,
) -> Result<Address, AddressError> {
    if format == AddressFormat::Str {
        // SAFETY: the caller vouches for the string.
        return unsafe { read_string(start.cast()) }.0;
    }
    // SAFETY: the caller vouches for the address.
    unsafe { read_socket(format, start.cast()) }.0
}

/// Reads `count` entries of an array: pointers to strings, or socket addresses one after the
/// other.
///
/// # Safety
/// `start` is not null, and that many addresses of that format are there.
pub unsafe fn read_each(
    format: AddressFormat,
    start: *const c_void,
    count: usize,
) -> impl Iterator<Item = Result<Address, AddressError>> {
    let mut next = start.cast::<u8>();
    (0..count).map(move |_| {
        // SAFETY: one address more is there, since fewer than `count` were read.
        let (address, length) = unsafe {
            match format {
                AddressFormat::Str => read_string_entry(next),
                _ => read_socket(format, next),
            }
        };
        next = next.wrapping_add(length);
        address
    })
}

/// Reads an address that comes with its length.
///
/// # Safety
/// `start` is null or valid for reads of `length` bytes.
pub unsafe fn read(
    format: u32,
    start: *const c_void,
    length: usize,
) -> Result<Option<Address>, Failure> {
    if start.is_null() || length == 0 {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
    let format = AddressFormat::try_from(format)?;
    if format == AddressFormat::Str {
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        return Ok(Some(String::from_utf8_lossy(text).parse()?));
    }
    Ok(Some(Address::from_bytes(bytes)?))
}

/// An address in the bytes of a format.
pub fn write(format: AddressFormat, address: &Address) -> Vec<u8> {
    if format == AddressFormat::Str {
        let mut text = address.to_string().into_bytes();
        text.push(0);
        return text;
    }
    let address = match address.ip() {
        IpAddr::V4(ip) if format == AddressFormat::In6 => {
            Address::new(ip.to_ipv6_mapped().into(), address.port())
        }
        _ => *address,
    };
    address.to_bytes().to_vec()
}

/// Writes as many of `bytes` as fit, and to `length` how many there are.
///
/// # Safety
/// `length` is null or valid; `target` is null or valid for writes of as many bytes as
/// `length` says.
pub unsafe fn fill(bytes: &[u8], target: *mut c_void, length: *mut usize) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it.
    let length = unsafe { length.as_mut() }.ok_or_else(|| Failure::null("the length"))?;
    let room = std::mem::replace(length, bytes.len());
    if target.is_null() && room > 0 {
        return Err(Failure::null("where the address goes"));
    }
    let fitting = room.min(bytes.len());
    if fitting > 0 {
        // SAFETY: the target has room for that many; our own bytes do not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.cast::<u8>(), fitting) };
    }
    if fitting < bytes.len() {
        let reason = format!("the address takes {} bytes, there are {room}", bytes.len());
        return Err(Failure::new(Errno::TOOSMALL, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As insertions read it: "The address must be in the same format as that specified using
    /// fi_info" (fi_cm(3)).
    #[test]
    fn an_address_is_written_in_its_format() {
        let address: Address = "fi_sockaddr_in://127.0.0.1:7".parse().unwrap();
        let mapped: Address = "fi_sockaddr_in6://[::ffff:127.0.0.1]:7".parse().unwrap();
        let written = |format| write(format, &address);
        assert_eq!(written(AddressFormat::In), &address.to_bytes()[..]);
        assert_eq!(written(AddressFormat::SockAddr), &address.to_bytes()[..]);
        assert_eq!(written(AddressFormat::In6), &mapped.to_bytes()[..]);
    }
}

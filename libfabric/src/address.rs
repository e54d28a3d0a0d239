//! Addresses as C writes them: a `struct sockaddr` of some family, or a string.
//! Reference: fi_getinfo(3), "ADDRESSING FORMATS".

use std::ffi::{CStr, c_char, c_void};

use kestrel_core::{
    address::{Address, AddressError, AddressFormat},
    error::Errno,
};

use crate::outcome::Failure;

const AF_INET6: u16 = 10;
const IN_LEN: usize = 16;
const IN6_LEN: usize = 28;

/// Reads one address, and says how many bytes it takes in an array of such.
///
/// # Safety
/// `start` is not null, and an address of that format is there.
unsafe fn read_at(
    format: AddressFormat,
    start: *const u8,
) -> (Result<Address, AddressError>, usize) {
    if format == AddressFormat::Str {
        // SAFETY: addresses of this format are C strings.
        let text = unsafe { CStr::from_ptr(start.cast::<c_char>()) };
        return (text.to_string_lossy().parse(), text.count_bytes() + 1);
    }
    // SAFETY: each other format begins with the family.
    let family = unsafe { start.cast::<u16>().read_unaligned() };
    let is_six = format == AddressFormat::In6 || family == AF_INET6;
    let length = if is_six { IN6_LEN } else { IN_LEN };
    // SAFETY: an address of that family is that long.
    let bytes = unsafe { std::slice::from_raw_parts(start, length) };
    let address = Address::from_bytes(bytes);
    (address, length)
}

/// Reads `count` addresses that lie one after the other: strings with a zero byte after
/// each, or socket addresses.
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
        let (address, length) = unsafe { read_at(format, next) };
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

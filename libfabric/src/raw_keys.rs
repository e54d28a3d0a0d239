//! Raw keys of memory regions. Reference: fi_mr(3), `fi_mr_raw_attr`.
//!
//! "The raw key support functions are usable with all registered memory regions, even if FI_MR_RAW has
//! not been set." A key of ours is a number, so its raw form is that number's bytes.

use kestrel_core::error::Errno;

use crate::{
    abi::attributes::{MrMapRaw, MrRawAttr},
    outcome::Failure,
};

const BYTES: usize = size_of::<u64>();

/// Tells a region's address and raw key. "If the actual key is larger than what can fit into the buffer,
/// it will return -FI_ETOOSMALL."
///
/// # Safety
/// `attr` is null or valid; its places are null or valid, and the key's has the size that it says.
pub unsafe fn tell(base: u64, key: u64, attr: *mut MrRawAttr) -> Result<(), Failure> {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        let attr = attr.as_mut().ok_or_else(|| Failure::null("the raw attributes"))?;
        if attr.flags != 0 {
            return Err(Failure::flags("fi_mr_raw_attr", attr.flags));
        }
        let size = attr.key_size.as_mut().ok_or_else(|| Failure::null("the key's size"))?;
        let room = std::mem::replace(size, BYTES);
        if room < BYTES {
            return Err(Failure::new(Errno::TOOSMALL, format!("a key takes {BYTES} bytes")));
        }
        if attr.raw_key.is_null() {
            return Err(Failure::null("where the key goes"));
        }
        if let Some(place) = attr.base_addr.as_mut() {
            *place = base;
        }
        attr.raw_key.cast::<[u8; BYTES]>().write(key.to_ne_bytes());
    }
    Ok(())
}

/// Makes a key of a raw one.
///
/// # Safety
/// `map` is null or valid; its key is null or has the size that it says.
pub unsafe fn map(map: *const MrMapRaw) -> Result<(), Failure> {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        let map = map.as_ref().ok_or_else(|| Failure::null("what is mapped"))?;
        if map.flags != 0 {
            return Err(Failure::flags("fi_mr_map_raw", map.flags));
        }
        if map.key_size != BYTES {
            let reason = format!("a raw key of {} bytes: ours have {BYTES}", map.key_size);
            return Err(Failure::new(Errno::INVAL, reason));
        }
        if map.raw_key.is_null() || map.key.is_null() {
            return Err(Failure::null("a key"));
        }
        map.key.write(u64::from_ne_bytes(map.raw_key.cast::<[u8; BYTES]>().read()));
    }
    Ok(())
}

//! Attributes of an application that was built with an older libfabric, of 1.5 at least: what is behind the last
//! field that its version knows belongs to somebody else, and is neither read nor written.

use std::{
    mem::{MaybeUninit, offset_of},
    ptr,
};

use kestrel_core::info::ApiVersion;

use crate::abi::info::{DomainAttr, EpAttr, TxAttr};

/// Attributes that have grown, of which all zeroes are valid and mean that nothing is asked for.
///
/// # Safety
/// Zeroes are a valid value, and [`Versioned::bytes`] is at most the size.
pub unsafe trait Versioned: Sized {
    /// How many bytes an application of that version has, of those that are looked at.
    fn bytes(version: ApiVersion) -> usize;
}

/// Since when there are traffic classes.
const WITH_CLASSES: ApiVersion = ApiVersion::new(1, 9);
/// Since when attributes of a domain say how many keys an endpoint has.
const WITH_VECTOR_KEYS: ApiVersion = ApiVersion::new(1, 20);
/// Since when attributes of a domain say how many groups of peers there are.
const WITH_GROUPS: ApiVersion = ApiVersion::new(2, 0);

// SAFETY: numbers and pointers, and offsets of its fields.
unsafe impl Versioned for TxAttr {
    fn bytes(version: ApiVersion) -> usize {
        if version < WITH_CLASSES { offset_of!(TxAttr, tclass) } else { size_of::<TxAttr>() }
    }
}

// SAFETY: as above.
unsafe impl Versioned for EpAttr {
    fn bytes(_: ApiVersion) -> usize {
        // What is behind it is not looked at.
        offset_of!(EpAttr, xpu_ctx)
    }
}

// SAFETY: as above.
unsafe impl Versioned for DomainAttr {
    fn bytes(version: ApiVersion) -> usize {
        if version < WITH_CLASSES {
            offset_of!(DomainAttr, tclass)
        } else if version < WITH_VECTOR_KEYS {
            offset_of!(DomainAttr, max_ep_auth_key)
        } else if version < WITH_GROUPS {
            offset_of!(DomainAttr, max_group_id)
        } else {
            // What is behind it is not looked at.
            offset_of!(DomainAttr, max_cntr_value)
        }
    }
}

/// What an application of that version says; nothing if `attributes` is null.
///
/// # Safety
/// `attributes` is null or valid, as of that version.
pub unsafe fn read<T: Versioned>(attributes: *const T, version: ApiVersion) -> Option<T> {
    if attributes.is_null() {
        return None;
    }
    let mut whole = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller vouches for the bytes of that version, and the rest is zero, which is valid.
    unsafe {
        let to = whole.as_mut_ptr().cast::<u8>();
        ptr::copy_nonoverlapping(attributes.cast::<u8>(), to, T::bytes(version));
        Some(whole.assume_init())
    }
}

/// Tells an application of that version what it has room for.
///
/// # Safety
/// `attributes` is valid for writes, as of that version.
pub unsafe fn write<T: Versioned>(attributes: *mut T, told: &T, version: ApiVersion) {
    let from = ptr::from_ref(told).cast::<u8>();
    // SAFETY: the caller vouches for the bytes of that version.
    unsafe { ptr::copy_nonoverlapping(from, attributes.cast::<u8>(), T::bytes(version)) };
}

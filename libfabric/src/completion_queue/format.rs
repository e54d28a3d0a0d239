//! The formats of completions: how much an entry tells. Reference: fi_cq(3).

use std::ffi::c_void;

use kestrel_core::{completion_queue::Entry, info::CompletionFormat};

use crate::abi::attributes::CqTaggedEntry;

/// Writes entries of one format.
pub trait Format {
    /// Bytes of an entry.
    const SIZE: usize;

    /// # Safety
    /// `place` is valid for writes of [`Self::SIZE`] bytes, aligned as a pointer is.
    unsafe fn write(entry: &Entry, place: *mut CqTaggedEntry);
}

/// `struct fi_cq_entry`.
pub struct Context;
/// `struct fi_cq_msg_entry`.
pub struct Message;
/// `struct fi_cq_data_entry`.
pub struct Data;
/// `struct fi_cq_tagged_entry`.
pub struct Tagged;

// Each format is the beginning of the next, so that each writes what the one before does.

impl Format for Context {
    const SIZE: usize = 8;

    #[inline(always)]
    unsafe fn write(entry: &Entry, place: *mut CqTaggedEntry) {
        // SAFETY: the first field of every format.
        unsafe { (&raw mut (*place).op_context).write(entry.context as *mut c_void) };
    }
}

impl Format for Message {
    const SIZE: usize = 24;

    #[inline(always)]
    unsafe fn write(entry: &Entry, place: *mut CqTaggedEntry) {
        // SAFETY: the first three fields, which this format has.
        unsafe {
            Context::write(entry, place);
            (&raw mut (*place).flags).write(entry.flags);
            (&raw mut (*place).len).write(entry.length as usize);
        }
    }
}

impl Format for Data {
    const SIZE: usize = 40;

    #[inline(always)]
    unsafe fn write(entry: &Entry, place: *mut CqTaggedEntry) {
        // SAFETY: the first five fields, which this format has.
        unsafe {
            Message::write(entry, place);
            (&raw mut (*place).buf).write(entry.buffer as *mut c_void);
            (&raw mut (*place).data).write(entry.data);
        }
    }
}

impl Format for Tagged {
    const SIZE: usize = 48;

    #[inline(always)]
    unsafe fn write(entry: &Entry, place: *mut CqTaggedEntry) {
        // SAFETY: all six fields, which this format has.
        unsafe {
            Data::write(entry, place);
            (&raw mut (*place).tag).write(entry.tag);
        }
    }
}

/// What an application gets that names no format.
pub const DEFAULT: CompletionFormat = CompletionFormat::Context;

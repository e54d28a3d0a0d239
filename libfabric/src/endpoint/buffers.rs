//! The buffers of a call, one or a list of them, as core takes them.

use std::{ffi::c_void, mem::MaybeUninit, slice};

use kestrel_core::{
    memory::{Piece, Pieces},
    operation::IOV_LIMIT,
};

use crate::{
    abi::{atomic::Ioc, attributes::Iovec},
    outcome::refused_argument,
};

/// Whether a buffer cannot be what the application means.
#[inline(always)]
pub fn is_missing(buffer: *const c_void, length: usize) -> bool {
    buffer.is_null() && length > 0
}

/// A scatter-gather list, as core takes it.
pub struct List {
    pieces: [MaybeUninit<Piece>; IOV_LIMIT],
    count: usize,
}

impl List {
    /// Of what is sent. None: too many entries, or buffers that are not there.
    ///
    /// # Safety
    /// `iov` is null or that many entries are there; each is memory that the operation
    /// may use until it completes.
    #[inline(always)]
    pub unsafe fn new(iov: *const Iovec, count: usize) -> Option<List> {
        let piece = |entry: &Iovec| {
            // SAFETY: the caller vouches for the memory.
            let piece = unsafe { Piece::new(entry.base.cast(), entry.len) };
            (!is_missing(entry.base, entry.len)).then_some(piece)
        };
        // SAFETY: the caller vouches for the entries.
        unsafe { List::of(iov, count, piece) }
    }

    /// Of room for what is received: a null buffer has none.
    ///
    /// # Safety
    /// As [`List::new`].
    #[inline(always)]
    pub unsafe fn of_room(iov: *const Iovec, count: usize) -> Option<List> {
        // SAFETY: the caller vouches for both.
        unsafe { List::of(iov, count, |entry| Some(room(entry.base, entry.len))) }
    }

    /// From elements of `size` bytes; a null buffer has none, which core refuses where
    /// some are needed.
    ///
    /// # Safety
    /// As [`List::new`].
    #[inline(always)]
    pub unsafe fn of_elements(ioc: *const Ioc, count: usize, size: usize) -> Option<List> {
        // SAFETY: the caller vouches for both.
        unsafe { List::of(ioc, count, |entry| Some(elements(entry.addr, entry.count, size))) }
    }

    /// # Safety
    /// `entries` is null or that many are there.
    #[inline(always)]
    unsafe fn of<T>(
        entries: *const T,
        count: usize,
        piece: impl Fn(&T) -> Option<Piece>,
    ) -> Option<List> {
        if count > IOV_LIMIT || (entries.is_null() && count > 0) {
            return None;
        }
        let mut list = List { pieces: [MaybeUninit::uninit(); IOV_LIMIT], count };
        for at in 0..count {
            // SAFETY: the entry is there.
            list.pieces[at].write(piece(unsafe { &*entries.add(at) })?);
        }
        Some(list)
    }

    #[inline(always)]
    pub fn pieces(&self) -> Pieces<'_> {
        // SAFETY: so many were written.
        let pieces = unsafe { slice::from_raw_parts(self.pieces.as_ptr().cast(), self.count) };
        match pieces {
            [] => Pieces::One(Piece::EMPTY),
            [one] => Pieces::One(*one),
            many => Pieces::Many(many),
        }
    }
}

/// Room for what is received. A null buffer has none, whatever its length says: programs post such receives for
/// messages without bytes.
///
/// # Safety
/// The buffer is memory that the operation may use until it completes.
#[inline(always)]
pub unsafe fn room(buffer: *mut c_void, length: usize) -> Piece {
    let length = if buffer.is_null() { 0 } else { length };
    // SAFETY: the caller vouches for it.
    unsafe { Piece::new(buffer.cast(), length) }
}

/// One buffer of `count` elements; none of them, if the buffer is null.
///
/// # Safety
/// The buffer is memory that the operation may use until it completes.
#[inline(always)]
pub unsafe fn elements(buffer: *const c_void, count: usize, size: usize) -> Piece {
    if buffer.is_null() {
        return Piece::EMPTY;
    }
    // SAFETY: the caller vouches for it; a length that overflows is longer than any
    // operation may be, and core refuses it.
    unsafe { Piece::new(buffer.cast::<u8>().cast_mut(), count.saturating_mul(size)) }
}

/// What a list that cannot be taken is answered with.
#[cold]
pub fn bad_list() -> isize {
    refused_argument(&format!(
        "a null list of buffers, one of more than {IOV_LIMIT} (iov_limit), or a null buffer with a length"
    ))
}

//! What one-sided operations have in common, on the data path: remote segments.

use std::{mem::MaybeUninit, slice};

use kestrel_core::one_sided::{RMA_IOV_LIMIT, RemoteSegment};

use crate::abi::{atomic::RmaIoc, message::RmaIov};

/// Remote segments, as core takes them.
pub struct Segments {
    segments: [MaybeUninit<RemoteSegment>; RMA_IOV_LIMIT],
    count: usize,
}

impl Segments {
    /// From a list in C's form; none if it is too long, or is not there.
    ///
    /// # Safety
    /// `list` is null or that many entries are there.
    #[inline(always)]
    unsafe fn new<T>(
        list: *const T,
        count: usize,
        mut segment: impl FnMut(&T) -> RemoteSegment,
    ) -> Option<Segments> {
        if count > RMA_IOV_LIMIT || (list.is_null() && count > 0) {
            return None;
        }
        let mut segments = Segments { segments: [MaybeUninit::uninit(); RMA_IOV_LIMIT], count };
        for at in 0..count {
            // SAFETY: the entry is there.
            segments.segments[at].write(segment(unsafe { &*list.add(at) }));
        }
        Some(segments)
    }

    /// As `fi_readmsg` and `fi_writemsg` give them, for `total` bytes. "Length of target buffer" (fi_rma(3)): where
    /// there is room for more, the first of it is meant. Derecho tells how much its peer has.
    ///
    /// # Safety
    /// `list` is null or that many entries are there.
    #[inline(always)]
    pub unsafe fn of_bytes(list: *const RmaIov, count: usize, total: usize) -> Option<Segments> {
        let mut left = total as u64;
        let segment = |iov: &RmaIov| RemoteSegment {
            address: iov.addr,
            length: take(&mut left, iov.len as u64),
            key: iov.key,
        };
        // SAFETY: the caller vouches for it.
        unsafe { Segments::new(list, count, segment) }
    }

    /// As atomic operations give them: elements of `size` bytes.
    ///
    /// # Safety
    /// `list` is null or that many entries are there.
    #[inline(always)]
    pub unsafe fn of_elements(list: *const RmaIoc, count: usize, size: usize) -> Option<Segments> {
        let segment = |ioc: &RmaIoc| RemoteSegment {
            address: ioc.addr,
            length: (ioc.count as u64).saturating_mul(size as u64),
            key: ioc.key,
        };
        // SAFETY: the caller vouches for it.
        unsafe { Segments::new(list, count, segment) }
    }

    #[inline(always)]
    pub fn as_slice(&self) -> &[RemoteSegment] {
        // SAFETY: so many were written.
        unsafe { slice::from_raw_parts(self.segments.as_ptr().cast(), self.count) }
    }
}

/// At most as much of what is `left`, which is less by that.
#[inline(always)]
fn take(left: &mut u64, most: u64) -> u64 {
    let taken = most.min(*left);
    *left -= taken;
    taken
}

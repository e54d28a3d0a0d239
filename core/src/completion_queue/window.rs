//! A read that finds nothing lets the poll that follows write where the entries are wanted.

use std::{cell::UnsafeCell, marker::PhantomData};

use super::{entry::Entry, entry_ring::EntryRing};

/// A reader's entries while they are filled directly. Dropped if a poll panics, so that nothing
/// points at them any more.
pub(super) struct Window<'a> {
    queue: &'a UnsafeCell<EntryRing>,
    start: *mut Entry,
    _entries: PhantomData<&'a mut [Entry]>,
}

impl<'a> Window<'a> {
    #[inline(always)]
    pub(super) fn open(queue: &'a UnsafeCell<EntryRing>, entries: &'a mut [Entry]) -> Window<'a> {
        let start = entries.as_mut_ptr();
        // SAFETY: exclusive use, as `Sharing::Exclusive` says; the entries are borrowed until the
        // window is dropped, which closes it.
        unsafe { (*queue.get()).open_window(entries) };
        Window { queue, start, _entries: PhantomData }
    }

    /// How many entries were filled.
    #[inline(always)]
    pub(super) fn close(self) -> usize {
        // SAFETY: exclusive use, as `Sharing::Exclusive` says.
        let next = unsafe { (*self.queue.get()).close_window() };
        // SAFETY: both are in the slice that the window was opened over.
        let filled = unsafe { next.offset_from_unsigned(self.start) };
        // It is closed.
        std::mem::forget(self);
        filled
    }
}

impl Drop for Window<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: exclusive use, as `Sharing::Exclusive` says.
        unsafe { (*self.queue.get()).close_window() };
    }
}

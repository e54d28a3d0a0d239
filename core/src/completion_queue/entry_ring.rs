//! A growing ring of entries for one thread.
//!
//! What `VecDeque` does, but an entry leaves word by word, straight to where the
//! reader wants it. It was written so a moment ago, and a wider load cannot be forwarded from narrower stores: it
//! would wait until they have left the store buffer, behind whatever else is in
//! there. That wait was a third of the latency of a small message.
//!
//! A reader that polls with nothing in the ring opens a window: entries then go
//! straight to where it wants them, and touch no slot at all.

use std::{mem::MaybeUninit, ptr};

use super::entry::Entry;

const WORDS: usize = size_of::<Entry>() / size_of::<u64>();

/// First in, first out; `head` and `tail` count for ever, masked on use.
pub struct EntryRing {
    slots: Box<[MaybeUninit<Entry>]>,
    head: usize,
    tail: usize,
    /// Where a waiting reader wants the next entry, and the end of its room.
    window: *mut Entry,
    window_end: *mut Entry,
}

impl EntryRing {
    /// Room for at least `size` entries before it grows.
    pub fn with_capacity(size: usize) -> Self {
        let slots = Box::new_uninit_slice(size.max(2).next_power_of_two());
        let (window, window_end) = (ptr::null_mut(), ptr::null_mut());
        EntryRing { slots, head: 0, tail: 0, window, window_end }
    }

    /// Whether nothing is in it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Entries in it.
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Lets what is added next go to `entries`, as many as fit. The ring is empty if any do.
    ///
    /// # Safety
    /// Until [`Self::close_window`], `entries` is valid and nobody else touches it.
    #[inline(always)]
    pub unsafe fn open_window(&mut self, entries: *mut [Entry]) {
        debug_assert!(entries.is_empty() || self.is_empty());
        self.window = entries.cast();
        // SAFETY: one past the last entry of the caller's slice.
        self.window_end = unsafe { self.window.add(entries.len()) };
    }

    /// What is added next stays in the ring.
    pub fn stop_window(&mut self) {
        self.window_end = self.window;
    }

    /// Forgets the window. Returns where the next entry would have gone.
    #[inline(always)]
    pub fn close_window(&mut self) -> *mut Entry {
        self.window_end = ptr::null_mut();
        std::mem::replace(&mut self.window, ptr::null_mut())
    }

    /// Adds an entry at the end.
    #[inline(always)]
    pub fn push_back(&mut self, entry: Entry) {
        if self.window != self.window_end {
            // SAFETY: the window is open and has room, so this is an entry that the
            // caller of `open_window` promised.
            unsafe {
                let target = &mut *self.window;
                if target.attachment.is_some() {
                    drop_owner(target);
                }
                ptr::write(target, entry);
                self.window = self.window.add(1);
            }
            return;
        }
        if self.tail - self.head == self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        self.slots[self.tail & mask].write(entry);
        self.tail += 1;
    }

    /// The first entry, where it is.
    #[inline(always)]
    pub fn front(&self) -> Option<&Entry> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: slots from head to tail are initialised.
        Some(unsafe { self.slots[self.head & (self.slots.len() - 1)].assume_init_ref() })
    }

    /// Drops the first entry, if there is one. A ring that was emptied begins anew, so that what
    /// comes and goes one by one stays in one line.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        if self.is_empty() {
            return;
        }
        let slot = self.head & (self.slots.len() - 1);
        // SAFETY: slots from head to tail are initialised, and head moves past this one.
        unsafe { self.slots[slot].assume_init_drop() };
        self.head += 1;
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
    }

    /// Moves the first entry over `target`. False if there is none.
    #[inline(always)]
    pub fn pop_into(&mut self, target: &mut Entry) -> bool {
        if self.is_empty() {
            return false;
        }
        target.attachment = None;
        let slot = &self.slots[self.head & (self.slots.len() - 1)];
        let (from, to) = (slot.as_ptr().cast::<u64>(), std::ptr::from_mut(target).cast::<u64>());
        for word in 0..WORDS {
            // SAFETY: both are entries of WORDS words; the slot is initialised, and
            // head moves past it below, so that its content is moved once; what the
            // target owned was dropped above. Volatile keeps the compiler from
            // merging loads or stores.
            unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
        }
        self.head += 1;
        true
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut larger = EntryRing::with_capacity(self.slots.len() * 2);
        let mut entry = Entry::default();
        while self.pop_into(&mut entry) {
            larger.push_back(std::mem::take(&mut entry));
        }
        // Its reader asks how far it was filled.
        (larger.window, larger.window_end) = (self.window, self.window_end);
        *self = larger;
    }
}

/// Entries that a reader hands in again seldom own anything: whoever asks for buffers has taken them.
#[cold]
#[inline(never)]
fn drop_owner(entry: &mut Entry) {
    entry.attachment = None;
}

impl Drop for EntryRing {
    fn drop(&mut self) {
        while self.pop_into(&mut Entry::default()) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_in_order_across_growth_and_wrap() {
        let mut ring = EntryRing::with_capacity(2);
        let (mut next_in, mut next_out) = (0, 0);
        let mut entry = Entry::default();
        for round in 0..50 {
            for _ in 0..round % 7 {
                ring.push_back(Entry { context: next_in, tag: !next_in, ..Entry::default() });
                next_in += 1;
            }
            for _ in 0..round % 5 {
                if !ring.pop_into(&mut entry) {
                    break;
                }
                assert_eq!((entry.context, entry.tag), (next_out, !next_out));
                next_out += 1;
            }
        }
        while ring.pop_into(&mut entry) {
            assert_eq!(entry.context, next_out);
            next_out += 1;
        }
        assert_eq!(next_in, next_out);
        assert!(ring.is_empty() && ring.front().is_none());
    }

    #[test]
    fn a_window_outlives_growth() {
        for stopped in [false, true] {
            let mut ring = EntryRing::with_capacity(2);
            let mut entries = [Entry::default(), Entry::default()];
            let start = entries.as_mut_ptr();
            // SAFETY: only the window touches the entries until it is closed.
            unsafe { ring.open_window(&raw mut entries[..]) };
            let entry = |context| Entry { context, ..Entry::default() };
            ring.push_back(entry(0));
            if stopped {
                ring.stop_window();
            }
            (1..20).for_each(|context| ring.push_back(entry(context)));
            let filled = if stopped { 1 } else { 2 };
            assert_eq!(ring.close_window(), start.wrapping_add(filled));
            let mut found: Vec<u64> = entries[..filled].iter().map(|entry| entry.context).collect();
            while ring.pop_into(&mut entries[0]) {
                found.push(entries[0].context);
            }
            assert_eq!(found, (0..20).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn what_is_left_is_dropped_once() {
        let (attachment, _) = crate::attachment::Attachment::new(vec![1; 100]);
        let mut ring = EntryRing::with_capacity(2);
        ring.push_back(Entry { attachment: Some(attachment), ..Entry::default() });
    }

    #[test]
    fn what_is_looked_at_where_it_is_is_dropped_once() {
        let mut ring = EntryRing::with_capacity(2);
        let entry = |context| {
            let (attachment, _) = crate::attachment::Attachment::new(vec![1; 100]);
            Entry { context, attachment: Some(attachment), ..Entry::default() }
        };
        for round in 0..20 {
            (0..round % 4).for_each(|context| ring.push_back(entry(context)));
            for context in 0..round % 4 {
                assert_eq!(ring.front().map(|entry| entry.context), Some(context));
                ring.drop_front();
            }
            ring.drop_front();
            assert!(ring.is_empty() && ring.front().is_none());
        }
    }
}

//! Memory of our own that others point into, wherever its owner goes.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crate::memory::Piece;

/// A box whose content may be pointed at while the box is moved, lent and looked at. Of a `Box` the language lets nobody
/// do that: it is taken to be the only way to its content.
pub struct Settled<T: ?Sized>(NonNull<T>);

// SAFETY: it owns its content, as a box does.
unsafe impl<T: ?Sized + Send> Send for Settled<T> {}
// SAFETY: as above; a shared one lends its content shared.
unsafe impl<T: ?Sized + Sync> Sync for Settled<T> {}

impl<T: ?Sized> Settled<T> {
    /// Where its content is, as long as it lives. Who uses that while the content is borrowed as well heeds what holds of
    /// every pointer.
    #[inline(always)]
    pub fn pointer(&self) -> NonNull<T> {
        self.0
    }

    /// Nobody points into it any more.
    pub(crate) fn into_box(self) -> Box<T> {
        // SAFETY: it came of a box, and is not dropped.
        unsafe { Box::from_raw(ManuallyDrop::new(self).0.as_ptr()) }
    }
}

impl Default for Settled<[u8]> {
    fn default() -> Self {
        Box::<[u8]>::default().into()
    }
}

impl Settled<[u8]> {
    /// All of it, for as long as it lives.
    #[inline(always)]
    pub(crate) fn piece(&self) -> Piece {
        // SAFETY: the bytes are ours, as long as this lives.
        unsafe { Piece::new(self.0.as_ptr().cast(), self.0.len()) }
    }
}

impl<T: ?Sized> From<Box<T>> for Settled<T> {
    #[inline(always)]
    fn from(content: Box<T>) -> Self {
        // SAFETY: a box is not null.
        Settled(unsafe { NonNull::new_unchecked(Box::into_raw(content)) })
    }
}

impl<T: ?Sized> Drop for Settled<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it came of a box, and nobody else has it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: ?Sized> Deref for Settled<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: it lives as long as this.
        unsafe { self.0.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for Settled<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and it is lent to nobody else.
        unsafe { self.0.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Settled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

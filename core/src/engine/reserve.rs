//! Memory for a copy that must not fail.
//!
//! What is injected is copied where it cannot leave at once: its buffer is the caller's again when the
//! post returns. A send is copied before anything of it has left, so that its post may fail. Of a
//! one-sided operation that may turn out when a part has left, or an adapter has taken it. So such a
//! post is refused unless there is memory for one more copy. What an atomic operation of a peer has
//! fetched may have to be kept, too, and is not to be had again.

use crate::{endpoint::PostError, operation::room_for};

/// Memory for one copy.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// Units: bytes.
    length: usize,
    bytes: Vec<u8>,
}

impl Reserve {
    /// For copies of up to `length` bytes. Takes no memory before the first of them may be needed.
    pub fn new(length: usize) -> Reserve {
        Reserve { length, bytes: Vec::new() }
    }

    /// Copies may have `length` bytes from now on.
    pub fn raise(&mut self, length: usize) {
        if length > self.length {
            *self = Reserve::new(length);
        }
    }

    /// Sees to it that the next copy cannot fail.
    ///
    /// # Errors
    /// There is no memory.
    #[inline(always)]
    pub fn stock(&mut self) -> Result<(), PostError> {
        if self.bytes.capacity() == 0 { self.restock() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn restock(&mut self) -> Result<(), PostError> {
        self.bytes = room_for(self.length)?;
        Ok(())
    }

    /// Room for so many bytes: what is kept for that if there is no other.
    #[cold]
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        room_for(length).unwrap_or_else(|_| std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_taken_only_where_there_is_no_other() {
        let mut reserve = Reserve::new(100);
        reserve.stock().unwrap();
        assert!(reserve.take(50).capacity() >= 50);
        assert!(reserve.bytes.capacity() >= 100, "it is still there");
        // No allocator has so much: only capacity shows whose memory it is.
        assert!(reserve.take(usize::MAX / 2).capacity() >= 100);
        assert_eq!(reserve.bytes.capacity(), 0);
        reserve.stock().unwrap();
        assert!(reserve.bytes.capacity() >= 100, "there is another");
    }

    #[test]
    fn what_is_kept_grows_with_the_length() {
        let mut reserve = Reserve::new(100);
        reserve.stock().unwrap();
        reserve.raise(50);
        assert!(reserve.bytes.capacity() >= 100, "it is still there");
        reserve.raise(200);
        reserve.stock().unwrap();
        assert!(reserve.take(usize::MAX / 2).capacity() >= 200);
    }

    #[test]
    fn without_memory_it_is_refused() {
        let length = usize::MAX / 2;
        assert_eq!(Reserve::new(length).stock(), Err(PostError::NoMemory { length }));
    }
}

//! Message buffers: page-aligned and touched, the same for kestrel and for the floor.

use memmap2::{MmapOptions, MmapRaw};

/// Private memory at a fixed place, handed out as pointers because operations
/// in flight write it.
pub struct Buffer {
    map: MmapRaw,
}

impl Buffer {
    /// A touched buffer of at least `len` bytes.
    pub fn new(len: usize) -> Buffer {
        let mut map =
            MmapOptions::new().len(len.max(1)).map_anon().expect("memory for message buffers");
        map.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        Buffer { map: map.into() }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The byte at `offset`, which may be one past the last.
    pub fn at(&self, offset: usize) -> *const u8 {
        assert!(offset <= self.len());
        self.map.as_ptr().wrapping_add(offset)
    }

    /// As [`Buffer::at`], to write.
    pub fn at_mut(&mut self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len());
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

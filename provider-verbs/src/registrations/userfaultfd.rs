//! userfaultfd(2), for the events alone: the kernel tells when memory that is watched is unmapped, moved
//! or discarded, and has whoever does it wait until the event was read.
//!
//! Memory is watched in the mode of write protection, since nothing happens in that mode by itself: no
//! page is protected, and no fault is for us to mend. Without privileges that takes Linux 5.11
//! (UFFD_USER_MODE_ONLY). Linux 5.19 is asked for: before it, a page that a device has pinned was copied
//! away from it when the process made it read-only and writable again, and wrote to it; and before 5.15,
//! that something changes was forgotten when another event was read.

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use kestrel_core::fork_guard::Unshared;
use linux_raw_sys::general::{
    _UFFDIO_API, _UFFDIO_REGISTER, _UFFDIO_UNREGISTER, _UFFDIO_ZEROPAGE, UFFD_API,
    UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE, UFFD_EVENT_UNMAP, UFFD_FEATURE_EVENT_REMAP,
    UFFD_FEATURE_EVENT_REMOVE, UFFD_FEATURE_EVENT_UNMAP, UFFD_FEATURE_PAGEFAULT_FLAG_WP,
    UFFD_FEATURE_WP_HUGETLBFS_SHMEM, UFFD_USER_MODE_ONLY, UFFDIO, uffd_msg, uffdio_api,
    uffdio_range, uffdio_register, uffdio_zeropage,
};
use rustix::{
    io::Errno,
    ioctl::{Opcode, Updater, ioctl, opcode},
    mm::{UserfaultfdFlags, userfaultfd},
};

const API: Opcode = opcode::read_write::<uffdio_api>(UFFDIO as u8, _UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<uffdio_register>(UFFDIO as u8, _UFFDIO_REGISTER as u8);
const UNREGISTER: Opcode = opcode::read::<uffdio_range>(UFFDIO as u8, _UFFDIO_UNREGISTER as u8);
const ZEROPAGE: Opcode =
    opcode::read_write::<uffdio_zeropage>(UFFDIO as u8, _UFFDIO_ZEROPAGE as u8);
/// Not used: a kernel that has it is new enough.
const SINCE_5_19: u32 = UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
/// UFFDIO_REGISTER_MODE_WP and UFFDIO_ZEROPAGE_MODE_DONTWAKE, which the bindings leave out.
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const MODE_DONT_WAKE: u64 = 1 << 0;

const FEATURES: u32 = UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | UFFD_FEATURE_EVENT_REMAP
    | UFFD_FEATURE_EVENT_REMOVE
    | UFFD_FEATURE_EVENT_UNMAP;

const MESSAGE_BYTES: usize = size_of::<uffd_msg>();
/// Messages that are read at once.
const AT_ONCE: usize = 16;

/// The process's memory, watched through a descriptor that forked children do not keep: a copy would
/// keep the memory watched when nobody reads the events any more.
pub struct Userfaultfd(Unshared<OwnedFd>);

/// What a look at a watched page finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is there, it is watched, and all events were read.
    Watched,
    /// Something is being unmapped, moved or discarded, of which the event was not read yet.
    Changing,
    /// It is not watched, or not there.
    Unwatched,
}

impl Userfaultfd {
    /// # Errors
    /// The kernel has none (ENOSYS), or not for us (EPERM), or it cannot do what is needed (EINVAL,
    /// ENOTSUP).
    pub fn open() -> io::Result<Userfaultfd> {
        let user_mode_only = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: what the descriptor can do to memory is done by the calls below alone.
        let opened = unsafe { userfaultfd(flags | user_mode_only) }?;
        let descriptor = Userfaultfd(Unshared::new(opened));
        let mut api =
            uffdio_api { api: u64::from(UFFD_API), features: u64::from(FEATURES), ioctls: 0 };
        descriptor.update::<API, _>(&mut api)?;
        // It says what it has.
        if !has_all(api.features) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "Linux 5.19 or later is needed",
            ));
        }
        Ok(descriptor)
    }

    /// Watches memory, whole pages, from now on. What is watched already stays as it is.
    ///
    /// # Errors
    /// It cannot be watched (EINVAL), somebody else does (EBUSY), or nothing is there (EINVAL).
    pub fn watch(&self, pages: &Range<usize>) -> io::Result<()> {
        let mut register =
            uffdio_register { range: to_range(pages), mode: MODE_WRITE_PROTECT, ioctls: 0 };
        self.update::<REGISTER, _>(&mut register)
    }

    /// Watches it no more.
    pub fn unwatch(&self, pages: &Range<usize>) {
        // What was mapped there since, and cannot be watched, is not.
        let _ = self.update::<UNREGISTER, _>(&mut to_range(pages));
    }

    /// Looks at a watched page that a device has pinned, and at whether all events were read.
    ///
    /// It asks for a page of zeroes to be put there, which the kernel refuses since there is one; but
    /// before that it says whether anything changes. Were there none, a page of zeroes is what a touch
    /// would have brought.
    pub fn look(&self, page: &Range<usize>) -> Look {
        let mut zeropage =
            uffdio_zeropage { range: to_range(page), mode: MODE_DONT_WAKE, zeropage: 0 };
        match self.update::<ZEROPAGE, _>(&mut zeropage) {
            Err(error) if is(&error, Errno::EXIST) => Look::Watched,
            Err(error) if is(&error, Errno::AGAIN) => Look::Changing,
            Ok(()) | Err(_) => Look::Unwatched,
        }
    }

    /// Reads events, as many as there are up to some bound, and tells what memory they are about.
    /// Returns whether there may be more.
    pub fn read(&self, mut tell: impl FnMut(Range<usize>)) -> bool {
        let mut bytes = [0; AT_ONCE * MESSAGE_BYTES];
        let length = match rustix::io::read(&self.0, &mut bytes) {
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            // An event may have been lost.
            Err(_) => {
                tell(0..usize::MAX);
                return false;
            }
        };
        bytes[..length].chunks_exact(MESSAGE_BYTES).filter_map(invalidated).for_each(&mut tell);
        length == bytes.len()
    }

    fn update<const OPCODE: Opcode, T>(&self, value: &mut T) -> io::Result<()> {
        // SAFETY: each opcode is for the type that its constant was made for. What is asked for changes
        // no contents of memory: see `look` and `watch`.
        Ok(unsafe { ioctl(&self.0, Updater::<OPCODE, T>::new(value)) }?)
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn has_all(features: u64) -> bool {
    let all = u64::from(FEATURES | SINCE_5_19);
    features & all == all
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn to_range(pages: &Range<usize>) -> uffdio_range {
    uffdio_range { start: pages.start as u64, len: pages.len() as u64 }
}

/// What memory an event is about: `event` is the first byte, and its words begin at the ninth.
fn invalidated(message: &[u8]) -> Option<Range<usize>> {
    let word = |nth: usize| {
        let bytes = message[8 + 8 * nth..][..8].try_into().expect("eight bytes");
        u64::from_ne_bytes(bytes) as usize
    };
    match u32::from(message[0]) {
        // From where, to where, how much.
        UFFD_EVENT_REMAP => Some(word(0)..word(0).saturating_add(word(2))),
        UFFD_EVENT_REMOVE | UFFD_EVENT_UNMAP => Some(word(0)..word(1)),
        _ => None,
    }
}

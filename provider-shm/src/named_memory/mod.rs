//! Memory with a name, which processes of one user on one host find and map: the table of an
//! address vector that they share (fi_av(3), `name`), or the list of who hears a multicast group.
//!
//! Nothing has a name in a file system. The memory is a sealed memfd; every process that has it
//! gives it to whoever asks ([`holders`]), so it lives as long as one of them does, and goes with
//! the last, however that ends. Who changes it holds a lock of the kernel's on the file, which
//! goes with its process too.
//!
//! A process of our own user may write anything into the memory, at any time, or keep the lock:
//! what is in it is held against the memory's size by whoever reads it, and the wait for the lock
//! has an end.

mod holders;
#[allow(unsafe_code)]
mod mapping;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kestrel_core::address_vector::{SharedLock, SharedMemory, shared_bytes};
use kestrel_core::error::{Errno, HasErrno};
use kestrel_core::fork_guard::{self, Unshared};
use rustix::fs::{FlockOperation, fcntl_add_seals, flock};
use thiserror::Error;

use self::holders::Holder;
use self::mapping::Mapping;
use crate::limits::is_out_of_descriptors;
use crate::region::{PAGE_BYTES, RegionError, size_seals, unsealed_memfd};

/// How many addresses a table has room for, if its maker does not expect more. Memory is paid for as it is
/// used, but not everywhere: where a process locks what it will map (mlockall(2), MCL_FUTURE) all of it is
/// there at once, and `ulimit -v` and `-f` count it. So not every table is as large as one may be.
const COUNT_MIN: usize = 1 << 20;
/// The most that may be expected.
const COUNT_MAX: usize = 1 << 26;
/// So much a table has at most, whoever made it.
const TABLE_BYTES_MAX: usize = shared_bytes(COUNT_MAX).next_multiple_of(PAGE_BYTES);

/// The longest name, with what stands in front of it. Units: bytes.
pub const NAME_BYTES_MAX: usize = 400;

/// How long others may keep us from opening or changing the memory.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(200);

/// Why named memory cannot be had.
#[derive(Debug, Error)]
pub enum NamedMemoryError {
    #[error("nobody has made {name}, and it is opened for reading alone")]
    NotThere { name: String },
    #[error("the name has {bytes} bytes, {NAME_BYTES_MAX} are allowed")]
    NameTooLong { bytes: usize },
    #[error("{name} cannot be had: {what}")]
    Kept { name: String, what: &'static str },
    #[error("{name} is held by user {uid}")]
    OtherUser { name: String, uid: u32 },
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error("{call} failed: {source}")]
    System { call: &'static str, source: io::Error },
}

impl HasErrno for NamedMemoryError {
    fn errno(&self) -> Errno {
        match self {
            NamedMemoryError::NotThere { .. } => Errno::NOENT,
            NamedMemoryError::NameTooLong { .. } => Errno::INVAL,
            NamedMemoryError::Kept { .. } => Errno::BUSY,
            NamedMemoryError::OtherUser { .. } => Errno::ACCES,
            NamedMemoryError::Region(error) => error.errno(),
            NamedMemoryError::System { source, .. } if is_out_of_descriptors(source) => {
                Errno::MFILE
            }
            NamedMemoryError::System { .. } => Errno::NOMEM,
        }
    }
}

fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> NamedMemoryError {
    move |source| NamedMemoryError::System { call, source: source.into() }
}

/// What the memory is, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name<'a> {
    /// An address vector.
    Vector(&'a str),
    /// Who hears a multicast group.
    Group(&'a str),
}

impl<'a> Name<'a> {
    fn kind(self) -> &'static str {
        match self {
            Name::Vector(_) => "vector",
            Name::Group(_) => "group",
        }
    }

    fn text(self) -> &'a str {
        let (Name::Vector(text) | Name::Group(text)) = self;
        text
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}'", self.kind(), self.text())
    }
}

/// What a process may do with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Read and write it, and make it if nobody has.
    Write,
    /// Read what others have made.
    Read,
}

/// Named memory, mapped. Dropping it lets go of it.
pub struct NamedMemory {
    mapping: Mapping,
    /// Our own opening of the file, which the lock belongs to; none for reading alone. A forked child would
    /// share it, and with it the lock.
    file: Option<Unshared<File>>,
    generation: u32,
    /// Somebody in this process has the lock by way of this object.
    held: AtomicBool,
    _holder: Holder,
}

impl NamedMemory {
    /// Opens the memory called `name`, with room for `count` addresses if it is made now.
    ///
    /// # Errors
    /// [`NamedMemoryError`]: it is not there and only read, others keep it, no descriptor is left.
    pub fn open(name: &str, count: usize, opening: Opening) -> Result<Self, NamedMemoryError> {
        let bytes = shared_bytes(count.clamp(COUNT_MIN, COUNT_MAX));
        let memory = Self::open_as(Name::Vector(name), bytes, opening)?;
        // It is as large as its maker expected, and cannot grow.
        if memory.words().len() < bytes / size_of::<AtomicU64>() {
            tracing::warn!(
                "vector '{name}' has no room for the {count} addresses that are expected"
            );
        }
        Ok(memory)
    }

    /// Opens memory of that name, of so many bytes if it is made now.
    pub(crate) fn open_as(
        name: Name<'_>,
        bytes: usize,
        opening: Opening,
    ) -> Result<Self, NamedMemoryError> {
        if name.text().len() > NAME_BYTES_MAX {
            return Err(NamedMemoryError::NameTooLong { bytes: name.text().len() });
        }
        // Until this goes nobody else looks for it, makes it or comes to hold it.
        let _alone = holders::open_alone(name, PATIENCE)?;
        let memory = match (holders::ask_all(name)?, opening) {
            (Some(memory), _) => memory,
            (None, Opening::Write) => make(name, bytes)?,
            (None, Opening::Read) => {
                return Err(NamedMemoryError::NotThere { name: name.to_string() });
            }
        };
        let (mapping, file) = match opening {
            Opening::Read => (Mapping::read_only(&memory)?, None),
            Opening::Write => (Mapping::writable(&memory)?, Some(reopen(&memory)?)),
        };
        let held = AtomicBool::new(false);
        let (generation, _holder) = (fork_guard::generation(), Holder::start(name, memory)?);
        Ok(NamedMemory { mapping, file, generation, held, _holder })
    }
}

/// Makes the memory: as large as it will ever be, and empty.
fn make(name: Name<'_>, bytes: usize) -> Result<OwnedFd, NamedMemoryError> {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    let memory = unsealed_memfd(&format!("kestrel-{}", name.kind()), bytes)?;
    fcntl_add_seals(&memory, size_seals())
        .map_err(|source| RegionError::Create { bytes, source: source.into() })?;
    Ok(memory)
}

/// An opening of our own: locks belong to openings, and a descriptor that was passed shares its
/// giver's.
fn reopen(memory: &OwnedFd) -> Result<Unshared<File>, NamedMemoryError> {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map(Unshared::new).map_err(system("opening shared memory once more"))
}

/// The lock, given back when it is dropped.
struct Held<'a>(&'a NamedMemory, &'a Unshared<File>);

impl SharedLock for Held<'_> {}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = flock(&**self.1, FlockOperation::Unlock);
        self.0.held.store(false, Ordering::Release); // N1: pairs with N2 in lock()
    }
}

impl SharedMemory for NamedMemory {
    fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }

    fn lock(&self) -> Result<Box<dyn SharedLock + '_>, String> {
        let file = self.file.as_ref().ok_or("it is open for reading alone")?;
        if fork_guard::forked(self.generation) {
            return Err("a forked child has no lock of its parent's".to_owned());
        }
        let deadline = Instant::now() + PATIENCE;
        // N2: pairs with N1 in the drop of what was held before.
        while self.held.swap(true, Ordering::Acquire) {
            wait_until(deadline)?;
        }
        let held = Held(self, file);
        while let Err(errno) = flock(&**file, FlockOperation::NonBlockingLockExclusive) {
            if errno != rustix::io::Errno::AGAIN && errno != rustix::io::Errno::INTR {
                return Err(format!("its lock: {errno}"));
            }
            wait_until(deadline)?;
        }
        Ok(Box::new(held))
    }
}

fn wait_until(deadline: Instant) -> Result<(), String> {
    if Instant::now() > deadline {
        return Err(format!("for more than {PATIENCE:?}"));
    }
    sleep(PAUSE);
    Ok(())
}

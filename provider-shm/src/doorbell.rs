//! The eventfd by which a sleeping process is woken.
//!
//! Each station has one. Its descriptor goes to every peer in the handshake, and a peer rings it
//! after publishing, if we asked for that. A bell is level: it stays rung until drained, so
//! "drain, look at everything, ask for the bell, look again, sleep" loses no wake-up.

use std::collections::HashMap;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use thiserror::Error;

use crate::limits::is_out_of_descriptors;

/// A bell, ours or a peer's. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct Doorbell {
    fd: Arc<OwnedFd>,
}

/// Why a descriptor from a peer is not accepted as its bell.
#[derive(Debug, Error)]
pub enum DoorbellError {
    #[error("the descriptor is {target:?}, not an eventfd")]
    NotEventfd { target: String },
    #[error("the eventfd blocks, or cannot be written (flags {flags:#o})")]
    Blocks { flags: u32 },
    #[error("cannot tell what the descriptor is, since /proc cannot be read: {source}")]
    Unknown { source: io::Error },
}

impl DoorbellError {
    /// Whether it says nothing about the bell: we had no descriptor left to look with.
    pub(crate) fn out_of_descriptors(&self) -> bool {
        matches!(self, DoorbellError::Unknown { source } if is_out_of_descriptors(source))
    }
}

impl Doorbell {
    /// Makes a bell of our own.
    pub fn new() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { fd: Arc::new(fd) })
    }

    /// Accepts a peer's bell, if it is an eventfd that does not block.
    pub fn from_peer(fd: OwnedFd) -> Result<Doorbell, DoorbellError> {
        inspect(fd.as_fd())?;
        Ok(Doorbell { fd: Arc::new(fd) })
    }

    /// Rings: whoever sleeps on the bell wakes, now or when it next would sleep.
    ///
    /// Cost: one system call, which does not block. (A peer of our own user that clears
    /// O_NONBLOCK on its own bell and fills the counter could still hold us; it could as well
    /// stop us with a signal.)
    pub fn ring(&self) {
        // EAGAIN: the counter is full, so the bell is as rung as it can be. Nothing else can
        // come back from an eventfd, and a bell that is no longer heard has nobody to tell.
        let _ = rustix::io::write(&*self.fd, &1u64.to_ne_bytes());
    }

    /// Silences the bell, and says whether it had been rung.
    ///
    /// Cost: one system call, two before Linux 5.8.
    pub fn drain(&self) -> bool {
        let mut count = [0u8; 8];
        // A peer may have cleared O_NONBLOCK, which belongs to what both of us have open, to stop us here.
        // readv(2), of the offset -1: "the current file offset is used".
        let here = u64::MAX;
        let nowait = ReadWriteFlags::NOWAIT;
        match preadv2(&*self.fd, &mut [IoSliceMut::new(&mut count)], here, nowait) {
            Ok(bytes) => bytes == 8,
            Err(Errno::AGAIN | Errno::INTR) => false,
            // The kernel does not know that of an eventfd.
            Err(_) => matches!(rustix::io::read(&*self.fd, &mut count), Ok(8)),
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Checks that `fd` is an eventfd that we may write without blocking; its number, where the
/// kernel tells it (5.2 and later).
///
/// All anonymous inodes look the same to fstat(2), so /proc has to say.
fn inspect(fd: BorrowedFd<'_>) -> Result<Option<u64>, DoorbellError> {
    let number = fd.as_raw_fd();
    let unknown = |source| DoorbellError::Unknown { source };
    let target = fs::read_link(format!("/proc/self/fd/{number}")).map_err(unknown)?;
    if target.as_os_str() != "anon_inode:[eventfd]" {
        return Err(DoorbellError::NotEventfd { target: target.display().to_string() });
    }
    // proc_pid_fdinfo(5): "flags: This is an octal number that displays the file access mode and
    // file status flags".
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).map_err(unknown)?;
    let field = |name: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    let flags = field("flags").and_then(|text| u32::from_str_radix(text, 8).ok()).unwrap_or(0);
    let writable = flags & libc::O_ACCMODE as u32 == libc::O_RDWR as u32;
    if !writable || flags & libc::O_NONBLOCK as u32 == 0 {
        return Err(DoorbellError::Blocks { flags });
    }
    Ok(field("eventfd-id").and_then(|text| text.parse().ok()))
}

/// The peers' bells that this process holds, so that many lanes to one peer cost one descriptor.
///
/// The kernel reuses an eventfd's number only after its last descriptor is closed, so a number
/// that is found here, with its bell still held, means the same bell.
#[derive(Default)]
pub(crate) struct PeerBells {
    held: HashMap<u64, Weak<OwnedFd>>,
}

impl PeerBells {
    pub(crate) fn accept(&mut self, fd: OwnedFd) -> Result<Doorbell, DoorbellError> {
        let Some(number) = inspect(fd.as_fd())? else {
            return Ok(Doorbell { fd: Arc::new(fd) });
        };
        if let Some(held) = self.held.get(&number).and_then(Weak::upgrade) {
            return Ok(Doorbell { fd: held });
        }
        if self.held.len() >= 64 && self.held.len().is_power_of_two() {
            self.held.retain(|_, bell| bell.strong_count() > 0);
        }
        let fd = Arc::new(fd);
        self.held.insert(number, Arc::downgrade(&fd));
        Ok(Doorbell { fd })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kestrel_tests::scale::skip;
    use rustix::fs::{OFlags, fcntl_setfl};

    const NOWAIT: ReadWriteFlags = ReadWriteFlags::NOWAIT;

    #[test]
    fn a_bell_stays_rung_until_drained() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.drain());
        bell.ring();
        bell.ring();
        assert!(bell.drain());
        assert!(!bell.drain());
    }

    #[test]
    fn a_full_bell_does_not_block() {
        let bell = Doorbell::new().unwrap();
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring();
        assert!(bell.drain());
    }

    /// As by a peer, which has it open, too. The test hangs otherwise.
    #[test]
    fn a_bell_that_blocks_is_drained_all_the_same() {
        let bell = Doorbell::new().unwrap();
        let mut count = [0; 8];
        let asked = preadv2(&bell, &mut [IoSliceMut::new(&mut count)], u64::MAX, NOWAIT);
        if asked != Err(Errno::AGAIN) {
            return skip("a_bell_that_blocks_is_drained_all_the_same", "before Linux 5.8");
        }
        let theirs = bell.fd.try_clone().unwrap();
        fcntl_setfl(&theirs, OFlags::empty()).unwrap();
        assert!(!bell.drain());
        bell.ring();
        assert!(bell.drain() && !bell.drain());
    }

    #[test]
    fn only_eventfds_that_do_not_block_are_bells() {
        let file = fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(Doorbell::from_peer(file.into()), Err(DoorbellError::NotEventfd { .. })));
        let blocking = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Doorbell::from_peer(blocking), Err(DoorbellError::Blocks { .. })));
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        assert!(Doorbell::from_peer(epoll.unwrap()).is_err());
    }

    #[test]
    fn the_same_bell_twice_costs_one_descriptor() {
        let bell = Doorbell::new().unwrap();
        let mut bells = PeerBells::default();
        let copy = || rustix::io::fcntl_dupfd_cloexec(&bell, 0).unwrap();
        let one = bells.accept(copy()).unwrap();
        let two = bells.accept(copy()).unwrap();
        assert_eq!(one.as_raw_fd(), two.as_raw_fd());
        let other = bells.accept(Doorbell::new().unwrap().fd.try_clone().unwrap()).unwrap();
        assert_ne!(one.as_raw_fd(), other.as_raw_fd());
        drop((one, two));
        let again = bells.accept(copy()).unwrap();
        again.ring();
        assert!(bell.drain());
    }
}

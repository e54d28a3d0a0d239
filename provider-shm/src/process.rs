//! Who a peer process is, and how its death is noticed.
//!
//! A process is known by its pidfd: unlike a PID it never names somebody else later, and it
//! becomes readable when the process ends, however it ends. Every station that has lanes with a
//! process shares one watch of it. Where no pidfd can be had (Linux before 6.5 and a peer outside
//! our PID namespace) the handshake's socket is kept open, and its hang-up is the sign; then each
//! connection counts as a process of its own.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_core::fork_guard::Unshared;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{fstat, fstatfs};
use rustix::time::Timespec;

use crate::control::socket::Socket;

const PID_FS_MAGIC: i64 = 0x5049_4446;

/// One peer process, as long as anyone here cares: never reused within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(NonZeroU64);

impl ProcessId {
    fn next() -> ProcessId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        ProcessId(NonZeroU64::new(number).expect("64 bits do not wrap around"))
    }

    pub fn get(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn from_u64(number: u64) -> Option<ProcessId> {
        NonZeroU64::new(number).map(ProcessId)
    }
}

/// Who keeps a watch alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Station(u64),
    Handshake(u64),
}

/// A process that is being watched.
pub(crate) struct Watch {
    /// A pidfd, or a kept socket: either reports the end of the process to epoll.
    pub fd: Arc<Unshared<OwnedFd>>,
    pub holders: HashSet<Holder>,
    key: Option<Key>,
    life: Option<Life>,
}

/// What tells at any moment, without the control thread, whether a process has ended: its pidfd.
#[derive(Clone, Debug)]
pub struct Life(Arc<Unshared<OwnedFd>>);

impl Life {
    /// Whether nothing of the process runs any more. Cost: a system call.
    pub fn has_ended(&self) -> bool {
        ended(self.0.as_fd())
    }

    #[cfg(test)]
    pub(crate) fn of(pid: u32) -> Life {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let pid = Pid::from_raw(pid as i32).unwrap();
        Life(Arc::new(Unshared::new(pidfd_open(pid, PidfdFlags::empty()).unwrap())))
    }
}

impl PartialEq for Life {
    fn eq(&self, other: &Life) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Life {}

/// By what two connections are found to come from one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Linux 6.9: the pidfd's inode, unique for the process while the system is up.
    Inode(u64),
    /// Before: the PID, which means one process as long as a watched pidfd of it lives. A process of a PID
    /// namespace that ours does not see has none: there, before Linux 6.9, each connection counts as one of
    /// a process of its own, though there may be a pidfd (Linux 6.5).
    Pid(i32),
}

/// Every process that this one watches.
#[derive(Default)]
pub(crate) struct ProcessTable {
    watches: HashMap<ProcessId, Watch>,
    by_key: HashMap<Key, ProcessId>,
}

/// What came of a pidfd.
pub(crate) enum Watched {
    /// A watch of this process exists already; the pidfd was closed.
    Known(ProcessId),
    /// A new watch, whose descriptor epoll has to be told of.
    New(ProcessId),
    /// The process is dead already.
    Dead,
}

/// Whether a pidfd says that its process has ended.
fn ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

impl Key {
    fn of(pidfd: BorrowedFd<'_>, pid: Option<i32>) -> Option<Key> {
        let on_pidfs = fstatfs(pidfd).is_ok_and(|found| found.f_type == PID_FS_MAGIC);
        match fstat(pidfd) {
            Ok(found) if on_pidfs => Some(Key::Inode(found.st_ino)),
            _ => pid.map(Key::Pid),
        }
    }
}

impl ProcessTable {
    /// Watches the process of `pidfd`, held by `holder`.
    pub(crate) fn watch(&mut self, pidfd: OwnedFd, pid: Option<i32>, holder: Holder) -> Watched {
        if ended(pidfd.as_fd()) {
            return Watched::Dead;
        }
        let key = Key::of(pidfd.as_fd(), pid);
        let known = key.and_then(|key| self.by_key.get(&key)).copied();
        if let Some((process, watch)) = known.and_then(|p| Some((p, self.watches.get_mut(&p)?)))
            && (matches!(key, Some(Key::Inode(_))) || !ended(watch.fd.as_fd()))
        {
            watch.holders.insert(holder);
            return Watched::Known(process);
        }
        let pidfd = Arc::new(Unshared::new(pidfd));
        let life = Some(Life(pidfd.clone()));
        Watched::New(self.insert(Watch { fd: pidfd, holders: HashSet::from([holder]), key, life }))
    }

    /// Watches a process by the hang-up of its socket.
    pub(crate) fn watch_socket(&mut self, socket: Socket, holder: Holder) -> ProcessId {
        let (fd, holders) = (Arc::new(socket), HashSet::from([holder]));
        self.insert(Watch { fd, holders, key: None, life: None })
    }

    fn insert(&mut self, watch: Watch) -> ProcessId {
        let process = ProcessId::next();
        if let Some(key) = watch.key {
            self.by_key.insert(key, process);
        }
        self.watches.insert(process, watch);
        process
    }

    /// The life of a process that is watched by its pidfd.
    pub(crate) fn life(&self, process: ProcessId) -> Option<Life> {
        self.get(process)?.life.clone()
    }

    /// Whether `pidfd` names the process that is watched; not known where the kernel numbers
    /// neither for us.
    pub(crate) fn is_same(
        &self,
        process: ProcessId,
        pidfd: BorrowedFd<'_>,
        pid: Option<i32>,
    ) -> Option<bool> {
        Some(self.get(process)?.key? == Key::of(pidfd, pid)?)
    }

    pub(crate) fn get(&self, process: ProcessId) -> Option<&Watch> {
        self.watches.get(&process)
    }

    /// Adds a holder to a watch that exists.
    pub(crate) fn hold(&mut self, process: ProcessId, holder: Holder) {
        if let Some(watch) = self.watches.get_mut(&process) {
            watch.holders.insert(holder);
        }
    }

    /// Ends `holder`'s interest; the watch comes back if it was the last, to be closed.
    pub(crate) fn release(&mut self, process: ProcessId, holder: Holder) -> Option<Watch> {
        let watch = self.watches.get_mut(&process)?;
        watch.holders.remove(&holder);
        if !watch.holders.is_empty() {
            return None;
        }
        self.remove(process)
    }

    pub(crate) fn remove(&mut self, process: ProcessId) -> Option<Watch> {
        let watch = self.watches.remove(&process)?;
        if let Some(key) = watch.key
            && self.by_key.get(&key) == Some(&process)
        {
            self.by_key.remove(&key);
        }
        Some(watch)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.watches.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Command, Stdio};

    fn open(pid: u32) -> OwnedFd {
        pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn one_process_has_one_watch_until_the_last_holder_lets_go() {
        let mut table = ProcessTable::default();
        let own = std::process::id();
        let (one, two) = (Holder::Station(1), Holder::Handshake(1));
        let Watched::New(first) = table.watch(open(own), Some(own as i32), one) else {
            panic!("not new");
        };
        assert!(!table.life(first).unwrap().has_ended());
        let Watched::Known(second) = table.watch(open(own), Some(own as i32), two) else {
            panic!("not known");
        };
        assert_eq!(first, second);
        assert!(table.release(first, one).is_none());
        assert!(table.release(first, two).is_some());
        assert_eq!(table.len(), 0);
        assert!(matches!(table.watch(open(own), None, one), Watched::New(third) if third != first));
    }

    #[test]
    fn a_dead_process_is_not_watched() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (pidfd, mut table) = (open(child.id()), ProcessTable::default());
        let Watched::New(process) = table.watch(open(child.id()), None, Holder::Station(1)) else {
            panic!("not new");
        };
        let life = table.life(process).unwrap();
        assert!(!life.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(life.has_ended());
        let found = ProcessTable::default().watch(pidfd, None, Holder::Station(1));
        assert!(matches!(found, Watched::Dead));
    }
}

//! Reading and writing a peer's memory (cross-memory attach), and the probe that says whether we may.
//!
//! process_vm_readv(2) takes a PID, and a PID that a peer tells is worth nothing: two containers
//! both say 1, and reading process 1 then happily reads our own memory. So the PID is the one
//! that the kernel puts on the socket (SO_PEERCRED), translated into our PID namespace, and even
//! that is believed only after a random nonce, whose address and value the peer sent, has been
//! read back through it.
//!
//! A PID outlives its process: later it may name somebody else, and a process that executes
//! another program keeps its PID. So what was read counts only if the peer's mark
//! ([`crate::end_mark`]) has not changed when the read is over.
//!
//! A write cannot be taken back. So the mark is looked at first, and the write begins with the
//! nonce, at its place, by the same system call: where that cannot be written, nothing is. The place
//! is a page of the nonce's own ([`crate::permit`]), which stays there until the process ends, so that
//! nothing else is overwritten by it. An address space in which it can be written, and which is not the
//! peer's, has the same layout: a copy of the peer's process that was forked, has endpoints of its own and
//! got the PID of the dead one, in the moment before its death is noticed.

use std::fs;
use std::io;
use std::sync::Once;

use rustix::process::{PTracer, set_ptracer};
use thiserror::Error;

use crate::end_mark::PeerEndMark;

pub(crate) const NONCE_BYTES: usize = 16;

/// A piece of a peer's memory.
#[derive(Clone, Copy)]
struct RemoteSlice {
    address: u64,
    len: usize,
}

impl RemoteSlice {
    /// What the kernel takes of it is a number, which is never followed here.
    fn piece(&self) -> libc::iovec {
        libc::iovec { iov_base: self.address as usize as *mut libc::c_void, iov_len: self.len }
    }
}

/// Why a peer's memory cannot be read.
#[derive(Debug, Error)]
pub(crate) enum ProbeFailure {
    #[error("one side has it switched off")]
    Off,
    #[error("the peer has no PID in our PID namespace")]
    NoPid,
    #[error("not permitted: {}", permission_hint())]
    Permission,
    #[error("no process {pid} here (PID namespaces?)")]
    NoProcess { pid: i32 },
    #[error("process {pid} is not the peer: its nonce differs (PID namespaces?)")]
    NonceDiffers { pid: i32 },
    #[error("process_vm_readv: {source}")]
    Other { source: io::Error },
}

/// A peer's memory, which a probe has shown to be readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMemory {
    pid: i32,
    end_mark: PeerEndMark,
    nonce_address: u64,
    nonce: [u8; NONCE_BYTES],
}

impl PeerMemory {
    /// The PID that it is read by, in our own PID namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The same memory, with another nonce that the peer told of.
    pub(crate) fn with_nonce(&self, address: u64, nonce: [u8; NONCE_BYTES]) -> PeerMemory {
        PeerMemory { nonce_address: address, nonce, ..self.clone() }
    }

    /// Memory of process `pid`, to be written to.
    #[cfg(test)]
    pub(crate) fn of(pid: i32, nonce_address: u64, nonce: [u8; NONCE_BYTES]) -> PeerMemory {
        let mark = crate::end_mark::EndMark::of_this_thread().unwrap();
        let fd = mark.fd().try_clone_to_owned().unwrap();
        // It changes no more.
        drop(mark);
        let end_mark = PeerEndMark::from_peer(fd).unwrap();
        PeerMemory { pid, end_mark, nonce_address, nonce }
    }

    /// Copies `len` bytes at `remote` in the peer's memory to `local`, all of them.
    ///
    /// An error means that what `local` holds now does not count: the bytes are not there, or the
    /// PID belongs to somebody else by now (ESRCH).
    ///
    /// Cost: one system call for each two gigabytes. May wait for the peer's pages.
    ///
    /// # Safety
    /// `local` must be valid for writes of `len` bytes, which no reference covers.
    ///
    /// # Reference
    /// process_vm_readv(2)
    pub unsafe fn read(&self, remote: u64, local: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: what the caller promises.
        let copied = unsafe { read(self.pid, remote, local, len) }?;
        if copied < len {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        if !self.end_mark.is_unchanged() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    }

    /// Whether the nonce is still there: the peer has not withdrawn it.
    pub(crate) fn is_permitted(&self) -> bool {
        let mut found = [0; NONCE_BYTES];
        // SAFETY: `found` is ours, exclusively, and NONCE_BYTES long.
        let read = unsafe { self.read(self.nonce_address, found.as_mut_ptr(), NONCE_BYTES) };
        read.is_ok() && found == self.nonce
    }

    /// Copies `len` bytes at `local` to `remote` in the peer's memory, all of them.
    ///
    /// An error means that what lies at `remote` now does not count, or is nobody's any more.
    ///
    /// Cost: one system call, which takes two gigabytes at most: nobody writes a tenth of that at a
    /// time. May wait for the peer's pages.
    ///
    /// # Safety
    /// `local` must be valid for reads of `len` bytes.
    ///
    /// # Reference
    /// process_vm_writev(2)
    pub unsafe fn write(&self, remote: u64, local: *const u8, len: usize) -> io::Result<()> {
        // SAFETY: what the caller promises.
        unsafe { self.write_by(libc::process_vm_writev, remote, local, len) }
    }

    /// In one call: what is left of a copy that ended early has no nonce in front.
    ///
    /// # Safety
    /// As `write`.
    unsafe fn write_by(
        &self,
        call: Call,
        remote: u64,
        local: *const u8,
        len: usize,
    ) -> io::Result<()> {
        if !self.end_mark.is_unchanged() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let mut nonce = self.nonce;
        let local = [
            libc::iovec { iov_base: nonce.as_mut_ptr().cast(), iov_len: NONCE_BYTES },
            libc::iovec { iov_base: local.cast_mut().cast(), iov_len: len },
        ];
        let nonce = RemoteSlice { address: self.nonce_address, len: NONCE_BYTES };
        let remote = [nonce, RemoteSlice { address: remote, len }].map(|slice| slice.piece());
        // SAFETY: the first piece is ours, the second what the caller promises; both are only read.
        let copied = unsafe { call_once(call, self.pid, &remote, &local) }?;
        match copied == len + NONCE_BYTES {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }
}

fn yama_scope() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

fn permission_hint() -> String {
    match yama_scope() {
        Some(scope @ 2..) => {
            format!("Yama allows it to administrators only (ptrace_scope {scope})")
        }
        Some(1) => "Yama (ptrace_scope 1), and the peer gave no leave by PR_SET_PTRACER; or a \
                    user namespace, a seccomp filter or a process that may not be dumped"
            .to_owned(),
        _ => "a user namespace, a seccomp filter or a process that may not be dumped".to_owned(),
    }
}

/// Lets other processes of our user read our memory, where Yama would let only our parents.
pub(crate) fn permit_peers() {
    static LOGGED: Once = Once::new();
    if yama_scope() != Some(1) {
        return;
    }
    // One process can be named, or any: with many peers it has to be any. Without Yama any
    // process of the user may do so in the first place.
    let permitted = set_ptracer(PTracer::Any);
    LOGGED.call_once(|| match permitted {
        Ok(()) => {
            tracing::info!("Yama: peers were permitted to read this process (PR_SET_PTRACER)")
        }
        Err(error) => tracing::info!(%error, "Yama: PR_SET_PTRACER failed; no single-copy reads"),
    });
}

/// Reads the peer's nonce, and answers its memory if that is what it sent.
pub(crate) fn probe(
    pid: Option<i32>,
    address: u64,
    expected: &[u8; NONCE_BYTES],
    end_mark: PeerEndMark,
) -> Result<PeerMemory, ProbeFailure> {
    if address == 0 {
        return Err(ProbeFailure::Off);
    }
    let pid = pid.ok_or(ProbeFailure::NoPid)?;
    let mut found = [0u8; NONCE_BYTES];
    // SAFETY: `found` is ours, exclusively, and NONCE_BYTES long.
    match unsafe { read(pid, address, found.as_mut_ptr(), NONCE_BYTES) } {
        Ok(NONCE_BYTES) if found == *expected => {
            Ok(PeerMemory { pid, end_mark, nonce_address: address, nonce: *expected })
        }
        Ok(_) => Err(ProbeFailure::NonceDiffers { pid }),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EPERM) => ProbeFailure::Permission,
            Some(libc::ESRCH) => ProbeFailure::NoProcess { pid },
            Some(libc::EFAULT) => ProbeFailure::NonceDiffers { pid },
            _ => ProbeFailure::Other { source: error },
        }),
    }
}

/// Copies `len` bytes at `remote` in process `pid` to `local`.
///
/// Answers how many bytes were copied: fewer than `len` only if the rest cannot be read there.
/// An error means that none were.
///
/// Cost: one system call for each two gigabytes. May wait for the peer's pages.
///
/// # Safety
/// `local` must be valid for writes of `len` bytes, which no reference covers.
///
/// # Reference
/// process_vm_readv(2)
pub unsafe fn read(pid: i32, remote: u64, local: *mut u8, len: usize) -> io::Result<usize> {
    let local = [libc::iovec { iov_base: local.cast(), iov_len: len }];
    let remote = [RemoteSlice { address: remote, len }];
    // SAFETY: the one piece is what the caller promises.
    unsafe { transfer::<1>(libc::process_vm_readv, pid, &remote, &local) }
}

/// What process_vm_readv(2) and process_vm_writev(2) have in common.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// Copies between the pieces of both lists, end to end.
///
/// Answers how many bytes were copied: fewer than the shorter of both lists holds only if the
/// rest cannot be read or written there. An error means that none were.
///
/// Cost: one system call for each `N` pieces of either list. Allocates nothing.
///
/// # Safety
/// Each piece of `local` must be valid for its length: for writes, which no reference covers, if
/// `call` reads; for reads if it writes.
unsafe fn transfer<const N: usize>(
    call: Call,
    pid: i32,
    remote: &[RemoteSlice],
    local: &[libc::iovec],
) -> io::Result<usize> {
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut done = 0;
    loop {
        let (mut local_batch, mut remote_batch) = ([empty; N], [empty; N]);
        let local_count = rest(local.iter().copied(), done, &mut local_batch);
        let remote_count = rest(remote.iter().map(RemoteSlice::piece), done, &mut remote_batch);
        if local_count == 0 || remote_count == 0 {
            return Ok(done);
        }
        // SAFETY: the local pieces are what is left of the caller's, which it promises are valid; the
        // counts say how many entries of both arrays were filled.
        let copied = unsafe {
            call_once(call, pid, &remote_batch[..remote_count], &local_batch[..local_count])
        };
        match copied {
            Ok(0) => return Ok(done),
            Ok(copied) => done += copied,
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
        }
    }
}

/// One call: how many bytes were copied, which may be fewer than there are. A signal that came before
/// the first of them is no error.
///
/// # Safety
/// As [`transfer`].
unsafe fn call_once(
    call: Call,
    pid: i32,
    remote: &[libc::iovec],
    local: &[libc::iovec],
) -> io::Result<usize> {
    loop {
        // SAFETY: the caller promises that the local pieces are valid. Remote addresses are checked by
        // the kernel, which answers EFAULT.
        let copied = unsafe {
            call(
                pid,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        if let Ok(copied) = usize::try_from(copied) {
            return Ok(copied);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Fills `batch` with what is left of `pieces` after the first `skip` bytes; how many it filled.
fn rest<const N: usize>(
    pieces: impl Iterator<Item = libc::iovec>,
    mut skip: usize,
    batch: &mut [libc::iovec; N],
) -> usize {
    let mut count = 0;
    for mut piece in pieces {
        if skip >= piece.iov_len {
            skip -= piece.iov_len;
            continue;
        }
        piece.iov_base = piece.iov_base.wrapping_byte_add(skip);
        piece.iov_len -= skip;
        skip = 0;
        batch[count] = piece;
        count += 1;
        if count == N {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end_mark::EndMark;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    fn own_pid() -> i32 {
        std::process::id() as i32
    }

    fn slice(bytes: &[u8]) -> RemoteSlice {
        RemoteSlice { address: bytes.as_ptr() as u64, len: bytes.len() }
    }

    #[test]
    fn pieces_of_any_shape_are_copied_end_to_end() {
        let source: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
        let mut target = vec![0u8; 10_000];
        let remote: Vec<_> = source.chunks(37).map(slice).collect();
        let local: Vec<_> = target
            .chunks_mut(101)
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() })
            .collect();
        // SAFETY: the pieces are disjoint parts of `target`, which is not touched meanwhile.
        let copied =
            unsafe { transfer::<64>(libc::process_vm_readv, own_pid(), &remote, &local) }.unwrap();
        assert_eq!(copied, 10_000);
        assert_eq!(source, target);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let source = [7u8; 64];
        let mut target = [0u8; 128];
        let remote = [slice(&source), RemoteSlice { address: 8, len: 64 }];
        let local = [libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: 128 }];
        // SAFETY: `target` is writable for its 128 bytes.
        let copied =
            unsafe { transfer::<64>(libc::process_vm_readv, own_pid(), &remote, &local) }.unwrap();
        assert_eq!(copied, 64);
        // SAFETY: as before.
        let error = unsafe { read(own_pid(), 8, target.as_mut_ptr(), 64) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    const NONCE: [u8; NONCE_BYTES] = [9; NONCE_BYTES];

    fn seen(mark: &EndMark) -> PeerEndMark {
        PeerEndMark::from_peer(mark.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    fn memory(mark: &EndMark) -> PeerMemory {
        probe(Some(own_pid()), NONCE.as_ptr() as u64, &NONCE, seen(mark)).unwrap()
    }

    #[test]
    fn the_probe_believes_the_nonce_alone() {
        let (mark, nonce) = (EndMark::of_this_thread().unwrap(), NONCE);
        let address = nonce.as_ptr() as u64;
        let probe = |pid, address, nonce| probe(pid, address, nonce, seen(&mark));
        assert_eq!(probe(Some(own_pid()), address, &nonce).unwrap().pid(), own_pid());
        let wrong = probe(Some(own_pid()), address, &[8; NONCE_BYTES]);
        assert!(matches!(wrong, Err(ProbeFailure::NonceDiffers { .. })));
        assert!(matches!(probe(None, address, &nonce), Err(ProbeFailure::NoPid)));
        assert!(matches!(probe(Some(own_pid()), 0, &nonce), Err(ProbeFailure::Off)));
        let gone = probe(Some(i32::MAX), address, &nonce);
        assert!(matches!(gone, Err(ProbeFailure::NoProcess { .. })));
    }

    #[test]
    fn what_is_written_lands_only_where_the_nonce_can_be_written() {
        let (nonce, source) = ([9u8; NONCE_BYTES], [7u8; 64]);
        let target: [std::sync::atomic::AtomicU8; 64] = std::array::from_fn(|_| 0.into());
        let mark = EndMark::of_this_thread().unwrap();
        let write = |nonce_address| {
            let end_mark = seen(&mark);
            let memory = PeerMemory { pid: own_pid(), end_mark, nonce_address, nonce };
            // SAFETY: the source is ours; the targets are cells that nobody looks at meanwhile.
            unsafe { memory.write(target.as_ptr() as u64, source.as_ptr(), 64) }
                .map_err(|error| error.raw_os_error().unwrap())
        };
        let there =
            || target.iter().all(|byte| byte.load(std::sync::atomic::Ordering::SeqCst) == 7);
        assert_eq!((write(8), there()), (Err(libc::EFAULT), false));
        let place = Box::new(std::cell::UnsafeCell::new(nonce));
        assert_eq!((write(place.get() as u64), there()), (Ok(()), true));
    }

    #[test]
    fn a_nonce_that_is_gone_permits_nothing() {
        let (mark, mut nonce) = (EndMark::of_this_thread().unwrap(), Box::new(NONCE));
        let end_mark = seen(&mark);
        let nonce_address = nonce.as_ptr() as u64;
        let memory = PeerMemory { pid: own_pid(), end_mark, nonce_address, nonce: NONCE };
        assert!(memory.is_permitted());
        assert!(!memory.with_nonce(8, NONCE).is_permitted(), "it cannot be read");
        nonce[0] = 8;
        assert!(!memory.is_permitted(), "it is another's");
    }

    /// The rest would have no nonce in front, and the memory may be another's by then.
    #[test]
    fn a_write_that_ends_early_is_not_gone_on_with() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        /// As where a page in the middle cannot be written at that moment.
        unsafe extern "C" fn copy_half(
            _: libc::pid_t,
            local: *const libc::iovec,
            _: libc::c_ulong,
            _: *const libc::iovec,
            _: libc::c_ulong,
            _: libc::c_ulong,
        ) -> isize {
            CALLS.fetch_add(1, Relaxed);
            // SAFETY: the list has an entry at least.
            unsafe { (*local).iov_len as isize + 32 }
        }
        let (mark, source) = (EndMark::of_this_thread().unwrap(), [7u8; 64]);
        // SAFETY: nothing is written.
        let written = unsafe { memory(&mark).write_by(copy_half, 8, source.as_ptr(), 64) };
        assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(CALLS.load(Relaxed), 1);
    }

    /// As after the peer's death, when its PID is another's, or after it executed a program.
    #[test]
    fn what_is_read_counts_only_while_the_mark_is_unchanged() {
        let (mark, data) = (EndMark::of_this_thread().unwrap(), [7u8; 64]);
        let mut target = [0u8; 64];
        let memory = memory(&mark);
        let mut read = |remote: u64| {
            // SAFETY: `target` is writable for its 64 bytes, and nothing else looks at it.
            let read = unsafe { memory.read(remote, target.as_mut_ptr(), 64) };
            read.map_err(|error| error.raw_os_error().unwrap())
        };
        assert_eq!(read(data.as_ptr() as u64), Ok(()));
        assert_eq!(read(8), Err(libc::EFAULT));
        drop(mark);
        assert_eq!(read(data.as_ptr() as u64), Err(libc::ESRCH));
        assert_eq!(target, data, "it was read, and is not believed");
    }
}

//! A peer's memory as the file `/proc/<pid>/mem`, for copies so short that the call is what costs.
//!
//! The file is the address space that the PID had when it was opened (proc_pid_mem(5)): once the
//! process has ended, or executes another program, nothing more is read or written by it. So one
//! look at the nonce, at the beginning, tells whose memory it is, where a call that takes a PID has
//! to carry the nonce each time ([`crate::cma`]).

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
};

use crate::cma::NONCE_BYTES;

/// The memory of one process, as long as that is what it was.
pub(crate) struct MemoryFile(File);

impl MemoryFile {
    /// The memory of process `pid`, where that nonce lies.
    pub fn open(pid: i32, address: u64, nonce: [u8; NONCE_BYTES]) -> io::Result<MemoryFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
        let file = options.open(format!("/proc/{pid}/mem"))?;
        let mut found = [0; NONCE_BYTES];
        file.read_exact_at(&mut found, address)?;
        match found == nonce {
            true => Ok(MemoryFile(file)),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Copies `len` bytes at `remote` in the peer's memory to `local`, all of them.
    ///
    /// # Safety
    /// `local` must be valid for writes of `len` bytes, which no reference covers.
    ///
    /// # Reference
    /// pread(2)
    #[inline]
    pub unsafe fn read(&self, remote: u64, local: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: what the caller promises.
        let copied =
            unsafe { libc::pread(self.0.as_raw_fd(), local.cast(), len, remote as libc::off_t) };
        whole(copied, len)
    }

    /// Copies `len` bytes at `local` to `remote` in the peer's memory, all of them.
    ///
    /// # Safety
    /// `local` must be valid for reads of `len` bytes.
    ///
    /// # Reference
    /// pwrite(2)
    #[inline]
    pub unsafe fn write(&self, remote: u64, local: *const u8, len: usize) -> io::Result<()> {
        // SAFETY: what the caller promises.
        let copied =
            unsafe { libc::pwrite(self.0.as_raw_fd(), local.cast(), len, remote as libc::off_t) };
        whole(copied, len)
    }
}

/// A copy that ends early has met what is not there; one of nothing, the end of the process.
#[inline]
fn whole(copied: isize, len: usize) -> io::Result<()> {
    match copied {
        copied if copied == len as isize => Ok(()),
        0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        1.. => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        process::{Command, Stdio},
        sync::atomic::{AtomicU64, Ordering},
    };

    const NONCE: [u8; NONCE_BYTES] = [9; NONCE_BYTES];

    #[test]
    fn it_is_opened_where_the_nonce_is_alone() {
        let own = std::process::id() as i32;
        let open = |pid, at: &[u8; NONCE_BYTES]| MemoryFile::open(pid, at.as_ptr() as u64, NONCE);
        let file = open(own, &NONCE).unwrap();
        let wrong = open(own, &[8; NONCE_BYTES]).err().unwrap();
        assert_eq!(wrong.raw_os_error(), Some(libc::ESRCH));
        assert!(open(i32::MAX, &NONCE).is_err());
        let (place, mut value) = (AtomicU64::new(3), 5_u64.to_ne_bytes());
        let at = place.as_ptr() as u64;
        // SAFETY: the value is 8 bytes long, and so is the place, whose content is no reference.
        unsafe {
            file.write(at, value.as_ptr(), 8).unwrap();
            assert_eq!(place.load(Ordering::SeqCst), 5);
            file.read(at, value.as_mut_ptr(), 8).unwrap();
            let error = file.write(8, value.as_ptr(), 8).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
    }

    /// The first mapping of a process that may be written, and where it starts.
    fn writable(pid: u32) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let line = maps.lines().find(|line| line.contains("rw-p")).unwrap();
        u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
    }

    /// A shell that executes another program keeps its PID, and its end is one as well.
    #[test]
    fn it_ends_with_what_the_process_was() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read line; exec cat"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let (pid, at) = (child.id(), writable(child.id()));
        let options = || OpenOptions::new().read(true).open(format!("/proc/{pid}/mem"));
        let mut nonce = [0; NONCE_BYTES];
        options().unwrap().read_exact_at(&mut nonce, at).unwrap();
        let file = MemoryFile::open(pid as i32, at, nonce).unwrap();
        let mut found = [0; NONCE_BYTES];
        // SAFETY: `found` is ours, exclusively.
        let mut read = || unsafe { file.read(at, found.as_mut_ptr(), NONCE_BYTES) };
        read().unwrap();
        // What `cat` echoes is said once the other program runs.
        child.stdin.as_mut().unwrap().write_all(b"\nx").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(read().unwrap_err().raw_os_error(), Some(libc::ESRCH));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

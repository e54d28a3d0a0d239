//! System calls of a child, counted between two marks.
//!
//! The child says [`begin`] and [`end`] by a system call that no program makes;
//! the parent follows every thread of it with ptrace, which needs no privileges.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    io,
    mem::{size_of, zeroed},
    os::unix::process::CommandExt,
    process::Command,
};

/// An impossible `which` of getpriority(2).
const MARK: i32 = 0x6b65_7374;
const BEGIN: i32 = 1;
const END: i32 = 2;

fn mark(which: i32) {
    // SAFETY: getpriority takes numbers and refuses these.
    unsafe { libc::syscall(libc::SYS_getpriority, MARK, which) };
}

/// From here on the calling thread's system calls are counted.
pub fn begin() {
    mark(BEGIN);
}

/// Up to here.
pub fn end() {
    mark(END);
}

/// What a traced child did between its marks.
#[derive(Debug, Default)]
pub struct Counted {
    /// System calls by number.
    pub calls: BTreeMap<i64, u64>,
    /// Marked stretches that were finished.
    pub stretches: usize,
    /// How the child ended.
    pub code: i32,
}

#[derive(Default)]
struct Thread {
    inside: bool,
}

/// Runs this test binary's test `child` as `role`, traced.
pub fn run(role: &str) -> io::Result<Counted> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env("KESTREL_TEST_CHILD", role);
    // SAFETY: ptrace is async-signal-safe, and the only call.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let child = command.spawn()?.id() as i32;
    follow(child)
}

fn follow(child: i32) -> io::Result<Counted> {
    let mut counted = Counted::default();
    let mut threads: HashMap<i32, Thread> = HashMap::new();
    loop {
        let mut status = 0;
        // SAFETY: the status is ours. Nobody else in a tracing test waits for children.
        let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
        if thread < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            threads.remove(&thread);
            if thread == child {
                let killed = libc::WIFSIGNALED(status);
                counted.code = if killed { -1 } else { libc::WEXITSTATUS(status) };
                return Ok(counted);
            }
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        if let Entry::Vacant(place) = threads.entry(thread) {
            place.insert(Thread::default());
            let options =
                libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            // SAFETY: numbers only; the thread is stopped.
            unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options) };
        }
        let mut deliver = 0;
        if signal == libc::SIGTRAP | 0x80 {
            note(thread, threads.entry(thread).or_default(), &mut counted);
        } else if ![libc::SIGTRAP, libc::SIGSTOP].contains(&signal) {
            deliver = signal;
        }
        // SAFETY: numbers only; the thread is stopped.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, deliver) };
    }
}

/// A stop at a system call: counts it if it is an entry between marks.
fn note(thread: i32, state: &mut Thread, counted: &mut Counted) {
    // SAFETY: all zero is a value of this plain structure, and the kernel fills at most its size.
    let info = unsafe {
        let mut info: libc::ptrace_syscall_info = zeroed();
        let size = size_of::<libc::ptrace_syscall_info>();
        libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info);
        info
    };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return;
    }
    // SAFETY: `op` says that this is the member in use.
    let entry = unsafe { info.u.entry };
    let number = entry.nr as i64;
    if number == libc::SYS_getpriority && entry.args[0] as i32 == MARK {
        state.inside = entry.args[1] as i32 == BEGIN;
        counted.stretches += usize::from(!state.inside);
    } else if state.inside {
        *counted.calls.entry(number).or_default() += 1;
    }
}

//! Children that are this same test binary, and are killed by their own id.
//!
//! A test binary with children has a test `child` that looks at [`child_role`]
//! and is nothing if there is none.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use crate::scale::PATIENCE;

/// The environment variable that a role is in.
pub const CHILD_VARIABLE: &str = "KESTREL_TEST_CHILD";

/// What this process is asked to be, if it is a child.
pub fn child_role() -> Option<Vec<String>> {
    let role = std::env::var(CHILD_VARIABLE).ok()?;
    Some(role.split(' ').map(str::to_owned).collect())
}

/// Says a line to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {line}").and_then(|()| out.flush()).expect("the parent listens");
}

/// Reads what the parent says; its end is the end of the child.
pub fn listen_to_parent() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        std::process::exit(0);
    });
    receiver
}

/// Waits until `done`, for what has no event.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a thread of this process, by the number that the kernel has for it, sleeps.
pub fn is_asleep(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // What is behind its name, which may have anything in it.
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S')))
}

/// What `sleep` comes back with, which sleeps for [`PATIENCE`] at most, or nearly, and has to be
/// woken: where nobody rings it looks once more when its time is over, and finds the same.
#[track_caller]
pub fn woken<R>(sleep: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let found = sleep();
    assert!(start.elapsed() < PATIENCE / 2, "it slept until its time was over");
    found
}

/// This thread's calls of one system call answer EPERM from now on, as in many containers.
pub fn forbid_call(call: libc::c_long) {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = call as u32;
    // Load the number; if it is the one, answer an error, else allow.
    let mut filter = [
        statement(0x20, 0, 0, 0),
        statement(0x15, 0, 1, number),
        statement(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives through the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// A child process, killed and reaped at the latest when this goes.
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts this test binary again, to run its test `child` as `role`.
    pub fn start(role: &str) -> Peer {
        Self::start_under(&[], role)
    }

    /// The same, started through another program (`unshare`).
    pub fn start_under(wrapper: &[&str], role: &str) -> Peer {
        Self::start_with(wrapper, role, |_| {})
    }

    /// The same, with a command that `shape` may change.
    pub fn start_with(wrapper: &[&str], role: &str, shape: impl FnOnce(&mut Command)) -> Peer {
        let own = std::env::current_exe().expect("a test binary knows its path");
        let mut words: Vec<String> = wrapper.iter().map(|&word| word.to_owned()).collect();
        words.push(own.to_str().expect("a path in UTF-8").to_owned());
        words.extend(["--exact", "child", "--nocapture", "--test-threads=1"].map(str::to_owned));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env(CHILD_VARIABLE, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        shape(&mut command);
        let mut child = command.spawn().expect("a child starts");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix("> ") {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        let input = child.stdin.take();
        Peer { child, input, lines }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The next thing that the child says.
    pub fn hear(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child {} says nothing", self.pid()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().expect("a child can be waited for");
                panic!("the child ended ({status}) without saying anything")
            }
        }
    }

    /// What the child has said meanwhile.
    pub fn heard(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// What the child says after `word`, as the next thing.
    pub fn hear_after(&mut self, word: &str) -> String {
        let said = self.hear();
        let rest = said.strip_prefix(word).unwrap_or_else(|| panic!("{said}, not {word}"));
        rest.trim().to_owned()
    }

    /// Says a line to the child.
    pub fn order(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the child was not told to end");
        writeln!(input, "{line}").expect("the child listens");
    }

    /// kill -9, and nothing more: the process is a zombie until it is reaped.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Whether the child still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Waits for the child's end.
    pub fn finish(&mut self) -> ExitStatus {
        drop(self.input.take());
        let mut status = None;
        eventually("the child ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.expect("just waited for")
    }

    /// Waits until the child says that it is done, and for its end.
    pub fn be_done(&mut self) {
        assert_eq!(self.hear(), "done");
        self.succeed();
    }

    /// Waits for the child's end, which has to be a success.
    pub fn succeed(&mut self) {
        let status = self.finish();
        assert!(status.success(), "the child: {status}, signal {:?}", status.signal());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

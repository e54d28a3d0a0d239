//! Who has the memory, and how it is found.
//!
//! Each process that has it listens, on an abstract unix socket, as the first of so many names
//! that nobody has, and gives the descriptor to whoever connects and is of our own user. So it is
//! found as long as anybody has it, and the names go with the processes. Opening goes one
//! process at a time, by one more name: otherwise two could each find nobody and make two.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::time::Timespec;

use super::{Name, NamedMemoryError, PATIENCE, PAUSE, system};
use crate::control::socket::{self, Received, Socket};
use crate::doorbell::Doorbell;
use crate::sys;
use kestrel_core::{fork_guard, threads};

/// How many holders of one memory can be found. There are no others: who comes when all that are found
/// have gone would make another memory beside theirs.
const HOLDERS_MAX: u32 = 1024;
/// How long a holder may take to answer, the first time that all are asked, and when it is asked again.
/// It sleeps until it is asked.
const ANSWER_WAITS: [Duration; 3] =
    [Duration::from_millis(4), Duration::from_millis(50), Duration::from_secs(2)];
// So all are asked, be they silent.
const _: () = assert!(ANSWER_WAITS[0].as_millis() * (HOLDERS_MAX as u128) < PATIENCE.as_millis());
/// After an accept that failed for want of descriptors, or an answer that did not come for want of
/// them: long enough not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A handful of frames; nothing recurses.
const STACK_BYTES: usize = 128 << 10;

/// What a holder says, with the descriptor: what this is, its version, and the whole name.
const VECTOR_GREETING: &[u8] = b"KSTV\x01\0\0\0";
/// The same of a group.
const GROUP_GREETING: &[u8] = b"KSTG\x01\0\0\0";

pub(super) fn greeting(name: Name<'_>) -> Vec<u8> {
    let what = match name {
        Name::Vector(_) => VECTOR_GREETING,
        Name::Group(_) => GROUP_GREETING,
    };
    [what, name.text().as_bytes()].concat()
}

/// The beginning of the sockets' names: of our user, and a fingerprint of the name, since they
/// have room for 107 bytes only. Holders say the whole name.
pub(super) fn socket_name(name: Name<'_>, end: &str) -> String {
    // FNV-1a, of 128 bits.
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mix = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let print = name.text().bytes().fold(BASIS, mix);
    format!("kestrel/1/{}/{}/{print:032x}/{end}", name.kind(), geteuid().as_raw())
}

/// Waits until nobody else opens the memory of that name.
pub(super) fn open_alone(name: Name<'_>, patience: Duration) -> Result<Socket, NamedMemoryError> {
    let deadline = Instant::now() + patience;
    loop {
        match socket::take_name(&socket_name(name, "opening")) {
            Ok(alone) => return Ok(alone),
            Err(Errno::ADDRINUSE) if Instant::now() < deadline => sleep(PAUSE),
            Err(Errno::ADDRINUSE) => {
                let what = "another process has been opening it for long";
                return Err(NamedMemoryError::Kept { name: name.to_string(), what });
            }
            Err(errno) => return Err(system("bind")(errno)),
        }
    }
}

/// The memory, from whoever has it; none if nobody does. However many are silent, that takes no
/// longer than others wait for us; and all are asked before any is waited for long.
pub(super) fn ask_all(name: Name<'_>) -> Result<Option<OwnedFd>, NamedMemoryError> {
    let deadline = Instant::now() + PATIENCE;
    let mut silent: Vec<u32> = (0..HOLDERS_MAX).collect();
    for wait in ANSWER_WAITS {
        for number in std::mem::take(&mut silent) {
            let now = Instant::now();
            if wait > ANSWER_WAITS[0] && now >= deadline {
                silent.push(number);
                break;
            }
            match ask(name, number, deadline.min(now + wait))? {
                Answer::Memory(memory) => return Ok(Some(memory)),
                Answer::Silence => silent.push(number),
                Answer::HungUp | Answer::Nobody => {}
            }
        }
        if silent.is_empty() {
            return Ok(None);
        }
    }
    // To make another now would part those who have it from those who come.
    let what = "a process that has it does not answer";
    Err(NamedMemoryError::Kept { name: name.to_string(), what })
}

enum Answer {
    Memory(OwnedFd),
    Silence,
    /// It closed the connection without a word.
    HungUp,
    Nobody,
}

/// Asks one holder, again if it hangs up: it lets go at this moment, or died, and then nobody listens
/// any more; or it has the memory, and could not pass it (unix(7), ETOOMANYREFS).
fn ask(name: Name<'_>, number: u32, until: Instant) -> Result<Answer, NamedMemoryError> {
    let mut pause = Duration::ZERO;
    loop {
        match ask_once(name, number, until)? {
            Answer::HungUp if Instant::now() < until => {
                sleep(pause.min(until.saturating_duration_since(Instant::now())));
            }
            Answer::HungUp => return Ok(Answer::Silence),
            answer => return Ok(answer),
        }
        pause = ACCEPT_PAUSE;
    }
}

fn ask_once(name: Name<'_>, number: u32, until: Instant) -> Result<Answer, NamedMemoryError> {
    let holder = match socket::connect_to(&socket_name(name, &number.to_string())) {
        Ok(holder) => holder,
        Err(Errno::CONNREFUSED) => return Ok(Answer::Nobody),
        Err(Errno::AGAIN) => return Ok(Answer::Silence),
        Err(errno) => return Err(system("connect")(errno)),
    };
    let credentials = sys::peer_credentials(holder.as_fd()).map_err(system("SO_PEERCRED"))?;
    if !socket::same_user(credentials) {
        let uid = credentials.uid;
        return Err(NamedMemoryError::OtherUser { name: name.to_string(), uid });
    }
    wait_for_answer(&holder, until);
    match socket::receive(holder.as_fd()) {
        Received::Empty => Ok(Answer::Silence),
        Received::Closed => Ok(Answer::HungUp),
        // We lack a descriptor for it.
        Received::Message(packet) if packet.descriptors_lost && packet.descriptors.is_empty() => {
            Err(system("recvmsg")(Errno::MFILE))
        }
        Received::Message(mut packet) => {
            let memory = packet.descriptors.pop().filter(|_| packet.descriptors.is_empty());
            match memory {
                Some(memory) if packet.bytes == greeting(name) => Ok(Answer::Memory(memory)),
                _ => {
                    let what = "a process gives something else for it";
                    Err(NamedMemoryError::Kept { name: name.to_string(), what })
                }
            }
        }
    }
}

/// Waits until `holder` says something. We are in a thread of the application's, whose signals do not
/// end that (signal(7): poll is "never restarted").
fn wait_for_answer(holder: &Socket, until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(holder, PollFlags::IN)];
        if poll(&mut fds, Some(&left)) != Err(Errno::INTR) {
            return;
        }
    }
}

/// Gives the memory to whoever asks, until it is dropped.
pub(super) struct Holder {
    stop: Doorbell,
    thread: Option<JoinHandle<()>>,
    generation: u32,
}

impl Holder {
    /// Starts to hold.
    ///
    /// # Errors
    /// So many hold it that no further one would be found; no descriptor or thread is left.
    pub(super) fn start(name: Name<'_>, memory: OwnedFd) -> Result<Holder, NamedMemoryError> {
        let generation = fork_guard::generation();
        let stop = Doorbell::new().map_err(system("eventfd"))?;
        let listener = listen(name)?;
        let (bell, said) = (stop.clone(), greeting(name));
        let builder =
            Builder::new().name(format!("kestrel-{}", name.kind())).stack_size(STACK_BYTES);
        let serving = move || serve(&listener, &bell, memory.as_fd(), &said);
        let thread = threads::start(builder, serving).map_err(system("starting a thread"))?;
        Ok(Holder { stop, thread: Some(thread), generation })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if fork_guard::forked(self.generation) {
            // The thread is the parent's: it is not here, nor, maybe, its stack.
            return std::mem::forget(thread);
        }
        self.stop.ring();
        let _ = thread.join();
    }
}

fn listen(name: Name<'_>) -> Result<Socket, NamedMemoryError> {
    for number in 0..HOLDERS_MAX {
        match socket::listen_as(&socket_name(name, &number.to_string())) {
            Ok(listener) => return Ok(listener),
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(system("bind")(errno)),
        }
    }
    let what = "it is open 1024 times, and a further holder would not be found";
    Err(NamedMemoryError::Kept { name: name.to_string(), what })
}

fn serve(listener: &Socket, stop: &Doorbell, memory: BorrowedFd<'_>, greeting: &[u8]) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        if stop.drain() {
            return socket::close_listener(listener);
        }
        match socket::accept(listener.as_fd()) {
            Ok(asker) => {
                let known = sys::peer_credentials(asker.as_fd()).is_ok_and(socket::same_user);
                // Who is gone by now needs no answer.
                let _ = known.then(|| socket::send(asker.as_fd(), greeting, &[memory]));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => sleep(ACCEPT_PAUSE),
        }
    }
}

//! The control thread: one a provider, asleep unless a handshake, a hang-up or an order wakes it.
//!
//! - [`wire`]: what a handshake says; [`proof`]: that both sides have the same key;
//! - [`socket`]: how it is carried; [`error`]: why it came to nothing;
//! - [`thread`]: the loop, the orders, the connections that stand;
//! - [`connect`] and [`accept`]: the two sides of a handshake; [`offer`]: what each has to offer;
//! - [`nowhere`]: what is not looked for again at once;
//! - [`trouble`]: what the device says of itself;
//! - [`managed`]: the same through a connection manager (rdma_cm), and [`private`]: what is said then.

mod accept;
mod connect;
pub mod error;
mod line;
mod managed;
mod nowhere;
mod offer;
pub mod private;
pub mod proof;
pub mod socket;
mod thread;
mod trouble;
pub mod wire;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_queue::SegQueue;
use kestrel_core::{
    auth_key::{KeyNumber, Keyring, ProvedKeys},
    fork_guard, open_files, threads,
    transport::{Bell as _, EventBell, Service},
};

pub use self::{
    accept::WRITES_MAX as CREDIT_WRITES_MAX,
    connect::SENDS_MAX,
    managed::{LAST_WORD_MAX, listener_name},
    offer::path_end,
};
use crate::{
    manager::Manager,
    receipt::Receipt,
    station::StationShared,
    verbs::{Verbs, VerbsError},
};

/// The control thread blocks for a moment at most; if it has not answered by then it never will.
const UNREGISTER_WAIT: Duration = Duration::from_secs(10);

/// What a transport orders.
pub enum Command<V: Verbs> {
    Register(Box<StationRecord<V>>),
    /// From now on peers prove one of these keys, or the station's own.
    TakeKeys {
        station: u64,
        keys: Option<Keyring>,
    },
    /// Asks for a connection, proving the key of that number.
    Connect {
        station: u64,
        request: u32,
        to: SocketAddr,
        key: KeyNumber,
    },
    /// End a connection in order.
    HangUp {
        link: u64,
        receipt: Receipt,
    },
    /// End a connection through the connection manager in a moment, if no [`Command::HangUp`]
    /// comes before: the word that says how is on its way.
    HangUpSoon {
        link: u64,
    },
    /// A peer that nobody has heard of uses a queue pair: it must be one whose last word of the
    /// handshake is on its way, or was lost.
    Used {
        queue_pair: u32,
    },
    /// The queues of an endpoint have failed: it parts with its peers.
    GiveUp {
        station: u64,
        what: String,
    },
    /// As if TCP reached nobody any more: of tests.
    Mute,
    Unregister {
        station: u64,
        done: SyncSender<()>,
    },
    Stop,
}

/// The control thread's side of an endpoint.
pub struct StationRecord<V: Verbs> {
    pub id: u64,
    pub listener: socket::Listener,
    pub address: SocketAddr,
    pub incarnation: u64,
    pub keys: ProvedKeys,
    pub connect_timeout: Duration,
    /// How long a peer may take from our answer to its last word of the handshake.
    pub confirm_wait: Duration,
    /// How long its peers may be silent on TCP.
    pub silence_max: Duration,
    pub shared: Arc<StationShared<V>>,
    /// The queue pair of an endpoint of datagrams, by its number.
    pub datagrams: Option<u32>,
    /// Where the connection manager takes connections for it, if it does.
    pub managed: Option<Bound<V>>,
    /// Why it can have no connections any more.
    pub failed: Option<String>,
}

/// An id at a station's address.
pub struct Bound<V: Verbs> {
    pub manager: Arc<V::Manager>,
    pub id: ManagedIdOf<V>,
}

/// The ids of a connection manager.
pub type ManagedIdOf<V> = <<V as Verbs>::Manager as Manager<V>>::Id;

impl<V: Verbs> StationRecord<V> {
    fn service(&self) -> Service {
        if self.datagrams.is_some() { Service::Datagrams } else { Service::Reliable }
    }

    /// Whether it can have connections.
    fn check(&self) -> Result<(), VerbsError> {
        match &self.failed {
            None => Ok(()),
            Some(what) => {
                let (device, what) = (self.shared.device.name().into(), what.clone());
                Err(VerbsError::Gone { device, what })
            }
        }
    }
}

/// The way to the control thread, which ends with the last one who has it.
pub struct Control<V: Verbs> {
    orders: Arc<Orders<V>>,
    last_id: AtomicU64,
    thread: Option<JoinHandle<()>>,
    forks: u32,
}

/// Orders that the thread has not seen yet.
struct Orders<V: Verbs> {
    commands: SegQueue<Command<V>>,
    wake: EventBell,
}

impl<V: Verbs> Control<V> {
    /// Starts the thread.
    pub fn start() -> io::Result<Control<V>> {
        open_files::raise();
        let orders = Arc::new(Orders { commands: SegQueue::new(), wake: EventBell::new()? });
        let mut thread = thread::ControlThread::new(orders.clone())?;
        let builder = std::thread::Builder::new().name("kestrel-verbs".into());
        let thread = threads::start(builder, move || thread.run())?;
        let (last_id, forks) = (AtomicU64::new(0), fork_guard::generation());
        Ok(Control { orders, last_id, thread: Some(thread), forks })
    }

    /// Has an endpoint given up whose queues have failed. Cost: one load, where they have not.
    pub fn tell_failure(&self, station: u64, shared: &StationShared<V>) {
        if let Some(what) = shared.new_failure() {
            self.command(Command::GiveUp { station, what });
        }
    }

    /// Gives an order. Orders are carried out one after the other.
    pub fn command(&self, command: Command<V>) {
        self.orders.commands.push(command);
        self.orders.wake.ring();
    }

    /// A number for a new station.
    pub fn next_station(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Forgets a station, says goodbye on its connections and waits until that is done.
    pub fn unregister(&self, station: u64) {
        let (done, wait) = sync_channel(1);
        self.command(Command::Unregister { station, done });
        if wait.recv_timeout(UNREGISTER_WAIT).is_err() {
            tracing::error!("the control thread does not answer");
        }
    }
}

impl<V: Verbs> Drop for Control<V> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if fork_guard::forked(self.forks) {
            // There is no thread in the child to wait for, and the queue may be half-written.
            std::mem::forget((thread, self.orders.clone()));
            return;
        }
        self.command(Command::Stop);
        // It goes on after a bug of ours, having said so.
        let _ = thread.join();
    }
}

/// Random bytes, for nonces and numbers that nobody should guess.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("getrandom(2) fails: {errno}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Instant};

    use super::*;
    use crate::fake::FakeDevice;

    /// What the kernel says of the threads that make connections: the signals that each blocks.
    fn blocked() -> Vec<u64> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let mask = |task: io::Result<fs::DirEntry>| {
            let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let mask = || u64::from_str_radix(field("SigBlk:")?.trim(), 16).ok();
            if field("Name:")?.trim() == "kestrel-verbs" { mask() } else { None }
        };
        tasks.filter_map(mask).collect()
    }

    #[test]
    fn the_thread_runs_no_handler_of_the_application() {
        let control = Control::<FakeDevice>::start().unwrap();
        let start = Instant::now();
        // It gives itself its name.
        while blocked().is_empty() {
            assert!(start.elapsed() < Duration::from_secs(10), "no such thread");
        }
        let handled = [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD];
        for signal in handled {
            let bit = 1 << (signal - 1);
            assert!(blocked().iter().all(|mask| mask & bit != 0), "{signal}");
        }
        drop(control);
    }
}

//! The control thread: one a process, asleep unless a handshake, a death or an order wakes it.
//!
//! - [`wire`]: what a handshake says; [`socket`]: how it is carried, and by whom;
//! - [`thread`]: the loop, the orders, the deaths;
//! - [`handshake`]: what both sides of one share; [`connect`] and [`accept`]: the two sides;
//! - [`crowd`]: who keeps how many places on the accepting side.
//!
//! It runs from the first station's opening to the last one's closing, so that the library can be
//! unloaded after that.

mod accept;
mod connect;
mod crowd;
mod handshake;
pub(crate) mod shares;
pub mod socket;
mod thread;
pub mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, Keyring, ProvedKeys},
    fork_guard, open_files, threads,
    transport::Service,
};

use self::{shares::Shares, socket::Socket};
use crate::cma::NONCE_BYTES;
use crate::doorbell::Doorbell;
use crate::permit::Permit;
use crate::process::ProcessId;
use crate::region::PoolMemory;
use crate::station::{StationError, StationEvent, StationOptions, StationShared};
use crate::{barrier, cma};

/// How long a forked child waits for a lock that the fork may have frozen.
const FORKED_LOCK_WAIT: Duration = Duration::from_millis(500);
/// The control thread never blocks; if it has not answered by then it never will.
const UNREGISTER_WAIT: Duration = Duration::from_secs(10);
/// Each handshake is a few hundred bytes and a few frames; nothing recurses.
const STACK_BYTES: usize = 256 << 10;

/// What a station orders.
pub(crate) enum Command {
    Register(Box<StationRecord>),
    /// From now on peers prove one of these keys, or the station's own.
    TakeKeys {
        station: u64,
        keys: Option<Keyring>,
    },
    /// Asks for a lane, proving the key of that number.
    Connect {
        station: u64,
        request: u32,
        to: SocketAddr,
        key: KeyNumber,
    },
    /// Asks for `Settled`, after the lanes that peers believe to have.
    Settle {
        station: u64,
        request: u32,
    },
    Forget {
        station: u64,
        process: ProcessId,
        taken: u64,
    },
    Unregister {
        station: u64,
        done: SyncSender<()>,
    },
    Stop,
}

/// The control thread's side of a station.
pub(crate) struct StationRecord {
    pub id: u64,
    pub listener: Socket,
    /// Whether epoll is told of the listener: not while too many handshakes are under way.
    pub listening: bool,
    pub address: SocketAddr,
    pub incarnation: u64,
    pub keys: ProvedKeys,
    pub service: Service,
    pub admits: Option<fn(Address, Address) -> bool>,
    pub pool: PoolMemory,
    pub connect_timeout: Duration,
    pub cma: bool,
    pub shared: Arc<StationShared>,
    /// The processes that it has lanes with, and the number of the last event of each.
    pub interest: HashMap<ProcessId, u64>,
    pub last_event: u64,
    /// Handshakes of others with it that are under way.
    pub accepting: usize,
    /// How many lanes each process has to it.
    pub shares: Shares,
}

impl StationRecord {
    pub(crate) fn new(
        id: u64,
        listener: Socket,
        address: SocketAddr,
        incarnation: u64,
        shared: Arc<StationShared>,
        options: &StationOptions,
    ) -> StationRecord {
        StationRecord {
            id,
            listener,
            listening: false,
            address,
            incarnation,
            keys: ProvedKeys::new(&options.auth_key, options.keys_follow),
            service: options.service,
            admits: options.admits,
            pool: options.pool.clone(),
            connect_timeout: options.connect_timeout,
            cma: options.cma,
            shared,
            interest: HashMap::new(),
            last_event: 0,
            accepting: 0,
            shares: Shares::default(),
        }
    }

    pub(crate) fn push(&mut self, event: StationEvent) {
        self.last_event += 1;
        self.shared.push(self.last_event, event);
    }
}

/// The way to the control thread.
pub(crate) struct Control {
    generation: u32,
    commands: SegQueue<Command>,
    wake: Doorbell,
}

impl Control {
    /// Gives an order. Orders are carried out one after the other.
    pub(crate) fn command(&self, command: Command) {
        self.commands.push(command);
        self.wake.ring();
    }

    /// Ends a station; when this returns, no event of it comes any more.
    pub(crate) fn unregister(&self, station: u64) {
        let (done, finished) = sync_channel(1);
        self.command(Command::Unregister { station, done });
        if finished.recv_timeout(UNREGISTER_WAIT).is_err() {
            tracing::error!("the control thread does not answer");
        }
    }
}

/// The control thread of this process, while there is a station.
struct Running {
    control: Arc<Control>,
    thread: JoinHandle<()>,
    stations: usize,
    /// Whether peers were given leave to read this process's memory.
    is_readable: bool,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);
/// What a peer that can read our memory finds at its address. Kept when the last station is closed: a peer
/// that was stopped before it wrote to us may go on then, and begins with the nonce at that place.
static NONCE: Mutex<Option<Permit>> = Mutex::new(None);
static NEXT_STATION: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_station_id() -> u64 {
    NEXT_STATION.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn random_u64() -> Result<u64, StationError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), StationError> {
    // getrandom(2): up to 256 bytes "will always return as many bytes as requested".
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
        .map(drop)
        .map_err(|errno| StationError::system("getrandom", errno.into(), 0))
}

/// Where our nonce lies, and the nonce: those of this process as long as it lives. For the control thread,
/// which is one at a time.
fn own_nonce() -> Result<(u64, [u8; NONCE_BYTES]), StationError> {
    let mut known = NONCE.lock().unwrap_or_else(PoisonError::into_inner);
    let permit = match known.take().filter(|permit| !permit.is_forked()) {
        Some(permit) => permit,
        None => Permit::new().map_err(|error| StationError::system("mmap", error, 0))?,
    };
    let permit = known.insert(permit);
    Ok((permit.address(), permit.nonce()))
}

/// The lock, unless a fork froze it in the hand of a thread that is not here.
fn running() -> Result<MutexGuard<'static, Option<Running>>, StationError> {
    let deadline = Instant::now() + FORKED_LOCK_WAIT;
    loop {
        match RUNNING.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if !fork_guard::is_child() => {
                return Ok(RUNNING.lock().unwrap_or_else(PoisonError::into_inner));
            }
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(StationError::Forked);
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Counts one more station, and starts the thread for the first.
pub(crate) fn acquire(cma: bool) -> Result<Arc<Control>, StationError> {
    let mut running = running()?;
    if running.as_ref().is_some_and(|r| fork_guard::forked(r.control.generation)) {
        // The parent's: its thread is not here, and its memory may be half-written.
        std::mem::forget(running.take());
    }
    if running.is_none() {
        open_files::raise();
        barrier::register();
    }
    let present = match running.take() {
        Some(present) => present,
        None => start()?,
    };
    let present = running.insert(present);
    // The first station may be one that does without.
    if cma && !std::mem::replace(&mut present.is_readable, true) {
        cma::permit_peers();
    }
    present.stations += 1;
    Ok(present.control.clone())
}

fn start() -> Result<Running, StationError> {
    let control = Arc::new(Control {
        generation: fork_guard::generation(),
        commands: SegQueue::new(),
        wake: Doorbell::new().map_err(|e| StationError::system("eventfd", e, 3))?,
    });
    let builder =
        std::thread::Builder::new().name("kestrel-control".into()).stack_size(STACK_BYTES);
    let (ready, started) = sync_channel(1);
    let own = control.clone();
    let serve = move || match thread::ControlThread::new(own) {
        Ok(mut state) => {
            let _ = ready.send(Ok(()));
            state.run();
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    };
    let system = |error| StationError::system("starting the control thread", error, 0);
    let thread = threads::start(builder, serve).map_err(system)?;
    started.recv().map_err(|error| system(std::io::Error::other(error)))??;
    Ok(Running { control, thread, stations: 0, is_readable: false })
}

/// Counts one station less, and ends the thread with the last.
pub(crate) fn release(control: &Arc<Control>) {
    let Ok(mut running) = running() else { return };
    let Some(present) = running.as_mut().filter(|r| Arc::ptr_eq(&r.control, control)) else {
        return;
    };
    present.stations -= 1;
    if present.stations == 0 {
        control.command(Command::Stop);
        let finished = running.take().expect("it was there above");
        // Under the lock, so that a station that opens now waits for the old thread's end.
        let _ = finished.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::own_nonce;
    use crate::region::PAGE_BYTES;

    /// A writer that was stopped in front of the call may go on when all endpoints are closed.
    #[test]
    #[allow(unsafe_code)]
    fn the_nonce_of_a_process_stays_where_it_is() {
        let (address, nonce) = own_nonce().unwrap();
        assert_eq!(own_nonce().unwrap(), (address, nonce));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let page = address as usize & !(PAGE_BYTES - 1);
        // SAFETY: it replaces nothing, and nobody uses what comes there.
        let other =
            unsafe { libc::mmap(page as *mut _, PAGE_BYTES, libc::PROT_READ, flags, -1, 0) };
        assert_eq!(other, libc::MAP_FAILED, "it is a page that is taken");
    }
}

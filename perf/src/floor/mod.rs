//! The physical floor: what two cores can do with one shared page and no protocol.
//!
//! Every figure of kestrel is quoted beside the figure below, taken by the
//! same two processes on the same two cores, just before and just after: a
//! virtual machine's cores are near one minute and far the next.
//!
//! - [`Task::Bounce`]: one cache line handed back and forth.
//! - [`Task::Slots`]: a bare single-producer ring of 64-byte slots.
//! - [`Task::Copies`]: a pipelined copy through a ring of shared chunks, for
//!   each of a list of [`Plan`]s. The floor of a size and pattern is the best
//!   plan of the [`grid`].
//!
//! Each rank holds one half, a [`Floor`]. Both call [`Floor::run`] with the
//! same task; between tasks nothing runs, since the ranks sleep on their links.

mod copies;
pub mod grid;
mod lines;
pub mod region;

use crate::buffer::Buffer;
pub use grid::Plan;
use region::{Region, RegionToken};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The largest message of a copy task.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A side that hears nothing for this long gives up.
const STALL_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    #[error("cannot share memory for the floor: {0}")]
    Region(#[source] std::io::Error),
    #[error("the ranks are on two hosts, which share no memory")]
    OtherHost,
    #[error(
        "what the other rank shares has {bytes} bytes instead of {expected}: different versions?"
    )]
    NotTheRegion { bytes: u64, expected: u64 },
    #[error("the other side of the floor has not moved for {} s", STALL_MAX.as_secs())]
    Stalled,
    #[error("a floor message of {0} bytes is above {MESSAGE_BYTES_MAX}")]
    TooLarge(usize),
    #[error("a floor plan of {count} chunks of {bytes} bytes does not fit")]
    BadPlan { bytes: usize, count: usize },
    #[error(transparent)]
    Copy(#[from] kestrel_shm::copy::CopyError),
}

/// Whether messages follow each other or wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    Stream,
    PingPong,
}

impl Pattern {
    pub const fn name(self) -> &'static str {
        match self {
            Pattern::Stream => "streaming",
            Pattern::PingPong => "ping-pong",
        }
    }
}

/// What both sides do, in lockstep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Result: nanoseconds, one way.
    Bounce { iterations: u64 },
    /// Result: nanoseconds a message.
    Slots { messages: u64 },
    /// Result: nanoseconds a message, one way, for each plan.
    Copies { pattern: Pattern, size: usize, messages: u64, plans: Vec<Plan> },
}

/// One side's half of the floor.
pub struct Floor {
    region: Region,
    side: usize,
    phase: u64,
    source: Buffer,
    destination: Buffer,
}

impl Floor {
    /// The first side: creates the memory that the other joins by the token.
    pub fn create() -> Result<(Floor, RegionToken), FloorError> {
        let region = Region::create()?;
        let token = region.token();
        Ok((Floor::with(region, 0), token))
    }

    /// The second side.
    pub fn join(token: &RegionToken) -> Result<Floor, FloorError> {
        Ok(Floor::with(Region::join(token)?, 1))
    }

    fn with(region: Region, side: usize) -> Floor {
        Floor {
            region,
            side,
            phase: 0,
            source: Buffer::new(MESSAGE_BYTES_MAX),
            destination: Buffer::new(MESSAGE_BYTES_MAX),
        }
    }

    /// Runs a task together with the other side, which must run the same one.
    /// The figures are side 0's; side 1 returns as many, with no meaning.
    ///
    /// # Errors
    /// [`FloorError::Stalled`] if the other side does not come or stops.
    pub fn run(&mut self, task: &Task) -> Result<Vec<f64>, FloorError> {
        match task {
            Task::Bounce { iterations } => Ok(vec![self.bounce(*iterations)?]),
            Task::Slots { messages } => Ok(vec![self.slots(*messages)?]),
            Task::Copies { pattern, size, messages, plans } => {
                if *size > MESSAGE_BYTES_MAX {
                    return Err(FloorError::TooLarge(*size));
                }
                plans.iter().map(|plan| self.copies(*pattern, *size, *messages, plan)).collect()
            }
        }
    }

    /// Both sides leave together; what each wrote before is seen by the other after.
    fn meet(&mut self) -> Result<(), FloorError> {
        self.phase += 1;
        // M1: pairs with M2 of the other side.
        self.region.arrival(self.side).store(self.phase, Ordering::Release);
        let other = self.region.arrival(1 - self.side);
        // M2: pairs with M1 of the other side.
        spin_until(|| other.load(Ordering::Acquire) >= self.phase)
    }
}

/// Spins until `ready`, without `PAUSE` (which would blur the floor), and gives
/// the core away now and then in case both sides share one.
#[inline(always)]
fn spin_until(mut ready: impl FnMut() -> bool) -> Result<(), FloorError> {
    let mut since = None;
    loop {
        for _ in 0..50_000 {
            if ready() {
                return Ok(());
            }
        }
        wait_longer(&mut since)?;
    }
}

#[cold]
#[inline(never)]
fn wait_longer(since: &mut Option<Instant>) -> Result<(), FloorError> {
    std::thread::yield_now();
    if since.get_or_insert_with(Instant::now).elapsed() > STALL_MAX {
        return Err(FloorError::Stalled);
    }
    Ok(())
}

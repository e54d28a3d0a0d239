//! The workloads. Each file holds one: what every rank does, and how rank 0
//! turns it into rows, with the floor measured in between.

pub mod bandwidth;
pub mod floor;
pub mod latency;
pub mod matching;
pub mod one_sided;
pub mod pairs;
mod pump;
pub mod rate;
mod touch;

use crate::buffer::Buffer;
use crate::port::{Port, PortError, Verb};
use crate::statistics::Spread;
use pump::Pump;
use serde::{Deserialize, Serialize};

/// The largest message that `--size` may ask for.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// What the ranks do together. A warm-up is as many operations before, which do not count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    PingPong { size: usize, iterations: u64, warmup: u64, each_timed: bool, touch: bool },
    OneWay { size: usize, messages: u64, warmup: u64, window: u64, touch: bool },
    Matching(matching::Deep),
    AllToAll { size: usize, messages: u64, warmup: u64, window: u64 },
    Barrier { rounds: u64, warmup: u64 },
    OneSided { verb: Verb, size: usize, operations: u64, warmup: u64, window: u64 },
    NewRegions { verb: Verb, size: usize, operations: u64, warmup: u64 },
}

/// What rank 0 learns.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Nanoseconds an operation: a message one way, a match, a barrier.
    pub ns: f64,
    /// Percentiles, where each operation was timed.
    pub spread: Option<Spread>,
}

#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("nothing arrived for {seconds} s while {doing}")]
    Stalled { doing: &'static str, seconds: u64 },
    #[error("a completion came with context {context:#x}, which was never posted, while {doing}")]
    Stray { context: u64, doing: &'static str },
    #[error("a message of {size} bytes is not what was written before it was sent")]
    NotAsSent { size: usize },
}

/// One rank's means to take part.
pub struct Rank<'a, P: Port> {
    pub side: &'a mut P,
    pub rank: usize,
    /// The fabric addresses of the ranks that take part, by rank.
    pub peers: &'a [u64],
    pub outgoing: &'a mut Buffer,
    pub incoming: &'a mut Buffer,
}

/// Does this rank's share of the work.
pub fn run<P: Port>(work: &Work, rank: Rank<'_, P>) -> Result<Sample, MeasureError> {
    let size = match work {
        // Each message under way has a buffer of its own then.
        Work::OneWay { size, window, touch: true, .. } => *size * *window as usize,
        Work::PingPong { size, .. }
        | Work::OneWay { size, .. }
        | Work::AllToAll { size, .. }
        | Work::Matching(matching::Deep { size, .. }) => *size,
        // An atomic compares with what lies behind its operand.
        Work::OneSided { size, .. } | Work::NewRegions { size, .. } => *size * 2,
        Work::Barrier { .. } => 0,
    };
    let pump = &mut Pump::new(rank, size);
    let messages = matches!(work, Work::PingPong { .. } | Work::OneWay { .. });
    if messages {
        pump.register_buffers(size)?;
    }
    let sample = match *work {
        Work::PingPong { size, iterations, warmup, each_timed, touch } => {
            latency::ping_pong(pump, size, iterations, warmup, each_timed, touch)
        }
        Work::OneWay { size, messages, warmup, window, touch: false } => {
            rate::one_way(pump, size, messages, warmup, window)
        }
        Work::OneWay { size, messages, warmup, window, touch: true } => {
            touch::one_way(pump, size, messages, warmup, window)
        }
        Work::Matching(deep) => matching::matching(pump, deep),
        Work::AllToAll { size, messages, warmup, window } => {
            pairs::all_to_all(pump, size, messages, warmup, window)
        }
        Work::OneSided { verb, size, operations, warmup, window } => {
            one_sided::reach(pump, verb, size, operations, warmup, window)
        }
        Work::NewRegions { verb, size, operations, warmup } => {
            one_sided::reach_new(pump, verb, size, operations, warmup)
        }
        Work::Barrier { rounds, warmup } => pairs::barrier(pump, rounds, warmup),
    }?;
    pump.finish()?;
    if messages {
        pump.deregister_buffers()?;
    }
    Ok(sample)
}

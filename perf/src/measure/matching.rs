//! Deep queues, matched in the worst order, by class of mask.
//!
//! Real MPIs never post with mask 0 (`notes` of the design: MPICH masks its
//! protocol bits, Open MPI its synchronous-send bit), so a matcher must be
//! flat for masks too.

use super::pump::Pump;
use super::{MeasureError, Sample, Work};
use crate::port::Port;
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// How many messages, or receives, wait.
pub const DEPTHS: [u64; 5] = [64, 512, 4_096, 32_768, 131_072];
/// The deepest queue may cost so many times the shallowest, a message.
const GROWTH_MAX: f64 = 4.0;
/// Messages matched for one sample, whatever the depth.
pub const MESSAGES: u64 = 131_072;

/// Which queue grows deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Queue {
    /// Receives wait for messages, which come in reverse order.
    Posted,
    /// Messages wait for receives, which are posted in reverse order.
    Unexpected,
}

/// What the receives ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// The whole tag and the source.
    Exact,
    /// One protocol bit ignored on every receive, as the MPIs do.
    ProtocolBit,
    /// Any source.
    AnySource,
    /// Four different masks in turn.
    FourMasks,
}

impl Queue {
    const ALL: [Queue; 2] = [Queue::Posted, Queue::Unexpected];

    const fn name(self) -> &'static str {
        match self {
            Queue::Posted => "posted",
            Queue::Unexpected => "unexpected",
        }
    }
}

impl Class {
    const ALL: [Class; 4] = [Class::Exact, Class::ProtocolBit, Class::AnySource, Class::FourMasks];

    const fn name(self) -> &'static str {
        match self {
            Class::Exact => "mask 0",
            Class::ProtocolBit => "protocol bit",
            Class::AnySource => "any source",
            Class::FourMasks => "four masks",
        }
    }

    /// The ignore mask of receive number `index`.
    fn ignore(self, index: u64) -> u64 {
        match self {
            Class::Exact | Class::AnySource => 0,
            Class::ProtocolBit => 1 << 63,
            Class::FourMasks => [0, 1 << 63, 3 << 62, 7 << 61][(index % 4) as usize],
        }
    }

    fn source(self) -> Option<usize> {
        (self != Class::AnySource).then_some(1)
    }

    /// The protocol bits that message `index` carries, within its receive's mask.
    fn protocol_bits(self, index: u64) -> u64 {
        if index % 8 >= 4 { self.ignore(index) } else { 0 }
    }
}

/// Rounds in which so many messages meet as many receives.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Deep {
    pub depth: u64,
    pub rounds: u64,
    /// Rounds before, which do not count.
    pub warmup: u64,
    pub queue: Queue,
    pub class: Class,
}

/// Rank 0 receives, rank 1 sends. The sample is the time of the phase in
/// which messages meet receives.
pub fn matching<P: Port>(
    pump: &mut Pump<'_, P>,
    Deep { depth, rounds, warmup, queue, class }: Deep,
) -> Result<Sample, MeasureError> {
    pump.doing("matching deep queues");
    let mut elapsed_ns = 0.0;
    for round in 0..warmup + rounds {
        let round_ns = match (pump.rank(), queue) {
            (0, Queue::Posted) => receive_posted(pump, depth, class)?,
            (0, Queue::Unexpected) => receive_unexpected(pump, depth, class)?,
            (_, Queue::Posted) => send_all(pump, (0..depth).rev(), class)?,
            (_, Queue::Unexpected) => send_all(pump, 0..depth, class)?,
        };
        if round >= warmup {
            elapsed_ns += round_ns;
        }
    }
    Ok(Sample { ns: elapsed_ns / (rounds * depth) as f64, spread: None })
}

fn receive_posted<P: Port>(
    pump: &mut Pump<'_, P>,
    depth: u64,
    class: Class,
) -> Result<f64, MeasureError> {
    let target = pump.received + depth;
    for index in 0..depth {
        pump.receive(class.source(), 8, tag(index), class.ignore(index))?;
    }
    pump.signal(1)?;
    let start = Instant::now();
    pump.await_received(target)?;
    let elapsed = start.elapsed();
    pump.await_signal(1)?;
    Ok(elapsed.as_nanos() as f64)
}

fn receive_unexpected<P: Port>(
    pump: &mut Pump<'_, P>,
    depth: u64,
    class: Class,
) -> Result<f64, MeasureError> {
    let target = pump.received + depth;
    pump.signal(1)?;
    // Messages keep their order, so the signal comes behind all of them.
    pump.await_signal(1)?;
    let start = Instant::now();
    for index in (0..depth).rev() {
        pump.receive(class.source(), 8, tag(index), class.ignore(index))?;
        if index % 16 == 0 {
            pump.poll()?;
        }
    }
    pump.await_received(target)?;
    Ok(start.elapsed().as_nanos() as f64)
}

fn send_all<P: Port>(
    pump: &mut Pump<'_, P>,
    indices: impl Iterator<Item = u64>,
    class: Class,
) -> Result<f64, MeasureError> {
    pump.await_signal(0)?;
    for index in indices {
        pump.send(0, 8, tag(index) | class.protocol_bits(index))?;
    }
    pump.signal(0)?;
    Ok(0.0)
}

/// Distinct, and apart from the tags of the other workloads.
fn tag(index: u64) -> u64 {
    (1 << 40) | index
}

/// Rank 0: one row for each queue, class and depth.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let mut section =
        Section::new("matching", "Tag matching: deep queues in the worst order, a message");
    let depths = session.options.depths(&DEPTHS);
    session.bar.begin("matching", (depths.len() * Queue::ALL.len() * Class::ALL.len()) as u64);
    for queue in Queue::ALL {
        for class in Class::ALL {
            let mut shallowest = None;
            for &depth in &depths {
                let rounds = (session.options.iterations(MESSAGES) / depth).clamp(1, 256);
                let warmup = session.options.warmup(0).div_ceil(depth);
                let work = Work::Matching(Deep { depth, rounds, warmup, queue, class });
                let samples = session.several(3, &work)?;
                let ns = median(&samples);
                let (first_depth, first) = *shallowest.get_or_insert((depth, ns));
                section.rows.push(Row {
                    depth: Some(depth),
                    ns: Some(ns),
                    messages_per_s: Some(1e9 / ns),
                    note: if depth == first_depth {
                        String::new()
                    } else {
                        format!("{:.2} × {first_depth} deep", ns / first)
                    },
                    ..Row::new(
                        &format!("{}, {}", queue.name(), class.name()),
                        &format!("{depth} deep"),
                    )
                });
                if depth == *depths.last().unwrap_or(&0) && depth != first_depth {
                    let what = format!(
                        "{}, {}: {depth} deep, of {first_depth} deep",
                        queue.name(),
                        class.name()
                    );
                    section.aims.push(Aim::at_most(&what, ns / first, GROWTH_MAX));
                }
                session.bar.advance(1);
            }
        }
    }
    Ok(section)
}

//! Deep queues, matched in the worst order, by class of mask.
//!
//! Real MPIs never post with mask 0 (`notes` of the design: MPICH masks its
//! protocol bits, Open MPI its synchronous-send bit), so a matcher must be
//! flat for masks too.

use super::pump::Pump;
use super::{MeasureError, Sample, Work};
use crate::clock::Reminder;
use crate::port::Port;
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use crate::units;
use kestrel_core::config::Config;
use kestrel_core::wire::ENVELOPE_COST;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// How many messages, or receives, wait.
pub const DEPTHS: [u64; 5] = [64, 512, 4_096, 32_768, 131_072];
/// The deepest queue may cost so many times the shallowest, a message.
const GROWTH_MAX: f64 = 4.0;
/// Messages matched for one sample, whatever the depth.
pub const MESSAGES: u64 = 131_072;
const SIZE: usize = 8;
/// What they have together at most, unless more is asked for.
const BYTES: u64 = 1 << 30;
/// What a round has at most, which an emulated device has to move before rank 0 loses patience.
const BYTES_MAX: u64 = 8 << 30;

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
    /// Of a message.
    pub size: usize,
    pub depth: u64,
    pub rounds: u64,
    /// Rounds before, which do not count.
    pub warmup: u64,
    pub queue: Queue,
    pub class: Class,
}

/// Rank 0 receives, rank 1 sends. The sample is the time of the phase in
/// which messages meet receives.
pub fn matching<P: Port>(pump: &mut Pump<'_, P>, deep: Deep) -> Result<Sample, MeasureError> {
    pump.doing("matching deep queues");
    let Deep { depth, rounds, warmup, .. } = deep;
    let mut elapsed_ns = 0.0;
    for round in 0..warmup + rounds {
        let round_ns = match (pump.rank(), deep.queue) {
            (0, Queue::Posted) => receive_posted(pump, deep)?,
            (0, Queue::Unexpected) => receive_unexpected(pump, deep)?,
            (_, Queue::Posted) => send_all(pump, (0..depth).rev(), deep)?,
            (_, Queue::Unexpected) => send_all(pump, 0..depth, deep)?,
        };
        if round >= warmup {
            elapsed_ns += round_ns;
        }
    }
    Ok(Sample { ns: elapsed_ns / (rounds * depth) as f64, spread: None })
}

fn receive_posted<P: Port>(
    pump: &mut Pump<'_, P>,
    Deep { size, depth, class, .. }: Deep,
) -> Result<f64, MeasureError> {
    let target = pump.received + depth;
    for index in 0..depth {
        pump.receive(class.source(), size, tag(index), class.ignore(index))?;
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
    Deep { size, depth, class, .. }: Deep,
) -> Result<f64, MeasureError> {
    let target = pump.received + depth;
    pump.signal(1)?;
    // Messages keep their order, so the signal comes behind all of them.
    pump.await_signal(1)?;
    let start = Instant::now();
    for index in (0..depth).rev() {
        pump.receive(class.source(), size, tag(index), class.ignore(index))?;
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
    Deep { size, class, .. }: Deep,
) -> Result<f64, MeasureError> {
    pump.await_signal(0)?;
    let mut reminder = Reminder::new();
    for index in indices {
        pump.send(0, size, tag(index) | class.protocol_bits(index))?;
        if reminder.is_due() {
            pump.look()?;
        }
    }
    pump.signal(0)?;
    Ok(0.0)
}

/// Distinct, and apart from the tags of the other workloads.
fn tag(index: u64) -> u64 {
    (1 << 40) | index
}

/// Why a queue cannot be made so deep.
pub fn refusal(config: &Config, queue: Queue, size: usize, depth: u64) -> Option<&'static str> {
    let bytes = size as u64 * depth;
    if bytes > BYTES_MAX {
        return Some("left out: a round of it would move more than 8 GiB");
    }
    if queue == Queue::Posted {
        return None;
    }
    if bytes + depth * ENVELOPE_COST > config.unexpected_budget_bytes as u64 {
        return Some("left out: longer than FI_KESTREL_UNEXPECTED_BUDGET holds");
    }
    // What is not injected is outstanding until a receive is posted, which comes after all of them.
    let outstanding = size > config.inject_size && depth > config.tx_size as u64 / 2;
    outstanding.then_some("left out: more than FI_KESTREL_TX_SIZE lets a sender have outstanding")
}

/// Rank 0: one row for each size, queue, class and depth.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let title = "Tag matching: deep queues in the worst order, a message";
    let mut section = Section::new("matching", title);
    let (sizes, depths) = (session.options.sizes(&[SIZE]), session.options.depths(&DEPTHS));
    let lines = sizes.len() * Queue::ALL.len() * Class::ALL.len();
    session.bar.begin("matching", (lines * depths.len()) as u64);
    for &size in &sizes {
        for queue in Queue::ALL {
            for class in Class::ALL {
                by_depth(session, &mut section, (size, queue, class), &depths)?;
            }
        }
    }
    Ok(section)
}

fn by_depth(
    session: &mut Session,
    section: &mut Section,
    (size, queue, class): (usize, Queue, Class),
    depths: &[u64],
) -> Result<(), SessionError> {
    let config = session.options.fabric.config()?;
    let mut name = format!("{}, {}", queue.name(), class.name());
    if size != SIZE {
        name += &format!(", {}", units::bytes(size as u64));
    }
    let mut shallowest = None;
    for &depth in depths {
        let mut row = Row {
            size: Some(size as u64),
            depth: Some(depth),
            ..Row::new(&name, &format!("{depth} deep"))
        };
        if let Some(why) = refusal(&config, queue, size, depth) {
            row.note = why.to_owned();
            section.rows.push(row);
            session.bar.advance(1);
            continue;
        }
        let messages = session.options.iterations(MESSAGES.min(BYTES / (size as u64 + 64)));
        let rounds = (messages / depth).clamp(1, 256);
        let warmup = session.options.warmup(0).div_ceil(depth);
        let work = Work::Matching(Deep { size, depth, rounds, warmup, queue, class });
        let ns = median(&session.several(3, &work)?);
        let (first_depth, first) = *shallowest.get_or_insert((depth, ns));
        (row.ns, row.messages_per_s) = (Some(ns), Some(1e9 / ns));
        if depth != first_depth {
            row.note = format!("{:.2} × {first_depth} deep", ns / first);
        }
        section.rows.push(row);
        // The aim is set for messages of the usual size.
        if depth == *depths.last().unwrap_or(&0) && depth != first_depth && size == SIZE {
            let what = format!("{name}: {depth} deep, of {first_depth} deep");
            section.aims.push(Aim::at_most(&what, ns / first, GROWTH_MAX));
        }
        session.bar.advance(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_cannot_be_made_are_left_out_with_the_reason() {
        let config = Config::default();
        let refused = |queue, size, depth| refusal(&config, queue, size, depth).unwrap_or_default();
        for depth in DEPTHS {
            assert_eq!(refused(Queue::Posted, SIZE, depth), "");
            assert_eq!(refused(Queue::Unexpected, SIZE, depth), "");
        }
        assert_eq!(refused(Queue::Posted, 64 << 10, 4_096), "");
        assert_eq!(refused(Queue::Unexpected, 64 << 10, 512), "");
        assert!(refused(Queue::Posted, 1 << 30, 64).contains("8 GiB"));
        assert!(refused(Queue::Unexpected, 1024, 131_072).contains("UNEXPECTED_BUDGET"));
        // A message takes more than its bytes.
        assert!(refused(Queue::Unexpected, SIZE, 1 << 20).contains("UNEXPECTED_BUDGET"));
        assert!(refused(Queue::Unexpected, 32 << 10, 1_024).contains("TX_SIZE"));
    }
}

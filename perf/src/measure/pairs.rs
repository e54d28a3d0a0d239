//! Many processes on few cores: all-to-all messages and a barrier loop.

use super::pump::Pump;
use super::{MeasureError, Sample, Work};
use crate::port::Port;
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use crate::units;
use std::time::Instant;

const TAG: u64 = 0x33;
const WINDOW: u64 = 64;
const ROUNDS: usize = 3;

/// Every rank sends `messages` to every other, in turn, at most `window` per
/// peer beyond what it has received. Nanoseconds a message of this rank.
pub fn all_to_all<P: Port>(
    pump: &mut Pump<'_, P>,
    messages: u64,
    warmup: u64,
    window: u64,
) -> Result<Sample, MeasureError> {
    pump.doing("all-to-all messages");
    exchange(pump, warmup, window)?;
    let elapsed_ns = exchange(pump, messages, window)?;
    let total = messages * (pump.ranks() as u64 - 1);
    Ok(Sample { ns: elapsed_ns / total as f64, spread: None })
}

/// Nanoseconds of all messages of this rank.
fn exchange<P: Port>(
    pump: &mut Pump<'_, P>,
    messages: u64,
    window: u64,
) -> Result<f64, MeasureError> {
    let others: Vec<usize> = (0..pump.ranks()).filter(|rank| *rank != pump.rank()).collect();
    let total = messages * others.len() as u64;
    let ahead = window.min(messages) * others.len() as u64;
    // Before the barrier: messages of ranks that left it sooner come within it.
    let before = pump.received;
    for _ in 0..ahead {
        pump.receive(None, 8, TAG, 0)?;
    }
    pump.barrier()?;
    let start = Instant::now();
    let (mut posted, mut sent) = (ahead, 0);
    while sent < total || pump.received - before < total {
        // A burst to each peer, then a look at what came.
        if sent < total && sent <= pump.received - before + ahead {
            for &to in &others {
                for _ in 0..burst(messages, window, sent, others.len()) {
                    pump.send(to, 8, TAG)?;
                }
            }
            sent += burst(messages, window, sent, others.len()) * others.len() as u64;
        }
        pump.poll()?;
        while posted < total && posted - (pump.received - before) < ahead {
            pump.receive(None, 8, TAG, 0)?;
            posted += 1;
        }
    }
    let elapsed_ns = start.elapsed().as_nanos() as f64;
    pump.barrier()?;
    Ok(elapsed_ns)
}

/// Messages to each peer in the next burst.
fn burst(messages: u64, window: u64, sent: u64, others: usize) -> u64 {
    (window / 4).max(1).min(messages - sent / others as u64)
}

/// Rounds of a barrier over all ranks. Nanoseconds a barrier.
pub fn barrier<P: Port>(
    pump: &mut Pump<'_, P>,
    rounds: u64,
    warmup: u64,
) -> Result<Sample, MeasureError> {
    pump.doing("a barrier");
    for _ in 0..warmup {
        pump.barrier()?;
    }
    let start = Instant::now();
    for _ in 0..rounds {
        pump.barrier()?;
    }
    Ok(Sample { ns: start.elapsed().as_nanos() as f64 / rounds as f64, spread: None })
}

/// Rank 0: `n` processes against two.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let ranks = session.ranks();
    let mut section =
        Section::new("pairs", "Many processes: all-to-all of 8 bytes, and a barrier loop");
    let window = session.options.window(WINDOW);
    let counts: Vec<usize> = if ranks > 2 { vec![2, ranks] } else { vec![2] };
    session.bar.begin("pairs", counts.len() as u64 * 2);
    let (mut rates, mut barriers) = (Vec::new(), Vec::new());
    for &count in &counts {
        session.open(count)?;
        let messages =
            session.options.iterations(200_000 / (count as u64 * (count as u64 - 1) / 2));
        let warmup = session.options.warmup(0);
        let work = Work::AllToAll { messages, warmup, window };
        let all = (count * (count - 1)) as f64 * messages as f64;
        let samples = (0..ROUNDS).map(|_| {
            // The slowest rank's time is the time of them all.
            let slowest = session.work_slowest(&work)?;
            Ok(all / (slowest * messages as f64 * (count as f64 - 1.0)) * 1e9)
        });
        rates.push(median(&samples.collect::<Result<Vec<_>, SessionError>>()?));
        session.bar.advance(1);
        let rounds = session.options.iterations(if count > 2 { 200 } else { 5_000 });
        let warmup = session.options.warmup(rounds / 10 + 1);
        let work = Work::Barrier { rounds, warmup };
        let samples = (0..ROUNDS).map(|_| session.work_slowest(&work));
        barriers.push(median(&samples.collect::<Result<Vec<_>, SessionError>>()?));
        session.bar.advance(1);
    }
    // Everything else is measured between two.
    session.open(2)?;
    for (i, &count) in counts.iter().enumerate() {
        section.rows.push(Row {
            ranks: Some(count as u64),
            ns: Some(1e9 / rates[i]),
            messages_per_s: Some(rates[i]),
            note: if i > 0 {
                format!("{:.2} × two processes", rates[i] / rates[0])
            } else {
                format!("window {window}")
            },
            ..Row::new("all-to-all", &format!("{count} processes"))
        });
    }
    for (i, &count) in counts.iter().enumerate() {
        section.rows.push(Row {
            ranks: Some(count as u64),
            ns: Some(barriers[i]),
            note: if i > 0 {
                format!("{:.2} × two processes", barriers[i] / barriers[0])
            } else {
                String::new()
            },
            ..Row::new(
                "barrier",
                &format!("{count} processes ({})", units::nanoseconds(barriers[i])),
            )
        });
    }
    add_aims(&mut section, &counts, &rates, &barriers);
    Ok(section)
}

fn add_aims(section: &mut Section, counts: &[usize], rates: &[f64], barriers: &[f64]) {
    let &[_, many] = counts else { return };
    section.aims.push(Aim::at_least(
        &format!("{many} processes' rate, of two processes'"),
        rates[1] / rates[0],
        0.5,
    ));
    section.aims.push(Aim::at_most(
        &format!("{many}-rank barrier, of the 2-rank one"),
        barriers[1] / barriers[0],
        10.0,
    ));
}

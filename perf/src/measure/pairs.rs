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
const SIZE: usize = 8;
/// What all pairs send each other in a round at most, unless that is asked for.
const BYTES: u64 = 1 << 30;

/// Every rank sends `messages` to every other, in turn, at most `window` per
/// peer beyond what it has received. Nanoseconds a message of this rank.
pub fn all_to_all<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    messages: u64,
    warmup: u64,
    window: u64,
) -> Result<Sample, MeasureError> {
    pump.doing("all-to-all messages");
    exchange(pump, size, warmup, window)?;
    let elapsed_ns = exchange(pump, size, messages, window)?;
    let total = messages * (pump.ranks() as u64 - 1);
    Ok(Sample { ns: elapsed_ns / total as f64, spread: None })
}

/// Nanoseconds of all messages of this rank.
fn exchange<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    messages: u64,
    window: u64,
) -> Result<f64, MeasureError> {
    let others: Vec<usize> = (0..pump.ranks()).filter(|rank| *rank != pump.rank()).collect();
    let total = messages * others.len() as u64;
    let ahead = window.min(messages) * others.len() as u64;
    // Before the barrier: messages of ranks that left it sooner come within it.
    let before = pump.received;
    for _ in 0..ahead {
        pump.receive(None, size, TAG, 0)?;
    }
    pump.barrier()?;
    let start = Instant::now();
    let (mut posted, mut sent) = (ahead, 0);
    while sent < total || pump.received - before < total {
        // A burst to each peer, then a look at what came.
        if sent < total && sent <= pump.received - before + ahead {
            for &to in &others {
                for _ in 0..burst(messages, window, sent, others.len()) {
                    pump.send(to, size, TAG)?;
                }
            }
            sent += burst(messages, window, sent, others.len()) * others.len() as u64;
        }
        pump.poll()?;
        while posted < total && posted - (pump.received - before) < ahead {
            pump.receive(None, size, TAG, 0)?;
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

/// What was measured with so many processes.
struct Figures {
    count: usize,
    /// Messages a second of all of them, by size.
    rates: Vec<f64>,
    barrier_ns: f64,
}

/// Rank 0: `n` processes against two.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let ranks = session.ranks();
    let mut section = Section::new("pairs", "Many processes: all-to-all, and a barrier loop");
    let sizes = session.options.sizes(&[SIZE]);
    let counts: Vec<usize> = if ranks > 2 { vec![2, ranks] } else { vec![2] };
    session.bar.begin("pairs", (counts.len() * (sizes.len() + 1)) as u64);
    let found = counts.iter().map(|&count| measure(session, count, &sizes));
    let found = found.collect::<Result<Vec<_>, _>>()?;
    // Everything else is measured between two.
    session.open(2)?;
    for (index, &size) in sizes.iter().enumerate() {
        section.rows.extend(rates(&found, index, size, session.options.window(WINDOW)));
    }
    section.rows.extend(barriers(&found));
    add_aims(&mut section, &found, &sizes);
    Ok(section)
}

fn measure(session: &mut Session, count: usize, sizes: &[usize]) -> Result<Figures, SessionError> {
    session.open(count)?;
    let (window, mut rates) = (session.options.window(WINDOW), Vec::new());
    for &size in sizes {
        let pairs = count as u64 * (count as u64 - 1) / 2;
        let usual = 200_000.min(BYTES / (size as u64 + 64)) / pairs;
        let messages = session.options.iterations(usual.max(1));
        let warmup = session.options.warmup(0);
        let work = Work::AllToAll { size, messages, warmup, window };
        // The slowest rank's time is the time of them all.
        let slowest = session.several_slowest(ROUNDS, &work)?;
        let rate_of = |ns: &f64| count as f64 / ns * 1e9;
        rates.push(median(&slowest.iter().map(rate_of).collect::<Vec<_>>()));
        session.bar.advance(1);
    }
    let rounds = session.options.iterations(if count > 2 { 200 } else { 5_000 });
    let work = Work::Barrier { rounds, warmup: session.options.warmup(rounds / 10 + 1) };
    let barrier_ns = median(&session.several_slowest(ROUNDS, &work)?);
    session.bar.advance(1);
    Ok(Figures { count, rates, barrier_ns })
}

fn rates(found: &[Figures], index: usize, size: usize, window: u64) -> impl Iterator<Item = Row> {
    let two = found[0].rates[index];
    found.iter().map(move |&Figures { count, ref rates, .. }| Row {
        size: Some(size as u64),
        ranks: Some(count as u64),
        ns: Some(1e9 / rates[index]),
        messages_per_s: Some(rates[index]),
        gb_per_s: (size >= 1024).then(|| size as f64 * rates[index] / 1e9),
        note: if count > 2 {
            format!("{:.2} × two processes", rates[index] / two)
        } else {
            format!("window {window}")
        },
        ..Row::new(&format!("all-to-all, {count} processes"), &units::bytes(size as u64))
    })
}

fn barriers(found: &[Figures]) -> impl Iterator<Item = Row> {
    let two = found[0].barrier_ns;
    found.iter().map(move |&Figures { count, barrier_ns, .. }| Row {
        ranks: Some(count as u64),
        ns: Some(barrier_ns),
        note: if count > 2 {
            format!("{:.2} × two processes", barrier_ns / two)
        } else {
            String::new()
        },
        ..Row::new("barrier", &format!("{count} processes ({})", units::nanoseconds(barrier_ns)))
    })
}

/// They are set for messages of the usual size.
fn add_aims(section: &mut Section, found: &[Figures], sizes: &[usize]) {
    let [two, all] = found else { return };
    let many = all.count;
    if let Some(index) = sizes.iter().position(|size| *size == SIZE) {
        section.aims.push(Aim::at_least(
            &format!("{many} processes' rate, of two processes'"),
            all.rates[index] / two.rates[index],
            0.5,
        ));
    }
    section.aims.push(Aim::at_most(
        &format!("{many}-rank barrier, of the 2-rank one"),
        all.barrier_ns / two.barrier_ns,
        10.0,
    ));
}

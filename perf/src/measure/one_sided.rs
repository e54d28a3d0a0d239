//! One-sided operations: rank 0 works on rank 1's memory, rank 1 only polls.

use super::bandwidth::{best_plan, floor_task};
use super::pump::Pump;
use super::{MeasureError, Sample, Work};
use crate::clock;
use crate::floor::{Pattern, Task};
use crate::port::{Grant, Port, Verb};
use crate::report::{Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::{self, Spread, median};
use crate::units;
use std::time::{Duration, Instant};

const SAMPLES: usize = 9;
/// What one sample takes at most, roughly, where a single operation does not take longer.
const SAMPLE_NS_MAX: f64 = 1e8;
/// Operations of a sample that says how many a sample can have.
const OPERATIONS_FIRST: u64 = 4;
const BOUNCES: u64 = 3_000;
const WINDOW: u64 = 16;
/// How long the owner of a new region computes before it polls.
const COMPUTES: Duration = Duration::from_micros(100);
/// Operations of a sample with such regions.
const NEW_REGIONS: u64 = 50;
/// Bytes of a 64-bit atomic.
const WORD: usize = 8;

/// One operation on rank 1's memory.
#[derive(Clone, Copy)]
struct Reach {
    verb: Verb,
    grant: Grant,
    size: usize,
}

/// Both ranks: rank 0 has up to `window` operations under way.
pub fn reach<P: Port>(
    pump: &mut Pump<'_, P>,
    verb: Verb,
    size: usize,
    operations: u64,
    warmup: u64,
    window: u64,
) -> Result<Sample, MeasureError> {
    pump.doing("one-sided operations");
    let start = Instant::now();
    if pump.rank() > 0 {
        pump.serve(size)?;
        let ns = start.elapsed().as_nanos() as f64 / operations as f64;
        return Ok(Sample { ns, spread: None });
    }
    let grant = pump.await_grant(1)?;
    let reach = Reach { verb, grant, size };
    let own = pump.register_own(verb, size)?;
    run(pump, reach, warmup, window, |_| {})?;
    let mut histogram = statistics::histogram();
    let start = Instant::now();
    // Single operations are timed where only one is under way.
    run(pump, reach, operations, window, |ticks| histogram.saturating_record(ticks))?;
    let ns = start.elapsed().as_nanos() as f64 / operations as f64;
    pump.hide(own)?;
    pump.signal(1)?;
    let spread = (window == 1).then(|| Spread::of(&histogram, clock::ns_per_tick()));
    Ok(Sample { ns, spread })
}

fn run<P: Port>(
    pump: &mut Pump<'_, P>,
    reach: Reach,
    operations: u64,
    window: u64,
    mut timed: impl FnMut(u64),
) -> Result<(), MeasureError> {
    for _ in 0..operations {
        let began = if window == 1 { clock::ticks() } else { 0 };
        pump.reach(reach.verb, reach.grant, 1, reach.size)?;
        while pump.sends_posted - pump.sent >= window {
            pump.poll()?;
        }
        if window == 1 {
            timed(clock::ticks() - began);
        }
    }
    pump.await_sent()
}

/// Both ranks: rank 1 registers its memory anew for each operation, and computes. What counts is the time
/// from when rank 0 knows of the region until the operation is complete.
pub fn reach_new<P: Port>(
    pump: &mut Pump<'_, P>,
    verb: Verb,
    size: usize,
    operations: u64,
    warmup: u64,
) -> Result<Sample, MeasureError> {
    pump.doing("one-sided operations on new regions");
    let start = Instant::now();
    if pump.rank() > 0 {
        for _ in 0..warmup + operations {
            pump.serve_behind(size, COMPUTES)?;
        }
        let ns = start.elapsed().as_nanos() as f64 / operations as f64;
        return Ok(Sample { ns, spread: None });
    }
    let own = pump.register_own(verb, size)?;
    let mut histogram = statistics::histogram();
    for operation in 0..warmup + operations {
        let grant = pump.await_grant(1)?;
        run(pump, Reach { verb, grant, size }, 1, 1, |ticks| {
            if operation >= warmup {
                histogram.saturating_record(ticks);
            }
        })?;
        pump.signal(1)?;
    }
    pump.hide(own)?;
    let spread = Spread::of(&histogram, clock::ns_per_tick());
    Ok(Sample { ns: spread.p50_ns, spread: Some(spread) })
}

/// So many operations, with the warm-up that fits them if nobody says.
pub fn work(session: &Session, verb: Verb, size: usize, operations: u64, window: u64) -> Work {
    let warmup = session.options.warmup(operations / 10 + window.min(operations));
    Work::OneSided { verb, size, operations, warmup, window }
}

/// Rank 0: writes and reads, one at a time and many at a time.
pub fn rma(session: &mut Session) -> Result<Section, SessionError> {
    let title = "RMA: a write until it is acknowledged, a read until the data is here";
    let mut section = Section::new("rma", title);
    let latencies = session.options.sizes_with_bytes(&[8, 64, 256, 1024, 4096, 65536, 1 << 20]);
    let streams =
        session.options.sizes_with_bytes(&[8, 1024, 4096, 16384, 65536, 262_144, 1 << 20, 4 << 20]);
    let new = session.options.sizes_with_bytes(&[4096, 65536, 1 << 20]);
    session.bar.begin("rma", 2 * (latencies.len() + streams.len() + new.len()) as u64);
    for verb in [Verb::Write, Verb::Read] {
        for &size in &latencies {
            let row = latency(session, verb, size)?;
            section.rows.push(row);
            session.bar.advance(1);
        }
    }
    for verb in [Verb::Write, Verb::Read] {
        for &size in &streams {
            let row = stream(session, verb, size)?;
            section.rows.push(row);
            session.bar.advance(1);
        }
    }
    for verb in [Verb::Write, Verb::Read] {
        for &size in &new {
            let row = new_regions(session, verb, size)?;
            section.rows.push(row);
            session.bar.advance(1);
        }
    }
    Ok(section)
}

/// Rank 0: 64-bit atomics, one at a time and many at a time.
pub fn atomics(session: &mut Session) -> Result<Section, SessionError> {
    let mut section = Section::new("atomics", "Atomics: 64 bits, until the old value is here");
    session.bar.begin("atomics", 4);
    for verb in [Verb::FetchAdd, Verb::CompareSwap] {
        let row = latency(session, verb, WORD)?;
        section.rows.push(row);
        let row = stream(session, verb, WORD)?;
        section.rows.push(row);
        session.bar.advance(2);
    }
    Ok(section)
}

/// Operations of a sample: as many as take a few milliseconds by memory, fewer of a slow device.
fn affordable(
    session: &mut Session,
    verb: Verb,
    size: usize,
    window: u64,
    most: u64,
) -> Result<u64, SessionError> {
    let first = work(session, verb, size, OPERATIONS_FIRST, window);
    let ns = session.work(&first)?.ns.max(1.0);
    Ok(session.options.iterations(((SAMPLE_NS_MAX / ns) as u64).clamp(OPERATIONS_FIRST, most)))
}

/// Operations that take a few milliseconds at this size.
pub fn operations_for(size: usize) -> u64 {
    ((64 << 20) / size.max(1) as u64).clamp(20, 5_000)
}

/// One operation at a time, beside two bounces: there and back.
fn latency(session: &mut Session, verb: Verb, size: usize) -> Result<Row, SessionError> {
    let operations = affordable(session, verb, size, 1, operations_for(size))?;
    let work = work(session, verb, size, operations, 1);
    let (mut ours, mut floors, mut spread) = (Vec::new(), Vec::new(), None);
    let began = Instant::now();
    for _ in 0..SAMPLES {
        let bounce = session.floor(&Task::Bounce { iterations: BOUNCES })?[0];
        let sample = session.work(&work)?;
        ours.push(sample.ns);
        floors.push(2.0 * bounce);
        spread = sample.spread;
        if session.is_enough(ours.len(), began) {
            break;
        }
    }
    let (ns, floor) = (median(&ours), median(&floors));
    let small = size <= 64 && session.has_floor();
    Ok(Row {
        size: Some(size as u64),
        ns: Some(ns),
        spread,
        floor: small.then_some(floor),
        ratio: small.then_some(ns / floor),
        note: if small { "floor: two bounces".to_owned() } else { String::new() },
        ..Row::new(&format!("{}, one at a time", verb.name()), &units::bytes(size as u64))
    })
}

/// The first operation on each region, one at a time.
fn new_regions(session: &mut Session, verb: Verb, size: usize) -> Result<Row, SessionError> {
    let operations = session.options.iterations(NEW_REGIONS);
    let warmup = session.options.warmup(operations / 10);
    let work = Work::NewRegions { verb, size, operations, warmup };
    let (mut ours, mut spread, began) = (Vec::new(), None, Instant::now());
    for _ in 0..SAMPLES {
        let sample = session.work(&work)?;
        ours.push(sample.ns);
        spread = sample.spread;
        if session.is_enough(ours.len(), began) {
            break;
        }
    }
    Ok(Row {
        size: Some(size as u64),
        ns: Some(median(&ours)),
        spread,
        note: format!("its owner computes for {} us", COMPUTES.as_micros()),
        ..Row::new(&format!("{} of a new region", verb.name()), &units::bytes(size as u64))
    })
}

/// A window of operations, beside the best pipelined copy.
fn stream(session: &mut Session, verb: Verb, size: usize) -> Result<Row, SessionError> {
    let window = session.options.window(if size < 1024 { 4 * WINDOW } else { WINDOW });
    let operations = affordable(session, verb, size, window, 4 * operations_for(size))?;
    let work = work(session, verb, size, operations, window);
    let best = if size >= 4096 { best_plan(session, Pattern::Stream, size)? } else { None };
    let (mut ours, mut floors, began) = (Vec::new(), Vec::new(), Instant::now());
    while ours.len() < SAMPLES && !session.is_enough(ours.len(), began) || ours.is_empty() {
        if let Some(best) = &best {
            floors.push(session.floor(&floor_task(Pattern::Stream, size, &best.plan))?[0]);
        }
        ours.push(session.work(&work)?.ns);
    }
    let ns = median(&ours);
    let floor = best.as_ref().map(|_| size as f64 / median(&floors));
    let gb_per_s = size as f64 / ns;
    Ok(Row {
        size: Some(size as u64),
        ns: Some(ns),
        messages_per_s: Some(1e9 / ns),
        gb_per_s: (size >= 1024).then_some(gb_per_s),
        floor,
        ratio: floor.map(|floor| gb_per_s / floor),
        note: best.map_or(String::new(), |best| format!("floor: {}", best.plan)),
        ..Row::new(&format!("{}, {window} at a time", verb.name()), &units::bytes(size as u64))
    })
}

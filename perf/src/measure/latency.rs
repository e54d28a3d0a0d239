//! Half a round trip, from 0 bytes to 4 MiB, and its excess over the bounce
//! of one cache line.

use super::pump::Pump;
use super::touch::TOUCHED;
use super::{MeasureError, Sample, Work};
use crate::clock;
use crate::floor::Task;
use crate::port::Port;
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::{self, Beside, Spread, believable, median};
use std::time::Instant;

const TAG: u64 = 0x11;
/// Rounds of bounce, kestrel, bounce for the headline figure.
/// Short ones: what disturbs a machine then spoils few of them.
const ROUNDS: usize = 200;
const ROUNDS_MIN: usize = 20;
/// Of the peer's runs there are so many at least, since the aim is a ratio to them.
const PEER_MIN: usize = 5;
/// Steps of the bar that the headline takes.
const HEADLINE_STEPS: u64 = 4;
const BOUNCES: u64 = 3_000;
/// Samples whose median is a size's figure.
const SAMPLES: usize = 9;
/// The excess over the bounce, of UCX's.
pub const UCX_EXCESS_MAX: f64 = 0.75;
/// The size of the headline figure.
pub const HEADLINE_BYTES: usize = 8;

/// Both ranks: rank 0 sends and waits for the answer.
pub fn ping_pong<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    iterations: u64,
    warmup: u64,
    each_timed: bool,
    touch: bool,
) -> Result<Sample, MeasureError> {
    pump.doing("ping-pong");
    let other = 1 - pump.rank();
    pump.receive(Some(other), size, TAG, 0)?;
    pump.barrier()?;
    let first = pump.rank() == 0;
    let total = warmup + iterations;
    let mut histogram = statistics::histogram();
    let mut start = Instant::now();
    for i in 0..total {
        if i == warmup {
            start = Instant::now();
        }
        let began = if each_timed { clock::ticks() } else { 0 };
        if first {
            if touch {
                pump.write(size, 0, i);
            }
            pump.send(other, size, TAG)?;
            // Posted behind the send, as whoever waits for an answer does: on its way to a peer and back
            // the answer needs longer. The first one was posted before.
            if i > 0 {
                pump.receive(Some(other), size, TAG, 0)?;
            }
            pump.await_received(i + 1)?;
            if touch {
                pump.check(size, 0, Some(i))?;
            }
        } else {
            pump.await_received(i + 1)?;
            if touch {
                pump.check(size, 0, Some(i))?;
                pump.write(size, 0, i);
            }
            pump.send(other, size, TAG)?;
            if i + 1 < total {
                pump.receive(Some(other), size, TAG, 0)?;
            }
        }
        pump.await_sent()?;
        if each_timed && first && i >= warmup {
            histogram.saturating_record(clock::ticks() - began);
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / (2 * iterations) as f64;
    let spread = each_timed.then(|| Spread::of(&histogram, clock::ns_per_tick() / 2.0));
    Ok(Sample { ns, spread })
}

/// Iterations that take a few milliseconds at this size.
pub fn iterations_for(size: usize) -> u64 {
    match size {
        0..=1024 => 10_000,
        size => ((40 << 20) / size as u64).clamp(20, 5_000),
    }
}

/// Rank 0: the headline figure beside the bounce, and one row a size.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let mut section = Section::new("latency", "Latency: half a round trip, tagged");
    let sizes = session.options.sizes(&[
        0,
        8,
        64,
        256,
        1024,
        4096,
        16384,
        65536,
        262_144,
        1 << 20,
        4 << 20,
    ]);
    session.bar.begin("latency", sizes.len() as u64 + HEADLINE_STEPS);
    session.bar.weigh(HEADLINE_STEPS);
    let touch = session.options.touch();
    if touch {
        section.title += TOUCHED;
    }
    // The bounce has nothing to do with buffers.
    if !touch && sizes.contains(&HEADLINE_BYTES) {
        section.rows.push(headline(session, &mut section.aims)?);
    }
    session.bar.advance_weighed();
    for &size in &sizes {
        let iterations = session.options.iterations(iterations_for(size));
        let warmup = session.options.warmup(iterations / 10 + 10);
        let work =
            |iterations, each_timed| Work::PingPong { size, iterations, warmup, each_timed, touch };
        let plain = session.several(SAMPLES, &work(iterations.div_ceil(8), false))?;
        let ns = median(&plain);
        let timed = session.work(&work(iterations, true))?;
        section.rows.push(Row {
            size: Some(size as u64),
            ns: Some(ns),
            spread: timed.spread,
            gb_per_s: (size >= 1024).then(|| size as f64 / ns),
            ..Row::new("half round trip", &crate::units::bytes(size as u64))
        });
        session.bar.advance(1);
    }
    Ok(section)
}

/// 8 bytes with the bounce before and after, and the peer in between where asked.
fn headline(session: &mut Session, aims: &mut Vec<Aim>) -> Result<Row, SessionError> {
    let iterations = session.options.iterations(2_000);
    let work = Work::PingPong {
        size: HEADLINE_BYTES,
        iterations,
        warmup: session.options.warmup(200),
        each_timed: false,
        touch: false,
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (peer_every, peer_min) = session.peer.as_ref().map_or((None, 0), |_| (Some(20), PEER_MIN));
    let began = Instant::now();
    for round in 0..ROUNDS {
        let has_enough = theirs.len() >= peer_min && session.is_enough_of_ours(round, began);
        if round >= ROUNDS_MIN && has_enough {
            break;
        }
        ours.push(beside_bounce(session, |session| Ok(session.work(&work)?.ns))?);
        if peer_every.is_some_and(|every| round % every == 0) {
            theirs.push(beside_bounce(session, |session| session.peer_latency_ns(HEADLINE_BYTES))?);
        }
    }
    let (row, aim) = beside(&ours, &theirs);
    aims.extend(aim);
    Ok(row)
}

/// What the rounds of ours say, and of the peer's if there are any. The excess over the bounce is said and
/// compared where there is a bounce.
fn beside(ours: &[Beside], theirs: &[Beside]) -> (Row, Option<Aim>) {
    let of = |samples: &[Beside], value: fn(&Beside) -> f64| {
        median(&samples.iter().map(value).collect::<Vec<_>>())
    };
    let has_floor = ours.iter().all(|sample| sample.floor().is_finite());
    let row = |series: &str| Row {
        size: Some(HEADLINE_BYTES as u64),
        ..Row::new(series, &crate::units::bytes(HEADLINE_BYTES as u64))
    };
    if !has_floor {
        let mut note = format!("{} rounds", ours.len());
        if !theirs.is_empty() {
            note += &format!("; UCX {:.1} ns", of(theirs, |sample| sample.value));
        }
        let ns = Some(of(ours, |sample| sample.value));
        return (Row { ns, note, ..row("in short rounds") }, None);
    }
    let (kept, steady) = believable(ours);
    let (ns, bounce) = (of(&kept, |sample| sample.value), of(&kept, Beside::floor));
    let excess = of(&kept, Beside::excess);
    let mut note = format!(
        "bounce {bounce:.1} ns, excess {excess:.1} ns; {} of {} rounds kept{}",
        kept.len(),
        ours.len(),
        if steady { "" } else { " (none was steady: the machine is noisy)" }
    );
    let mut aim = None;
    if !theirs.is_empty() {
        let peer_excess = of(&believable(theirs).0, Beside::excess);
        note += &format!("; UCX excess {peer_excess:.1} ns");
        // On a machine so noisy that the bounce took longer there is nothing to compare.
        aim = (excess > 0.0 && peer_excess > 0.0).then(|| {
            let what = "excess over the bounce, of UCX's excess";
            Aim::at_most(what, excess / peer_excess, UCX_EXCESS_MAX)
        });
    }
    let (floor, ratio) = (Some(bounce), Some(ns / bounce));
    (Row { ns: Some(ns), floor, ratio, note, ..row("beside the bounce") }, aim)
}

/// One measurement between two bounces; without a floor, its place is NaN.
fn beside_bounce(
    session: &mut Session,
    measure: impl FnOnce(&mut Session) -> Result<f64, SessionError>,
) -> Result<Beside, SessionError> {
    let task = Task::Bounce { iterations: BOUNCES };
    let before = session.floor(&task)?[0];
    let value = measure(session)?;
    let after = session.floor(&task)?[0];
    Ok(Beside { before, value, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(floor: f64, value: f64) -> [Beside; 3] {
        [Beside { before: floor, value, after: floor }; 3]
    }

    #[test]
    fn the_excess_is_said_beside_a_bounce() {
        let (row, aim) = beside(&samples(50.0, 100.0), &samples(50.0, 150.0));
        assert!(row.note.starts_with("bounce 50.0 ns, excess 50.0 ns; 3 of 3"), "{}", row.note);
        assert_eq!((row.ns, row.floor, row.ratio), (Some(100.0), Some(50.0), Some(2.0)));
        assert_eq!(aim.expect("both took longer").value, 0.5);
        let (row, aim) = beside(&samples(50.0, 100.0), &[]);
        assert!(aim.is_none() && !row.note.contains("UCX"), "{}", row.note);
    }

    #[test]
    fn without_a_bounce_nothing_is_said_of_it() {
        let (row, aim) = beside(&samples(f64::NAN, 100.0), &samples(f64::NAN, 150.0));
        assert_eq!(row.note, "3 rounds; UCX 150.0 ns");
        assert_eq!((row.series.as_str(), row.ns), ("in short rounds", Some(100.0)));
        assert!(row.floor.is_none() && row.ratio.is_none() && aim.is_none());
    }
}

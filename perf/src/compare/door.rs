//! Tagged messages through libfabric's C interface: `fi_tinject` or `fi_tsend`,
//! `fi_trecv` and `fi_cq_read`, on every provider and on the native API.

use super::contest::{self, Contest, NATIVE};
use super::{Findings, Request};
use crate::floor::{Pattern, Task};
use crate::measure::bandwidth::{best_plan, floor_task};
use crate::measure::latency::iterations_for;
use crate::measure::{Work, rate};
use crate::report::{Aim, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use crate::units;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The size whose floor is the bounce, and of the aims.
const SMALL_BYTES: usize = 8;
const SIZES: [usize; 4] = [SMALL_BYTES, 4096, 65536, 1 << 20];
/// Short rounds: what disturbs a machine then spoils few of them.
const ROUNDS: RangeInclusive<usize> = 20..=300;
const ROUNDS_LARGE: RangeInclusive<usize> = 5..=60;
pub const BOUNCE: Task = Task::Bounce { iterations: 3_000 };

/// The provider that the aims speak of.
pub const SHM: &str = "shm";
const OF_NATIVE_MAX: f64 = 1.15;
const EXCESS_OF_SHM_MAX: f64 = 0.45;
const RATE_OF_SHM_MIN: f64 = 3.0;

pub fn run(
    session: &mut Session,
    request: &Request,
    share: Duration,
    findings: &mut Findings,
) -> Result<(), SessionError> {
    let Some(mut contest) = Contest::open(session, request, false, findings) else {
        return Ok(());
    };
    let title = "Tagged messages through libfabric's C interface: kestrel against others";
    let mut section = Section::new("compare-door", title);
    let sizes = session.options.sizes(&SIZES);
    session.bar.limit(Some(share));
    session.bar.begin("door", sizes.len() as u64 + 1);
    for size in sizes {
        half_round_trip(session, &mut contest, size, &mut section, findings)?;
        session.bar.advance(1);
    }
    one_way(session, &mut contest, &mut section, findings)?;
    findings.sections.push(section);
    contest.close(session)
}

fn half_round_trip(
    session: &mut Session,
    contest: &mut Contest,
    size: usize,
    section: &mut Section,
    findings: &mut Findings,
) -> Result<(), SessionError> {
    let small = size < 1024;
    let usual = if small { 2_000 } else { iterations_for(size).div_ceil(8) };
    let iterations = session.options.iterations(usual);
    let warmup = session.options.warmup(iterations / 10 + 2);
    let work = Work::PingPong { size, iterations, warmup, each_timed: false, touch: false };
    let rounds = if small { ROUNDS } else { ROUNDS_LARGE };
    let floor = floor_of(session, Pattern::PingPong, size)?;
    let series = contest.rounds(session, &work, &floor, rounds, findings)?;
    let rows =
        contest::rows(&series, "half round trip", (&units::bytes(size as u64), size), &floor);
    if size == SMALL_BYTES {
        let aims = &mut section.aims;
        if let Some(ratio) = contest::ratio_to(&rows, NATIVE) {
            let what = "8-byte half round trip through libfabric, of the native API's";
            aims.push(Aim::at_most(what, ratio, OF_NATIVE_MAX));
        }
        if let Some(excess) = contest::excess_of(&series, SHM) {
            let what = "8 bytes through libfabric: excess over the bounce, of shm's";
            aims.push(Aim::at_most(what, excess, EXCESS_OF_SHM_MAX));
        }
    }
    section.rows.extend(rows);
    Ok(())
}

fn one_way(
    session: &mut Session,
    contest: &mut Contest,
    section: &mut Section,
    findings: &mut Findings,
) -> Result<(), SessionError> {
    let window = session.options.window(rate::WINDOW);
    let messages = session.options.iterations(50_000);
    let work = rate::stream(session, SMALL_BYTES, messages, window);
    let floor = Task::Slots { messages: 100_000 };
    let series = contest.rounds(session, &work, &floor, ROUNDS_LARGE, findings)?;
    let what = format!("one way, window {window}");
    let mut rows =
        contest::rows(&series, &what, (&units::bytes(SMALL_BYTES as u64), SMALL_BYTES), &floor);
    for row in &mut rows {
        row.messages_per_s = row.ns.map(|ns| 1e9 / ns);
    }
    if let Some(ratio) = contest::ratio_to(&rows, SHM) {
        let what = "8-byte rate through libfabric, of shm's";
        section.aims.push(Aim::at_least(what, 1.0 / ratio, RATE_OF_SHM_MIN));
    }
    section.rows.extend(rows);
    Ok(())
}

/// The bounce for small messages, the best pipelined copy for others.
pub fn floor_of(
    session: &mut Session,
    pattern: Pattern,
    size: usize,
) -> Result<Task, SessionError> {
    if size < contest::LONG {
        return Ok(BOUNCE);
    }
    let best = best_plan(session, pattern, size)?;
    Ok(best.map_or(BOUNCE, |best| floor_task(pattern, size, &best.plan)))
}

/// The floor after a pause, in which the cores did something else.
pub fn settled(session: &mut Session, floor: &Task) -> Result<f64, SessionError> {
    let mut samples = Vec::new();
    for _ in 0..3 {
        samples.push(session.floor(floor)?[0]);
    }
    Ok(median(&samples))
}

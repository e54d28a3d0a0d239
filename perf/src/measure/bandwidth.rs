//! Large messages, streaming and in ping-pong, beside the best pipelined copy
//! of the grid, or the peer where that moves more.

use super::touch::{self, TOUCHED};
use super::{Sample, Work, rate};
use crate::floor::{Pattern, Plan, Task, grid};
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use crate::units;
use kestrel_core::config::TransportChoice;
use std::time::Instant;

/// Short ones: what disturbs a machine then spoils few of them.
const ROUNDS: usize = 15;
const ROUNDS_MIN: usize = 3;
/// Rounds from one run of the peer to the next, and how many there are at least.
const PEER_EVERY: usize = 4;
const PEER_MIN: usize = 3;
/// Plans that the first look at the grid leaves, and the second.
const FINALISTS: usize = 12;
/// Plans between two looks at the clock.
const PLANS_A_LOOK: usize = 64;
const WINDOW: u64 = 16;

/// The sizes for which an aim is set, and which are measured beside the peer where one was asked for.
pub const AIM_SIZES: [usize; 3] = [16 << 10, 64 << 10, 1 << 20];
const AIM_RATIO: f64 = 0.85;
/// Doubling a message may take at most so many times longer.
const GROWTH_MAX: f64 = 2.3;

/// Messages that take about `budget_us` at ten gigabytes a second.
fn messages_for(size: usize, budget_us: u64) -> u64 {
    (budget_us * 10_000 / size.max(1) as u64).clamp(4, 20_000)
}

/// Rank 0: one row for each pattern and power of two.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let title = match session.options.touch() {
        true => format!("Bandwidth: tagged{TOUCHED}"),
        false => "Bandwidth: tagged, beside the best pipelined copy".to_owned(),
    };
    let mut section = Section::new("bandwidth", &title);
    let sizes: Vec<usize> =
        session.options.sizes_with_bytes(&(10..=22).map(|power| 1 << power).collect::<Vec<_>>());
    session.bar.begin("bandwidth", 2 * sizes.len() as u64);
    for pattern in [Pattern::Stream, Pattern::PingPong] {
        let mut growth_worst: Option<(f64, usize)> = None;
        for &size in &sizes {
            let half = sizes.iter().copied().find(|&half| half > 0 && 2 * half == size);
            let (row, growth) = one_size(session, pattern, size, half)?;
            if let Some((growth, smaller)) = growth.zip(half)
                && growth_worst.is_none_or(|(worst, _)| growth > worst)
            {
                growth_worst = Some((growth, smaller));
            }
            if let Some(ratio) = row.ratio.filter(|_| AIM_SIZES.contains(&size)) {
                let what =
                    format!("{} at {}, of the floor", pattern.name(), units::bytes(size as u64));
                section.aims.push(Aim::at_least(&what, ratio, AIM_RATIO));
            }
            section.rows.push(row);
            session.bar.advance(1);
        }
        if let Some((growth, smaller)) = growth_worst {
            let what = format!(
                "{}: time from one power of two to the next, worst after {}",
                pattern.name(),
                units::bytes(smaller as u64)
            );
            section.aims.push(Aim::at_most(&what, growth, GROWTH_MAX));
        }
    }
    Ok(section)
}

/// Messages of one size, as many as a sample takes.
fn work_of(session: &Session, pattern: Pattern, size: usize) -> Work {
    let messages = session.options.iterations(messages_for(size, 1_000));
    let (window, touch) = (session.options.window(WINDOW), session.options.touch());
    match pattern {
        Pattern::Stream if touch => touch::stream(session, size, messages, window),
        Pattern::Stream => rate::stream(session, size, messages, window),
        Pattern::PingPong => Work::PingPong {
            size,
            iterations: messages.div_ceil(2),
            warmup: session.options.warmup(messages / 16 + 2),
            each_timed: false,
            touch,
        },
    }
}

/// The row of a size, and how many times longer it takes than `half` of it, alternately: what the
/// machine does at other times has no part in that.
fn one_size(
    session: &mut Session,
    pattern: Pattern,
    size: usize,
    half: Option<usize>,
) -> Result<(Row, Option<f64>), SessionError> {
    let touch = session.options.touch();
    let work = work_of(session, pattern, size);
    let half = half.map(|half| work_of(session, pattern, half));
    // No copy of the grid writes its source, or reads what it has copied.
    let best = if touch { None } else { best_plan(session, pattern, size)? };
    let has_peer = best.is_some() && session.peer.is_some() && AIM_SIZES.contains(&size);
    let mut rounds = Rounds::default();
    let mut growths = Vec::new();
    let began = Instant::now();
    for round in 0..ROUNDS {
        let has_enough = match has_peer {
            true => rounds.peer.len() >= PEER_MIN && session.is_enough_of_ours(round, began),
            false => session.is_enough(round, began),
        };
        if round >= ROUNDS_MIN && has_enough {
            break;
        }
        if let Some(best) = &best {
            rounds.copies.push(floor_ns(session, pattern, size, &best.plan)?);
        }
        let Sample { ns, .. } = session.work(&work)?;
        if let Some(half) = &half {
            growths.push(ns / session.work(half)?.ns);
        }
        rounds.ours.push(ns);
        if has_peer && round % PEER_EVERY == 0 {
            rounds.peer.push(peer_ns(session, pattern, size)?);
        }
    }
    let ns = median(&rounds.ours);
    let floor = best.map(|best| rounds.floor(size, &best));
    let row = Row {
        size: Some(size as u64),
        ns: Some(ns),
        messages_per_s: (pattern == Pattern::Stream).then_some(1e9 / ns),
        gb_per_s: Some(size as f64 / ns),
        floor: floor.as_ref().map(|floor| size as f64 / floor.ns),
        ratio: floor.as_ref().map(|floor| floor.ratio),
        note: floor.map_or(String::new(), |floor| floor.note),
        ..Row::new(pattern.name(), &units::bytes(size as u64))
    };
    Ok((row, half.map(|_| median(&growths))))
}

/// What was measured in turns. Unit: nanoseconds a message.
#[derive(Default)]
struct Rounds {
    ours: Vec<f64>,
    /// The best plan of the grid.
    copies: Vec<f64>,
    /// Fewer than of the others.
    peer: Vec<f64>,
}

/// What the two cores can do at least.
struct Floor {
    ns: f64,
    /// What ours moves of it.
    ratio: f64,
    note: String,
}

impl Rounds {
    /// The best plan, unless the peer moves more.
    fn floor(&self, size: usize, best: &Best) -> Floor {
        let ratios: Vec<f64> =
            self.copies.iter().zip(&self.ours).map(|(copy, ours)| copy / ours).collect();
        let (copy_ns, peer_ns) = (median(&self.copies), median(&self.peer));
        let plan = format!("{}, best of {} plans", best.plan, best.plans);
        let moves = |ns: f64| format!("{:.1} GB/s", size as f64 / ns);
        if peer_ns < copy_ns {
            let note = format!("floor: UCX; {plan}: {}", moves(copy_ns));
            return Floor { ns: peer_ns, ratio: peer_ns / median(&self.ours), note };
        }
        let peer =
            if peer_ns.is_nan() { String::new() } else { format!("; UCX {}", moves(peer_ns)) };
        Floor { ns: copy_ns, ratio: median(&ratios), note: format!("floor: {plan}{peer}") }
    }
}

fn peer_ns(session: &Session, pattern: Pattern, size: usize) -> Result<f64, SessionError> {
    match pattern {
        Pattern::Stream => session.peer_rate_ns(size),
        Pattern::PingPong => session.peer_latency_ns(size),
    }
}

fn floor_ns(
    session: &mut Session,
    pattern: Pattern,
    size: usize,
    plan: &Plan,
) -> Result<f64, SessionError> {
    Ok(session.floor(&floor_task(pattern, size, plan))?[0])
}

/// One more look at a plan.
pub fn floor_task(pattern: Pattern, size: usize, plan: &Plan) -> Task {
    Task::Copies { pattern, size, messages: messages_for(size, 700), plans: vec![plan.clone()] }
}

/// The floor of a size and pattern.
pub struct Best {
    pub plan: Plan,
    /// Nanoseconds a message.
    pub ns: f64,
    /// How many plans were looked at: all, unless time was short.
    pub plans: usize,
}

/// The best plan of the grid: one short look at every plan, then the finalists
/// thrice. Nothing without a shared floor.
pub fn best_plan(
    session: &mut Session,
    pattern: Pattern,
    size: usize,
) -> Result<Option<Best>, SessionError> {
    // What two cores copy through memory that they share says nothing of a device.
    let device = session.options.fabric.transport()? == TransportChoice::Verbs;
    if device || !session.has_floor() || size > crate::floor::MESSAGE_BYTES_MAX {
        return Ok(None);
    }
    let mut looked: Vec<(f64, Plan)> = Vec::new();
    for batch in grid::plans(size).chunks(PLANS_A_LOOK) {
        let plans = batch.to_vec();
        let look = Task::Copies { pattern, size, messages: messages_for(size, 100), plans };
        looked.extend(session.floor(&look)?.into_iter().zip(batch.iter().cloned()));
        if session.bar.is_late() {
            break;
        }
    }
    looked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let finalists: Vec<Plan> =
        looked.iter().take(FINALISTS).map(|(_, plan)| plan.clone()).collect();
    let mut times = vec![Vec::new(); finalists.len()];
    let messages = messages_for(size, 500);
    for _ in 0..3 {
        let task = Task::Copies { pattern, size, messages, plans: finalists.clone() };
        for (times, ns) in times.iter_mut().zip(session.floor(&task)?) {
            times.push(ns);
        }
    }
    let timed = finalists.into_iter().zip(times.iter().map(|times| median(times)));
    let best = timed.min_by(|a, b| a.1.total_cmp(&b.1));
    Ok(best.map(|(plan, ns)| Best { plan, ns, plans: looked.len() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(copies: &[f64], peer: &[f64]) -> Floor {
        let best = Best { plan: grid::plans(16 << 10)[0].clone(), ns: 1.0, plans: 7 };
        Rounds { ours: vec![2000.0; 3], copies: copies.to_vec(), peer: peer.to_vec() }
            .floor(16 << 10, &best)
    }

    #[test]
    fn the_floor_is_the_best_copy() {
        let alone = floor(&[1500.0, 1600.0, 1700.0], &[]);
        assert_eq!((alone.ns, alone.ratio), (1600.0, 0.8));
        assert!(alone.note.ends_with(", best of 7 plans"), "{}", alone.note);
    }

    #[test]
    fn the_floor_never_counts_for_less_than_the_peer() {
        let slower = floor(&[1600.0; 3], &[1700.0]);
        assert_eq!((slower.ns, slower.ratio), (1600.0, 0.8));
        assert!(slower.note.ends_with(", best of 7 plans; UCX 9.6 GB/s"), "{}", slower.note);
        let faster = floor(&[1600.0; 3], &[900.0, 1000.0, 1100.0]);
        assert_eq!((faster.ns, faster.ratio), (1000.0, 0.5));
        assert!(faster.note.starts_with("floor: UCX; "), "{}", faster.note);
        assert!(faster.note.ends_with(", best of 7 plans: 10.2 GB/s"), "{}", faster.note);
    }
}

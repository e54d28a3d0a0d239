//! Large messages, streaming and in ping-pong, beside the best pipelined copy
//! of the grid.

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
/// Plans that the first look at the grid leaves, and the second.
const FINALISTS: usize = 12;
/// Plans between two looks at the clock.
const PLANS_A_LOOK: usize = 64;
const WINDOW: u64 = 16;

/// The sizes for which an aim is set.
const AIM_SIZES: [usize; 3] = [16 << 10, 64 << 10, 1 << 20];
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
    let (mut ours, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut growths = Vec::new();
    let began = Instant::now();
    for round in 0..ROUNDS {
        if round >= ROUNDS_MIN && session.is_enough(round, began) {
            break;
        }
        let floor = match &best {
            Some(best) => floor_ns(session, pattern, size, &best.plan)?,
            None => f64::NAN,
        };
        let Sample { ns, .. } = session.work(&work)?;
        if let Some(half) = &half {
            growths.push(ns / session.work(half)?.ns);
        }
        ours.push(ns);
        floors.push(floor);
        ratios.push(floor / ns);
    }
    let (ns, floor) = (median(&ours), median(&floors));
    let row = Row {
        size: Some(size as u64),
        ns: Some(ns),
        messages_per_s: (pattern == Pattern::Stream).then_some(1e9 / ns),
        gb_per_s: Some(size as f64 / ns),
        floor: best.as_ref().map(|_| size as f64 / floor),
        ratio: best.as_ref().map(|_| median(&ratios)),
        note: best.map_or(String::new(), |best| {
            format!("floor: {}, best of {} plans", best.plan, best.plans)
        }),
        ..Row::new(pattern.name(), &units::bytes(size as u64))
    };
    Ok((row, half.map(|_| median(&growths))))
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

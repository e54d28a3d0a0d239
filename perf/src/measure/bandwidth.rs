//! Large messages, streaming and in ping-pong, beside the best pipelined copy
//! of the grid.

use super::{Sample, Work};
use crate::floor::{Pattern, Plan, Task, grid};
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use crate::units;

const ROUNDS: usize = 5;
/// Plans that the first look at the grid leaves, and the second.
const FINALISTS: usize = 12;
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
    let mut section = Section::new(
        "bandwidth",
        "Bandwidth: tagged, beside the best pipelined copy",
    );
    let sizes: Vec<usize> = session
        .options
        .sizes(&(10..=22).map(|power| 1 << power).collect::<Vec<_>>());
    session.bar.begin("bandwidth", 2 * sizes.len() as u64);
    for pattern in [Pattern::Stream, Pattern::PingPong] {
        let mut previous: Option<(usize, f64)> = None;
        let mut growth_worst: Option<(f64, usize)> = None;
        for &size in &sizes {
            let row = one_size(session, pattern, size)?;
            let ns = row.ns.unwrap_or(f64::NAN);
            if let Some((smaller, before)) = previous.filter(|(smaller, _)| 2 * smaller == size) {
                let growth = ns / before;
                if growth_worst.is_none_or(|(worst, _)| growth > worst) {
                    growth_worst = Some((growth, smaller));
                }
            }
            previous = Some((size, ns));
            if let Some(ratio) = row.ratio.filter(|_| AIM_SIZES.contains(&size)) {
                let what = format!(
                    "{} at {}, of the floor",
                    pattern.name(),
                    units::bytes(size as u64)
                );
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

fn one_size(session: &mut Session, pattern: Pattern, size: usize) -> Result<Row, SessionError> {
    let messages = session.options.iterations(messages_for(size, 4_000));
    let window = session.options.window(WINDOW);
    let work = match pattern {
        Pattern::Stream => Work::OneWay {
            size,
            messages,
            window,
        },
        Pattern::PingPong => Work::PingPong {
            size,
            iterations: messages.div_ceil(2),
            warmup: session.options.warmup(messages / 16 + 2),
            each_timed: false,
        },
    };
    let best = best_plan(session, pattern, size)?;
    let (mut ours, mut floors, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let floor = match &best {
            Some((plan, _)) => floor_ns(session, pattern, size, plan)?,
            None => f64::NAN,
        };
        let Sample { ns, .. } = session.work(&work)?;
        ours.push(ns);
        floors.push(floor);
        ratios.push(floor / ns);
    }
    let (ns, floor) = (median(&ours), median(&floors));
    Ok(Row {
        size: Some(size as u64),
        ns: Some(ns),
        messages_per_s: (pattern == Pattern::Stream).then_some(1e9 / ns),
        gb_per_s: Some(size as f64 / ns),
        floor: best.as_ref().map(|_| size as f64 / floor),
        ratio: best.as_ref().map(|_| median(&ratios)),
        note: best.map_or(String::new(), |(plan, _)| format!("floor: {plan}")),
        ..Row::new(pattern.name(), &units::bytes(size as u64))
    })
}

fn floor_ns(
    session: &mut Session,
    pattern: Pattern,
    size: usize,
    plan: &Plan,
) -> Result<f64, SessionError> {
    let task = Task::Copies {
        pattern,
        size,
        messages: messages_for(size, 2_000),
        plans: vec![plan.clone()],
    };
    Ok(session.floor(&task)?[0])
}

/// The best plan of the grid and its nanoseconds a message: one short look at
/// every plan, then the finalists thrice. Nothing without a shared floor.
pub fn best_plan(
    session: &mut Session,
    pattern: Pattern,
    size: usize,
) -> Result<Option<(Plan, f64)>, SessionError> {
    if !session.has_floor() || size > crate::floor::MESSAGE_BYTES_MAX {
        return Ok(None);
    }
    let plans = grid::plans(size);
    let look = Task::Copies {
        pattern,
        size,
        messages: messages_for(size, 100),
        plans: plans.clone(),
    };
    let first = session.floor(&look)?;
    let mut order: Vec<usize> = (0..plans.len()).collect();
    order.sort_by(|a, b| first[*a].total_cmp(&first[*b]));
    let finalists: Vec<Plan> = order
        .iter()
        .take(FINALISTS)
        .map(|index| plans[*index].clone())
        .collect();
    let mut times = vec![Vec::new(); finalists.len()];
    for _ in 0..3 {
        let task = Task::Copies {
            pattern,
            size,
            messages: messages_for(size, 500),
            plans: finalists.clone(),
        };
        for (times, ns) in times.iter_mut().zip(session.floor(&task)?) {
            times.push(ns);
        }
    }
    let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
    let best = (0..finalists.len()).min_by(|a, b| medians[*a].total_cmp(&medians[*b]));
    Ok(best.map(|index| (finalists[index].clone(), medians[index])))
}

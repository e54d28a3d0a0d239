//! The floor on its own: no kestrel, only what the two cores can do.

use super::bandwidth::{Best, best_plan};
use crate::floor::{Pattern, Task};
use crate::report::{Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use crate::units;

const ROUNDS: usize = 5;

/// Rank 0: bounce, slots, and the best of the grid for each size and pattern.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    if let Some(reason) = &session.floor_missing {
        return Err(SessionError::Rank(format!("there is no floor: {reason}")));
    }
    let mut section = Section::new("floor", "The floor: what two cores can do without a protocol");
    let sizes =
        session.options.sizes_with_bytes(&(12..=22).map(|power| 1 << power).collect::<Vec<_>>());
    session.bar.begin("floor", 2 + 2 * sizes.len() as u64);
    let lines = [
        (
            "one line, one way",
            Task::Bounce { iterations: session.options.iterations(100_000) },
            false,
        ),
        ("slot ring", Task::Slots { messages: session.options.iterations(4_000_000) }, true),
    ];
    for (series, task, is_rate) in lines {
        let samples = (0..ROUNDS)
            .map(|_| Ok(session.floor(&task)?[0]))
            .collect::<Result<Vec<_>, SessionError>>()?;
        let ns = median(&samples);
        section.rows.push(Row {
            ns: Some(ns),
            messages_per_s: is_rate.then_some(1e9 / ns),
            ..Row::new(series, "8 B")
        });
        session.bar.advance(1);
    }
    for pattern in [Pattern::Stream, Pattern::PingPong] {
        for &size in &sizes {
            if let Some(Best { plan, ns, plans }) = best_plan(session, pattern, size)? {
                section.rows.push(Row {
                    size: Some(size as u64),
                    ns: Some(ns),
                    gb_per_s: Some(size as f64 / ns),
                    note: format!("{plan}, best of {plans} plans"),
                    ..Row::new(pattern.name(), &units::bytes(size as u64))
                });
            }
            session.bar.advance(1);
        }
    }
    Ok(section)
}

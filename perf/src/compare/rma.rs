//! Writes, reads and atomics through libfabric's C interface.
//!
//! A write ends with its completion, as the provider defines it unless it is
//! asked for more: kestrel's means that the data is there, that of others may
//! mean that it is under way.

use super::contest::{self, Contest};
use super::door::{BOUNCE, SHM, floor_of};
use super::{Findings, Request};
use crate::floor::{Pattern, Task};
use crate::measure::one_sided::{self, operations_for};
use crate::port::Verb;
use crate::report::{Aim, Section};
use crate::session::{Session, SessionError};
use crate::units;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

const SIZES: [usize; 3] = [8, 4096, 1 << 20];
const ROUNDS: RangeInclusive<usize> = 5..=60;
const WINDOW: u64 = 16;
/// Bytes of a 64-bit atomic.
const WORD: usize = 8;
/// No slower than libfabric's shm.
const OF_SHM_MAX: f64 = 1.0;

pub fn run(
    session: &mut Session,
    request: &Request,
    share: Duration,
    findings: &mut Findings,
) -> Result<(), SessionError> {
    let Some(mut contest) = Contest::open(session, request, true, findings) else {
        return Ok(());
    };
    let title = "One-sided operations through libfabric's C interface: kestrel against others";
    let mut section = Section::new("compare-rma", title);
    let sizes = session.options.sizes_with_bytes(&SIZES);
    if session.options.sizes(&SIZES).contains(&0) {
        findings.leave_out("writes and reads of 0 B", "there is nothing to write or read");
    }
    let reads = [Verb::Write, Verb::Read].into_iter();
    let mut cases: Vec<(Verb, usize)> =
        reads.flat_map(|verb| sizes.iter().map(move |size| (verb, *size))).collect();
    cases.extend([(Verb::FetchAdd, WORD), (Verb::CompareSwap, WORD)]);
    let mut windows = vec![1, session.options.window(WINDOW)];
    windows.dedup();
    session.bar.limit(Some(share));
    session.bar.begin("rma", (cases.len() * windows.len() + sizes.len()) as u64);
    let mut copies = BTreeMap::new();
    for size in sizes {
        copies.insert(size, floor_of(session, Pattern::Stream, size)?);
        session.bar.advance(1);
    }
    for (verb, size) in cases {
        for &window in &windows {
            let case = Case { verb, size, window, copy: copies.get(&size).unwrap_or(&BOUNCE) };
            case.run(session, &mut contest, &mut section, findings)?;
            session.bar.advance(1);
        }
    }
    findings.sections.push(section);
    contest.close(session)
}

/// What is done, so many at a time, and the best copy of as many bytes.
struct Case<'a> {
    verb: Verb,
    size: usize,
    window: u64,
    copy: &'a Task,
}

impl Case<'_> {
    fn run(
        &self,
        session: &mut Session,
        contest: &mut Contest,
        section: &mut Section,
        findings: &mut Findings,
    ) -> Result<(), SessionError> {
        let &Case { verb, size, window, copy } = self;
        let operations = session.options.iterations(operations_for(size).div_ceil(4));
        let work = one_sided::work(session, verb, size, operations, window);
        let small = size < contest::LONG;
        let slots = Task::Slots { messages: 100_000 };
        let floor = if small && window > 1 { &slots } else { copy };
        let mut series = contest.rounds(session, &work, floor, ROUNDS, findings)?;
        if small && window == 1 {
            // There and back.
            for sample in series.iter_mut().flat_map(|series| &mut series.samples) {
                sample.before *= 2.0;
                sample.after *= 2.0;
            }
        }
        let how = if window == 1 { "one".to_owned() } else { window.to_string() };
        let what = format!("{}, {how} at a time", verb.name());
        let label = units::bytes(size as u64);
        let rows = contest::rows(&series, &what, (&label, size), floor);
        if let Some(ratio) = contest::ratio_to(&rows, SHM).filter(|_| window == 1) {
            let what = format!("{} of {label}: time, of shm's", verb.name());
            section.aims.push(Aim::at_most(&what, ratio, OF_SHM_MAX));
        }
        section.rows.extend(rows);
        Ok(())
    }
}

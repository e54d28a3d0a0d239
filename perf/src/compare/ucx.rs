//! kestrel's native API beside `ucx_perftest`, which is a program of its own: it
//! runs on the same two cores while our ranks sleep.

use super::Findings;
use super::contest::{self, Series};
use super::door::{floor_of, settled};
use crate::floor::{Pattern, Task};
use crate::measure::latency::{UCX_EXCESS_MAX, iterations_for};
use crate::measure::{Work, rate};
use crate::peer::{Peer, PeerError};
use crate::report::{Aim, Section};
use crate::session::{Session, SessionError};
use crate::statistics::Beside;
use crate::units;
use std::time::Duration;

const NAME: &str = "UCX";
const SMALL_BYTES: usize = 8;
const SIZES: [usize; 4] = [SMALL_BYTES, 4096, 65536, 1 << 20];
const ROUNDS_MIN: usize = 5;
const ROUNDS_MAX: usize = 40;
/// Samples of ours in a round: UCX's one takes as long as many.
const OURS_A_ROUND: usize = 5;

/// Why a round could not be had.
enum Failure {
    Ours(SessionError),
    Theirs(PeerError),
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        match error {
            SessionError::Peer(error) => Failure::Theirs(error),
            error => Failure::Ours(error),
        }
    }
}

pub fn run(
    session: &mut Session,
    share: Duration,
    findings: &mut Findings,
) -> Result<(), SessionError> {
    session.peer = match session.cores_for_peer().and_then(|cores| Peer::find(&cores)) {
        Ok(peer) => Some(peer),
        Err(error) => {
            findings.leave_out(NAME, error);
            return Ok(());
        }
    };
    let mut section =
        Section::new("compare-ucx", "Tagged messages: kestrel's native API against UCX");
    let sizes = session.options.sizes(&SIZES);
    session.bar.limit(Some(share));
    session.bar.begin("ucx", sizes.len() as u64 + 1);
    match measure(session, &sizes, &mut section) {
        Ok(()) => {}
        Err(Failure::Ours(error)) => return Err(error),
        Err(Failure::Theirs(error)) => findings.leave_out(NAME, error),
    }
    if !section.rows.is_empty() {
        findings.sections.push(section);
    }
    Ok(())
}

fn measure(session: &mut Session, sizes: &[usize], section: &mut Section) -> Result<(), Failure> {
    for &size in sizes {
        let usual = if size < 1024 { 2_000 } else { iterations_for(size).div_ceil(8) };
        let iterations = session.options.iterations(usual);
        let warmup = session.options.warmup(iterations / 10 + 2);
        let work = Work::PingPong { size, iterations, warmup, each_timed: false, touch: false };
        let floor = floor_of(session, Pattern::PingPong, size)?;
        let series = rounds(session, &work, &floor, |session| session.peer_latency_ns(size))?;
        if size == SMALL_BYTES
            && let Some(excess) = contest::excess_of(&series, NAME)
        {
            let what = "8 bytes, native: excess over the bounce, of UCX's";
            section.aims.push(Aim::at_most(what, excess, UCX_EXCESS_MAX));
        }
        let label = units::bytes(size as u64);
        section.rows.extend(contest::rows(&series, "half round trip", (&label, size), &floor));
        session.bar.advance(1);
    }
    let window = session.options.window(rate::WINDOW);
    let messages = session.options.iterations(100_000);
    let work = rate::stream(session, SMALL_BYTES, messages, window);
    let floor = Task::Slots { messages: 100_000 };
    let series = rounds(session, &work, &floor, |session| session.peer_rate_ns(SMALL_BYTES))?;
    let label = units::bytes(SMALL_BYTES as u64);
    let mut rows = contest::rows(&series, "one way", (&label, SMALL_BYTES), &floor);
    for row in &mut rows {
        row.messages_per_s = row.ns.map(|ns| 1e9 / ns);
    }
    if let Some(ratio) = contest::ratio_to(&rows, NAME) {
        let what = "8-byte rate, native, of UCX's tag_bw";
        section.aims.push(Aim::at_least(what, 1.0 / ratio, rate::UCX_RATE_MIN));
    }
    section.rows.extend(rows);
    Ok(())
}

/// Ours and theirs in turns, with the floor around each.
fn rounds(
    session: &mut Session,
    work: &Work,
    floor: &Task,
    theirs: impl Fn(&mut Session) -> Result<f64, SessionError>,
) -> Result<Vec<Series>, Failure> {
    let empty = |name: &str| Series { name: name.to_owned(), samples: Vec::new() };
    let (mut ours, mut others) = (empty("kestrel"), empty(NAME));
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && session.bar.is_late() {
            break;
        }
        ours.samples.push(middle_of(session, work, floor)?);
        let before = settled(session, floor)?;
        let value = theirs(session)?;
        let after = settled(session, floor)?;
        others.samples.push(Beside { before, value, after });
    }
    Ok(vec![ours, others])
}

/// The median of a few samples of ours, with its own floor.
fn middle_of(session: &mut Session, work: &Work, floor: &Task) -> Result<Beside, SessionError> {
    let mut samples = Vec::new();
    for _ in 0..OURS_A_ROUND {
        let before = session.floor(floor)?[0];
        let value = session.work(work)?.ns;
        let after = session.floor(floor)?[0];
        samples.push(Beside { before, value, after });
    }
    samples.sort_by(|one, other| one.value.total_cmp(&other.value));
    Ok(samples[samples.len() / 2])
}

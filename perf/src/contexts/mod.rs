//! What all contexts of scalable endpoints move beside what the first of them moves: messages of
//! 8 bytes, of contexts that send to themselves, and one way between contexts of two endpoints,
//! where there are cores for two such ways. Contexts share nothing, so nothing should be lost.

mod endpoint;
mod loopback;
mod one_way;

use crate::cores;
use crate::fabric::FabricError;
use crate::report::{Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::Ratio;
use loopback::Loopback;
use one_way::OneWay;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long one lane, or all of them, move messages in a round.
const ROUND: Duration = Duration::from_millis(100);
const ROUNDS: usize = 20;
const ROUNDS_MIN: usize = 3;

/// Contexts that messages move between, and the threads that move them.
trait Lane: Sync {
    /// Threads of a lane, each on a core of its own.
    const THREADS: usize;
    const WHAT: &str;

    /// Moves messages until told to stop: the thread's part of it, and how many have come to it.
    fn work(&self, thread: usize, stop: &AtomicBool) -> Result<u64, FabricError>;
}

/// Rank 0: its process alone.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let mut section =
        Section::new("contexts", "Contexts of a scalable endpoint, a thread each: 8 bytes");
    let setup = session.options.fabric.setup()?;
    let (domain, options) = (&setup.open_domain()?, &setup.endpoint);
    let threads = session.cores.len().clamp(2, endpoint::CONTEXTS_MAX);
    let ways = threads / OneWay::THREADS;
    session.bar.begin("contexts", if ways < 2 { 1 } else { 2 });
    compare(session, &Loopback::open(domain, options, threads)?, &mut section)?;
    session.bar.advance(1);
    if ways < 2 {
        let note = format!("needs 4 cores, and has {}", session.cores.len());
        section.rows.push(Row { note, ..Row::new(OneWay::WHAT, "left out") });
    } else {
        compare(session, &OneWay::open(domain, options, ways)?, &mut section)?;
        session.bar.advance(1);
    }
    Ok(section)
}

/// The first lane alone and all of them, in turns.
fn compare<L: Lane>(
    session: &Session,
    lanes: &[L],
    section: &mut Section,
) -> Result<(), FabricError> {
    let (cores, mut ratios, mut best) = (&session.cores, Vec::new(), [0.0_f64; 2]);
    // The first round connects.
    rate(lanes, cores)?;
    for round in 0..ROUNDS {
        if round >= ROUNDS_MIN && session.bar.is_late() {
            break;
        }
        let rates = [rate(&lanes[..1], cores)?, rate(lanes, cores)?];
        ratios.push(rates[1] / rates[0]);
        best = [best[0].max(rates[0]), best[1].max(rates[1])];
    }
    // There is one ratio at least.
    let ratio = Ratio::of(&ratios).ok_or_else(|| FabricError::Open("no round".to_owned()))?;
    let Ratio { p10, median, p90, rounds } = ratio;
    let notes = [
        format!("the best of {rounds} rounds in turns"),
        format!("ratio of the rates {median:.2} (median; p10 {p10:.2}, p90 {p90:.2})"),
    ];
    let threads = [L::THREADS, L::THREADS * lanes.len()].map(|count| match count {
        1 => "1 thread".to_owned(),
        _ => format!("{count} threads"),
    });
    for ((rate, threads), note) in best.into_iter().zip(threads).zip(notes) {
        section.rows.push(Row {
            ns: Some(1e9 / rate),
            messages_per_s: Some(rate),
            note,
            ..Row::new(L::WHAT, &threads)
        });
    }
    Ok(())
}

/// Messages a second that all of `lanes` move.
fn rate<L: Lane>(lanes: &[L], cores: &[usize]) -> Result<f64, FabricError> {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(lanes.len() * L::THREADS + 1));
    std::thread::scope(|scope| {
        let places =
            (0..lanes.len()).flat_map(|lane| (0..L::THREADS).map(move |role| (lane, role)));
        let threads: Vec<_> = places
            .map(|(lane, role)| {
                let (lane_of, stop, start) = (&lanes[lane], &stop, &start);
                scope.spawn(move || {
                    cores::pin(lane * L::THREADS + role, cores);
                    start.wait();
                    let begun = Instant::now();
                    let moved = lane_of.work(role, stop)?;
                    Ok(moved as f64 / begun.elapsed().as_secs_f64())
                })
            })
            .collect();
        start.wait();
        std::thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        let join =
            |thread: ScopedJoinHandle<_>| thread.join().unwrap_or(Err(FabricError::Panicked));
        threads.into_iter().map(join).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::FabricOptions;

    /// However many cores there are.
    #[test]
    fn all_lanes_move_messages() {
        let options = FabricOptions { provider: "shm".to_owned(), automatic_progress: false };
        let (setup, cores) = (options.setup().unwrap(), cores::usable(&[]).unwrap());
        let (domain, endpoint) = (setup.open_domain().unwrap(), &setup.endpoint);
        let found = rate(&Loopback::open(&domain, endpoint, 2).unwrap(), &cores).unwrap();
        assert!(found > 0.0);
        let ways = OneWay::open(&domain, endpoint, 2).unwrap();
        for _ in 0..2 {
            assert!(rate(&ways[..1], &cores).unwrap() > 0.0);
            assert!(rate(&ways, &cores).unwrap() > 0.0);
        }
    }
}

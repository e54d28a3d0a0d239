//! What all contexts of scalable endpoints move beside what the first of them moves: messages of
//! 8 bytes, of contexts that send to themselves, and one way between contexts of two endpoints,
//! where there are cores for two such ways. Contexts share nothing, so nothing should be lost.

mod endpoint;
mod loopback;
mod one_way;

use crate::cores;
use crate::fabric::{FabricError, FabricOptions};
use crate::statistics::Ratio;
use crate::units;
use loopback::Loopback;
use one_way::OneWay;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one lane, or all of them, move messages in a round.
const ROUND: Duration = Duration::from_millis(100);
const ROUNDS: usize = 20;

/// Contexts that messages move between, and the threads that move them.
trait Lane: Sync {
    /// Threads of a lane, each on a core of its own.
    const THREADS: usize;
    const WHAT: &str;

    /// Moves messages until told to stop: the thread's part of it, and how many have come to it.
    fn work(&self, thread: usize, stop: &AtomicBool) -> Result<u64, FabricError>;
}

/// Measures, and says what was found.
///
/// # Errors
/// The contexts could not be opened, or a message was refused.
pub fn run(options: &FabricOptions, cores: &[usize]) -> Result<String, FabricError> {
    let setup = options.setup(0)?;
    let domain = &setup.open_domain()?;
    let threads = cores.len().clamp(2, endpoint::CONTEXTS_MAX);
    let itself = compare(&Loopback::open(domain, &setup.endpoint, threads)?, cores)?;
    let ways = threads / OneWay::THREADS;
    if ways < 2 {
        let count = cores.len();
        return Ok(format!("{itself}\n{} needs 4 cores, and has {count}\n", OneWay::WHAT));
    }
    Ok(format!("{itself}\n{}", compare(&OneWay::open(domain, &setup.endpoint, ways)?, cores)?))
}

/// The first lane alone and all of them, in turns.
fn compare<L: Lane>(lanes: &[L], cores: &[usize]) -> Result<String, FabricError> {
    let (mut ratios, mut best) = (Vec::new(), [0.0_f64; 2]);
    // The first round connects.
    rate(lanes, cores)?;
    for _ in 0..ROUNDS {
        let rates = [rate(&lanes[..1], cores)?, rate(lanes, cores)?];
        ratios.push(rates[1] / rates[0]);
        best = [best[0].max(rates[0]), best[1].max(rates[1])];
    }
    // There is one ratio at least.
    let ratio = Ratio::of(&ratios).ok_or_else(|| FabricError::Open("no round".to_owned()))?;
    let [one, all] = best.map(units::count);
    let threads = [L::THREADS, L::THREADS * lanes.len()].map(|count| match count {
        1 => "1 thread".to_owned(),
        _ => format!("{count} threads"),
    });
    Ok(format!(
        "{}, 8 bytes, {ROUNDS} rounds in turns\n\
         {:<16}{one}/s at best\n\
         {:<16}{all}/s at best\n\
         {:<16}{:.2} (median; p10 {:.2}, p90 {:.2})\n",
        L::WHAT,
        threads[0],
        threads[1],
        "ratio",
        ratio.median,
        ratio.p10,
        ratio.p90,
    ))
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
        // A thread that panicked has said why.
        threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(0.0))).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many cores there are.
    #[test]
    fn all_lanes_move_messages() {
        let options = FabricOptions { provider: "shm".to_owned(), automatic_progress: false };
        let (setup, cores) = (options.setup(0).unwrap(), cores::usable(&[]).unwrap());
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

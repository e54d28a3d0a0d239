//! How much of a long case runs, `KESTREL_TEST_SCALE`, and how long a wait may last.

use std::time::{Duration, Instant};

/// The end of every wait: far beyond what any machine needs, so that no test depends on speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long a connection may take where many are made at once: longer than its default, for busy
/// machines, and so short that the failure is told before patience ends.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(25);

/// What is promised within a time that a machine may keep any thread for is tried so often.
const ATTEMPTS: usize = 5;

/// How long an endpoint that closes waits for what is still to leave, and what is injected for its connection.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// Lets something leave that is waited for, and answers whether that was so until the end. Otherwise a machine
/// with no time for those who are waited for had none, and what left is not known.
#[must_use]
pub fn leaves_in_time(leave: impl FnOnce()) -> bool {
    let start = Instant::now();
    leave();
    start.elapsed() < LEAVES_WITHIN
}

/// Tries again what a busy machine may spoil, which answers whether it did not. What is broken spoils it
/// each time.
#[track_caller]
pub fn unspoilt(mut attempt: impl FnMut() -> bool) {
    assert!((0..ATTEMPTS).any(|_| attempt()), "it is spoilt each time");
}

/// Tries again what takes less than `bound`, and answers how long it took, until it does.
#[track_caller]
pub fn takes_less_than(bound: Duration, mut attempt: impl FnMut() -> Duration) {
    let mut times = Vec::new();
    while times.len() < ATTEMPTS {
        times.push(attempt());
        if times.last() < Some(&bound) {
            return;
        }
    }
    panic!("{times:?}, and never less than {bound:?}");
}

/// Checks that nine of ten took less than `bound`, and none five times as long: a busy machine may keep any thread
/// for a while now and then.
#[track_caller]
pub fn mostly_take_less_than(bound: Duration, mut times: Vec<Duration>) {
    times.sort();
    let usual = times[(times.len() - 1) * 9 / 10];
    assert!(
        usual < bound && times.last() < Some(&(5 * bound)),
        "not less than {bound:?}: {times:?}"
    );
}

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scale {
    /// Seconds.
    Quick,
    /// Minutes.
    Default,
    /// Whatever it takes.
    Full,
}

/// The scale of this run.
pub fn scale() -> Scale {
    match std::env::var("KESTREL_TEST_SCALE").as_deref() {
        Ok("quick") => Scale::Quick,
        Ok("full") => Scale::Full,
        Ok("default") | Err(_) => Scale::Default,
        Ok(other) => panic!("KESTREL_TEST_SCALE is quick, default or full, not '{other}'"),
    }
}

/// One of three values, by scale: how many rounds a long case takes, say.
pub fn scaled<T>(quick: T, default: T, full: T) -> T {
    match scale() {
        Scale::Quick => quick,
        Scale::Default => default,
        Scale::Full => full,
    }
}

/// Says that a test cannot run here, and why.
pub fn skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
}

//! How much of a long case runs: `KESTREL_TEST_SCALE`.

use std::time::Duration;

/// The end of every wait: far beyond what any machine needs, so that no test depends on speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long a connection may take where many are made at once: longer than its default, for busy
/// machines, and so short that the failure is told before patience ends.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(25);

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

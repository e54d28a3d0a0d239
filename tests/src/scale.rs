//! How much of a long case runs: `KESTREL_TEST_SCALE`.

use std::time::Duration;

/// The end of every wait: far beyond what any machine needs, so that no test depends on speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How many rounds a long case takes.
pub fn rounds(quick: usize, default: usize, full: usize) -> usize {
    match std::env::var("KESTREL_TEST_SCALE").as_deref() {
        Ok("quick") => quick,
        Ok("full") => full,
        _ => default,
    }
}

/// Says that a test cannot run here, and why.
pub fn skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
}

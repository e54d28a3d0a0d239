//! A live bar between measurements, and the pace that keeps the suite within
//! its minute. It never draws while a measurement runs.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

pub struct Bar {
    bar: ProgressBar,
    /// How long the phase may take; none: as long as it likes.
    share: Option<Duration>,
    began: Instant,
    /// Steps that the one under way counts for.
    weight: u64,
}

impl Bar {
    /// A bar on standard error; silent where that is no terminal.
    pub fn new() -> Bar {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let template = "{prefix:>10} [{bar:40}] {pos}/{len}  {elapsed_precise} {msg}";
        let style = ProgressStyle::with_template(template).expect("the template is constant");
        bar.set_style(style.progress_chars("=> "));
        Bar { bar, share: None, began: Instant::now(), weight: 1 }
    }

    /// How long the next phase may take.
    pub fn limit(&mut self, share: Option<Duration>) {
        self.share = share;
    }

    /// Starts a phase of so many steps.
    pub fn begin(&mut self, name: &str, steps: u64) {
        (self.began, self.weight) = (Instant::now(), 1);
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_prefix(name.to_owned());
    }

    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Begins a step that takes as long as so many.
    pub fn weigh(&mut self, steps: u64) {
        self.weight = steps;
    }

    /// Ends it.
    pub fn advance_weighed(&mut self) {
        self.bar.inc(std::mem::replace(&mut self.weight, 1));
    }

    /// Whether the step under way has used up its part of the phase's time: then
    /// it makes do with the samples it has. Happens on busy machines only.
    pub fn is_late(&self) -> bool {
        let Some(share) = self.share else {
            return false;
        };
        let steps = self.bar.length().unwrap_or(1).max(1) as f64;
        let allowed = share.mul_f64((self.bar.position() + self.weight) as f64 / steps);
        self.began.elapsed() > allowed
    }

    /// Clears the bar, so that what follows starts on a clean line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_late_only_where_there_is_a_limit() {
        let mut bar = Bar::new();
        bar.begin("phase", 4);
        assert!(!bar.is_late());
        bar.limit(Some(Duration::from_secs(3600)));
        bar.begin("phase", 4);
        assert!(!bar.is_late());
        bar.limit(Some(Duration::ZERO));
        bar.begin("phase", 4);
        std::thread::sleep(Duration::from_millis(1));
        assert!(bar.is_late());
    }

    #[test]
    fn a_step_that_counts_for_several_has_their_time() {
        let mut bar = Bar::new();
        bar.limit(Some(Duration::from_secs(4)));
        bar.begin("phase", 4);
        bar.began -= Duration::from_secs(2);
        assert!(bar.is_late());
        bar.weigh(3);
        assert!(!bar.is_late());
        bar.advance_weighed();
        assert_eq!((bar.bar.position(), bar.weight), (3, 1));
    }
}

//! A live bar between measurements: it never draws while one runs.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar on standard error; silent where that is no terminal.
    pub fn new() -> Bar {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(
            "{prefix:>10} [{bar:40}] {pos}/{len}  {elapsed_precise} {msg}",
        );
        bar.set_style(
            style
                .expect("the template is constant")
                .progress_chars("=> "),
        );
        Bar { bar }
    }

    /// Starts a phase of so many steps.
    pub fn begin(&self, name: &str, steps: u64) {
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_prefix(name.to_owned());
    }

    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Clears the bar, so that what follows starts on a clean line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

//! `kestrel-perf compare`: kestrel beside whatever else this machine has, in turns.
//!
//! In reading order: [`request`] what was asked for, and where the others are;
//! [`contest`] who works in turns, and what their rounds say; then the parts:
//! [`door`] tagged messages and [`rma`] one-sided operations through
//! libfabric's C interface, [`ucx`] beside `ucx_perftest`, [`imb`] a whole MPI.
//!
//! Who is not there, or fails, is left out with a line that says why.

mod contest;
mod door;
mod imb;
mod mpi;
mod request;
mod rma;
mod ucx;

pub use request::{Part, Request};

use crate::report::Section;
use crate::session::{Session, SessionError};
use std::time::Duration;

/// What a comparison leaves: its sections, and who was left out and why.
pub struct Findings {
    pub sections: Vec<Section>,
    pub left_out: Vec<String>,
}

impl Findings {
    /// A peer that is not there, or one that failed.
    fn leave_out(&mut self, who: &str, why: impl std::fmt::Display) {
        let line = format!("{who}: {why}");
        // Several parts may miss the same.
        if !self.left_out.contains(&line) {
            self.left_out.push(line);
        }
    }
}

/// Rank 0: the parts that were asked for, each in its share of the time.
pub fn run(session: &mut Session, request: &Request) -> Result<Findings, SessionError> {
    let mut findings = Findings { sections: Vec::new(), left_out: Vec::new() };
    let parts = request.parts();
    let weights: u32 = parts.iter().map(|part| part.weight()).sum();
    for part in parts {
        let share = Duration::from_secs(request.seconds) * part.weight() / weights;
        match part {
            Part::Door => door::run(session, request, share, &mut findings)?,
            Part::Rma => rma::run(session, request, share, &mut findings)?,
            Part::Ucx => ucx::run(session, share, &mut findings)?,
            Part::Imb => imb::run(session, request, share, &mut findings)?,
        }
    }
    Ok(findings)
}

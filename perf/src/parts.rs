//! The measurements, one a subcommand, and what the suite of them all is made of.

use crate::cli::Job;
use crate::report::Section;
use crate::session::{Session, SessionError};
use crate::{contexts, measure, peeks, peers};

/// The suite ends within it.
#[cfg(test)]
const SUITE_SECONDS: u64 = 60;
/// Of these, for what the parts have no share of: to start ranks, and to write what was found.
#[cfg(test)]
const OVERHEAD_SECONDS: u64 = 4;

pub struct Part {
    pub job: Job,
    pub measure: Measure,
    /// The seconds of the suite that it may use on a machine so busy that it needs them: its last
    /// samples are left out then.
    pub seconds: u64,
    /// How many ranks it needs at least: one has no other open meanwhile.
    pub ranks: usize,
}

type Measure = fn(&mut Session) -> Result<Section, SessionError>;

const fn part(job: Job, measure: Measure, ranks: usize, seconds: u64) -> Part {
    Part { job, measure, seconds, ranks }
}

/// All parts of the suite, in the order in which they run: those of one rank at the end.
pub const SUITE: [Part; 10] = [
    part(Job::Latency, measure::latency::job, 2, 7),
    part(Job::Rate, measure::rate::job, 2, 3),
    part(Job::Bandwidth, measure::bandwidth::job, 2, 18),
    part(Job::Matching, measure::matching::job, 2, 8),
    part(Job::Pairs, measure::pairs::job, 2, 5),
    part(Job::Rma, measure::one_sided::rma, 2, 6),
    part(Job::Atomics, measure::one_sided::atomics, 2, 2),
    part(Job::Contexts, contexts::job, 1, 2),
    part(Job::Peeks, peeks::job, 1, 2),
    part(Job::Peers, peers::job, 1, 3),
];

/// The floor stands beside the figures of the suite, and is no part of it.
const FLOOR: Part = part(Job::Floor, measure::floor::job, 2, 0);

/// Whether it has a part of as many ranks as are asked for.
pub fn has_many_ranks(job: &Job) -> bool {
    matches!(job, Job::Pairs | Job::All)
}

/// What a subcommand measures.
pub fn of(job: &Job) -> Vec<Part> {
    let mut parts: Vec<Part> = SUITE.into_iter().chain([FLOOR]).collect();
    parts.retain(|part| part.job == *job || *job == Job::All && part.job != Job::Floor);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Whatever is new is a part of the suite, or named here with what it does instead.
    #[test]
    fn the_suite_has_every_subcommand_that_measures() {
        let others = ["all", "floor", "doctor", "compare", "report"];
        let command = Cli::command();
        let mut names: Vec<_> = command.get_subcommands().map(|job| job.get_name()).collect();
        names.retain(|name| !others.contains(name));
        let mut parts: Vec<_> = of(&Job::All).iter().map(|part| part.job.name()).collect();
        names.sort_unstable();
        parts.sort_unstable();
        assert_eq!(parts, names);
    }

    #[test]
    fn the_parts_of_the_suite_fit_into_its_minute() {
        let seconds: u64 = of(&Job::All).iter().map(|part| part.seconds).sum();
        assert!(seconds + OVERHEAD_SECONDS <= SUITE_SECONDS, "{seconds} s are planned");
        assert!(of(&Job::All).iter().all(|part| part.seconds > 0));
    }

    #[test]
    fn a_subcommand_is_one_part_and_those_without_ranks_are_last() {
        for part in SUITE.iter().chain([&FLOOR]) {
            let found = of(&part.job);
            assert!(found.len() == 1 && found[0].job == part.job, "{}", part.job.name());
        }
        assert!(of(&Job::Doctor).is_empty());
        assert!(SUITE.is_sorted_by_key(|part| std::cmp::Reverse(part.ranks)));
    }
}

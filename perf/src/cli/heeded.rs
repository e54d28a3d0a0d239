//! Which flags a subcommand heeds. Any other one is refused, never taken and forgotten.

use super::{Cli, Job};
use crate::measure::bandwidth::AIM_SIZES;
use crate::measure::latency::HEADLINE_BYTES;
use crate::roles::Origin;
use crate::units;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory};

/// A flag, by the name of its field, and the subcommands that heed it, in words. `all` heeds what any
/// part does.
struct Heeded {
    flag: &'static str,
    by: &'static str,
    /// Why some others do not, where that is not plain.
    but: &'static [(&'static str, &'static str)],
}

impl Heeded {
    fn jobs(&self) -> impl Iterator<Item = &'static str> {
        self.by.split(' ')
    }
}

const EIGHT_BYTES: &str = "its messages have 8 bytes";
const TIMED: &str = "its rounds take a given time, after one that connects";

const FLAGS: [Heeded; 16] = [
    Heeded {
        flag: "size",
        by: "latency bandwidth rate matching pairs rma floor compare",
        but: &[
            ("atomics", "the operands of 64-bit types have 8 bytes"),
            ("contexts", EIGHT_BYTES),
            ("peeks", EIGHT_BYTES),
            ("peers", EIGHT_BYTES),
        ],
    },
    Heeded {
        flag: "iterations",
        by: "latency bandwidth rate matching pairs rma atomics peeks floor compare",
        but: &[("contexts", TIMED), ("peers", TIMED)],
    },
    Heeded {
        flag: "warmup",
        by: "latency bandwidth rate matching pairs rma atomics peeks compare",
        but: &[("contexts", TIMED), ("peers", TIMED), ("floor", "its tasks bring their own")],
    },
    Heeded {
        flag: "window",
        by: "bandwidth rate pairs rma atomics compare",
        but: &[("latency", "one message is under way at a time")],
    },
    Heeded {
        flag: "touch",
        by: "latency bandwidth",
        but: &[("compare", "others would have to do as much")],
    },
    Heeded { flag: "depth", by: "matching peeks", but: &[] },
    Heeded { flag: "processes", by: "pairs", but: &[] },
    Heeded { flag: "peers", by: "peers", but: &[] },
    Heeded { flag: "provider", by: ENDPOINTS, but: &[("floor", NO_ENDPOINT)] },
    Heeded { flag: "progress", by: ENDPOINTS, but: &[("floor", NO_ENDPOINT)] },
    Heeded { flag: "cores", by: RUN, but: &[] },
    Heeded {
        flag: "peer",
        by: "latency bandwidth rate",
        but: &[("compare", "UCX is one of its parts, see --only")],
    },
    Heeded { flag: "json", by: RUN, but: &[] },
    Heeded { flag: "html", by: PAGES, but: &[("doctor", "there is nothing to plot")] },
    Heeded { flag: "listen", by: RANKS, but: &[] },
    Heeded { flag: "connect", by: RANKS, but: &[] },
];

const NO_ENDPOINT: &str = "it is what the cores do without an endpoint";

/// The subcommands that open an endpoint.
const ENDPOINTS: &str =
    "latency bandwidth rate matching pairs rma atomics contexts peeks peers doctor compare";

/// Those that have several ranks.
const RANKS: &str = "latency bandwidth rate matching pairs rma atomics floor doctor compare";

/// Those that run anything.
const RUN: &str =
    "latency bandwidth rate matching pairs rma atomics contexts peeks peers floor doctor compare";

/// Those that have a page.
const PAGES: &str =
    "latency bandwidth rate matching pairs rma atomics contexts peeks peers floor compare report";

/// Those that do nothing with a message of no bytes, and why.
const BYTES_NEEDED: [(&str, &str); 3] = [
    ("bandwidth", "it has no bandwidth"),
    ("rma", "there is nothing to write or read"),
    ("floor", "there is nothing to copy"),
];

/// What the second of two shells heeds. All else is the first one's to say.
const OF_SECOND: [&str; 2] = ["connect", "cores"];
/// In a comparison it finds its own libfabric, and kestrel in it, as well.
const OF_SECOND_COMPARING: [&str; 5] =
    ["provider", "libfabric", "library", "providers", "intel_mpi"];

/// The flags of the command line, before and behind the subcommand.
pub fn given(matches: &ArgMatches) -> Vec<String> {
    let of = |command: &Command, matches: &ArgMatches| {
        let ids = command.get_arguments().map(|argument| argument.get_id().as_str());
        let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        given.map(str::to_owned).collect::<Vec<_>>()
    };
    let command = Cli::command();
    let mut given = of(&command, matches);
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        given.extend(of(command, matches));
    }
    given
}

fn refuse(words: String) -> Result<(), clap::Error> {
    Err(Cli::command().error(ErrorKind::ArgumentConflict, words))
}

/// Refuses the first flag of the command line that its subcommand does not heed.
pub fn check(cli: &Cli) -> Result<(), clap::Error> {
    let job = cli.job.as_ref().map_or("all", Job::name);
    let given = |flag: &str| cli.given.iter().any(|given| given == flag);
    let refused = |it: &&Heeded| given(it.flag) && job != "all" && it.jobs().all(|by| by != job);
    if let Some(refused) = FLAGS.iter().find(refused) {
        return refuse(refusal(refused, job));
    }
    check_peer(cli, job)?;
    match BYTES_NEEDED.iter().find(|(by, _)| *by == job && cli.flags.size.contains(&0)) {
        Some((_, why)) => refuse(format!("--size 0 does not go with {job}: {why}")),
        None => Ok(()),
    }
}

/// Refuses a peer that would be beside nothing that is measured.
fn check_peer(cli: &Cli, job: &str) -> Result<(), clap::Error> {
    let beside: &[usize] = match job {
        "latency" => &[HEADLINE_BYTES],
        "bandwidth" => &AIM_SIZES,
        _ => return Ok(()),
    };
    let flags = &cli.flags;
    let measured = flags.size.is_empty() || flags.size.iter().any(|size| beside.contains(size));
    if flags.peer.is_none() || measured && !flags.touch {
        return Ok(());
    }
    let beside: Vec<String> = beside.iter().map(|size| units::bytes(*size as u64)).collect();
    let why = format!("UCX is measured beside {}, which are not touched", beside.join(", "));
    refuse(format!("--peer does not go with these flags: {why}"))
}

/// Refuses the first flag that goes with the subcommand, and that a process from there does not heed.
pub fn check_origin(cli: &Cli, origin: &Origin) -> Result<(), clap::Error> {
    let comparing = matches!(cli.job, Some(Job::Compare(_)));
    let is_heeded =
        |flag: &str| OF_SECOND.contains(&flag) || comparing && OF_SECOND_COMPARING.contains(&flag);
    let processes = cli.flags.processes;
    let is_asked = cli.given.iter().any(|flag| flag == "processes");
    match origin {
        Origin::Second(_) => match cli.given.iter().find(|flag| !is_heeded(flag)) {
            Some(flag) => refuse(format!(
                "--{} does not go with --connect: the first shell says what is done, and reports",
                flag.replace('_', "-")
            )),
            None => Ok(()),
        },
        Origin::First(_) if is_asked && processes != 2 => {
            refuse(format!("--processes {processes} does not go with --listen: two shells are two"))
        }
        Origin::Launched(launched) if is_asked && usize::from(processes) != launched.size => {
            let size = launched.size;
            refuse(format!("--processes {processes} does not go with the launcher's {size} ranks"))
        }
        _ => Ok(()),
    }
}

fn refusal(heeded: &Heeded, job: &str) -> String {
    let Heeded { flag, but, .. } = heeded;
    let why = but.iter().find(|(other, _)| *other == job);
    let why = why.map_or(String::new(), |(_, why)| format!(": {why}"));
    format!(
        "--{flag} does not go with {job}{why}\n\nIt goes with {}, and all.",
        heeded.jobs().collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Cli, String> {
        let line = std::iter::once("kestrel-perf").chain(line.split(' '));
        Cli::read(line).map_err(|error| error.to_string())
    }

    /// A flag that is new has to be here, and no other name is.
    #[test]
    fn the_table_has_every_flag_and_no_other_name() {
        let command = Cli::command();
        let mut flags: Vec<_> = command.get_arguments().map(|it| it.get_id().as_str()).collect();
        flags.retain(|flag| !["help", "version"].contains(flag));
        assert_eq!(FLAGS.map(|heeded| heeded.flag).as_slice(), flags);
        let jobs: Vec<_> = command.get_subcommands().map(|it| it.get_name()).collect();
        for heeded in &FLAGS {
            let reasons = heeded.but.iter().map(|(job, _)| *job);
            for job in heeded.jobs().chain(reasons.clone()) {
                assert!(jobs.contains(&job), "{}: {job}", heeded.flag);
            }
            let mut both = reasons.filter(|job| heeded.jobs().any(|by| by == *job));
            assert_eq!(both.next(), None, "{}", heeded.flag);
        }
    }

    #[test]
    fn what_is_not_heeded_is_refused_before_and_after_the_subcommand() {
        for line in ["--warmup 3 contexts", "contexts --warmup 3"] {
            let error = read(line).expect_err("contexts warm up by themselves");
            assert!(error.contains("--warmup does not go with contexts: its rounds"), "{error}");
            assert!(error.contains("It goes with latency, "), "{error}");
        }
        for (line, why) in [
            ("atomics --size 64", "64-bit types"),
            ("latency --window 4", "at a time"),
            ("report x --json y", "--json does not go with report"),
            ("bandwidth --processes 8", "--processes"),
            ("floor --progress manual", "without an endpoint"),
            ("peeks --listen", "--listen"),
            ("compare --peer ucx", "--only"),
            ("latency --peer ucx --size 64", "beside 8 B"),
            ("bandwidth --peer ucx --size 4K", "beside 16 KiB, 64 KiB, 1 MiB"),
            ("latency --peer ucx --touch", "beside 8 B"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn what_any_part_heeds_goes_with_all_of_them() {
        for line in [
            "latency --peer ucx",
            "bandwidth --peer ucx --size 4K,16K",
            "--processes 4 --depth 64",
            "all --warmup 3 --window 8",
            "pairs --processes 4",
        ] {
            read(line).expect(line);
        }
    }

    #[test]
    fn messages_of_no_bytes_are_refused_where_nothing_is_done_with_them() {
        for job in ["rma", "bandwidth", "floor"] {
            let error = read(&format!("{job} --size 8,0")).expect_err(job);
            assert!(error.contains(&format!("--size 0 does not go with {job}: ")), "{error}");
        }
        for job in ["latency", "rate", "pairs", "matching", "compare", "all"] {
            read(&format!("{job} --size 0,8")).expect(job);
        }
    }

    #[test]
    fn what_another_shell_says_is_refused() {
        let of = |origin: &Origin, line: &str| {
            let cli = read(line).expect(line);
            cli.check_heeded_by(origin).map_err(|error| error.to_string())
        };
        let second = |line| of(&Origin::Second("a:1".to_owned()), line);
        for line in [
            "--connect a:1",
            "rate --connect a:1 --cores 0",
            "compare --connect a:1 --provider shm --libfabric x --library y --providers shm,tcp",
        ] {
            second(line).expect(line);
        }
        for (line, flag) in [
            ("rate --json x --connect a:1", "--json"),
            ("rate --connect a:1 --size 64", "--size"),
            ("rate --connect a:1 --provider shm", "--provider"),
            ("compare --connect a:1 --seconds 9", "--seconds"),
            ("compare --connect a:1 --only rma", "--only"),
        ] {
            let error = second(line).expect_err(line);
            assert!(error.contains(&format!("{flag} does not go with --connect")), "{error}");
        }
        let first = |line| of(&Origin::First("a:1".to_owned()), line);
        first("pairs --listen a:1 --size 64 --json x").expect("the first shell says all that");
        first("pairs --listen a:1 --processes 2").expect("those are two");
        assert!(
            first("pairs --listen a:1 --processes 8").is_err_and(|it| it.contains("two shells"))
        );
        of(&Origin::Alone, "pairs --processes 8").expect("they are started");
    }
}

//! Intel's MPI benchmarks under Intel MPI: PingPong against its own shared memory,
//! collectives against libfabric's shm, each through kestrel and then through
//! the other, and the other way round in the next round.

use super::door::{floor_of, settled};
use super::mpi::{IntelMpi, Through};
use super::{Findings, Request};
use crate::floor::{Pattern, Task};
use crate::report::{Against, Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::{Ratio, geometric_mean, median};
use crate::units;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// PingPong's share of the time; the collectives have the rest.
const PING_PONG_PERCENT: u32 = 20;
const PING_PONG: &str = "PingPong";
/// Bytes, and the most that the time may be of Intel MPI's own.
const PING_PONG_AIMS: [(u64, f64); 5] =
    [(8, 1.1), (16 << 10, 1.0), (64 << 10, 1.0), (1 << 20, 1.0), (4 << 20, 1.0)];
const COLLECTIVES: [&str; 3] = ["Allreduce", "Alltoall", "Bcast"];
const COLLECTIVES_MEAN_MAX: f64 = 0.8;
const COLLECTIVES_EACH_MAX: f64 = 1.05;
/// Seconds that IMB may spend on a size: so short that several rounds fit.
const PING_PONG_SECONDS: f64 = 0.2;
const COLLECTIVES_SECONDS: f64 = 0.15;
/// Iterations of a size, at most: fewer where more ranks share the two cores.
const COLLECTIVES_ITERATIONS: u64 = 1_000;

/// Microseconds by benchmark and size.
type Times = BTreeMap<(String, u64), f64>;

/// One round: the times of both.
type Round = [Times; 2];

struct Found {
    rounds: Vec<Round>,
    /// How often IMB left out the rest of a benchmark, on a busy machine.
    given_up: usize,
}

pub fn run(
    session: &mut Session,
    request: &Request,
    share: Duration,
    findings: &mut Findings,
) -> Result<(), SessionError> {
    let (found, cores) = (request.library(), session.cores_of_pair());
    let mpi = found.and_then(|library| IntelMpi::find(request.intel_mpi(), library, &cores));
    let mpi = match mpi {
        Ok(mpi) => mpi,
        Err(reason) => {
            findings.leave_out("Intel MPI", reason);
            return Ok(());
        }
    };
    session.bar.limit(None);
    session.bar.begin("imb", 1 + request.ranks.len() as u64);
    let short = share * PING_PONG_PERCENT / 100;
    let until = Instant::now() + short;
    let sizes: Vec<usize> = PING_PONG_AIMS.iter().map(|(size, _)| *size as usize).collect();
    let sizes = session.options.sizes(&sizes);
    let mut floors = Vec::new();
    for &size in &sizes {
        floors.push((size as u64, floor_of(session, Pattern::PingPong, size)?));
    }
    let setting = Setting {
        benchmarks: &[PING_PONG],
        ranks: 2,
        sizes: sizes.into_iter().map(|size| size as u64).collect(),
        seconds: PING_PONG_SECONDS,
        iterations: session.options.iterations(2_000),
        other: Through::Own,
    };
    let before = measure(session, &floors)?;
    let found = setting.rounds(&mpi, until);
    let after = measure(session, &floors)?;
    match found {
        Ok(found) => {
            let mut section = ping_pong(&found.rounds);
            if let Some((who, why)) = missing(&setting.sizes, &section.rows, found.given_up) {
                findings.leave_out(&who, why);
            }
            for row in &mut section.rows {
                let floor = |floors: &BTreeMap<u64, f64>| floors.get(&row.size?).copied();
                row.floor =
                    floor(&before).zip(floor(&after)).map(|(one, other)| (one + other) / 2.0);
                row.ratio = row.ns.zip(row.floor).map(|(ns, floor)| ns / floor);
            }
            findings.sections.push(section);
        }
        Err(reason) => findings.leave_out("IMB PingPong", reason),
    }
    session.bar.advance(1);
    collectives(session, request, &mpi, share - short, findings);
    Ok(())
}

/// The floor of each size, now.
fn measure(
    session: &mut Session,
    floors: &[(u64, Task)],
) -> Result<BTreeMap<u64, f64>, SessionError> {
    floors.iter().map(|(size, task)| Ok((*size, settled(session, task)?))).collect()
}

fn ping_pong(rounds: &[Round]) -> Section {
    let title = "IMB-MPI1 PingPong under Intel MPI: through kestrel against its own shm";
    let mut section = Section::new("compare-imb-pingpong", title);
    section.rows = rows(rounds, PING_PONG, "half round trip", Through::Own);
    for (size, bound) in PING_PONG_AIMS {
        let row = section.rows.iter().find(|row| row.size == Some(size));
        if let Some(against) = row.and_then(|row| row.against.as_ref()) {
            let what = format!("IMB PingPong of {}: time, of Intel MPI's own", units::bytes(size));
            section.aims.push(Aim::at_most(&what, against.ratio.median, bound));
        }
    }
    section
}

/// The sizes that PingPong has no row of, and why, if there are any.
fn missing(sizes: &[u64], rows: &[Row], given_up: usize) -> Option<(String, String)> {
    let absent = |size: &&u64| rows.iter().all(|row| row.size != Some(**size));
    let absent: Vec<String> = sizes.iter().filter(absent).map(|&size| units::bytes(size)).collect();
    let why = match given_up {
        0 => "IMB printed no time above zero of both".to_owned(),
        times => format!("IMB ran out of its time {times} times"),
    };
    (!absent.is_empty()).then(|| (format!("IMB {PING_PONG} of {}", absent.join(", ")), why))
}

fn collectives(
    session: &mut Session,
    request: &Request,
    mpi: &IntelMpi,
    share: Duration,
    findings: &mut Findings,
) {
    let mut by_ranks = Vec::new();
    // The more ranks, the longer a round takes.
    let weights: u32 = request.ranks.iter().map(|ranks| u32::from(*ranks)).sum();
    for &ranks in &request.ranks {
        // IMB chooses the sizes: 0, then powers of two up to 4 MiB.
        let sizes = session.options.sizes(&[]);
        let setting = Setting {
            benchmarks: &COLLECTIVES,
            ranks,
            sizes: sizes.into_iter().map(|size| size as u64).collect(),
            seconds: COLLECTIVES_SECONDS,
            iterations: session
                .options
                .iterations(COLLECTIVES_ITERATIONS / u64::from(ranks))
                .max(1),
            other: Through::Shm,
        };
        let until = Instant::now() + share * u32::from(ranks) / weights.max(1);
        match setting.rounds(mpi, until) {
            Ok(found) => {
                if found.given_up > 0 {
                    let why = format!("IMB ran out of its time {} times", found.given_up);
                    findings.leave_out(&format!("sizes of IMB's collectives, {ranks} ranks"), why);
                }
                by_ranks.push((ranks, found.rounds));
            }
            Err(reason) => findings.leave_out(&format!("IMB's collectives, {ranks} ranks"), reason),
        }
        session.bar.advance(1);
    }
    let mut all = Vec::new();
    for benchmark in COLLECTIVES {
        let title = format!(
            "IMB-MPI1 {benchmark} under Intel MPI on two cores: through kestrel against libfabric's shm"
        );
        let id = format!("compare-imb-{}", benchmark.to_lowercase());
        let mut section = Section::new(&id, &title);
        for (ranks, rounds) in &by_ranks {
            section.rows.extend(rows(rounds, benchmark, &format!("{ranks} ranks"), Through::Shm));
        }
        all.extend(section.rows.iter().filter_map(|row| {
            let ratio = row.against.as_ref()?.ratio.median;
            Some((ratio, format!("{benchmark}, {}, {}", row.series, row.label)))
        }));
        if !section.rows.is_empty() {
            findings.sections.push(section);
        }
    }
    let worst = all.iter().max_by(|one, other| one.0.total_cmp(&other.0));
    if let Some((section, (worst, place))) = findings.sections.last_mut().zip(worst) {
        let ratios: Vec<f64> = all.iter().map(|(ratio, _)| *ratio).collect();
        let what = "IMB's collectives: time, of libfabric's shm, geometric mean of all sizes";
        section.aims.push(Aim::at_most(what, geometric_mean(&ratios), COLLECTIVES_MEAN_MAX));
        let what = format!("IMB's collectives: time, of libfabric's shm, worst ({place})");
        section.aims.push(Aim::at_most(&what, *worst, COLLECTIVES_EACH_MAX));
    }
}

/// Benchmarks that one start runs, against whom.
struct Setting {
    benchmarks: &'static [&'static str],
    ranks: u16,
    /// None: as IMB chooses.
    sizes: Vec<u64>,
    /// For each size, at most.
    seconds: f64,
    iterations: u64,
    other: Through,
}

impl Setting {
    /// Rounds until the time is over, one at least; the order turns.
    fn rounds(&self, mpi: &IntelMpi, until: Instant) -> Result<Found, String> {
        let lengths = Lengths::write(&self.sizes)?;
        let sides = [Through::Kestrel, self.other];
        let (mut rounds, mut given_up): (Vec<Round>, usize) = (Vec::new(), 0);
        let mut longest = Duration::ZERO;
        while rounds.is_empty() || Instant::now() + longest <= until {
            let began = Instant::now();
            let mut round = [Times::new(), Times::new()];
            for turn in 0..sides.len() {
                let index = (rounds.len() + turn) % sides.len();
                let side = sides[index];
                let output = mpi.benchmark(side, self.ranks, &self.arguments(&lengths));
                let output = output.map_err(|reason| format!("{}: {reason}", side.name()))?;
                given_up += output.matches("time-out.").count();
                let times = self.times(&output);
                round[index] = times.map_err(|reason| format!("{}: {reason}", side.name()))?;
            }
            rounds.push(round);
            longest = longest.max(began.elapsed());
        }
        Ok(Found { rounds, given_up })
    }

    fn arguments(&self, lengths: &Lengths) -> Vec<String> {
        let mut arguments: Vec<String> = self.benchmarks.iter().map(|&name| name.into()).collect();
        if !self.sizes.is_empty() {
            let path = lengths.0.to_string_lossy();
            arguments.extend(["-msglen".to_owned(), path.into_owned()]);
        }
        let ranks = self.ranks.to_string();
        let (seconds, iterations) = (self.seconds.to_string(), self.iterations.to_string());
        for (name, value) in
            [("-npmin", ranks.as_str()), ("-iter", &iterations), ("-time", &seconds)]
        {
            arguments.extend([name.to_owned(), value.to_owned()]);
        }
        arguments
    }

    fn times(&self, output: &str) -> Result<Times, String> {
        let times = parse(output);
        let absent = |name: &&&str| !times.keys().any(|(benchmark, _)| benchmark == **name);
        match self.benchmarks.iter().find(absent) {
            Some(name) => Err(format!("IMB printed no time of {name}")),
            None => Ok(times),
        }
    }
}

/// Reads IMB's tables, in the column `t[usec]`, or `t_avg[usec]` where the ranks
/// differ. On a busy machine IMB runs out of time: then sizes are missing.
fn parse(output: &str) -> Times {
    let mut times = Times::new();
    let (mut benchmark, mut column) = (String::new(), None);
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((_, name)) = line.split_once("# Benchmarking ") {
            benchmark = name.trim().to_owned();
            column = None;
        } else if words.first() == Some(&"#bytes") {
            column = words.iter().position(|word| ["t[usec]", "t_avg[usec]"].contains(word));
        } else if let Some((size, us)) = column.and_then(|column| {
            Some((words.first()?.parse::<u64>().ok()?, words.get(column)?.parse::<f64>().ok()?))
        }) {
            times.insert((benchmark.clone(), size), us);
        }
    }
    times
}

/// One row a size. A time of 0.00, as IMB rounds, gives no ratio.
fn rows(rounds: &[Round], benchmark: &str, what: &str, other: Through) -> Vec<Row> {
    let sizes = rounds.iter().flat_map(|round| round[0].keys());
    let mut sizes: Vec<u64> =
        sizes.filter(|(name, _)| name == benchmark).map(|(_, size)| *size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let row = |size: u64| {
        let key = (benchmark.to_owned(), size);
        let pairs: Vec<(f64, f64)> = rounds
            .iter()
            .filter_map(|[ours, theirs]| Some((*ours.get(&key)?, *theirs.get(&key)?)))
            .filter(|(ours, theirs)| *ours > 0.0 && *theirs > 0.0)
            .collect();
        let ratio = Ratio::of(&pairs.iter().map(|pair| pair.0 / pair.1).collect::<Vec<_>>())?;
        let ns = |side: fn(&(f64, f64)) -> f64| {
            1e3 * median(&pairs.iter().map(side).collect::<Vec<_>>())
        };
        let against = Against { name: other.name().to_owned(), ns: ns(|pair| pair.1), ratio };
        Some(Row {
            size: Some(size),
            ns: Some(ns(|pair| pair.0)),
            against: Some(against),
            note: format!("rounds: {}", pairs.len()),
            ..Row::new(what, &units::bytes(size))
        })
    };
    sizes.into_iter().filter_map(row).collect()
}

/// A file with sizes, for IMB's `-msglen`. Removed with the value.
struct Lengths(PathBuf);

impl Lengths {
    fn write(sizes: &[u64]) -> Result<Lengths, String> {
        let path = std::env::temp_dir().join(format!("imb-lengths-{}.txt", std::process::id()));
        let failed = |error| format!("cannot write {}: {error}", path.display());
        let text: String = sizes.iter().map(|size| format!("{size}\n")).collect();
        let mut options = std::fs::OpenOptions::new();
        // Nobody else's file, should there be one of this name.
        let _ = std::fs::remove_file(&path);
        let mut file = options.write(true).create_new(true).open(&path).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        Ok(Lengths(path))
    }
}

impl Drop for Lengths {
    fn drop(&mut self) {
        // What is left over is in the folder for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
# List of Benchmarks to run:
# PingPong
# Allreduce

#---------------------------------------------------
# Benchmarking PingPong 
# #processes = 2 
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            8         1000         0.25        32.00
      4194304           10       306.61     13679.49

#----------------------------------------------------------------
# Benchmarking Allreduce 
# #processes = 2 
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.03         0.05         0.04
            4         1000         0.50         0.70         0.60
            8 time-out.; Time limit (secs_per_sample * msg_sizes_list_len) is over; use \"-time X\"

# All processes entering MPI_Finalize
";

    #[test]
    fn the_tables_of_imb_are_read() {
        let times = parse(OUTPUT);
        let at = |name: &str, size| times.get(&(name.to_owned(), size)).copied();
        assert_eq!(times.len(), 4);
        assert_eq!(at("PingPong", 8), Some(0.25));
        assert_eq!(at("PingPong", 4 << 20), Some(306.61));
        assert_eq!((at("Allreduce", 0), at("Allreduce", 4)), (Some(0.04), Some(0.60)));
        assert!(parse("mpiexec: no such program\n").is_empty());
    }

    #[test]
    fn a_benchmark_that_is_missing_is_named() {
        let setting = |benchmarks| Setting {
            benchmarks,
            ranks: 2,
            sizes: Vec::new(),
            seconds: 0.1,
            iterations: 10,
            other: Through::Own,
        };
        assert!(setting(&[PING_PONG, "Allreduce"]).times(OUTPUT).is_ok());
        let error = setting(&COLLECTIVES).times(OUTPUT).expect_err("Alltoall is missing");
        assert!(error.contains("Alltoall"), "{error}");
    }

    #[test]
    fn rounds_become_ratios_and_zeroes_do_not() {
        let times = |us: &[f64]| -> Times {
            us.iter().enumerate().map(|(i, us)| ((PING_PONG.to_owned(), i as u64), *us)).collect()
        };
        let rounds =
            [[times(&[1.0, 0.0]), times(&[2.0, 1.0])], [times(&[3.0, 0.0]), times(&[4.0, 1.0])]];
        let rows = rows(&rounds, PING_PONG, "half round trip", Through::Own);
        assert_eq!(rows.len(), 1);
        let against = rows[0].against.as_ref().expect("a ratio");
        assert_eq!((rows[0].ns, against.ns, against.ratio.median), (Some(2e3), 3e3, 0.625));
        assert_eq!(against.ratio.rounds, 2);
    }

    #[test]
    fn sizes_that_are_missing_are_told() {
        let rows: Vec<Row> =
            [8, 64].map(|size| Row { size: Some(size), ..Row::new("x", "x") }).into();
        assert_eq!(missing(&[8, 64], &rows, 0), None);
        let (who, why) = missing(&[8, 4096, 64, 1 << 20], &rows, 2).expect("two are missing");
        assert_eq!(who, "IMB PingPong of 4 KiB, 1 MiB");
        assert!(why.contains("2 times"), "{why}");
    }
}

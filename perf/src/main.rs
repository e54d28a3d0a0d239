//! kestrel-perf: microbenchmarks of kestrel beside the physical floor.
//!
//! In reading order: [`cli`] what is asked; [`roles`], [`launcher`] and [`bootstrap`]
//! who we are; [`worker`] what every rank does; [`session`] what rank 0 directs;
//! [`parts`] which measurements there are; [`mod@measure`], and in a process alone [`contexts`],
//! [`peeks`], [`peers`], the workloads; [`floor`] what they are compared with; [`peer`] and [`compare`] whom;
//! [`report`], [`table`], [`html`], [`outputs`] what comes out. What the workloads need of an
//! endpoint is a [`port`]: kestrel itself is behind [`fabric`], libfabric behind [`door`].

mod bootstrap;
mod buffer;
mod cli;
mod clock;
mod compare;
mod contexts;
mod cores;
mod doctor;
mod door;
mod end;
mod fabric;
mod floor;
mod html;
mod launcher;
mod link;
mod machine;
mod measure;
mod outputs;
mod parts;
mod peeks;
mod peer;
mod peers;
mod plot;
mod port;
mod probe;
mod progress;
mod report;
mod roles;
mod session;
mod stall;
mod statistics;
mod table;
mod units;
mod worker;

use cli::{Cli, Job, Options, PeerName};
use outputs::{OutputError, Outputs};
use peer::Peer;
use report::{Report, ReportError, Section};
use roles::{Leader, Origin, Role, RoleError};
use session::{Session, SessionError};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    #[error(transparent)]
    Peer(#[from] peer::PeerError),
    #[error("cannot write to standard output: {0}")]
    Standard(std::io::Error),
    #[error("the suite ended with {part}, which failed: {source}")]
    Part { part: &'static str, source: SessionError },
}

fn main() -> ExitCode {
    if probe::serve_if_probed() {
        return ExitCode::SUCCESS;
    }
    let cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::CommandLine(error)) => error.exit(),
        Err(failure) => {
            // Nobody is left to tell where that fails.
            let _ = writeln!(std::io::stderr(), "kestrel-perf: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let job = cli.job.clone().unwrap_or(Job::All);
    if let Job::Report { path } = &job {
        return render_again(path, cli.flags.html);
    }
    let origin = Origin::of(&cli.flags)?;
    cli.check_heeded_by(&origin)?;
    let outputs = Outputs::of(&cli.flags, &job);
    if origin.is_first() {
        outputs.check()?;
    }
    let libfabric = match &job {
        Job::Compare(request) => {
            request.prepare(&cli.flags.provider);
            Some(request.libfabric())
        }
        _ => None,
    };
    let role = match origin {
        Origin::Launched(launched) if ranks_of(&job) < 2 && launched.rank > 0 => {
            eprintln!("kestrel-perf: rank {}: rank 0 alone does {}", launched.rank, job.name());
            return Ok(());
        }
        _ if ranks_of(&job) < 2 => Role::Leader(Leader::alone(&cli.flags)?),
        origin => {
            let wanted = if parts::has_many_ranks(&job) { cli.flags.processes } else { 2 };
            origin.take(&cli.flags, usize::from(wanted), libfabric.clone())?
        }
    };
    let Role::Leader(mut leader) = role else {
        return Ok(());
    };
    let (links, cores) = (std::mem::take(&mut leader.links), leader.cores.clone());
    let mut session = Session::new(Options::new(cli.flags), cores, links, libfabric);
    let done = lead(&mut session, &leader, &job);
    session.bar.finish();
    session.quit();
    drop(session);
    drop(leader);
    match done? {
        Found::Findings(findings) => {
            say(&findings.render())?;
            write_files(&outputs, Some(findings.to_json()), None)
        }
        Found::Report(report, failure) => {
            let said = say(&table::render(&report));
            write_files(&outputs, Some(report.to_json()), Some(html::render(&report)))?;
            failure.map_or(said, Err)
        }
    }
}

/// How many ranks a job needs at least.
fn ranks_of(job: &Job) -> usize {
    parts::of(job).iter().map(|part| part.ranks).max().unwrap_or(2)
}

/// What a job leaves.
enum Found {
    /// With what it ended, if a part of it failed.
    Report(Report, Option<Failure>),
    Findings(doctor::Findings),
}

/// Rank 0: runs the job.
fn lead(session: &mut Session, leader: &Leader, job: &Job) -> Result<Found, Failure> {
    let needed = ranks_of(job);
    if session.ranks() < needed {
        return Err(SessionError::TooFewRanks { needed, have: session.ranks() }.into());
    }
    if needed > 1 {
        session.share_floor()?;
        if let Some(reason) = &session.floor_missing {
            eprintln!("kestrel-perf: no floor: {reason}");
        }
    }
    if *job == Job::Doctor {
        let cores = session.cores_of_pair();
        return Ok(Found::Findings(doctor::examine(session, &cores)));
    }
    if let Some(PeerName::Ucx) = session.options.peer() {
        session.peer = Some(Peer::find(&session.cores_for_peer()?)?);
    }
    if needed > 1 && *job != Job::Floor {
        session.open(2)?;
    }
    let mut report = Report::new(machine::describe(), setup(session, leader));
    if let Job::Compare(request) = job {
        let found = compare::run(session, request)?;
        report.sections.extend(found.sections.into_iter().map(Section::without_gaps));
        let version = session.libfabric_version();
        report.setup.extend(version.map(|version| {
            ("libfabric".to_owned(), format!("{version}, {}", request.libfabric().display()))
        }));
        report.setup.extend(found.left_out.into_iter().map(|who| ("left out".to_owned(), who)));
    }
    for part in parts::of(job) {
        match measure(session, &part, *job == Job::All) {
            Ok(section) => report.sections.push(section.without_gaps()),
            Err(source) if report.sections.is_empty() => return Err(source.into()),
            // What was measured until then is not lost.
            Err(source) => {
                let failure = Failure::Part { part: part.job.name(), source };
                report.setup.push(("failed".to_owned(), failure.to_string()));
                return Ok(Found::Report(report, Some(failure)));
            }
        }
    }
    Ok(Found::Report(report, None))
}

fn measure(
    session: &mut Session,
    part: &parts::Part,
    in_suite: bool,
) -> Result<Section, SessionError> {
    if part.ranks < 2 {
        session.close()?;
    }
    session.bar.limit(in_suite.then(|| Duration::from_secs(part.seconds)));
    (part.measure)(session)
}

/// How this run was set up, for the head of the report.
fn setup(session: &Session, leader: &Leader) -> Vec<(String, String)> {
    let fabric = &session.options.fabric;
    let progress = if fabric.automatic_progress { "automatic" } else { "manual" };
    let floor = match &session.floor_missing {
        _ if session.ranks() < 2 => String::new(),
        None => "measured alternately, by the same processes".to_owned(),
        Some(reason) => format!("none ({reason})"),
    };
    [
        ("ranks", leader.how.clone()),
        ("cores", format!("{:?}", session.cores_of_pair())),
        ("provider", format!("{}, {progress} progress", fabric.provider)),
        ("settings", settings()),
        ("copy routine", fabric::copy_routine().unwrap_or_else(|reason| reason)),
        ("floor", floor),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// What the environment sets of kestrel's parameters.
fn settings() -> String {
    let names = kestrel_core::config::PARAMETERS.iter().map(|parameter| parameter.name);
    let set = names.filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
    set.collect::<Vec<_>>().join(" ")
}

fn render_again(path: &str, html: Option<String>) -> Result<(), Failure> {
    let report = Report::read(path)?;
    let outputs = Outputs::beside(path, html);
    outputs.check()?;
    say(&table::render(&report))?;
    write_files(&outputs, None, Some(html::render(&report)))
}

/// Writes what is wanted of the two, and says which files those are.
fn write_files(
    outputs: &Outputs,
    json: Option<String>,
    html: Option<String>,
) -> Result<(), Failure> {
    let (written, result) = outputs.write(json, html);
    if !written.is_empty() {
        say(&format!("\nwritten: {}\n", written.join(", ")))?;
    }
    Ok(result?)
}

/// Prints; a reader that has seen enough (`| head`) is no error.
fn say(text: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Standard(error))
        }
        _ => Ok(()),
    }
}

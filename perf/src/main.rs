//! kestrel-perf: microbenchmarks of kestrel beside the physical floor.
//!
//! In reading order: [`cli`] what is asked; [`roles`] and [`bootstrap`] who we
//! are; [`worker`] what every rank does; [`session`] what rank 0 directs;
//! [`measure`] the workloads; [`floor`] what they are compared with; [`peer`]
//! and [`compare`] whom; [`report`], [`table`], [`html`] what comes out. What
//! the workloads need of an endpoint is a [`port`]: kestrel itself is behind
//! [`fabric`], libfabric behind [`door`].

mod bootstrap;
mod buffer;
mod cli;
mod clock;
mod compare;
mod contexts;
mod cores;
mod doctor;
mod door;
mod fabric;
mod floor;
mod html;
mod link;
mod machine;
mod measure;
mod peeks;
mod peer;
mod plot;
mod port;
mod probe;
mod progress;
mod report;
mod roles;
mod session;
mod statistics;
mod table;
mod units;
mod worker;

use cli::{Cli, Job, Options};
use report::{Report, ReportError, Section};
use roles::{Leader, Role, RoleError};
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
    Fabric(#[from] fabric::FabricError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Peer(#[from] peer::PeerError),
}

fn main() -> ExitCode {
    if probe::serve_if_probed() {
        return ExitCode::SUCCESS;
    }
    let cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kestrel-perf: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let suite = cli.job.is_none();
    let job = cli.job.unwrap_or(Job::All);
    if let Job::Report { path } = &job {
        return render_again(path, cli.flags.html.as_deref());
    }
    if job == Job::Contexts {
        let options = Options::new(cli.flags.clone());
        let cores = cores::usable(&cli.flags.cores).map_err(RoleError::Cores)?;
        say(&contexts::run(&options.fabric, &cores)?);
        return Ok(());
    }
    if job == Job::Peeks {
        say(&peeks::run(&Options::new(cli.flags.clone()).fabric)?);
        return Ok(());
    }
    for path in cli.flags.json.iter().chain(&cli.flags.html) {
        report::check_writable(path)?;
    }
    if let Job::Compare(request) = &job {
        request.prepare();
    }
    let ranks =
        if matches!(job, Job::Pairs | Job::All) { usize::from(cli.flags.processes) } else { 2 };
    let Role::Leader(mut leader) = roles::take(&cli.flags, ranks)? else {
        return Ok(());
    };
    let links = std::mem::take(&mut leader.links);
    let mut session = Session::new(Options::new(cli.flags.clone()), links, progress::Bar::new());
    let done = lead(&mut session, &leader, &job);
    session.bar.finish();
    session.quit();
    drop(session);
    drop(leader);
    let Some(report) = done? else { return Ok(()) };
    say(&table::render(&report));
    let default = |name: &str| suite.then(|| name.to_owned());
    write_files(
        &report,
        cli.flags.json.or_else(|| default("kestrel-perf.json")),
        cli.flags.html.or_else(|| default("kestrel-perf.html")),
    )
}

/// Rank 0: runs the job. `doctor` prints its findings and leaves no report.
fn lead(session: &mut Session, leader: &Leader, job: &Job) -> Result<Option<Report>, Failure> {
    if session.ranks() < 2 {
        return Err(SessionError::TooFewRanks { needed: 2, have: session.ranks() }.into());
    }
    session.share_floor()?;
    if *job == Job::Doctor {
        say(&doctor::report(session, &leader.cores));
        return Ok(None);
    }
    session.peer = session.options.peer(&leader.cores)?;
    if *job != Job::Floor {
        session.open(2)?;
    }
    let mut report = Report::new(machine::describe(), setup(session, leader));
    if let Job::Compare(request) = job {
        let found = compare::run(session, request, &leader.cores)?;
        report.sections.extend(found.sections.into_iter().map(Section::without_gaps));
        let version = session.libfabric_version();
        report.setup.extend(version.map(|version| {
            ("libfabric".to_owned(), format!("{version}, {}", request.libfabric().display()))
        }));
        report.setup.extend(found.left_out.into_iter().map(|who| ("left out".to_owned(), who)));
        return Ok(Some(report));
    }
    for (measure, seconds) in jobs(job) {
        session.bar.limit((*job == Job::All).then(|| Duration::from_secs(seconds)));
        report.sections.push(measure(session)?.without_gaps());
    }
    Ok(Some(report))
}

type Measure = fn(&mut Session) -> Result<Section, SessionError>;

/// The measurements of a job, in the order in which they run, and the seconds
/// of the suite's minute that each may use on a machine so busy that it needs
/// them: the last samples are left out then.
fn jobs(job: &Job) -> Vec<(Measure, u64)> {
    match job {
        Job::Latency => vec![(measure::latency::job, 8)],
        Job::Bandwidth => vec![(measure::bandwidth::job, 26)],
        Job::Rate => vec![(measure::rate::job, 4)],
        Job::Matching => vec![(measure::matching::job, 10)],
        Job::Pairs => vec![(measure::pairs::job, 6)],
        Job::Rma => vec![(measure::one_sided::rma, 30)],
        Job::Atomics => vec![(measure::one_sided::atomics, 4)],
        Job::Floor => vec![(measure::floor::job, 30)],
        Job::All => vec![
            (measure::latency::job, 8),
            (measure::rate::job, 4),
            (measure::bandwidth::job, 26),
            (measure::matching::job, 10),
            (measure::pairs::job, 6),
            (measure::one_sided::atomics, 2),
        ],
        Job::Contexts | Job::Peeks | Job::Doctor | Job::Compare(_) | Job::Report { .. } => {
            Vec::new()
        }
    }
}

/// How this run was set up, for the head of the report.
fn setup(session: &Session, leader: &Leader) -> Vec<(String, String)> {
    let fabric = &session.options.fabric;
    let progress = if fabric.automatic_progress { "automatic" } else { "manual" };
    let floor = session.floor_missing.as_ref().map_or_else(
        || "measured alternately, by the same processes".to_owned(),
        |reason| format!("none: the ranks share no memory ({reason})"),
    );
    let copier = kestrel_shm::copy::Copier::choose("auto")
        .map_or_else(|error| error.to_string(), |copier| copier.to_string());
    [
        ("ranks", leader.how.clone()),
        ("cores", format!("{:?}", leader.cores)),
        ("provider", format!("{}, {progress} progress", fabric.provider)),
        ("settings", settings()),
        ("copy routine", copier),
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

fn render_again(path: &str, html: Option<&str>) -> Result<(), Failure> {
    let report = Report::read(path)?;
    say(&table::render(&report));
    let beside =
        || std::path::Path::new(path).with_extension("html").to_string_lossy().into_owned();
    write_files(&report, None, Some(html.map_or_else(beside, str::to_owned)))
}

fn write_files(report: &Report, json: Option<String>, html: Option<String>) -> Result<(), Failure> {
    let mut written = Vec::new();
    if let Some(path) = json {
        report::write(&path, &report.to_json())?;
        written.push(path);
    }
    if let Some(path) = html {
        report::write(&path, &html::render(report))?;
        written.push(path);
    }
    if !written.is_empty() {
        say(&format!("\nwritten: {}\n", written.join(", ")));
    }
    Ok(())
}

/// Prints; a reader that has seen enough (`| head`) is no error.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

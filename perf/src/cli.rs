//! The command line: what can be asked, and clear errors for what cannot. Which flags a subcommand
//! takes is in [`heeded`].

mod heeded;

use crate::compare;
use crate::fabric::FabricOptions;
use crate::measure::MESSAGE_BYTES_MAX;
use crate::roles::Origin;
use crate::units::parse_bytes;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;

/// The address of `--listen` without a value.
pub const LISTEN_DEFAULT: &str = "0.0.0.0:7471";

/// Microbenchmarks of kestrel beside the physical floor.
///
/// Without arguments: the whole suite on shared memory in less than a minute,
/// a table at the end, and kestrel-perf.html and kestrel-perf.json beside it. A flag
/// that a subcommand does not use is refused.
#[derive(Debug, Parser)]
#[command(name = "kestrel-perf", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub job: Option<Job>,
    #[command(flatten)]
    pub flags: Flags,
    /// The flags that the command line names, the subcommand's own among them.
    #[arg(skip)]
    given: Vec<String>,
}

impl Cli {
    /// What a command line asks for.
    ///
    /// # Errors
    /// Whatever cannot be had, flags that the subcommand does not heed among it.
    pub fn read(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Cli, clap::Error> {
        let matches = Cli::command().try_get_matches_from(arguments)?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        cli.given = heeded::given(&matches);
        heeded::check(&cli)?;
        Ok(cli)
    }

    /// Refuses what a process that comes from there would take and forget.
    ///
    /// # Errors
    /// The first flag of that kind.
    pub fn check_heeded_by(&self, origin: &Origin) -> Result<(), clap::Error> {
        heeded::check_origin(self, origin)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Job {
    /// Half a round trip by size, and its excess over one cache line's bounce
    Latency,
    /// Streaming and ping-pong by size, beside the best pipelined copy
    Bandwidth,
    /// Small messages a second, one way
    Rate,
    /// Deep queues of posted and of unexpected messages, by class of mask
    Matching,
    /// Many processes: all-to-all and barriers
    Pairs,
    /// One-sided writes and reads: latency and bandwidth by size
    Rma,
    /// Remote atomics: 64-bit fetch-add and compare-swap
    Atomics,
    /// Contexts of a scalable endpoint, a thread each: what all move beside what one moves
    Contexts,
    /// Peeks and claims of messages that wait, beside plain receives, by how many there are
    Peeks,
    /// Peers that are inserted, or connected and idle: what messages between two others cost beside them
    Peers,
    /// Everything above, in less than a minute, with both files: as without a subcommand
    All,
    /// What two cores can do without a protocol: bounce, slots, the grid of copies
    Floor,
    /// What this machine offers, with advice
    Doctor,
    /// The same work in turns on kestrel and on whatever peers this machine has
    ///
    /// Through libfabric's C interface against its other providers and against the
    /// native API; beside UCX; under Intel MPI against its own shared memory and
    /// against libfabric's. Prints ratios with their spread, beside the floor.
    /// `scripts/peers` and `scripts/clients` install the peers; who is not there
    /// is left out.
    Compare(compare::Request),
    /// Renders the page and the table again from a JSON report
    Report {
        /// The report that an earlier run wrote
        path: String,
    },
}

impl Job {
    /// As it is asked for.
    pub fn name(&self) -> &'static str {
        match self {
            Job::Latency => "latency",
            Job::Bandwidth => "bandwidth",
            Job::Rate => "rate",
            Job::Matching => "matching",
            Job::Pairs => "pairs",
            Job::Rma => "rma",
            Job::Atomics => "atomics",
            Job::Contexts => "contexts",
            Job::Peeks => "peeks",
            Job::Peers => "peers",
            Job::All => "all",
            Job::Floor => "floor",
            Job::Doctor => "doctor",
            Job::Compare(_) => "compare",
            Job::Report { .. } => "report",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// The measuring thread drives the engine
    Manual,
    /// The engine drives itself
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeerName {
    Ucx,
}

#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// Message sizes, as in 8,64K,1M
    #[arg(long, global = true, value_delimiter = ',', value_parser = size)]
    pub size: Vec<usize>,
    /// Operations a sample (default: as many as take some milliseconds)
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub iterations: Option<u64>,
    /// Operations before each sample that do not count (of queues: as many rounds as have so many)
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub warmup: Option<u64>,
    /// Messages in flight, and receives posted ahead
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub window: Option<u64>,
    /// Write each buffer before it is sent and read it after it was received, within the time
    #[arg(long, global = true)]
    pub touch: bool,
    /// Queue depths of `matching` and `peeks`
    #[arg(long, global = true, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=4_194_304))]
    pub depth: Vec<u64>,
    /// Processes of `pairs` (two shells are two, a launcher's ranks as many as it starts)
    #[arg(long, global = true, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub processes: u16,
    /// Connected peers of `peers` that are idle
    #[arg(long, global = true, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub peers: u16,
    /// The transport: shm, verbs, or auto
    #[arg(long, global = true, default_value = "auto", value_parser = ["auto", "shm", "verbs"])]
    pub provider: String,
    /// Who drives the engine
    #[arg(long, global = true, value_enum, default_value_t = Progress::Manual)]
    pub progress: Progress,
    /// Cores to pin the ranks to, in turn, as in 0,2 (default: all usable)
    #[arg(long, global = true, value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Compare with a peer, run alternately on the same cores (`scripts/peers` installs it)
    #[arg(long, global = true, value_enum)]
    pub peer: Option<PeerName>,
    /// Write the report as JSON
    #[arg(long, global = true, value_name = "PATH")]
    pub json: Option<String>,
    /// Write the report as a page with plots
    #[arg(long, global = true, value_name = "PATH")]
    pub html: Option<String>,
    /// Be the first of two ranks, and wait a minute for the second (default: 0.0.0.0:7471)
    #[arg(long, global = true, num_args = 0..=1, default_missing_value = LISTEN_DEFAULT, value_name = "HOST:PORT",
          value_parser = host_and_port, conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Be the second of two ranks; under mpirun or srun: where rank 0 listens
    #[arg(long, global = true, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub connect: Option<String>,
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= MESSAGE_BYTES_MAX => Ok(bytes),
        _ => Err(format!("{text} is above the limit of {MESSAGE_BYTES_MAX} bytes")),
    }
}

fn host_and_port(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("{text:?} is not HOST:PORT"))?;
    if host.is_empty() {
        return Err(format!("{text:?} names no host"));
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(text.to_owned()),
        _ => Err(format!("{port:?} is not a port between 1 and 65535")),
    }
}

/// The flags as the workloads use them.
#[derive(Clone, Debug)]
pub struct Options {
    flags: Flags,
    pub fabric: FabricOptions,
}

impl Options {
    pub fn new(flags: Flags) -> Options {
        let fabric = FabricOptions {
            provider: flags.provider.clone(),
            automatic_progress: flags.progress == Progress::Auto,
        };
        Options { flags, fabric }
    }

    /// The peer to compare with, if one was asked for.
    pub fn peer(&self) -> Option<PeerName> {
        self.flags.peer
    }

    pub fn sizes(&self, default: &[usize]) -> Vec<usize> {
        in_order(if self.flags.size.is_empty() { default } else { &self.flags.size })
    }

    /// Of those, what has a byte at least.
    pub fn sizes_with_bytes(&self, default: &[usize]) -> Vec<usize> {
        let mut sizes = self.sizes(default);
        sizes.retain(|size| *size > 0);
        sizes
    }

    pub fn depths(&self, default: &[u64]) -> Vec<u64> {
        in_order(if self.flags.depth.is_empty() { default } else { &self.flags.depth })
    }

    pub fn iterations(&self, default: u64) -> u64 {
        self.flags.iterations.unwrap_or(default)
    }

    pub fn warmup(&self, default: u64) -> u64 {
        self.flags.warmup.unwrap_or(default)
    }

    pub fn peers(&self) -> u16 {
        self.flags.peers
    }

    pub fn touch(&self) -> bool {
        self.flags.touch
    }

    pub fn window(&self, default: u64) -> u64 {
        self.flags.window.unwrap_or(default)
    }
}

/// Each of them once, the least first: what is said of one is often said of the one before.
fn in_order<T: Copy + Ord>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Cli, clap::Error> {
        Cli::read(std::iter::once("kestrel-perf").chain(line.split(' ')))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_understood_before_and_after_the_subcommand() {
        let cli = read("latency --size 8,64K --cores=0,1 --listen").expect("a command line");
        assert_eq!(cli.job, Some(Job::Latency));
        assert_eq!(cli.flags.size, [8, 65536]);
        assert_eq!(cli.flags.listen.as_deref(), Some(LISTEN_DEFAULT));
        assert_eq!(read("--window 8 rate").expect("a command line").flags.window, Some(8));
    }

    #[test]
    fn sizes_and_depths_are_measured_once_the_least_first() {
        let options = Options::new(read("--size 8K,8,8K --depth 131072,64").expect("both").flags);
        assert_eq!(options.sizes(&[1]), [8, 8192]);
        assert_eq!(options.depths(&[1]), [64, 131_072]);
    }

    #[test]
    fn bad_values_are_errors() {
        for bad in [
            "--size 8Q",
            "--size 2G",
            "--size",
            "--iterations 0",
            "--window 0",
            "--window x",
            "--provider tcp",
            "--progress never",
            "--connect nowhere",
            "--connect :1",
            "--connect a:99999",
            "--listen x:0",
            "--listen a:1 --connect b:2",
            "--processes 1",
            "--peers 0",
            "--cores a",
            "--peer mpi",
            "--frobnicate",
            "report",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}

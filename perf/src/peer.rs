//! A peer to compare with: UCX's `ucx_perftest`, run on the same two cores
//! while our ranks sleep.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RUN_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error(
        "no ucx_perftest: not in KESTREL_UCX_PERFTEST, not in PATH, not under target/peers; `scripts/peers` installs it"
    )]
    NotFound,
    #[error("KESTREL_UCX_PERFTEST names {0:?}, which is not a file")]
    NotAFile(PathBuf),
    #[error("cannot run {program:?}: {source}")]
    Start { program: PathBuf, source: std::io::Error },
    #[error("ucx_perftest failed: {0}")]
    Failed(String),
    #[error("ucx_perftest has not finished after {} s", RUN_MAX.as_secs())]
    TooLong,
    #[error("ucx_perftest printed no figure: {0:?}")]
    Unreadable(String),
}

/// A `ucx_perftest` that exists.
pub struct Peer {
    program: PathBuf,
    cores: Vec<usize>,
}

/// A process that ends with this handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Peer {
    /// Looks in `KESTREL_UCX_PERFTEST`, in PATH, and where `scripts/peers` installs.
    pub fn find(cores: &[usize]) -> Result<Peer, PeerError> {
        let cores = cores.to_vec();
        if let Some(given) = std::env::var_os("KESTREL_UCX_PERFTEST").map(PathBuf::from) {
            return if given.is_file() {
                Ok(Peer { program: given, cores })
            } else {
                Err(PeerError::NotAFile(given))
            };
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let in_path = std::env::split_paths(&path).map(|folder| folder.join("ucx_perftest"));
        in_path
            .chain(installed())
            .find(|program| program.is_file())
            .map(|program| Peer { program, cores })
            .ok_or(PeerError::NotFound)
    }

    /// Nanoseconds of half a round trip: the median of one run's.
    pub fn latency_ns(&self, size: usize) -> Result<f64, PeerError> {
        let iterations = ((512 << 20) / size.max(1) as u64).clamp(200, 20_000);
        median_ns_of(&self.measure("tag_lat", size, iterations)?)
    }

    /// Nanoseconds a message, one way.
    pub fn rate_ns(&self, size: usize) -> Result<f64, PeerError> {
        rate_ns_of(&self.measure("tag_bw", size, 200_000)?)
    }

    fn measure(&self, test: &str, size: usize, iterations: u64) -> Result<String, PeerError> {
        let port = free_port()
            .map_err(|source| PeerError::Start { program: self.program.clone(), source })?;
        let core = |index: usize| {
            self.cores.get(index % self.cores.len().max(1)).copied().unwrap_or(0).to_string()
        };
        let arguments = |index: usize| {
            let common = ["-t", test, "-s", &size.to_string(), "-n", &iterations.to_string()]
                .map(str::to_owned);
            let place =
                ["-p", &port.to_string(), "-c", &core(index), "-f", "-v"].map(str::to_owned);
            common.into_iter().chain(place)
        };
        let _server = Running(self.start(arguments(1).collect(), Stdio::null())?);
        let began = Instant::now();
        loop {
            let client = vec!["127.0.0.1".to_owned()].into_iter().chain(arguments(0)).collect();
            let output = finish(Running(self.start(client, Stdio::piped())?))?;
            match output {
                Ok(text) => return Ok(text),
                // The server takes a while to listen.
                Err(error) if error.contains("refused") && began.elapsed() < CONNECT_MAX => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(PeerError::Failed(error)),
            }
        }
    }

    fn start(&self, arguments: Vec<String>, output: Stdio) -> Result<Child, PeerError> {
        let mut command = Command::new(&self.program);
        if std::env::var_os("UCX_TLS").is_none() {
            command.env("UCX_TLS", "posix,cma,self");
        }
        // The wheel keeps its libraries beside its programs and sets no path.
        if let Some(libraries) =
            self.program.parent().and_then(Path::parent).map(|root| root.join("lib"))
        {
            let mut paths = vec![libraries];
            paths.extend(std::env::split_paths(
                &std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
            ));
            command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).unwrap_or_default());
        }
        command
            .args(arguments)
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| PeerError::Start { program: self.program.clone(), source })
    }
}

/// Waits for the end, and gives what was printed, or the complaint.
fn finish(mut client: Running) -> Result<Result<String, String>, PeerError> {
    use std::io::Read;
    let began = Instant::now();
    let status = loop {
        match client.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() > RUN_MAX => return Err(PeerError::TooLong),
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(PeerError::Failed(error.to_string())),
        }
    };
    // The output is a few lines, so the pipe has held it all.
    let mut text = String::new();
    if let Some(mut output) = client.0.stdout.take() {
        let _ = output.read_to_string(&mut text);
    }
    Ok(if status.success() { Ok(text) } else { Err(text) })
}

/// A column of the last line.
fn figure(text: &str, column: usize) -> Result<f64, PeerError> {
    let cell = text.lines().last().and_then(|line| line.split(',').nth(column));
    cell.and_then(|cell| cell.trim().parse::<f64>().ok())
        .filter(|value| *value > 0.0)
        .ok_or_else(|| PeerError::Unreadable(text.to_owned()))
}

/// The median latency: a run is short, and one interruption doubles its average.
fn median_ns_of(text: &str) -> Result<f64, PeerError> {
    Ok(1e3 * figure(text, 1)?)
}

/// The overall message rate, which has more digits than the microseconds beside it.
fn rate_ns_of(text: &str) -> Result<f64, PeerError> {
    Ok(1e9 / figure(text, 7)?)
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Where `scripts/peers` puts it: `target/peers`, beside the running program.
fn installed() -> impl Iterator<Item = PathBuf> {
    let target = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.parent()?.join("peers/lib")));
    let versions =
        target.and_then(|lib| std::fs::read_dir(lib).ok()).into_iter().flatten().flatten();
    versions.map(|python| python.path().join("site-packages/libucx/bin/ucx_perftest"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_read_from_the_last_line() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    500000,0.183,0.196,0.196,38.97,38.97,5107593,5000000\n";
        assert_eq!(rate_ns_of(text).expect("a rate"), 200.0);
        assert_eq!(median_ns_of(text).expect("a median"), 183.0);
        assert!(matches!(rate_ns_of("nonsense"), Err(PeerError::Unreadable(_))));
        assert!(matches!(median_ns_of(""), Err(PeerError::Unreadable(_))));
    }
}

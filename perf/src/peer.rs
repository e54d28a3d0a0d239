//! A peer to compare with: UCX's `ucx_perftest`, run on the same two cores
//! while our ranks sleep.

use crate::fabric::FabricError;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const RUN_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Of what a program says before it fails, so many lines are told.
const COMPLAINT_LINES: usize = 3;

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
    #[error(
        "ucx_perftest has two cores of one host, and its shared memory, and the ranks have not: {0}"
    )]
    Apart(String),
    #[error(transparent)]
    Settings(#[from] FabricError),
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
struct Running {
    child: Child,
    /// Reads what it complains of, since a pipe that is full would hold it up.
    complaints: Option<JoinHandle<String>>,
}

impl Running {
    fn of(mut child: Child) -> Running {
        let pipe = child.stderr.take();
        let complaints = pipe.map(|pipe| std::thread::spawn(move || read_all(pipe)));
        Running { child, complaints }
    }

    /// What it complained of, once it has ended.
    fn complaints(&mut self) -> String {
        self.complaints.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
    }

    /// Why it has ended, if it has.
    fn failure(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!("its server: {}", complaint(status, &self.complaints(), "")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What has been read until an error is all there is.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last lines of what a program said before it failed; how it ended, if it said nothing.
fn complaint(status: ExitStatus, complaints: &str, printed: &str) -> String {
    let lines = [printed, complaints].into_iter().flat_map(str::lines).map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [] => status.to_string(),
        lines => lines[lines.len().saturating_sub(COMPLAINT_LINES)..].join("; "),
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
        let iterations = ((4 << 30) / size.max(1) as u64).clamp(200, 200_000);
        rate_ns_of(&self.measure("tag_bw", size, iterations)?)
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
        let mut server = Running::of(self.start(arguments(1).collect(), Stdio::null())?);
        let began = Instant::now();
        loop {
            let client = vec!["127.0.0.1".to_owned()].into_iter().chain(arguments(0)).collect();
            let output = finish(Running::of(self.start(client, Stdio::piped())?))?;
            match output {
                Ok(text) => return Ok(text),
                Err(Failed { last, is_refused: true }) if began.elapsed() < CONNECT_MAX => {
                    if let Some(reason) = server.failure() {
                        return Err(PeerError::Failed(format!("{last}; {reason}")));
                    }
                    // The server takes a while to listen.
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Failed { last, .. }) => return Err(PeerError::Failed(last)),
            }
        }
    }

    fn start(&self, arguments: Vec<String>, output: Stdio) -> Result<Child, PeerError> {
        let mut command = Command::new(&self.program);
        if std::env::var_os("UCX_TLS").is_none() {
            command.env("UCX_TLS", "posix,cma,self");
        }
        // The wheel keeps its libraries beside its programs and sets no path.
        if let Some(libraries) = self
            .program
            .parent()
            .and_then(Path::parent)
            .map(|root| root.join("lib"))
            .filter(|lib| lib.is_dir())
        {
            let set = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            // An empty one would be the current folder.
            let others = std::env::split_paths(&set).filter(|path| !path.as_os_str().is_empty());
            let paths: Vec<PathBuf> = std::iter::once(libraries).chain(others).collect();
            command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).unwrap_or_default());
        }
        end_with_us(&mut command);
        command
            .args(arguments)
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| PeerError::Start { program: self.program.clone(), source })
    }
}

/// Ends the child with this process, however that ends: a server waits for its client for ever.
pub fn end_with_us(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            // It may have ended before it was asked to tell.
            if libc::getppid() as u32 == parent {
                return Ok(());
            }
            Err(std::io::ErrorKind::Interrupted.into())
        });
    }
}

/// A program that failed.
#[derive(Debug, PartialEq)]
struct Failed {
    /// What it said last.
    last: String,
    /// Whether nobody listens, as it says somewhere.
    is_refused: bool,
}

/// Waits for the end, and gives what was printed, or the complaint.
fn finish(mut client: Running) -> Result<Result<String, Failed>, PeerError> {
    let began = Instant::now();
    let status = loop {
        match client.child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() > RUN_MAX => return Err(PeerError::TooLong),
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(PeerError::Failed(error.to_string())),
        }
    };
    // The output is a few lines, so the pipe has held it all.
    let text = client.child.stdout.take().map(read_all).unwrap_or_default();
    if status.success() {
        return Ok(Ok(text));
    }
    let complaints = client.complaints();
    let is_refused = [&text, &complaints].iter().any(|said| said.contains("refused"));
    Ok(Err(Failed { last: complaint(status, &complaints, &text), is_refused }))
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

    #[test]
    fn what_a_program_complains_of_is_told() {
        let run = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
            finish(Running::of(command.spawn().expect("a shell"))).expect("it ends")
        };
        assert_eq!(run("echo one; echo two >&2"), Ok("one\n".to_owned()));
        let error = run("echo refused; seq 5 >&2; exit 3").expect_err("it fails");
        assert_eq!(error, Failed { last: "3; 4; 5".to_owned(), is_refused: true });
        let error = run("exit 3").expect_err("it fails");
        assert!(error.last.contains("exit status: 3") && !error.is_refused, "{error:?}");
        // More than a pipe holds.
        let long = run("head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1").expect_err("it fails");
        assert_eq!(long.last.len(), 300_000);
        let mut command = Command::new("/bin/sh");
        let command = command.args(["-c", "echo no device >&2; exit 1"]).stderr(Stdio::piped());
        let mut server = Running::of(command.spawn().expect("a shell"));
        server.child.wait().expect("it ends");
        assert_eq!(server.failure().as_deref(), Some("its server: no device"));
    }
}

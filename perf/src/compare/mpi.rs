//! Intel MPI, started on kestrel or on something else, with the proof of where it was.

use crate::peer::end_with_us;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One start may take no longer.
const RUN_MAX: Duration = Duration::from_secs(60);
/// What mpiexec has to end its ranks before it is killed.
const END_MAX: Duration = Duration::from_secs(3);

/// What the MPI's messages go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    Kestrel,
    /// libfabric's shm provider.
    Shm,
    /// The MPI's own shared memory.
    Own,
}

impl Through {
    pub fn name(self) -> &'static str {
        match self {
            Through::Kestrel => "kestrel",
            Through::Shm => "libfabric's shm",
            Through::Own => "Intel MPI's own shm",
        }
    }

    /// The name that `I_MPI_DEBUG` prints; none where libfabric is not used.
    fn provider(self) -> Option<&'static str> {
        match self {
            Through::Kestrel => Some("kestrel"),
            Through::Shm => Some("shm"),
            Through::Own => None,
        }
    }
}

/// An installed Intel MPI with its benchmarks.
pub struct IntelMpi {
    folder: PathBuf,
    /// The folder of kestrel's library.
    library: PathBuf,
    /// Where all ranks run.
    cores: Vec<usize>,
}

impl IntelMpi {
    /// # Errors
    /// A sentence, if it is not there.
    pub fn find(folder: PathBuf, library: PathBuf, cores: &[usize]) -> Result<IntelMpi, String> {
        for program in ["bin/mpiexec", "bin/IMB-MPI1"] {
            let path = folder.join(program);
            if !path.is_file() {
                return Err(format!("no {} (scripts/clients installs it)", path.display()));
            }
        }
        // Two cores, as everything else here has.
        let cores = cores.iter().copied().take(2).collect();
        Ok(IntelMpi { folder, library, cores })
    }

    /// Runs IMB-MPI1 and gives what it printed.
    ///
    /// # Errors
    /// A sentence: it failed, took too long, or went through something else.
    pub fn benchmark(
        &self,
        through: Through,
        ranks: u16,
        arguments: &[String],
    ) -> Result<String, String> {
        let mut command = Command::new(self.folder.join("bin/mpiexec"));
        command
            .args(["-n", &ranks.to_string()])
            .arg(self.folder.join("bin/IMB-MPI1"))
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.folder.join("lib"))
            .env("I_MPI_DEBUG", "4")
            .env_remove("FI_PROVIDER")
            .env_remove("FI_PROVIDER_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        match through.provider() {
            None => command.env("I_MPI_FABRICS", "shm"),
            Some(provider) => command.env("I_MPI_FABRICS", "ofi").env("FI_PROVIDER", provider),
        };
        if through == Through::Kestrel {
            command.env("FI_PROVIDER_PATH", &self.library);
        }
        confine(&mut command, self.cores.clone());
        let child = command.spawn().map_err(|error| format!("cannot start mpiexec: {error}"))?;
        let output = Running(child).finish()?;
        match provider_of(&output) {
            found if found == through.provider() => Ok(output),
            found => Err(format!("went through {} instead", found.unwrap_or("no libfabric"))),
        }
    }
}

/// The provider that a rank says it uses.
fn provider_of(output: &str) -> Option<&str> {
    let (_, rest) = output.split_once("libfabric provider: ")?;
    rest.split([';', '\n', ' ']).next()
}

/// Gives the child these cores only (this process sits on one of them), and ends
/// it with this process.
fn confine(command: &mut Command, cores: Vec<usize>) {
    end_with_us(command);
    // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for &core in &cores {
                libc::CPU_SET(core, &mut set);
            }
            match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// mpiexec and its ranks, which end with this handle.
struct Running(Child);

impl Running {
    /// Waits for the end; what was printed, or the last of it if that was bad.
    fn finish(mut self) -> Result<String, String> {
        let mut pipe = self.0.stdout.take();
        let mut errors = self.0.stderr.take();
        let began = Instant::now();
        let text = |pipe: &mut Option<_>| read_all(pipe.take());
        std::thread::scope(|scope| {
            // Pipes fill: they are read while the program runs.
            let printed = scope.spawn(move || text(&mut pipe));
            let complaints = scope.spawn(move || read_all(errors.take()));
            let status = loop {
                match self.0.try_wait() {
                    Ok(Some(status)) => break Ok(status),
                    Ok(None) if began.elapsed() < RUN_MAX => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Ok(None) => break Err(format!("stopped after {} s", RUN_MAX.as_secs())),
                    Err(error) => break Err(error.to_string()),
                }
            };
            self.end();
            let printed = printed.join().unwrap_or_default();
            let complaints = complaints.join().unwrap_or_default();
            let status = status?;
            if status.success() {
                return Ok(printed);
            }
            let last = |text: &str| text.lines().last().unwrap_or_default().to_owned();
            let why = [last(&complaints), last(&printed)].join(" ");
            Err(format!("mpiexec failed ({status}): {}", why.trim()))
        })
    }

    /// Asks the group to end, then kills what is left of it.
    fn end(&mut self) {
        let group = self.0.id() as libc::pid_t;
        if matches!(self.0.try_wait(), Ok(None)) {
            // SAFETY: the child is not reaped yet, so the number is still its group's.
            unsafe { libc::killpg(group, libc::SIGTERM) };
            let began = Instant::now();
            while began.elapsed() < END_MAX && matches!(self.0.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if matches!(self.0.try_wait(), Ok(None)) {
            // SAFETY: as above.
            unsafe { libc::killpg(group, libc::SIGKILL) };
            let _ = self.0.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn read_all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What has been read until an error is all there is.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_is_what_the_debug_line_says() {
        let output = "[0] MPI startup(): Library kind: release\n[0] MPI startup(): libfabric provider: kestrel\n";
        assert_eq!(provider_of(output), Some("kestrel"));
        assert_eq!(provider_of("libfabric provider: tcp;ofi_rxm\n"), Some("tcp"));
        assert_eq!(provider_of("#      Intel(R) MPI Benchmarks\n"), None);
    }

    #[test]
    fn a_missing_installation_is_named() {
        let error = IntelMpi::find("/nonexistent".into(), "/".into(), &[0]).err();
        assert!(error.expect("it is not there").contains("/nonexistent/bin/mpiexec"));
    }

    #[test]
    fn output_is_read_and_failures_are_told() {
        let run = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
            Running(command.process_group(0).spawn().expect("a shell")).finish()
        };
        assert_eq!(run("echo one; echo two"), Ok("one\ntwo\n".to_owned()));
        let error = run("echo bad >&2; exit 3").expect_err("it fails");
        assert!(error.contains("bad") && error.contains('3'), "{error}");
        // More than a pipe holds.
        let long = run("head -c 300000 /dev/zero | tr '\\0' x").expect("it succeeds");
        assert_eq!(long.len(), 300_000);
    }
}

//! What `compare` was asked for, and where on this machine the others are.

use crate::door::providers::{self, KESTREL_FILE};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Tagged messages through libfabric's C interface
    Door,
    /// Writes, reads and atomics through libfabric's C interface
    Rma,
    /// Beside UCX's own benchmark, `ucx_perftest`
    Ucx,
    /// Intel's MPI benchmarks under Intel MPI
    Imb,
}

impl Part {
    /// Its share of the time, among those that run.
    pub fn weight(self) -> u32 {
        match self {
            Part::Door => 2,
            Part::Rma | Part::Ucx => 3,
            Part::Imb => 10,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Request {
    /// Only these parts (default: all)
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// libfabric's other providers to compare with
    #[arg(long, value_delimiter = ',', default_value = "shm", value_name = "NAME")]
    pub providers: Vec<String>,
    /// The libfabric (default: Intel MPI's under target/clients, then the system's)
    #[arg(long, value_name = "PATH")]
    pub libfabric: Option<PathBuf>,
    /// The folder with libkestrel_fi.so (default: the one of this program)
    #[arg(long, value_name = "FOLDER")]
    pub library: Option<PathBuf>,
    /// Where Intel MPI is installed (default: where `scripts/clients` puts it)
    #[arg(long, value_name = "FOLDER")]
    pub intel_mpi: Option<PathBuf>,
    /// Ranks of the collectives
    #[arg(long, value_delimiter = ',', default_value = "2,4,8", value_parser = clap::value_parser!(u16).range(2..=256))]
    pub ranks: Vec<u16>,
    /// About how long all parts together may take
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(5..=800))]
    pub seconds: u64,
}

impl Request {
    pub fn parts(&self) -> Vec<Part> {
        if self.only.is_empty() {
            return Part::value_variants().to_vec();
        }
        let asked = |part: &&Part| self.only.contains(part);
        Part::value_variants().iter().filter(asked).copied().collect()
    }

    /// The libfabric to load: a file, or a name for the loader.
    pub fn libfabric(&self) -> PathBuf {
        self.libfabric.clone().unwrap_or_else(|| {
            let intel = self.intel_mpi().join("lib/libfabric.so.1");
            if intel.is_file() { intel } else { PathBuf::from("libfabric.so.1") }
        })
    }

    /// Where Intel MPI would be.
    pub fn intel_mpi(&self) -> PathBuf {
        self.intel_mpi.clone().unwrap_or_else(|| beside_program("../clients/intelmpi"))
    }

    /// The folder with kestrel's library, in full as libfabric needs it.
    ///
    /// # Errors
    /// A sentence, if it is not there.
    pub fn library(&self) -> Result<PathBuf, String> {
        let folder = self.library.clone().unwrap_or_else(|| beside_program("."));
        let absent = || {
            let folder = folder.display();
            format!("no {KESTREL_FILE} in {folder} (cargo build --release leaves it there)")
        };
        let folder = std::fs::canonicalize(&folder).map_err(|_| absent())?;
        if folder.join(KESTREL_FILE).is_file() { Ok(folder) } else { Err(absent()) }
    }

    /// Tells the libfabric that this process and those that it starts will load
    /// where its providers are, and kestrel there of the transport. Called before there is a second
    /// thread.
    pub fn prepare(&self, transport: &str) {
        let mut variables = Vec::new();
        if transport != "auto" {
            variables.push(("FI_KESTREL_TRANSPORT", transport.into()));
        }
        if let Ok(folder) = self.library() {
            variables.extend(providers::environment(&self.libfabric(), &folder, &self.providers));
        }
        for (name, value) in variables {
            // SAFETY: no other thread runs yet that could read the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// A path from the folder of the running program: `target/release`, say.
fn beside_program(path: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let path = program.parent().unwrap_or(Path::new(".")).join(path);
    std::fs::canonicalize(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        request: Request,
    }

    #[test]
    fn parts_come_once_and_in_their_order() {
        let parts = |line: &str| Line::parse_from(line.split(' ')).request.parts();
        assert_eq!(parts("compare").len(), 4);
        assert_eq!(parts("compare --only imb,door,imb"), [Part::Door, Part::Imb]);
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let request = Line::parse_from(["compare", "--library", "/nonexistent"]).request;
        let reason = request.library().expect_err("there is no such folder");
        assert!(reason.contains(KESTREL_FILE) && reason.contains("/nonexistent"), "{reason}");
    }
}

//! How this process learns its rank, and how ranks find each other.
//!
//! Either rank 0 spawns the others, or two shells use `--listen` and
//! `--connect`, or a launcher started them all and says so in the environment;
//! then they meet at rank 0's TCP address: `--connect`, or a port of this host
//! derived from the job's name.

use crate::link::{Link, LinkError};
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long ranks look for each other.
const MEET_MAX: Duration = Duration::from_secs(60);
const HELLO_MAX: Duration = Duration::from_secs(5);
const GREETING: &str = concat!("kestrel-perf ", env!("CARGO_PKG_VERSION"));

/// The environments of launchers: rank, size, and what they are.
const LAUNCHERS: [(&str, &str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI's environment"),
    ("PMI_RANK", "PMI_SIZE", "the environment of PMI"),
    ("PMIX_RANK", "OMPI_UNIVERSE_SIZE", "the environment of PMIx"),
    ("PMIX_RANK", "SLURM_NTASKS", "the environment of PMIx under Slurm"),
    ("SLURM_PROCID", "SLURM_NTASKS", "Slurm's environment"),
];

/// What names the job, the same in all its ranks on a host.
const JOB_NAMES: [&str; 5] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_ess_jobid",
    "PMI_JOBID",
    "SLURM_JOB_ID",
];

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("{variable}={value:?} is not a number")]
    NotANumber { variable: &'static str, value: String },
    #[error("the launcher says rank {rank} of {size}")]
    BadRank { rank: usize, size: usize },
    #[error("cannot listen at {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("no address for {address}: {source}")]
    Resolve { address: String, source: std::io::Error },
    #[error("nobody answers at {address} ({last}); is rank 0 listening there?")]
    Connect { address: String, last: std::io::Error },
    #[error("only {present} of {size} ranks came within {} s", MEET_MAX.as_secs())]
    Missing { present: usize, size: usize },
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("rank 0 is {0:?}, and this is {GREETING}")]
    Version(String),
}

/// Who this process is, by the launcher's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    pub rank: usize,
    pub size: usize,
    pub by: &'static str,
}

/// Reads the launcher's environment; nothing if there is none, or one rank only.
pub fn launched(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Launched>, BootstrapError> {
    for (rank_name, size_name, by) in LAUNCHERS {
        let (Some(rank), Some(size)) = (variable(rank_name), variable(size_name)) else {
            continue;
        };
        let number = |variable, value: String| {
            value.parse::<usize>().map_err(|_| BootstrapError::NotANumber { variable, value })
        };
        let (rank, size) = (number(rank_name, rank)?, number(size_name, size)?);
        if size == 1 {
            return Ok(None);
        }
        if rank >= size {
            return Err(BootstrapError::BadRank { rank, size });
        }
        return Ok(Some(Launched { rank, size, by }));
    }
    Ok(None)
}

/// Where rank 0 of this job listens if nobody says: this host, and a port made
/// of the job's name, or of the launcher's process where it has none.
pub fn default_address(variable: impl Fn(&str) -> Option<String>) -> String {
    let mut hasher = DefaultHasher::new();
    let named: Vec<String> = JOB_NAMES.iter().filter_map(|name| variable(name)).collect();
    if named.is_empty() {
        std::os::unix::process::parent_id().hash(&mut hasher);
    } else {
        named.hash(&mut hasher);
        variable("SLURM_STEP_ID").hash(&mut hasher);
    }
    format!("127.0.0.1:{}", 20_000 + hasher.finish() % 12_000)
}

#[derive(Serialize, Deserialize)]
struct Hello {
    greeting: String,
    rank: usize,
}

/// Rank 0: waits for ranks 1 to `size - 1`. Strangers are sent away.
pub fn gather(address: &str, size: usize) -> Result<Vec<Link>, BootstrapError> {
    let listen = |source| BootstrapError::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    let began = Instant::now();
    let mut links: Vec<Option<Link>> = (1..size).map(|_| None).collect();
    while links.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => admit(stream, &mut links),
            Err(_) if began.elapsed() < MEET_MAX => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => {
                let present = 1 + links.iter().flatten().count();
                return Err(BootstrapError::Missing { present, size });
            }
        }
    }
    Ok(links.into_iter().flatten().collect())
}

/// Takes a caller in if it says hello properly and its place is free.
fn admit(stream: TcpStream, links: &mut [Option<Link>]) {
    if stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).is_err() {
        return;
    }
    let mut link = Link::from(stream);
    let Ok(hello) = link.receive::<Hello>(HELLO_MAX) else {
        return;
    };
    if link.send(&GREETING).is_err() || hello.greeting != GREETING {
        return;
    }
    if let Some(place) = hello.rank.checked_sub(1).and_then(|index| links.get_mut(index)) {
        place.get_or_insert(link);
    }
}

/// Another rank: finds rank 0.
pub fn call(address: &str, rank: usize) -> Result<Link, BootstrapError> {
    let began = Instant::now();
    let resolved = address
        .to_socket_addrs()
        .map_err(|source| BootstrapError::Resolve { address: address.to_owned(), source })?
        .next()
        .ok_or_else(|| BootstrapError::Resolve {
            address: address.to_owned(),
            source: std::io::ErrorKind::AddrNotAvailable.into(),
        })?;
    let stream = loop {
        match TcpStream::connect_timeout(&resolved, HELLO_MAX) {
            Ok(stream) => break stream,
            Err(_) if began.elapsed() < MEET_MAX => std::thread::sleep(Duration::from_millis(20)),
            Err(last) => {
                return Err(BootstrapError::Connect { address: address.to_owned(), last });
            }
        }
    };
    // Only a matter of speed.
    let _ = stream.set_nodelay(true);
    let mut link = Link::from(stream);
    link.send(&Hello { greeting: GREETING.to_owned(), rank })?;
    let greeting: String = link.receive(MEET_MAX)?;
    if greeting == GREETING { Ok(link) } else { Err(BootstrapError::Version(greeting)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn launchers_are_recognised() {
        let ompi = environment(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("PMIX_RANK", "1"),
        ]);
        let found = launched(ompi).expect("numbers").expect("a launcher");
        assert_eq!((found.rank, found.size), (1, 4));
        let slurm = environment(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")]);
        assert_eq!(
            launched(slurm).expect("numbers").expect("a launcher").by,
            "Slurm's environment"
        );
        let alone = environment(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]);
        assert_eq!(launched(alone).expect("numbers"), None);
        assert_eq!(launched(environment(&[])).expect("nothing"), None);
        assert!(launched(environment(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")])).is_err());
        assert!(launched(environment(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")])).is_err());
    }

    #[test]
    fn the_default_port_is_the_same_in_one_job_and_another_elsewhere() {
        let one = || environment(&[("SLURM_JOB_ID", "7")]);
        assert_eq!(default_address(one()), default_address(one()));
        assert_ne!(default_address(one()), default_address(environment(&[("SLURM_JOB_ID", "8")])));
    }

    #[test]
    fn ranks_meet_and_strangers_do_not_matter() {
        let address = "127.0.0.1:29475";
        let gathering = std::thread::spawn(|| gather(address, 3));
        std::thread::sleep(Duration::from_millis(50));
        drop(TcpStream::connect(address));
        let second = std::thread::spawn(|| call(address, 2));
        call(address, 1).expect("rank 1 comes in");
        second.join().expect("no panic").expect("rank 2 comes in");
        assert_eq!(gathering.join().expect("no panic").expect("all came").len(), 2);
    }
}

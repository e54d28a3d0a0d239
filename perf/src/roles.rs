//! Who this process is in the run: rank 0, which leads, or another, which serves.

use crate::bootstrap::{self, BootstrapError};
use crate::cli::Flags;
use crate::cores;
use crate::launcher::{self, Launched, LauncherError, Meeting};
use crate::link::{Link, LinkError};
use crate::worker::Worker;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set for processes that rank 0 spawns: `RANK CORE,CORE,…`. Their standard
/// input is the control channel.
const SPAWNED: &str = "KESTREL_PERF_SPAWNED";
/// How long spawned ranks may take to end once told to.
const END_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0}")]
    Cores(String),
    #[error("cannot start rank {rank}: {source}")]
    Spawn { rank: usize, source: std::io::Error },
    #[error("{SPAWNED}={0:?} is not what rank 0 sets")]
    NotSpawned(String),
}

/// What there is to do for this process.
pub enum Role {
    Leader(Leader),
    /// Another rank, which has done all that was asked.
    Served,
}

/// Rank 0 and its links to the others.
pub struct Leader {
    pub links: Vec<Link>,
    pub cores: Vec<usize>,
    /// How the ranks came together, in words.
    pub how: String,
    children: Vec<Child>,
}

impl Leader {
    /// This process, for what needs no other.
    pub fn alone(flags: &Flags) -> Result<Leader, RoleError> {
        let cores = cores::usable(&flags.cores).map_err(RoleError::Cores)?;
        cores::pin(0, &cores);
        let how = "this process alone".to_owned();
        Ok(Leader { links: Vec::new(), cores, how, children: Vec::new() })
    }
}

/// Where a process comes from, before it has met any other.
pub enum Origin {
    /// Rank 0 started it, and said so.
    Spawned(String),
    /// The first of two shells, which listens there.
    First(String),
    /// The second one, which calls there.
    Second(String),
    Launched(Launched),
    /// It starts the others.
    Alone,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Origin {
    pub fn of(flags: &Flags) -> Result<Origin, RoleError> {
        if let Some(spawned) = variable(SPAWNED) {
            return Ok(Origin::Spawned(spawned));
        }
        if let Some(address) = &flags.listen {
            return Ok(Origin::First(address.clone()));
        }
        let second = || flags.connect.clone().map_or(Origin::Alone, Origin::Second);
        Ok(launcher::launched(variable)?.map_or_else(second, Origin::Launched))
    }

    /// Whether this is rank 0.
    pub fn is_first(&self) -> bool {
        match self {
            Origin::First(_) | Origin::Alone => true,
            Origin::Launched(launched) => launched.rank == 0,
            Origin::Spawned(_) | Origin::Second(_) => false,
        }
    }

    /// Takes its role and pins the process. Another rank than 0 returns only when
    /// it has served; `libfabric` is what it may load.
    pub fn take(
        self,
        flags: &Flags,
        ranks_wanted: usize,
        libfabric: Option<PathBuf>,
    ) -> Result<Role, RoleError> {
        if let Origin::Spawned(spawned) = &self {
            serve_spawned(spawned, libfabric)?;
            return Ok(Role::Served);
        }
        let cores = cores::usable(&flags.cores).map_err(RoleError::Cores)?;
        match self {
            Origin::Spawned(_) | Origin::Alone => spawn(cores, ranks_wanted).map(Role::Leader),
            Origin::First(address) => {
                let compare = if libfabric.is_some() { "compare " } else { "" };
                eprintln!(
                    "kestrel-perf: rank 0, waiting at {address} for `kestrel-perf \
                     {compare}--connect HOST:PORT`"
                );
                cores::pin(0, &cores);
                let links = bootstrap::gather(&address, 2)?;
                let how = format!("two shells, --listen {address}");
                Ok(Role::Leader(Leader { links, cores, how, children: Vec::new() }))
            }
            Origin::Second(address) => {
                eprintln!("kestrel-perf: rank 1, calling {address}");
                cores::pin(1, &cores);
                // Whether rank 0 is on this host shows when the floor is shared.
                Worker::new(1, libfabric).serve(bootstrap::call(&address, 1)?)?;
                Ok(Role::Served)
            }
            Origin::Launched(launched) => {
                let meeting = match &flags.connect {
                    Some(address) => {
                        Meeting { listen: bootstrap::reachable(address), call: address.clone() }
                    }
                    None => launched.meeting(variable)?,
                };
                take_launched(&launched, &meeting, cores, libfabric)
            }
        }
    }
}

fn take_launched(
    launched: &Launched,
    meeting: &Meeting,
    cores: Vec<usize>,
    libfabric: Option<PathBuf>,
) -> Result<Role, RoleError> {
    let Launched { rank, size, seat, by, .. } = *launched;
    // A launcher that binds its ranks leaves each its own cores: the first is ours then.
    cores::pin(if cores.len() == 1 { 0 } else { seat }, &cores);
    if rank > 0 {
        Worker::new(rank, libfabric).serve(bootstrap::call(&meeting.call, rank)?)?;
        return Ok(Role::Served);
    }
    let how = format!("{size} ranks by {by}, which meet at {}", meeting.call);
    eprintln!("kestrel-perf: {how}");
    let links = bootstrap::gather(&meeting.listen, size)?;
    Ok(Role::Leader(Leader { links, cores, how, children: Vec::new() }))
}

/// Starts ranks 1 to `count - 1` as children.
fn spawn(cores: Vec<usize>, count: usize) -> Result<Leader, RoleError> {
    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let how = format!("{count} processes of its own");
    eprintln!("kestrel-perf: {how}");
    let mut leader = Leader { links: Vec::new(), cores, how, children: Vec::new() };
    for rank in 1..count {
        let failed = |source| RoleError::Spawn { rank, source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let child = Command::new(program)
            // What a rank may load it takes from its own command line.
            .args(std::env::args_os().skip(1))
            .env(SPAWNED, format!("{rank} {list}"))
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        leader.children.push(child);
        leader.links.push(Link::from(ours));
    }
    // After the children started, so that they inherit every core.
    cores::pin(0, &leader.cores);
    Ok(leader)
}

fn serve_spawned(spawned: &str, libfabric: Option<PathBuf>) -> Result<(), RoleError> {
    let bad = || RoleError::NotSpawned(spawned.to_owned());
    let (rank, list) = spawned.split_once(' ').ok_or_else(bad)?;
    let rank: usize = rank.parse().map_err(|_| bad())?;
    let cores: Vec<usize> = list.split(',').filter_map(|core| core.parse().ok()).collect();
    cores::pin(rank, &cores);
    let channel = std::io::stdin().as_fd().try_clone_to_owned();
    let channel = channel.map_err(|source| RoleError::Spawn { rank, source })?;
    match Worker::new(rank, libfabric).serve(Link::from(UnixStream::from(channel))) {
        // Rank 0 went away: it has said why.
        Ok(()) | Err(LinkError::Closed) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Drop for Leader {
    /// Waits for the children, which end when their link closes, and kills
    /// those that do not.
    fn drop(&mut self) {
        self.links.clear();
        let began = Instant::now();
        for child in &mut self.children {
            while began.elapsed() < END_MAX && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
            // Both fail only if the child has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

//! What a launcher says in the environment: which rank this is, of how many, and where rank 0 is.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Variables that tell a rank of itself.
struct Launcher {
    by: &'static str,
    rank: &'static str,
    /// The first that is there counts.
    sizes: &'static [&'static str],
    /// How many of the ranks are on this host, and which of those this is.
    local_size: &'static str,
    local_rank: &'static str,
    /// They count in a step of srun's alone.
    in_step: bool,
}

const SLURM_SIZES: &[&str] = &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
/// No variable has this name. Slurm tells the hosts instead.
const NOT_TOLD: &str = "";

const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        by: "Open MPI's environment",
        rank: "OMPI_COMM_WORLD_RANK",
        sizes: &["OMPI_COMM_WORLD_SIZE"],
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        in_step: false,
    },
    Launcher {
        by: "the environment of PMI",
        rank: "PMI_RANK",
        sizes: &["PMI_SIZE"],
        local_size: "MPI_LOCALNRANKS",
        local_rank: "MPI_LOCALRANKID",
        in_step: false,
    },
    Launcher {
        by: "the environment of PMIx",
        rank: "PMIX_RANK",
        sizes: &["PMIX_SIZE"],
        local_size: NOT_TOLD,
        local_rank: NOT_TOLD,
        in_step: false,
    },
    Launcher {
        by: "the environment of PMIx under Slurm",
        rank: "PMIX_RANK",
        sizes: SLURM_SIZES,
        local_size: NOT_TOLD,
        local_rank: "SLURM_LOCALID",
        in_step: true,
    },
    Launcher {
        by: "Slurm's environment",
        rank: "SLURM_PROCID",
        sizes: SLURM_SIZES,
        local_size: NOT_TOLD,
        local_rank: "SLURM_LOCALID",
        in_step: true,
    },
];

/// Steps of srun's have smaller numbers: a batch script's, for one, is 0xffff_fffb.
const STEP_ID_MAX: u64 = 0xffff_fff0;

/// What names the job, the same in all its ranks.
const JOB_NAMES: [&str; 5] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_ess_jobid",
    "PMI_JOBID",
    "SLURM_JOB_ID",
];

#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    #[error("{variable}={value:?} is not a number")]
    NotANumber { variable: &'static str, value: String },
    #[error("the launcher says rank {rank} of {size}")]
    BadRank { rank: usize, size: usize },
    #[error(
        "{variable}={value} says that a launcher started this process, and nothing says how many \
         ranks there are: {missing} is not set; set it, or unset {variable} to measure without a \
         launcher"
    )]
    NoSize { variable: &'static str, value: String, missing: String },
    #[error(
        "of the {size} ranks by {by} only {local_size} are on this host, and nothing says which \
         host rank 0 is on: start all with --connect HOST:PORT, an address of rank 0's host"
    )]
    SeveralHosts { size: usize, local_size: usize, by: &'static str },
}

/// Who this process is, by the launcher's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    pub rank: usize,
    pub size: usize,
    /// Which of its host's ranks it is.
    pub seat: usize,
    pub by: &'static str,
    hosts: Hosts,
}

/// Where the ranks are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    /// All here, as far as anybody says.
    One,
    /// Rank 0 on this one.
    First(String),
    /// So many here, and others elsewhere.
    Several { local_size: usize },
}

/// Where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Where rank 0 listens.
    pub listen: String,
    /// Where the others find it.
    pub call: String,
}

/// Reads the launcher's environment; nothing if there is none, or one rank only.
///
/// # Errors
/// What it says makes no sense, or is not enough.
pub fn launched(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Launched>, LauncherError> {
    let is_in_step = is_in_step(&variable);
    for launcher in LAUNCHERS.iter().filter(|launcher| is_in_step || !launcher.in_step) {
        let size = launcher.sizes.iter().find_map(|&name| Some((name, variable(name)?)));
        let (Some(rank), Some((size_name, size))) = (variable(launcher.rank), size) else {
            continue;
        };
        let (rank, size) = (number(launcher.rank, rank)?, number(size_name, size)?);
        if size == 1 {
            return Ok(None);
        }
        if rank >= size {
            return Err(LauncherError::BadRank { rank, size });
        }
        let hosts = hosts(launcher, is_in_step, size, &variable)?;
        let seat = match variable(launcher.local_rank) {
            Some(seat) => number(launcher.local_rank, seat)?,
            None => rank,
        };
        return Ok(Some(Launched { rank, size, seat, by: launcher.by, hosts }));
    }
    // One that told nothing but a rank, which is somebody's among others, would be forgotten.
    let is_told = |launcher: &&Launcher| is_in_step || !launcher.in_step;
    for Launcher { rank, sizes, .. } in LAUNCHERS.iter().filter(is_told) {
        if let Some(value) = variable(rank) {
            let missing = sizes.join(" or ");
            return Err(LauncherError::NoSize { variable: rank, value, missing });
        }
    }
    Ok(None)
}

fn number(variable: &'static str, value: String) -> Result<usize, LauncherError> {
    value.parse().map_err(|_| LauncherError::NotANumber { variable, value })
}

/// Whether srun started this process. A batch script has a rank and a size as well, those of its job,
/// and is alone.
fn is_in_step(variable: &impl Fn(&str) -> Option<String>) -> bool {
    let step = variable("SLURM_STEP_ID").and_then(|step| step.parse::<u64>().ok());
    step.is_some_and(|step| step < STEP_ID_MAX)
}

fn hosts(
    launcher: &Launcher,
    is_in_step: bool,
    size: usize,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Hosts, LauncherError> {
    if let Some(local_size) = variable(launcher.local_size) {
        let local_size = number(launcher.local_size, local_size)?;
        return Ok(if local_size < size { Hosts::Several { local_size } } else { Hosts::One });
    }
    // An mpirun's ranks may be within a step, which is that of its helpers: another one.
    let is_step = is_in_step && variable(SLURM_SIZES[0]) == Some(size.to_string());
    let hosts = variable("SLURM_STEP_NUM_NODES").and_then(|count| count.parse::<usize>().ok());
    match hosts.filter(|_| is_step) {
        Some(2..) => {
            // "SLURM_STEP_NODELIST: List of nodes allocated to the step" (srun(1)), in the order in
            // which they are given tasks.
            let first = variable("SLURM_STEP_NODELIST").and_then(|list| first_host(&list));
            Ok(first.map_or(Hosts::Several { local_size: 1 }, Hosts::First))
        }
        _ => Ok(Hosts::One),
    }
}

/// The first name of Slurm's list: `a[03-05,9]b,c` begins with `a03b`.
fn first_host(list: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), list.trim());
    while let Some(at) = rest.find(['[', ',']) {
        name += &rest[..at];
        if rest[at..].starts_with(',') {
            return Some(name).filter(|name| !name.is_empty());
        }
        let (numbers, after) = rest[at + 1..].split_once(']')?;
        name += numbers.split(['-', ',']).next()?;
        rest = after;
    }
    name += rest;
    Some(name).filter(|name| !name.is_empty())
}

impl Launched {
    /// Where its ranks meet if nobody says: on rank 0's host, at a port made of the job's name, or of
    /// the launcher's process where it has none.
    ///
    /// # Errors
    /// There are several hosts, and the launcher does not say which is rank 0's.
    pub fn meeting(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Meeting, LauncherError> {
        let port = port(variable);
        let at = |host: &str| format!("{host}:{port}");
        match &self.hosts {
            Hosts::One => Ok(Meeting { listen: at("127.0.0.1"), call: at("127.0.0.1") }),
            // By its own name a host may know itself at an address that others do not reach.
            Hosts::First(host) => Ok(Meeting { listen: at("0.0.0.0"), call: at(host) }),
            &Hosts::Several { local_size } => {
                Err(LauncherError::SeveralHosts { size: self.size, local_size, by: self.by })
            }
        }
    }
}

fn port(variable: impl Fn(&str) -> Option<String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let named: Vec<String> = JOB_NAMES.iter().filter_map(|name| variable(name)).collect();
    if named.is_empty() {
        std::os::unix::process::parent_id().hash(&mut hasher);
    } else {
        named.hash(&mut hasher);
        variable("SLURM_STEP_ID").hash(&mut hasher);
    }
    20_000 + hasher.finish() % 12_000
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = &'static [(&'static str, &'static str)];

    fn environment(pairs: Pairs) -> impl Fn(&str) -> Option<String> {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn read(pairs: Pairs) -> Result<Option<Launched>, LauncherError> {
        launched(environment(pairs))
    }

    fn found(pairs: Pairs) -> Launched {
        read(pairs).expect("numbers").expect("a launcher")
    }

    /// Where its ranks meet: who is called, and who may call.
    fn meeting(pairs: Pairs) -> Result<(String, String), LauncherError> {
        let Meeting { listen, call } = found(pairs).meeting(environment(pairs))?;
        let host = |address: String| address.split(':').next().unwrap_or_default().to_owned();
        Ok((host(call), host(listen)))
    }

    #[test]
    fn launchers_are_recognised() {
        let ompi = found(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("PMIX_RANK", "1"),
        ]);
        assert_eq!((ompi.rank, ompi.size, ompi.seat), (1, 4, 0));
        let hydra = found(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")]);
        assert_eq!((hydra.rank, hydra.size, hydra.seat), (3, 4, 3));
        let slurm = found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0")]);
        assert_eq!(slurm.by, "Slurm's environment");
        let alone = read(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]);
        assert_eq!(alone.expect("numbers"), None);
        assert_eq!(read(&[]).expect("nothing"), None);
        assert!(read(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).is_err());
        assert!(read(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).is_err());
    }

    #[test]
    fn a_batch_script_is_no_rank_of_its_job() {
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")]).expect("alone"), None);
        for step in ["4294967291", "4294967290", "batch"] {
            let pairs: Vec<_> =
                [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", step)].into();
            assert_eq!(read(pairs.leak()).expect("alone"), None, "{step}");
        }
        // A step of one rank, in a job of two.
        let one = read(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_STEP_ID", "3"),
        ]);
        assert_eq!(one.expect("alone"), None);
    }

    #[test]
    fn a_rank_without_a_size_is_an_error_that_names_what_is_missing() {
        let error = read(&[("PMIX_RANK", "1")]).expect_err("no size").to_string();
        assert!(error.contains("PMIX_RANK=1") && error.contains("PMIX_SIZE"), "{error}");
        // The slots of a job, which need not be its ranks.
        assert!(read(&[("PMIX_RANK", "1"), ("OMPI_UNIVERSE_SIZE", "2")]).is_err());
        assert!(read(&[("PMI_RANK", "0"), ("SLURM_NTASKS", "2")]).is_err());
        let sized = found(&[("PMIX_RANK", "1"), ("PMIX_SIZE", "2")]);
        assert_eq!((sized.rank, sized.size), (1, 2));
        let step =
            found(&[("PMIX_RANK", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_ID", "0")]);
        assert_eq!(step.by, "the environment of PMIx under Slurm");
    }

    #[test]
    fn ranks_of_several_hosts_meet_on_the_first() {
        let both = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let here = meeting(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")]);
        assert_eq!(here.expect("one host"), both("127.0.0.1", "127.0.0.1"));
        let step = meeting(&[
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "node[07-08]"),
            ("SLURM_STEP_ID", "0"),
        ]);
        assert_eq!(step.expect("a first host"), both("node07", "0.0.0.0"));
    }

    #[test]
    fn several_hosts_of_which_none_is_said_to_be_the_first_need_an_address() {
        let ompi: Pairs = &[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            // mpirun's helpers have a step of their own.
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "node[08-09]"),
        ];
        let hydra: Pairs = &[("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")];
        let nameless: Pairs = &[
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_ID", "0"),
        ];
        for pairs in [ompi, hydra, nameless] {
            let error = meeting(pairs).expect_err("nobody says where").to_string();
            assert!(error.contains("--connect HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn the_first_of_a_list_of_hosts_is_found() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("node[01-04,07]", "node01"),
            ("node[9,11]-ib,other", "node9-ib"),
            ("r[1-2]n[03-04]", "r1n03"),
            (" n1 ", "n1"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", ",a", "a[1-2"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    #[test]
    fn the_port_is_the_same_in_one_job_and_another_elsewhere() {
        let of = |pairs: Pairs| port(environment(pairs));
        assert_eq!(of(&[("SLURM_JOB_ID", "7")]), of(&[("SLURM_JOB_ID", "7")]));
        assert_ne!(of(&[("SLURM_JOB_ID", "7")]), of(&[("SLURM_JOB_ID", "8")]));
    }
}

//! Helpers that spin: where they run, who gets a core, and what is said of one that cannot be had.

use std::{fs, sync::Arc, time::Instant};

use kestrel_core::{
    domain::{Domain, DomainOptions, OpenError, ProgressMode},
    error::{Errno, HasErrno},
};
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{process::eventually, scale::PATIENCE};

/// More than any host has, and what the parameter takes at most.
const NO_SUCH_CORE: usize = 8191;

fn open(cores: &[usize]) -> Result<Arc<Domain<ShmProvider>>, OpenError> {
    let provider = Arc::new(ShmProvider::new(ShmOptions::default()).unwrap());
    let progress = ProgressMode::Spinning(cores.to_vec());
    Domain::open(provider, DomainOptions { progress, ..DomainOptions::default() })
}

/// Where each thread of this process that has this name may run, sorted.
fn threads(name: &str) -> Vec<String> {
    told_of(name, "Cpus_allowed_list:")
}

/// What the kernel tells of each of them. It keeps 15 bytes of a name.
fn told_of(name: &str, what: &str) -> Vec<String> {
    let read = |task: &fs::DirEntry, file: &str| fs::read_to_string(task.path().join(file));
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    let named = tasks.filter(|task| read(task, "comm").is_ok_and(|comm| comm.trim() == name));
    // It may end meanwhile.
    let line = |task: fs::DirEntry| {
        let status = read(&task, "status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(what))?;
        Some(line.trim().to_owned())
    };
    let mut found: Vec<String> = named.filter_map(line).collect();
    found.sort();
    found
}

/// All of it in one test: claims are the whole host's, and threads the whole process's.
#[test]
fn each_domain_takes_a_core_that_nobody_has() {
    let usable: Vec<usize> =
        core_affinity::get_core_ids().unwrap().into_iter().map(|core| core.id).collect();
    let refused = open(&[NO_SUCH_CORE]).err().unwrap();
    assert_eq!(refused.errno(), Errno::INVAL, "{refused}");
    assert!(refused.to_string().contains(&format!("core {NO_SUCH_CORE}")), "{refused}");
    // One that was joined may be listed for a moment.
    let ended = |name: &str| eventually("a helper has ended", || threads(name).is_empty());
    let mut expected: Vec<String> = usable.iter().map(usize::to_string).collect();
    expected.sort();
    let mut domains = Vec::new();
    // Another program's tests may have one of them for a moment.
    eventually("each is pinned to a core of its own", || {
        domains.clear();
        ended("kestrel-lcore");
        domains.extend(usable.iter().map(|_| open(&usable).unwrap()));
        threads("kestrel-lcore") == expected
    });
    // One more domain than cores: it works, and sleeps.
    let late = open(&usable).unwrap();
    assert_eq!(threads("kestrel-lcore"), expected);
    // It gives itself its name when it runs.
    let start = Instant::now();
    while threads("kestrel-progres").len() != 1 {
        assert!(start.elapsed() < PATIENCE, "in vain: a helper that sleeps");
        std::thread::yield_now();
    }
    // An application's handlers of what is sent run on its own threads: of 64 signals all are blocked but two
    // that cannot be, the two that are the C library's, and six faults.
    for name in ["kestrel-lcore", "kestrel-progres"] {
        let blocked = told_of(name, "SigBlk:");
        let all = |mask: &String| u64::from_str_radix(mask, 16).unwrap().count_ones() >= 54;
        assert!(blocked.iter().all(all), "{name}: {blocked:?}");
    }
    drop(domains);
    ended("kestrel-lcore");
    // What is given back can be had again.
    eventually("it is pinned again", || {
        let again = open(&usable[..1]).unwrap();
        let is_pinned = threads("kestrel-lcore") == [usable[0].to_string()];
        drop(again);
        ended("kestrel-lcore");
        is_pinned
    });
    drop(late);
    ["kestrel-lcore", "kestrel-progres"].into_iter().for_each(ended);
}

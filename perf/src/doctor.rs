//! What this machine offers to kestrel: a line each, with advice where there is any. As JSON, too.

mod ports;

use crate::fabric;
use crate::floor::Task;
use crate::machine::{self, read};
use crate::measure::Work;
use crate::session::Session;
use crate::units;
use kestrel_core::config::{CmaPolicy, TransportChoice};
use kestrel_shm::copy::Routine;
use serde::Serialize;
use std::fmt::Write;

/// How a finding stands.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
enum Mark {
    #[serde(rename = "ok")]
    Good,
    /// Works, and could be better.
    #[serde(rename = "note")]
    Note,
    #[serde(rename = "bad")]
    Bad,
}

#[derive(Serialize)]
struct Finding {
    mark: Mark,
    what: &'static str,
    found: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    advice: String,
}

/// All that was found.
#[derive(Serialize)]
pub struct Findings {
    version: &'static str,
    findings: Vec<Finding>,
}

fn finding(
    mark: Mark,
    what: &'static str,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Finding {
    Finding { mark, what, found: found.into(), advice: advice.into() }
}

/// Looks at everything.
pub fn examine(session: &mut Session, cores: &[usize]) -> Findings {
    let mut findings = vec![
        cpu(cores),
        distance(session, cores),
        finding(Mark::Good, "caches", machine::caches(cores.first().copied().unwrap_or(0)), ""),
        copy_routines(),
        governor(cores),
        single_copy(crate::probe::single_copy_permitted()),
        yama(read("/proc/sys/kernel/yama/ptrace_scope").as_deref(), lets_read(session)),
        finding(
            Mark::Good,
            "/dev/shm",
            shm_state(),
            "not needed: kestrel shares memory without names (memfd)",
        ),
        descriptors(),
        locked_memory(),
        registrations(),
        membarrier(),
        rdma_devices(session),
    ];
    findings.extend(ports::gids(session));
    findings.push(transport_to_peer(session));
    Findings { version: env!("CARGO_PKG_VERSION"), findings }
}

impl Findings {
    pub fn render(&self) -> String {
        let mut text = String::new();
        for Finding { mark, what, found, advice } in &self.findings {
            let mark = match mark {
                Mark::Good => "ok  ",
                Mark::Note => "note",
                Mark::Bad => "BAD ",
            };
            let _ = writeln!(text, "{mark}  {what:<16}  {found}");
            if !advice.is_empty() {
                let _ = writeln!(text, "      {:<16}  {advice}", "");
            }
        }
        text
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("findings hold nothing that JSON cannot")
    }
}

fn cpu(cores: &[usize]) -> Finding {
    let found = format!("{}; usable cores {cores:?}", machine::cpu_model());
    match cores.len() {
        0 | 1 => finding(
            Mark::Bad,
            "cores",
            found,
            "two polling ranks on one core take turns: give this process two or more (taskset, --cores)",
        ),
        _ => finding(Mark::Good, "cores", found, ""),
    }
}

fn distance(session: &mut Session, cores: &[usize]) -> Finding {
    let task = Task::Bounce { iterations: 100_000 };
    let bounces: Vec<f64> =
        (0..5).filter_map(|_| session.floor(&task).ok()).map(|figures| figures[0]).collect();
    let nearest = bounces.iter().copied().fold(f64::NAN, f64::min);
    let farthest = bounces.iter().copied().fold(f64::NAN, f64::max);
    if nearest.is_nan() {
        let reason = session
            .floor_missing
            .clone()
            .unwrap_or_else(|| "the other rank did not answer".to_owned());
        return finding(Mark::Note, "distance", "not measured", reason);
    }
    let pair = (cores.first(), cores.get(1).or(cores.first()));
    let (Some(a), Some(b)) = pair else {
        return finding(Mark::Note, "distance", "no cores", "");
    };
    let found = format!(
        "one line from core {a} to {b}: {} (five samples: up to {})",
        units::nanoseconds(nearest),
        units::nanoseconds(farthest)
    );
    if nearest > 1_000.0 {
        finding(Mark::Bad, "distance", found, "both ranks share a core, or the machine is busy")
    } else if nearest > 150.0 {
        finding(
            Mark::Note,
            "distance",
            found,
            "the cores are far apart (another socket or cluster): choose neighbours with --cores, if \
             there are any",
        )
    } else if machine::is_virtual() {
        finding(
            Mark::Good,
            "distance",
            found,
            "a virtual machine may move cores about: compare ratios, not nanoseconds",
        )
    } else {
        finding(Mark::Good, "distance", found, "")
    }
}

fn copy_routines() -> Finding {
    let available: Vec<&str> = Routine::available().into_iter().map(Routine::name).collect();
    let available = available.join(", ");
    match fabric::copy_routine() {
        Ok(routine) => {
            let found = format!("{routine} (in/out of shared memory); available: {available}");
            finding(Mark::Good, "copy routine", found, "")
        }
        Err(reason) => finding(
            Mark::Bad,
            "copy routine",
            reason,
            format!("nothing runs with these settings; this processor has: {available}"),
        ),
    }
}

fn governor(cores: &[usize]) -> Finding {
    let path = |core: &usize| format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
    let mut governors: Vec<String> = cores.iter().filter_map(|core| read(&path(core))).collect();
    governors.sort();
    governors.dedup();
    match governors.as_slice() {
        [] => finding(
            Mark::Good,
            "governor",
            "not visible (a virtual machine, or a fixed frequency)",
            "",
        ),
        [one] if one == "performance" => finding(Mark::Good, "governor", one.as_str(), ""),
        several => finding(
            Mark::Note,
            "governor",
            several.join(", "),
            "for steady figures: cpupower frequency-set -g performance",
        ),
    }
}

/// Whether a word of a child process could be read through `process_vm_readv`.
fn single_copy(read: Result<(), std::io::Error>) -> Finding {
    match read {
        Ok(()) => finding(
            Mark::Good,
            "single copy",
            "process_vm_readv between own processes is permitted",
            "",
        ),
        Err(error) => finding(
            Mark::Note,
            "single copy",
            format!("process_vm_readv is refused: {error}"),
            "long messages are copied in and out of shared chunks, twice instead of once: whether that is slower depends on the processor and the length (docs/performance.md); in a container: --cap-add SYS_PTRACE, or a seccomp profile that allows it",
        ),
    }
}

/// Whether an endpoint permits others of its user to read its process's memory, where the system asks for
/// that.
fn lets_read(session: &Session) -> bool {
    !session.options.fabric.config().is_ok_and(|config| config.cma == CmaPolicy::Off)
}

fn yama(ptrace_scope: Option<&str>, lets_read: bool) -> Finding {
    match ptrace_scope {
        Some("1") if !lets_read => finding(
            Mark::Good,
            "yama",
            "ptrace_scope 1, and FI_KESTREL_CMA=off: no process lets others read its memory",
            "",
        ),
        None => finding(Mark::Good, "yama", "not present", ""),
        Some("0") => finding(Mark::Good, "yama", "ptrace_scope 0", ""),
        Some("1") => finding(
            Mark::Good,
            "yama",
            "ptrace_scope 1: a process that opens an endpoint lets any process of its user read its memory (PR_SET_PTRACER_ANY)",
            "FI_KESTREL_CMA=off does without (docs/security.md)",
        ),
        Some(other) => finding(
            Mark::Note,
            "yama",
            format!("ptrace_scope {other}"),
            "the kernel copies for no process without CAP_SYS_PTRACE; sysctl kernel.yama.ptrace_scope=1 allows it (from 3 only a reboot leads back)",
        ),
    }
}

fn shm_state() -> &'static str {
    if std::path::Path::new("/dev/shm").is_dir() { "present" } else { "absent" }
}

fn limit_text(value: u64) -> String {
    if value == u64::MAX { "unlimited".to_owned() } else { value.to_string() }
}

fn descriptors() -> Finding {
    let (soft, hard) = crate::probe::limit(libc::RLIMIT_NOFILE);
    let found = format!("RLIMIT_NOFILE {} (up to {})", limit_text(soft), limit_text(hard));
    if hard < 4096 {
        finding(
            Mark::Note,
            "descriptors",
            found,
            "each connected peer takes a few: raise the hard limit for jobs of hundreds of ranks",
        )
    } else {
        finding(
            Mark::Good,
            "descriptors",
            found,
            "kestrel raises its own soft limit where it needs to",
        )
    }
}

fn locked_memory() -> Finding {
    let (soft, _) = crate::probe::limit(libc::RLIMIT_MEMLOCK);
    if soft == u64::MAX {
        return finding(Mark::Good, "memlock", "unlimited", "");
    }
    let found = format!("RLIMIT_MEMLOCK {}", units::bytes(soft));
    finding(
        Mark::Note,
        "memlock",
        found,
        "shared memory does not care; RDMA devices need locked memory: ulimit -l unlimited",
    )
}

fn registrations() -> Finding {
    const WHAT: &str = "userfaultfd";
    let Err(reason) = kestrel::rdma::can_keep_registrations() else {
        return finding(Mark::Good, WHAT, "permitted", "");
    };
    let advice = "shared memory does not care; RDMA registers each long buffer anew: permit userfaultfd(2), \
                  in a container by its seccomp profile";
    finding(Mark::Note, WHAT, reason, advice)
}

fn membarrier() -> Finding {
    match crate::probe::membarrier_private_expedited() {
        true => finding(Mark::Good, "membarrier", "private expedited", ""),
        false => finding(
            Mark::Note,
            "membarrier",
            "not available",
            "quiet lanes re-enter the poll set with a fence instead",
        ),
    }
}

/// What kestrel finds, by the settings of this run; or why it finds nothing.
fn rdma_devices(session: &Session) -> Finding {
    const WHAT: &str = "RDMA devices";
    let config = match session.options.fabric.config() {
        Ok(config) => config,
        Err(error) => return finding(Mark::Bad, WHAT, error.to_string(), ""),
    };
    let devices = match kestrel::rdma::devices(&config, None) {
        Ok(devices) => devices,
        Err(error) => {
            let (mark, advice) = match config.transport {
                TransportChoice::Shm => {
                    (Mark::Good, "not looked for: shared memory alone is asked for")
                }
                TransportChoice::Verbs => {
                    (Mark::Bad, "RDMA alone is asked for: no peer is reached")
                }
                TransportChoice::Auto if !config.device.are_any() => {
                    (Mark::Bad, "peers of this host are reached, others are not")
                }
                TransportChoice::Auto => (
                    Mark::Note,
                    "peers of this host are reached, others are not; without hardware: soft-RoCE (docs/soft-roce.md)",
                ),
            };
            return finding(mark, WHAT, error.reason, advice);
        }
    };
    let tell = |device: &kestrel::rdma::RdmaDevice| {
        let addresses: Vec<_> = device.addresses.iter().map(ToString::to_string).collect();
        format!("{} at {}", device.name, addresses.join(", "))
    };
    let mut found: Vec<_> = devices.iter().map(tell).collect();
    found.extend(kestrel::rdma::left_out(&config));
    finding(Mark::Good, WHAT, found.join("; "), "")
}

/// Sends the other rank a few messages, and sees which way they went.
fn transport_to_peer(session: &mut Session) -> Finding {
    const WHAT: &str = "this peer";
    let (each_timed, touch) = (false, false);
    let work = Work::PingPong { size: 8, iterations: 10, warmup: 0, each_timed, touch };
    if let Err(error) = session.open(2).and_then(|()| session.work(&work)) {
        return finding(Mark::Bad, WHAT, error.to_string(), "");
    }
    let ways = session.traffic().map_or_else(String::new, |traffic| {
        match (traffic.near.messages, traffic.far.messages) {
            (_, 0) => "shared memory".to_owned(),
            (0, _) => "RDMA".to_owned(),
            _ => traffic.to_string(),
        }
    });
    finding(Mark::Good, WHAT, format!("is reached through {ways}"), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `provider-shm` does it, and as docs/security.md says.
    #[test]
    fn whom_a_process_lets_read_it_is_told_as_it_is() {
        let restricted = yama(Some("1"), true);
        assert!(restricted.found.contains("any process of its user"), "{}", restricted.found);
        assert!(restricted.advice.contains("FI_KESTREL_CMA=off"), "{}", restricted.advice);
        let private = yama(Some("1"), false);
        assert!(!private.found.contains("any process of its user"), "{}", private.found);
        assert!(yama(None, true).mark == Mark::Good && yama(Some("0"), true).mark == Mark::Good);
        assert!(yama(Some("2"), true).mark == Mark::Note);
    }

    #[test]
    fn two_copies_are_not_said_to_be_faster_than_one() {
        let refused = single_copy(Err(std::io::ErrorKind::PermissionDenied.into()));
        assert!(refused.mark == Mark::Note && !refused.advice.contains("faster"));
        assert!(refused.advice.contains("depends on the processor"), "{}", refused.advice);
        assert!(single_copy(Ok(())).advice.is_empty());
    }
}

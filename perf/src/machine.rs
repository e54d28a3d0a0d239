//! What the machine says about itself, from /proc and /sys.

use std::fs;

/// The content of a small file, trimmed.
pub fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The first `name : value` of /proc/cpuinfo.
fn cpuinfo(name: &str) -> Option<String> {
    let text = read("/proc/cpuinfo")?;
    let line =
        text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

pub fn cpu_model() -> String {
    let model = cpuinfo("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    match (cpuinfo("cpu family"), cpuinfo("model")) {
        (Some(family), Some(number)) => format!("{model} (family {family}, model {number})"),
        _ => model,
    }
}

/// Whether a hypervisor is underneath: distances may then change at any time.
pub fn is_virtual() -> bool {
    cpuinfo("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// The caches of a core: `L1d 48 KiB, L2 2 MiB, L3 260 MiB`.
pub fn caches(core: usize) -> String {
    let found = (0..8).filter_map(|index| {
        let at = |name: &str| {
            read(&format!("/sys/devices/system/cpu/cpu{core}/cache/index{index}/{name}"))
        };
        let (level, kind, size) = (at("level")?, at("type")?, at("size")?);
        let letter = match kind.as_str() {
            "Data" => "d",
            "Instruction" => return None,
            _ => "",
        };
        Some(format!("L{level}{letter} {}", size.replace('K', " KiB")))
    });
    let list: Vec<String> = found.collect();
    if list.is_empty() { "unknown".to_owned() } else { list.join(", ") }
}

/// The lines that stand above every report.
pub fn describe() -> Vec<(String, String)> {
    let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let place = if is_virtual() { "virtual machine" } else { "bare machine" };
    [("CPU", cpu_model()), ("caches", caches(0)), ("kernel", format!("Linux {kernel}, {place}"))]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
}

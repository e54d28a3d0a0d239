//! Which core a rank runs on.

use core_affinity::CoreId;

/// The cores that this process may use, or the chosen ones among them.
///
/// # Errors
/// A sentence, if a chosen core does not exist or is not ours to use.
pub fn usable(chosen: &[usize]) -> Result<Vec<usize>, String> {
    let allowed: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    if let Some(missing) = chosen.iter().find(|core| !allowed.contains(core)) {
        return Err(format!(
            "--cores: core {missing} is not usable by this process; usable: {allowed:?}"
        ));
    }
    Ok(if chosen.is_empty() { allowed } else { chosen.to_vec() })
}

/// Pins the calling rank, and says where: ranks go round the cores.
pub fn pin(rank: usize, cores: &[usize]) -> Option<usize> {
    let core = *cores.get(rank % cores.len().max(1))?;
    core_affinity::set_for_current(CoreId { id: core }).then_some(core)
}

/// The core of the calling thread, if it may run on one alone.
pub fn only() -> Option<usize> {
    match core_affinity::get_core_ids().unwrap_or_default().as_slice() {
        [core] => Some(core.id),
        _ => None,
    }
}

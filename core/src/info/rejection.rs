//! Why discovery finds nothing: every hint that cannot be met, its value and ours.
//!
//! libfabric itself can only answer "-61 No data available", which tells
//! nobody which of some eighty fields was too much.

use crate::flags::Flags;

/// One hint that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hint {field} asks for {asked}, kestrel offers {offered}")]
pub struct Rejection {
    /// The field of `fi_info`, as C spells it.
    pub field: &'static str,
    /// What was asked for, in C's words.
    pub asked: String,
    /// What there is instead.
    pub offered: String,
}

/// Capabilities that an application may ask for and [`Flags`] does not name.
const FOREIGN_CAPS: [(u64, &str); 8] = [
    (1 << 22, "FI_PRIORITY"),
    (1 << 41, "FI_AV_USER_ID"),
    (1 << 43, "FI_PEER"),
    (1 << 44, "FI_XPU_TRIGGER"),
    (1 << 47, "FI_HMEM"),
    (1 << 48, "FI_VARIABLE_MSG"),
    (1 << 49, "FI_RMA_PMEM"),
    (1 << 55, "FI_NUMERICHOST"),
];

/// Writes capabilities or operation flags as C spells them: `FI_MSG | FI_HMEM`.
pub(super) fn flags_text(flags: Flags) -> String {
    let mut rest = flags.difference(Flags::all()).bits();
    let known = flags.iter_names().map(|(name, _)| format!("FI_{name}"));
    let foreign = FOREIGN_CAPS.iter().filter(|(bit, _)| flags.bits() & bit != 0);
    let mut names: Vec<String> = known.collect();
    for (bit, name) in foreign {
        if rest & bit != 0 {
            rest &= !bit;
            names.push((*name).to_owned());
        }
    }
    join(names, rest)
}

/// Writes any other bit set, each name after `prefix`.
pub(super) fn bits_text<F>(prefix: &str, bits: F) -> String
where
    F: bitflags::Flags + Copy,
    F::Bits: Into<u64>,
{
    let names = bits.iter_names().map(|(name, _)| format!("{prefix}{name}")).collect();
    let named = bits.iter_names().fold(0, |sum, (_, flag)| sum | flag.bits().into());
    join(names, bits.bits().into() & !named)
}

fn join(mut names: Vec<String>, unnamed: u64) -> String {
    if unnamed != 0 {
        names.push(format!("{unnamed:#x}"));
    }
    if names.is_empty() { "nothing".to_owned() } else { names.join(" | ") }
}

impl Rejection {
    /// All rejections in one line, for a log.
    pub fn summary(rejections: &[Rejection]) -> String {
        let texts: Vec<String> = rejections.iter().map(Rejection::to_string).collect();
        texts.join("; ")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::info::MemoryRegionMode;

    #[test]
    fn flags_are_spelled_as_in_c() {
        let hmem = Flags::from_bits_retain(1 << 47 | 1 << 62);
        let text = flags_text(Flags::TAGGED | Flags::SEND | Flags::DIRECTED_RECV | hmem);
        assert_eq!(text, "FI_TAGGED | FI_SEND | FI_DIRECTED_RECV | FI_HMEM | 0x4000000000000000");
        assert_eq!(flags_text(Flags::empty()), "nothing");
        let mode = MemoryRegionMode::LOCAL | MemoryRegionMode::from_bits_retain(1 << 20);
        assert_eq!(bits_text("FI_MR_", mode), "FI_MR_LOCAL | 0x100000");
    }

    #[test]
    fn a_rejection_names_hint_value_and_offer() {
        let rejection = Rejection {
            field: "tx_attr->size",
            asked: "70000".into(),
            offered: "at most 65536".into(),
        };
        let text = "hint tx_attr->size asks for 70000, kestrel offers at most 65536";
        assert_eq!(rejection.to_string(), text);
        assert_eq!(Rejection::summary(&[rejection.clone(), rejection]), format!("{text}; {text}"));
    }
}

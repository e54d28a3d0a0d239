//! The document of the wire format says what the code does, as far as a number tells.

use kestrel_core::wire::{self, Kind};
use kestrel_shm::region::LANE_BYTES;

use crate::tree::{Finding, Tree};

const DOCUMENT: &str = "docs/protocol.md";
/// The head of the table of packets, whose rows are numbered from 1 in their order.
const KINDS: &str = "| kind | word |";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.find(DOCUMENT) else {
        return vec![format!("{DOCUMENT}:1: not there")];
    };
    let mut findings = Vec::new();
    let version = format!("Version {}.", wire::VERSION);
    let lane = format!("| 104 to 107 | bytes of the lane: {LANE_BYTES} |");
    for said in [version, lane] {
        if !document.text.lines().any(|line| line.starts_with(&said)) {
            findings.push(document.finding(1, format!("no line begins with '{said}'")));
        }
    }
    let rows = kinds_of(&document.text);
    let kinds = (1..=u8::MAX).map_while(Kind::from_byte).map(|kind| format!("{kind:?}"));
    let kinds: Vec<String> = kinds.collect();
    if rows != kinds {
        findings.push(document.finding(1, format!("the kinds are {rows:?}, not {kinds:?}")));
    }
    findings
}

fn kinds_of(text: &str) -> Vec<&str> {
    let table = text.lines().skip_while(|line| !line.starts_with(KINDS)).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.split('|').nth(1)).map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::workspace;

    #[test]
    fn an_old_number_and_a_missing_kind_are_found() {
        let good = workspace(|tree| tree.find(DOCUMENT).unwrap().text.clone());
        assert!(check(&Tree::of(&[(DOCUMENT, &good)])).is_empty());
        let version = format!("Version {}.", wire::VERSION);
        for (from, to) in [
            (version.as_str(), "Version 1."),
            (&LANE_BYTES.to_string(), "12288"),
            ("| Part |", "| Piece |"),
            ("| Withdraw | operation |", "Withdraw"),
        ] {
            assert!(good.contains(from), "{from}");
            let bad = good.replacen(from, to, 1);
            assert_eq!(check(&Tree::of(&[(DOCUMENT, &bad)])).len(), 1, "{from}");
        }
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}

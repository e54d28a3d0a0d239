//! Labelled memory orderings come in pairs: where A1 "pairs with R1", R1 pairs with A1.
//!
//! Labels are the affair of one crate: its files are searched for the partner.

use std::collections::BTreeMap;

use crate::{
    comments::{Comment, line_comments},
    tree::{File, Finding, Tree},
};

/// One label, where it stands and what it names as partners.
struct Label<'a> {
    file: &'a File,
    line: usize,
    name: String,
    partners: Vec<String>,
}

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<Label>> = BTreeMap::new();
    for file in tree.rust_files() {
        let package = tree.package_of(&file.path);
        crates.entry(package).or_default().extend(labels_of(file));
    }
    crates.values().flat_map(|labels| check_crate(labels)).collect()
}

fn check_crate(labels: &[Label]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for label in labels {
        let name = &label.name;
        if label.partners.is_empty() {
            findings.push(label.file.finding(label.line, format!("{name} names no partner")));
        }
        for partner in &label.partners {
            let answers = labels.iter().any(|other| {
                other.name == *partner && other.partners.iter().any(|back| back == name)
            });
            if !answers {
                let sentence = format!("no {partner} in this crate pairs with {name}");
                findings.push(label.file.finding(label.line, sentence));
            }
        }
    }
    findings
}

fn labels_of(file: &File) -> Vec<Label<'_>> {
    let blocks = blocks_of(line_comments(&file.text));
    let labels = blocks.iter().flat_map(|(line, text)| {
        let labels = labels_in(text).into_iter();
        labels.map(|(name, partners)| Label { file, line: *line, name, partners })
    });
    labels.collect()
}

/// Comments on neighbouring lines, joined: a sentence may wrap.
fn blocks_of(comments: Vec<Comment>) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut line_next = 0;
    for comment in comments {
        match blocks.last_mut() {
            Some((_, text)) if comment.alone && comment.line == line_next => {
                *text = format!("{text} {}", comment.text);
            }
            _ => blocks.push((comment.line, comment.text)),
        }
        line_next = comment.line + 1;
    }
    blocks
}

/// The labels that a comment defines with "pairs with", and the partners that each names.
fn labels_in(text: &str) -> Vec<(String, Vec<String>)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let starts: Vec<usize> =
        (0..words.len()).filter(|&at| words[at].strip_suffix(':').is_some_and(is_label)).collect();
    let mut labels = Vec::new();
    for (nth, &start) in starts.iter().enumerate() {
        let end = starts.get(nth + 1).copied().unwrap_or(words.len());
        let name = words[start].trim_end_matches(':');
        let sentence = &words[start + 1..end];
        if let Some(at) = sentence.windows(2).position(|pair| pair == ["pairs", "with"]) {
            labels.push((name.to_string(), partners_in(name, &sentence[at + 2..])));
        }
    }
    labels
}

/// The labels at the beginning of `words`: `R1 in publish()`, `R1 and R2`, `itself`.
fn partners_in(name: &str, words: &[&str]) -> Vec<String> {
    let plain = words.iter().map(|word| word.trim_end_matches([',', '.', ';', ')']));
    let listed = plain.take_while(|word| is_label(word) || ["and", "or", "itself"].contains(word));
    let labels = listed.filter(|word| !["and", "or"].contains(word));
    labels.map(|word| if word == "itself" { name.to_string() } else { word.to_string() }).collect()
}

/// One or two capitals and a number.
fn is_label(word: &str) -> bool {
    let digits = word.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
    let letters = word.len() - digits.len();
    (1..=2).contains(&letters)
        && !digits.is_empty()
        && digits.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        check(&Tree::of(&[("core/src/a.rs", text)]))
    }

    #[test]
    fn a_label_without_its_partner_is_found() {
        let expected = ["core/src/a.rs:1: no R1 in this crate pairs with A1"];
        assert_eq!(findings("// A1: pairs with R1 in publish()"), expected);
        assert_eq!(findings("// A1: pairs with R1.\n\n// R1: pairs with A2.").len(), 2);
        assert_eq!(findings("// A1: pairs with the other one.").len(), 1);
        assert_eq!(
            findings("fn f() {\n    a(); // A1: pairs with R1\n    b(); // R2: pairs with A1\n}")
                .len(),
            2
        );
    }

    #[test]
    fn a_pair_is_found_in_another_file_of_the_crate_only() {
        let pair = [
            ("core/src/a.rs", "// A1: pairs with R1."),
            ("core/src/b/c.rs", "// R1: pairs with A1."),
        ];
        assert!(check(&Tree::of(&pair)).is_empty());
        let apart = [pair[0], ("perf/src/b.rs", "// R1: pairs with A1."), ("perf/Cargo.toml", "")];
        assert_eq!(check(&Tree::of(&apart)).len(), 2);
    }

    #[test]
    fn lists_wraps_and_oneself_are_understood() {
        assert!(
            findings("// A1: pairs with R1 and R2.\n\n// R1: pairs with A1. R2: pairs with A1.")
                .is_empty()
        );
        assert!(
            findings("// A1: counted before; pairs\n// with R1, surely.\n\n// R1: pairs with A1")
                .is_empty()
        );
        assert!(findings("// B1: pairs with itself; who closes sees all.").is_empty());
        assert!(findings("// V1\n// I2: the head never passes the tail.").is_empty());
        assert!(findings("const A: &str = \"// A1: pairs with R1\";").is_empty());
    }
}

//! What a person types: every script says what it is for, and can be run. So does every module
//! of Python that a script is made of, but that nobody runs.

use crate::tree::{File, Finding, Tree};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let scripts = tree.files.iter().filter(|file| is_script(&file.path));
    scripts.flat_map(check_script).collect()
}

fn is_script(path: &str) -> bool {
    path.starts_with("scripts/") || path.starts_with(".ci/")
}

/// A Python file in a folder below `scripts`.
fn is_module(path: &str) -> bool {
    path.ends_with(".py") && path.matches('/').count() > 1
}

fn check_module(file: &File) -> Option<Finding> {
    let purpose = file.text.lines().next().and_then(|line| line.strip_prefix("\"\"\""));
    let sentence = "the module does not open with its purpose";
    (!purpose.is_some_and(is_sentence)).then(|| file.finding(1, sentence))
}

fn is_sentence(text: &str) -> bool {
    text.split_whitespace().count() >= 3 && text.starts_with(|letter: char| letter.is_uppercase())
}

fn check_script(file: &File) -> Vec<Finding> {
    if is_module(&file.path) {
        return check_module(file).into_iter().collect();
    }
    let mut findings = Vec::new();
    if !file.executable {
        findings.push(file.finding(1, "not executable (chmod +x)"));
    }
    let mut lines = file.text.lines();
    if !lines.next().is_some_and(|line| line.starts_with("#!/")) {
        findings.push(file.finding(1, "no #! line"));
    }
    let purpose = lines.next().map_or("", |line| line.trim_start_matches(['#', '"', ' ']));
    let is_comment = file.text.lines().nth(1).is_some_and(|line| line.starts_with(['#', '"']));
    if !(is_comment && is_sentence(purpose)) {
        findings.push(file.finding(2, "the first comment line does not state a purpose"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn a_script_without_purpose_or_permission_is_found() {
        assert_eq!(count("+scripts/a", "#!/bin/sh\n# Does one good thing.\nexec true\n"), 0);
        assert_eq!(count("scripts/a", "#!/bin/sh\n# Does one good thing.\nexec true\n"), 1);
        assert_eq!(count("+scripts/a", "#!/bin/sh\nexec true and nothing else\n"), 1);
        assert_eq!(count("+scripts/a", "#!/bin/sh\n# Helper.\n"), 1);
        assert_eq!(count("+.ci/run", "# Does one good thing.\n# Does one good thing.\n"), 1);
        assert_eq!(
            count("+scripts/a.py", "#!/usr/bin/env python3\n\"\"\"Draws one good plot.\"\"\"\n"),
            0
        );
        assert_eq!(count("docs/a", "exec true\n"), 0);
    }

    #[test]
    fn a_module_without_purpose_is_found() {
        let purpose = "\"\"\"Draws one good plot.\"\"\"\n";
        assert_eq!(count("scripts/plots/a.py", purpose), 0);
        assert_eq!(count("scripts/plots/a.py", "import os\n"), 1);
        assert_eq!(count("scripts/plots/a.py", "\"\"\"Helper.\"\"\"\n"), 1);
        assert_eq!(count("scripts/a.py", purpose), 3);
    }
}

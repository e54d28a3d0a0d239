//! What people read: the README's commands, links to every document, and no foreign names.

use crate::tree::{Finding, Tree};

/// What a fresh machine needs typed, and nothing else.
const COMMANDS: [&str; 2] = ["cargo run --release -p kestrel-perf", "./scripts/test"];

/// Hosts of package registries and places of one workplace, split so that this file is clean.
const FOREIGN_NAMES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("deb.debian", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("docker", ".io"),
    concat!("/wo", "rk/"),
    concat!("/fa", "rm/"),
    concat!("/ro", "ot/"),
    concat!("farm-", "studio"),
    concat!("farm-", "bench"),
];

/// Cargo writes its registry's name into the lock file, and nobody can stop it.
const NAMES_EXEMPT: &str = "Cargo.lock";

pub fn check_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path != NAMES_EXEMPT) {
        for (line, text) in (1..).zip(file.text.lines()) {
            for name in FOREIGN_NAMES.iter().filter(|name| text.contains(**name)) {
                findings.push(file.finding(line, format!("names {name}")));
            }
        }
    }
    findings
}

pub fn check_readme(tree: &Tree) -> Vec<Finding> {
    let Some(readme) = tree.find("README.md") else {
        return vec!["README.md:1: not there".to_string()];
    };
    let commands = shell_lines(&readme.text);
    let found: Vec<&str> = commands.iter().map(|(_, command)| command.as_str()).collect();
    if found == COMMANDS {
        return Vec::new();
    }
    let line = commands.first().map_or(1, |(line, _)| *line);
    vec![readme.finding(line, format!("shell commands {found:?}, not exactly {COMMANDS:?}"))]
}

/// The README asks for the Rust that the manifest asks for.
pub fn check_rust_version(tree: &Tree) -> Vec<Finding> {
    let (Some(readme), Some(manifest)) = (tree.find("README.md"), tree.find("Cargo.toml")) else {
        return vec!["README.md:1: it or Cargo.toml is not there".to_string()];
    };
    let key = "rust-version = \"";
    let version = manifest.text.lines().find_map(|line| line.strip_prefix(key)?.strip_suffix('"'));
    let Some(version) = version else {
        return vec![manifest.finding(1, "names no rust-version")];
    };
    let sentence = format!("Rust {version} or newer");
    if readme.text.contains(&sentence) {
        return Vec::new();
    }
    vec![readme.finding(1, format!("does not say \"{sentence}\""))]
}

/// The commands in fenced blocks of shell, without prompts, comments and empty lines.
fn shell_lines(text: &str) -> Vec<(usize, String)> {
    let (mut in_block, mut is_shell, mut commands) = (false, false, Vec::new());
    for (line, text) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(language) = text.strip_prefix("```") {
            in_block = !in_block;
            is_shell = in_block && ["sh", "bash", "shell", "console"].contains(&language);
        } else if is_shell {
            let command = text.trim_start_matches("$ ");
            let command = command.split(" #").next().unwrap_or("").trim();
            if !command.is_empty() && !command.starts_with('#') {
                commands.push((line, command.to_string()));
            }
        }
    }
    commands
}

/// Every document is linked from the README or from the architecture, and every link leads somewhere.
pub fn check_links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut linked = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, target) in links_of(&file.text) {
            let path = resolve(folder, &target);
            let exists = tree
                .files
                .iter()
                .any(|other| other.path == path || other.path.starts_with(&format!("{path}/")));
            if !exists {
                findings.push(file.finding(line, format!("links to {target}, which is not there")));
            }
            if ["README.md", "docs/architecture.md"].contains(&file.path.as_str()) {
                linked.push(path);
            }
        }
    }
    for file in &tree.files {
        let is_document = file.path.starts_with("docs/") && file.path.ends_with(".md");
        if is_document && !linked.contains(&file.path) {
            findings.push(file.finding(1, "neither README.md nor docs/architecture.md links here"));
        }
    }
    findings
}

/// Targets of `[text](target)` inside the tree, without their anchors.
fn links_of(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or("");
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                links.push((line, target.to_string()));
            }
        }
    }
    links
}

fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." | "" => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_is_found_but_in_the_lock_file() {
        for name in FOREIGN_NAMES {
            let text = format!("first\nsee https://{name}/x\n");
            assert_eq!(check_names(&Tree::of(&[("docs/a.md", &text)])).len(), 1, "{name}");
            assert!(check_names(&Tree::of(&[("Cargo.lock", &text)])).is_empty());
        }
    }

    #[test]
    fn a_readme_with_other_commands_is_found() {
        let [first, second] = COMMANDS;
        let good = format!("# k\n```sh\n{first}\n```\n```sh\n$ {second}  # all of it\n```\n");
        assert!(check_readme(&Tree::of(&[("README.md", &good)])).is_empty());
        let rust = format!("{good}```rust\nlet a = 1;\n```\n");
        assert!(check_readme(&Tree::of(&[("README.md", &rust)])).is_empty());
        for bad in [
            format!("```sh\n{first}\n```\n"),
            format!("```sh\n{second}\n{first}\n```\n"),
            format!("{good}```console\n$ make install\n```\n"),
            String::new(),
        ] {
            assert_eq!(check_readme(&Tree::of(&[("README.md", &bad)])).len(), 1, "{bad}");
        }
        assert_eq!(check_readme(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn another_rust_than_the_manifests_is_found() {
        let manifest = ("Cargo.toml", "[workspace.package]\nrust-version = \"1.2\"\n");
        let readme = |text| check_rust_version(&Tree::of(&[manifest, ("README.md", text)])).len();
        assert_eq!(readme("It needs Rust 1.2 or newer."), 0);
        assert_eq!((readme("It needs Rust 1.20 or newer."), readme("")), (1, 1));
        let without = Tree::of(&[("Cargo.toml", "[package]\n"), ("README.md", "")]);
        assert_eq!(check_rust_version(&without).len(), 1);
    }

    #[test]
    fn a_document_that_nobody_links_is_found() {
        let tree = Tree::of(&[
            ("README.md", "[a](docs/architecture.md) [x](https://example.org)"),
            ("docs/architecture.md", "[p](protocol.md#levels) and [core](../core/src)"),
            ("docs/protocol.md", ""),
            ("docs/lost.md", "[protocol](./protocol.md)"),
            ("core/src/lib.rs", ""),
        ]);
        let expected = "docs/lost.md:1: neither README.md nor docs/architecture.md links here";
        assert_eq!(check_links(&tree), [expected]);
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let tree = Tree::of(&[("README.md", "\n[a](docs/gone.md)")]);
        assert_eq!(check_links(&tree), ["README.md:2: links to docs/gone.md, which is not there"]);
    }
}

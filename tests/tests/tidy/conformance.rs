//! What docs/conformance.md promises: every test that a table names exists, and runs.
//!
//! The header of a table says of each column where its tests are, and in which module if a name
//! has none: native ones are cases of the suite or tests of any crate but the C door's; the door's
//! are in `libfabric/tests/door`. An empty cell, or one that begins with "not offered", names none.
//!
//! And the parts in which the suite runs on soft-RoCE name every group of its cases.

use std::collections::BTreeSet;

use syn::{Attribute, visit::Visit};

use crate::tree::{File, Finding, Tree};

const TABLES: &str = "docs/conformance.md";
const SUITE: &str = "tests/src/conformance.rs";
const PARTS: &str = "tests/soft_roce/test_conformance.py";
const CASES: &str = "tests/src/cases/";
const DOOR: &str = "libfabric/tests/door/";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(tables) = tree.find(TABLES) else {
        return vec![format!("{TABLES}:1: not there")];
    };
    let (native, door) = all_tests(tree);
    let (mut findings, mut columns) = (Vec::new(), Vec::new());
    for (line, text) in (1..).zip(tables.text.lines()) {
        let Some(cells) = cells(text) else {
            columns.clear();
            continue;
        };
        if columns.is_empty() {
            columns = cells.iter().map(|cell| Column::of(cell)).collect();
            continue;
        }
        for (cell, column) in cells.iter().zip(&columns) {
            let Some(column) = column else { continue };
            let tests = if column.door { &door } else { &native };
            for name in names(cell).map(|name| column.full(name)) {
                if !tests.iter().any(|test| format!("::{test}").ends_with(&format!("::{name}"))) {
                    findings.push(tables.finding(line, format!("names {name}, which no run has")));
                }
            }
        }
    }
    findings
}

pub fn check_parts(tree: &Tree) -> Vec<Finding> {
    let [suite, parts] = [SUITE, PARTS].map(|path| tree.find(path));
    let (Some(suite), Some(parts)) = (suite, parts) else {
        return vec![format!("{PARTS}:1: not there, or not the suite")];
    };
    let is_run = |group: &&str| parts.text.contains(&format!("\"{group}\""));
    let left_out = groups(&suite.text).filter(|group| !is_run(group));
    left_out.map(|group| parts.finding(1, format!("has no part for {group}"))).collect()
}

/// The groups that the suite has: a line each, before their cases.
fn groups(suite: &str) -> impl Iterator<Item = &str> {
    let is_name = |name: &&str| name.chars().all(|c| c == '_' || c.is_ascii_lowercase());
    suite.lines().filter_map(|line| line.trim().strip_suffix(':')).filter(is_name)
}

/// The cells of a table's row; none for other text.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

/// The tests that a cell names.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    let none = cell.starts_with("not offered") || cell.starts_with("---");
    let cell = if none { "" } else { cell };
    cell.split(',').map(|name| name.trim().trim_matches('`')).filter(|name| !name.is_empty())
}

/// Where the tests of a column are.
struct Column<'a> {
    door: bool,
    module: &'a str,
}

impl<'a> Column<'a> {
    /// By its header, which says "native" or "C door", and a module with its colons.
    fn of(header: &'a str) -> Option<Self> {
        let door = header.starts_with("C door");
        let module = header.split('`').nth(1).unwrap_or("").trim_end_matches(':');
        (door || header.starts_with("native")).then_some(Column { door, module })
    }

    fn full(&self, name: &str) -> String {
        let has_module = name.contains("::") || self.module.is_empty();
        if has_module { name.to_owned() } else { format!("{}::{name}", self.module) }
    }
}

/// Every test that a run has, by its modules and name: native ones, and the door's.
fn all_tests(tree: &Tree) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut native, mut door) = (BTreeSet::new(), BTreeSet::new());
    for (file, syntax) in tree.rust() {
        let mut tests = Tests { file, modules: modules_of(&file.path), found: Vec::new() };
        tests.visit_file(syntax);
        if file.path.starts_with(DOOR) { &mut door } else { &mut native }.extend(tests.found);
    }
    let suite = tree.find(SUITE).map_or("", |file| &file.text);
    let is_run = |test: &String| {
        let mut parts = test.rsplit("::");
        let (name, module) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        !test.starts_with("tests::cases::") || listed(suite, module).any(|case| case == name)
    };
    native.retain(is_run);
    (native, door)
}

/// The cases of a module that the suite lists.
fn listed<'a>(suite: &'a str, module: &str) -> impl Iterator<Item = &'a str> {
    let start = suite.split_once(&format!(" {module}:\n")).map_or("", |(_, rest)| rest);
    start.split(';').next().unwrap_or("").split(',').map(str::trim)
}

/// `core/src/address_vector/mod.rs` is `core::address_vector`.
fn modules_of(path: &str) -> Vec<String> {
    let parts = path.trim_end_matches(".rs").split('/');
    parts.filter(|part| !["src", "mod"].contains(part)).map(str::to_owned).collect()
}

struct Tests<'a> {
    file: &'a File,
    modules: Vec<String>,
    found: Vec<String>,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("test"))
}

impl Tests<'_> {
    fn add(&mut self, name: &syn::Ident) {
        self.found.push(format!("{}::{name}", self.modules.join("::")));
    }
}

impl<'ast> Visit<'ast> for Tests<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.modules.push(module.ident.to_string());
        syn::visit::visit_item_mod(self, module);
        self.modules.pop();
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if is_test(&function.attrs) || self.file.path.starts_with(CASES) {
            self.add(&function.sig.ident);
        }
    }

    /// `proptest!` has its tests where the parser sees words alone.
    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if !item.mac.path.is_ident("proptest") {
            return;
        }
        let words = item.mac.tokens.to_string();
        for after in words.split("fn ").skip(1) {
            let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            if let Some(Ok(name)) = name.map(syn::parse_str) {
                self.add(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "| the page | native: `fruit::` | C door: `fruit::` |\n| --- | --- | --- |\n";

    fn tree(table: &str) -> Tree {
        let suite = "conformance! {\n    fruit:\n        apples_fall,\n        pears_fall;\n}";
        Tree::of(&[
            (TABLES, table),
            (SUITE, &format!("mod cases {{}}\n/* {suite} */\n")),
            ("tests/src/cases/fruit.rs", "pub fn apples_fall() {}\npub fn plums_fall() {}"),
            ("libfabric/tests/door/fruit.rs", "#[test] fn figs_fall() {}\nfn helper() {}"),
            ("core/src/tree/mod.rs", "mod tests { #[test] fn it_grows() {} }"),
            ("core/src/leaf.rs", "proptest! { #[test] fn it_turns(n in 0..3) {} }"),
        ])
    }

    #[test]
    fn what_exists_and_runs_is_in_order() {
        let rows = "| a | apples_fall | figs_fall |\n| b | tree::tests::it_grows, leaf::it_turns | |\n| c | not offered | not offered: by nobody |\n";
        assert_eq!(check(&tree(&format!("{HEADER}{rows}"))), [] as [&str; 0]);
        assert_eq!(check(&tree("no table, but | a word\n")), [] as [&str; 0]);
    }

    #[test]
    fn what_does_not_exist_or_does_not_run_is_found() {
        for (row, name) in [
            ("| a | nuts_fall | |", "fruit::nuts_fall"),
            ("| a | plums_fall | |", "fruit::plums_fall"),
            ("| a | figs_fall | |", "fruit::figs_fall"),
            ("| a | | apples_fall |", "fruit::apples_fall"),
            ("| a | | helper |", "fruit::helper"),
            ("| a | apples_fall, other::apples_fall | |", "other::apples_fall"),
        ] {
            let expected = format!("{TABLES}:3: names {name}, which no run has");
            assert_eq!(check(&tree(&format!("{HEADER}{row}\n"))), [expected], "{row}");
        }
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn every_group_has_a_part() {
        let suite = "conformance! {\n    fruit:\n        a_fall;\n    nuts:\n        b_fall;\n}";
        let with = |parts| check_parts(&Tree::of(&[(SUITE, suite), (PARTS, parts)]));
        assert_eq!(with("[\"fruit\", \"nuts\"]"), [] as [&str; 0]);
        assert_eq!(with("[\"nuts\"]"), [format!("{PARTS}:1: has no part for fruit")]);
        assert_eq!(check_parts(&Tree::of(&[])).len(), 1);
    }
}

//! The tidy test: what the tree promises about its own shape, checked.
//!
//! One module a rule, each with small bad inputs that it must catch:
//!
//! - [`lengths`]: no file over 500 lines, no function over 70.
//! - [`locks`]: no mutex on a data path.
//! - [`safety`]: every unsafe block says why it is sound.
//! - [`orderings`]: every labelled memory ordering has its partner.
//! - [`unfinished`]: nothing half done, and no ignored test.
//! - [`reach`]: no Rust file that nothing compiles.
//! - [`scripts`]: every script states its purpose and can be run.
//! - [`conformance`]: every test that docs/conformance.md names exists and runs.
//! - [`protocol`]: docs/protocol.md has the version, the sizes and the kinds of the code.
//! - [`documents`]: the README's two commands and its Rust, every document linked, no names of other places.
//!
//! [`tree`] reads the files, [`comments`] finds what the parser drops.

mod comments;
mod conformance;
mod documents;
mod lengths;
mod locks;
mod orderings;
mod protocol;
mod reach;
mod safety;
mod scripts;
mod tree;
mod unfinished;

use tree::{Finding, Tree, workspace};

/// Fails with every finding, so that one run shows all there is to mend.
#[track_caller]
fn expect_none(check: fn(&Tree) -> Vec<Finding>) {
    let findings = workspace(check);
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn files_and_functions_are_short() {
    expect_none(lengths::check);
}

#[test]
fn no_data_path_takes_a_lock() {
    expect_none(|tree| locks::check(tree, locks::ALLOWED));
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    expect_none(safety::check);
}

#[test]
fn every_labelled_ordering_has_its_partner() {
    expect_none(orderings::check);
}

#[test]
fn nothing_is_left_unfinished() {
    expect_none(unfinished::check);
}

#[test]
fn every_rust_file_is_compiled() {
    expect_none(reach::check);
}

#[test]
fn every_script_states_its_purpose() {
    expect_none(scripts::check);
}

#[test]
fn the_readme_has_exactly_the_two_commands() {
    expect_none(documents::check_readme);
}

#[test]
fn the_readme_names_the_rust_of_the_manifest() {
    expect_none(documents::check_rust_version);
}

#[test]
fn every_document_is_linked() {
    expect_none(documents::check_links);
}

#[test]
fn every_test_that_conformance_names_runs() {
    expect_none(conformance::check);
}

#[test]
fn every_group_of_the_suite_runs_on_soft_roce() {
    expect_none(conformance::check_parts);
}

#[test]
fn the_protocol_is_the_one_that_is_documented() {
    expect_none(protocol::check);
}

#[test]
fn no_file_names_a_registry_or_a_workplace() {
    expect_none(documents::check_names);
}

#[test]
fn the_tree_is_read_at_all() {
    let paths =
        workspace(|tree| tree.files.iter().map(|file| file.path.clone()).collect::<Vec<_>>());
    for path in ["Cargo.toml", "core/src/lib.rs", "tests/tests/tidy/main.rs", "scripts/test"] {
        assert!(paths.iter().any(|read| read == path), "{path} was not read");
    }
    assert!(paths.iter().all(|path| !path.starts_with("target/")));
}

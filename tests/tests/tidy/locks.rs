//! No mutex where messages pass: "No mutex on a data path, in any mode, and a test that says so."

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::Visit;

use crate::tree::{File, Finding, Tree, is_test_only};

/// Crates whose sources hold a data path.
const DATA_PATHS: [&str; 5] =
    ["core/src/", "libfabric/src/", "provider-shm/src/", "provider-verbs/src/", "src/"];
const LOCKS: [&str; 4] = ["Mutex", "RwLock", "Condvar", "ReentrantLock"];

/// Files that may lock, each with the reason why no message waits for it.
pub const ALLOWED: &[(&str, &str)] = &[
    ("core/src/address_vector/mod.rs", "writers among themselves; look-ups are wait-free"),
    ("core/src/connection/passive_endpoint.rs", "what listens; no message leads here"),
    ("core/src/domain.rs", "which counters hear of new endpoints: binding and enabling only"),
    (
        "core/src/endpoint/mod.rs",
        "what is bound before the endpoint is enabled, where it is, what it was opened from",
    ),
    ("core/src/event_queue.rs", "events of the control path; no message leads here"),
    ("core/src/mock/bell.rs", "a transport for tests only"),
    ("core/src/mock/lane.rs", "a transport for tests only"),
    ("core/src/mock/mod.rs", "a transport for tests only"),
    ("core/src/mock/provider.rs", "a transport for tests only"),
    (
        "core/src/memory_region.rs",
        "registration; engines remember the regions that they have found",
    ),
    ("core/src/memory_region/adapter.rs", "a peer's first question about a region, and its close"),
    ("core/src/scalable_endpoint/mod.rs", "the keys of its contexts: enabling and closing only"),
    ("core/src/scalable_endpoint/pair.rs", "which contexts are open: enabling and closing only"),
    (
        "core/src/shared_context/pool.rs",
        "serialising its endpoints is what a shared context is; endpoints that share nothing have none",
    ),
    ("core/src/shared_context/receive.rs", "which endpoints share; as its pool"),
    (
        "core/src/socket_endpoint/driver.rs",
        "which socket endpoints a helper drives; they copy at each call, and have no hot path",
    ),
    ("core/src/socket_endpoint/socket.rs", "as its driver"),
    (
        "core/src/triggered/mod.rs",
        "operations that wait for a counter; no other message leads here",
    ),
    ("libfabric/src/completion_queue/mod.rs", "the error that was read last, for strerror"),
    (
        "libfabric/src/counter.rs",
        "what each thread has seen of a counter that is waited for on a descriptor or in a set",
    ),
    ("libfabric/src/event_queue/mod.rs", "the data of the error that was read last"),
    ("libfabric/src/memory_region.rs", "which endpoints are bound; nothing but binding asks"),
    (
        "libfabric/src/per_process.rs",
        "what is open, which discovery asks; what was closed; requests that are not answered",
    ),
    ("libfabric/src/poll_set.rs", "the members of a poll set"),
    ("libfabric/src/wait_set.rs", "the members of a wait set"),
    ("libfabric/src/waiting.rs", "what is armed while an application waits outside"),
    ("provider-shm/src/catalogue.rs", "what lists a region: registration only"),
    ("provider-shm/src/control/mod.rs", "starts and stops the control thread of the process"),
    ("provider-shm/src/group_table/mod.rs", "multicast groups that are joined"),
    ("provider-shm/src/guests.rs", "who may be at a region: windows and closing only"),
    ("provider-shm/src/station.rs", "the list of connections refused to children after fork"),
    ("provider-verbs/src/fake/mod.rs", "a device for tests only"),
    (
        "provider-verbs/src/registrations/monitor.rs",
        "what is watched: beginning to keep a registration, which takes longer by itself",
    ),
    (
        "provider-verbs/src/rdma/queues.rs",
        "receives of a device that shares none: beginnings and ends of connections contend for it",
    ),
];

pub fn check(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, reason) in allowed {
        match tree.find(path) {
            None => findings.push(format!("{path}:1: allowed to lock ({reason}), but not there")),
            Some(file) if locks_of(file).is_empty() => {
                findings.push(file.finding(1, "allowed to lock, but locks nothing: strike it out"));
            }
            Some(_) => {}
        }
    }
    for file in &tree.files {
        let on_data_path = DATA_PATHS.iter().any(|folder| file.path.starts_with(folder));
        let is_tests = file.path.ends_with("/tests.rs") || file.path.contains("/tests/");
        if !on_data_path || is_tests || allowed.iter().any(|(path, _)| file.path == *path) {
            continue;
        }
        for lock in locks_of(file) {
            let sentence = format!("{lock} on a data path: not on the list in tidy/locks.rs");
            findings.push(file.finding(lock.span().start().line, sentence));
        }
    }
    findings
}

fn locks_of(file: &File) -> Vec<Ident> {
    let mut locks = Locks::default();
    if let Some(syntax) = file.syntax() {
        locks.visit_file(syntax);
    }
    locks.0
}

/// The identifiers that name a lock, outside of tests.
#[derive(Default)]
struct Locks(Vec<Ident>);

impl Locks {
    fn see(&mut self, identifier: &Ident) {
        if LOCKS.iter().any(|lock| identifier == lock) {
            self.0.push(identifier.clone());
        }
    }

    fn see_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(identifier) => self.see(&identifier),
                TokenTree::Group(group) => self.see_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Locks {
    fn visit_ident(&mut self, identifier: &'ast Ident) {
        self.see(identifier);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.see_tokens(invocation.tokens.clone());
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_on_a_data_path_is_found() {
        for text in [
            "use std::sync::Mutex;",
            "use std::sync::{Arc, RwLock as Lock};",
            "static A: std::sync::Mutex<u8> = loop {};",
            "thread_local! { static A: Mutex<u8> = Mutex::new(0); }",
        ] {
            let findings = check(&Tree::of(&[("core/src/a.rs", text)]), &[]);
            assert!(!findings.is_empty(), "{text}");
            assert!(findings[0].starts_with("core/src/a.rs:1: "), "{findings:?}");
        }
    }

    #[test]
    fn comments_tests_and_other_crates_may_name_one() {
        let inside = "#[cfg(test)]\nmod tests { use std::sync::Mutex; }";
        let gated = "#[cfg(all(test, not(loom)))]\nmod tests { use std::sync::Mutex; }";
        let tree = Tree::of(&[
            ("core/src/a.rs", "// No Mutex here.\nconst A: &str = \"Mutex\";"),
            ("core/src/b.rs", inside),
            ("core/src/c.rs", gated),
            ("core/src/d/tests.rs", "use std::sync::Mutex;"),
            ("perf/src/main.rs", "use std::sync::Mutex;"),
        ]);
        assert_eq!(check(&tree, &[]), Vec::<Finding>::new());
    }

    #[test]
    fn the_list_excuses_a_file_and_may_not_go_stale() {
        let tree = Tree::of(&[("core/src/a.rs", "use std::sync::Mutex;"), ("core/src/b.rs", "")]);
        assert!(check(&tree, &[("core/src/a.rs", "cold")]).is_empty());
        let stale = [("core/src/a.rs", "cold"), ("core/src/b.rs", "x"), ("core/src/c.rs", "x")];
        assert_eq!(check(&tree, &stale).len(), 2);
    }
}

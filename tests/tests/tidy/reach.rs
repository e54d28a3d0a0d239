//! No dead file: a `mod` leads to every Rust file from a root that cargo builds.

use std::collections::BTreeSet;

use syn::{Expr, Item, ItemMod, Lit, Meta};

use crate::tree::{Finding, Tree};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut reached = BTreeSet::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        if is_root(tree, &file.path) {
            follow(tree, &file.path, &mut reached);
        }
    }
    let files = tree.files.iter().filter(|file| file.is_rust());
    let dead = files.filter(|file| !reached.contains(&file.path));
    dead.map(|file| file.finding(1, "no mod leads to this file")).collect()
}

/// What cargo takes for the root of a crate by its place in its package.
fn is_root(tree: &Tree, path: &str) -> bool {
    let inside = &path[tree.package_of(path).len()..];
    let inside: Vec<&str> = inside.split('/').collect();
    matches!(
        inside[..],
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "examples" | "benches", _]
            | ["tests" | "examples" | "benches", _, "main.rs"]
    )
}

fn follow(tree: &Tree, path: &str, reached: &mut BTreeSet<String>) {
    let Some(file) = tree.find(path) else { return };
    let Some(syntax) = file.syntax() else { return };
    if !reached.insert(path.to_string()) {
        return;
    }
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    let owns_folder = is_root(tree, path) || stem == "mod";
    let modules = if owns_folder { folder.to_string() } else { format!("{folder}/{stem}") };
    follow_items(tree, &syntax.items, folder, &modules, reached);
}

/// `modules` is the folder in which a plain `mod name;` looks.
fn follow_items(
    tree: &Tree,
    items: &[Item],
    folder: &str,
    modules: &str,
    reached: &mut BTreeSet<String>,
) {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        match (&module.content, path_attribute(module)) {
            (Some((_, items)), _) => {
                let inner = format!("{modules}/{name}");
                follow_items(tree, items, &inner, &inner, reached);
            }
            (None, Some(path)) => follow(tree, &join(folder, &path), reached),
            (None, None) => {
                follow(tree, &format!("{modules}/{name}.rs"), reached);
                follow(tree, &format!("{modules}/{name}/mod.rs"), reached);
            }
        }
    }
}

fn path_attribute(module: &ItemMod) -> Option<String> {
    let paths = module.attrs.iter().filter(|attribute| attribute.path().is_ident("path"));
    let mut values = paths.filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    values.next()
}

fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else if part != "." {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_mod_names_is_found() {
        let tree = Tree::of(&[
            ("core/Cargo.toml", ""),
            ("core/src/lib.rs", "mod a;"),
            ("core/src/a.rs", ""),
            ("core/src/b.rs", "mod c;"),
            ("core/src/b/c.rs", ""),
            ("core/tests/common/mod.rs", ""),
        ]);
        let dead = ["core/src/b.rs", "core/src/b/c.rs", "core/tests/common/mod.rs"];
        assert_eq!(check(&tree), dead.map(|path| format!("{path}:1: no mod leads to this file")));
    }

    #[test]
    fn every_way_to_name_a_module_is_followed() {
        let tree = Tree::of(&[
            ("core/Cargo.toml", ""),
            ("core/src/lib.rs", "mod a; mod b { mod c; } #[path = \"../odd/d.rs\"] mod d;"),
            ("core/src/a/mod.rs", "mod e;\n#[cfg(test)]\nmod tests;"),
            ("core/src/a/e.rs", ""),
            ("core/src/a/tests.rs", "mod f;"),
            ("core/src/a/tests/f.rs", ""),
            ("core/src/b/c.rs", ""),
            ("core/odd/d.rs", ""),
        ]);
        assert_eq!(check(&tree), Vec::<Finding>::new());
    }

    #[test]
    fn what_cargo_builds_by_its_place_is_a_root() {
        let packages =
            ["Cargo.toml", "core/Cargo.toml", "tests/Cargo.toml", "verbs/sys/Cargo.toml"];
        let tree = Tree::of(&packages.map(|path| (path, "")));
        for path in [
            "src/lib.rs",
            "src/main.rs",
            "core/src/bin/a.rs",
            "core/src/bin/a/main.rs",
            "core/build.rs",
            "core/tests/a.rs",
            "core/examples/a.rs",
            "tests/tests/a.rs",
            "tests/tests/tidy/main.rs",
            "verbs/sys/tests/a.rs",
        ] {
            assert!(is_root(&tree, path), "{path}");
        }
        for path in [
            "core/src/a.rs",
            "core/src/a/tests/b.rs",
            "core/tests/common/mod.rs",
            "tests/tests/tidy/a.rs",
        ] {
            assert!(!is_root(&tree, path), "{path}");
        }
    }
}

//! Nothing half done: no reminder in a comment, no placeholder macro, no ignored test.

use syn::visit::Visit;

use crate::{
    comments::line_comments,
    tree::{File, Finding, Tree},
};

/// Split, so that this file does not find itself.
const REMINDERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const PLACEHOLDERS: [&str; 3] = ["todo", "unimplemented", "dbg"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.is_generated()) {
        let lines: Vec<(usize, String)> = if file.is_rust() {
            let comments = line_comments(&file.text).into_iter();
            comments.map(|comment| (comment.line, comment.text)).collect()
        } else {
            (1..).zip(file.text.lines().map(str::to_string)).collect()
        };
        for (line, text) in lines {
            let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
            for word in words.filter(|word| REMINDERS.contains(word)) {
                findings.push(file.finding(line, format!("{word}: do it, or file it")));
            }
        }
    }
    for (file, syntax) in tree.rust() {
        Code { file, findings: &mut findings }.visit_file(syntax);
    }
    findings
}

struct Code<'a> {
    file: &'a File,
    findings: &'a mut Vec<Finding>,
}

impl<'ast> Visit<'ast> for Code<'_> {
    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let Some(name) = invocation.path.segments.last().map(|segment| &segment.ident) else {
            return;
        };
        if PLACEHOLDERS.iter().any(|placeholder| name == placeholder) {
            let line = name.span().start().line;
            self.findings.push(self.file.finding(line, format!("{name}! in the tree")));
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if attribute.path().is_ident("ignore") {
            let line = attribute.pound_token.span.start().line;
            let sentence = "an ignored test: let it skip itself with a reason, or delete it";
            self.findings.push(self.file.finding(line, sentence));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn reminders_are_found_in_every_kind_of_file() {
        for word in REMINDERS {
            assert_eq!(count("a.rs", &format!("fn f() {{}} // {word}: later")), 1);
            assert_eq!(count("a.rs", &format!("/// {word}(me)\nfn f() {{}}")), 1);
            assert_eq!(count("scripts/a", &format!("# {word}")), 1);
        }
        assert_eq!(count("a.rs", "// A method, toDO nothing."), 0);
    }

    #[test]
    fn placeholders_are_found() {
        assert_eq!(count("a.rs", "fn f() { todo!() }"), 1);
        assert_eq!(count("a.rs", "fn f() -> u8 {\n    std::unimplemented!(\"later\")\n}"), 1);
        assert_eq!(count("a.rs", "fn f() { dbg!(1); }"), 1);
        assert_eq!(count("a.rs", "const A: &str = \"todo!()\";"), 0);
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(count("a.rs", "#[test]\n#[ignore]\nfn f() {}"), 1);
        assert_eq!(count("a.rs", "mod m { #[test] #[ignore = \"slow\"] fn f() {} }"), 1);
        assert_eq!(count("a.rs", "#[test]\nfn f() {}"), 0);
    }
}

//! Every unsafe block and implementation has a `SAFETY:` comment directly above.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{spanned::Spanned, visit::Visit};

use crate::{
    comments::line_comments,
    tree::{File, Finding, Tree},
};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, syntax) in tree.rust() {
        let mut blocks = Blocks::new(file);
        blocks.visit_file(syntax);
        findings.append(&mut blocks.findings);
    }
    findings
}

struct Blocks<'a> {
    file: &'a File,
    /// Comments that have a line to themselves, by line.
    comments: BTreeMap<usize, String>,
    /// Where the statements, arms and items begin that enclose the place being visited.
    enclosing: Vec<usize>,
    findings: Vec<Finding>,
}

impl<'a> Blocks<'a> {
    fn new(file: &'a File) -> Self {
        let alone = line_comments(&file.text).into_iter().filter(|comment| comment.alone);
        let comments = alone.map(|comment| (comment.line, comment.text)).collect();
        Self { file, comments, enclosing: Vec::new(), findings: Vec::new() }
    }

    /// Looks above the line itself and above the statement that it is a part of.
    fn require(&mut self, line: usize, what: &str) {
        let starts = self.enclosing.last().copied().into_iter().chain([line]);
        if !starts.into_iter().any(|start| self.has_reason_above(start)) {
            self.findings.push(self.file.finding(line, format!("{what} without SAFETY")));
        }
    }

    /// Whether the comment that ends right above `line` (attributes may follow it) says SAFETY.
    fn has_reason_above(&self, line: usize) -> bool {
        let mut above = line - 1;
        while above > 0 && self.line(above).trim_start().starts_with("#[") {
            above -= 1;
        }
        while let Some(text) = self.comments.get(&above) {
            if text.starts_with("SAFETY:") {
                return true;
            }
            above -= 1;
        }
        false
    }

    fn line(&self, number: usize) -> &str {
        self.file.text.lines().nth(number - 1).unwrap_or("")
    }

    fn within(&mut self, start: usize, visit: impl FnOnce(&mut Self)) {
        self.enclosing.push(start);
        visit(self);
        self.enclosing.pop();
    }

    fn see_tokens(&mut self, tokens: TokenStream) {
        let mut after_unsafe = None;
        for token in tokens {
            match token {
                TokenTree::Ident(word) if word == "unsafe" => {
                    after_unsafe = Some(word.span().start().line);
                    continue;
                }
                TokenTree::Group(group) => {
                    if let (Some(line), Delimiter::Brace) = (after_unsafe, group.delimiter()) {
                        self.require(line, "unsafe block in a macro");
                    }
                    self.see_tokens(group.stream());
                }
                _ => {}
            }
            after_unsafe = None;
        }
    }
}

impl<'ast> Visit<'ast> for Blocks<'_> {
    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        let start = statement.span().start().line;
        self.within(start, |this| syn::visit::visit_stmt(this, statement));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let start = arm.span().start().line;
        self.within(start, |this| syn::visit::visit_arm(this, arm));
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let start = item.span().start().line;
        self.within(start, |this| syn::visit::visit_item(this, item));
    }

    fn visit_item_impl(&mut self, implementation: &'ast syn::ItemImpl) {
        if let Some(word) = implementation.unsafety {
            self.require(word.span().start().line, "unsafe implementation");
        }
        syn::visit::visit_item_impl(self, implementation);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.require(block.unsafe_token.span().start().line, "unsafe block");
        syn::visit::visit_expr_unsafe(self, block);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.see_tokens(invocation.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&Tree::of(&[("core/src/a.rs", text)])).len()
    }

    #[test]
    fn a_block_without_reason_is_found() {
        assert_eq!(count("fn f() {\n    unsafe { g() }\n}"), 1);
        assert_eq!(count("fn f() {\n    // Because.\n    unsafe { g() }\n}"), 1);
        assert_eq!(count("fn f() {\n    // SAFETY: far away.\n\n    unsafe { g() }\n}"), 1);
        assert_eq!(count("unsafe impl Send for A {}"), 1);
        assert_eq!(count("macro_rules! m { () => { unsafe { g() } } }"), 1);
        assert_eq!(count("fn f() { let a = \"// SAFETY: no\";\n unsafe { g() } }"), 1);
    }

    #[test]
    fn one_reason_does_not_serve_two_statements() {
        let text = "fn f() {\n    // SAFETY: one.\n    unsafe { g() };\n    unsafe { g() };\n}";
        assert_eq!(check(&Tree::of(&[("a.rs", text)])), ["a.rs:4: unsafe block without SAFETY"]);
    }

    #[test]
    fn a_reason_above_the_block_or_its_statement_counts() {
        assert_eq!(count("fn f() {\n    // SAFETY: alive.\n    unsafe { g() }\n}"), 0);
        assert_eq!(
            count("fn f() {\n    // SAFETY: a\n    // b.\n    let a =\n unsafe { g() };\n}"),
            0
        );
        assert_eq!(count("fn f() {\n    h(1,\n    // SAFETY: alive.\n    unsafe { g() });\n}"), 0);
        assert_eq!(count("// SAFETY: no state.\n#[cfg(unix)]\nunsafe impl Send for A {}"), 0);
        assert_eq!(count("macro_rules! m { () => {\n// SAFETY: a.\nunsafe { g() } } }"), 0);
        assert_eq!(count("unsafe fn f() {}"), 0);
    }
}

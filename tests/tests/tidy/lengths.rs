//! Files of at most 500 lines, functions of at most 70: what one head can hold.

use proc_macro2::Span;
use syn::{spanned::Spanned, visit::Visit};

use crate::tree::{File, Finding, Tree};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, syntax) in tree.rust() {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            findings.push(file.finding(1, format!("{lines} lines, over {FILE_LINES_MAX}")));
        }
        Functions { file, findings: &mut findings }.visit_file(syntax);
    }
    findings
}

struct Functions<'a> {
    file: &'a File,
    findings: &'a mut Vec<Finding>,
}

impl Functions<'_> {
    /// Counts from the line of the name's signature to the closing brace.
    fn measure(&mut self, name: &syn::Ident, signature: Span, body: Span) {
        let lines = body.end().line + 1 - signature.start().line;
        if lines > FUNCTION_LINES_MAX {
            let sentence = format!("{name}() has {lines} lines, over {FUNCTION_LINES_MAX}");
            self.findings.push(self.file.finding(signature.start().line, sentence));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig.ident, function.sig.span(), function.block.span());
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig.ident, function.sig.span(), function.block.span());
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.measure(&function.sig.ident, function.sig.span(), block.span());
        }
        syn::visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_file_is_found() {
        let text = "// line\n".repeat(501);
        let findings = check(&Tree::of(&[("core/src/a.rs", &text)]));
        assert_eq!(findings, ["core/src/a.rs:1: 501 lines, over 500"]);
        let text = "// line\n".repeat(500);
        assert!(check(&Tree::of(&[("core/src/a.rs", &text)])).is_empty());
    }

    #[test]
    fn generated_files_may_be_long() {
        let text = "// line\n".repeat(501);
        let path = "provider-verbs/rdma-core-sys/src/generated/verbs.rs";
        assert!(check(&Tree::of(&[(path, &text)])).is_empty());
    }

    #[test]
    fn a_long_function_is_found_wherever_it_hides() {
        let long = function(71);
        for (text, line) in [
            (long.clone(), 1),
            (format!("impl A {{\n{long}}}\n"), 2),
            (format!("trait A {{\n{long}}}\n"), 2),
            (format!("mod m {{ mod n {{\n{long}}} }}\n"), 2),
        ] {
            let findings = check(&Tree::of(&[("a.rs", &text)]));
            assert_eq!(findings, [format!("a.rs:{line}: long() has 71 lines, over 70")]);
        }
        assert!(check(&Tree::of(&[("a.rs", &function(70))])).is_empty());
    }
}

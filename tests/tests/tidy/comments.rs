//! The line comments of a Rust file, which the parser drops.

/// A line comment: `//` outside of strings, documentation included.
#[derive(Debug, PartialEq, Eq)]
pub struct Comment {
    /// From 1.
    pub line: usize,
    /// Without the slashes and the spaces around.
    pub text: String,
    /// Nothing else stands on its line.
    pub alone: bool,
}

/// Every line comment of a file, in order.
pub fn line_comments(text: &str) -> Vec<Comment> {
    let bytes = text.as_bytes();
    let (mut comments, mut line, mut line_start, mut at) = (Vec::new(), 1, 0, 0);
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => {
                let end = at + text[at..].find('\n').unwrap_or(text.len() - at);
                comments.push(Comment {
                    line,
                    text: text[at..end].trim_start_matches(['/', '!']).trim().to_string(),
                    alone: text[line_start..at].trim().is_empty(),
                });
                end
            }
            b'/' if bytes[at..].starts_with(b"/*") => {
                at + text[at..].find("*/").map_or(text.len() - at, |end| end + 2)
            }
            b'"' => string_end(bytes, at),
            b'r' if is_raw_string(bytes, at) => raw_string_end(text, at),
            b'\'' => character_end(bytes, at),
            _ => at + 1,
        };
        for newline in (at..end.min(bytes.len())).filter(|&index| bytes[index] == b'\n') {
            line += 1;
            line_start = newline + 1;
        }
        at = end;
    }
    comments
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn is_raw_string(bytes: &[u8], at: usize) -> bool {
    let after_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    let byte_string = after_word && bytes[at - 1] == b'b';
    let hashes = bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count();
    (!after_word || byte_string) && bytes.get(at + 1 + hashes) == Some(&b'"')
}

fn raw_string_end(text: &str, start: usize) -> usize {
    let hashes = text[start + 1..].bytes().take_while(|&byte| byte == b'#').count();
    let body = start + hashes + 2;
    let close = format!("\"{}", "#".repeat(hashes));
    text[body..].find(&close).map_or(text.len(), |end| body + end + close.len())
}

/// Behind a character literal; behind the quote alone where it starts a lifetime.
fn character_end(bytes: &[u8], start: usize) -> usize {
    if bytes.get(start + 1) == Some(&b'\\') {
        let close = bytes[start + 3..].iter().position(|&byte| byte == b'\'');
        return close.map_or(bytes.len(), |close| start + 3 + close + 1);
    }
    // A literal holds one character, of four bytes at most.
    let close = (start + 2..=start + 5).find(|&at| bytes.get(at) == Some(&b'\''));
    match close {
        Some(close) if bytes[start + 1..close].len() == 1 || bytes[start + 1] >= 0x80 => close + 1,
        _ => start + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        line_comments(text).into_iter().map(|comment| comment.text).collect()
    }

    #[test]
    fn comments_are_found_with_their_lines() {
        let comments = line_comments("// one\nlet a = 1; // two\n\n    /// three\n");
        let expected = [(1, "one", true), (2, "two", false), (4, "three", true)];
        let expected =
            expected.map(|(line, text, alone)| Comment { line, text: text.to_string(), alone });
        assert_eq!(comments, expected);
    }

    #[test]
    fn slashes_in_literals_are_no_comments() {
        assert_eq!(texts(r#"let a = "// no \" // no"; // yes"#), ["yes"]);
        assert_eq!(texts(r###"let a = r#"" // no"#; let b = br"// no"; // yes"###), ["yes"]);
        assert_eq!(texts("let a = ('\"', '\\'', '/', '\\u{1F980}', 'ü'); // yes"), ["yes"]);
        assert_eq!(texts("fn f<'a>(a: &'a str) {} // yes\n/* // no\n */ // too"), ["yes", "too"]);
    }

    #[test]
    fn lines_are_counted_across_literals() {
        assert_eq!(line_comments("let a = \"\n\n\"; // three")[0].line, 3);
        assert_eq!(line_comments("/*\n*/\n// three")[0].line, 3);
    }
}

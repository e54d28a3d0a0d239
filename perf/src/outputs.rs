//! The files that a run leaves: looked at before it measures anything, written at its end.

use crate::cli::{Flags, Job};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("cannot write {path:?}: {reason}{}", advice(*.is_default))]
    Unwritable { path: String, reason: String, is_default: bool },
    #[error("--json and --html both name {0:?}")]
    Same(String),
    #[error(
        "the page would replace {0:?}, the report that it is made of: --html PATH names another"
    )]
    Source(String),
}

fn advice(is_default: bool) -> &'static str {
    if is_default { " (--json PATH and --html PATH name others)" } else { "" }
}

/// One of them.
struct Output {
    path: String,
    /// Nobody named it: the suite leaves it anyway.
    is_default: bool,
}

/// Where a report goes, as JSON and as a page.
pub struct Outputs {
    json: Option<Output>,
    html: Option<Output>,
    /// The report that is rendered again.
    source: Option<String>,
}

impl Outputs {
    /// What the flags name; the suite of all measurements has names of its own.
    pub fn of(flags: &Flags, job: &Job) -> Outputs {
        let of = |named: &Option<String>, default: &str| {
            let is_default = named.is_none() && *job == Job::All;
            let path = named.clone().or_else(|| is_default.then(|| default.to_owned()))?;
            Some(Output { path, is_default })
        };
        Outputs {
            json: of(&flags.json, "kestrel-perf.json"),
            html: of(&flags.html, "kestrel-perf.html"),
            source: None,
        }
    }

    /// A page beside a report, unless it has another name.
    pub fn beside(report: &str, html: Option<String>) -> Outputs {
        let beside = || Path::new(report).with_extension("html").to_string_lossy().into_owned();
        let (path, is_default) = (html.unwrap_or_else(beside), false);
        let source = Some(report.to_owned());
        Outputs { json: None, html: Some(Output { path, is_default }), source }
    }

    fn all(&self) -> impl Iterator<Item = &Output> {
        self.json.iter().chain(&self.html)
    }

    /// Refuses what cannot be written, before a minute of measuring.
    pub fn check(&self) -> Result<(), OutputError> {
        for output in self.all() {
            if let Some(reason) = obstacle(&output.path) {
                return Err(output.unwritable(reason));
            }
        }
        let page = self.html.as_ref().map(|html| place_of(&html.path));
        let is_page = |path: &str| page.as_ref() == Some(&place_of(path));
        match (&self.json, &self.source) {
            (Some(json), _) if is_page(&json.path) => Err(OutputError::Same(json.path.clone())),
            (_, Some(source)) if is_page(source) => Err(OutputError::Source(source.clone())),
            _ => Ok(()),
        }
    }

    /// Writes those that are wanted and that `json` and `html` have a text for: all that can be, and which
    /// those are. The first failure comes after that.
    pub fn write(
        &self,
        json: Option<String>,
        html: Option<String>,
    ) -> (Vec<&str>, Result<(), OutputError>) {
        let (mut written, mut result) = (Vec::new(), Ok(()));
        for (output, text) in [(&self.json, json), (&self.html, html)] {
            let (Some(output), Some(text)) = (output, text) else { continue };
            match std::fs::write(&output.path, text) {
                Ok(()) => written.push(output.path.as_str()),
                Err(error) => result = result.and(Err(output.unwritable(error.to_string()))),
            }
        }
        (written, result)
    }
}

impl Output {
    fn unwritable(&self, reason: String) -> OutputError {
        OutputError::Unwritable { path: self.path.clone(), reason, is_default: self.is_default }
    }
}

/// The file that a name is of, however it is spelled.
fn place_of(path: &str) -> PathBuf {
    let named = Path::new(path);
    let folder = named.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    let beside = || Some(folder.ok()?.join(named.file_name()?));
    named.canonicalize().ok().or_else(beside).unwrap_or_else(|| named.to_owned())
}

/// Why no file of this name can be written, if that is plain.
fn obstacle(path: &str) -> Option<String> {
    let file = Path::new(path);
    if path.is_empty() {
        return Some("it is no name".to_owned());
    }
    if file.is_dir() || path.ends_with('/') {
        return Some("it is a folder".to_owned());
    }
    if file.exists() {
        return permission(file);
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Some(format!("there is no folder {folder:?}"));
    }
    permission(folder).map(|reason| format!("folder {folder:?}: {reason}"))
}

/// Why this process may not write there.
fn permission(path: &Path) -> Option<String> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the name is a C string, and nothing is changed.
    match unsafe { libc::access(name.as_ptr(), libc::W_OK) } {
        0 => None,
        _ => Some(std::io::Error::last_os_error().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn outputs(json: &str, html: &str) -> Outputs {
        let output = |path: &str| Some(Output { path: path.to_owned(), is_default: false });
        Outputs { json: output(json), html: output(html), source: None }
    }

    #[test]
    fn the_suite_leaves_both_files_whether_it_is_named_or_not() {
        let names = |line: &str| {
            let cli = Cli::read(line.split(' ')).expect(line);
            let outputs = Outputs::of(&cli.flags, &cli.job.unwrap_or(Job::All));
            outputs.all().map(|output| output.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("kestrel-perf"), ["kestrel-perf.json", "kestrel-perf.html"]);
        assert_eq!(names("kestrel-perf all"), names("kestrel-perf"));
        assert_eq!(names("kestrel-perf all --html x"), ["kestrel-perf.json", "x"]);
        assert_eq!(names("kestrel-perf rate --json y"), ["y"]);
    }

    #[test]
    fn what_cannot_be_written_is_refused_with_the_reason() {
        for (path, reason) in [
            ("", "no name"),
            ("/tmp", "a folder"),
            ("/tmp/x/", "a folder"),
            ("/nonexistent/x", "no folder \"/nonexistent\""),
            ("/proc/x", "/proc"),
        ] {
            // The kernel denies that to nobody who is root.
            if path == "/proc/x" && permission(Path::new("/proc")).is_none() {
                continue;
            }
            let error = outputs(path, "x.html").check().expect_err(path).to_string();
            assert!(error.contains(reason), "{path}: {error}");
        }
        for other in ["x", "./x", "../perf/x"] {
            assert!(matches!(outputs("x", other).check(), Err(OutputError::Same(_))), "{other}");
        }
        outputs("/dev/null", "nobody.html").check().expect("both can be written");
    }

    #[test]
    fn what_can_be_written_is_written_whatever_became_of_the_rest() {
        let page = std::env::temp_dir().join(format!("perf-outputs-{}.html", std::process::id()));
        let outputs = outputs("/nonexistent/x.json", &page.to_string_lossy());
        let (written, result) = outputs.write(Some("{}".to_owned()), Some("page".to_owned()));
        assert_eq!(written, [page.to_string_lossy()]);
        assert!(result.expect_err("no folder").to_string().contains("/nonexistent/x.json"));
        assert_eq!(std::fs::read_to_string(&page).expect("it was written"), "page");
        std::fs::remove_file(page).expect("it was there");
    }

    /// What took a minute to measure.
    #[test]
    fn a_page_never_replaces_its_report() {
        for (report, html) in [("x.json", Some("./x.json")), ("x.html", None)] {
            let outputs = Outputs::beside(report, html.map(str::to_owned));
            assert!(matches!(outputs.check(), Err(OutputError::Source(_))), "{report}");
        }
        Outputs::beside("x.json", None).check().expect("x.html is another");
    }
}

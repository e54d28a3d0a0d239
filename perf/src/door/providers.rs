//! Where libfabric finds its providers.
//!
//! Debian's libfabric has its providers inside and looks for more in folders.
//! Intel's has each in a file of its own beside it, and searches the first
//! folder only, so it is given every file by name, which 1.17 cannot read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// kestrel's name among libfabric's providers.
pub const KESTREL: &str = "kestrel";
/// The file that holds it, as cargo names it.
pub const KESTREL_FILE: &str = "libkestrel_fi.so";

/// Values for `FI_PROVIDER_PATH` and `FI_PROVIDER`, by which the libfabric at
/// `library` finds kestrel in `folder`, and these others.
pub fn environment(
    library: &Path,
    folder: &Path,
    others: &[String],
) -> [(&'static str, OsString); 2] {
    let mut path = folder.as_os_str().to_owned();
    let files: Vec<PathBuf> = others.iter().filter_map(|name| file_beside(library, name)).collect();
    if !files.is_empty() {
        path = OsString::from("+");
        path.push(folder.join(KESTREL_FILE));
        for file in files {
            path.push(":+");
            path.push(file);
        }
    }
    let names = std::iter::once(KESTREL).chain(others.iter().map(String::as_str));
    let names = names.collect::<Vec<_>>().join(",");
    // tcp's connections are made datagram-like by ofi_rxm in 1.17.
    [("FI_PROVIDER_PATH", path), ("FI_PROVIDER", format!("{names},ofi_rxm").into())]
}

/// The file of a provider: `lib<name>-fi.so`, with or without a version.
fn file_beside(library: &Path, name: &str) -> Option<PathBuf> {
    let prefix = format!("lib{name}-");
    let mut found: Vec<PathBuf> = std::fs::read_dir(library.parent()?)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(&prefix) && file.ends_with("fi.so")
        })
        .collect();
    found.sort();
    found.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_in_files_are_named_and_others_are_not() {
        let folder = std::env::temp_dir().join(format!("perf-providers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let library = folder.join("libfabric.so.1");
        let ours = Path::new("/ours");
        let others = ["shm".to_owned(), "verbs".to_owned(), "tcp".to_owned()];
        let inside = environment(&library, ours, &others);
        for file in ["libshm-fi.so", "libverbs-1.1-fi.so", "libverbs-1.12-fi.so", "libshmem.so"] {
            std::fs::write(folder.join(file), "").expect("a file");
        }
        let outside = environment(&library, ours, &others);
        std::fs::remove_dir_all(&folder).expect("the folder was there");
        assert_eq!(inside[0].1, "/ours");
        assert_eq!(inside[1].1, "kestrel,shm,verbs,tcp,ofi_rxm");
        let at = folder.display();
        let expected =
            format!("+/ours/libkestrel_fi.so:+{at}/libshm-fi.so:+{at}/libverbs-1.12-fi.so");
        assert_eq!(outside[0].1, expected.as_str());
    }
}

//! The files of the workspace, read for a rule, and parsed if it looks at what that makes of them.

use std::{
    cell::OnceCell,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{LazyLock, mpsc},
    thread,
};

use walkdir::{DirEntry, WalkDir};

/// Where and what: `path:line: sentence`.
pub type Finding = String;

pub struct File {
    /// From the workspace's root, with `/`.
    pub path: String,
    pub text: String,
    pub executable: bool,
    syntax: OnceCell<syn::File>,
}

pub struct Tree {
    pub files: Vec<File>,
}

/// What a test asks of the workspace's tree.
type Question = Box<dyn FnOnce(&Tree) + Send>;

/// What `ask` finds in the workspace, which is read and parsed once for all tests: by a thread that answers them
/// one after the other, since what the parser makes stays with its thread.
#[track_caller]
pub fn workspace<T: Send + 'static>(ask: impl FnOnce(&Tree) -> T + Send + 'static) -> T {
    static KEEPER: LazyLock<mpsc::Sender<Question>> = LazyLock::new(|| {
        let (asks, questions) = mpsc::channel::<Question>();
        thread::spawn(move || {
            let tree = Tree::of_workspace();
            questions.into_iter().for_each(|question| question(&tree));
        });
        asks
    });
    let (answers, answer) = mpsc::channel();
    let question = move |tree: &Tree| answers.send(ask(tree)).expect("its test waits");
    KEEPER.send(Box::new(question)).expect("the tree is read");
    answer.recv().expect("the rule looks through the whole tree")
}

impl File {
    fn new(path: String, text: String, executable: bool) -> Self {
        Self { path, text, executable, syntax: OnceCell::new() }
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// What the parser makes of a Rust file; `None` for any other.
    pub fn syntax(&self) -> Option<&syn::File> {
        let parse = || match syn::parse_file(&self.text) {
            Ok(syntax) => syntax,
            Err(error) => panic!("{} does not parse: {error}", self.path),
        };
        self.is_rust().then(|| self.syntax.get_or_init(parse))
    }

    /// Written by a generator: nobody is expected to read it.
    pub fn is_generated(&self) -> bool {
        self.path.starts_with("provider-verbs/rdma-core-sys/src/generated/")
    }

    pub fn finding(&self, line: usize, sentence: impl std::fmt::Display) -> Finding {
        format!("{}:{line}: {sentence}", self.path)
    }
}

impl Tree {
    /// Every text file of the workspace but what git ignores.
    fn of_workspace() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above tests");
        let mut files = Vec::new();
        for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(is_ours) {
            let entry = entry.expect("a readable tree");
            let relative = entry.path().strip_prefix(root).expect("below the root");
            let path = relative.to_str().expect("a name in UTF-8").to_string();
            if !entry.file_type().is_file() || path.starts_with("kestrel-perf.") {
                continue;
            }
            // What is not text (a picture) is nobody's business here.
            let Ok(text) = fs::read_to_string(entry.path()) else {
                continue;
            };
            let mode = entry.metadata().expect("metadata of a file").permissions().mode();
            files.push(File::new(path, text, mode & 0o111 != 0));
        }
        Self { files }
    }

    /// A small tree for the tests of a rule; `+` before a path makes the file executable.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| {
            let plain = path.trim_start_matches('+');
            File::new(plain.to_string(), text.to_string(), plain != *path)
        });
        Self { files: files.collect() }
    }

    pub fn find(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The folder of the package that a file belongs to, with a `/` at its end unless it is the root.
    pub fn package_of<'a>(&self, path: &'a str) -> &'a str {
        let ends = path.match_indices('/').map(|(at, _)| at + 1);
        let mut folders: Vec<&str> = ends.map(|end| &path[..end]).collect();
        folders.reverse();
        let package = folders.into_iter().find(|folder| {
            let manifest = format!("{folder}Cargo.toml");
            self.find(&manifest).is_some()
        });
        package.unwrap_or("")
    }

    /// Rust files that people wrote, with what the parser made of them.
    pub fn rust(&self) -> impl Iterator<Item = (&File, &syn::File)> {
        self.rust_files().filter_map(|file| Some((file, file.syntax()?)))
    }

    /// The same, as they are written.
    pub fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust() && !file.is_generated())
    }
}

fn is_ours(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    let hidden = name.starts_with('.') && ![".ci", ".github", ".gitignore"].contains(&&*name);
    entry.depth() == 0 || !(hidden || name == "target" || name.ends_with(".swp"))
}

/// Whether attributes keep an item out of every build but tests: `#[cfg(test)]` and its like.
pub fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let condition = list.tokens.to_string();
        list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all (test"))
    })
}

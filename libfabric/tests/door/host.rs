//! The installed libfabric, with the library that this workspace builds as its provider.

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_void},
    path::PathBuf,
    process::Command,
    sync::OnceLock,
};

use crate::abi::{
    fid::FidFabric,
    info::{FabricAttr, Info},
};

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;

/// libfabric's functions. `fi_getinfo` and the others are the newest versions of theirs.
pub struct Host {
    pub getinfo: GetInfo,
    pub freeinfo: unsafe extern "C" fn(*mut Info),
    pub dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
}

/// libfabric; none, after a word about why, where the test has to be skipped.
pub fn host(test: &str) -> Option<&'static Host> {
    static HOST: OnceLock<Result<Host, String>> = OnceLock::new();
    match HOST.get_or_init(load) {
        Ok(host) => Some(host),
        Err(reason) => {
            println!("SKIPPED {test}: {reason}");
            None
        }
    }
}

fn load() -> Result<Host, String> {
    // SAFETY: the name is a C string; libfabric is made to be loaded.
    let library = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("libfabric is not installed".into());
    }
    let folder = build();
    // SAFETY: done once, before anything here reads the environment in another thread.
    unsafe {
        env::set_var("FI_PROVIDER_PATH", &folder);
        env::set_var("FI_PROVIDER", "kestrel");
    }
    // SAFETY: the names are libfabric's, with these signatures.
    unsafe {
        Ok(Host {
            getinfo: function(library, c"fi_getinfo"),
            freeinfo: function(library, c"fi_freeinfo"),
            dupinfo: function(library, c"fi_dupinfo"),
            fabric: function(library, c"fi_fabric"),
        })
    }
}

/// # Safety
/// `F` is the type of that function.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    // SAFETY: the handle is dlopen's, the name a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "libfabric has no {name:?}");
    // SAFETY: the caller vouches for the type, which is a function pointer.
    unsafe { std::mem::transmute_copy(&symbol) }
}

/// Builds the library as this test was built, since cargo does not do it for a test, and
/// answers the folder that it is in. With the rest of the workspace, so that it has the features
/// that the tests were built with: what it stands on is there then. KESTREL_DOOR_BUILT says that
/// it is built, where there is no cargo.
fn build() -> PathBuf {
    let test = env::current_exe().expect("the path of this test");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps");
    if env::var_os("KESTREL_DOOR_BUILT").is_some() {
        return folder.to_path_buf();
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--lib"]);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(status.success(), "the library does not build");
    folder.to_path_buf()
}

//! What we ask of the libfabric that loaded us.
//!
//! Its functions are looked up by name at run time, in the library that is there:
//! linked by name they would bind to the oldest version of each symbol, and not at all
//! where an MPI library has loaded libfabric for itself.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::abi::fid::Provider;

type Log = unsafe extern "C" fn(
    *const Provider,
    level: c_int,
    subsystem: c_int,
    function: *const c_char,
    line: c_int,
    format: *const c_char,
    ...
);
type LogEnabled = unsafe extern "C" fn(*const Provider, level: c_int, subsystem: c_int) -> c_int;
type ParamDefine = unsafe extern "C" fn(
    *const Provider,
    name: *const c_char,
    kind: c_int,
    help: *const c_char,
    ...
) -> c_int;
type ParamGet =
    unsafe extern "C" fn(*mut Provider, name: *const c_char, value: *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;

/// libfabric's functions; each may be missing.
#[derive(Default)]
struct Host {
    log: Option<Log>,
    log_enabled: Option<LogEnabled>,
    param_define: Option<ParamDefine>,
    param_get: Option<ParamGet>,
    version: Option<Version>,
}

static HOST: OnceLock<Host> = OnceLock::new();
/// Set while libfabric may be called.
static CONNECTED: AtomicBool = AtomicBool::new(false);

/// Finds libfabric. Answers its version, or 0.
pub fn connect() -> u32 {
    let host = HOST.get_or_init(|| {
        let library = find_library();
        Host {
            // SAFETY: the names are libfabric's, with these signatures since 1.0.
            log: unsafe { function(library, c"fi_log") },
            // SAFETY: as above.
            log_enabled: unsafe { function(library, c"fi_log_enabled") },
            // SAFETY: as above.
            param_define: unsafe { function(library, c"fi_param_define") },
            // SAFETY: as above.
            param_get: unsafe { function(library, c"fi_param_get") },
            // SAFETY: as above.
            version: unsafe { function(library, c"fi_version") },
        }
    });
    CONNECTED.store(true, Ordering::Relaxed);
    // SAFETY: takes nothing, and libfabric is there: it is calling us.
    host.version.map_or(0, |version| unsafe { version() })
}

/// libfabric is not called from now on: it is about to unload.
pub fn disconnect() {
    CONNECTED.store(false, Ordering::Relaxed);
}

fn connected() -> Option<&'static Host> {
    HOST.get().filter(|_| CONNECTED.load(Ordering::Relaxed))
}

/// A handle for `dlsym`: libfabric under its usual name, else whatever library has its
/// functions (an MPI may carry a renamed copy), else everything that is global.
fn find_library() -> *mut c_void {
    let open = |name: *const c_char| {
        // SAFETY: the name is a C string; NOLOAD runs nobody's code.
        unsafe { libc::dlopen(name, libc::RTLD_NOLOAD | libc::RTLD_NOW) }
    };
    let usual = open(c"libfabric.so.1".as_ptr());
    if !usual.is_null() {
        return usual;
    }
    let mut found: Vec<Vec<u8>> = Vec::new();
    // SAFETY: `note_library` takes what is passed here, for the time of this call.
    unsafe { libc::dl_iterate_phdr(Some(note_library), ptr::from_mut(&mut found).cast()) };
    let has_functions = |handle: &*mut c_void| {
        if handle.is_null() {
            return false;
        }
        // SAFETY: the handle is one of dlopen's, and nobody else's; the name is a C string.
        unsafe {
            let has = !libc::dlsym(*handle, c"fi_param_define".as_ptr()).is_null();
            // Whoever has loaded another library may want to unload it.
            if !has {
                libc::dlclose(*handle);
            }
            has
        }
    };
    let handles = found.iter().map(|name| open(name.as_ptr().cast()));
    handles.into_iter().find(has_functions).unwrap_or(libc::RTLD_DEFAULT)
}

unsafe extern "C" fn note_library(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: libc passes a valid entry, and what `find_library` gave it.
    let (name, found) = unsafe { ((*info).dlpi_name, &mut *found.cast::<Vec<Vec<u8>>>()) };
    if !name.is_null() {
        // SAFETY: the entry's name is a C string.
        found.push(unsafe { CStr::from_ptr(name) }.to_bytes_with_nul().to_vec());
    }
    0
}

/// # Safety
/// `F` is the type of the function of that name.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the handle is dlopen's or RTLD_DEFAULT; the name is a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: a function pointer is as large as the symbol's address, and the caller
    // vouches for its type.
    (!symbol.is_null()).then(|| unsafe { std::mem::transmute_copy(&symbol) })
}

/// Whether a line would be written.
pub fn log_enabled(level: c_int, subsystem: c_int) -> bool {
    let Some(enabled) = connected().and_then(|host| host.log_enabled) else {
        return false;
    };
    // SAFETY: the provider is static; the numbers are libfabric's own.
    unsafe { enabled(crate::provider::handle(), level, subsystem) != 0 }
}

/// Writes a line to libfabric's log.
pub fn log(level: c_int, subsystem: c_int, function: &CStr, line: u32, text: &CStr) {
    let Some(log) = connected().and_then(|host| host.log) else {
        return;
    };
    let provider = crate::provider::handle();
    // SAFETY: the provider is static, all strings are C strings, and the format takes
    // exactly one of them.
    unsafe {
        log(
            provider,
            level,
            subsystem,
            function.as_ptr(),
            line as c_int,
            c"%s\n".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// Declares a parameter, a string as all of ours.
pub fn define_parameter(name: &CStr, help: &CStr) {
    const STRING: c_int = 0;
    if let Some(define) = connected().and_then(|host| host.param_define) {
        // SAFETY: as in `log`. libfabric copies both strings.
        unsafe {
            define(crate::provider::handle(), name.as_ptr(), STRING, c"%s".as_ptr(), help.as_ptr());
        }
    }
}

/// What the user set a parameter of ours to, by its short name and by its variable's.
pub fn parameter(name: &CStr, variable: &str) -> Option<String> {
    parameter_of(crate::provider::handle(), name, variable)
}

/// The providers that the user chose, as FI_PROVIDER has them (fabric(7)).
pub fn providers() -> Option<String> {
    parameter_of(ptr::null_mut(), c"provider", "FI_PROVIDER")
}

/// A parameter of a provider, or of libfabric itself. An MPI library may have libfabric inside and hide its
/// functions: then the variable tells.
fn parameter_of(provider: *mut Provider, name: &CStr, variable: &str) -> Option<String> {
    let Some(get) = connected().and_then(|host| host.param_get) else {
        return std::env::var(variable).ok();
    };
    let mut value: *const c_char = ptr::null();
    // SAFETY: the parameter was declared as a string, so a `char *` is written, which
    // lives as long as the environment.
    let code = unsafe { get(provider, name.as_ptr(), ptr::from_mut(&mut value).cast()) };
    if code != 0 || value.is_null() {
        return None;
    }
    // SAFETY: libfabric wrote a C string.
    Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

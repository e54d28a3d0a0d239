//! A libfabric, loaded when it is asked for: the program does without.

use super::DoorError;
use kestrel_fi_abi::fid::FidFabric;
use kestrel_fi_abi::info::{FabricAttr, Info};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

/// The version of the interface that is asked for: the oldest that kestrel serves.
const VERSION: u32 = 1 << 16 | 17;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;

/// The functions that libfabric exports; all others are in the objects' tables.
#[derive(Clone, Copy)]
pub struct Library {
    version: unsafe extern "C" fn() -> u32,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    getinfo: GetInfo,
    dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub(super) freeinfo: unsafe extern "C" fn(*mut Info),
    pub(super) fabric:
        unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
}

impl Library {
    /// Loads a libfabric for as long as the process runs: providers may keep
    /// threads in it. Where it looks for providers, the environment says.
    pub fn open(path: &Path) -> Result<Library, DoorError> {
        let failed = |source| DoorError::Load { path: path.to_owned(), source };
        // SAFETY: libfabric is made to be loaded, and so are its providers.
        let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        let library = Box::leak(Box::new(library));
        // SAFETY: the names are libfabric's, with these signatures; `dlsym` gives the
        // newest version of each, which takes the layouts of `kestrel_fi_abi`.
        unsafe {
            Ok(Library {
                version: *library.get(b"fi_version\0").map_err(failed)?,
                strerror: *library.get(b"fi_strerror\0").map_err(failed)?,
                getinfo: *library.get(b"fi_getinfo\0").map_err(failed)?,
                dupinfo: *library.get(b"fi_dupinfo\0").map_err(failed)?,
                freeinfo: *library.get(b"fi_freeinfo\0").map_err(failed)?,
                fabric: *library.get(b"fi_fabric\0").map_err(failed)?,
            })
        }
    }

    /// As `2.4`.
    pub fn version(&self) -> String {
        // SAFETY: it takes nothing and changes nothing.
        let version = unsafe { (self.version)() };
        format!("{}.{}", version >> 16, version & 0xffff)
    }

    /// What a negative status means.
    pub(super) fn reason(&self, status: i64) -> String {
        // SAFETY: any number is allowed; the answer is a static C string.
        let text = unsafe { CStr::from_ptr((self.strerror)(-status as c_int)) };
        format!("{} ({status})", text.to_string_lossy())
    }

    /// The first answer of `fi_getinfo` to hints that `change` makes of none, to be
    /// freed with `freeinfo`; a negative status if there is none.
    ///
    /// # Safety
    /// `change` leaves hints that `fi_getinfo` may read and `fi_freeinfo` free.
    pub(super) unsafe fn info(&self, change: impl FnOnce(&mut Info)) -> Result<*mut Info, c_int> {
        let mut found = std::ptr::null_mut();
        // SAFETY: libfabric allocates hints with all their attributes; the caller
        // vouches for what becomes of them.
        unsafe {
            let hints = (self.dupinfo)(std::ptr::null());
            change(&mut *hints);
            let (node, service) = (std::ptr::null(), std::ptr::null());
            let status = (self.getinfo)(VERSION, node, service, 0, hints, &raw mut found);
            (self.freeinfo)(hints);
            if status == 0 { Ok(found) } else { Err(status) }
        }
    }
}

//! The provider as libfabric sees it, and the one symbol that it looks for.
//! Reference: fi_provider(3).

use std::{
    cell::UnsafeCell,
    ffi::CStr,
    panic::catch_unwind,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

use crate::{abi::fid::Provider, fabric, getinfo, host, logging, parameters, refused};

/// The provider's name.
pub const NAME: &CStr = c"kestrel";
/// The provider's version, as libfabric packs them.
pub const VERSION: u32 = 1; // 0.1
/// The newest interface whose tables and structs we have. libfabric does not ask a
/// provider that says less than the application wants.
const INTERFACE: u32 = 2 << 16 | 6;

/// libfabric keeps its own state in the struct, so it is static and writable.
struct Cell(UnsafeCell<Provider>);

// SAFETY: libfabric alone uses it, under its own lock; we write to it once, before
// libfabric has it.
unsafe impl Sync for Cell {}

static PROVIDER: Cell = Cell(UnsafeCell::new(Provider {
    version: VERSION,
    fi_version: INTERFACE,
    context: [ptr::null_mut(); 4],
    name: NAME.as_ptr(),
    getinfo: getinfo::getinfo,
    fabric: fabric::fabric,
    cleanup,
}));

/// The process that loaded us; 0: nobody has yet, or it is over.
static LOADED_BY: AtomicI32 = AtomicI32::new(0);

/// The struct, for calls that want the provider that asks.
pub fn handle() -> *mut Provider {
    PROVIDER.0.get()
}

/// What libfabric calls after it has loaded us.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut Provider {
    let made_ready = catch_unwind(|| {
        LOADED_BY.store(current_process(), Ordering::Relaxed);
        let version = host::connect();
        logging::install();
        refused::install();
        parameters::define();
        version
    });
    let Ok(version) = made_ready else {
        return ptr::null_mut();
    };
    // SAFETY: libfabric has not seen the struct yet, and loads a provider once.
    unsafe { (*handle()).fi_version = INTERFACE.max(version) };
    handle()
}

/// What libfabric calls when the process exits, before it unloads us.
///
/// A forked child that exits comes here, too: there, everything belongs to the parent.
extern "C" fn cleanup() {
    if LOADED_BY.load(Ordering::Relaxed) != current_process() {
        return;
    }
    // libfabric's functions may be gone after this. Our own code is not: the library
    // stays mapped (see build.rs), so threads that still run end with the process.
    host::disconnect();
    LOADED_BY.store(0, Ordering::Relaxed);
}

fn current_process() -> i32 {
    // A process number fits: Linux has at most 2^22.
    std::process::id() as i32
}

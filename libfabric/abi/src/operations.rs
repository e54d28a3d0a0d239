//! How a table of calls is written: its layout, and a stub for each call.

use std::{
    ffi::{c_char, c_int, c_void},
    sync::OnceLock,
};

/// What a call answers that is not there, by the type that it returns.
pub trait Refusal {
    /// The answer that says `errno`, as far as the type can.
    fn refusal(errno: i32) -> Self;
}

impl Refusal for c_int {
    fn refusal(errno: i32) -> Self {
        -errno
    }
}

impl Refusal for isize {
    fn refusal(errno: i32) -> Self {
        -(errno as isize)
    }
}

/// Counters answer with a value, and so have no way to refuse.
impl Refusal for u64 {
    fn refusal(_: i32) -> Self {
        0
    }
}

impl Refusal for *const c_char {
    fn refusal(_: i32) -> Self {
        std::ptr::null()
    }
}

/// A call that a stub has answered.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// The table, by its Rust name.
    pub table: &'static str,
    /// The call, as C spells it.
    pub call: &'static str,
    /// What it was called on: null, or a pointer to an object, open or closed.
    pub object: *const c_void,
    /// As it was answered.
    pub errno: i32,
}

static LISTENER: OnceLock<fn(&Refused)> = OnceLock::new();

/// Has `listener` told of every call that a stub answers from now on. Only the first one is.
pub fn on_refusal(listener: fn(&Refused)) {
    let _ = LISTENER.set(listener);
}

/// Tells of a call that a stub is about to answer.
#[cold]
pub(crate) fn tell(refused: &Refused) {
    if let Some(listener) = LISTENER.get() {
        listener(refused);
    }
}

/// A `struct fi_ops_*`: its `size`, then a function pointer for each call. libfabric
/// calls most of them blind, so a table is complete: its `refusing` fills the calls that
/// a provider does not have.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        pub struct $table:ident {
            $($call:ident($object:ident: $on:ty $(, $argument:ident: $kind:ty)* $(,)?) -> $answer:ty;)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $table {
                pub size: usize,
                $(pub $call: unsafe extern "C" fn($object: $on $(, $argument: $kind)*) -> $answer,)*
            }

            impl $table {
                /// A table in which every call answers with `-ERRNO`.
                pub const fn refusing<const ERRNO: i32>() -> Self {
                    $(extern "C" fn $call<const ERRNO: i32>($object: $on $(, _: $kind)*) -> $answer {
                        crate::operations::tell(&crate::Refused {
                            table: stringify!($table),
                            call: stringify!($call),
                            object: $object.cast::<std::ffi::c_void>(),
                            errno: ERRNO,
                        });
                        crate::Refusal::refusal(ERRNO)
                    })*
                    $table { size: size_of::<Self>(), $($call: $call::<ERRNO>,)* }
                }
            }
        )*
    };
}

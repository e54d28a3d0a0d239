//! What all objects that C holds have in common: how they are made, told apart, counted
//! and closed.
//!
//! An object is one allocation: what libfabric's headers declare comes first, our state
//! after it. `fi_close` calls through a table that the object itself points to, and so
//! does every other call; so a closed object stays readable for a while, with tables in
//! which every call answers -FI_EBADF. The last [`TOMBS_MAX`] objects are kept like that,
//! without their state.

use std::{
    alloc::{Layout, dealloc},
    collections::VecDeque,
    ffi::{c_int, c_void},
    mem::ManuallyDrop,
    sync::Arc,
};

use kestrel_core::fork_guard;
use kestrel_core::{bind_count::BindCount, error::Errno};

use crate::{
    abi::{
        constants::{BADF, NOSYS},
        control::OpsFid,
        fid::Fid,
    },
    outcome::{Failure, done},
    per_process::PerProcess,
};

/// How many closed objects are remembered.
const TOMBS_MAX: usize = 1024;

/// A kind of object, by the struct that C sees.
pub trait Header: Sized {
    /// What we keep behind it.
    type State;
    /// In words, for errors.
    const NAME: &'static str;
    /// What `struct fid` begins with.
    fn fid(&mut self) -> &mut Fid;
    /// The table that objects of this kind, and no others, point to.
    fn operations() -> *const OpsFid;
    /// Points every table to one that refuses.
    fn refuse(&mut self);
    /// Undoes what opening did, or says why it cannot be undone yet.
    fn close(state: &Self::State) -> Result<(), Failure>;
}

#[repr(C)]
struct Object<H: Header> {
    header: H,
    /// Tells a forked child that the object is its parent's.
    generation: u32,
    state: ManuallyDrop<H::State>,
}

/// Every call of `struct fi_ops`, answering -FI_ENOSYS.
pub const FID_NOSYS: OpsFid = OpsFid::refusing::<NOSYS>();
/// The table of closed objects.
pub static FID_CLOSED: OpsFid = OpsFid::refusing::<BADF>();

/// The `struct fid` of a new object.
pub fn fid<H: Header>(class: usize, context: *mut c_void) -> Fid {
    Fid { fclass: class, context, ops: H::operations() }
}

/// Makes an object that C owns until it closes it.
pub fn create<H: Header>(header: H, state: H::State) -> *mut H {
    let generation = fork_guard::generation();
    Box::into_raw(Box::new(Object { header, generation, state: ManuallyDrop::new(state) })).cast()
}

/// Our state behind an object, unless this process is a forked child of the one that
/// made it: its descriptors, and locks that another thread held, are its parent's.
///
/// # Safety
/// As [`state`].
pub unsafe fn owned<'a, H: Header>(object: *mut H) -> Result<&'a H::State, Failure> {
    // SAFETY: the caller vouches for it.
    let object = unsafe { &*object.cast::<Object<H>>() };
    if fork_guard::forked(object.generation) {
        let reason = format!("a forked child cannot use its parent's {}", H::NAME);
        return Err(Failure::new(Errno::OPNOTSUPP, reason));
    }
    Ok(&object.state)
}

/// Our state behind an object, for the data path: core sees by itself what was forked.
///
/// # Safety
/// `object` was made by [`create`] and is not closed; the call that it was passed to
/// ends before it is.
#[inline(always)]
pub unsafe fn state<'a, H: Header>(object: *mut H) -> &'a H::State {
    // SAFETY: `create` made an `Object<H>` of it, and closing has not begun.
    unsafe { &(*object.cast::<Object<H>>()).state }
}

/// Our state behind an object of a kind that has to be checked.
///
/// # Safety
/// `fid` is null or points to an object of libfabric's, not closed during the call.
pub unsafe fn checked<'a, H: Header>(fid: *mut Fid) -> Result<&'a H::State, Failure> {
    if fid.is_null() {
        return Err(Failure::null(H::NAME));
    }
    // SAFETY: every object starts with a `struct fid`.
    if unsafe { (*fid).ops } != H::operations() {
        let reason = format!("what was given is no open {} of kestrel", H::NAME);
        return Err(Failure::new(Errno::INVAL, reason));
    }
    // SAFETY: only objects of this kind point to that table, and only while open.
    unsafe { owned(fid.cast::<H>()) }
}

/// `fi_close`, for the tables of every kind. In a forked child nothing is undone: what is open is its parent's, who
/// may have been in the middle of using it, with a lock that nobody lets go of here.
pub unsafe extern "C" fn close<H: Header>(fid: *mut Fid) -> c_int {
    done("fi_close", || {
        let object = fid.cast::<Object<H>>();
        // SAFETY: this is in the table of open objects of this kind only.
        let is_ours = !fork_guard::forked(unsafe { (*object).generation });
        if is_ours {
            // SAFETY: as above.
            H::close(unsafe { &(*object).state })?;
        }
        // SAFETY: as above; and nobody else uses an object that is being closed.
        let Object { header, state, .. } = unsafe { &mut *object };
        header.refuse();
        header.fid().ops = &raw const FID_CLOSED;
        if is_ours {
            // SAFETY: nothing leads to the state from now on.
            unsafe { ManuallyDrop::drop(state) };
        }
        bury(object.cast(), Layout::new::<Object<H>>());
        Ok(())
    })
}

struct Tomb {
    object: *mut u8,
    layout: Layout,
}

// SAFETY: a tomb alone knows its allocation, but for users of closed objects.
unsafe impl Send for Tomb {}

static TOMBS: PerProcess<VecDeque<Tomb>> = PerProcess::new();

fn bury(object: *mut u8, layout: Layout) {
    let mut tombs = TOMBS.lock();
    tombs.push_back(Tomb { object, layout });
    if tombs.len() > TOMBS_MAX
        && let Some(oldest) = tombs.pop_front()
    {
        // SAFETY: a box of this layout, whose state was dropped and whose header has
        // nothing to drop.
        unsafe { dealloc(oldest.object, oldest.layout) };
    }
}

/// A count in an object that others are opened on or bound to: it cannot be closed
/// while one of these lives.
pub struct Use(Arc<BindCount>);

impl Use {
    pub fn of(count: &Arc<BindCount>) -> Result<Use, Failure> {
        count.bind()?;
        Ok(Use(count.clone()))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // Counted when it was made, so this cannot fail.
        let _ = self.0.unbind();
    }
}

/// Where a new object is written to.
///
/// # Safety
/// `place` is null or valid for a write.
pub unsafe fn out<'a, T>(place: *mut *mut T) -> Result<&'a mut *mut T, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { place.as_mut() }.ok_or_else(|| Failure::null("where the new object goes"))
}

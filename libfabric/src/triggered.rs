//! Triggered operations: what the flag FI_TRIGGER and the context of a call say.
//! Reference: fi_trigger(3).

use std::ffi::c_void;

use kestrel::Provider;
use kestrel_core::{
    endpoint::PostError,
    error::Errno,
    flags::Flags,
    one_sided::{AtomicPost, RmaPost},
    operation::{ReceivePost, SendPost},
    triggered::Threshold,
};

use crate::{
    abi::{
        fid::FidCntr,
        trigger::{TriggeredContext, event},
    },
    object,
    outcome::{Failure, guarded, posted},
};

/// What a call posts.
pub trait Post {
    fn flags(&mut self) -> &mut Flags;
    fn context(&self) -> u64;
}

macro_rules! posts {
    ($($kind:ident),*) => {$(
        impl Post for $kind<'_> {
            #[inline(always)]
            fn flags(&mut self) -> &mut Flags {
                &mut self.flags
            }
            #[inline(always)]
            fn context(&self) -> u64 {
                self.context
            }
        }
    )*};
}

posts!(SendPost, ReceivePost, RmaPost, AtomicPost);

/// Posts now; with FI_TRIGGER, of the call's own flags or of the endpoint's, when its context says.
///
/// # Safety
/// With FI_TRIGGER, if `capabilities` has it, the context is as for [`deferred`].
#[inline(always)]
pub unsafe fn start<P: Post>(
    mut post: P,
    capabilities: impl FnOnce() -> Flags,
    now: impl FnOnce(P) -> Result<(), PostError>,
    later: impl FnOnce(P, &Threshold<Provider>) -> Result<(), PostError>,
) -> isize {
    if !post.flags().contains(Flags::TRIGGER) {
        return posted(now(post));
    }
    post.flags().remove(Flags::TRIGGER);
    if !capabilities().contains(Flags::TRIGGER) {
        return posted(Err(PostError::NotCapable { missing: Flags::TRIGGER }));
    }
    let context = post.context() as *mut c_void;
    // SAFETY: the caller vouches for it.
    unsafe { deferred(context, |when| later(post, when)) }
}

/// Has `post` defer an operation until what its context says has come: "Triggered operations
/// require that applications use struct fi_triggered_context as their per operation context
/// parameter".
///
/// # Safety
/// `context` is null or points to such a struct, whose counter is null or an open object.
#[cold]
#[inline(never)]
unsafe fn deferred(
    context: *mut c_void,
    post: impl FnOnce(&Threshold<Provider>) -> Result<(), PostError>,
) -> isize {
    guarded("FI_TRIGGER", || {
        // SAFETY: the caller vouches for it.
        let context = unsafe { context.cast::<TriggeredContext>().as_ref() };
        let context = context.ok_or_else(|| Failure::null("the triggered context"))?;
        if context.event_type != event::THRESHOLD {
            let reason =
                format!("event {}: there is FI_TRIGGER_THRESHOLD alone", context.event_type);
            return Err(Failure::new(Errno::NOSYS, reason));
        }
        // SAFETY: of this kind of event; and the caller vouches for the counter.
        let (when, counter) = unsafe {
            let when = context.trigger.threshold;
            (when, object::checked::<FidCntr>(when.cntr.cast())?)
        };
        let (counter, value) = (counter.counter.clone(), when.threshold as u64);
        post(&Threshold { counter, value, work: None })?;
        Ok(0)
    })
}

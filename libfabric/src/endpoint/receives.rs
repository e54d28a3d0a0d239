//! What takes receives: an endpoint, or a context that endpoints share.

use kestrel::Provider;
use kestrel_core::{
    endpoint::PostError, flags::Flags, operation::ReceivePost, triggered::Threshold,
};

use super::State;
use crate::{
    abi::fid::FidEp,
    memory_region::DescriptorLists,
    object::{self, Header},
};

/// What receives are posted to: an endpoint, or a context that endpoints share.
pub trait Receives {
    /// The flags of calls that name none, of this family: `MSG` or `TAGGED`.
    fn default_flags(&self, family: Flags) -> Flags;
    /// Whether the buffers of a receive with these flags, its family's among them, are not looked at.
    fn ignores_buffers(&self, flags: Flags) -> bool;
    /// What it was opened for.
    fn capabilities(&self) -> Flags;
    /// Whether lists of descriptors are followed.
    fn lists(&self) -> DescriptorLists;
    fn post_receive(&self, post: ReceivePost<'_>) -> Result<(), PostError>;
    /// Posts it later.
    fn trigger_receive(
        &self,
        post: ReceivePost<'_>,
        when: &Threshold<Provider>,
    ) -> Result<(), PostError>;
}

impl Receives for State {
    #[inline(always)]
    fn default_flags(&self, family: Flags) -> Flags {
        self.defaults.receive_of(family)
    }

    #[inline(always)]
    fn ignores_buffers(&self, flags: Flags) -> bool {
        self.endpoint.ignores_buffers(flags)
    }

    fn capabilities(&self) -> Flags {
        self.endpoint.options().capabilities
    }

    #[inline(always)]
    fn lists(&self) -> DescriptorLists {
        self.lists
    }

    #[inline(always)]
    fn post_receive(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        self.endpoint.post_receive(post)
    }

    fn trigger_receive(
        &self,
        post: ReceivePost<'_>,
        when: &Threshold<Provider>,
    ) -> Result<(), PostError> {
        self.endpoint.trigger_receive(post, when)
    }
}

/// Where a call posts receives, by the kind of object that has the call in its table.
///
/// # Safety
/// `ep` is an open object of kind `H`, as for [`object::state`].
#[inline(always)]
pub unsafe fn receiver<'a, H: Header<State: Receives>>(ep: *mut FidEp) -> &'a H::State {
    // SAFETY: the caller vouches for it.
    unsafe { object::state(ep.cast::<H>()) }
}

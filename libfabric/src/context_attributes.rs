//! The attributes that a context is opened with: those of what it is part of, or others that are
//! held against them. "Providers will return the actual attributes assigned to the context
//! through the attr parameter, if provided" (fi_endpoint(3)).

use kestrel::discovery;
use kestrel_core::{
    config::Config,
    error::Errno,
    flags::Flags,
    info::{
        self, ApiVersion, Hints, ReceiveAttributes, ReceiveHints, Rejection, TransmitAttributes,
        TransmitHints,
    },
};

use crate::{
    abi::info::{RxAttr, TxAttr},
    answer, hints,
    outcome::Failure,
};

/// What a context is part of: an endpoint, or a domain.
pub struct Whole<'a> {
    pub info: &'a info::Info,
    pub config: &'a Config,
    pub version: ApiVersion,
}

impl Whole<'_> {
    fn hints(&self) -> Hints {
        let mut hints = Hints::new();
        hints.caps = self.info.caps;
        hints.mode = self.info.mode;
        hints.domain.name = Some(self.info.domain.name.clone());
        hints.domain.memory_region_mode = self.info.domain.memory_region_mode;
        hints.endpoint.kind = self.info.endpoint.kind;
        hints
    }

    fn agree(&self, hints: &Hints) -> Result<info::Info, Failure> {
        discovery::agree(self.config, self.version, hints)
            .map_err(|rejections| Failure::new(Errno::INVAL, Rejection::summary(&rejections)))
    }

    /// The info of a transmit context with these attributes, which are told then.
    ///
    /// # Safety
    /// `attr` is null or valid.
    pub unsafe fn transmit(&self, attr: *mut TxAttr) -> Result<info::Info, Failure> {
        let mut found = self.info.clone();
        // SAFETY: the caller vouches for it.
        if let Some(attr) = unsafe { attr.as_mut() } {
            let mut hints = self.hints();
            let whole = &self.info.transmit;
            hints.transmit = inherit_transmit(hints::transmit(attr), whole);
            found.transmit = self.agree(&hints)?.transmit;
            if found.transmit.op_flags.is_empty() {
                found.transmit.op_flags = whole.op_flags;
            }
            // All contexts have one transport-level address, and its class.
            found.transmit.traffic_class = whole.traffic_class;
            *attr = answer::transmit_attr(&found.transmit);
        }
        (found.caps, found.mode) = (found.transmit.caps, found.transmit.mode);
        Ok(found)
    }

    /// The same of a receive context.
    ///
    /// # Safety
    /// `attr` is null or valid.
    pub unsafe fn receive(&self, attr: *mut RxAttr) -> Result<info::Info, Failure> {
        let mut found = self.info.clone();
        // SAFETY: the caller vouches for it.
        if let Some(attr) = unsafe { attr.as_mut() } {
            let mut hints = self.hints();
            hints.receive = inherit_receive(hints::receive(attr), &self.info.receive);
            // A capability of those who name it; but programs also ask for it where it is named.
            hints.receive.caps -= self.info.caps & Flags::NAMED_RX_CTX;
            found.receive = self.agree(&hints)?.receive;
            if found.receive.op_flags.is_empty() {
                found.receive.op_flags = self.info.receive.op_flags;
            }
            *attr = answer::receive_attr(&found.receive);
        }
        (found.caps, found.mode) = (found.receive.caps, found.receive.mode);
        Ok(found)
    }
}

/// "By default, a transmit context inherits the properties of its associated endpoint": what is
/// not asked for is the endpoint's. So are default flags, which need not be held against anything:
/// an alias may have such as attributes cannot ask for.
fn inherit_transmit(asked: TransmitHints, whole: &TransmitAttributes) -> TransmitHints {
    TransmitHints {
        caps: if asked.caps.is_empty() { whole.caps } else { asked.caps },
        completion_order: asked.completion_order | whole.completion_order,
        size: asked.size.or(Some(whole.size)),
        inject_size: asked.inject_size.or(Some(whole.inject_size)),
        ..asked
    }
}

/// The same of a receive context.
fn inherit_receive(asked: ReceiveHints, whole: &ReceiveAttributes) -> ReceiveHints {
    ReceiveHints {
        caps: if asked.caps.is_empty() { whole.caps } else { asked.caps },
        completion_order: asked.completion_order | whole.completion_order,
        size: asked.size.or(Some(whole.size)),
        total_buffered_recv: asked.total_buffered_recv.or(Some(whole.total_buffered_recv)),
        ..asked
    }
}

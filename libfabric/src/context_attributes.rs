//! The attributes that a context is opened with: those of what it is part of, or others that are
//! held against them. A shared context is part of nothing, and its endpoints are held against it.
//! "Providers will return the actual attributes assigned to the context through the attr parameter,
//! if provided" (fi_endpoint(3)).

use kestrel::discovery;
use kestrel_core::{
    config::Config,
    error::Errno,
    flags::Flags,
    info::{
        self, ApiVersion, EndpointType, Hints, Mode, ReceiveAttributes, ReceiveHints, Rejection,
        TransmitAttributes, TransmitHints,
    },
};

use crate::{
    abi::info::{RxAttr, TxAttr},
    answer, hints,
    outcome::Failure,
    versioned,
};

/// What a context is part of: an endpoint, or, of a shared one, a domain.
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
        hints.domain.memory_region_mode = Some(self.info.domain.memory_region_mode);
        hints.endpoint.kind = self.info.endpoint.kind;
        hints
    }

    fn agree(&self, hints: &Hints) -> Result<info::Info, Failure> {
        discovery::agree(self.config, self.version, hints)
            .map_err(|rejections| Failure::new(Errno::INVAL, Rejection::summary(&rejections)))
    }

    /// What the attributes of a shared context are held against: all that an endpoint can do, or what
    /// of it `caps` names. "Endpoints associated with a shared transmit context must use a subset of
    /// the transmit context's attributes. Note that this is the reverse of the requirement for
    /// transmit contexts for scalable endpoints": what the domain was opened with is no bound.
    fn widened(&self, caps: Flags) -> Result<info::Info, Failure> {
        let mut wide = self.info.clone();
        // It is no part of what its domain was opened for, and inherits no flags.
        (wide.transmit.op_flags, wide.receive.op_flags) = (Flags::empty(), Flags::empty());
        // Receives that are shared have buffers, whatever its domain was opened for.
        for mode in [&mut wide.mode, &mut wide.receive.mode] {
            mode.remove(Mode::BUFFERED_RECV);
        }
        let offered = |kind, caps| {
            let mut hints = self.hints();
            (hints.caps, hints.endpoint.kind) = (caps, kind);
            self.agree(&hints)
        };
        let own = self.info.endpoint.kind;
        let usual = offered(own, Flags::empty())?;
        wide.transmit.size = wide.transmit.size.max(usual.transmit.size);
        wide.transmit.inject_size = wide.transmit.inject_size.max(usual.transmit.inject_size);
        if !caps.is_empty() && wide.caps.contains(caps) {
            return Ok(wide);
        }
        let caps = if caps.is_empty() { usual.caps | self.info.caps } else { caps };
        // What the domain's own type has not, others may have.
        let others = [EndpointType::Rdm, EndpointType::Dgram].map(|kind| offered(kind, caps));
        let agreed = others.into_iter().fold(offered(own, caps), Result::or)?;
        wide.endpoint.kind = agreed.endpoint.kind;
        wide.caps = agreed.caps;
        wide.transmit.caps = agreed.transmit.caps;
        wide.receive.caps = agreed.receive.caps;
        Ok(wide)
    }

    /// The info of a shared transmit context: as [`Self::transmit`].
    ///
    /// # Safety
    /// `attr` is null or valid.
    pub unsafe fn shared_transmit(&self, attr: *mut TxAttr) -> Result<info::Info, Failure> {
        // SAFETY: the caller vouches for it.
        let asked = unsafe { versioned::read(attr, self.version) };
        let asked = asked.map(|attr| hints::transmit(&attr)).unwrap_or_default();
        let mut wide = self.widened(asked.caps)?;
        if let Some(class) = asked.traffic_class {
            // Endpoints that share it have an address, and a class, of their own.
            wide.transmit.traffic_class = class;
        }
        // SAFETY: as above.
        unsafe { Whole { info: &wide, ..*self }.transmit(attr) }
    }

    /// The info of a shared receive context, as [`Self::receive`], and the capabilities that the
    /// application has named, by which its receives may be for one peer: the context's, or its domain's.
    ///
    /// # Safety
    /// `attr` is null or valid.
    pub unsafe fn shared_receive(&self, attr: *mut RxAttr) -> Result<(info::Info, Flags), Failure> {
        // SAFETY: the caller vouches for it.
        let asked = unsafe { attr.as_ref() }.map(|attr| hints::receive(attr).caps);
        let asked = asked.unwrap_or_default();
        let wide = self.widened(asked)?;
        let named = if asked.is_empty() { self.info.caps } else { asked };
        // SAFETY: as above.
        let found = unsafe { Whole { info: &wide, ..*self }.receive(attr) }?;
        Ok((found, named))
    }

    /// The info of a transmit context with these attributes, which are told then.
    ///
    /// # Safety
    /// `attr` is null or valid.
    pub unsafe fn transmit(&self, attr: *mut TxAttr) -> Result<info::Info, Failure> {
        let mut found = self.info.clone();
        // SAFETY: the caller vouches for it.
        if let Some(asked) = unsafe { versioned::read(attr, self.version) } {
            let mut hints = self.hints();
            let whole = &self.info.transmit;
            hints.transmit = inherit_transmit(hints::transmit(&asked), whole);
            let flags = hints.transmit.op_flags;
            hints.transmit.op_flags -= whole.op_flags;
            found.transmit = self.agree(&hints)?.transmit;
            found.transmit.op_flags = if flags.is_empty() { whole.op_flags } else { flags };
            if hints.transmit.message_order.is_empty() {
                found.transmit.message_order &= whole.message_order;
            }
            // All contexts have one transport-level address, and its class.
            found.transmit.traffic_class = whole.traffic_class;
            // SAFETY: as above.
            unsafe {
                versioned::write(attr, &answer::transmit_attr(&found.transmit), self.version)
            };
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
            let whole = &self.info.receive;
            hints.receive = inherit_receive(hints::receive(attr), whole);
            let flags = hints.receive.op_flags;
            hints.receive.op_flags -= whole.op_flags;
            found.receive = self.agree(&hints)?.receive;
            found.receive.op_flags = if flags.is_empty() { whole.op_flags } else { flags };
            if hints.receive.message_order.is_empty() {
                found.receive.message_order &= whole.message_order;
            }
            *attr = answer::receive_attr(&found.receive);
        }
        (found.caps, found.mode) = (found.receive.caps, found.receive.mode);
        Ok(found)
    }
}

/// "By default, a transmit context inherits the properties of its associated endpoint": what is
/// not asked for is the endpoint's. So are default flags, and those that the endpoint has are not held
/// against anything: an alias may have such as attributes cannot ask for. And so are message orders, as
/// far as the context's other attributes leave them.
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

//! Capabilities, and what registration they need.

use super::Negotiation;
use crate::flags::{FAMILY, Flags};
use crate::info::modes::{MemoryRegionMode, Mode};
use crate::info::offer::{ONE_SIDED_CAPS, UNKEYED_CAPS};
use crate::info::rejection::bits_text;
use crate::info::values::ApiVersion;
use crate::socket_endpoint::SocketKind;

/// "Primary capabilities must explicitly be requested by an application, and a provider must
/// enable support for only those primary capabilities which were selected."
pub(super) const PRIMARY: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::MULTICAST)
    .union(Flags::NAMED_RX_CTX)
    .union(Flags::DIRECTED_RECV)
    .union(Flags::TAGGED_DIRECTED_RECV)
    .union(Flags::VARIABLE_MSG)
    .union(Flags::COLLECTIVE)
    .union(Flags::AV_USER_ID);

/// "A provider may choose to enable additional secondary capabilities if doing so would not
/// compromise performance": these would, or have a default flag mean more than it did.
const ON_REQUEST: Flags = Flags::TRIGGER.union(Flags::SOURCE_ERR).union(Flags::TAGGED_MULTI_RECV);

pub(super) const MESSAGE_DIRECTIONS: Flags = Flags::SEND.union(Flags::RECV);
pub(super) const ONE_SIDED: Flags = Flags::RMA.union(Flags::ATOMIC);
pub(super) const ONE_SIDED_TARGET: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);
pub(super) const ONE_SIDED_DIRECTIONS: Flags =
    ONE_SIDED_TARGET.union(Flags::READ).union(Flags::WRITE);

/// Registration modes that are required of nobody but a target of one-sided operations.
pub(super) const TARGET_MODES: MemoryRegionMode = MemoryRegionMode::RAW
    .union(MemoryRegionMode::VIRT_ADDR)
    .union(MemoryRegionMode::ALLOCATED)
    .union(MemoryRegionMode::PROV_KEY)
    .union(MemoryRegionMode::MMU_NOTIFY)
    .union(MemoryRegionMode::RMA_EVENT)
    .union(MemoryRegionMode::ENDPOINT);

/// What version 2.0 does not know any more. Some bits have other meanings since.
const UNTIL_TWO: Flags = Flags::VARIABLE_MSG;

/// What versions before 2.0 do not know, some of whose bits are theirs for other things.
const SINCE_TWO: Flags = Flags::TAGGED_DIRECTED_RECV.union(Flags::TAGGED_MULTI_RECV);

/// `mr_mode` became a set of bits in this version.
pub(super) const MR_MODE_BITS_SINCE: ApiVersion = ApiVersion::new(1, 5);

/// What is granted of `offered`: only the primary capabilities and modifiers
/// that were asked for, but all secondary ones that cost nothing; "if no modifiers are
/// specified for an applicable capability, all relevant modifiers are assumed".
pub(super) fn grant(asked: Flags, offered: Flags) -> Flags {
    if asked.is_empty() {
        return offered;
    }
    let modifiers = MESSAGE_DIRECTIONS | ONE_SIDED_DIRECTIONS;
    let mut granted =
        asked.intersection(offered) | offered.difference(PRIMARY | ON_REQUEST | modifiers);
    if granted.intersects(FAMILY) && !granted.intersects(MESSAGE_DIRECTIONS) {
        granted |= offered & MESSAGE_DIRECTIONS;
    }
    if granted.intersects(ONE_SIDED) && !granted.intersects(ONE_SIDED_DIRECTIONS) {
        granted |= offered & ONE_SIDED_DIRECTIONS;
    }
    // Who asks to be a target alone, and sends messages, may use others' memory as well: Charm++ asks for
    // FI_REMOTE_READ, and reads. Who sends nothing has no queue for it.
    let initiates = Flags::READ | Flags::WRITE;
    if granted.intersects(ONE_SIDED)
        && granted.contains(Flags::SEND)
        && !granted.intersects(initiates)
    {
        granted |= offered & initiates;
    }
    if !granted.intersects(ONE_SIDED_TARGET) {
        granted.remove(Flags::RMA_EVENT);
    }
    if !granted.contains(Flags::RMA) {
        granted.remove(Flags::RMA_PMEM);
    }
    if !granted.contains(Flags::TAGGED | Flags::RECV) {
        granted.remove(Flags::TAGGED_MULTI_RECV);
    }
    granted
}

/// The part of `caps` that one side of an endpoint has: nothing it has no direction for.
pub(super) fn side(caps: Flags, applicable: Flags) -> Flags {
    let mut side = caps & applicable;
    if !side.intersects(MESSAGE_DIRECTIONS) {
        side.remove(FAMILY);
    }
    if !side.intersects(ONE_SIDED_DIRECTIONS) {
        side.remove(ONE_SIDED | Flags::RMA_PMEM);
    }
    side
}

/// The registration modes that matter with these capabilities.
fn relevant(mode: MemoryRegionMode, caps: Flags) -> MemoryRegionMode {
    let is_target = caps.intersects(ONE_SIDED) && caps.intersects(ONE_SIDED_TARGET);
    if is_target { mode } else { mode.difference(TARGET_MODES) }
}

/// How a mode was told before it was a set of bits.
pub(super) fn legacy_mode(mode: MemoryRegionMode) -> MemoryRegionMode {
    if mode.is_empty() { MemoryRegionMode::SCALABLE } else { MemoryRegionMode::BASIC }
}

impl Negotiation<'_> {
    pub(super) fn caps(&mut self, api_version: ApiVersion) {
        let mut offered = self.offer.maximum.caps;
        if api_version.major() >= 2 {
            offered.remove(UNTIL_TWO);
        } else {
            offered.remove(SINCE_TWO);
        }
        if self.hints.domain.vector_keys {
            offered.remove(UNKEYED_CAPS);
        }
        self.flags_within("caps", self.hints.caps, offered);
        self.info.caps = grant(self.hints.caps, offered);
        if self.hints.caps.is_empty() {
            // What nobody has without asking for it.
            self.info.caps &= self.offer.template.caps;
        }
    }

    /// Messages are buffered for applications that say that they can handle it: "applications
    /// that can handle message processing from network allocated data buffers can set this mode
    /// bit". Who sets bits that mean nothing, as with `~0`, asks for nothing in particular. Calls
    /// of sockets are over when they return, so that nothing could announce a message.
    pub(super) fn buffering(&mut self, api_version: ApiVersion) {
        let (whole, receive) = (self.hints.mode, self.hints.receive.mode);
        let narrowed = receive.is_empty() || receive.contains(Mode::BUFFERED_RECV);
        let asked = whole.contains(Mode::BUFFERED_RECV) && narrowed && Mode::all().contains(whole);
        let announced = SocketKind::of(self.offer.maximum.endpoint.kind).is_none();
        if asked && announced && api_version.major() < 2 {
            self.info.mode |= Mode::BUFFERED_RECV;
            self.info.receive.mode |= Mode::BUFFERED_RECV;
        }
    }

    pub(super) fn memory_region_mode(&mut self, api_version: ApiVersion) {
        let hint = self.hints.domain.memory_region_mode;
        let asked = hint.unwrap_or_default();
        let required = relevant(self.offer.memory_region_mode_required, self.info.caps);
        let usual = self.offer.template.domain.memory_region_mode;
        // Regions are registered for operations of ours as well, whose memory has to keep its pages.
        let ours = relevant(usual, self.info.caps) | (usual & MemoryRegionMode::ALLOCATED);
        let speaks_bits = api_version >= MR_MODE_BITS_SINCE;
        let answer = match asked {
            MemoryRegionMode::BASIC | MemoryRegionMode::SCALABLE => Some(asked),
            _ if asked.intersects(MemoryRegionMode::LEGACY) => None,
            _ if speaks_bits => Some(hint.map_or(usual, |asked| ours & asked)),
            _ if asked.is_empty() => Some(legacy_mode(usual)),
            _ => None,
        };
        let Some(answer) = answer else {
            let offered = "FI_MR_BASIC or FI_MR_SCALABLE alone, or (since version 1.5) other modes";
            return self.reject("domain_attr->mr_mode", bits_text("FI_MR_", asked), offered);
        };
        self.info.domain.memory_region_mode = answer;
        let mut covered = hint.unwrap_or(answer);
        if answer == MemoryRegionMode::BASIC {
            covered |= MemoryRegionMode::BASIC_EQUIVALENT;
        }
        if self.hints.mode.contains(Mode::LOCAL_MR) {
            covered |= MemoryRegionMode::LOCAL; // The older way to say the same.
        }
        if !required.difference(covered).is_empty() {
            self.registration_missing(asked, required);
        }
    }

    /// An application that will not register as we need: nothing one-sided
    /// for who did not ask for that, a rejection for who did.
    fn registration_missing(&mut self, asked: MemoryRegionMode, required: MemoryRegionMode) {
        let beyond_target = required.difference(TARGET_MODES);
        if self.hints.caps.is_empty() && beyond_target.is_empty() {
            self.info.caps = self.info.caps.difference(ONE_SIDED_CAPS);
        } else {
            let offered = format!("nothing without {}", bits_text("FI_MR_", required));
            self.reject("domain_attr->mr_mode", bits_text("FI_MR_", asked), offered);
        }
    }
}

//! Capability, operation and completion flags.
//!
//! One 64-bit space, with libfabric's own bit values (`fi_getinfo(3)`,
//! `fi_endpoint(3)`), so that the C door translates none of them.

bitflags::bitflags! {
    /// Capabilities, operation flags and completion flags. Reference: fi_getinfo(3), fi_cq(3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u64 {
        const MSG = 1 << 1;
        const RMA = 1 << 2;
        const TAGGED = 1 << 3;
        const ATOMIC = 1 << 4;
        const MULTICAST = 1 << 5;
        const COLLECTIVE = 1 << 6;
        const READ = 1 << 8;
        const WRITE = 1 << 9;
        const RECV = 1 << 10;
        const SEND = 1 << 11;
        /// The transmit side of an endpoint: the same bit as `SEND`.
        const TRANSMIT = 1 << 11;
        const REMOTE_READ = 1 << 12;
        const REMOTE_WRITE = 1 << 13;
        const MULTI_RECV = 1 << 16;
        const REMOTE_CQ_DATA = 1 << 17;
        const MORE = 1 << 18;
        const PEEK = 1 << 19;
        const TRIGGER = 1 << 20;
        const FENCE = 1 << 21;
        const COMPLETION = 1 << 24;
        const INJECT = 1 << 25;
        const INJECT_COMPLETE = 1 << 26;
        const TRANSMIT_COMPLETE = 1 << 27;
        const DELIVERY_COMPLETE = 1 << 28;
        const AFFINITY = 1 << 29;
        const COMMIT_COMPLETE = 1 << 30;
        const MATCH_COMPLETE = 1 << 31;
        const AV_USER_ID = 1 << 41;
        /// Since version 2.0, as FI_DIRECTED_RECV of receives with a tag alone.
        const TAGGED_DIRECTED_RECV = 1 << 45;
        /// Since version 2.1, as FI_MULTI_RECV of receives with a tag.
        const TAGGED_MULTI_RECV = 1 << 46;
        const VARIABLE_MSG = 1 << 48;
        const RMA_PMEM = 1 << 49;
        const SOURCE_ERR = 1 << 50;
        const SHARED_AV = 1 << 53;
        const LOCAL_COMM = 1 << 51;
        const REMOTE_COMM = 1 << 52;
        const RMA_EVENT = 1 << 56;
        const SOURCE = 1 << 57;
        /// As an operation flag, the bit of `SOURCE` means that an address is a key's handle (fi_av(3)).
        const AUTH_KEY = 1 << 57;
        const NAMED_RX_CTX = 1 << 58;
        /// As an operation flag, the bit of `NAMED_RX_CTX` means discard (fi_tagged(3)).
        const DISCARD = 1 << 58;
        const DIRECTED_RECV = 1 << 59;
        /// As an operation flag, the bit of `DIRECTED_RECV` means claim (fi_tagged(3)).
        const CLAIM = 1 << 59;
        /// As a binding flag, the bit of `DIRECTED_RECV` asks for selective completion (fi_endpoint(3)).
        const SELECTIVE_COMPLETION = 1 << 59;
    }
}

/// The two families of messages.
pub const FAMILY: Flags = Flags::TAGGED.union(Flags::MSG);

impl Flags {
    /// Whether who has these capabilities may post receives of `family` for one source: where not, "this
    /// field is ignored" (fi_tagged(3)).
    pub fn direct(self, family: Flags) -> bool {
        let tagged = family.contains(Flags::TAGGED);
        self.contains(Flags::DIRECTED_RECV)
            || (tagged && self.contains(Flags::TAGGED_DIRECTED_RECV))
    }
}

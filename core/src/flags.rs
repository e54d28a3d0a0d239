//! Capability, operation and completion flags.
//!
//! One 64-bit space, with libfabric's own bit values (`fi_getinfo(3)`,
//! `fi_endpoint(3)`), so that the C door translates none of them.

bitflags::bitflags! {
    /// Capabilities, operation flags and completion flags. Reference: fi_getinfo(3), fi_cq(3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u64 {
        /// Messages without a tag: fi_msg(3).
        const MSG = 1 << 1;
        /// Reads and writes of a peer's registered memory: fi_rma(3).
        const RMA = 1 << 2;
        /// Messages that are matched by a tag: fi_tagged(3).
        const TAGGED = 1 << 3;
        /// Atomic operations on a peer's registered memory: fi_atomic(3).
        const ATOMIC = 1 << 4;
        /// Datagrams to groups: fi_cm(3), fi_join. As an operation flag: the destination is a group.
        const MULTICAST = 1 << 5;
        /// Collective operations, which kestrel does not offer: fi_collective(3).
        const COLLECTIVE = 1 << 6;
        /// Initiates reads; in a completion: it was a read.
        const READ = 1 << 8;
        /// Initiates writes; in a completion: it was a write.
        const WRITE = 1 << 9;
        /// Receives messages; in a completion: it was a receive.
        const RECV = 1 << 10;
        /// Sends messages; in a completion: it was a send.
        const SEND = 1 << 11;
        /// The transmit side of an endpoint: the same bit as `SEND`.
        const TRANSMIT = 1 << 11;
        /// Peers may read; in a completion: a peer did.
        const REMOTE_READ = 1 << 12;
        /// Peers may write; in a completion: a peer did.
        const REMOTE_WRITE = 1 << 13;
        /// A receive takes many messages, one behind another; in a completion: its buffer is given back.
        const MULTI_RECV = 1 << 16;
        /// An operation carries 8 bytes for the completion of its target; in a completion: they are there.
        const REMOTE_CQ_DATA = 1 << 17;
        /// Another operation follows at once: it may wait for that.
        const MORE = 1 << 18;
        /// Looks for a message that came, and does not receive it: fi_tagged(3).
        const PEEK = 1 << 19;
        /// Operations start when a counter reaches a threshold: fi_trigger(3).
        const TRIGGER = 1 << 20;
        /// An operation begins when those before it, to the same peer, are complete, and those behind it wait for it.
        const FENCE = 1 << 21;
        /// An operation writes an entry where only some do (`SELECTIVE_COMPLETION`).
        const COMPLETION = 1 << 24;
        /// The buffer is free when the call returns.
        const INJECT = 1 << 25;
        /// Complete: the buffer is free.
        const INJECT_COMPLETE = 1 << 26;
        /// Complete: the operation depends on this side no more.
        const TRANSMIT_COMPLETE = 1 << 27;
        /// Complete: the target has the data in its memory, and can see it.
        const DELIVERY_COMPLETE = 1 << 28;
        /// A core is named for a queue. It asks for nothing here.
        const AFFINITY = 1 << 29;
        /// Complete: the target has the data on persistent storage.
        const COMMIT_COMPLETE = 1 << 30;
        /// Complete: a receive of the target has matched the message.
        const MATCH_COMPLETE = 1 << 31;
        /// Completions name a source by a number of the application's: fi_av(3).
        const AV_USER_ID = 1 << 41;
        /// Since version 2.0, as FI_DIRECTED_RECV of receives with a tag alone.
        const TAGGED_DIRECTED_RECV = 1 << 45;
        /// Since version 2.1, as FI_MULTI_RECV of receives with a tag.
        const TAGGED_MULTI_RECV = 1 << 46;
        /// Messages whose length nobody knows before: fi_msg(3).
        const VARIABLE_MSG = 1 << 48;
        /// Registered memory may be persistent.
        const RMA_PMEM = 1 << 49;
        /// As `SOURCE`; of a source that is in no address vector, an error entry tells the address.
        const SOURCE_ERR = 1 << 50;
        /// Address vectors with a name, which processes share: fi_av(3).
        const SHARED_AV = 1 << 53;
        /// Reaches peers of this host.
        const LOCAL_COMM = 1 << 51;
        /// Reaches peers of other hosts.
        const REMOTE_COMM = 1 << 52;
        /// Regions count what peers do to them: fi_mr(3).
        const RMA_EVENT = 1 << 56;
        /// Completions of receives name the source.
        const SOURCE = 1 << 57;
        /// As an operation flag, the bit of `SOURCE` means that an address is a key's handle (fi_av(3)).
        const AUTH_KEY = 1 << 57;
        /// A sender names a receive context: [`fi_rx_addr`](crate::address_vector::fi_rx_addr).
        const NAMED_RX_CTX = 1 << 58;
        /// As an operation flag, the bit of `NAMED_RX_CTX` means discard (fi_tagged(3)).
        const DISCARD = 1 << 58;
        /// A receive may take messages of one source alone.
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

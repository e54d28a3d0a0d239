//! The bit sets of fi_getinfo(3), fi_endpoint(3) and fi_mr(3) that are no
//! capabilities, with libfabric's values.

bitflags::bitflags! {
    /// What the application must do for the provider. Reference: fi_getinfo(3), "MODE".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Mode: u64 {
        /// Messages that nobody waits for are told with the buffer that they came in.
        const BUFFERED_RECV = 1 << 51;
        /// A context is a `struct fi_context2`, the provider's until the operation completes.
        const CONTEXT2 = 1 << 52;
        /// Endpoints that share a queue or counter have the same capabilities.
        const RESTRICTED_COMP = 1 << 53;
        /// Completions need not tell what kind of operation ended; flags of remote notifications are set.
        const NOTIFY_FLAGS_ONLY = 1 << 54;
        /// Local buffers are registered: `MemoryRegionMode::LOCAL`, before version 1.5.
        const LOCAL_MR = 1 << 55;
        /// What comes with remote completion data takes a receive.
        const RX_CQ_DATA = 1 << 56;
        /// Arrays of buffers stay as they are until the operation completes.
        const ASYNC_IOV = 1 << 57;
        /// Buffers have room for a header in front.
        const MSG_PREFIX = 1 << 58;
        /// A context is a `struct fi_context`, the provider's until the operation completes.
        const CONTEXT = 1 << 59;
    }
}

bitflags::bitflags! {
    /// Which operations to one peer keep their order, which counts at the target. Reference: fi_endpoint(3), "msg_order".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MessageOrder: u64 {
        /// Reads, one-sided and atomic, behind reads.
        const RAR = 1 << 0;
        /// Reads behind writes.
        const RAW = 1 << 1;
        /// Reads behind sends.
        const RAS = 1 << 2;
        /// Writes behind reads.
        const WAR = 1 << 3;
        /// Writes behind writes.
        const WAW = 1 << 4;
        /// Writes behind sends.
        const WAS = 1 << 5;
        /// Sends behind reads.
        const SAR = 1 << 6;
        /// Sends behind writes.
        const SAW = 1 << 7;
        /// Sends behind sends.
        const SAS = 1 << 8;
        /// One-sided reads behind such reads.
        const RMA_RAR = 1 << 32;
        /// One-sided reads behind such writes.
        const RMA_RAW = 1 << 33;
        /// One-sided writes behind such reads.
        const RMA_WAR = 1 << 34;
        /// One-sided writes behind such writes.
        const RMA_WAW = 1 << 35;
        /// Atomic reads behind such reads.
        const ATOMIC_RAR = 1 << 36;
        /// Atomic reads behind such changes.
        const ATOMIC_RAW = 1 << 37;
        /// Atomic changes behind such reads.
        const ATOMIC_WAR = 1 << 38;
        /// Atomic changes behind such changes.
        const ATOMIC_WAW = 1 << 39;
    }
}

impl MessageOrder {
    /// What who asks for this gets: no more, since each order costs, and "FI_ORDER_NONE [...] may be
    /// used as input in order to obtain the default message order supported by the provider".
    pub(super) fn granted(self, default: MessageOrder) -> MessageOrder {
        if self.is_empty() { default } else { self }
    }
}

bitflags::bitflags! {
    /// In which order operations complete. Reference: fi_endpoint(3), "comp_order".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CompletionOrder: u64 {
        /// In the order of submission: libfabric's value is all nine basic orders.
        const STRICT = 0x1ff;
        /// Received data is written into memory in order: of receive contexts alone.
        const DATA = 1 << 16;
    }
}

impl CompletionOrder {
    /// What who asks for this gets: "the returned ordering is stricter than that specified by the
    /// application". Of data there is one order.
    pub(super) fn granted(self) -> CompletionOrder {
        let strict = if self.intersects(Self::STRICT) { Self::STRICT } else { Self::empty() };
        strict | (self & Self::DATA)
    }
}

bitflags::bitflags! {
    /// What the application must do to register memory. Reference: fi_mr(3), fi_domain(3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MemoryRegionMode: u32 {
        /// Before version 1.5: [`BASIC_EQUIVALENT`](Self::BASIC_EQUIVALENT). Stands alone.
        const BASIC = 1 << 0;
        /// Before version 1.5: nothing is required. Stands alone.
        const SCALABLE = 1 << 1;
        /// Local buffers are registered.
        const LOCAL = 1 << 2;
        /// Keys are longer than 64 bits.
        const RAW = 1 << 3;
        /// Peers name addresses of the owner's, not offsets into its region.
        const VIRT_ADDR = 1 << 4;
        /// Memory has its pages when it is registered.
        const ALLOCATED = 1 << 5;
        /// The provider chooses the keys.
        const PROV_KEY = 1 << 6;
        /// The application tells when pages change.
        const MMU_NOTIFY = 1 << 7;
        /// Regions that counters are bound to are enabled by hand.
        const RMA_EVENT = 1 << 8;
        /// Regions are bound to an endpoint.
        const ENDPOINT = 1 << 9;
        /// Memory of devices is registered.
        const HMEM = 1 << 10;
        /// Buffers of collective operations are registered.
        const COLLECTIVE = 1 << 11;
    }
}

impl MemoryRegionMode {
    /// "The behavior of basic registration is equivalent to requiring the
    /// following mr_mode bits: FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, and FI_MR_PROV_KEY."
    pub const BASIC_EQUIVALENT: Self = Self::VIRT_ADDR.union(Self::ALLOCATED).union(Self::PROV_KEY);

    /// The values from before version 1.5, which are no bits to combine.
    pub const LEGACY: Self = Self::BASIC.union(Self::SCALABLE);
}

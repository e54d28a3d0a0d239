//! The bit sets of fi_getinfo(3), fi_endpoint(3) and fi_mr(3) that are no
//! capabilities, with libfabric's values.

bitflags::bitflags! {
    /// What the application must do for the provider. Reference: fi_getinfo(3), "MODE".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Mode: u64 {
        const BUFFERED_RECV = 1 << 51;
        const CONTEXT2 = 1 << 52;
        const RESTRICTED_COMP = 1 << 53;
        const NOTIFY_FLAGS_ONLY = 1 << 54;
        const LOCAL_MR = 1 << 55;
        const RX_CQ_DATA = 1 << 56;
        const ASYNC_IOV = 1 << 57;
        const MSG_PREFIX = 1 << 58;
        const CONTEXT = 1 << 59;
    }
}

bitflags::bitflags! {
    /// Which operations to one peer keep their order: `RAW` is read after
    /// write. Reference: fi_endpoint(3), "msg_order".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MessageOrder: u64 {
        const RAR = 1 << 0;
        const RAW = 1 << 1;
        const RAS = 1 << 2;
        const WAR = 1 << 3;
        const WAW = 1 << 4;
        const WAS = 1 << 5;
        const SAR = 1 << 6;
        const SAW = 1 << 7;
        const SAS = 1 << 8;
        const RMA_RAR = 1 << 32;
        const RMA_RAW = 1 << 33;
        const RMA_WAR = 1 << 34;
        const RMA_WAW = 1 << 35;
        const ATOMIC_RAR = 1 << 36;
        const ATOMIC_RAW = 1 << 37;
        const ATOMIC_WAR = 1 << 38;
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
        const LOCAL = 1 << 2;
        const RAW = 1 << 3;
        const VIRT_ADDR = 1 << 4;
        const ALLOCATED = 1 << 5;
        const PROV_KEY = 1 << 6;
        const MMU_NOTIFY = 1 << 7;
        const RMA_EVENT = 1 << 8;
        const ENDPOINT = 1 << 9;
        const HMEM = 1 << 10;
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

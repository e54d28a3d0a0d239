//! From `struct fi_info` to core's hints. Both what an application asks for and what it
//! opens objects with come this way, so that both are held against the same offer.

use std::ffi::{CStr, c_char};

use kestrel::discovery;
use kestrel_core::{
    address::AddressFormat,
    config::Config,
    error::Errno,
    flags::Flags,
    info::{
        self, AddressVectorKind, ApiVersion, CompletionOrder, DomainHints, EndpointHints,
        EndpointType, FabricHints, Hints, MemoryRegionMode, MessageOrder, Mode, Progress,
        ReceiveHints, Rejection, ResourceManagement, Threading, TransmitHints,
    },
};

use crate::{
    abi::{
        constants::{AV_AUTH_KEY, PROGRESS_CONTROL_UNIFIED},
        info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr},
    },
    address,
    outcome::Failure,
    versioned,
};

/// "This field is ignored unless the fabric is opened with API version 1.5 or greater": keys, of
/// endpoints and of domains.
const WITH_KEYS: ApiVersion = ApiVersion::new(1, 5);

/// "Hints that are set to zero are treated as a wildcard."
fn unless_zero(number: usize) -> Option<usize> {
    (number != 0).then_some(number)
}

fn unless_zero_32(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

/// # Safety
/// `text` is null or a C string.
pub unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Values that could not be read, one after the other: one that nobody knows does not keep the others
/// from being looked at.
#[derive(Default)]
struct Reading(Vec<Failure>);

impl Reading {
    /// What was read, or the default of its kind.
    fn take<T: Default, E: Into<Failure>>(&mut self, field: &str, read: Result<T, E>) -> T {
        read.unwrap_or_else(|error| {
            let Failure { errno, reason } = error.into();
            self.0.push(Failure { errno, reason: format!("hint {field}: {reason}") });
            T::default()
        })
    }
}

/// The address of hints that is not looked at, since another stands instead of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    Nothing,
    Source,
    Destination,
}

/// What `info` asks for, and every value in it that no version of the interface knows.
///
/// # Safety
/// `info` and what it points to is null or valid, as of `version`.
pub unsafe fn read(info: &Info, ignored: Ignored, version: ApiVersion) -> (Hints, Vec<Failure>) {
    let (mut hints, mut reading) = (Hints::new(), Reading::default());
    hints.caps = Flags::from_bits_retain(info.caps);
    hints.mode = Mode::from_bits_retain(info.mode);
    // Of attributes that are not there each counts as 0.
    hints.domain.memory_region_mode = Some(MemoryRegionMode::empty());
    let format = AddressFormat::try_from(info.addr_format);
    let is_known = format.is_ok();
    hints.address_format = reading.take("addr_format", format);
    // SAFETY: the caller vouches for pointers and lengths.
    unsafe {
        if is_known && ignored != Ignored::Source {
            let source = address::read(info.addr_format, info.src_addr, info.src_addrlen);
            hints.source = reading.take("src_addr", source);
        }
        if is_known && ignored != Ignored::Destination {
            let peer = address::read(info.addr_format, info.dest_addr, info.dest_addrlen);
            hints.destination = reading.take("dest_addr", peer);
        }
        if let Some(attr) = versioned::read(info.tx_attr, version) {
            hints.transmit = transmit(&attr);
        }
        if let Some(attr) = info.rx_attr.as_ref() {
            hints.receive = receive(attr);
        }
        if let Some(attr) = versioned::read(info.ep_attr, version) {
            hints.endpoint = endpoint(&attr, version, &mut reading);
        }
        if let Some(attr) = versioned::read(info.domain_attr, version) {
            hints.domain = domain(&attr, version, &mut reading);
        }
        if let Some(attr) = info.fabric_attr.as_ref() {
            hints.fabric = fabric(attr);
        }
    }
    hints.handle = info.handle as u64;
    (hints, reading.0)
}

/// What transmit attributes ask for.
pub fn transmit(attr: &TxAttr) -> TransmitHints {
    TransmitHints {
        caps: Flags::from_bits_retain(attr.caps),
        mode: Mode::from_bits_retain(attr.mode),
        op_flags: Flags::from_bits_retain(attr.op_flags),
        message_order: MessageOrder::from_bits_retain(attr.msg_order),
        completion_order: CompletionOrder::from_bits_retain(attr.comp_order),
        inject_size: unless_zero(attr.inject_size),
        size: unless_zero(attr.size),
        iov_limit: unless_zero(attr.iov_limit),
        rma_iov_limit: unless_zero(attr.rma_iov_limit),
        traffic_class: unless_zero_32(attr.tclass),
    }
}

/// What receive attributes ask for.
pub fn receive(attr: &RxAttr) -> ReceiveHints {
    ReceiveHints {
        caps: Flags::from_bits_retain(attr.caps),
        mode: Mode::from_bits_retain(attr.mode),
        op_flags: Flags::from_bits_retain(attr.op_flags),
        message_order: MessageOrder::from_bits_retain(attr.msg_order),
        completion_order: CompletionOrder::from_bits_retain(attr.comp_order),
        total_buffered_recv: unless_zero(attr.total_buffered_recv),
        size: unless_zero(attr.size),
        iov_limit: unless_zero(attr.iov_limit),
    }
}

/// # Safety
/// The attributes' key is null or has its size.
unsafe fn endpoint(attr: &EpAttr, version: ApiVersion, reading: &mut Reading) -> EndpointHints {
    EndpointHints {
        kind: reading.take("ep_attr->type", EndpointType::try_from(attr.kind)),
        protocol: unless_zero_32(attr.protocol),
        protocol_version: unless_zero_32(attr.protocol_version),
        max_msg_size: unless_zero(attr.max_msg_size),
        max_order_raw_size: unless_zero(attr.max_order_raw_size),
        max_order_war_size: unless_zero(attr.max_order_war_size),
        max_order_waw_size: unless_zero(attr.max_order_waw_size),
        tag_format: (attr.mem_tag_format != 0).then_some(attr.mem_tag_format),
        tx_ctx_count: unless_zero(attr.tx_ctx_cnt),
        rx_ctx_count: unless_zero(attr.rx_ctx_cnt),
        auth_key: match version >= WITH_KEYS {
            true => {
                // SAFETY: the caller vouches for it.
                let key = unsafe { auth_key(attr.auth_key, attr.auth_key_size) };
                reading.take("ep_attr->auth_key", key)
            }
            false => Vec::new(),
        },
    }
}

/// # Safety
/// `key` is null or valid for reads of `size` bytes.
unsafe fn auth_key(key: *const u8, size: usize) -> Result<Vec<u8>, Failure> {
    if size == 0 {
        return Ok(Vec::new());
    }
    if size > info::AUTH_KEY_SIZE_MAX {
        let reason = format!("a key of {size} bytes; {} at most", info::AUTH_KEY_SIZE_MAX);
        return Err(Failure::new(Errno::INVAL, reason));
    }
    if key.is_null() {
        return Err(Failure::null("auth_key"));
    }
    // SAFETY: not null, and the caller vouches for the size.
    Ok(unsafe { std::slice::from_raw_parts(key, size) }.to_vec())
}

/// Control progress that is driven with data progress is what manual progress is here.
fn progress(value: u32) -> Result<Progress, Failure> {
    let value = if value == PROGRESS_CONTROL_UNIFIED { Progress::Manual.value() } else { value };
    Ok(Progress::try_from(value)?)
}

/// # Safety
/// The attributes' name is null or a C string, and their key is null or has its size.
unsafe fn domain(attr: &DomainAttr, version: ApiVersion, reading: &mut Reading) -> DomainHints {
    let stated_size = if version >= WITH_KEYS { attr.auth_key_size } else { 0 };
    let vector_keys = stated_size == AV_AUTH_KEY;
    let key = match vector_keys {
        true if !attr.auth_key.is_null() => {
            Err(Failure::new(Errno::INVAL, "FI_AV_AUTH_KEY, and a key beside it"))
        }
        true => Ok(Vec::new()),
        // SAFETY: the caller vouches for it.
        false => unsafe { auth_key(attr.auth_key, stated_size) },
    };
    // Since 2.0 `data_progress` is `progress`, which "defines the behavior of both control and data operations"
    // (fi_domain(3)).
    let control_progress = match attr.control_progress {
        0 if version >= ApiVersion::new(2, 0) => attr.data_progress,
        asked => asked,
    };
    DomainHints {
        // SAFETY: the caller vouches for it.
        name: unsafe { text(attr.name) },
        threading: reading.take("domain_attr->threading", Threading::try_from(attr.threading)),
        control_progress: reading.take("domain_attr->control_progress", progress(control_progress)),
        data_progress: reading.take("domain_attr->data_progress", progress(attr.data_progress)),
        resource_management: reading
            .take("domain_attr->resource_mgmt", ResourceManagement::try_from(attr.resource_mgmt)),
        address_vector_kind: reading
            .take("domain_attr->av_type", AddressVectorKind::try_from(attr.av_type)),
        memory_region_mode: Some(MemoryRegionMode::from_bits_retain(attr.mr_mode as _)),
        mr_key_size: unless_zero(attr.mr_key_size),
        cq_data_size: unless_zero(attr.cq_data_size),
        cq_count: unless_zero(attr.cq_cnt),
        endpoint_count: unless_zero(attr.ep_cnt),
        tx_ctx_count: unless_zero(attr.tx_ctx_cnt),
        rx_ctx_count: unless_zero(attr.rx_ctx_cnt),
        max_ep_tx_ctx: unless_zero(attr.max_ep_tx_ctx),
        max_ep_rx_ctx: unless_zero(attr.max_ep_rx_ctx),
        max_ep_stx_ctx: unless_zero(attr.max_ep_stx_ctx),
        max_ep_srx_ctx: unless_zero(attr.max_ep_srx_ctx),
        counter_count: unless_zero(attr.cntr_cnt),
        max_group_id: unless_zero_32(attr.max_group_id),
        mr_iov_limit: unless_zero(attr.mr_iov_limit),
        caps: Flags::from_bits_retain(attr.caps),
        mode: Mode::from_bits_retain(attr.mode),
        max_err_data: unless_zero(attr.max_err_data),
        mr_count: unless_zero(attr.mr_cnt),
        traffic_class: unless_zero_32(attr.tclass),
        auth_key: reading.take("domain_attr->auth_key", key),
        vector_keys,
        max_ep_auth_key: unless_zero(attr.max_ep_auth_key),
    }
}

/// # Safety
/// The attributes' name is null or a C string.
unsafe fn fabric(attr: &FabricAttr) -> FabricHints {
    FabricHints {
        // SAFETY: the caller vouches for it.
        name: unsafe { text(attr.name) },
        provider_version: unless_zero_32(attr.prov_version).map(ApiVersion),
        api_version: unless_zero_32(attr.api_version).map(ApiVersion),
    }
}

/// What an object is opened with, held against what there is: an application may have
/// changed what it got from `fi_getinfo`.
///
/// # Safety
/// As [`read`]; `info` may be null.
pub unsafe fn agree(
    info: *const Info,
    config: &Config,
    version: ApiVersion,
) -> Result<info::Info, Failure> {
    // SAFETY: the caller vouches for it.
    let info = unsafe { info.as_ref() }.ok_or_else(|| Failure::null("info"))?;
    // SAFETY: as above.
    let (hints, unknown) = unsafe { read(info, Ignored::Nothing, version) };
    if let Some(first) = unknown.first() {
        let reasons: Vec<_> = unknown.iter().map(|failure| failure.reason.as_str()).collect();
        return Err(Failure::new(first.errno, reasons.join("; ")));
    }
    discovery::agree_narrowed(config, version, &hints)
        .map_err(|rejections| Failure::new(Errno::INVAL, Rejection::summary(&rejections)))
}

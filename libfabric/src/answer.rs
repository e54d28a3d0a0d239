//! From what discovery found to a list of `struct fi_info`.
//!
//! The application frees it with `fi_freeinfo`, which calls `free` on every part; so
//! every part comes from libc's allocator.

use std::ffi::{c_char, c_void};

use kestrel_core::{
    address::{Address, AddressFormat},
    error::Errno,
    info,
};

use crate::{
    abi::constants::AV_AUTH_KEY,
    abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr},
    address, nic,
    outcome::Failure,
    provider::{NAME, VERSION},
};

/// A zeroed value in memory that `free` takes. Zero is what every tail means that we do
/// not fill: "not supported", or "not said".
///
/// # Safety
/// All zeroes are a value of `T`.
pub unsafe fn allocate<T>() -> Result<*mut T, Failure> {
    // SAFETY: calloc takes any sizes; what it returns is aligned for every C struct.
    let place = unsafe { libc::calloc(1, size_of::<T>() + TO_COME_BYTES) }.cast::<T>();
    if place.is_null() { Err(out_of_memory()) } else { Ok(place) }
}

/// Zeroes behind each struct: a later libfabric copies as many fields as it knows.
const TO_COME_BYTES: usize = 64;

fn out_of_memory() -> Failure {
    Failure::new(Errno::NOMEM, "no memory is left")
}

fn copy(bytes: &[u8]) -> Result<*mut c_void, Failure> {
    // SAFETY: malloc takes any size; 0 is asked for as 1, so that null is an error.
    let place = unsafe { libc::malloc(bytes.len().max(1)) };
    if place.is_null() {
        return Err(out_of_memory());
    }
    // SAFETY: just allocated with that many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), bytes.len()) };
    Ok(place)
}

/// A string that `free` takes.
pub fn copy_text(text: &str) -> Result<*mut c_char, Failure> {
    Ok(copy(&[text.as_bytes(), &[0]].concat())?.cast())
}

/// What was found, as a list in libc's memory, best first. What is left of it after an
/// error is lost, as memory was.
pub fn list(found: &[info::Info], handle: *mut crate::abi::fid::Fid) -> Result<*mut Info, Failure> {
    let mut head = std::ptr::null_mut();
    for info in found.iter().rev() {
        let next = one(info)?;
        // SAFETY: `one` made it, and nobody else knows it.
        unsafe {
            (*next).next = head;
            (*next).handle = handle;
        }
        head = next;
    }
    Ok(head)
}

/// One info that libfabric does not see on its way to the application, in libc's memory: with what
/// libfabric adds to those of `fi_getinfo`.
pub fn whole(found: &info::Info) -> Result<*mut Info, Failure> {
    let place = one(found)?;
    // SAFETY: `one` made both, and nobody else knows them.
    let attr = unsafe { &mut *(*place).fabric_attr };
    attr.prov_name = copy(NAME.to_bytes_with_nul())?.cast();
    Ok(place)
}

/// One info, in libc's memory.
fn one(found: &info::Info) -> Result<*mut Info, Failure> {
    // SAFETY: an info of zeroes and null pointers is valid.
    let place = unsafe { allocate::<Info>() }?;
    // SAFETY: just made, and nobody else knows it.
    let info = unsafe { &mut *place };
    info.caps = found.caps.bits();
    info.mode = found.mode.bits();
    info.addr_format = found.address_format.value();
    (info.src_addr, info.src_addrlen) = address_of(found.address_format, found.source)?;
    (info.dest_addr, info.dest_addrlen) = address_of(found.address_format, found.destination)?;
    info.tx_attr = transmit(&found.transmit)?;
    info.rx_attr = receive(&found.receive)?;
    info.ep_attr = endpoint(&found.endpoint)?;
    info.domain_attr = domain(&found.domain)?;
    info.fabric_attr = fabric(&found.fabric)?;
    if let Some(found) = &found.nic {
        info.nic = nic::create(found)?;
    }
    Ok(place)
}

fn address_of(
    format: AddressFormat,
    address: Option<Address>,
) -> Result<(*mut c_void, usize), Failure> {
    let Some(address) = address else {
        return Ok((std::ptr::null_mut(), 0));
    };
    let bytes = address::write(format, &address);
    Ok((copy(&bytes)?, bytes.len()))
}

fn key(bytes: &[u8]) -> Result<(*mut u8, usize), Failure> {
    Ok(match bytes.len() {
        0 => (std::ptr::null_mut(), 0),
        size => (copy(bytes)?.cast(), size),
    })
}

fn transmit(found: &info::TransmitAttributes) -> Result<*mut TxAttr, Failure> {
    // SAFETY: attributes of zeroes are valid, here and below.
    let place = unsafe { allocate::<TxAttr>() }?;
    // SAFETY: just allocated for it.
    unsafe { place.write(transmit_attr(found)) };
    Ok(place)
}

/// Transmit attributes as C sees them.
pub fn transmit_attr(found: &info::TransmitAttributes) -> TxAttr {
    TxAttr {
        caps: found.caps.bits(),
        mode: found.mode.bits(),
        op_flags: found.op_flags.bits(),
        msg_order: found.message_order.bits(),
        comp_order: found.completion_order.bits(),
        inject_size: found.inject_size,
        size: found.size,
        iov_limit: found.iov_limit,
        rma_iov_limit: found.rma_iov_limit,
        tclass: found.traffic_class,
    }
}

fn receive(found: &info::ReceiveAttributes) -> Result<*mut RxAttr, Failure> {
    // SAFETY: as above.
    let place = unsafe { allocate::<RxAttr>() }?;
    // SAFETY: just allocated for it.
    unsafe { place.write(receive_attr(found)) };
    Ok(place)
}

/// Receive attributes as C sees them.
pub fn receive_attr(found: &info::ReceiveAttributes) -> RxAttr {
    RxAttr {
        caps: found.caps.bits(),
        mode: found.mode.bits(),
        op_flags: found.op_flags.bits(),
        msg_order: found.message_order.bits(),
        comp_order: found.completion_order.bits(),
        total_buffered_recv: found.total_buffered_recv,
        size: found.size,
        iov_limit: found.iov_limit,
    }
}

fn endpoint(found: &info::EndpointAttributes) -> Result<*mut EpAttr, Failure> {
    // SAFETY: as above.
    let place = unsafe { allocate::<EpAttr>() }?;
    // SAFETY: just allocated, and all zeroes.
    let attr = unsafe { &mut *place };
    attr.kind = found.kind.value();
    attr.protocol = found.protocol;
    attr.protocol_version = found.protocol_version;
    attr.max_msg_size = found.max_msg_size;
    attr.msg_prefix_size = found.msg_prefix_size;
    attr.max_order_raw_size = found.max_order_raw_size;
    attr.max_order_war_size = found.max_order_war_size;
    attr.max_order_waw_size = found.max_order_waw_size;
    attr.mem_tag_format = found.tag_format;
    attr.tx_ctx_cnt = found.tx_ctx_count;
    attr.rx_ctx_cnt = found.rx_ctx_count;
    (attr.auth_key, attr.auth_key_size) = key(&found.auth_key)?;
    Ok(place)
}

fn domain(found: &info::DomainAttributes) -> Result<*mut DomainAttr, Failure> {
    // SAFETY: as above.
    let place = unsafe { allocate::<DomainAttr>() }?;
    // SAFETY: just allocated, and all zeroes.
    let attr = unsafe { &mut *place };
    attr.name = copy_text(&found.name)?;
    attr.threading = found.threading.value();
    attr.control_progress = found.control_progress.value();
    attr.data_progress = found.data_progress.value();
    attr.resource_mgmt = found.resource_management.value();
    attr.av_type = found.address_vector_kind.value();
    attr.mr_mode = found.memory_region_mode.bits() as _;
    attr.mr_key_size = found.mr_key_size;
    attr.cq_data_size = found.cq_data_size;
    attr.cq_cnt = found.cq_count;
    attr.ep_cnt = found.endpoint_count;
    attr.tx_ctx_cnt = found.tx_ctx_count;
    attr.rx_ctx_cnt = found.rx_ctx_count;
    attr.max_ep_tx_ctx = found.max_ep_tx_ctx;
    attr.max_ep_rx_ctx = found.max_ep_rx_ctx;
    attr.max_ep_stx_ctx = found.max_ep_stx_ctx;
    attr.max_ep_srx_ctx = found.max_ep_srx_ctx;
    attr.cntr_cnt = found.counter_count;
    attr.mr_iov_limit = found.mr_iov_limit;
    attr.caps = found.caps.bits();
    attr.mode = found.mode.bits();
    attr.max_err_data = found.max_err_data;
    attr.mr_cnt = found.mr_count;
    attr.tclass = found.traffic_class;
    attr.max_ep_auth_key = found.max_ep_auth_key;
    (attr.auth_key, attr.auth_key_size) = key(&found.auth_key)?;
    if found.vector_keys {
        attr.auth_key_size = AV_AUTH_KEY;
    }
    // Counters wrap at 64 bits, which later versions ask for.
    attr.max_cntr_value = u64::MAX;
    attr.max_err_cntr_value = u64::MAX;
    Ok(place)
}

fn fabric(found: &info::FabricAttributes) -> Result<*mut FabricAttr, Failure> {
    // SAFETY: as above.
    let place = unsafe { allocate::<FabricAttr>() }?;
    // SAFETY: just allocated, and all zeroes. The provider's name is libfabric's to fill.
    let attr = unsafe { &mut *place };
    attr.name = copy_text(&found.name)?;
    attr.prov_version = VERSION;
    attr.api_version = found.api_version.0;
    Ok(place)
}

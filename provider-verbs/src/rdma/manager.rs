//! The kernel's connection manager, through librdmacm.
//!
//! Events are acknowledged as soon as they are copied, so that destroying an id never waits for
//! this very thread. Names of ids are numbers in the place of a pointer, never used again.

use std::{
    ffi::CStr,
    io, mem,
    net::SocketAddr,
    os::fd::RawFd,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
    time::Duration,
};

use kestrel_core::fork_guard::Mark;
use rdma_core_sys::{rdmacm::*, verbs::IBV_EVENT_COMM_EST};

use super::{
    Rdma,
    queue_pair::{NOT_READY_RETRIES, RETRIES},
    socket_address::{SocketAddress, address_at},
};
use crate::{
    device::query::do_not_block,
    manager::{Happening, ManagedId, Manager, ManagerEvent},
    verbs::{Agreement, Marks, VerbsError},
};

/// Requests that may wait for the control thread.
const BACKLOG: i32 = 1024;
/// Why the manager refuses by itself: nobody listens there. Reference: IB_CM_REJ_INVALID_SERVICE_ID
const NO_SERVICE: i32 = 8;
/// The peer refuses. Reference: IB_CM_REJ_CONSUMER_DEFINED
const REFUSED: i32 = 28;

/// The way to the connection manager.
pub struct RdmaManager {
    channel: NonNull<rdma_event_channel>,
    /// Forked children do not keep the channel: the kernel lets go of peers with it.
    mark: Option<Mark>,
    cm: &'static rdmacm,
    device: Arc<Rdma>,
}

// SAFETY: librdmacm locks what its threads share.
unsafe impl Send for RdmaManager {}
// SAFETY: as above.
unsafe impl Sync for RdmaManager {}

impl RdmaManager {
    pub(super) fn new(device: &Arc<Rdma>) -> Result<RdmaManager, VerbsError> {
        let device = device.clone();
        let cm = device.open.library.rdmacm().map_err(|error| VerbsError::NoManager {
            device: device.open.name.clone(),
            reason: error.to_string(),
        })?;
        // SAFETY: it takes nothing.
        let channel = NonNull::new(unsafe { cm.rdma_create_event_channel() });
        let channel = channel.ok_or_else(|| VerbsError::NoManager {
            device: device.open.name.clone(),
            reason: format!("rdma_create_event_channel: {}", io::Error::last_os_error()),
        })?;
        let mut manager = RdmaManager { channel, mark: None, cm, device };
        manager.mark = Some(Mark::new(manager.descriptor()));
        if do_not_block(manager.descriptor()) != 0 {
            return Err(manager.error("fcntl"));
        }
        Ok(manager)
    }

    fn descriptor(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    pub(super) fn cm(&self) -> &'static rdmacm {
        self.cm
    }

    fn error(&self, call: &'static str) -> VerbsError {
        self.device.error(call)
    }

    fn create(self: &Arc<Self>, name: u64, space: rdma_port_space) -> Result<RdmaId, VerbsError> {
        let mut id = ptr::null_mut();
        // SAFETY: the channel is alive; the name is no pointer to anybody but us.
        let failed = unsafe {
            let (channel, name) = (self.channel.as_ptr(), name as usize as *mut _);
            self.cm.rdma_create_id(channel, &mut id, name, space)
        };
        match NonNull::new(id) {
            Some(id) if failed == 0 => Ok(RdmaId { id, manager: self.clone() }),
            _ => Err(self.error("rdma_create_id")),
        }
    }

    /// An id of that port space at an address of our device.
    pub(super) fn bind_in(
        self: &Arc<Self>,
        space: rdma_port_space,
        name: u64,
        at: SocketAddr,
    ) -> Result<RdmaId, VerbsError> {
        let id = self.create(name, space)?;
        let mut at_bytes = SocketAddress::from(at);
        // SAFETY: the id is alive, and the address is one.
        id.call("rdma_bind_addr", unsafe {
            self.cm.rdma_bind_addr(id.id.as_ptr(), at_bytes.as_mut_ptr())
        })?;
        id.check_device(at)?;
        Ok(id)
    }

    /// Takes the next event, if there is one.
    pub(super) fn take<R>(&self, read: impl FnOnce(&rdma_cm_event) -> R) -> Option<R> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive, and does not block; the event is acknowledged once.
        unsafe {
            if self.cm.rdma_get_cm_event(self.channel.as_ptr(), &mut event) != 0 {
                return None;
            }
            let read = read(&*event);
            self.cm.rdma_ack_cm_event(event);
            Some(read)
        }
    }

    /// What an event says, and about whom.
    ///
    /// # Safety
    /// The event is one that was fetched and is not acknowledged yet.
    unsafe fn read(self: &Arc<Self>, event: &rdma_cm_event) -> Option<(u64, Happening<RdmaId>)> {
        // SAFETY: an event's id is alive, and so is the one that listens; the parameters of a
        // connection are valid for the events that have them.
        let (name, data, queue_pair) = unsafe {
            let id = if event.listen_id.is_null() { event.id } else { event.listen_id };
            let connection = &event.param.conn;
            let data: &[u8] = match connection.private_data {
                data if data.is_null() => &[],
                data => slice::from_raw_parts(data.cast(), connection.private_data_len.into()),
            };
            ((*id).context.addr() as u64, data.to_vec(), connection.qp_num)
        };
        let happening = match event.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => Happening::AddressResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => Happening::RouteResolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                let id = RdmaId { id: NonNull::new(event.id)?, manager: self.clone() };
                // SAFETY: the id is alive, and its destination is a socket address.
                let from = unsafe {
                    address_at(&raw const (*event.id).route.addr.__bindgen_anon_2.dst_storage)
                };
                Happening::Asked { id, from: from?, queue_pair, data }
            }
            RDMA_CM_EVENT_CONNECT_RESPONSE => Happening::Answered { queue_pair, data },
            RDMA_CM_EVENT_REJECTED if event.status == NO_SERVICE => Happening::Nobody,
            RDMA_CM_EVENT_REJECTED if event.status == REFUSED => Happening::Refused { data },
            RDMA_CM_EVENT_ESTABLISHED => Happening::Established,
            RDMA_CM_EVENT_DISCONNECTED => Happening::Disconnected,
            // The id has become usable for another connection, which is not made by it; and a hint to move.
            RDMA_CM_EVENT_TIMEWAIT_EXIT | RDMA_CM_EVENT_ADDR_CHANGE => return None,
            other => {
                // SAFETY: it returns a constant for whatever number.
                let text = unsafe { CStr::from_ptr(self.cm.rdma_event_str(other)) };
                let (text, status) = (text.to_string_lossy(), event.status);
                Happening::Failed(format!("rdma_cm: {text} ({status})"))
            }
        };
        Some((name, happening))
    }
}

impl Manager<Rdma> for RdmaManager {
    type Id = RdmaId;

    fn channel(&self) -> RawFd {
        self.descriptor()
    }

    fn bind(self: &Arc<Self>, name: u64, at: SocketAddr) -> Result<RdmaId, VerbsError> {
        self.bind_in(RDMA_PS_TCP, name, at)
    }

    fn resolve(
        self: &Arc<Self>,
        name: u64,
        own: SocketAddr,
        to: SocketAddr,
        marks: Marks,
        within: Duration,
    ) -> Result<RdmaId, VerbsError> {
        let id = self.create(name, RDMA_PS_TCP)?;
        // Without it the kernel takes what its administrator has set for the port (default_roce_tos).
        if let Some(mut class) = marks.traffic_class {
            // SAFETY: the id is alive; the option is one byte.
            id.call("rdma_set_option", unsafe {
                let (level, option) = (RDMA_OPTION_ID as i32, RDMA_OPTION_ID_TOS as i32);
                let class = (&raw mut class).cast();
                self.cm.rdma_set_option(id.id.as_ptr(), level, option, class, 1)
            })?;
        }
        let (mut own, mut to) = (own, SocketAddress::from(to));
        own.set_port(0);
        let mut own = SocketAddress::from(own);
        // SAFETY: the id is alive, and the addresses are such.
        id.call("rdma_resolve_addr", unsafe {
            let (id, within) = (id.id.as_ptr(), within.as_millis() as i32);
            self.cm.rdma_resolve_addr(id, own.as_mut_ptr(), to.as_mut_ptr(), within)
        })?;
        Ok(id)
    }

    fn next_event(self: &Arc<Self>) -> Option<ManagerEvent<RdmaId>> {
        loop {
            // SAFETY: it was fetched just now, and is acknowledged when it is read.
            let read = self.take(|event| unsafe { self.read(event) })?;
            if let Some((name, happening)) = read {
                return Some(ManagerEvent { name, happening });
            }
        }
    }
}

impl Drop for RdmaManager {
    fn drop(&mut self) {
        // The number may be another's afterwards.
        self.mark = None;
        // SAFETY: every id keeps the manager, so none is left.
        unsafe { self.cm.rdma_destroy_event_channel(self.channel.as_ptr()) }
    }
}

/// An id of the connection manager.
pub struct RdmaId {
    id: NonNull<rdma_cm_id>,
    manager: Arc<RdmaManager>,
}

// SAFETY: librdmacm locks what its threads share.
unsafe impl Send for RdmaId {}

impl RdmaId {
    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    pub(super) fn manager(&self) -> &RdmaManager {
        &self.manager
    }

    pub(super) fn call(&self, call: &'static str, failed: i32) -> Result<(), VerbsError> {
        if failed == 0 { Ok(()) } else { Err(self.manager.error(call)) }
    }

    /// Whether it was bound to our device's port, which the kernel chooses by the address.
    fn check_device(&self, at: SocketAddr) -> Result<(), VerbsError> {
        let ours = &self.manager.device;
        // SAFETY: the id is alive; its context, if it has one, is open, and has a device.
        let (name, port) = unsafe {
            let id = self.id.as_ref();
            let name = match id.verbs.is_null() {
                true => "no device".into(),
                false => {
                    let name = ours.verbs().ibv_get_device_name((*id.verbs).device);
                    CStr::from_ptr(name).to_string_lossy().into_owned()
                }
            };
            (name, id.port_num)
        };
        if at.ip().is_loopback() || name != ours.open.name || port != ours.port.number {
            let theirs = format!("{name}, port {port}");
            let (device, at) = (ours.open.name.clone(), at.ip());
            return Err(VerbsError::OtherDevice { device, at, theirs });
        }
        Ok(())
    }

    fn parameters(queue_pair: u32, data: &[u8]) -> rdma_conn_param {
        rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 0,
            retry_count: RETRIES,
            rnr_retry_count: NOT_READY_RETRIES,
            srq: 1,
            qp_num: queue_pair,
        }
    }
}

impl ManagedId<Rdma> for RdmaId {
    fn rename(&mut self, name: u64) {
        // SAFETY: the id is alive, and only the thread that takes events, this one, reads it.
        unsafe { (*self.id.as_ptr()).context = name as usize as *mut _ }
    }

    fn listen(&self) -> Result<(), VerbsError> {
        // SAFETY: the id is alive.
        let failed = unsafe { self.manager.cm.rdma_listen(self.id.as_ptr(), BACKLOG) };
        self.call("rdma_listen", failed)
    }

    fn resolve_route(&self, within: Duration) -> Result<(), VerbsError> {
        // SAFETY: the id is alive, and its source is a socket address.
        let own = unsafe {
            address_at(&raw const (*self.id.as_ptr()).route.addr.__bindgen_anon_1.src_storage)
        };
        if let Some(own) = own {
            self.check_device(own)?;
        }
        let within = within.as_millis() as i32;
        // SAFETY: the id is alive.
        let failed = unsafe { self.manager.cm.rdma_resolve_route(self.id.as_ptr(), within) };
        self.call("rdma_resolve_route", failed)
    }

    fn ask(&self, queue_pair: u32, data: &[u8]) -> Result<(), VerbsError> {
        let mut parameters = Self::parameters(queue_pair, data);
        // SAFETY: the id is alive, and the data are copied by the call.
        let failed = unsafe { self.manager.cm.rdma_connect(self.id.as_ptr(), &mut parameters) };
        self.call("rdma_connect", failed)
    }

    fn join(
        &self,
        pair: &super::RdmaQueuePair,
        marks: Marks,
        mtu_bytes_max: u32,
    ) -> Result<Agreement, VerbsError> {
        pair.join_managed(marks, mtu_bytes_max, |attributes| {
            let mut mask = 0;
            // SAFETY: the id is alive, and the attributes are writable.
            let failed = unsafe {
                self.manager.cm.rdma_init_qp_attr(self.id.as_ptr(), attributes, &mut mask)
            };
            self.call("rdma_init_qp_attr", failed)?;
            Ok(mask as u32)
        })
    }

    fn establish(&self) -> Result<(), VerbsError> {
        // SAFETY: the id is alive.
        let failed = unsafe { self.manager.cm.rdma_establish(self.id.as_ptr()) };
        self.call("rdma_establish", failed)
    }

    fn answer(&self, queue_pair: u32, data: &[u8]) -> Result<(), VerbsError> {
        let mut parameters = Self::parameters(queue_pair, data);
        // SAFETY: as in `ask`.
        let failed = unsafe { self.manager.cm.rdma_accept(self.id.as_ptr(), &mut parameters) };
        self.call("rdma_accept", failed)
    }

    fn refuse(&self, data: &[u8]) -> Result<(), VerbsError> {
        // SAFETY: as in `ask`.
        let failed = unsafe {
            let (data, length) = (data.as_ptr().cast(), data.len() as u8);
            self.manager.cm.rdma_reject(self.id.as_ptr(), data, length)
        };
        self.call("rdma_reject", failed)
    }

    fn note_use(&self) {
        // SAFETY: the id is alive. It is refused where the peer's last word came meanwhile.
        unsafe { self.manager.cm.rdma_notify(self.id.as_ptr(), IBV_EVENT_COMM_EST) };
    }

    fn disconnect(&self) {
        // SAFETY: the id is alive.
        if unsafe { self.manager.cm.rdma_disconnect(self.id.as_ptr()) } != 0 {
            tracing::debug!("rdma_disconnect: {}", io::Error::last_os_error());
        }
    }
}

impl Drop for RdmaId {
    fn drop(&mut self) {
        // SAFETY: destroyed once, here; none of its events is unacknowledged.
        if unsafe { self.manager.cm.rdma_destroy_id(self.id.as_ptr()) } != 0 {
            tracing::warn!("rdma_destroy_id: {}", io::Error::last_os_error());
        }
    }
}

const _: () = assert!(mem::size_of::<usize>() == 8, "names are pointers' size");

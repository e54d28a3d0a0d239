//! Asynchronous events of a device. Each is acknowledged as soon as it is copied: to destroy what it names
//! would wait for that.

use std::{ffi::CStr, io, mem::MaybeUninit, os::fd::RawFd};

use rdma_core_sys::verbs::*;

use super::Rdma;
use crate::trouble::Trouble;

impl Rdma {
    pub(super) fn event_channel(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { self.open.context.as_ref().async_fd }
    }

    /// Takes the next event, if there is one.
    pub(super) fn next_event(&self) -> Option<Trouble> {
        let (verbs, mut event) = (self.verbs(), MaybeUninit::<ibv_async_event>::uninit());
        // SAFETY: the context is open, its channel does not block, and the event is writable.
        if unsafe { verbs.ibv_get_async_event(self.open.context.as_ptr(), event.as_mut_ptr()) } != 0
        {
            let error = io::Error::last_os_error();
            let nothing = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
            // The kernel has let go of the device: EIO.
            let gone = || Trouble::Device(format!("ibv_get_async_event: {error}"));
            return (!nothing.contains(&error.kind())).then(gone);
        }
        // SAFETY: it was filled; of the union that part is valid which the type of the event names, and all
        // are pointers but the number of a port.
        unsafe {
            let mut event = event.assume_init();
            let text = CStr::from_ptr(verbs.ibv_event_type_str(event.event_type));
            let what = text.to_string_lossy().into_owned();
            let trouble = match event.event_type {
                IBV_EVENT_DEVICE_FATAL => Trouble::Device(what),
                IBV_EVENT_CQ_ERR => Trouble::Queue { name: name_of(event.element.cq), what },
                IBV_EVENT_SRQ_ERR => Trouble::Queue { name: name_of(event.element.srq), what },
                IBV_EVENT_PORT_ACTIVE
                | IBV_EVENT_PORT_ERR
                | IBV_EVENT_LID_CHANGE
                | IBV_EVENT_PKEY_CHANGE
                | IBV_EVENT_SM_CHANGE
                | IBV_EVENT_CLIENT_REREGISTER => {
                    Trouble::Port(format!("{what}, port {}", event.element.port_num))
                }
                _ => Trouble::Other(what),
            };
            verbs.ibv_ack_async_event(&mut event);
            Some(trouble)
        }
    }
}

/// What an object is called that may be gone by now.
pub(super) fn name_of<T>(object: *const T) -> u64 {
    object.addr() as u64
}

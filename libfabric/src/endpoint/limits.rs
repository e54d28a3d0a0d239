//! The sizes that an endpoint was opened with, and the options that tell them. Reference: fi_endpoint(3).

use std::ffi::c_int;

use kestrel_core::{flags::Flags, info, protocol::atomic::ATOMIC_BYTES_MAX};

/// Options of version 1.22 that only tell sizes: none of them can be set (-FI_ENOPROTOOPT).
const MAX_MSG_SIZE: c_int = 12;
const MAX_TAGGED_SIZE: c_int = 13;
const MAX_RMA_SIZE: c_int = 14;
const MAX_ATOMIC_SIZE: c_int = 15;
const INJECT_MSG_SIZE: c_int = 16;
const INJECT_TAGGED_SIZE: c_int = 17;
const INJECT_RMA_SIZE: c_int = 18;
const INJECT_ATOMIC_SIZE: c_int = 19;

/// Of operations that an endpoint cannot do they are 0. Units: bytes, and receives.
#[derive(Clone, Copy)]
pub struct Limits {
    message: usize,
    tagged: usize,
    rma: usize,
    atomic: usize,
    inject_messages: usize,
    inject_one_sided: usize,
    pub receives: usize,
}

impl Limits {
    /// Those of an endpoint, or a context, that can do so much.
    pub fn of(info: &info::Info, capabilities: Flags) -> Limits {
        let longest = info.endpoint.max_msg_size;
        let with = |capability, size| if capabilities.contains(capability) { size } else { 0 };
        // Targets alone have capabilities of their own.
        let one_sided = match capabilities.intersects(Flags::READ | Flags::WRITE) {
            true => longest,
            false => 0,
        };
        // Without either it does both.
        let receives_alone = capabilities & (Flags::SEND | Flags::RECV) == Flags::RECV;
        let inject = info.transmit.inject_size;
        Limits {
            message: with(Flags::MSG, longest),
            tagged: with(Flags::TAGGED, longest),
            rma: with(Flags::RMA, one_sided),
            atomic: with(Flags::ATOMIC, one_sided.min(ATOMIC_BYTES_MAX)),
            inject_messages: if receives_alone { 0 } else { inject },
            inject_one_sided: with(Flags::WRITE, inject),
            receives: info.receive.size,
        }
    }

    /// The value of an option, if it is about a size.
    pub fn option(&self, name: c_int) -> Option<usize> {
        Some(match name {
            MAX_MSG_SIZE => self.message,
            MAX_TAGGED_SIZE => self.tagged,
            MAX_RMA_SIZE => self.rma,
            MAX_ATOMIC_SIZE => self.atomic,
            INJECT_MSG_SIZE => self.inject_messages.min(self.message),
            INJECT_TAGGED_SIZE => self.inject_messages.min(self.tagged),
            INJECT_RMA_SIZE => self.inject_one_sided.min(self.rma),
            INJECT_ATOMIC_SIZE => self.inject_one_sided.min(self.atomic),
            _ => return None,
        })
    }
}

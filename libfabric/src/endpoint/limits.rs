//! The sizes that an endpoint was opened with, and the options that tell them. Reference: fi_endpoint(3).

use std::ffi::c_int;

use kestrel_core::{
    endpoint::EndpointOptions, flags::Flags, info, protocol::atomic::ATOMIC_BYTES_MAX,
};

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
    inject_message: usize,
    inject_tagged: usize,
    inject_one_sided: usize,
    pub receives: usize,
}

impl Limits {
    /// Those of an endpoint, or a context, with these options.
    pub fn of(info: &info::Info, options: &EndpointOptions) -> Limits {
        let longest = info.endpoint.max_msg_size;
        let (all, transmits) = (options.capabilities, options.transmits());
        let message = |capability| if all.contains(capability) { longest } else { 0 };
        let sent = |capability, size| if transmits.contains(capability) { size } else { 0 };
        // Targets alone have capabilities of their own.
        let one_sided = match transmits.intersects(Flags::READ | Flags::WRITE) {
            true => longest,
            false => 0,
        };
        // Without either it does both.
        let receives_alone = all & (Flags::SEND | Flags::RECV) == Flags::RECV;
        let inject = info.transmit.inject_size;
        let inject_message = if receives_alone { 0 } else { inject };
        Limits {
            message: message(Flags::MSG),
            tagged: message(Flags::TAGGED),
            rma: sent(Flags::RMA, one_sided),
            atomic: sent(Flags::ATOMIC, one_sided.min(ATOMIC_BYTES_MAX)),
            inject_message: sent(Flags::MSG, inject_message),
            inject_tagged: sent(Flags::TAGGED, inject_message),
            inject_one_sided: sent(Flags::WRITE, inject),
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
            INJECT_MSG_SIZE => self.inject_message.min(self.message),
            INJECT_TAGGED_SIZE => self.inject_tagged.min(self.tagged),
            INJECT_RMA_SIZE => self.inject_one_sided.min(self.rma),
            INJECT_ATOMIC_SIZE => self.inject_one_sided.min(self.atomic),
            _ => return None,
        })
    }
}

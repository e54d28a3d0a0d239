//! The one-sided calls of libfabric.

use super::{DoorError, Side};
use crate::port::{Grant, Local, Outcome, PortError, Verb};
use kestrel_core::flags::Flags;
use kestrel_core::info::MemoryRegionMode;
use kestrel_core::protocol::atomic::{AtomicOperation, Datatype};
use kestrel_fi_abi::fid::FidMr;
use std::ffi::c_void;
use std::ptr::null_mut;

/// The key that is asked for, where the provider lets the application choose.
const KEY: u64 = 0x6b65;

const WORD: u32 = Datatype::Uint64 as u32;
const SUM: u32 = AtomicOperation::Sum as u32;
const SWAP: u32 = AtomicOperation::Cswap as u32;

impl Side {
    /// `fi_mr_reg`.
    ///
    /// # Safety
    /// As [`Port::expose`](crate::port::Port::expose).
    pub(super) unsafe fn register(
        &mut self,
        bytes: *mut u8,
        len: usize,
    ) -> Result<(*mut FidMr, Grant), DoorError> {
        let access = Flags::REMOTE_READ | Flags::REMOTE_WRITE | Flags::READ | Flags::WRITE;
        let access = access.bits();
        let (mut region, none) = (null_mut::<FidMr>(), null_mut::<c_void>());
        // SAFETY: the domain is open; the caller vouches for the range.
        let status = unsafe {
            let reg = (*(*self.domain).mr).reg;
            let place = &raw mut region;
            reg(self.domain.cast(), bytes.cast(), len, access, 0, KEY, 0, place, none)
        };
        self.check("fi_mr_reg", status)?;
        // SAFETY: the info and the region are libfabric's, and alive.
        let (mode, key) = unsafe { ((*(*self.info).domain_attr).mr_mode, (*region).key) };
        let by_address = mode as u32 & MemoryRegionMode::VIRT_ADDR.bits() != 0;
        Ok((region, Grant { address: if by_address { bytes as u64 } else { 0 }, key }))
    }

    /// # Safety
    /// As [`Port::reach`](crate::port::Port::reach).
    #[inline(always)]
    pub(super) unsafe fn post_one_sided(
        &mut self,
        verb: Verb,
        local: Local,
        grant: Grant,
        to: u64,
        context: u64,
    ) -> Result<Outcome, PortError> {
        let Local { source, results, size } = local;
        let Grant { address, key } = grant;
        let second = source.wrapping_add(size).cast::<c_void>();
        let (source, results) = (source.cast::<c_void>(), results.cast::<c_void>());
        let (ep, none, context) = (self.ep, null_mut::<c_void>(), context as *mut c_void);
        // SAFETY: the endpoint is open and has these operations, which were asked
        // for; the caller vouches for the ranges.
        let (call, status) = unsafe {
            let (rma, atomic) = (&*(*ep).rma, &*(*ep).atomic);
            match verb {
                Verb::Write => {
                    ("fi_write", (rma.write)(ep, source, size, none, to, address, key, context))
                }
                Verb::Read => {
                    ("fi_read", (rma.read)(ep, results, size, none, to, address, key, context))
                }
                Verb::FetchAdd => {
                    let post = atomic.readwrite;
                    let status = post(
                        ep, source, 1, none, results, none, to, address, key, WORD, SUM, context,
                    );
                    ("fi_fetch_atomic", status)
                }
                Verb::CompareSwap => {
                    let post = atomic.compwrite;
                    let status = post(
                        ep, source, 1, none, second, none, results, none, to, address, key, WORD,
                        SWAP, context,
                    );
                    ("fi_compare_atomic", status)
                }
            }
        };
        self.outcome(call, status)
    }
}

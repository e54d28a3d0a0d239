//! What rdma-core's headers define as inline functions: no symbol to load.
//!
//! The data path (post, poll, arm) calls the device driver directly, through
//! the operations table in `struct ibv_context`, as the C inlines do: one
//! indirect call and nothing else. The rest goes through the extended table of
//! `struct verbs_context`, which grows with each release, so that every entry
//! is checked for being there.
//!
//! Every function here is unsafe for the same reason: its pointers must come
//! from libibverbs (or librdmacm) and still be alive, and what they point to
//! must fit what the function's manual page demands.

use core::{ffi::c_int, mem};

use libc::{EINVAL, ENOSYS, EOPNOTSUPP};

use crate::{rdmacm::rdma_cm_id, verbs::*};

/// Access flags that a kernel may ignore, and that only `ibv_reg_mr_iova2` accepts.
const ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

/// Posts a list of work requests to a send queue.
///
/// Cost: one indirect call into the device driver.
/// # Errors
/// An error number, with `*bad` at the first request that was not posted.
/// # Safety
/// `qp` is alive; `wr` heads a list whose buffers stay valid until completion; `bad` is writable.
/// # Reference
/// ibv_post_send(3)
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair is alive, and so is the context that it
    // belongs to; the driver's function asks what the caller promised.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, bad),
            None => EOPNOTSUPP,
        }
    }
}

/// Posts a list of work requests to a receive queue.
///
/// Cost: one indirect call into the device driver.
/// # Errors
/// An error number, with `*bad` at the first request that was not posted.
/// # Safety
/// As [`ibv_post_send`].
/// # Reference
/// ibv_post_recv(3)
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in ibv_post_send.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, wr, bad),
            None => EOPNOTSUPP,
        }
    }
}

/// Posts a list of work requests to a shared receive queue.
///
/// Cost: one indirect call into the device driver.
/// # Errors
/// An error number, with `*bad` at the first request that was not posted.
/// # Safety
/// As [`ibv_post_send`], of a shared receive queue.
/// # Reference
/// ibv_post_srq_recv(3)
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in ibv_post_send.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post) => post(srq, wr, bad),
            None => EOPNOTSUPP,
        }
    }
}

/// Takes up to `entries` work completions off a completion queue: a burst.
///
/// Returns their number, or a negative error number.
/// Cost: one indirect call into the device driver.
/// # Safety
/// `cq` is alive; `wc` has room for `entries` completions.
/// # Reference
/// ibv_poll_cq(3)
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as in ibv_post_send.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, entries, wc),
            None => -EOPNOTSUPP,
        }
    }
}

/// Arms a completion queue: its next completion raises an event on its channel.
///
/// # Errors
/// An error number.
/// # Safety
/// `cq` is alive.
/// # Reference
/// ibv_req_notify_cq(3)
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in ibv_post_send.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(arm) => arm(cq, solicited_only),
            None => EOPNOTSUPP,
        }
    }
}

/// The entry `$op` of the extended operations table of `$context`, if its driver has one.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {{
        let extended = verbs_get_ctx($context);
        let size_needed = mem::size_of::<verbs_context>() - mem::offset_of!(verbs_context, $op);
        // The table grows at its front, and `sz` counts from its end.
        if extended.is_null() || (*extended).sz < size_needed { None } else { (*extended).$op }
    }};
}

/// The extended table that `context` is the last member of; null for a driver without one.
unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller's context is alive. rdma-core marks a context that is
    // embedded in a `verbs_context` by this very value, so that stepping back
    // by the member's offset stays in the same allocation.
    unsafe {
        if (*context).abi_compat.addr() != usize::MAX {
            return core::ptr::null_mut();
        }
        context.byte_sub(mem::offset_of!(verbs_context, context)).cast()
    }
}

impl verbs {
    /// Reads the attributes of a port, those newer than the first ABI included.
    ///
    /// # Errors
    /// An error number.
    /// # Safety
    /// `context` is open; `attributes` is writable.
    /// # Reference
    /// ibv_query_port(3)
    pub unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attributes: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller's promises, passed on. The older function fills the
        // front part of the same structure, and the rest is zeroed before.
        unsafe {
            match extended_op!(context, query_port) {
                Some(query) => query(context, port, attributes, mem::size_of::<ibv_port_attr>()),
                None => {
                    attributes.write_bytes(0, 1);
                    self.ibv_query_port(context, port, attributes.cast())
                }
            }
        }
    }

    /// Reads the attributes of a device, on-demand paging included.
    ///
    /// # Errors
    /// An error number.
    /// # Safety
    /// `context` is open; `attributes` is writable.
    /// # Reference
    /// ibv_query_device_ex(3)
    pub unsafe fn query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attributes: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: the caller's promises, passed on; `input` may be null.
        unsafe {
            if !input.is_null() && (*input).comp_mask != 0 {
                return EINVAL;
            }
            if let Some(query) = extended_op!(context, query_device_ex) {
                let size = mem::size_of::<ibv_device_attr_ex>();
                let status = query(context, input, attributes, size);
                if status != EOPNOTSUPP && status != ENOSYS {
                    return status;
                }
            }
            attributes.write_bytes(0, 1);
            self.ibv_query_device(context, &raw mut (*attributes).orig_attr)
        }
    }

    /// Reads one entry of a port's GID table, with its type and network device.
    ///
    /// # Errors
    /// An error number; ENODATA for an empty entry.
    /// # Safety
    /// `context` is open; `entry` is writable.
    /// # Reference
    /// ibv_query_gid_ex(3)
    pub unsafe fn query_gid_ex(
        &self,
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
    ) -> c_int {
        // SAFETY: the caller's promises, passed on.
        unsafe {
            self._ibv_query_gid_ex(context, port, index, entry, 0, mem::size_of::<ibv_gid_entry>())
        }
    }

    /// Reads the valid GIDs of all ports, `capacity` at most: their number, or a negative error.
    ///
    /// # Safety
    /// `context` is open; `entries` has room for `capacity` entries.
    /// # Reference
    /// ibv_query_gid_table(3)
    pub unsafe fn query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        capacity: usize,
    ) -> isize {
        let entry_size = mem::size_of::<ibv_gid_entry>();
        // SAFETY: the caller's promises, passed on.
        unsafe { self._ibv_query_gid_table(context, entries, capacity, 0, entry_size) }
    }

    /// Registers memory; null with `errno` on failure.
    ///
    /// Optional access flags (relaxed ordering) choose the newer function, as the header does.
    /// # Safety
    /// `pd` is alive; the memory stays mapped until the region is deregistered.
    /// # Reference
    /// ibv_reg_mr(3)
    pub unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        address: *mut core::ffi::c_void,
        length: usize,
        access: u32,
    ) -> *mut ibv_mr {
        // SAFETY: the caller's promises, passed on.
        unsafe {
            if access & ACCESS_OPTIONAL_RANGE == 0 {
                self.ibv_reg_mr(pd, address, length, access as c_int)
            } else {
                self.ibv_reg_mr_iova2(pd, address, length, address.addr() as u64, access)
            }
        }
    }
}

/// Advises the device about memory ranges: prefetch, under on-demand paging.
///
/// # Errors
/// An error number; EOPNOTSUPP where the driver lacks it.
/// # Safety
/// `pd` is alive; `ranges` has `count` entries.
/// # Reference
/// ibv_advise_mr(3)
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    ranges: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        match extended_op!((*pd).context, advise_mr) {
            Some(advise) => advise(pd, advice, flags, ranges, count),
            None => EOPNOTSUPP,
        }
    }
}

/// The local address that an identifier is bound to.
///
/// # Safety
/// `id` is alive; the result lives as long as it does.
/// # Reference
/// rdma_get_local_addr(3)
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: the caller's identifier is alive; only an address is computed.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// The address of the peer that an identifier is connected or resolved to.
///
/// # Safety
/// `id` is alive; the result lives as long as it does.
/// # Reference
/// rdma_get_peer_addr(3)
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: the caller's identifier is alive; only an address is computed.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn fake_query_port(
        _context: *mut ibv_context,
        port: u8,
        attributes: *mut ibv_port_attr,
        size: usize,
    ) -> c_int {
        assert_eq!(size, mem::size_of::<ibv_port_attr>());
        // SAFETY: the test passes a whole structure.
        unsafe { (*attributes).lid = u16::from(port) };
        0
    }

    unsafe extern "C" fn fake_poll_cq(_cq: *mut ibv_cq, entries: c_int, _wc: *mut ibv_wc) -> c_int {
        entries
    }

    /// An extended context of a driver that was built when the table had `sz` bytes.
    fn fake_context(sz: usize) -> Box<verbs_context> {
        // SAFETY: integers, null pointers and absent functions are all zeroes.
        let mut extended: Box<verbs_context> = Box::new(unsafe { mem::zeroed() });
        extended.query_port = Some(fake_query_port);
        extended.sz = sz;
        extended.context.abi_compat = core::ptr::without_provenance_mut(usize::MAX);
        extended
    }

    /// The context inside, with the provenance of the whole table around it.
    fn context_of(extended: &mut verbs_context) -> *mut ibv_context {
        let whole: *mut verbs_context = extended;
        // SAFETY: the table is alive; only an address is computed.
        unsafe { &raw mut (*whole).context }
    }

    #[test]
    fn an_extended_operation_is_found_where_the_driver_has_it() {
        let mut extended = fake_context(mem::size_of::<verbs_context>());
        let context = context_of(&mut extended);
        // SAFETY: the fake context is alive, and so is the structure.
        let lid = unsafe {
            let mut attributes: ibv_port_attr = mem::zeroed();
            let query = extended_op!(context, query_port).expect("the fake has it");
            query(context, 7, &mut attributes, mem::size_of::<ibv_port_attr>());
            attributes.lid
        };
        assert_eq!(lid, 7);
    }

    #[test]
    fn an_older_or_plain_context_has_no_extended_operation() {
        // One entry less than ours: query_port, the youngest, is beyond its start.
        let mut older = fake_context(mem::size_of::<verbs_context>() - 8);
        let context = context_of(&mut older);
        // SAFETY: the fake context is alive.
        assert!(unsafe { extended_op!(context, query_port) }.is_none());

        let mut plain = fake_context(mem::size_of::<verbs_context>());
        plain.context.abi_compat = core::ptr::null_mut();
        let context = context_of(&mut plain);
        // SAFETY: the fake context is alive.
        assert!(unsafe { extended_op!(context, query_port) }.is_none());
    }

    #[test]
    fn polling_goes_through_the_context_of_the_queue() {
        let mut extended = fake_context(mem::size_of::<verbs_context>());
        // SAFETY: integers, null pointers and unlocked C mutexes are all zeroes.
        let mut cq: ibv_cq = unsafe { mem::zeroed() };
        cq.context = context_of(&mut extended);
        // SAFETY: queue and context are alive, and neither fake writes anything.
        unsafe {
            assert_eq!(ibv_poll_cq(&mut cq, 4, core::ptr::null_mut()), -EOPNOTSUPP);
            (*cq.context).ops.poll_cq = Some(fake_poll_cq);
            assert_eq!(ibv_poll_cq(&mut cq, 4, core::ptr::null_mut()), 4);
        }
    }
}

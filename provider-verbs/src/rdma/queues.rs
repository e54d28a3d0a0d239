//! Completion queues, their channel, and the shared receive queue.

use std::{
    mem,
    os::fd::RawFd,
    ptr,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
};

use kestrel_core::fork_guard::Mark;
use rdma_core_sys::{inline, verbs::*};

use super::{Rdma, trouble::name_of};
use crate::device::query::do_not_block;
use crate::error::error_of;
use crate::verbs::{
    Completion, Completions, Depths, POLL_BURST, Queues, ReceiveRequest, Status, VerbsError,
};

/// Receives of one chain at most.
const CHAIN_MAX: usize = 16;

/// The queues of an endpoint.
pub struct RdmaQueues {
    pub(super) shared: Handle<ibv_srq>,
    pub(super) receives: Handle<ibv_cq>,
    pub(super) sends: Handle<ibv_cq>,
    /// Goes before what it marks.
    _mark: Mark,
    channel: Handle<ibv_comp_channel>,
    /// Dropped last.
    /// What the last failed poll has answered; 0 if none has failed.
    failure: AtomicI32,
    device: Arc<Rdma>,
}

// SAFETY: libibverbs serializes what has to be.
unsafe impl Send for RdmaQueues {}
// SAFETY: as above.
unsafe impl Sync for RdmaQueues {}

/// An object of libibverbs, destroyed with the value.
pub(super) struct Handle<T> {
    pub(super) object: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T) -> std::ffi::c_int,
    call: &'static str,
}

impl<T> Handle<T> {
    pub(super) fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    /// # Safety
    /// `destroy` is right for the object, which is not destroyed otherwise.
    pub(super) unsafe fn new(
        object: *mut T,
        destroy: unsafe extern "C" fn(*mut T) -> std::ffi::c_int,
        call: &'static str,
    ) -> Option<Handle<T>> {
        Some(Handle { object: NonNull::new(object)?, destroy, call })
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: as `new` was promised; what was made on the object goes before it.
        let failed = unsafe { (self.destroy)(self.object.as_ptr()) };
        if failed != 0 {
            tracing::warn!("{}: {}", self.call, error_of(failed));
        }
    }
}

impl RdmaQueues {
    pub(super) fn new(device: &Arc<Rdma>, depths: Depths) -> Result<RdmaQueues, VerbsError> {
        let verbs = device.verbs();
        let context = device.open.context.as_ptr();
        // SAFETY: the context is open.
        let channel = unsafe {
            let channel = verbs.ibv_create_comp_channel(context);
            Handle::new(channel, verbs.ibv_destroy_comp_channel, "ibv_destroy_comp_channel")
        };
        let channel = channel.ok_or_else(|| device.error("ibv_create_comp_channel"))?;
        // SAFETY: the channel is alive.
        let descriptor = unsafe { (*channel.as_ptr()).fd };
        let mark = Mark::new(descriptor);
        if do_not_block(descriptor) != 0 {
            return Err(device.error("fcntl"));
        }
        let completion_queue = |depth: u32| {
            // SAFETY: context and channel are alive.
            let queue = unsafe {
                let (context_of_queue, vector) = (ptr::null_mut(), vector_near(&*context));
                let channel = channel.as_ptr();
                let queue =
                    verbs.ibv_create_cq(context, depth as i32, context_of_queue, channel, vector);
                Handle::new(queue, verbs.ibv_destroy_cq, "ibv_destroy_cq")
            };
            queue.ok_or_else(|| device.error("ibv_create_cq"))
        };
        let (receives, sends) = (
            completion_queue(depths.receives + depths.immediates)?,
            completion_queue(depths.sends)?,
        );
        let attr = ibv_srq_attr { max_wr: depths.receives, max_sge: 1, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is alive, and the attributes are writable.
        let shared = unsafe {
            let shared = verbs.ibv_create_srq(device.domain.as_ptr(), &mut attributes);
            Handle::new(shared, verbs.ibv_destroy_srq, "ibv_destroy_srq")
        };
        let shared = shared.ok_or_else(|| device.error("ibv_create_srq"))?;
        let (failure, device) = (AtomicI32::new(0), device.clone());
        Ok(RdmaQueues { shared, receives, sends, _mark: mark, channel, failure, device })
    }
}

/// The interrupt of a device whose processor is this thread's, if each has one: so many processes' sleepers do
/// not all wake by one.
fn vector_near(context: &ibv_context) -> i32 {
    // SAFETY: takes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    cpu.max(0) % context.num_comp_vectors.max(1)
}

/// Fetches completions.
#[inline(always)]
fn poll(queue: &Handle<ibv_cq>, failure: &AtomicI32, into: &mut Completions) {
    // SAFETY: integers may hold anything; the device fills as many as it says.
    let mut found: [mem::MaybeUninit<ibv_wc>; POLL_BURST] =
        [const { mem::MaybeUninit::uninit() }; POLL_BURST];
    // SAFETY: the queue is alive; there is room for as many.
    let count = unsafe {
        inline::ibv_poll_cq(queue.as_ptr(), POLL_BURST as i32, found.as_mut_ptr().cast())
    };
    // Devices say so instead of handing out what they have fetched before.
    let count = usize::try_from(count).unwrap_or_else(|_| {
        failure.store(count, Ordering::Relaxed);
        0
    });
    for from in &found[..count] {
        // SAFETY: the device has filled it. What is not valid beside an error is not used.
        let from = unsafe { from.assume_init_ref() };
        // SAFETY: the device has filled in what the write carried.
        let carried = || u32::from_be(unsafe { from.__bindgen_anon_1.imm_data });
        into.push(Completion {
            request: from.wr_id,
            status: Status(from.status),
            bytes: from.byte_len,
            immediate: (from.opcode == IBV_WC_RECV_RDMA_WITH_IMM).then(carried),
            queue_pair: from.qp_num,
            sender: from.src_qp,
        });
    }
}

impl Queues for RdmaQueues {
    #[inline(always)]
    fn poll_receives(&self, into: &mut Completions) {
        poll(&self.receives, &self.failure, into);
    }

    #[inline(always)]
    fn poll_sends(&self, into: &mut Completions) {
        poll(&self.sends, &self.failure, into);
    }

    unsafe fn post_receives(&self, requests: &[ReceiveRequest]) -> Result<(), VerbsError> {
        for chain in requests.chunks(CHAIN_MAX) {
            let empty = ibv_sge { addr: 0, length: 0, lkey: 0 };
            let mut segments = [empty; CHAIN_MAX];
            let mut work = [ibv_recv_wr {
                wr_id: 0,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 1,
            }; CHAIN_MAX];
            let (segments, work) = (&mut segments[..chain.len()], &mut work[..chain.len()]);
            let mut next = ptr::null_mut();
            for nth in (0..chain.len()).rev() {
                let ReceiveRequest { request, segment } = chain[nth];
                let (addr, length, lkey) = (segment.address, segment.length, segment.local_key);
                segments[nth] = ibv_sge { addr, length, lkey };
                work[nth].wr_id = request;
                work[nth].sg_list = &mut segments[nth];
                work[nth].next = next;
                next = &mut work[nth];
            }
            let mut bad = ptr::null_mut();
            // SAFETY: the queue is alive, the chain is whole, and the caller vouches for what
            // the segments name.
            let failed = unsafe { inline::ibv_post_srq_recv(self.shared.as_ptr(), next, &mut bad) };
            if failed != 0 {
                return Err(self.device.refusal("ibv_post_srq_recv", failed));
            }
        }
        Ok(())
    }

    fn request_notification(&self) {
        for queue in [&self.receives, &self.sends] {
            // SAFETY: the queue is alive.
            let failed = unsafe { inline::ibv_req_notify_cq(queue.as_ptr(), 0) };
            if failed != 0 {
                tracing::error!("{}", self.device.refusal("ibv_req_notify_cq", failed));
            }
        }
    }

    fn silence(&self) {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and does not block; what is acknowledged came from it.
        unsafe {
            let verbs = self.device.verbs();
            while verbs.ibv_get_cq_event(self.channel.as_ptr(), &mut queue, &mut context) == 0 {
                verbs.ibv_ack_cq_events(queue, 1);
            }
        }
    }

    fn channel(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    fn has(&self, name: u64) -> bool {
        let queues = [name_of(self.receives.as_ptr()), name_of(self.sends.as_ptr())];
        queues.contains(&name) || name_of(self.shared.as_ptr()) == name
    }

    fn failure(&self) -> Option<String> {
        let answer = self.failure.load(Ordering::Relaxed);
        (answer != 0).then(|| format!("ibv_poll_cq answers {answer}"))
    }
}

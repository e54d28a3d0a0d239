//! Completion queues, their channel, and receives: a shared queue, or lists for queues of their own.

use std::{
    io, mem,
    os::fd::RawFd,
    ptr,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use kestrel_core::fork_guard::Mark;
use rdma_core_sys::{inline, verbs::*};

use super::{Rdma, trouble::name_of};
use crate::device::query::do_not_block;
use crate::error::error_of;
use crate::own_receives::OwnReceives;
use crate::receive_pool::WINDOW_MAX;
use crate::verbs::{
    Completion, Completions, Depths, EMPTY, POLL_BURST, Queues, ReceiveRequest, Role, Status,
    VerbsError,
};

/// Receives of one chain at most.
const CHAIN_MAX: usize = 16;

/// What an endpoint receives by.
enum Receives {
    Shared(Handle<ibv_srq>),
    /// Each queue pair has some of its own. To poll and to destroy one exclude each other, so that a receive is
    /// its that polled it, or is taken back.
    Own(Mutex<OwnReceives>),
}

/// The queues of an endpoint.
pub struct RdmaQueues {
    requests: Receives,
    /// How many of them there can be.
    requests_max: u32,
    pub(super) receives: Handle<ibv_cq>,
    pub(super) sends: Handle<ibv_cq>,
    /// Goes before what it marks.
    _mark: Mark,
    channel: Handle<ibv_comp_channel>,
    /// What the last failed poll has answered; 0 if none has failed.
    failure: AtomicI32,
    /// Dropped last.
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

impl<T> Handle<T> {
    /// Destroys the object.
    ///
    /// # Safety
    /// Once, and nothing that was made on it is left.
    pub(super) unsafe fn destroy(&self) -> io::Result<()> {
        // SAFETY: as `new` was promised.
        match unsafe { (self.destroy)(self.object.as_ptr()) } {
            0 => Ok(()),
            failed => {
                let error = error_of(failed);
                tracing::warn!("{}: {error}", self.call);
                Err(error)
            }
        }
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: what was made on the object goes before it. What is refused was told.
        let _ = unsafe { self.destroy() };
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
        let requests = if device.shared_receives {
            match shared_queue(device, depths.receives) {
                Err(error) if is_unknown(&error) => {
                    tracing::info!("{error}: each connection has receives of its own");
                    Receives::Own(Mutex::default())
                }
                made => Receives::Shared(made?),
            }
        } else {
            Receives::Own(Mutex::default())
        };
        let requests_max = depths.receives;
        let (failure, device) = (AtomicI32::new(0), device.clone());
        Ok(RdmaQueues {
            requests,
            requests_max,
            receives,
            sends,
            _mark: mark,
            channel,
            failure,
            device,
        })
    }

    #[inline(never)]
    fn poll_own(&self, own: &mut OwnReceives, into: &mut Completions) {
        loop {
            poll(&self.receives, &self.failure, into);
            if into.is_empty() {
                return;
            }
            into.retain(|completion| {
                let Completion { request, queue_pair, .. } = *completion;
                request == EMPTY || own.complete(queue_pair, request)
            });
            // Nothing is told of those that were taken back, and others may be behind them.
            if !into.is_empty() {
                return;
            }
        }
    }

    /// What queue pairs share; null if nothing.
    pub(super) fn shared_queue(&self) -> *mut ibv_srq {
        match &self.requests {
            Receives::Shared(shared) => shared.as_ptr(),
            Receives::Own(_) => ptr::null_mut(),
        }
    }

    /// How many receives a queue pair that takes packets can have of its own.
    pub(super) fn own_receives_max(&self, role: Role) -> u32 {
        match (&self.requests, role) {
            (Receives::Own(_), Role::Receives) => WINDOW_MAX,
            (Receives::Own(_), Role::Datagrams { .. }) => self.requests_max,
            _ => role.immediates().max(1),
        }
    }

    /// Posts so many of those that wait, if receives are not shared.
    pub(super) fn provide(
        &self,
        queue_pair: u32,
        count: u32,
        mut post: impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> i32,
    ) -> Result<(), VerbsError> {
        let Receives::Own(own) = &self.requests else {
            return Ok(());
        };
        let mut own = lock(own);
        let requests = own.lend(queue_pair, count);
        post_chains(&requests, &mut post).map_err(|Refused { number, unposted }| {
            own.take_back(queue_pair, unposted);
            self.device.refusal("ibv_post_recv", number)
        })
    }

    /// Has a queue pair use no receive any more, and gives those that it had to others, if that succeeds.
    pub(super) fn reclaim<E>(
        &self,
        queue_pair: u32,
        end: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let Receives::Own(own) = &self.requests else {
            return end();
        };
        let mut own = lock(own);
        end()?;
        own.reclaim(queue_pair);
        Ok(())
    }
}

fn lock(own: &Mutex<OwnReceives>) -> MutexGuard<'_, OwnReceives> {
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shared_queue(device: &Arc<Rdma>, depth: u32) -> Result<Handle<ibv_srq>, VerbsError> {
    let verbs = device.verbs();
    let attr = ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
    let mut attributes = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
    // SAFETY: the domain is alive, and the attributes are writable.
    let shared = unsafe {
        let shared = verbs.ibv_create_srq(device.domain.as_ptr(), &mut attributes);
        Handle::new(shared, verbs.ibv_destroy_srq, "ibv_destroy_srq")
    };
    shared.ok_or_else(|| device.error("ibv_create_srq"))
}

/// Whether a driver does not know of a call, whatever its device's limits say: irdma has shared queues where the
/// firmware has them.
fn is_unknown(error: &VerbsError) -> bool {
    let unknown = [libc::EOPNOTSUPP, libc::ENOSYS];
    matches!(error, VerbsError::Call { source, .. }
        if source.raw_os_error().is_some_and(|number| unknown.contains(&number)))
}

/// Receives that were not posted.
struct Refused {
    /// What the call has answered.
    number: i32,
    /// How many, the last.
    unposted: usize,
}

/// Posts receives as chains, by a call that says where it stopped.
fn post_chains(
    requests: &[ReceiveRequest],
    mut post: impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> i32,
) -> Result<(), Refused> {
    let mut unposted = requests.len();
    for chain in requests.chunks(CHAIN_MAX) {
        let empty = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let mut segments = [empty; CHAIN_MAX];
        let mut work =
            [ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
                CHAIN_MAX];
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
        let (first, mut bad) = (next, next);
        let number = post(next, &mut bad);
        if number != 0 {
            let posted = (bad.addr().saturating_sub(first.addr())) / size_of::<ibv_recv_wr>();
            return Err(Refused { number, unposted: unposted - posted.min(chain.len()) });
        }
        unposted -= chain.len();
    }
    Ok(())
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
        match &self.requests {
            Receives::Shared(_) => poll(&self.receives, &self.failure, into),
            Receives::Own(own) => self.poll_own(&mut lock(own), into),
        }
    }

    #[inline(always)]
    fn poll_sends(&self, into: &mut Completions) {
        poll(&self.sends, &self.failure, into);
    }

    unsafe fn post_receives(&self, requests: &[ReceiveRequest]) -> Result<(), VerbsError> {
        let shared = match &self.requests {
            Receives::Shared(shared) => shared,
            Receives::Own(own) => {
                lock(own).put(requests);
                return Ok(());
            }
        };
        // SAFETY: the queue is alive, the chain is whole, and the caller vouches for what the segments name.
        let post =
            |chain, bad: &mut _| unsafe { inline::ibv_post_srq_recv(shared.as_ptr(), chain, bad) };
        post_chains(requests, post)
            .map_err(|refused| self.device.refusal("ibv_post_srq_recv", refused.number))
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
        let is_shared = |shared: *mut ibv_srq| !shared.is_null() && name_of(shared) == name;
        queues.contains(&name) || is_shared(self.shared_queue())
    }

    fn failure(&self) -> Option<String> {
        let answer = self.failure.load(Ordering::Relaxed);
        (answer != 0).then(|| format!("ibv_poll_cq answers {answer}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_shared_queues_is_told_from_one_that_has_no_more() {
        let error = |number| {
            let source = io::Error::from_raw_os_error(number);
            VerbsError::of_call("irdma0", "ibv_create_srq", source)
        };
        assert!(is_unknown(&error(libc::EOPNOTSUPP)) && is_unknown(&error(libc::ENOSYS)));
        assert!(!is_unknown(&error(libc::ENOMEM)) && !is_unknown(&error(libc::EINVAL)));
    }
}

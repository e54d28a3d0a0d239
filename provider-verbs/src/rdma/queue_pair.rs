//! Queue pairs: reliable connected ones, and those of datagrams.

use std::{
    io,
    mem::{self, ManuallyDrop, MaybeUninit},
    ptr,
    sync::Arc,
    time::Duration,
};

use kestrel_core::window::Change;
use rdma_core_sys::{inline, verbs::*};

use super::{
    Rdma, RdmaQueues,
    path::{of_c, to_c},
    queues::Handle,
    registration::access_flags,
};
use crate::{
    device::{LinkLayer, query::mtu_bytes_of},
    error::error_of,
    path,
    verbs::{
        Agreement, Destination, EMPTY, GroupAddress, Marks, Origin, PathEnd, QueuePair,
        RemoteMemory, Role, SendRequest, Verb, VerbsError,
    },
};

/// How often a packet is sent again. 7 would mean for ever on rxe.
pub(super) const RETRIES: u8 = 6;
/// The same for a receiver without buffers: for ever. Where a packet has credit there is one, unless another
/// sender took more than it was granted, or the peer grants what it has not (and keeps a share of our send
/// buffers); and a write that carries data waits until the peer has taken what earlier ones carried, as a
/// packet waits for credit. A peer that is gone does not even say that it is not ready.
pub(super) const NOT_READY_RETRIES: u8 = 7;
/// How long a receiver asks to wait then: 0.64 ms.
const NOT_READY_TIMER: u8 = 12;
/// The call that refuses a length of inline requests.
pub(super) const CREATE_QUEUE_PAIR: &str = "ibv_create_qp";
/// Sends of one chain at most.
const CHAIN_MAX: usize = 16;

/// A queue pair.
pub struct RdmaQueuePair {
    /// Dropped by hand, at once with what it has of receives.
    pair: ManuallyDrop<Handle<ibv_qp>>,
    number: u32,
    inline_bytes_max: usize,
    role: Role,
    queues: Arc<RdmaQueues>,
    device: Arc<Rdma>,
}

// SAFETY: libibverbs serializes what has to be.
unsafe impl Send for RdmaQueuePair {}
// SAFETY: as above.
unsafe impl Sync for RdmaQueuePair {}

impl RdmaQueuePair {
    /// A queue pair in state INIT.
    pub(super) fn new(
        device: &Arc<Rdma>,
        queues: &Arc<RdmaQueues>,
        sends: u32,
        role: Role,
        inline_bytes: u32,
    ) -> Result<RdmaQueuePair, VerbsError> {
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queues.sends.as_ptr(),
            recv_cq: queues.receives.as_ptr(),
            srq: match role {
                Role::Receives | Role::Datagrams { .. } => queues.shared_queue(),
                _ => ptr::null_mut(),
            },
            cap: ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: queues.own_receives_max(role),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: match role {
                Role::Datagrams { .. } => IBV_QPT_UD,
                _ => IBV_QPT_RC,
            },
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are alive, and the attributes are writable.
        let pair = unsafe {
            let verbs = device.verbs();
            let pair = verbs.ibv_create_qp(device.domain.as_ptr(), &mut attributes);
            Handle::new(pair, verbs.ibv_destroy_qp, "ibv_destroy_qp")
        };
        let pair = pair.ok_or_else(|| device.error(CREATE_QUEUE_PAIR))?;
        // SAFETY: the pair was made just now.
        let number = unsafe { (*pair.as_ptr()).qp_num };
        let inline_bytes_max = attributes.cap.max_inline_data as usize;
        let (queues, device) = (queues.clone(), device.clone());
        let pair = ManuallyDrop::new(pair);
        let made = RdmaQueuePair { pair, number, inline_bytes_max, role, queues, device };
        made.initialize(made.device.port.partition_key_index)?;
        if let Role::Datagrams { .. } = role {
            made.get_ready()?;
        }
        Ok(made)
    }

    /// From RESET, or from INIT, to INIT.
    fn initialize(&self, partition_key_index: u16) -> Result<(), VerbsError> {
        let mut init = self.state(IBV_QPS_INIT);
        init.pkey_index = partition_key_index;
        init.port_num = self.device.port.number;
        let last = match self.role {
            Role::Datagrams { key } => {
                init.qkey = key;
                IBV_QP_QKEY
            }
            role => {
                init.qp_access_flags = access_flags(role.admits());
                IBV_QP_ACCESS_FLAGS
            }
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last;
        self.modify(&mut init, mask).map_err(|source| self.refused("ibv_modify_qp (INIT)", source))
    }

    /// From INIT to RTR to RTS, without a peer.
    fn get_ready(&self) -> Result<(), VerbsError> {
        let mut receives = self.state(IBV_QPS_RTR);
        self.modify(&mut receives, IBV_QP_STATE)
            .map_err(|source| self.refused("ibv_modify_qp (RTR)", source))?;
        let mut sends = self.state(IBV_QPS_RTS);
        self.modify(&mut sends, IBV_QP_STATE | IBV_QP_SQ_PSN)
            .map_err(|source| self.refused("ibv_modify_qp (RTS)", source))
    }

    /// From INIT to RTR to RTS, as the connection manager has agreed with the peer's: `fill` takes
    /// a state and gives what belongs to it. What bounds our own waiting stays ours, and so does
    /// the traffic class, if we have one, where no subnet manager has a say in it.
    pub(super) fn join_managed(
        &self,
        marks: Marks,
        mtu_bytes_max: u32,
        fill: impl Fn(&mut ibv_qp_attr) -> Result<u32, VerbsError>,
    ) -> Result<Agreement, VerbsError> {
        let port = &self.device.port;
        let mut init = self.state(IBV_QPS_INIT);
        fill(&mut init)?;
        let partition_key_index = init.pkey_index;
        if partition_key_index != port.partition_key_index {
            self.initialize(partition_key_index)?;
        }
        let mut ready = self.state(IBV_QPS_RTR);
        let mask = fill(&mut ready)?;
        let narrowest = mtu_of(mtu_bytes_max);
        let is_narrowed = narrowest < ready.path_mtu;
        ready.path_mtu = ready.path_mtu.min(narrowest);
        ready.max_dest_rd_atomic = self.role.reads_max(port);
        ready.min_rnr_timer = NOT_READY_TIMER;
        if let Some(class) = marks.traffic_class
            && port.link_layer != LinkLayer::InfiniBand
        {
            ready.ah_attr.grh.traffic_class = class;
        }
        self.modify(&mut ready, mask)
            .map_err(|source| self.refused("ibv_modify_qp (RTR)", source))?;
        let mut sends = self.state(IBV_QPS_RTS);
        let mask = fill(&mut sends)?;
        self.bound_waiting(&mut sends);
        sends.max_rd_atomic = self.role.reads_max(port);
        self.modify(&mut sends, mask)
            .map_err(|source| self.refused("ibv_modify_qp (RTS)", source))?;
        let partition_key = self.device.open.partition_key(port.number, partition_key_index);
        let partition_key = partition_key.unwrap_or(port.partition_key);
        let route = of_c(&ready.ah_attr);
        let mtu_bytes = mtu_bytes_of(ready.path_mtu);
        Ok(Agreement { route, partition_key, partition_key_index, mtu_bytes, is_narrowed })
    }

    /// How long and how often it is tried to reach the peer.
    fn bound_waiting(&self, sends: &mut ibv_qp_attr) {
        sends.timeout = timeout_for(self.device.peer_timeout);
        sends.retry_cnt = RETRIES;
        sends.rnr_retry = NOT_READY_RETRIES;
    }

    fn state(&self, state: ibv_qp_state) -> ibv_qp_attr {
        // SAFETY: the structure holds integers only, which may be zero.
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = state;
        attributes
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: the pair is alive, and the attributes are readable.
        let failed = unsafe {
            self.device.verbs().ibv_modify_qp(self.pair.as_ptr(), attributes, mask as i32)
        };
        match failed {
            0 => Ok(()),
            number => Err(error_of(number)),
        }
    }

    fn refused(&self, call: &'static str, source: io::Error) -> VerbsError {
        VerbsError::of_call(&self.device.open.name, call, source)
    }
}

/// The local acknowledgement timeout, t for 4.096 µs · 2^t, with which the last try is made
/// `peer_timeout` after the first, or up to twice as long after it.
fn timeout_for(peer_timeout: Duration) -> u8 {
    let each = peer_timeout.as_nanos().div_ceil(u128::from(RETRIES));
    // 0 would mean for ever, and 31 is the largest that there is.
    each.div_ceil(4096).next_power_of_two().ilog2().clamp(1, 31) as u8
}

/// The inverse of [`mtu_bytes_of`].
fn mtu_of(bytes: u32) -> ibv_mtu {
    bytes.clamp(256, 4096).ilog2() - 7
}

impl QueuePair for RdmaQueuePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn inline_bytes_max(&self) -> usize {
        self.inline_bytes_max
    }

    fn connect(&self, first_packet: u32, from: &Origin, peer: &PathEnd) -> Result<(), VerbsError> {
        let (device, port) = (&self.device.open.name, &from.port);
        let route = path::to_peer(device, from, peer)?;
        if port.partition_key_index != self.device.port.partition_key_index {
            self.initialize(port.partition_key_index)?;
        }
        let reads_max = self.role.reads_max(port).min(peer.reads_max);
        let mut ready = self.state(IBV_QPS_RTR);
        ready.path_mtu = mtu_of(port.mtu_bytes.min(peer.mtu_bytes));
        ready.dest_qp_num = peer.queue_pair;
        ready.rq_psn = peer.first_packet;
        ready.max_dest_rd_atomic = reads_max;
        ready.min_rnr_timer = NOT_READY_TIMER;
        ready.ah_attr = to_c(&route);
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut ready, mask).map_err(|source| path::none(device, port, peer, source))?;
        let mut sends = self.state(IBV_QPS_RTS);
        self.bound_waiting(&mut sends);
        sends.sq_psn = first_packet;
        sends.max_rd_atomic = reads_max;
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut sends, mask).map_err(|source| self.refused("ibv_modify_qp (RTS)", source))
    }

    #[inline(always)]
    unsafe fn post_sends(&self, requests: &[SendRequest]) -> Result<(), VerbsError> {
        for chain in requests.chunks(CHAIN_MAX) {
            // Most have one request: only what is used is written.
            let mut segments = [const { MaybeUninit::uninit() }; CHAIN_MAX];
            let mut work = [const { MaybeUninit::uninit() }; CHAIN_MAX];
            let mut next = ptr::null_mut();
            for ((work, segment), request) in work.iter_mut().zip(&mut segments).zip(chain).rev() {
                let segment = segment.write(ibv_sge { addr: 0, length: 0, lkey: 0 });
                // SAFETY: integers, null pointers and unions of them may be zero.
                let work = work.write(unsafe { mem::zeroed::<ibv_send_wr>() });
                fill(work, segment, request);
                work.next = next;
                next = work;
            }
            let mut bad = ptr::null_mut();
            // SAFETY: the pair is alive, the chain is whole, and the caller vouches for what the
            // segments name.
            let failed = unsafe { inline::ibv_post_send(self.pair.as_ptr(), next, &mut bad) };
            if failed != 0 {
                return Err(self.device.refusal("ibv_post_send", failed));
            }
        }
        Ok(())
    }

    fn post_empty(&self, count: u32) -> Result<(), VerbsError> {
        let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
        for _ in 0..count {
            let mut work = ibv_recv_wr { wr_id: EMPTY, next, sg_list, num_sge: 0 };
            let mut bad = ptr::null_mut();
            // SAFETY: the pair is alive, and the request names no memory.
            let failed = unsafe { inline::ibv_post_recv(self.pair.as_ptr(), &mut work, &mut bad) };
            if failed != 0 {
                return Err(self.device.refusal("ibv_post_recv", failed));
            }
        }
        Ok(())
    }

    fn provide(&self, count: u32) -> Result<(), VerbsError> {
        // SAFETY: the pair is alive, the chain is whole, and who posted the receives for all vouches for what
        // they name.
        let post =
            |chain, bad: &mut _| unsafe { inline::ibv_post_recv(self.pair.as_ptr(), chain, bad) };
        self.queues.provide(self.number, count, post)
    }

    fn fail(&self) {
        let mut attributes = self.state(IBV_QPS_ERR);
        if let Err(error) = self.modify(&mut attributes, IBV_QP_STATE) {
            tracing::debug!("ibv_modify_qp (ERR): {error}");
        }
    }

    fn attach(&self, GroupAddress { gid, lid }: GroupAddress) -> Result<(), VerbsError> {
        let gid = ibv_gid { raw: gid };
        // SAFETY: the pair is alive, and the group is readable.
        let failed = unsafe { self.device.verbs().ibv_attach_mcast(self.pair.as_ptr(), &gid, lid) };
        if failed == 0 { Ok(()) } else { Err(self.device.refusal("ibv_attach_mcast", failed)) }
    }

    fn detach(&self, GroupAddress { gid, lid }: GroupAddress) {
        let gid = ibv_gid { raw: gid };
        // SAFETY: as above.
        let failed = unsafe { self.device.verbs().ibv_detach_mcast(self.pair.as_ptr(), &gid, lid) };
        if failed != 0 {
            tracing::debug!("{}", self.device.refusal("ibv_detach_mcast", failed));
        }
    }

    fn renew(&self) -> Result<(), VerbsError> {
        let mut reset = self.state(IBV_QPS_RESET);
        self.queues
            .reclaim(self.number, || self.modify(&mut reset, IBV_QP_STATE))
            .map_err(|source| self.refused("ibv_modify_qp (RESET)", source))?;
        self.initialize(self.device.port.partition_key_index)?;
        self.get_ready()
    }
}

impl Drop for RdmaQueuePair {
    fn drop(&mut self) {
        // SAFETY: it is used no more, and its handle is not dropped. What is refused was told, and keeps its
        // receives.
        let _ = self.queues.reclaim(self.number, || unsafe { self.pair.destroy() });
    }
}

#[inline(always)]
fn fill(work: &mut ibv_send_wr, segment: &mut ibv_sge, request: &SendRequest) {
    segment.addr = request.segment.address;
    segment.length = request.segment.length;
    segment.lkey = request.segment.local_key;
    work.wr_id = request.request;
    if request.segment.length > 0 {
        work.sg_list = segment;
        work.num_sge = 1;
    }
    let signalled = if request.signalled { IBV_SEND_SIGNALED } else { 0 };
    let fenced = if request.fenced { IBV_SEND_FENCE } else { 0 };
    // Of nothing the flag says nothing, and a device that takes nothing inline need not see it.
    let is_inline = request.inline && request.segment.length > 0;
    work.send_flags = signalled | fenced | if is_inline { IBV_SEND_INLINE } else { 0 };
    let (opcode, remote) = match request.verb {
        Verb::Send => (IBV_WR_SEND, None),
        Verb::Datagram(Destination { handle, queue_pair, key }) => {
            work.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah: handle as usize as *mut ibv_ah,
                remote_qpn: queue_pair,
                remote_qkey: key,
            };
            (IBV_WR_SEND, None)
        }
        Verb::Atomic(at, change) => {
            let (opcode, compare_add, swap) = match change {
                Change::Add(value) => (IBV_WR_ATOMIC_FETCH_AND_ADD, value, 0),
                Change::Swap { expected, value } => (IBV_WR_ATOMIC_CMP_AND_SWP, expected, value),
            };
            let RemoteMemory { address: remote_addr, key: rkey } = at;
            work.wr.atomic =
                ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey };
            (opcode, None)
        }
        Verb::Write(to) => (IBV_WR_RDMA_WRITE, Some(to)),
        Verb::WriteImmediate(to, data) => {
            work.__bindgen_anon_1.imm_data = data.to_be();
            (IBV_WR_RDMA_WRITE_WITH_IMM, Some(to))
        }
        Verb::Read(from) => (IBV_WR_RDMA_READ, Some(from)),
    };
    work.opcode = opcode;
    if let Some(RemoteMemory { address, key }) = remote {
        work.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey: key };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_mtu_codes() {
        assert_eq!([256, 1024, 4096].map(mtu_of), [IBV_MTU_256, IBV_MTU_1024, IBV_MTU_4096]);
        assert_eq!([0, 9000].map(mtu_of), [IBV_MTU_256, IBV_MTU_4096]);
    }

    #[test]
    fn the_last_try_comes_after_what_was_asked_for_and_less_than_twice_that() {
        for ms in [100, 1_500, 1_610, 1_611, 30_000, 3_600_000] {
            let each = 4.096e-3 * f64::from(1_u32 << timeout_for(Duration::from_millis(ms)));
            let last = each * f64::from(RETRIES);
            assert!(last >= ms as f64 && last < 2.0 * ms as f64, "{ms} ms: {last} ms");
        }
        assert_eq!([0, 1 << 40].map(|ms| timeout_for(Duration::from_millis(ms))), [1, 31]);
        assert_eq!(timeout_for(Duration::from_millis(1_500)), 16, "0.27 s");
    }
}

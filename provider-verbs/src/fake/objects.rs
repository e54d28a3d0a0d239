//! The fake's regions, queues and queue pairs: handles into the fabric's state.

use std::{
    collections::{HashSet, VecDeque},
    io,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use kestrel_core::memory::Piece;
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::OwnedFd,
};

use super::{FakeDevice, joined::Joined, memory::Registered};
use crate::{
    memory::{Memory, PAGE_BYTES},
    own_receives::OwnReceives,
    path::{self, Route},
    verbs::{
        AddressHandle, Completion, Completions, Depths, GroupAddress, Origin, POLL_BURST, PathEnd,
        QueuePair, Queues, ReceiveRequest, Region, Registration, RemoteAccess, Role, SendRequest,
        VerbsError,
    },
};

pub(super) fn refusal(device: &FakeDevice, call: &'static str, number: i32) -> VerbsError {
    let source = io::Error::from_raw_os_error(number);
    VerbsError::of_call(&device.name, call, source)
}

/// Registered memory of applications.
pub struct FakeRegistration {
    device: Arc<FakeDevice>,
    key: u32,
}

impl FakeRegistration {
    pub(super) fn new(
        device: &Arc<FakeDevice>,
        memory: Piece,
        remote: RemoteAccess,
        local_write: bool,
    ) -> Self {
        let (start, bytes) = (memory.as_ptr().addr() as u64, memory.len());
        touch(memory);
        let mut state = device.fabric.lock();
        let key = state.number();
        state.regions.insert(key, Registered { start, bytes, remote, local_write });
        drop(state);
        FakeRegistration { device: device.clone(), key }
    }
}

/// Has all pages there, as who pins them does.
fn touch(memory: Piece) {
    for at in (0..memory.len()).step_by(PAGE_BYTES) {
        // SAFETY: whoever registers memory vouches for it.
        unsafe { memory.as_ptr().add(at).read_volatile() };
    }
}

impl Registration for FakeRegistration {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        self.key
    }
}

impl Drop for FakeRegistration {
    fn drop(&mut self) {
        self.device.fabric.lock().regions.remove(&self.key);
    }
}

/// Registered memory of the fake. Fields drop in this order: the registration before the memory.
pub struct FakeRegion {
    registration: FakeRegistration,
    memory: Memory,
}

impl FakeRegion {
    pub(super) fn new(
        device: &Arc<FakeDevice>,
        bytes: usize,
        remote_write: bool,
    ) -> Result<FakeRegion, VerbsError> {
        let memory =
            Memory::zeroed(bytes).ok_or_else(|| refusal(device, "ibv_reg_mr", libc::ENOMEM))?;
        let remote = RemoteAccess { write: remote_write, ..RemoteAccess::default() };
        let registration = FakeRegistration::new(device, memory.whole(), remote, true);
        Ok(FakeRegion { registration, memory })
    }
}

impl Region for FakeRegion {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn local_key(&self) -> u32 {
        self.registration.key
    }

    fn remote_key(&self) -> u32 {
        self.registration.key
    }
}

/// What queues of an endpoint hold.
pub(super) struct QueueState {
    pub receives_max: usize,
    pub posted: VecDeque<ReceiveRequest>,
    /// The same where queue pairs share none.
    pub own: Option<OwnReceives>,
    pub receives: VecDeque<Completion>,
    pub sends: VecDeque<Completion>,
    pub armed: bool,
    pub channel: Arc<OwnedFd>,
    /// Looks for completions fail, and whether one has.
    pub fails: bool,
    pub has_failed: bool,
}

impl QueueState {
    pub(super) fn notify(&mut self) {
        if std::mem::take(&mut self.armed) {
            // The counter of an eventfd that is drained at each arming cannot fill up.
            let _ = rustix::io::write(&self.channel, &1u64.to_ne_bytes());
        }
    }
}

/// The queues of an endpoint on the fake.
pub struct FakeQueues {
    device: Arc<FakeDevice>,
    number: u64,
    channel: Arc<OwnedFd>,
}

impl FakeQueues {
    pub(super) fn new(device: &Arc<FakeDevice>, depths: Depths) -> Result<FakeQueues, VerbsError> {
        let channel = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| refusal(device, "ibv_create_comp_channel", errno.raw_os_error()))?;
        let channel = Arc::new(channel);
        let mut state = device.fabric.lock();
        let number = u64::from(state.number());
        let queues = QueueState {
            receives_max: depths.receives as usize,
            posted: VecDeque::new(),
            own: (!device.options.shares_receives).then(OwnReceives::default),
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            armed: false,
            channel: channel.clone(),
            fails: false,
            has_failed: false,
        };
        state.queues.insert(number, queues);
        drop(state);
        Ok(FakeQueues { device: device.clone(), number, channel })
    }

    fn with<R>(&self, work: impl FnOnce(&mut QueueState) -> R) -> R {
        let mut state = self.device.fabric.lock();
        work(state.queues.get_mut(&self.number).expect("queues exist as long as their handle"))
    }

    /// Fetches completions: in the order of their coming, or, of different queue pairs, in any.
    fn fetch(
        &self,
        of: impl Fn(&mut QueueState) -> &mut VecDeque<Completion>,
        into: &mut Completions,
    ) {
        let options = &self.device.options;
        self.device.fabric.lock().note_look();
        self.with(|queues| {
            queues.has_failed |= queues.fails;
            let queue = of(queues);
            let most = POLL_BURST.min(options.poll_burst);
            while into.len() < most && !queue.is_empty() {
                let at = options.shuffle.map_or(0, |seed| pick(queue, seed));
                into.push(queue.remove(at).expect("an index within"));
            }
        });
    }
}

/// The first completion of some queue pair.
fn pick(queue: &VecDeque<Completion>, seed: u64) -> usize {
    let mut seen = HashSet::new();
    let mut first = Vec::new();
    for (index, completion) in queue.iter().enumerate() {
        if seen.insert(completion.queue_pair) {
            first.push(index);
        }
    }
    let mixed = (seed ^ queue.len() as u64 ^ queue[0].request << 7)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(21);
    first[mixed as usize % first.len()]
}

impl Queues for FakeQueues {
    fn poll_receives(&self, into: &mut Completions) {
        self.fetch(|queues| &mut queues.receives, into);
    }

    fn poll_sends(&self, into: &mut Completions) {
        self.device.fabric.lock().tally.looks += 1;
        self.fetch(|queues| &mut queues.sends, into);
    }

    unsafe fn post_receives(&self, requests: &[ReceiveRequest]) -> Result<(), VerbsError> {
        let fits = self.with(|queues| {
            if let Some(own) = &mut queues.own {
                own.put(requests);
                return true;
            }
            let fits = queues.posted.len() + requests.len() <= queues.receives_max;
            if fits {
                queues.posted.extend(requests);
            }
            fits
        });
        let mut state = self.device.fabric.lock();
        if state.flooding {
            state.flood(self.number);
        }
        state.shared_posted();
        drop(state);
        if fits { Ok(()) } else { Err(refusal(&self.device, "ibv_post_srq_recv", libc::ENOMEM)) }
    }

    fn request_notification(&self) {
        self.with(|queues| queues.armed = true);
    }

    fn silence(&self) {
        let mut count = [0; 8];
        // EAGAIN: it was not readable.
        let _ = rustix::io::read(&self.channel, &mut count);
    }

    fn channel(&self) -> RawFd {
        self.channel.as_raw_fd()
    }

    fn has(&self, name: u64) -> bool {
        self.number == name
    }

    fn failure(&self) -> Option<String> {
        self.with(|queues| queues.has_failed).then(|| "the test says so".into())
    }
}

impl Drop for FakeQueues {
    fn drop(&mut self) {
        self.device.fabric.lock().queues.remove(&self.number);
    }
}

/// The path to a peer, which leads to the queue pair that it names.
fn find_path(device: &FakeDevice, from: &Origin, peer: &PathEnd) -> Result<Route, VerbsError> {
    let route = path::to_peer(&device.name, from, peer)?;
    device.seeking.wait();
    let mut state = device.fabric.lock();
    if device.options.reaches_nobody || !state.leads_to(&route, peer.queue_pair) {
        let source = io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        return Err(path::none(&device.name, &from.port, peer, source));
    }
    state.note_path(from.port, route);
    Ok(route)
}

/// An address handle of the fake.
pub struct FakeAddressHandle {
    device: Arc<FakeDevice>,
    name: u64,
}

impl FakeAddressHandle {
    pub(super) fn new(
        device: &Arc<FakeDevice>,
        from: &Origin,
        peer: &PathEnd,
    ) -> Result<Self, VerbsError> {
        find_path(device, from, peer)?;
        Ok(Self::to(device, GroupAddress { gid: peer.gid, lid: peer.lid }))
    }

    /// The way to a group, or to whoever is there.
    pub(super) fn to(device: &Arc<FakeDevice>, place: GroupAddress) -> Self {
        let mut state = device.fabric.lock();
        let name = u64::from(state.number());
        state.handles.insert(name, place);
        drop(state);
        FakeAddressHandle { device: device.clone(), name }
    }
}

impl AddressHandle for FakeAddressHandle {
    fn name(&self) -> u64 {
        self.name
    }
}

impl Drop for FakeAddressHandle {
    fn drop(&mut self) {
        self.device.fabric.lock().handles.remove(&self.name);
    }
}

/// A queue pair of the fake.
pub struct FakeQueuePair {
    device: Arc<FakeDevice>,
    _queues: Arc<FakeQueues>,
    number: u32,
}

impl FakeQueuePair {
    pub(super) fn new(
        device: &Arc<FakeDevice>,
        queues: &Arc<FakeQueues>,
        sends: u32,
        role: Role,
    ) -> FakeQueuePair {
        let mut state = device.fabric.lock();
        let (on, port) = (device.ordinal, &device.table);
        let number = state.add_pair(on, port, queues.number, sends as usize, role);
        drop(state);
        FakeQueuePair { device: device.clone(), _queues: queues.clone(), number }
    }

    /// Joins it with a queue pair of the peer's.
    pub(super) fn join(&self, joined: Joined, dscp: u8) {
        let mut state = self.device.fabric.lock();
        state.code_points.insert(dscp);
        if let Some(pair) = state.pairs.get_mut(&self.number) {
            pair.joined = Some(joined);
        }
    }
}

impl QueuePair for FakeQueuePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn inline_bytes_max(&self) -> usize {
        self.device.options.inline_bytes_max
    }

    fn connect(&self, _first_packet: u32, from: &Origin, peer: &PathEnd) -> Result<(), VerbsError> {
        let route = find_path(&self.device, from, peer)?;
        let (port, mtu_bytes) = (from.port, from.port.mtu_bytes.min(peer.mtu_bytes));
        self.join(
            Joined { peer: peer.queue_pair, port, route, mtu_bytes },
            from.marks.code_point().unwrap_or(0),
        );
        Ok(())
    }

    unsafe fn post_sends(&self, requests: &[SendRequest]) -> Result<(), VerbsError> {
        let mut state = self.device.fabric.lock();
        state.note_chain(requests.len());
        for request in requests {
            assert!(!request.inline || request.segment.length as usize <= self.inline_bytes_max());
            if !state.post_send(self.number, *request) {
                return Err(refusal(&self.device, "ibv_post_send", libc::ENOMEM));
            }
        }
        Ok(())
    }

    fn post_empty(&self, count: u32) -> Result<(), VerbsError> {
        self.device.fabric.lock().post_empty(self.number, count);
        Ok(())
    }

    fn provide(&self, count: u32) -> Result<(), VerbsError> {
        self.device.fabric.lock().provide(self.number, count);
        Ok(())
    }

    fn fail(&self) {
        self.device.fabric.lock().fail(self.number);
    }

    fn attach(&self, group: GroupAddress) -> Result<(), VerbsError> {
        let mut state = self.device.fabric.lock();
        assert!(
            state.subnet.has(group, self.device.port.link_layer),
            "nobody has joined {group:?}"
        );
        state.groups.insert((group, self.number));
        Ok(())
    }

    fn detach(&self, group: GroupAddress) {
        self.device.fabric.lock().groups.remove(&(group, self.number));
    }

    fn renew(&self) -> Result<(), VerbsError> {
        self.device.fabric.lock().renew(self.number);
        Ok(())
    }
}

impl Drop for FakeQueuePair {
    fn drop(&mut self) {
        let mut state = self.device.fabric.lock();
        state.remove_pair(self.number);
        assert!(state.groups.iter().all(|(_, pair)| *pair != self.number), "it hears a group");
    }
}

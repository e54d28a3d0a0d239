//! What happens on the fabric: everything under one lock.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use kestrel_core::{memory::Piece, window::Change};
use rustix::fd::OwnedFd;

use super::{Tally, group::Subnet, manager::Exchange};
use crate::device::Port;
use crate::partition;
use crate::path::Route;
use crate::verbs::{
    Completion, Destination, EVERYBODY, GRH_BYTES, GroupAddress, LocalPort, ReceiveRequest,
    RemoteAccess, RemoteMemory, Role, Segment, SendRequest, Status, Verb,
};

/// A stretch of registered memory: what its key allows.
pub(super) struct Registered {
    pub start: u64,
    pub bytes: usize,
    pub remote: RemoteAccess,
}

/// The queues of an endpoint.
pub(super) struct QueueState {
    pub receives_max: usize,
    pub posted: VecDeque<ReceiveRequest>,
    pub receives: VecDeque<Completion>,
    pub sends: VecDeque<Completion>,
    pub armed: bool,
    pub channel: Arc<OwnedFd>,
}

/// A queue pair.
pub(super) struct Pair {
    /// Its device's.
    lid: u16,
    gids: Vec<[u8; 16]>,
    pub queues: u64,
    pub sends_max: usize,
    pub role: Role,
    pub joined: Option<Joined>,
    pub failed: bool,
    /// Posted and not carried out; inline ones keep their bytes.
    waiting: VecDeque<Waiting>,
    /// Carried out without a signal since the last signal: they still take room.
    unsignalled: usize,
}

/// How a queue pair is joined with its peer's.
#[derive(Clone, Copy)]
pub(super) struct Joined {
    pub peer: u32,
    pub port: LocalPort,
    pub route: Route,
}

impl Joined {
    /// A device drops packets of other partitions, and those that come from elsewhere than what the
    /// queue pair is joined with.
    fn fits(&self, back: &Joined) -> bool {
        partition::is_same(self.port.partition_key, back.port.partition_key)
            && leads(&self.route, back.port.lid, &[back.port.gid])
            && leads(&back.route, self.port.lid, &[self.port.gid])
    }
}

fn leads(route: &Route, lid: u16, gids: &[[u8; 16]]) -> bool {
    route.lid == lid && route.global.is_none_or(|global| gids.contains(&global.gid))
}

struct Waiting {
    request: SendRequest,
    bytes: Vec<u8>,
}

#[derive(Default)]
pub(super) struct State {
    devices: usize,
    next: u32,
    pub regions: HashMap<u32, Registered>,
    pub queues: HashMap<u64, QueueState>,
    pub pairs: HashMap<u32, Pair>,
    /// Address handles that exist, and where they lead.
    pub handles: HashMap<u64, GroupAddress>,
    /// Who hears which group.
    pub groups: HashSet<(GroupAddress, u32)>,
    /// What the manager of InfiniBand's subnet knows.
    pub subnet: Subnet,
    /// No memory of applications can be registered.
    pub refusing: bool,
    /// No atomic operation is carried out.
    pub refusing_atomics: bool,
    /// Datagrams that will be lost.
    pub losing: usize,
    pub failing: Option<(usize, Status)>,
    /// What ways were made with.
    pub code_points: BTreeSet<u8>,
    /// By which ports ways were made, and how they go.
    pub paths: Vec<(LocalPort, Route)>,
    held: bool,
    /// What is sent arrives, and who sent it is not told.
    pub unacknowledged: bool,
    tally: Tally,
    /// The connection managers.
    pub exchange: Exchange,
}

impl State {
    pub(super) fn next_device(&mut self) -> usize {
        self.devices += 1;
        self.devices
    }

    /// A number that nothing had before.
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Sends are about to be posted, so many at once.
    pub(super) fn note_chain(&mut self, length: usize) {
        self.tally.chains += u64::from(length > 0);
    }

    pub(super) fn tally(&self) -> Tally {
        let registered = self.regions.values().map(|region| region.bytes).sum();
        let address_handles = self.handles.len();
        let (managed, ids) = self.exchange.count();
        let (queue_pairs, members) = (self.pairs.len(), self.subnet.members());
        Tally { queue_pairs, registered, address_handles, managed, ids, members, ..self.tally }
    }

    pub(super) fn add_pair(
        &mut self,
        port: &Port,
        queues: u64,
        sends_max: usize,
        role: Role,
    ) -> u32 {
        let number = self.number();
        let (lid, gids) = (port.lid, port.gids.iter().map(|gid| gid.address.octets()).collect());
        let (joined, failed, waiting, unsignalled) = (None, false, VecDeque::new(), 0);
        let pair =
            Pair { lid, gids, queues, sends_max, role, joined, failed, waiting, unsignalled };
        self.pairs.insert(number, pair);
        number
    }

    /// Whether packets that go that way come to where the queue pair is. To nobody's any way leads.
    pub(super) fn leads_to(&self, route: &Route, number: u32) -> bool {
        self.pairs.get(&number).is_none_or(|pair| leads(route, pair.lid, &pair.gids))
    }

    /// Where a queue pair is: its device's LID, and the first of its GIDs.
    pub(super) fn place_of(&self, number: u32) -> Option<(u16, [u8; 16])> {
        self.pairs.get(&number).map(|pair| (pair.lid, pair.gids[0]))
    }

    pub(super) fn break_all(&mut self) {
        let numbers: Vec<u32> = self.pairs.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.fail(number));
    }

    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
        let numbers: Vec<u32> = self.pairs.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.carry(number));
    }

    /// Into the error state: what waits is flushed.
    pub(super) fn fail(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.failed = true;
            for waiting in std::mem::take(&mut pair.waiting) {
                self.complete_send(number, waiting.request.request, Status::FLUSHED);
            }
        }
    }

    /// Out of the error state.
    pub(super) fn renew(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            assert!(matches!(pair.role, Role::Datagrams { .. }), "connected ones stay in error");
            pair.failed = false;
            pair.unsignalled = 0;
        }
    }

    /// Whether the segment lies in registered memory, as its key says.
    pub(super) fn is_local(&self, segment: &Segment) -> bool {
        let region = self.regions.get(&segment.local_key);
        region.is_some_and(|region| region.holds(segment.address, segment.length as usize))
    }

    /// Takes a request over; false if the queue is full.
    pub(super) fn post_send(&mut self, number: u32, request: SendRequest) -> bool {
        assert!(request.inline || request.segment.length == 0 || self.is_local(&request.segment));
        if let Verb::Datagram(to) = request.verb {
            assert!(self.handles.contains_key(&to.handle), "an address handle that is gone");
        }
        let Some(pair) = self.pairs.get_mut(&number) else {
            return false;
        };
        if pair.waiting.len() + pair.unsignalled >= pair.sends_max {
            return false;
        }
        let changes = matches!(request.verb, Verb::Write(_) | Verb::Atomic(..));
        let reads = |waiting: &Waiting| matches!(waiting.request.verb, Verb::Read(_));
        let overtakes = changes && !request.fenced && pair.waiting.iter().any(reads);
        assert!(!overtakes, "a device may do it before the read in front of it");
        let mut bytes = Vec::new();
        if request.inline {
            self.tally.inline += 1;
            piece_at(request.segment.address, request.segment.length).append_to(&mut bytes);
        }
        pair.waiting.push_back(Waiting { request, bytes });
        if pair.failed {
            self.fail(number)
        } else {
            self.carry(number)
        }
        true
    }

    /// Carries out what waits.
    fn carry(&mut self, number: u32) {
        while !self.held
            && let Some(pair) = self.pairs.get_mut(&number)
            && let Some(mut waiting) = pair.waiting.pop_front()
        {
            let Segment { address, length, .. } = waiting.request.segment;
            let sends = !matches!(waiting.request.verb, Verb::Read(_) | Verb::Atomic(..));
            if !waiting.request.inline && sends {
                piece_at(address, length).append_to(&mut waiting.bytes);
            }
            let status = match &mut self.failing {
                Some((count, status)) if *count > 0 => {
                    *count -= 1;
                    *status
                }
                _ => self.carry_one(number, &waiting),
            };
            if status == Status::SUCCESS {
                self.tally.carried += 1;
            }
            // Without an answer a device tries for long, whether there is somebody or not.
            if self.unacknowledged && matches!(status, Status::SUCCESS | Status::RETRIES_EXCEEDED) {
                self.note_unsignalled(number);
                continue;
            }
            if status != Status::SUCCESS || waiting.request.signalled {
                self.complete_send(number, waiting.request.request, status);
            } else {
                self.note_unsignalled(number);
            }
            if status != Status::SUCCESS {
                self.fail(number);
            }
        }
    }

    fn note_unsignalled(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.unsignalled += 1;
        }
    }

    fn carry_one(&mut self, number: u32, waiting: &Waiting) -> Status {
        if let Verb::Datagram(to) = waiting.request.verb {
            self.carry_datagram(to, &waiting.bytes);
            return Status::SUCCESS;
        }
        let Some(joined) = self.pairs.get(&number).and_then(|pair| pair.joined) else {
            return Status::RETRIES_EXCEEDED;
        };
        let to = joined.peer;
        let Some(peer) = self.pairs.get(&to) else {
            return Status::RETRIES_EXCEEDED;
        };
        let hears = |back: Joined| back.peer == number && joined.fits(&back);
        if peer.failed || !peer.joined.is_some_and(hears) {
            return Status::RETRIES_EXCEEDED;
        }
        let (queues, role) = (peer.queues, peer.role);
        if matches!(role, Role::Admits(_)) {
            self.tally.reached += 1;
        }
        match waiting.request.verb {
            Verb::Write(remote) => self.write(remote, role.admits(), &waiting.bytes),
            Verb::Read(remote) => self.read(remote, role.admits(), &waiting.request.segment),
            Verb::Atomic(remote, change) => {
                self.change(remote, role.admits(), change, &waiting.request.segment)
            }
            Verb::Send if role == Role::Receives => self.deliver(to, queues, &waiting.bytes),
            Verb::Send | Verb::Datagram(_) => {
                self.tally.not_ready += 1;
                Status::RECEIVER_NOT_READY
            }
        }
    }

    /// Nobody says what has become of a datagram.
    fn carry_datagram(&mut self, to: Destination, bytes: &[u8]) {
        if self.losing > 0 {
            self.losing -= 1;
            return;
        }
        if to.queue_pair == EVERYBODY {
            let place = self.handles[&to.handle];
            let hears = |(group, pair): &(GroupAddress, u32)| (*group == place).then_some(*pair);
            let all: Vec<u32> = self.groups.iter().filter_map(hears).collect();
            for queue_pair in all {
                self.take_datagram(Destination { queue_pair, ..to }, bytes);
            }
        } else {
            self.take_datagram(to, bytes);
        }
    }

    fn take_datagram(&mut self, to: Destination, bytes: &[u8]) {
        let Some(pair) = self.pairs.get(&to.queue_pair).filter(|pair| !pair.failed) else {
            return;
        };
        if pair.role != (Role::Datagrams { key: to.key }) {
            return;
        }
        let queues = pair.queues;
        if self.queues.get(&queues).is_none_or(|queues| queues.posted.is_empty()) {
            self.tally.overrun += 1;
            return;
        }
        let mut whole = vec![0xdb; GRH_BYTES];
        whole.extend_from_slice(bytes);
        self.deliver(to.queue_pair, queues, &whole);
    }

    fn write(&mut self, remote: RemoteMemory, admits: RemoteAccess, bytes: &[u8]) -> Status {
        if bytes.is_empty() {
            return if admits.write { Status::SUCCESS } else { Status::REMOTE_INVALID };
        }
        let region = self.regions.get(&remote.key).filter(|region| region.remote.write);
        if !admits.write || !region.is_some_and(|region| region.holds(remote.address, bytes.len()))
        {
            return Status::REMOTE_ACCESS;
        }
        if remote.address.is_multiple_of(8) && bytes.len().is_multiple_of(8) {
            write_words(remote.address, bytes);
        } else {
            piece_at(remote.address, bytes.len() as u32).fill(bytes);
        }
        Status::SUCCESS
    }

    fn read(&mut self, remote: RemoteMemory, admits: RemoteAccess, to: &Segment) -> Status {
        let length = to.length as usize;
        let region = self.regions.get(&remote.key).filter(|region| region.remote.read);
        if !admits.read || !region.is_some_and(|region| region.holds(remote.address, length)) {
            return Status::REMOTE_ACCESS;
        }
        // What was registered when it was posted may not be any more.
        if !self.is_local(to) {
            return Status::LOCAL_PROTECTION;
        }
        piece_at(remote.address, to.length).copy_to(piece_at(to.address, to.length));
        Status::SUCCESS
    }

    /// As a device does it: in one step towards other devices, not towards processors.
    fn change(
        &mut self,
        remote: RemoteMemory,
        admits: RemoteAccess,
        change: Change,
        to: &Segment,
    ) -> Status {
        if !remote.address.is_multiple_of(8) || self.refusing_atomics {
            return Status::REMOTE_INVALID;
        }
        let region = self.regions.get(&remote.key).filter(|region| region.remote.atomic);
        if !admits.atomic || !region.is_some_and(|region| region.holds(remote.address, 8)) {
            return Status::REMOTE_ACCESS;
        }
        if !self.is_local(to) || to.length != 8 {
            return Status::LOCAL_PROTECTION;
        }
        let mut bytes = Vec::new();
        piece_at(remote.address, 8).append_to(&mut bytes);
        let before = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let after = match change {
            Change::Add(value) => before.wrapping_add(value),
            Change::Swap { expected, value } if expected == before => value,
            Change::Swap { .. } => before,
        };
        write_words(remote.address, &after.to_ne_bytes());
        write_words(to.address, &before.to_ne_bytes());
        self.tally.atomics += 1;
        Status::SUCCESS
    }

    fn deliver(&mut self, to: u32, queues: u64, bytes: &[u8]) -> Status {
        let Some(receive) = self.queues.get_mut(&queues).and_then(|q| q.posted.pop_front()) else {
            self.tally.not_ready += 1;
            return Status::RECEIVER_NOT_READY;
        };
        if !self.is_local(&receive.segment) || (receive.segment.length as usize) < bytes.len() {
            return Status::REMOTE_INVALID;
        }
        piece_at(receive.segment.address, receive.segment.length).fill(bytes);
        let completion = Completion {
            request: receive.request,
            status: Status::SUCCESS,
            bytes: bytes.len() as u32,
            queue_pair: to,
        };
        if let Some(queues) = self.queues.get_mut(&queues) {
            queues.receives.push_back(completion);
            queues.notify();
        }
        Status::SUCCESS
    }

    fn complete_send(&mut self, number: u32, request: u64, status: Status) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.unsignalled = 0;
        let completion = Completion { request, status, bytes: 0, queue_pair: number };
        if let Some(queues) = self.queues.get_mut(&pair.queues) {
            queues.sends.push_back(completion);
            queues.notify();
        }
    }
}

impl QueueState {
    pub(super) fn notify(&mut self) {
        if std::mem::take(&mut self.armed) {
            // The counter of an eventfd that is drained at each arming cannot fill up.
            let _ = rustix::io::write(&self.channel, &1u64.to_ne_bytes());
        }
    }
}

impl Registered {
    fn holds(&self, address: u64, length: usize) -> bool {
        let offset = address.checked_sub(self.start);
        offset.is_some_and(|offset| {
            (offset as usize).checked_add(length).is_some_and(|end| end <= self.bytes)
        })
    }
}

/// A stretch of this process's memory that was checked against its key.
fn piece_at(address: u64, length: u32) -> Piece {
    // SAFETY: the caller has found the stretch in registered memory, which is deregistered under
    // the lock that is held, or it is that of an inline request, whose poster waits.
    unsafe { Piece::new(address as *mut u8, length as usize) }
}

/// Writes as a device does, whole words at a time: the other side may be reading.
fn write_words(address: u64, bytes: &[u8]) {
    for (nth, word) in bytes.chunks_exact(8).enumerate() {
        let to = (address as usize + nth * 8) as *mut u64;
        // SAFETY: the stretch was found in memory that is registered for writing, and is
        // deregistered under the lock that is held; both sides use it as atomic words.
        let to = unsafe { std::sync::atomic::AtomicU64::from_ptr(to) };
        let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        to.store(word, std::sync::atomic::Ordering::Release);
    }
}

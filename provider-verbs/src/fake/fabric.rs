//! What happens on the fabric: everything under one lock.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::{
    Tally,
    group::Subnet,
    joined::{Joined, leads},
    manager::Exchange,
    memory::{Registered, piece_at},
    objects::QueueState,
    overtaken::Overtaken,
};
use crate::device::Port;
use crate::path::Route;
use crate::receive_pool::SLAB_BYTES;
use crate::trouble::Trouble;
use crate::verbs::{
    Completion, Destination, EMPTY, EVERYBODY, GRH_BYTES, GroupAddress, LocalPort, Role, Segment,
    SendRequest, Status, Verb,
};

/// A request that is done, of which nothing is to be said.
pub(super) const DONE: Completion = Completion {
    request: 0,
    status: Status::SUCCESS,
    bytes: 0,
    immediate: None,
    queue_pair: 0,
    sender: 0,
};

/// A queue pair.
pub(super) struct Pair {
    pub device: usize,
    /// Its device or its queue is gone: nothing that is posted completes.
    pub gone: bool,
    /// Its device's.
    lid: u16,
    gids: Vec<[u8; 16]>,
    pub queues: u64,
    pub sends_max: usize,
    pub role: Role,
    pub joined: Option<Joined>,
    pub failed: bool,
    /// Receives of nothing that are posted.
    pub empty: u32,
    /// Posted and not carried out; inline ones keep their bytes.
    pub(super) waiting: VecDeque<Waiting>,
    /// Carried out without a signal since the last signal: they still take room.
    unsignalled: usize,
}

pub(super) struct Waiting {
    pub(super) request: SendRequest,
    pub(super) bytes: Vec<u8>,
    /// That its receiver has no buffer was counted.
    pub(super) not_ready: bool,
}

/// How a request ended.
pub(super) struct Outcome {
    status: Status,
    /// By the peer's device.
    is_refused: bool,
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
    /// The next queue pair is not made, but a bug is met.
    pub buggy: bool,
    /// No atomic operation is carried out.
    pub refusing_atomics: bool,
    /// Whatever is posted for datagrams is filled at once, with what nobody understands.
    pub flooding: bool,
    /// Datagrams that will be lost.
    pub losing: usize,
    pub failing: Option<(usize, Status)>,
    /// Operations of windows whose answers will be lost.
    pub losing_answers: usize,
    /// What ways were made with.
    pub code_points: BTreeSet<u8>,
    /// By which ports ways were made, and how they go: each once.
    pub(super) paths: Vec<(LocalPort, Route)>,
    pub(super) held: bool,
    /// What is sent arrives, and who sent it is not told.
    pub unacknowledged: bool,
    pub(super) tally: Tally,
    /// Queue pairs whose next request waits until its receiver has a buffer.
    pub(super) not_ready: BTreeSet<u32>,
    /// What devices have to say of themselves.
    pub troubles: Vec<(usize, Trouble)>,
    /// The connection managers.
    pub exchange: Exchange,
    /// Writes that later ones may overtake.
    pub overtaken: Overtaken,
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

    /// An end has found its way.
    pub(super) fn note_path(&mut self, port: LocalPort, route: Route) {
        self.tally.paths += 1;
        if !self.paths.contains(&(port, route)) {
            self.paths.push((port, route));
        }
    }

    pub(super) fn tally(&self) -> Tally {
        let bytes = || self.regions.values().map(|region| region.bytes);
        let registered = bytes().sum();
        let slabs = bytes().filter(|bytes| *bytes == SLAB_BYTES).sum();
        let address_handles = self.handles.len();
        let (managed, ids) = self.exchange.count();
        let (queue_pairs, members) = (self.pairs.len(), self.subnet.members());
        Tally {
            queue_pairs,
            registered,
            slabs,
            address_handles,
            managed,
            ids,
            members,
            ..self.tally
        }
    }

    pub(super) fn add_pair(
        &mut self,
        device: usize,
        port: &Port,
        queues: u64,
        sends_max: usize,
        role: Role,
    ) -> u32 {
        let number = self.number();
        let (lid, gids) = (port.lid, port.gids.iter().map(|gid| gid.address.octets()).collect());
        let pair = Pair {
            device,
            gone: false,
            lid,
            gids,
            queues,
            sends_max,
            role,
            joined: None,
            failed: false,
            empty: 0,
            waiting: VecDeque::new(),
            unsignalled: 0,
        };
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

    pub(super) fn break_all(&mut self, with: impl Fn(Role) -> bool) {
        let broken = self.pairs.iter().filter(|(_, pair)| with(pair.role));
        let numbers: Vec<u32> = broken.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.fail(number));
    }

    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
        let numbers: Vec<u32> = self.pairs.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.carry(number));
    }

    /// Into the error state: what waits is flushed.
    pub(super) fn fail(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number).filter(|pair| !pair.gone) {
            pair.failed = true;
            let (empty, waiting, joined) =
                (std::mem::take(&mut pair.empty), std::mem::take(&mut pair.waiting), pair.joined);
            for _ in 0..empty {
                let status = Status::FLUSHED;
                let flushed = Completion { request: EMPTY, status, queue_pair: number, ..DONE };
                self.complete_receive(flushed);
            }
            let late = self.overtaken.take(number);
            for waiting in late.into_iter().chain(waiting) {
                self.complete_send(number, waiting.request.request, Status::FLUSHED);
            }
            self.flush_own(number);
            if let Some(joined) = joined {
                // Who waits for a receive of nothing is not answered any more.
                self.carry(joined.peer);
            }
        }
    }

    /// It exists no more: who waits for it goes on, and is not answered.
    pub(super) fn remove_pair(&mut self, number: u32) {
        self.overtaken.take(number);
        self.reclaim(number);
        if let Some(joined) = self.pairs.remove(&number).and_then(|pair| pair.joined) {
            self.carry(joined.peer);
        }
    }

    /// Out of the error state.
    pub(super) fn renew(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            assert!(matches!(pair.role, Role::Datagrams { .. }), "connected ones stay in error");
            pair.failed = false;
            pair.unsignalled = 0;
            self.reclaim(number);
        }
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
        if pair.gone {
            return true;
        }
        let late = usize::from(self.overtaken.has(number));
        if pair.waiting.len() + pair.unsignalled + late >= pair.sends_max {
            return false;
        }
        let changes =
            matches!(request.verb, Verb::Write(_) | Verb::WriteImmediate(..) | Verb::Atomic(..));
        let reads = |waiting: &Waiting| matches!(waiting.request.verb, Verb::Read(_));
        let overtakes = changes && !request.fenced && pair.waiting.iter().any(reads);
        assert!(!overtakes, "a device may do it before the read in front of it");
        let mut bytes = Vec::new();
        if request.inline {
            self.tally.inline += 1;
            piece_at(request.segment.address, request.segment.length).append_to(&mut bytes);
        }
        pair.waiting.push_back(Waiting { request, bytes, not_ready: false });
        if pair.failed {
            self.fail(number)
        } else {
            self.carry(number)
        }
        true
    }

    /// Carries out what waits.
    pub(super) fn carry(&mut self, number: u32) {
        while !self.held
            && !self.must_wait(number)
            && let Some(pair) = self.pairs.get_mut(&number).filter(|pair| !pair.gone)
            && let Some(mut waiting) = pair.waiting.pop_front()
        {
            let Segment { address, length, .. } = waiting.request.segment;
            let sends = !matches!(waiting.request.verb, Verb::Read(_) | Verb::Atomic(..));
            if !waiting.request.inline && sends {
                piece_at(address, length).append_to(&mut waiting.bytes);
            }
            if let Some(waiting) = self.unless_late(number, waiting) {
                let outcome = self.carry_out(number, &waiting);
                self.conclude(number, waiting.request, outcome);
            }
        }
    }

    pub(super) fn carry_out(&mut self, number: u32, waiting: &Waiting) -> Outcome {
        let (status, is_refused) = match &mut self.failing {
            Some((count, status)) if *count > 0 => {
                *count -= 1;
                (*status, false)
            }
            _ => {
                let status = self.carry_one(number, waiting);
                let is_refused = matches!(status, Status::REMOTE_ACCESS | Status::REMOTE_INVALID);
                (self.heard(number, status), is_refused)
            }
        };
        if status == Status::SUCCESS {
            self.tally.carried += 1;
        }
        Outcome { status, is_refused }
    }

    /// What comes of how a request ended.
    pub(super) fn conclude(&mut self, number: u32, request: SendRequest, outcome: Outcome) {
        let Outcome { status, is_refused } = outcome;
        // Without an answer a device tries for long, whether there is somebody or not.
        if self.unacknowledged && matches!(status, Status::SUCCESS | Status::RETRIES_EXCEEDED) {
            return self.note_unsignalled(number);
        }
        if status != Status::SUCCESS || request.signalled {
            self.complete_send(number, request.request, status);
        } else {
            self.note_unsignalled(number);
        }
        if status != Status::SUCCESS {
            self.fail(number);
        }
        if is_refused && let Some(joined) = self.pairs.get(&number).and_then(|pair| pair.joined) {
            // So is who refuses, and answers nothing any more.
            self.fail(joined.peer);
        }
    }

    /// What a queue pair hears of how its request ended.
    fn heard(&mut self, number: u32, status: Status) -> Status {
        let reaches = self.pairs.get(&number).is_some_and(|pair| pair.role == Role::Reaches);
        if self.losing_answers == 0 || !reaches {
            return status;
        }
        self.losing_answers -= 1;
        Status::RETRIES_EXCEEDED
    }

    fn note_unsignalled(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.unsignalled += 1;
        }
    }

    fn carry_one(&mut self, number: u32, waiting: &Waiting) -> Status {
        if let Verb::Datagram(to) = waiting.request.verb {
            self.carry_datagram(number, to, &waiting.bytes);
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
        if peer.failed || peer.gone || !peer.joined.is_some_and(hears) {
            return Status::RETRIES_EXCEEDED;
        }
        let role = peer.role;
        if matches!(role, Role::Admits { .. }) {
            self.tally.reached += 1;
        }
        match waiting.request.verb {
            Verb::Write(remote) => self.write(remote, role.admits(), &waiting.bytes),
            Verb::WriteImmediate(remote, data) => {
                let status = self.write(remote, role.admits(), &waiting.bytes);
                if status == Status::SUCCESS {
                    return self.tell_written(to, waiting.bytes.len() as u32, data);
                }
                status
            }
            Verb::Read(remote) => self.read(remote, role.admits(), &waiting.request.segment),
            Verb::Atomic(remote, change) => {
                self.change(remote, role.admits(), change, &waiting.request.segment)
            }
            Verb::Send if role == Role::Receives => self.deliver(number, to, &waiting.bytes),
            Verb::Send | Verb::Datagram(_) => {
                self.tally.not_ready += 1;
                Status::RECEIVER_NOT_READY
            }
        }
    }

    /// Nobody says what has become of a datagram.
    fn carry_datagram(&mut self, from: u32, to: Destination, bytes: &[u8]) {
        if self.losing > 0 {
            self.losing -= 1;
            return;
        }
        if to.queue_pair == EVERYBODY {
            let place = self.handles[&to.handle];
            let hears = |(group, pair): &(GroupAddress, u32)| (*group == place).then_some(*pair);
            let all: Vec<u32> = self.groups.iter().filter_map(hears).collect();
            for queue_pair in all {
                self.take_datagram(from, Destination { queue_pair, ..to }, bytes);
            }
        } else {
            self.take_datagram(from, to, bytes);
        }
    }

    fn take_datagram(&mut self, from: u32, to: Destination, bytes: &[u8]) {
        let Some(pair) = self.pairs.get(&to.queue_pair).filter(|pair| !pair.failed && !pair.gone)
        else {
            return;
        };
        if pair.role != (Role::Datagrams { key: to.key }) {
            return;
        }
        if self.lacks_receive(to.queue_pair) {
            self.tally.overrun += 1;
            return;
        }
        let mut whole = vec![0xdb; GRH_BYTES];
        whole.extend_from_slice(bytes);
        self.deliver(from, to.queue_pair, &whole);
    }

    /// Fills what is posted.
    pub(super) fn flood(&mut self, queues: u64) {
        let takes =
            |pair: &Pair| pair.queues == queues && matches!(pair.role, Role::Datagrams { .. });
        if let Some(to) = self.pairs.iter().find_map(|(to, pair)| takes(pair).then_some(*to)) {
            while self.deliver(0, to, &[0; GRH_BYTES]) == Status::SUCCESS {}
        }
    }

    fn deliver(&mut self, from: u32, to: u32, bytes: &[u8]) -> Status {
        let Some(receive) = self.take_receive(to) else {
            self.tally.not_ready += 1;
            return Status::RECEIVER_NOT_READY;
        };
        if !self.is_local(&receive.segment) || (receive.segment.length as usize) < bytes.len() {
            return Status::REMOTE_INVALID;
        }
        piece_at(receive.segment.address, receive.segment.length).fill(bytes);
        let (request, bytes) = (receive.request, bytes.len() as u32);
        let came = Completion { request, bytes, queue_pair: to, sender: from, ..DONE };
        self.complete_receive(came);
        Status::SUCCESS
    }

    /// A write with data takes a receive: of its own queue pair, or of the shared ones where that takes
    /// packets.
    fn tell_written(&mut self, to: u32, bytes: u32, data: u32) -> Status {
        let pair = self.pairs.get_mut(&to).filter(|pair| pair.empty > 0);
        let request = if let Some(pair) = pair {
            pair.empty -= 1;
            EMPTY
        } else {
            let Some(receive) = self.take_receive(to) else {
                return Status::RECEIVER_NOT_READY;
            };
            receive.request
        };
        self.tally.told += 1;
        let immediate = Some(data);
        let written = Completion { request, bytes, immediate, queue_pair: to, ..DONE };
        self.complete_receive(written);
        Status::SUCCESS
    }

    pub(super) fn complete_receive(&mut self, completion: Completion) {
        let queues = self.pairs.get(&completion.queue_pair).map_or(0, |pair| pair.queues);
        if let Some(queues) = self.queues.get_mut(&queues) {
            queues.receives.push_back(completion);
            queues.notify();
        }
    }

    fn complete_send(&mut self, number: u32, request: u64, status: Status) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.unsignalled = 0;
        let completion = Completion { request, status, queue_pair: number, ..DONE };
        if let Some(queues) = self.queues.get_mut(&pair.queues) {
            queues.sends.push_back(completion);
            queues.notify();
        }
    }
}

//! The engine: what owns an endpoint's matcher, operations and peers, and moves everything forward
//! when it is polled.
//!
//! One owner at a time ([`mod@unit`]), so nothing in here is atomic. The actions of the protocol are in
//! [`crate::protocol`]; this file has the state and the poll loop. In reading order:
//!
//! 1. State: [`peer`] is what is known of a peer, [`report`] how completions are told; [`regions`]
//!    are those found by their keys, `reserve` is memory for a copy that must not fail.
//! 2. Ownership: [`ownership`] has the rules, [`mod@unit`] an engine that any thread may post to, and
//!    `submission` what is left for the owner; `abandoned` is about one that panicked.
//! 3. Peers: [`route`] leads from an address to a peer, [`keys`] to one by its authorization key;
//!    `lifecycle` has them connect, arrive and die;
//!    `names` is about what peers are called, `source` about messages from nobody in the vector,
//!    [`context`] about scalable endpoints.
//!    `leaving` is about what has to leave though nobody may poll for it, `gone` gives the places of
//!    peers that are gone to others.
//! 4. Progress: [`progress`] has the helper threads, [`idle`] what a poller does that finds nothing,
//!    [`sleep`] who sleeps on the bell, [`driven`] how an event queue drives a unit.
//! 5. Order of completions: `order`, for endpoints that ask for one.
//! 6. Shortage: what waits for memory (`shortage`), or for a reader (`unread`).

// 1. State.
pub mod peer;
pub mod permitted;
pub mod regions;
pub mod report;
pub(crate) mod reserve;

// 2. Ownership.
#[allow(unsafe_code)]
mod abandoned;
pub mod ownership;
pub(crate) mod submission;
#[allow(unsafe_code)]
pub mod unit;

// 3. Peers.
pub mod context;
mod gone;
pub mod keys;
mod leaving;
mod lifecycle;
mod names;
pub mod route;
mod source;

// 4. Progress.
pub mod driven;
pub mod idle;
pub mod progress;
pub mod sleep;

// 5. Order of completions.
pub(crate) mod order;

// 6. Shortage.
pub(crate) mod shortage;
pub(crate) mod unread;

use std::{collections::HashMap, sync::Arc};

use crate::{
    address::Address,
    address_vector::{AddressVector, HeldKeys},
    auth_key::KeyNumber,
    buffering::{Buffering, BufferingSetup},
    connection::manager::Manager,
    endpoint::PostError,
    error::Cause,
    flags::Flags,
    memory_region::MemoryRegionRegistry,
    one_sided::RemoteOperation,
    operation::{Incoming, ReceiveOperation, SendOperation, Unexpected},
    pool::Pool,
    protocol::{
        atomic::ATOMIC_BYTES_MAX,
        claimed::ClaimedMessages,
        contest::Contests,
        context::FurtherContexts,
        datagram::Datagrams,
        fence::Fence,
        receive::canceled,
        remote_access::{scratch::Scratch, several::Several},
        single_copy::Copies,
    },
    shared_context::pool::SharedSeat,
    tag_match::Matcher,
    transport::{Limits, PeerIndex, Transport},
};
use gone::Vacancies;
use order::Orders;
use peer::Peer;
use permitted::Permitted;
use regions::KnownRegions;
use report::{OneSidedCounters, Side};
use reserve::Reserve;
use route::Routes;
use shortage::Shortage;
use unread::Unread;

/// Packets that one poll takes at most, so that a busy peer cannot keep the
/// caller from its own work.
pub const BURST_MAX: usize = 64;

/// Peers that a poll looks at of those with sends that are not confirmed: a poll of a rank that has sent to
/// thousands takes no longer.
const CONFIRMING_BURST: usize = 16;

/// What an endpoint is set up with when it is enabled.
pub struct Setup {
    /// Where sends complete.
    pub transmit: Side,
    /// Where receives complete.
    pub receive: Side,
    /// How messages are buffered and announced, if they are.
    pub buffering: Option<BufferingSetup>,
    /// Who the peers are.
    pub address_vector: Arc<AddressVector>,
    /// The keys that it is enabled with, if it has them from the address vector.
    pub keys: Option<Arc<HeldKeys>>,
    /// What counts one-sided operations.
    pub one_sided: OneSidedCounters,
    /// What peers may do to memory here at all.
    pub permitted: Permitted,
    /// The families of messages that can be received: `MSG`, `TAGGED`. Others are refused.
    pub hears: Flags,
    /// Whether atomic operations, ours and those on our memory, are for adapters alone.
    pub adapter_atomics: bool,
    /// Whether what comes from nobody in the vector completes with an error (`FI_SOURCE_ERR`).
    pub source_errors: bool,
    /// Whether an address in the vector may name a receive context (`FI_NAMED_RX_CTX`): for contexts also without that,
    /// or a message would go to another receive context without a word.
    pub names_contexts: bool,
    /// The memory that peers may reach.
    pub memory_regions: Arc<MemoryRegionRegistry>,
    /// Sends that may be under way.
    pub transmit_size: usize,
    /// A multi-receive buffer with less room is released. Units: bytes.
    pub multi_receive_min: usize,
    /// The longest message. Units: bytes.
    pub message_max: usize,
    /// The longest message or operation that is injected. Units: bytes.
    pub inject_size: usize,
    /// Unexpected payload to hold at most. Units: bytes.
    pub unexpected_budget: u64,
}

/// Why nothing is received any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The connection is over.
    Connection,
    /// What peers are reached through has failed, and there is no other way.
    Transport,
}

impl Over {
    /// What a receive is answered that no message is there for.
    pub(crate) fn refusal(self) -> PostError {
        match self {
            Over::Connection => PostError::NotConnected,
            Over::Transport => PostError::NoTransport,
        }
    }

    /// What ends a receive that was posted before.
    pub(crate) fn cause(self) -> Cause {
        match self {
            Over::Connection => canceled(),
            Over::Transport => Cause::of(&self.refusal()),
        }
    }
}

/// The state of one enabled endpoint.
pub struct Engine<T: Transport> {
    pub(crate) transport: T,
    /// Packets that the next poll takes at most.
    burst: usize,
    /// A posted receive was matched in this pass: the application may post more when it returns.
    pub(crate) has_news: bool,
    /// What is known of messages that found no memory.
    pub(crate) shortage: Shortage,
    /// What is known of remote data that nobody reads.
    unread: Unread,
    /// What is matched completes in order, or its data is written in order: so no message is placed, nor
    /// completes, before it was looked at whether its turn is now.
    pub(crate) receives_in_order: bool,
    /// Something may keep a whole message from going straight to its receive: an order, or who sent it.
    pub(crate) is_careful: bool,
    /// What no message is there for is not received any more.
    pub(crate) over: Option<Over>,
    /// Which pair of contexts of its endpoint it is: the first, of most endpoints the only one.
    pub(crate) context: u64,
    /// Which contexts of the pair are enabled, by their directions. Other endpoints have none.
    pub(crate) contexts: [bool; 2],
    pub(crate) limits: Limits,
    pub(crate) setup: Setup,
    pub(crate) peers: Vec<Peer>,
    /// Which of them nobody has.
    vacancies: Vacancies,
    pub(crate) by_address: HashMap<(Address, KeyNumber), PeerIndex>,
    /// Which of them are contexts of whom.
    pub(crate) further_contexts: FurtherContexts,
    /// The peers of addresses in the vector.
    routes: Routes,
    /// The count of changes that what peers are called is right for, without another look.
    pub(crate) sources_valid_for: u64,
    /// The count of changes everywhere when peers were last named, where other processes share the
    /// vector.
    pub(crate) sources_made_for: u64,
    pub(crate) tagged: Matcher,
    pub(crate) untagged: Matcher,
    pub(crate) sends: Pool<SendOperation>,
    pub(crate) receives: Pool<ReceiveOperation>,
    pub(crate) unexpected: Pool<Unexpected>,
    pub(crate) incoming: Pool<Incoming>,
    pub(crate) remotes: Pool<RemoteOperation>,
    /// For copies of what is injected.
    pub(crate) reserve: Reserve,
    pub(crate) regions: KnownRegions,
    /// Operands and results of the atomic at hand; made with the first one.
    pub(crate) scratch: Scratch,
    /// What there is of connections: nothing in an endpoint that has none.
    pub(crate) manager: Option<Box<Manager>>,
    /// What there is of datagrams: nothing in an endpoint whose messages are not.
    pub(crate) datagrams: Option<Box<Datagrams>>,
    /// Threads that sleep until the bell rings: see [`sleep`].
    sound_sleepers: u32,
    /// Whom the drain under way waits for; none, where no drain is.
    awaited: Option<leaving::Awaited>,
    /// Peers with something to push.
    pub(crate) backlog: Vec<PeerIndex>,
    /// Operations that go through windows, and messages that are fetched through them.
    pub(crate) in_windows: u32,
    /// Peers with sends that are not confirmed yet.
    pub(crate) confirming: Vec<PeerIndex>,
    /// Where among them the next look begins.
    pub(crate) next_confirming: usize,
    /// Messages that go from buffer to buffer.
    pub(crate) copies: Copies,
    /// Messages that are fetched by an adapter, and not wholly asked for yet.
    pub(crate) fetches: Vec<u32>,
    /// Whether packets are faster than what goes from buffer to buffer.
    pub(crate) contests: Contests,
    /// Messages claimed by a peek, by context.
    pub(crate) claimed: ClaimedMessages,
    /// What there is of messages that are announced: nothing in an endpoint that buffers none.
    pub(crate) buffering: Option<Box<Buffering>>,
    /// Where receives are posted, if not here.
    pub(crate) shared: Option<SharedSeat>,
    /// A message that no receive here asks for is offered: to shared receives, or the application.
    pub(crate) offers: bool,
    /// What all peers together could make us hold: the sum of their windows.
    pub(crate) windows: u64,
    /// The cost of what came by lanes that have ended, and waits for a receive.
    pub(crate) left_behind: u64,
    /// What was posted before fences and is not complete, where an endpoint is several peers.
    pub(crate) fences: Vec<Fence>,
    /// What waits for its turn.
    pub(crate) orders: Orders,
}

impl<T: Transport> Engine<T> {
    /// An engine over an open transport.
    pub fn new(mut transport: T, setup: Setup) -> Self {
        if let Some(keys) = &setup.keys {
            transport.take_keys(Some(&keys.ring));
        }
        let mut engine = Engine {
            limits: transport.limits(),
            transport,
            burst: 1,
            has_news: false,
            shortage: Shortage::default(),
            unread: Unread::new(setup.unexpected_budget),
            receives_in_order: false,
            is_careful: false,
            over: None,
            context: 0,
            contexts: [false; 2],
            manager: None,
            datagrams: None,
            peers: Vec::new(),
            vacancies: Vacancies::default(),
            by_address: HashMap::new(),
            further_contexts: FurtherContexts::default(),
            routes: Routes::new(setup.address_vector.source_mask()),
            sources_valid_for: 0,
            sources_made_for: 0,
            tagged: Matcher::new(),
            untagged: Matcher::new(),
            sends: Pool::with_capacity(setup.transmit_size),
            receives: Pool::default(),
            unexpected: Pool::default(),
            incoming: Pool::default(),
            remotes: Pool::default(),
            // What an atomic operation sends and compares with is two operands.
            reserve: Reserve::new(setup.inject_size.max(2 * ATOMIC_BYTES_MAX)),
            regions: KnownRegions::new(setup.memory_regions.clone()),
            scratch: Scratch::default(),
            sound_sleepers: 0,
            awaited: None,
            backlog: Vec::new(),
            in_windows: 0,
            confirming: Vec::new(),
            next_confirming: 0,
            copies: Copies::default(),
            fetches: Vec::new(),
            contests: Contests::default(),
            claimed: ClaimedMessages::default(),
            shared: None,
            offers: setup.buffering.is_some(),
            buffering: Buffering::new(setup.buffering.as_ref(), setup.receive.queue.as_ref()),
            windows: 0,
            left_behind: 0,
            fences: Vec::new(),
            orders: Orders::default(),
            setup,
        };
        engine.line_up_sends();
        engine.line_up_receives();
        engine
    }

    /// A poll in the middle of something else.
    pub fn progress(&mut self) -> bool {
        if self.has_event() {
            self.take_events();
        }
        let moved = self.take_and_push(BURST_MAX);
        self.flush();
        moved
    }

    /// Takes a burst of at most `most` packets, and pushes what waits. Returns whether anything
    /// moved. Cost: no system call, no allocation, no lock.
    #[inline(always)]
    pub fn progress_with(&mut self, most: usize) -> bool {
        if self.has_event() {
            self.take_events();
            self.give_back_places();
        }
        let moved = self.take_and_push(most);
        self.flush();
        moved
    }

    #[inline(always)]
    fn take_and_push(&mut self, most: usize) -> bool {
        if !self.knows_sources() {
            return false;
        }
        let mut finished = self.in_windows > 0 && self.take_finished();
        if !self.confirming.is_empty() {
            finished |= self.take_confirmed_of_some(CONFIRMING_BURST);
        }
        let mut packets = 0;
        let burst = self.burst.min(most);
        self.has_news = false;
        while packets < burst {
            let Some(arrival) = self.transport.arrival() else {
                break;
            };
            if !self.deliver(arrival) {
                if !self.has_news {
                    // Its sender may be away for long: others are not kept waiting.
                    packets += self.take_elsewhere(burst - packets);
                    self.transport.pass_over();
                }
                break;
            }
            packets += 1;
        }
        if packets == self.burst {
            packets += self.take_elsewhere(most.saturating_sub(packets));
        }
        // A line that the peer has not written yet is best left alone: looking at
        // it costs a trip between the cores, and the caller would wait for it
        // before it can answer. So after a silence one packet is taken; a second
        // look is worth while when the first look of a poll finds something. Other peers'
        // lines are looked at: what they sent before it would seem to be late otherwise.
        self.burst = if packets > 0 { BURST_MAX.min(self.burst * 2) } else { 1 };
        if self.backlog.is_empty() && self.copies.is_empty() {
            return finished || packets > 0;
        }
        self.push_backlog(finished || packets > 0)
    }

    /// Takes up to `most` packets of peers that have not spoken yet in this poll.
    #[inline(always)]
    fn take_elsewhere(&mut self, most: usize) -> usize {
        let mut packets = 0;
        while packets < most {
            match self.transport.arrival_elsewhere() {
                Some(arrival) if self.deliver(arrival) => packets += 1,
                _ => break,
            }
        }
        packets
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn push_backlog(&mut self, mut moved: bool) -> bool {
        let mut index = 0;
        while index < self.backlog.len() {
            let peer = self.backlog[index];
            moved |= self.pump(peer);
            if self.peers[peer as usize].can_work() {
                index += 1;
            } else {
                self.peers[peer as usize].in_backlog = false;
                self.backlog.swap_remove(index);
            }
        }
        moved | self.pull_on() | self.help_on()
    }

    /// Remembers that `peer` has something to push.
    pub(crate) fn note_backlog(&mut self, peer: PeerIndex) {
        let record = &mut self.peers[peer as usize];
        record.settle();
        if !record.in_backlog && record.can_work() {
            record.in_backlog = true;
            self.backlog.push(peer);
            self.wake_sound_sleepers();
        }
    }

    /// Has leave what was pushed, at the end of a call.
    #[inline(always)]
    pub(crate) fn flush(&mut self) {
        self.transport.flush();
    }

    /// Has leave what was pushed, unless the call says in its `flags` that another follows at once:
    /// whatever comes next, a poll as well, has it leave then.
    #[inline(always)]
    pub(crate) fn flush_unless_more(&mut self, flags: Flags) {
        if !flags.contains(Flags::MORE) {
            self.flush();
        }
    }

    /// How many sends or one-sided operations fit beside those under way.
    pub fn sends_left(&self) -> usize {
        let left = self.setup.transmit_size.saturating_sub(self.under_way());
        if self.sends_to_carried_groups() { left.min(self.transport.group_room()) } else { left }
    }
}

impl<T: Transport> Drop for Engine<T> {
    /// Says goodbye to connected peers. "Discarded operations will silently be dropped, with no
    /// completions reported" (fi_endpoint(3)): also those that fail while others leave.
    fn drop(&mut self) {
        self.setup.transmit = self.setup.transmit.silenced();
        self.setup.receive = Side::default();
        self.setup.one_sided = OneSidedCounters::default();
        for peer in 0..self.peers.len() as PeerIndex {
            self.forget_pulls(peer);
            self.forget_fetches(peer);
        }
        self.let_owed_leave();
        // What peers read of our messages until now was there.
        (0..self.peers.len() as PeerIndex).for_each(|peer| self.withdraw_all(peer));
        self.peers.iter_mut().for_each(|peer| Several::give_up(&mut peer.several));
        self.say_bye();
        self.tell_dropped();
    }
}

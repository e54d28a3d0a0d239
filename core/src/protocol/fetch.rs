//! Fetching: the receiver's adapter reads a long message where it lies, into the posted buffer.
//!
//! The sender lends the message: it registers the buffer for its peer's adapter, unless that lies in a
//! region which the peer may read, and sends the envelope alone, with the buffer's address and key. Once it is matched the receiver reads it
//! through its window to the sender, which it asks for with the first such message, and ends it
//! with Finish. Nothing is copied between, and the sender's processor has no part in it.
//!
//! A sender keeps its buffer, and the registration, until the receiver's word; a receiver's buffer
//! is not given back while the adapter may write to it. A message that cannot be fetched, since
//! either side cannot register its buffer or the window is refused or has failed, comes in parts,
//! and so do those after it, as long as the connection lasts.
//!
//! Long ones are lent in any case. Shorter ones are if that costs no registration: in a stream from a certain
//! length on, and alone where that is [found](super::contest) to take less than packets.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use crate::{
    engine::{
        Engine,
        peer::{PeerState, Reply},
    },
    flags::Flags,
    memory::Piece,
    memory_region::descriptor::Descriptor,
    operation::{Incoming, SendOperation, Target},
    primitive::yield_now,
    protocol::{contest::Discipline, window::lease::Wanted},
    transport::{PeerIndex, Transport},
    window::{Direction, Loan, Request, Started},
    wire::{self, Kind},
};

/// The longest message that an adapter reads at once. Units: bytes.
const LENGTH_MAX: usize = 1 << 30;
/// To whom fewer messages went that went alone, none of these is lent: no window is opened for a few.
const ALONE_MIN: u32 = 8;
/// How long a window is kept for what others have under way there.
const WINDOW_WAIT: Duration = Duration::from_millis(200);

/// How far the fetching of a message has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fetch {
    /// The sender's key; 0: it lends nothing.
    pub key: u32,
    /// Bytes that were asked for.
    started: usize,
    /// Requests that are under way.
    under_way: u32,
    /// A buffer was registered for one.
    registered: bool,
    /// A buffer of a message that is not lent always could not be.
    unregistered: bool,
    /// One has failed.
    failed: bool,
    /// The sender has given it up.
    withdrawn: bool,
}

impl Fetch {
    /// Of a message that is lent with that key, or of none.
    pub fn of(key: u32) -> Fetch {
        Fetch { key, ..Fetch::default() }
    }
}

/// What is known of that between a peer and us.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerFetches {
    /// Messages that are being fetched from it.
    under_way: u32,
    /// Messages cannot be fetched from it.
    impossible: bool,
    /// It could not fetch a message of ours.
    pub refused: bool,
    /// Messages that are lent only if that costs no registration.
    shorts: Shorts,
    /// Of these, how many went alone, up to as many as go as packets first.
    alone: u32,
    /// The region that cannot be leased to it, as was found last.
    unlendable: Option<u64>,
}

impl PeerFetches {
    /// There is a new lane to it.
    pub fn note_connected(&mut self) {
        let PeerFetches { under_way, impossible, .. } = *self;
        *self = PeerFetches { under_way, impossible, ..PeerFetches::default() };
    }

    /// There is a new lane from it: what it may reach is asked of the way that it comes by, which is
    /// known now.
    pub fn note_heard(&mut self) {
        (self.impossible, self.unlendable) = (false, None);
    }
}

/// Whether messages are lent that are not lent always, but only if their receiver has its buffers registered:
/// after one that it had to register a buffer for, some go in parts, and more each time.
#[derive(Clone, Copy, Debug, Default)]
struct Shorts {
    pause: u32,
    left: u32,
}

impl Shorts {
    const PAUSE: [u32; 2] = [16, 1024];

    /// Whether to lend one now.
    fn may_be_lent(&mut self) -> bool {
        let waits = self.left > 0;
        self.left = self.left.saturating_sub(1);
        !waits
    }

    /// One was fetched.
    fn note(&mut self, registered: bool) {
        self.pause =
            if registered { (2 * self.pause).clamp(Self::PAUSE[0], Self::PAUSE[1]) } else { 0 };
        self.left = self.pause;
    }
}

/// What becomes of an attempt to ask for the rest of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// All is asked for.
    Asked,
    /// Not now.
    Wait,
    /// It has to come in parts.
    Parts,
}

impl Incoming {
    /// The word about a message that has wholly come.
    pub(crate) fn finish(&self) -> Reply {
        let word = if self.fetch.registered { wire::REGISTERED } else { 0 };
        Reply::new(Kind::Finish, self.operation, word)
    }
}

impl<T: Transport> Engine<T> {
    /// Lends a message of ours to its receiver, if that can fetch it and it is worth it.
    pub(crate) fn lend(
        &mut self,
        peer: PeerIndex,
        index: u32,
        message: Piece,
        streaming: bool,
    ) -> bool {
        if self.sends[index].lent.is_some() {
            return true;
        }
        let Some(worth) = self.transport.lends_to(peer) else {
            return false;
        };
        let least = if streaming { worth.streaming } else { worth.contested };
        let is_short = message.len() < worth.always;
        if self.peers[peer as usize].fetches.refused
            || !(least..=LENGTH_MAX).contains(&message.len())
            || is_short && !self.lends_short(peer, index, streaming)
        {
            let send = &mut self.sends[index];
            // A read that was to be timed does not come about.
            send.run = send.run.filter(|_| send.lends != Some(true));
            return false;
        }
        let lent = self
            .lend_registered(peer, index, message)
            .or_else(|| self.transport.lend(peer, message));
        let send = &mut self.sends[index];
        send.lent = lent.filter(|loan| loan.remote_key() != 0);
        if send.lent.is_none() {
            // It goes as packets, and so it is not what was to be timed; nor is it tried again.
            (send.run, send.lends) = (None, Some(false));
        }
        send.lent.is_some()
    }

    /// The shortest message that is lent to `peer` in any case; 0: none is lent. Units: bytes.
    fn always_lent(&self, peer: PeerIndex) -> usize {
        self.transport.lends_to(peer).map_or(0, |worth| worth.always)
    }

    /// Whether to lend a message that is not lent in any case.
    fn lends_short(&mut self, peer: PeerIndex, index: u32, streaming: bool) -> bool {
        if let Some(decided) = self.sends[index].lends {
            return decided;
        }
        let fetches = &mut self.peers[peer as usize].fetches;
        let lends = if streaming {
            fetches.shorts.may_be_lent()
        } else if self.sends[index].flags.contains(Flags::INJECT_COMPLETE) {
            // It is over when it was copied: what would be compared is not what it waits for.
            false
        } else if fetches.alone < ALONE_MIN {
            fetches.alone += 1;
            false
        } else {
            fetches.shorts.may_be_lent()
                && self.goes_directly(index, Discipline::FetchedMessages, streaming)
        };
        self.sends[index].lends = Some(lends);
        lends
    }

    /// The receiver of a message that was lent asks for parts: it will not fetch the next one either, unless it only
    /// could not register a buffer for it alone.
    pub(crate) fn note_refused(&mut self, peer: PeerIndex, index: u32) {
        let always = self.always_lent(peer);
        let send = &mut self.sends[index];
        // What is timed is not what it was to be.
        send.run = None;
        let PeerFetches { shorts, refused, .. } = &mut self.peers[peer as usize].fetches;
        match send.total < always {
            true => shorts.note(true),
            false => *refused = true,
        }
    }

    /// Lends a message that lies in a region of ours, if its peer may read that in any case.
    fn lend_registered(&mut self, peer: PeerIndex, index: u32, message: Piece) -> Option<Loan> {
        let key = self.sends[index].region?.key();
        // A key that is ours to give is for those whom the application tells of it.
        let PeerFetches { unlendable, .. } = self.peers[peer as usize].fetches;
        if self.regions.keys_are_secret() || unlendable == Some(key) {
            return None;
        }
        let region = self.regions.find(key).ok()?.clone();
        if !region.lends(message) {
            return None;
        }
        let lease = self.lease_of(peer, &region).filter(|lease| lease.access.read);
        if lease.is_none() {
            // To try it again for each message could take long.
            self.peers[peer as usize].fetches.unlendable = Some(key);
        }
        lease.map(|lease| Loan::leased(&lease))
    }

    /// Has the adapter of `peer` read no message any more that it has begun with, whose buffers are the
    /// application's again. Of those that lie in regions it loses its leases, and asks for others; of
    /// registrations that are kept, which end, all do that have something there.
    pub(crate) fn take_loans_back(&mut self, peer: PeerIndex) {
        let begun = |&index: &u32| self.sends[index].has_begun_with(peer);
        let begun: Vec<u32> = self.sends.indices().filter(begun).collect();
        for &index in &begun {
            if let Some(loan) = self.sends[index].lent.take_if(|loan| loan.is_kept()) {
                self.transport.take_back(&loan);
            }
        }
        let lent = begun.iter().map(|&index| &self.sends[index]);
        let is_leased = |send: &&SendOperation| send.lent.as_ref().is_some_and(Loan::is_leased);
        let regions: HashSet<u64> =
            lent.filter(is_leased).filter_map(|send| send.region.map(Descriptor::key)).collect();
        let audience = self.transport.audience(peer);
        for key in regions {
            if let Ok(region) = self.regions.find(key) {
                region.end_leases(|known| known == audience);
            }
        }
    }

    /// A peer has all of a message of ours, and says in `word` how it came by it.
    pub(crate) fn note_fetched(&mut self, peer: PeerIndex, index: u32, word: u64) {
        let SendOperation { lent, total, .. } = &self.sends[index];
        let least = self.always_lent(peer);
        if lent.is_some() && *total < least {
            self.peers[peer as usize].fetches.shorts.note(word & wire::REGISTERED != 0);
        }
    }

    /// Begins to fetch a message whose receive is known, if its sender lends it.
    pub(crate) fn fetch(&mut self, index: u32) -> bool {
        let incoming = &mut self.incoming[index];
        let Target::Receive { room, .. } = incoming.target else {
            return false;
        };
        if incoming.fetch.key == 0 {
            return false;
        }
        incoming.end = incoming.total.min(room);
        self.peers[incoming.peer as usize].fetches.under_way += 1;
        self.in_windows += 1;
        self.fetches.push(index);
        // Behind others it waits for its turn.
        if self.fetches.len() == 1 {
            self.fetch_more(index);
        }
        if !self.fetches.is_empty() {
            self.wake_sound_sleepers();
        }
        true
    }

    /// Asks for what found no room, or no window, before.
    #[cold]
    #[inline(never)]
    pub(crate) fn fetch_on(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.fetches.get(at) {
            self.fetch_more(index);
            // One that waits no more has left the list.
            at += usize::from(self.fetches.get(at) == Some(&index));
        }
    }

    fn fetch_more(&mut self, index: u32) {
        let step = self.ask_for_rest(index);
        if step == Step::Wait {
            return;
        }
        self.fetches.retain(|&waiting| waiting != index);
        let fetch = &mut self.incoming[index].fetch;
        fetch.failed |= step == Step::Parts;
        if fetch.under_way == 0 {
            self.end_fetch(index);
        }
    }

    fn ask_for_rest(&mut self, index: u32) -> Step {
        let Incoming { peer, remote, target, end, .. } = self.incoming[index];
        let Target::Receive { receive, start, .. } = target else {
            return Step::Parts;
        };
        if self.incoming[index].fetch.failed {
            return Step::Parts;
        }
        while self.incoming[index].fetch.started < end {
            match self.look_for_window(peer) {
                Step::Asked => {}
                otherwise => return otherwise,
            }
            let Fetch { key, started, .. } = self.incoming[index].fetch;
            let local = self.receives[receive].pieces.view();
            let local = local.contiguous(start + started, end - started);
            let local_key = self.key_of_receive(peer, index, receive, local);
            let request = Request {
                token: self.incoming.name(index) | Request::FETCHED,
                direction: Direction::Read,
                address: remote.wrapping_add(started as u64),
                remote_key: key,
                local,
                data: None,
                local_key,
            };
            let started = self.transport.start(peer, &request);
            match started {
                Started::Yes | Started::Registered | Started::Done => {}
                Started::NoRoom => return Step::Wait,
                Started::Refused => {
                    let always = self.always_lent(peer);
                    self.incoming[index].fetch.unregistered = end < always;
                    return Step::Parts;
                }
                Started::Landed | Started::Ended => return Step::Parts,
            }
            let fetch = &mut self.incoming[index].fetch;
            fetch.started += local.len();
            fetch.under_way += u32::from(started != Started::Done);
            fetch.registered |= started == Started::Registered;
        }
        Step::Asked
    }

    /// What our adapter knows the buffer of a receive by, if it lies in a region of ours.
    fn key_of_receive(
        &mut self,
        peer: PeerIndex,
        index: u32,
        receive: u32,
        local: Piece,
    ) -> Option<u32> {
        let registers = self.transport.windows_to(peer)?.registers;
        let region = self.receives[receive].region.filter(|_| local.len() >= registers)?;
        let (region, transport) = (self.regions.noted(region)?, &mut self.transport);
        let register = |memory, written| transport.register_own(peer, memory, written);
        let own = region.registered_as_own(local, Flags::RECV, register)?;
        let key = own.local_key();
        self.incoming[index].own = Some(own);
        Some(key)
    }

    /// Whether there is a window to `peer`: it is asked for where there is none.
    fn look_for_window(&mut self, peer: PeerIndex) -> Step {
        let record = &self.peers[peer as usize];
        if record.fetches.impossible {
            return Step::Parts;
        }
        if record.state != PeerState::Ready {
            self.ensure_connection(peer);
            return Step::Wait;
        }
        if !self.transport.fetches_from(peer) {
            return Step::Parts;
        }
        match self.want_window(peer) {
            Wanted::Open => Step::Asked,
            Wanted::Later => Step::Wait,
            Wanted::Never => Step::Parts,
        }
    }

    /// A request is over: it is done, or the window has closed.
    pub(crate) fn take_fetched(&mut self, name: u64, done: bool) {
        let Some(index) = self.incoming.index_of(name) else {
            return;
        };
        let incoming = &mut self.incoming[index];
        if incoming.fetch.under_way == 0 {
            // It was given up, and the window closed over the request.
            return;
        }
        incoming.fetch.under_way -= 1;
        incoming.fetch.failed |= !done;
        let all_asked = incoming.fetch.started == incoming.end;
        if incoming.fetch.under_way == 0 && (all_asked || incoming.fetch.failed) {
            self.end_fetch(index);
        }
    }

    /// The adapter has nothing to do with a message any more.
    fn end_fetch(&mut self, index: u32) {
        self.fetches.retain(|&waiting| waiting != index);
        let incoming = &mut self.incoming[index];
        let record = &mut self.peers[incoming.peer as usize];
        record.fetches.under_way -= 1;
        self.in_windows -= 1;
        if incoming.fetch.failed {
            if incoming.fetch.withdrawn {
                return self.lose_withdrawn(index);
            }
            record.fetches.impossible |= !incoming.fetch.unregistered;
            return self.consent(index);
        }
        incoming.received = incoming.end;
        self.finish_if_whole(index);
    }

    /// Gives up what is being fetched from a peer: the adapter writes to no buffer for it when
    /// this returns.
    pub(crate) fn forget_fetches(&mut self, peer: PeerIndex) {
        let fetches = std::mem::take(&mut self.peers[peer as usize].fetches.under_way);
        if fetches == 0 {
            return;
        }
        self.transport.close_window(peer);
        self.in_windows -= fetches;
        let incoming = &mut self.incoming;
        self.fetches.retain(|&index| incoming[index].peer != peer);
        // They are counted no more: what the window had under way is told of later.
        for &index in self.peers[peer as usize].incoming.values() {
            incoming[index].fetch = Fetch::default();
        }
    }

    /// The sender has given a message up. Returns whether the adapter has nothing to do with it:
    /// else it is over when the adapter has.
    pub(crate) fn stop_fetch(&mut self, index: u32) -> bool {
        let Incoming { peer, target, fetch, .. } = self.incoming[index];
        if fetch.key == 0 || !matches!(target, Target::Receive { .. }) {
            return true;
        }
        let incoming = &mut self.incoming[index];
        incoming.fetch.withdrawn = true;
        // What has wholly come by then was the message still.
        incoming.fetch.failed |= fetch.started < incoming.end;
        if fetch.under_way > 0 {
            return false;
        }
        self.fetches.retain(|&waiting| waiting != index);
        self.peers[peer as usize].fetches.under_way -= 1;
        self.in_windows -= 1;
        true
    }

    /// Waits for what is under way in the window to `peer` to come to its end, for a moment, if it
    /// has to be closed: what an adapter changes there may not be done twice.
    pub(crate) fn let_windows_end(&mut self, peer: PeerIndex) {
        let start = Instant::now();
        let is_shared = |engine: &Self| {
            let record = &engine.peers[peer as usize];
            record.fetches.under_way > 0 && record.window.under_way > 0
        };
        while is_shared(self) && start.elapsed() < WINDOW_WAIT {
            self.take_finished();
            yield_now();
        }
    }
}

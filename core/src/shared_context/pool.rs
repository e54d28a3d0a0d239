//! The receives of a shared context, and the messages that wait for one.
//!
//! Each endpoint's engine keeps its messages; what waits here is their names. An engine that
//! finds no receive of its own looks here, and leaves a message's name if there is none. Both
//! are one step under the lock, and so are a receive's search among those names and its posting.
//! So no two of them miss each other. The lock is what a shared context costs: "with the
//! potential cost of serializing access across multiple endpoints" (fi_endpoint(3)). Who holds
//! it never waits for an engine.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::sources::{NOBODY, Source, Sources};
use crate::{
    address::Address,
    address_vector::AddressVectorError,
    attachment::Attachment,
    auth_key::{KeyNumber, Keyring},
    flags::Flags,
    operation::{ReceiveOperation, StoredPieces},
    pool::Pool,
    tag_match::{
        ANY_SOURCE, GROUPS_MAX, Matcher, STICKY, SourceIndex, group_source, source_in, who,
    },
};

/// What matches: the family, the source, the tag, and the bits of it that do not count.
#[derive(Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) tagged: bool,
    pub(crate) source: Source,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

/// A message that waits in the engine of an endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Parked {
    /// Which endpoint.
    pub(crate) member: u32,
    /// Its name among the engine's unexpected messages.
    pub(crate) message: u64,
    /// Units: bytes.
    pub(crate) total: usize,
}

/// A receive that a message gets.
pub(crate) struct Matched {
    pub(crate) operation: ReceiveOperation,
    /// It is part of this multi-receive buffer.
    pub(crate) buffer: Option<u32>,
}

/// What an engine has of the shared context that its endpoint is bound to.
pub struct SharedSeat {
    pub(crate) pool: Arc<SharedPool>,
    /// What the endpoint is called there.
    pub(crate) member: u32,
    /// Whether receives can be directed, so that sources count.
    pub(crate) has_sources: bool,
    /// Receives of the engine's that are part of a multi-receive buffer there.
    pub(crate) slices: HashMap<u32, u32>,
    /// Until a connectionless endpoint is enabled, or cannot be.
    pub(super) coming: Option<Arc<()>>,
}

/// What engines and the context itself share.
#[derive(Default)]
pub struct SharedPool(Mutex<State>);

impl SharedPool {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The endpoints that are connected with somebody.
#[derive(Default)]
struct Connected {
    members: Vec<u32>,
    /// Another one has been, and lost them.
    lost: bool,
}

/// What the lock protects.
#[derive(Default)]
pub(crate) struct State {
    tagged: Matcher,
    untagged: Matcher,
    receives: Pool<ReceiveOperation>,
    parked: Pool<Parked>,
    /// Messages that peeks have claimed, by context: of no other use for anybody.
    claimed: HashMap<u64, Parked>,
    sources: Sources,
    /// The endpoints that are connected with whoever is at an address, and has proved a key. None has none.
    connected: HashMap<(Address, KeyNumber), Connected>,
    /// The keys that its endpoints were enabled with, of those that are in their address vector.
    /// In the matcher, those who have proved one are a group, to whichever endpoint.
    keys: Vec<KeyNumber>,
    /// A multi-receive buffer with less room is released. Units: bytes.
    pub(crate) multi_receive_min: usize,
}

impl State {
    fn matcher(&mut self, tagged: bool) -> &mut Matcher {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }

    /// What the matchers call a source that is going to be in one of them.
    fn source_index(&mut self, source: Source) -> SourceIndex {
        if let Source::Peer(address, key) = source
            && self.sources.get(address, key).is_none()
        {
            if self.sources.is_full() {
                self.forget_sources();
            }
            self.sources.insert(address, key, self.group_of(key));
        }
        self.known_index(source)
    }

    /// The same of one that need not be in any. Who is not is called as nobody is whom a receive is for:
    /// so messages can be, and receives cannot, since those of nobody in particular are called so, too.
    fn known_index(&self, source: Source) -> SourceIndex {
        match source {
            Source::Nobody => NOBODY,
            Source::Anybody => ANY_SOURCE,
            Source::Key(key) => group_source(self.group_of(key)),
            Source::Peer(address, key) => {
                let known = self.sources.get(address, key);
                known.unwrap_or_else(|| source_in(self.group_of(key), NOBODY))
            }
        }
    }

    /// What messages that a receive for `source` may have are called, if there can be any.
    fn parked_index(&self, source: Source) -> Option<SourceIndex> {
        match source {
            Source::Peer(address, key) => self.sources.get(address, key),
            _ => Some(self.known_index(source)),
        }
    }

    /// Forgets the sources that are in no matcher.
    #[cold]
    fn forget_sources(&mut self) {
        let matchers = [&self.tagged, &self.untagged];
        let sources = matchers.into_iter().flat_map(|matcher| {
            let posted = matcher.posted().map(|(_, source)| source);
            posted.chain(matcher.unexpected().map(|(_, source)| source))
        });
        let in_use = sources.map(who).collect();
        self.sources.keep_only(&in_use);
    }

    /// Whether receives can be for all who have proved a key: an endpoint has it.
    pub(crate) fn knows_key(&self, key: KeyNumber) -> bool {
        self.group_of(key) > 0
    }

    /// Which group those are who have proved a key.
    fn group_of(&self, key: KeyNumber) -> u32 {
        let place = self.keys.iter().position(|&known| known == key);
        place.map_or(0, |place| place as u32 + 1)
    }

    /// Learns the keys of a further endpoint. They stay known when it is closed, since receives
    /// may be directed at them.
    ///
    /// # Errors
    /// They are more than can be told apart.
    pub(crate) fn learn_keys(&mut self, ring: &Keyring) -> Result<(), AddressVectorError> {
        let numbers = ring.keys().iter().map(|key| key.number);
        let new: Vec<KeyNumber> = numbers.filter(|number| !self.keys.contains(number)).collect();
        let (count, count_max) = (self.keys.len() + new.len(), GROUPS_MAX);
        if count > count_max {
            return Err(AddressVectorError::AuthKeyCount { count, count_max });
        }
        self.keys.extend(new);
        Ok(())
    }

    /// The earliest receive for a message of `total` bytes.
    pub(crate) fn take(&mut self, envelope: Envelope, total: usize) -> Option<Matched> {
        let source = self.known_index(envelope.source);
        let receive = self.matcher(envelope.tagged).take_posted(source, envelope.tag)?;
        if receive & STICKY == 0 {
            return Some(Matched { operation: self.receives.remove(receive), buffer: None });
        }
        let buffer = receive & !STICKY;
        let matched = self.cut(buffer, total);
        if self.receives[buffer].exhausted {
            self.matcher(envelope.tagged).remove_posted(buffer);
        }
        Some(matched)
    }

    /// What one more such name makes this grow by: mostly nothing. Units: bytes.
    pub(crate) fn growth_to_park(&self, tagged: bool) -> usize {
        let matcher = if tagged { &self.tagged } else { &self.untagged };
        self.parked.growth() + matcher.growth_to_park(self.parked.next_index())
    }

    /// Leaves the name of a message that found no receive.
    pub(crate) fn park(&mut self, envelope: Envelope, parked: Parked) {
        let index = self.parked.insert(parked);
        let source = self.source_index(envelope.source);
        self.matcher(envelope.tagged).park(source, envelope.tag, index);
    }

    /// The earliest message that a receive matches.
    pub(crate) fn take_parked(&mut self, envelope: Envelope) -> Option<Parked> {
        let Envelope { tagged, tag, ignore, .. } = envelope;
        let source = self.parked_index(envelope.source)?;
        let index = self.matcher(tagged).take_unexpected(source, tag, ignore)?;
        Some(self.parked.remove(index))
    }

    /// The same message, which stays.
    pub(crate) fn find_parked(&mut self, envelope: Envelope) -> Option<Parked> {
        let Envelope { tagged, tag, ignore, .. } = envelope;
        let source = self.parked_index(envelope.source)?;
        let index = self.matcher(tagged).find_unexpected(source, tag, ignore)?;
        Some(self.parked[index])
    }

    /// Whether a message is claimed with `context`.
    pub(crate) fn is_claimed(&self, context: u64) -> bool {
        self.claimed.contains_key(&context)
    }

    /// Keeps a message that was taken for who has claimed it with `context`.
    pub(crate) fn claim(&mut self, context: u64, parked: Parked) {
        self.claimed.insert(context, parked);
    }

    /// The message that was claimed with `context`.
    pub(crate) fn take_claimed(&mut self, context: u64) -> Option<Parked> {
        self.claimed.remove(&context)
    }

    /// `member` is connected with whoever is at an address.
    pub(crate) fn note_connected(&mut self, address: Address, key: KeyNumber, member: u32) {
        let Connected { members, lost } = self.connected.entry((address, key)).or_default();
        *lost = false;
        if !members.contains(&member) {
            members.push(member);
        }
    }

    /// It is no more. Returns whether others are.
    pub(crate) fn note_apart(&mut self, address: Address, key: KeyNumber, member: u32) -> bool {
        let Some(connected) = self.connected.get_mut(&(address, key)) else { return false };
        connected.members.retain(|&other| other != member);
        connected.lost = true;
        if connected.members.is_empty() {
            self.connected.remove(&(address, key));
            return false;
        }
        true
    }

    /// Forgets all messages of `member`, which leaves, also those that are claimed. Returns with whom it was
    /// the last that is connected, while others have lost them: nobody else will tell that they are gone.
    pub(crate) fn forget_member(&mut self, member: u32) -> Vec<(Address, KeyNumber)> {
        let mut lost = Vec::new();
        self.connected.retain(|&source, connected| {
            connected.members.retain(|&other| other != member);
            if connected.members.is_empty() && connected.lost {
                lost.push(source);
            }
            !connected.members.is_empty()
        });
        self.claimed.retain(|_, parked| parked.member != member);
        self.forget(member, |_| true);
        lost
    }

    /// Forgets the messages of `member` that are gone. Of one that is claimed its engine tells.
    pub(crate) fn forget(&mut self, member: u32, is_gone: impl Fn(u64) -> bool) {
        for tagged in [true, false] {
            for (index, _) in self.matcher(tagged).unexpected() {
                let parked = self.parked[index];
                if parked.member == member && is_gone(parked.message) {
                    self.matcher(tagged).remove_unexpected(index);
                    self.parked.remove(index);
                }
            }
        }
    }

    /// Posts a receive of one message.
    pub(crate) fn post(&mut self, envelope: Envelope, operation: ReceiveOperation) {
        let Envelope { tagged, tag, ignore, .. } = envelope;
        let source = self.source_index(envelope.source);
        let receive = self.receives.insert(operation);
        self.matcher(tagged).post(source, tag, ignore, receive);
    }

    /// Takes a multi-receive buffer in, not posted yet. It is not released before [`Self::leave`].
    pub(crate) fn insert_buffer(&mut self, mut operation: ReceiveOperation) -> u32 {
        operation.arriving = 1;
        self.receives.insert(operation)
    }

    /// Posts it, unless it is full.
    pub(crate) fn post_buffer(&mut self, envelope: Envelope, buffer: u32) {
        let Envelope { tagged, tag, ignore, .. } = envelope;
        if !self.receives[buffer].exhausted {
            let source = self.source_index(envelope.source);
            self.matcher(tagged).post(source, tag, ignore, buffer | STICKY);
        }
    }

    pub(crate) fn is_full(&self, buffer: u32) -> bool {
        self.receives[buffer].exhausted
    }

    /// Cuts the place of a message of `total` bytes off a multi-receive buffer: as much of it
    /// as there is.
    pub(crate) fn cut(&mut self, buffer: u32, total: usize) -> Matched {
        let minimum = self.multi_receive_min.max(1);
        let whole = &mut self.receives[buffer];
        let pieces = whole.pieces.view();
        let (start, capacity) = (whole.filled, pieces.total());
        let room = total.min(capacity - start);
        let mut parts = Vec::new();
        pieces.for_each_part(start, room, |_, part| parts.push(part));
        let slice = match *parts {
            [] => StoredPieces::One(pieces.contiguous(start, 0)),
            [one] => StoredPieces::One(one),
            _ => StoredPieces::Many(parts.into()),
        };
        whole.filled += room;
        whole.arriving += 1;
        whole.exhausted = capacity - whole.filled < minimum;
        let flags = whole.flags.difference(Flags::MULTI_RECV);
        let operation = ReceiveOperation { pieces: slice, flags, ..whole.shadow() };
        Matched { operation, buffer: Some(buffer) }
    }

    /// Puts the place that was cut off last back.
    pub(crate) fn uncut(&mut self, buffer: u32, room: usize) {
        let whole = &mut self.receives[buffer];
        whole.filled -= room;
        whole.arriving -= 1;
        whole.exhausted = false;
    }

    /// Leaves a multi-receive buffer where it is for good, if it is one of ours: how many bytes it has.
    pub(crate) fn leak(&mut self, buffer: u32) -> Option<usize> {
        Attachment::leak(&mut self.receives[buffer].attachment)
    }

    /// One user of a multi-receive buffer less; the last one of an exhausted buffer gets it, to
    /// release it.
    pub(crate) fn leave(&mut self, buffer: u32) -> Option<ReceiveOperation> {
        let whole = &mut self.receives[buffer];
        whole.arriving -= 1;
        let last = whole.exhausted && whole.arriving == 0;
        last.then(|| self.receives.remove(buffer))
    }

    /// Takes the first receive posted with `context` off. None: there is none. Some(None): it is
    /// a buffer that messages still arrive in, and is released as canceled when they have.
    pub(crate) fn cancel(&mut self, context: u64) -> Option<Option<ReceiveOperation>> {
        for tagged in [true, false] {
            let receives = &self.receives;
            let context_of = |receive: u32| receives[receive & !STICKY].context;
            let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
            if let Some(receive) = matcher.earliest_posted(context, context_of) {
                matcher.remove_posted(receive);
                return Some(self.retire(receive & !STICKY));
            }
        }
        None
    }

    /// Takes the receives off that are directed at an address, which no message can come from any more.
    pub(crate) fn take_directed(
        &mut self,
        address: Address,
        key: KeyNumber,
    ) -> Vec<ReceiveOperation> {
        let mut gone = Vec::new();
        let Some(source) = self.sources.get(address, key) else { return gone };
        for tagged in [true, false] {
            for receive in self.matcher(tagged).posted_from(source) {
                self.matcher(tagged).remove_posted(receive);
                gone.extend(self.retire(receive & !STICKY));
            }
        }
        gone
    }

    fn retire(&mut self, receive: u32) -> Option<ReceiveOperation> {
        let operation = &mut self.receives[receive];
        if operation.arriving > 0 {
            operation.exhausted = true;
            operation.canceled = true;
            return None;
        }
        Some(self.receives.remove(receive))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth_key::AuthKey;

    #[test]
    fn as_many_keys_are_known_as_can_be_told_apart() {
        let ring = |numbers: std::ops::RangeInclusive<KeyNumber>| {
            Keyring::new(numbers.map(|number| AuthKey::new(number, b"key")))
        };
        let mut state = State::default();
        state.learn_keys(&ring(1..=253)).unwrap();
        assert!(state.learn_keys(&ring(253..=255)).is_err());
        assert!(!state.knows_key(254), "a refusal has no side effect");
        state.learn_keys(&ring(1..=254)).unwrap();
        assert!(state.knows_key(254) && state.known_index(Source::Key(254)) != ANY_SOURCE);
        assert!(state.learn_keys(&ring(255..=255)).is_err());
    }

    #[test]
    fn who_is_in_no_matcher_is_forgotten() {
        let mut state = State::default();
        let from = |port: u16| {
            let address = Address::from(std::net::SocketAddr::from(([10, 0, 0, 1], port)));
            Envelope { tagged: true, source: Source::Peer(address, 0), tag: 7, ignore: 0 }
        };
        let parked = |message| Parked { member: 0, message, total: 0 };
        state.park(from(1), parked(1));
        for port in 2..10_000 {
            assert!(state.take(from(port), 0).is_none());
            state.park(from(port), parked(u64::from(port)));
            let found = state.take_parked(from(port)).map(|parked| parked.message);
            assert_eq!(found, Some(u64::from(port)));
        }
        assert!(state.sources.len() < 200, "{} are known", state.sources.len());
        assert_eq!(state.find_parked(from(1)).map(|parked| parked.message), Some(1));
    }

    #[test]
    fn what_came_over_a_connection_is_for_no_receive_from_somebody() {
        let mut state = State::default();
        let envelope = |source| Envelope { tagged: true, source, tag: 7, ignore: 0 };
        state.park(envelope(Source::Nobody), Parked { member: 0, message: 5, total: 0 });
        let address = Address::from(std::net::SocketAddr::from(([10, 0, 0, 1], 1)));
        let from_somebody = envelope(Source::Peer(address, 0));
        assert!(state.find_parked(from_somebody).is_none());
        assert!(state.take_parked(from_somebody).is_none());
        assert!(state.take_parked(envelope(Source::Anybody)).is_some());
    }
}

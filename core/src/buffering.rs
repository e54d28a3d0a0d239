//! Messages that are received into memory of ours, and announced: what is kept of them.
//! Reference: fi_msg(3), "Buffered Receives", "Variable Length Messages".

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    completion_queue::{announcers::Announcer, store::CompletionStore},
    error::Cause,
    flags::Flags,
    primitive::{AtomicU64, Ordering},
    protocol::credit::CREDIT_FIRST,
    tag_match::Matcher,
    transport::PeerIndex,
};

/// Among the flags of a posted receive: its endpoint buffers messages. As an operation flag the bit
/// has no other meaning, and no caller can set it.
pub(crate) const BUFFERED: Flags = Flags::VARIABLE_MSG;

/// FI_OPT_BUFFERED_LIMIT, if nobody says. Units: bytes.
pub const BUFFERED_LIMIT_DEFAULT: usize = 16 << 10;
/// FI_OPT_BUFFERED_MIN, if nobody says: a header of most protocols. Units: bytes.
pub const BUFFERED_MIN_DEFAULT: usize = 64;

/// How an endpoint buffers.
#[derive(Clone, Copy, Debug)]
pub struct BufferingSetup {
    /// The longest message that is buffered whole (FI_OPT_BUFFERED_LIMIT). Units: bytes.
    pub limit: usize,
    /// How much of a longer one is (FI_OPT_BUFFERED_MIN). Units: bytes.
    pub min: usize,
    /// What announcements call the endpoint.
    pub endpoint: u64,
}

/// What the context of an announcement points to, with the layout of libfabric's
/// `struct fi_recv_context`. It is the engine's, but the application may change `context` until it
/// claims the message.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct ReceiveContext {
    endpoint: AtomicU64,
    context: AtomicU64,
}

impl ReceiveContext {
    /// What the application knows it by.
    pub(crate) fn address(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// The context that the claim completes with.
    pub(crate) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    pub(crate) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Relaxed);
    }
}

/// How far a buffered message is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Not all has come that will be buffered of it.
    Arriving,
    /// The same, and it waits until others give back what they hold.
    Starved,
    /// It waits for those before it to be announced.
    Ready,
    /// The application has to claim or to discard it.
    Announced,
    /// The same, but its sender has gone with what is missing.
    Lost(Cause),
}

/// What there is of a buffered message beside the parked one.
#[derive(Debug)]
pub(crate) struct BufferedMessage {
    pub(crate) record: Box<ReceiveContext>,
    pub(crate) stage: Stage,
    /// The posted tag that it matched, until it is announced.
    pub(crate) receive: Option<u32>,
    /// Bytes that were asked for beyond those that it came with.
    pub(crate) asked: u64,
    /// Its body since the application looked at it: it lies here, and where it was is nothing. Whoever
    /// is looking has it as well, and needs no engine to keep it.
    pub(crate) shown: Option<Arc<Vec<u8>>>,
}

/// Messages of one peer that are not announced yet.
#[derive(Default)]
struct Line {
    /// All of them, in the order in which they are going to be.
    waiting: VecDeque<u32>,
    /// Those that are starved. What is given back is for the first: if those behind it had it, who would
    /// give it back before the first is announced?
    starved: VecDeque<u32>,
}

impl Line {
    /// Whether it is the turn of `parked` to be announced.
    fn is_next(&self, parked: u32) -> bool {
        self.waiting.front() == Some(&parked)
    }

    /// Whether it may ask: nothing before it is starved.
    fn may_ask(&self, parked: u32) -> bool {
        self.is_next(parked) || self.starved.front().is_none_or(|&first| first == parked)
    }

    fn starve(&mut self, parked: u32) {
        if self.is_next(parked) && self.starved.front() != Some(&parked) {
            self.feed(parked);
            self.starved.push_front(parked);
        } else if !self.starved.contains(&parked) {
            self.starved.push_back(parked);
        }
    }

    fn feed(&mut self, parked: u32) {
        if self.starved.front() == Some(&parked) {
            self.starved.pop_front();
        } else {
            self.starved.retain(|&starved| starved != parked);
        }
    }
}

/// What an engine keeps of buffered messages.
pub(crate) struct Buffering {
    /// Before what announcements lead to.
    pub(crate) announcer: Option<Announcer>,
    pub(crate) setup: BufferingSetup,
    /// Tags that are posted; messages for them are announced.
    pub(crate) tags: Matcher,
    /// By index of the parked message.
    messages: HashMap<u32, BufferedMessage>,
    /// Parked messages by their records' address.
    announced: HashMap<u64, u32>,
    /// By peer: what is not announced yet. Lines stay when they are empty, of which there are no more than
    /// the engine has places for peers.
    lines: HashMap<PeerIndex, Line>,
    /// Whose lines have something that waits until others give back what was asked for.
    starved: VecDeque<PeerIndex>,
    /// Bytes that were asked for, of what the application has.
    in_use: u64,
    /// What was asked for beyond the budget, until it is given back.
    beyond: Option<u32>,
    /// Records that no message has. Boxed, since applications hold their addresses.
    #[allow(clippy::vec_box)]
    unused: Vec<Box<ReceiveContext>>,
}

impl Buffering {
    /// What announces messages in `queue`.
    pub(crate) fn new(
        setup: Option<&BufferingSetup>,
        queue: Option<&Arc<CompletionStore>>,
    ) -> Option<Box<Buffering>> {
        setup.map(|&setup| {
            Box::new(Buffering {
                announcer: queue.map(Announcer::new),
                setup,
                tags: Matcher::new(),
                messages: HashMap::new(),
                announced: HashMap::new(),
                lines: HashMap::new(),
                starved: VecDeque::new(),
                in_use: 0,
                beyond: None,
                unused: Vec::new(),
            })
        })
    }

    /// Those whose messages wait to be announced.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerIndex> {
        self.lines.iter().filter(|(_, line)| !line.waiting.is_empty()).map(|(&peer, _)| peer)
    }

    /// How much of a message is buffered before it is announced. Units: bytes.
    pub(crate) fn wanted(&self, total: usize) -> usize {
        if total <= self.setup.limit { total } else { self.setup.min }
    }

    /// Takes a message that matched the posted `receive` or, untagged, needs none; it is announced
    /// behind the others of its peer.
    ///
    /// "The 'ep' field will point to the receiving endpoint or Rx context, and 'context' will be
    /// NULL"; of a tagged message "the 'ep' field will be NULL. The 'context' field will match the
    /// application context specified when posting the tag."
    pub(crate) fn add(&mut self, peer: PeerIndex, parked: u32, tag: Option<(u32, u64)>) {
        let record = self.unused.pop().unwrap_or_default();
        let (endpoint, context) = match tag {
            Some((_, context)) => (0, context),
            None => (self.setup.endpoint, 0),
        };
        record.endpoint.store(endpoint, Ordering::Relaxed);
        record.set_context(context);
        let receive = tag.map(|(receive, _)| receive);
        let stage = Stage::Arriving;
        let message = BufferedMessage { record, stage, receive, asked: 0, shown: None };
        self.messages.insert(parked, message);
        self.lines.entry(peer).or_default().waiting.push_back(parked);
    }

    pub(crate) fn get(&self, parked: u32) -> Option<&BufferedMessage> {
        self.messages.get(&parked)
    }

    pub(crate) fn get_mut(&mut self, parked: u32) -> Option<&mut BufferedMessage> {
        self.messages.get_mut(&parked)
    }

    /// The parked message whose announcement had this context.
    pub(crate) fn find(&self, record: u64) -> Option<u32> {
        self.announced.get(&record).copied()
    }

    pub(crate) fn is_arriving(&self, parked: u32) -> bool {
        self.get(parked).is_some_and(|message| matches!(message.stage, Stage::Arriving))
    }

    /// As much of the message has come as is wanted.
    pub(crate) fn note_ready(&mut self, parked: u32) {
        if let Some(message) = self.messages.get_mut(&parked) {
            message.stage = Stage::Ready;
        }
    }

    /// The sender of an announced message has gone.
    pub(crate) fn note_lost(&mut self, parked: u32, why: &Cause) {
        if let Some(message) = self.messages.get_mut(&parked) {
            message.stage = Stage::Lost(why.clone());
        }
    }

    /// The next message of `peer`, if it can be announced: from now on it is. Its record's address
    /// and the posted tag.
    pub(crate) fn announce_next(&mut self, peer: PeerIndex) -> Option<(u32, u64, Option<u32>)> {
        let line = self.lines.get_mut(&peer)?;
        let parked = *line.waiting.front()?;
        let message = self.messages.get_mut(&parked)?;
        if !matches!(message.stage, Stage::Ready) {
            return None;
        }
        line.waiting.pop_front();
        message.stage = Stage::Announced;
        let address = message.record.address();
        self.announced.insert(address, parked);
        self.in_use += message.asked;
        Some((parked, address, message.receive.take()))
    }

    /// Whether `bytes` more may be asked for; then they are. `others` is what else may have to be
    /// held. The budget stops nobody for good: what is to be announced next may ask unless the
    /// application still has something that was asked for; one at a time, or for what is little, which
    /// each may send unasked as well.
    pub(crate) fn ask(
        &mut self,
        peer: PeerIndex,
        parked: u32,
        bytes: u64,
        (others, budget): (u64, u64),
    ) -> bool {
        let Some(message) = self.messages.get_mut(&parked) else { return false };
        let line = self.lines.entry(peer).or_default();
        let fits = others + bytes <= budget;
        let is_little = bytes <= CREDIT_FIRST;
        let in_turn =
            line.is_next(parked) && self.in_use == 0 && (is_little || self.beyond.is_none());
        let may = line.may_ask(parked) && (fits || in_turn);
        if may {
            (message.stage, message.asked) = (Stage::Arriving, bytes);
            line.feed(parked);
            if !fits && !is_little {
                self.beyond = Some(parked);
            }
        } else {
            message.stage = Stage::Starved;
            if line.starved.is_empty() {
                self.starved.push_back(peer);
            }
            line.starve(parked);
        }
        may
    }

    /// How many peers have messages that wait for others to give back.
    pub(crate) fn starved_len(&self) -> usize {
        self.starved.len()
    }

    /// The one of them that has waited longest; see [`Self::is_served`].
    pub(crate) fn next_starved(&mut self) -> Option<PeerIndex> {
        self.starved.pop_front()
    }

    /// Who was [`Self::next_starved`] has got what there was; it waits on for what is left.
    pub(crate) fn is_served(&mut self, peer: PeerIndex) {
        let is_starved = self.first_starved(peer).is_some();
        if is_starved && !self.starved.contains(&peer) {
            self.starved.push_back(peer);
        }
    }

    /// The message of `peer` that what is given back is for.
    pub(crate) fn first_starved(&self, peer: PeerIndex) -> Option<u32> {
        self.lines.get(&peer)?.starved.front().copied()
    }

    /// The same if it is the one that is to be announced next.
    pub(crate) fn starved_head(&self, peer: PeerIndex) -> Option<u32> {
        let first = *self.lines.get(&peer)?.waiting.front()?;
        matches!(self.get(first)?.stage, Stage::Starved).then_some(first)
    }

    /// Forgets a message; its record may be another one's from now on.
    pub(crate) fn remove(&mut self, peer: PeerIndex, parked: u32) -> Option<BufferedMessage> {
        let message = self.messages.remove(&parked)?;
        if self.beyond == Some(parked) {
            self.beyond = None;
        }
        if self.announced.remove(&message.record.address()).is_some() {
            self.in_use -= message.asked;
        } else {
            if let Some(line) = self.lines.get_mut(&peer) {
                line.waiting.retain(|&waiting| waiting != parked);
                line.feed(parked);
            }
        }
        Some(message)
    }

    /// Takes back the record of a message that was removed.
    pub(crate) fn reuse(&mut self, record: Box<ReceiveContext>) {
        self.unused.push(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 60 << 20;

    fn buffering() -> Box<Buffering> {
        let setup = BufferingSetup { limit: LIMIT as usize, min: 64, endpoint: 0 };
        Buffering::new(Some(&setup), None).unwrap()
    }

    #[test]
    fn the_budget_holds_for_what_has_not_been_announced() {
        const BUDGET: u64 = 64 << 20;
        let (mut all, mut held) = (buffering(), 0);
        for peer in 0..100 {
            all.add(peer, peer, None);
            if all.ask(peer, peer, LIMIT, (held, BUDGET)) {
                held += LIMIT;
            }
        }
        assert_eq!(held, 2 * LIMIT, "one of them, and one in its turn");
        // What is little holds nobody up, though somebody does not send what was asked for.
        all.add(100, 100, None);
        assert!(all.ask(100, 100, CREDIT_FIRST, (BUDGET, BUDGET)));
        assert!(all.remove(1, 1).is_some_and(|message| message.asked == LIMIT));
        assert_eq!(
            (all.starved_len(), all.next_starved(), all.starved_head(2)),
            (98, Some(2), Some(2))
        );
        assert!(all.ask(2, 2, LIMIT, (BUDGET, BUDGET)), "what was beyond it is given back");
    }

    #[test]
    fn what_is_given_back_is_for_the_first_of_a_line() {
        const BUDGET: u64 = 2 * LIMIT;
        let mut all = buffering();
        (0..4).for_each(|parked| all.add(7, parked, None));
        for (parked, asked) in [(0, true), (1, true), (2, false), (3, false)] {
            assert_eq!(
                all.ask(7, parked, LIMIT, (u64::from(parked).min(2) * LIMIT, BUDGET)),
                asked
            );
        }
        (0..2).for_each(|parked| all.note_ready(parked));
        let announced = [(); 2].map(|()| all.announce_next(7).map(|(parked, ..)| parked));
        assert_eq!(announced, [Some(0), Some(1)]);
        assert!(all.remove(7, 0).is_some());
        assert!(!all.ask(7, 3, LIMIT, (LIMIT, BUDGET)), "the first is starved");
        assert_eq!((all.first_starved(7), all.starved_head(7)), (Some(2), Some(2)));
        assert!(all.ask(7, 2, LIMIT, (LIMIT, BUDGET)));
        assert_eq!(all.first_starved(7), Some(3));
        assert!(all.remove(7, 1).is_some());
        assert!(all.ask(7, 3, LIMIT, (LIMIT, BUDGET)));
        assert_eq!(all.first_starved(7), None);
    }

    #[test]
    fn whose_messages_were_announced_is_not_waited_for() {
        let mut all = buffering();
        all.add(3, 7, None);
        assert_eq!(all.peers().collect::<Vec<_>>(), [3]);
        all.note_ready(7);
        assert!(all.announce_next(3).is_some());
        assert_eq!(all.peers().count(), 0);
    }
}

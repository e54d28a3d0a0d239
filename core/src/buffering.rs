//! Messages that are received into memory of ours, and announced: what is kept of them.
//! Reference: fi_msg(3), "Buffered Receives", "Variable Length Messages".

use std::collections::{HashMap, VecDeque};

use crate::{
    engine::peer::CREDIT_FIRST,
    flags::Flags,
    primitive::{AtomicU64, Ordering},
    tag_match::Matcher,
    transport::{PeerIndex, Unreachable},
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
    Lost(Unreachable),
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
}

/// What an engine keeps of buffered messages.
pub(crate) struct Buffering {
    pub(crate) setup: BufferingSetup,
    /// Tags that are posted; messages for them are announced.
    pub(crate) tags: Matcher,
    /// By index of the parked message.
    messages: HashMap<u32, BufferedMessage>,
    /// Parked messages by their records' address.
    announced: HashMap<u64, u32>,
    /// By peer: what is not announced yet, in the order in which it is going to be. Lines stay when they
    /// are empty, of which there are no more than the engine has places for peers.
    lines: HashMap<PeerIndex, VecDeque<u32>>,
    /// What waits until others give back what was asked for.
    starved: VecDeque<u32>,
    /// Bytes that were asked for, of what the application has.
    in_use: u64,
    /// The same, and of what is still arriving.
    asked: u64,
    /// Records that no message has. Boxed, since applications hold their addresses.
    #[allow(clippy::vec_box)]
    unused: Vec<Box<ReceiveContext>>,
}

impl Buffering {
    pub(crate) fn new(setup: Option<&BufferingSetup>) -> Option<Box<Buffering>> {
        setup.map(|&setup| {
            Box::new(Buffering {
                setup,
                tags: Matcher::new(),
                messages: HashMap::new(),
                announced: HashMap::new(),
                lines: HashMap::new(),
                starved: VecDeque::new(),
                in_use: 0,
                asked: 0,
                unused: Vec::new(),
            })
        })
    }

    /// Those whose messages wait to be announced.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerIndex> {
        self.lines.iter().filter(|(_, line)| !line.is_empty()).map(|(&peer, _)| peer)
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
        let message = BufferedMessage { record, stage: Stage::Arriving, receive, asked: 0 };
        self.messages.insert(parked, message);
        self.lines.entry(peer).or_default().push_back(parked);
    }

    pub(crate) fn get(&self, parked: u32) -> Option<&BufferedMessage> {
        self.messages.get(&parked)
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
    pub(crate) fn note_lost(&mut self, parked: u32, why: &Unreachable) {
        if let Some(message) = self.messages.get_mut(&parked) {
            message.stage = Stage::Lost(why.clone());
        }
    }

    /// The next message of `peer`, if it can be announced: from now on it is. Its record's address
    /// and the posted tag.
    pub(crate) fn announce_next(&mut self, peer: PeerIndex) -> Option<(u32, u64, Option<u32>)> {
        let line = self.lines.get_mut(&peer)?;
        let parked = *line.front()?;
        let message = self.messages.get_mut(&parked)?;
        if !matches!(message.stage, Stage::Ready) {
            return None;
        }
        line.pop_front();
        message.stage = Stage::Announced;
        let address = message.record.address();
        self.announced.insert(address, parked);
        self.in_use += message.asked;
        Some((parked, address, message.receive.take()))
    }

    /// Whether `bytes` more may be asked for; then they are. `others` is what else may have to be
    /// held. The budget stops nobody for good: what is to be announced next may ask unless something
    /// else that was asked for is still to be given back; and for little, which each may send unasked
    /// as well, unless the application is who has it.
    pub(crate) fn ask(
        &mut self,
        peer: PeerIndex,
        parked: u32,
        bytes: u64,
        (others, budget): (u64, u64),
    ) -> bool {
        let is_next = self.lines.get(&peer).is_some_and(|line| line.front() == Some(&parked));
        let little = if bytes <= CREDIT_FIRST { self.in_use } else { self.asked };
        let may = others + bytes <= budget || (is_next && little == 0);
        let Some(message) = self.messages.get_mut(&parked) else { return false };
        if may {
            (message.stage, message.asked) = (Stage::Arriving, bytes);
            self.asked += bytes;
        } else {
            message.stage = Stage::Starved;
            self.starved.push_back(parked);
        }
        may
    }

    /// How many messages wait for others to give back.
    pub(crate) fn starved_len(&self) -> usize {
        self.starved.len()
    }

    /// The one of them that has waited longest, which waits no more.
    pub(crate) fn next_starved(&mut self) -> Option<u32> {
        self.starved.pop_front()
    }

    /// The same of the message of `peer` that is to be announced next.
    pub(crate) fn starved_head(&mut self, peer: PeerIndex) -> Option<u32> {
        let parked = *self.lines.get(&peer)?.front()?;
        let is_starved = matches!(self.get(parked)?.stage, Stage::Starved);
        self.starved.retain(|&starved| !(is_starved && starved == parked));
        is_starved.then_some(parked)
    }

    /// Forgets a message; its record may be another one's from now on.
    pub(crate) fn remove(&mut self, peer: PeerIndex, parked: u32) -> Option<BufferedMessage> {
        let message = self.messages.remove(&parked)?;
        self.asked -= message.asked;
        if self.announced.remove(&message.record.address()).is_some() {
            self.in_use -= message.asked;
        } else {
            self.starved.retain(|&starved| starved != parked);
            if let Some(line) = self.lines.get_mut(&peer) {
                line.retain(|&waiting| waiting != parked);
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
        Buffering::new(Some(&setup)).unwrap()
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
        assert_eq!(held, LIMIT, "one of them");
        // What is little holds nobody up, though somebody does not send what was asked for.
        all.add(100, 100, None);
        assert!(all.ask(100, 100, CREDIT_FIRST, (BUDGET, BUDGET)));
        assert!(all.remove(0, 0).is_some_and(|message| message.asked == LIMIT));
        assert!(all.remove(100, 100).is_some());
        assert_eq!(all.starved_head(1), Some(1));
        assert!(all.ask(1, 1, LIMIT, (BUDGET, BUDGET)), "all was given back");
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

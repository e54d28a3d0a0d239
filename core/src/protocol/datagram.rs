//! Datagrams: messages of one packet that may be lost. Reference: fi_endpoint(3), FI_EP_DGRAM.
//!
//! The engine is that of reliable endpoints, without credit, consent and acknowledgement: nobody
//! waits for a receiver. What finds no room at its peer is dropped by the sender, what nobody has
//! asked for is parked by the receiver as long as there is a place; both are counted, and a
//! dropped send completes like any other.

use crate::{
    endpoint::PostError,
    engine::{Engine, peer::PeerState},
    memory::Pieces,
    operation::{Copied, SendOperation, SendPost, in_one_piece},
    protocol::{
        credit::CREDIT_FIRST,
        members::{HeldForMembers, Listed},
        multicast::Group,
    },
    transport::{PeerIndex, Transport},
    wire::{self, Head, Kind},
};

/// What one peer can have parked here: as much as a reliable one before it is granted more.
/// Units: bytes, envelopes included.
const PARKED_MAX: u64 = CREDIT_FIRST;
/// Sends that wait for one peer to be found. More are dropped, so that others can be sent to.
pub(crate) const HELD_MAX: usize = 64;

/// Datagrams that were dropped, for want of room or of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Of ours, before they left.
    pub sent: u64,
    /// Of others', because nobody had asked for them.
    pub received: u64,
}

/// What an engine keeps of datagrams.
#[derive(Default)]
pub struct Datagrams {
    pub(crate) dropped: Dropped,
    /// What is parked of all peers, those that are gone included. Units: bytes, envelopes included.
    pub(crate) parked: u64,
    /// Groups that were joined, by number.
    pub(crate) groups: Vec<Option<Group>>,
    /// What was sent to members of them that are looked for.
    pub(crate) held: HeldForMembers,
}

impl Datagrams {
    /// Those who are members of a group, or that something is held for.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerIndex> {
        let members = self.groups.iter().flatten().flat_map(|group| &group.members);
        members.map(Listed::peer).chain(self.held.keys().copied())
    }

    /// Whether a packet may come to an endpoint of datagrams.
    pub(crate) fn admits(head: Head) -> bool {
        let answered = wire::ACK_DELIVERY | wire::ACK_MATCH;
        match Kind::from_byte(head.kind) {
            Some(Kind::Eager) => head.flags & answered == 0,
            Some(Kind::Bye) => true,
            _ => false,
        }
    }
}

impl<T: Transport> Engine<T> {
    /// The longest message. Units: bytes.
    pub(crate) fn message_max(&self) -> usize {
        if self.datagrams.is_some() { self.limits.single } else { self.setup.message_max }
    }

    /// What was dropped so far; nothing ever is where datagrams are not.
    pub(crate) fn dropped(&self) -> Dropped {
        self.datagrams.as_ref().map_or(Dropped::default(), |datagrams| datagrams.dropped)
    }

    /// Says in the log what was dropped, for who cannot ask.
    pub(crate) fn tell_dropped(&self) {
        let Dropped { sent, received } = self.dropped();
        if sent + received > 0 {
            let address = self.transport.address();
            tracing::info!(%address, sent, received, "datagrams were dropped");
        }
    }

    pub(crate) fn count_dropped_send(&mut self) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.dropped.sent += 1;
        }
    }

    /// Sends a datagram, holds it until its peer is found, or drops it.
    ///
    /// # Errors
    /// It is too long, or we have no room ourselves.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_datagram(
        &mut self,
        peer: PeerIndex,
        post: SendPost<'_>,
    ) -> Result<(), PostError> {
        post.check_length(self.message_max())?;
        let is_ready = self.peers[peer as usize].state == PeerState::Ready;
        // What waits for room may find some by now.
        if is_ready && !self.peers[peer as usize].queue.is_empty() {
            self.pump(peer);
        }
        let full = self.is_full_of_datagrams()?;
        let (piece, gathered) = in_one_piece(post.pieces)?;
        let post = SendPost { pieces: Pieces::One(piece), ..post };
        let goes_first = is_ready && self.peers[peer as usize].queue.is_empty();
        if goes_first && self.push_eager(peer, &post, piece) {
            let attachment = post.attachment.and_then(Option::take);
            self.report_sent_behind(peer, post.flags, post.context, attachment);
            return Ok(());
        }
        let holds = match is_ready {
            true if goes_first && !self.transport.waits_for_itself(peer) => false,
            true if full => return Err(self.no_place()),
            true => true,
            false => !full && self.has_place_for_one_more(peer),
        };
        if holds {
            let operation = match gathered {
                Some(_) => SendOperation::kept(peer, post, gathered),
                None => SendOperation::from_post(peer, post)?,
            };
            self.hold_datagram(peer, operation);
        } else {
            self.drop_unsent(peer, post);
        }
        Ok(())
    }

    /// Whether another datagram may wait until its peer is found.
    fn has_place_for_one_more(&self, peer: PeerIndex) -> bool {
        self.peers[peer as usize].queue.len() < HELD_MAX
    }

    /// Drops a datagram that has no record. To who sent it, it has left.
    fn drop_unsent(&mut self, peer: PeerIndex, post: SendPost<'_>) {
        self.ensure_connection(peer);
        self.count_dropped_send();
        let attachment = post.attachment.and_then(Option::take);
        self.report_sent_behind(peer, post.flags, post.context, attachment);
    }

    /// Whether the transmit queue is full of datagrams that are held.
    ///
    /// # Errors
    /// It is full, and some that have left wait for their turn to be reported.
    pub(crate) fn is_full_of_datagrams(&mut self) -> Result<bool, PostError> {
        let unreported = self.unreported();
        let full = self.sends.len() + unreported >= self.setup.transmit_size;
        if full && unreported > 0 { Err(self.no_place()) } else { Ok(full) }
    }

    /// Queues a datagram until its peer is found, or we have room.
    fn hold_datagram(&mut self, peer: PeerIndex, operation: SendOperation) {
        let index = self.sends.insert(operation);
        self.enter_line(peer, index);
        self.peers[peer as usize].queue.push_back(index);
        self.pump(peer);
        self.note_backlog(peer);
    }

    /// Takes a datagram that was left for the owner, whose place was reserved: it is sent, held or dropped
    /// as any other.
    pub(crate) fn datagram_submitted(
        &mut self,
        peer: PeerIndex,
        post: SendPost<'_>,
        copy: Option<Copied>,
    ) {
        let is_ready = self.peers[peer as usize].state == PeerState::Ready;
        if !is_ready && !self.has_place_for_one_more(peer) {
            return self.drop_unsent(peer, post);
        }
        match in_one_piece(post.pieces) {
            Ok((piece, gathered)) => {
                let post = SendPost { pieces: Pieces::One(piece), ..post };
                self.hold_datagram(peer, SendOperation::kept(peer, post, gathered.or(copy)));
            }
            Err(refused) => self.refuse_submitted(post, &refused),
        }
    }

    /// Pushes the datagram at the head of the queue, or drops it. False if it has to wait.
    pub(crate) fn push_datagram(&mut self, peer: PeerIndex, index: u32) -> bool {
        let piece = self.sends[index].pieces.view().contiguous(0, usize::MAX);
        if self.push_whole(peer, index, piece, 0) {
            return true;
        }
        if self.transport.waits_for_itself(peer) {
            return false;
        }
        self.peers[peer as usize].queue.pop_front();
        self.drop_datagram(index);
        true
    }

    /// Drops a datagram that was held. To who sent it, it has left.
    pub(crate) fn drop_datagram(&mut self, index: u32) {
        self.count_dropped_send();
        self.finish_send(index);
    }

    /// Lets datagrams leave that are held while peers, or members of a group, are looked for: to who
    /// sent them they have left, if they were injected or sent to a group, and nobody polls us any
    /// more. What is not found within a second is dropped.
    pub(crate) fn let_datagrams_leave(&mut self) {
        self.take_events_while(Self::holds_datagrams, |engine| engine.push_backlog(false));
    }

    fn holds_datagrams(&self) -> bool {
        self.datagrams.as_ref().is_some_and(|datagrams| {
            !datagrams.held.is_empty() || self.peers.iter().any(|peer| !peer.queue.is_empty())
        })
    }

    /// Whether a message that nobody has asked for is dropped: its sender, or everybody, has no place
    /// left here.
    pub(crate) fn drops_unasked(&mut self, peer: PeerIndex, cost: u64) -> bool {
        let Some(datagrams) = &mut self.datagrams else {
            return false;
        };
        let drops = self.peers[peer as usize].flow.held + cost > PARKED_MAX
            || datagrams.parked + cost > self.setup.unexpected_budget;
        datagrams.dropped.received += u64::from(drops);
        drops
    }
}

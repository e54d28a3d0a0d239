//! Posting a send: straight into the lane if nothing stands in the way, else
//! into the peer's queue.

use crate::{
    completion_queue::ErrorEntry,
    endpoint::PostError,
    engine::{
        Engine,
        order::transmit::{End, Outcome},
        peer::PeerState,
        report::Counted,
    },
    error::{Cause, HasErrno},
    flags::{FAMILY, Flags},
    memory::{Piece, Pieces},
    operation::{Copied, SendOperation, SendPost, SendStage, StoredPieces, can_be_named, set_down},
    protocol::fence::Earlier,
    transport::{PeerIndex, Room, Transport},
    wire::{self, ENVELOPE_COST, Head, Kind},
};

/// What keeps a send from leaving at once without a record of it.
const NEEDS_RECORD: Flags =
    Flags::FENCE.union(Flags::DELIVERY_COMPLETE).union(Flags::MATCH_COMPLETE);

/// The longest vectored message that is gathered on the stack. Units: words.
const GATHER_WORDS: usize = 64;

/// A short vectored message in one piece; none if it is long.
#[inline(never)]
fn gather(pieces: &[Piece], words: &mut [u64; GATHER_WORDS]) -> Option<Piece> {
    let target = Piece::of_words(words);
    let mut length = 0;
    for piece in pieces {
        if piece.len() > target.len() - length {
            return None;
        }
        piece.copy_to(target.part(length, piece.len()));
        length += piece.len();
    }
    Some(target.part(0, length))
}

impl<T: Transport> Engine<T> {
    /// Sends, or queues the send. An error has no side effect.
    ///
    /// Cost of a message up to one packet to a connected peer: no system call,
    /// no allocation, no lock.
    #[inline(always)]
    pub fn send(&mut self, post: SendPost<'_>) -> Result<(), PostError> {
        let Some(peer) = self.peer_at(post.to) else {
            return Err(self.refuse_nobody(post.to));
        };
        let flags = post.flags;
        let sent = match post.pieces {
            Pieces::One(piece) => self.send_whole(peer, post, piece),
            Pieces::Many(pieces) => self.send_gathered(peer, set_down(post), pieces),
        };
        self.flush_unless_more(flags);
        sent
    }

    /// Sends a message that lies in one piece.
    #[inline(always)]
    fn send_whole(
        &mut self,
        peer: PeerIndex,
        post: SendPost<'_>,
        piece: Piece,
    ) -> Result<(), PostError> {
        if piece.len() > self.limits.short || post.flags.intersects(NEEDS_RECORD) {
            if self.push_longer(peer, post.flags, post.tag, post.data, piece) {
                self.report_sent(post.flags, post.context, post.attachment.and_then(Option::take));
                return Ok(());
            }
            let whole = self.limits.single.max(self.injected_whole(post.flags));
            if piece.len() > whole || post.flags.intersects(NEEDS_RECORD) {
                return self.send_queued(peer, set_down(post));
            }
        }
        let cost = piece.len() as u64 + ENVELOPE_COST;
        let record = &self.peers[peer as usize];
        let (clear, confirms) = (record.clear, record.unconfirmed.possible);
        if !self.has_credit(peer, cost) {
            return self.send_queued(peer, set_down(post));
        }
        if confirms && self.confirms(peer, post.flags) {
            return match clear {
                true => self.send_confirmed(peer, set_down(post), piece),
                false => self.send_queued(peer, set_down(post)),
            };
        }
        if clear && self.push_eager(peer, &post, piece) {
            self.peers[peer as usize].credit.charged += cost;
            self.report_sent(post.flags, post.context, post.attachment.and_then(Option::take));
            return Ok(());
        }
        self.send_later(peer, set_down(post), piece)
    }

    /// Sends a message that is one packet, and keeps a record of it until the peer's device has it.
    #[inline(never)]
    fn send_confirmed(
        &mut self,
        peer: PeerIndex,
        post: SendPost<'_>,
        piece: Piece,
    ) -> Result<(), PostError> {
        self.check_place(peer)?;
        self.transport.confirm_next(peer);
        if !self.push_eager(peer, &post, piece) {
            return self.send_queued(peer, post);
        }
        let record = &mut self.peers[peer as usize];
        record.credit.charged += piece.len() as u64 + ENVELOPE_COST;
        record.note_send();
        let index = self.sends.insert(SendOperation::kept(peer, post, None));
        self.enter_line(peer, index);
        self.await_confirmation(peer, index);
        Ok(())
    }

    /// Pushes a message that is long enough to be shown while it is copied in, if nothing keeps it from
    /// leaving at once as one packet. A record of one that is longer than what always does would
    /// cost more than half of what the packet does without its copy.
    ///
    /// What it needs of a post are numbers: a post that moves through memory would wait until the
    /// payload of the message before has left the store buffer.
    #[inline(never)]
    fn push_longer(
        &mut self,
        peer: PeerIndex,
        flags: Flags,
        tag: u64,
        data: u64,
        piece: Piece,
    ) -> bool {
        let goes = self.peers[peer as usize].clear
            && !flags.intersects(NEEDS_RECORD)
            && !self.confirms(peer, flags)
            && (piece.len() <= self.injected_whole(flags) || self.goes_whole(peer, piece.len()));
        // Only what goes has a length that can be true.
        let cost = if goes { piece.len() as u64 + ENVELOPE_COST } else { 0 };
        if !goes || !self.has_credit(peer, cost) {
            return false;
        }
        if !self.push_whole_message(peer, self.shown_flag(peer), flags, tag, data, piece) {
            return false;
        }
        let record = &mut self.peers[peer as usize];
        record.credit.charged += cost;
        record.note_send();
        true
    }

    /// A short vectored message is gathered on the stack; a long one is sent piece
    /// by piece.
    #[inline(never)]
    fn send_gathered(
        &mut self,
        peer: PeerIndex,
        mut post: SendPost<'_>,
        pieces: &[Piece],
    ) -> Result<(), PostError> {
        let mut words = [0; GATHER_WORDS];
        if !post.flags.intersects(NEEDS_RECORD)
            && self.peers[peer as usize].clear
            && !self.confirms(peer, post.flags)
            && let Some(piece) = gather(pieces, &mut words)
            && self.has_credit(peer, piece.len() as u64 + ENVELOPE_COST)
            && self.push_eager(peer, &post, piece)
        {
            self.peers[peer as usize].credit.charged += piece.len() as u64 + ENVELOPE_COST;
            self.report_sent(
                post.flags,
                post.context,
                post.attachment.take().and_then(Option::take),
            );
            return Ok(());
        }
        self.send_queued(peer, post)
    }

    /// The longest message of these flags that is one packet because it is injected: it is not left
    /// to be read where it lies, so nothing is to be compared.
    #[inline]
    fn injected_whole(&self, flags: Flags) -> usize {
        let is_so = flags.contains(Flags::INJECT) && self.datagrams.is_none();
        if is_so { self.limits.fragment } else { 0 }
    }

    /// There is no room at the peer now. An injected message is not copied for
    /// that: the caller, who has it, tries again. Where no connection comes
    /// about it is, so that the failure has something to be reported for; and where there may
    /// never be room for more than a part of it at a time.
    #[cold]
    #[inline(never)]
    fn send_later(
        &mut self,
        peer: PeerIndex,
        post: SendPost<'_>,
        piece: Piece,
    ) -> Result<(), PostError> {
        if self.datagrams.is_some() {
            return self.send_datagram(peer, post);
        }
        if self.peers[peer as usize].fenced {
            // Whoever may go on goes on with the next call.
            self.oldest_fence(peer);
        }
        let record = &self.peers[peer as usize];
        if record.takes_turns && record.is_open() {
            self.check_place(peer)?;
            if self.push_eager(peer, &post, piece) {
                self.peers[peer as usize].credit.charged += piece.len() as u64 + ENVELOPE_COST;
                let attachment = post.attachment.and_then(Option::take);
                self.report_sent_behind(peer, post.flags, post.context, attachment);
                return Ok(());
            }
        }
        let ready = self.peers[peer as usize].state == PeerState::Ready;
        let injected = ready && post.flags.contains(Flags::INJECT);
        if injected && !self.goes_in_pieces(peer, piece.len()) {
            return Err(self.no_place());
        }
        self.send_queued(peer, post)
    }

    /// Whether there is room now, but only for less than `length` bytes a packet.
    fn goes_in_pieces(&mut self, peer: PeerIndex, length: usize) -> bool {
        let room = self.transport.room(peer, length);
        matches!(room, Room::Bytes(bytes) if bytes < length)
    }

    #[inline(always)]
    pub(crate) fn push_eager(
        &mut self,
        peer: PeerIndex,
        post: &SendPost<'_>,
        piece: Piece,
    ) -> bool {
        self.push_whole_message(peer, 0, post.flags, post.tag, post.data, piece)
    }

    #[inline(always)]
    fn push_whole_message(
        &mut self,
        peer: PeerIndex,
        head_flags: u8,
        flags: Flags,
        tag: u64,
        data: u64,
        piece: Piece,
    ) -> bool {
        let tagged = if flags.contains(Flags::TAGGED) { wire::TAGGED } else { 0 };
        let head_flags = head_flags | tagged;
        if flags.contains(Flags::REMOTE_CQ_DATA) {
            let head = Head::new(Kind::Eager, head_flags | wire::DATA);
            return self.transport.push(peer, head, tag, &[data], piece);
        }
        self.transport.push(peer, Head::new(Kind::Eager, head_flags), tag, &[], piece)
    }

    #[cold]
    #[inline(never)]
    fn send_queued(&mut self, peer: PeerIndex, post: SendPost<'_>) -> Result<(), PostError> {
        if self.datagrams.is_some() {
            return self.send_datagram(peer, post);
        }
        post.check_length(self.setup.message_max)?;
        self.refuse_unreachable(peer, post.flags, post.context)?;
        self.check_place(peer)?;
        let flags = post.flags;
        self.enqueue(peer, SendOperation::from_post(peer, post)?);
        self.let_leave(peer, flags);
        Ok(())
    }

    /// Whether there is a place for one more send: what is not reported still has its own.
    pub(crate) fn check_place(&mut self, peer: PeerIndex) -> Result<(), PostError> {
        let is_full =
            |engine: &Self| engine.sends.len() + engine.unreported() >= engine.setup.transmit_size;
        if is_full(self) {
            self.pump(peer);
            if is_full(self) {
                return Err(self.no_place());
            }
        }
        Ok(())
    }

    /// There is no place, or no room. Who posts again and again and reads nothing meanwhile, as programs do that hold a lock of
    /// their own, would do so for ever: what is answered gives a place back, and is taken here.
    #[cold]
    pub(crate) fn no_place(&mut self) -> PostError {
        self.progress();
        PostError::Again
    }

    fn enqueue(&mut self, peer: PeerIndex, operation: SendOperation) {
        let is_fenced = operation.flags.contains(Flags::FENCE);
        let index = self.sends.insert(operation);
        if is_fenced {
            self.note_fence(peer, Earlier::Send(self.sends.name(index)));
        }
        self.enter_line(peer, index);
        self.peers[peer as usize].queue.push_back(index);
        self.pump(peer);
        self.note_backlog(peer);
    }

    /// Takes a send that was left for the owner: whoever posted it was told that it is taken, so it is
    /// queued whatever the transmit size says, and what is wrong with it becomes an error completion.
    /// An injected one lies in its `copy`.
    #[cold]
    pub(crate) fn send_submitted(&mut self, post: SendPost<'_>, copy: Option<Copied>) {
        match self.peer_at(post.to) {
            Some(peer) if self.datagrams.is_some() => self.datagram_submitted(peer, post, copy),
            Some(peer) => {
                let flags = post.flags;
                self.enqueue(peer, SendOperation::kept(peer, post, copy));
                self.let_leave(peer, flags);
            }
            None => {
                let refused = self.no_peer(post.to);
                self.refuse_submitted(post, &refused);
            }
        }
    }

    /// Fails a send that was left for the owner, and cannot be taken.
    pub(crate) fn refuse_submitted(&mut self, post: SendPost<'_>, refused: &PostError) {
        let reason = format!("before the send left: {refused}");
        let error = post.failed(&Cause { errno: refused.errno(), reason });
        let outcome = Outcome { counted: Counted::Sends, end: End::Failure(error) };
        match self.datagrams.is_some() {
            true => self.report_behind(0, outcome),
            false => self.report(outcome),
        }
    }

    /// Fails a send that has no record.
    pub(crate) fn fail_unsent(&mut self, post: SendPost<'_>, why: &Cause) {
        self.report_failure(Counted::Sends, post.failed(why));
    }
}

impl SendPost<'_> {
    /// The error of a send that has no record.
    fn failed(self, why: &Cause) -> ErrorEntry {
        let flags = (self.flags & FAMILY) | Flags::SEND;
        ErrorEntry {
            data: self.data,
            tag: self.tag,
            attachment: self.attachment.and_then(Option::take),
            ..ErrorEntry::new(self.context, flags, why.errno, why.reason.clone())
        }
    }
}

impl SendOperation {
    /// # Errors
    /// There is no memory for a copy of what is injected.
    pub(crate) fn from_post(
        peer: PeerIndex,
        post: SendPost<'_>,
    ) -> Result<SendOperation, PostError> {
        let copy = post.injected_copy()?;
        Ok(SendOperation::kept(peer, post, copy))
    }

    /// Of a message that lies in its `copy`, if it has one.
    pub(crate) fn kept(peer: PeerIndex, post: SendPost<'_>, copy: Option<Copied>) -> SendOperation {
        let total = post.pieces.total();
        let pieces = StoredPieces::of_send(post.pieces, &copy);
        SendOperation {
            lent: None,
            lends: None,
            pieces,
            copy,
            peer,
            stage: SendStage::Queued,
            flags: post.flags,
            tag: post.tag,
            data: post.data,
            context: post.context,
            total,
            sent: 0,
            prefix: 0,
            until: total,
            part: 0,
            shown: false,
            consented: false,
            is_shared: false,
            run: None,
            region: post.region,
            attachment: post.attachment.and_then(Option::take),
        }
    }

    /// Whether something of it has left for `peer`, so that it dies with the
    /// peer's present incarnation.
    pub(crate) fn has_begun_with(&self, peer: PeerIndex) -> bool {
        self.peer == peer && self.stage != SendStage::Queued
    }

    /// Whether a cancel with `context` finds it.
    pub(crate) fn can_be_canceled(&self, context: u64) -> bool {
        let queued = self.stage == SendStage::Queued;
        queued && self.context == context && can_be_named(self.flags, context)
    }

    /// The flags of its first packet.
    pub(crate) fn head_flags(&self) -> u8 {
        let mut flags = 0;
        if self.flags.contains(Flags::TAGGED) {
            flags |= wire::TAGGED;
        }
        if self.flags.contains(Flags::REMOTE_CQ_DATA) {
            flags |= wire::DATA;
        }
        if self.flags.contains(Flags::MATCH_COMPLETE) {
            flags |= wire::ACK_MATCH;
        } else if self.flags.contains(Flags::DELIVERY_COMPLETE) {
            flags |= wire::ACK_DELIVERY;
        }
        flags
    }

    /// Whether the receiver is asked to say when it is delivered or matched.
    pub(crate) fn wants_acknowledgement(&self) -> bool {
        self.flags.intersects(Flags::DELIVERY_COMPLETE | Flags::MATCH_COMPLETE)
    }
}

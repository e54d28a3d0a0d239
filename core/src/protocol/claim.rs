//! Peek, claim and discard. Reference: fi_tagged(3).
//!
//! Whatever the outcome, it is in the completion queue, never in the return
//! value: "If no message is found matching the tags specified in the peek
//! request, then a completion queue error entry with err field set to FI_ENOMSG
//! will be available."

use crate::{
    address_vector::FI_ADDR_NOTAVAIL,
    completion_queue::{Entry, ErrorEntry},
    endpoint::PostError,
    engine::{Engine, peer::Reply, report::count_success},
    error::Errno,
    flags::{FAMILY, Flags},
    operation::{ReceiveOperation, ReceivePost, Target},
    protocol::claimed::Claimed,
    tag_match::SourceIndex,
    transport::Transport,
    wire::Kind,
};

/// Whether a peek with these flags claims what it finds.
pub(crate) fn claims(flags: Flags) -> bool {
    flags & (Flags::PEEK | Flags::CLAIM | Flags::DISCARD) == Flags::PEEK | Flags::CLAIM
}

/// Whether a receive with these flags is for a message that its context names: a peek has claimed it, or
/// it was announced.
pub(crate) fn retrieves(flags: Flags) -> bool {
    flags.intersects(Flags::CLAIM | Flags::DISCARD) && !flags.contains(Flags::PEEK)
}

impl<T: Transport> Engine<T> {
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_special(
        &mut self,
        source: SourceIndex,
        post: ReceivePost<'_>,
    ) -> Result<(), PostError> {
        if self.buffering.is_some() {
            return self.receive_buffered(source, post);
        }
        if post.flags.contains(Flags::MULTI_RECV) {
            return self.receive_multi(source, post);
        }
        if post.flags.contains(Flags::PEEK) {
            return self.peek(source, &post);
        }
        if !post.flags.contains(Flags::CLAIM) {
            return Err(PostError::BadFlags { flags: post.flags });
        }
        self.claim(post)
    }

    /// Receives or drops a message that a peek claimed.
    pub(crate) fn claim(&mut self, post: ReceivePost<'_>) -> Result<(), PostError> {
        let Some((parked, post)) = self.take_claimed(post)? else { return Ok(()) };
        if post.flags.contains(Flags::DISCARD) {
            self.discard_claimed(parked, &post);
        } else {
            let receive = self.keep_receive(post);
            self.receive_parked(receive, parked);
        }
        Ok(())
    }

    /// The message that a peek claimed with the post's context. Where its sender has gone, the post
    /// completes as failed, and nothing is left to do.
    pub(crate) fn take_claimed<'a>(
        &mut self,
        post: ReceivePost<'a>,
    ) -> Result<Option<(u32, ReceivePost<'a>)>, PostError> {
        match self.claimed.take(post.context) {
            Some(Claimed::Here(parked)) => Ok(Some((parked, post))),
            // It is to be no more, and is no more.
            Some(Claimed::Lost(_)) if post.flags.contains(Flags::DISCARD) => {
                self.complete_discard(&post);
                Ok(None)
            }
            Some(Claimed::Lost(why)) => {
                self.fail_receive(ReceiveOperation::from_post(post), None, 0, &why);
                Ok(None)
            }
            None => Err(PostError::NothingClaimed { context: post.context }),
        }
    }

    /// Of a message that is gone nobody knows more than the call says.
    fn complete_discard(&mut self, post: &ReceivePost<'_>) {
        let receive = &self.setup.receive;
        if let Some(queue) =
            receive.queue.as_ref().filter(|_| post.flags.contains(Flags::COMPLETION))
        {
            queue.push(Entry {
                context: post.context,
                flags: ((post.flags & FAMILY) | Flags::RECV).bits(),
                tag: post.tag,
                source: FI_ADDR_NOTAVAIL,
                ..Entry::default()
            });
        }
        count_success(None, receive.counter.as_deref());
    }

    /// Drops a message that a peek claimed, which completes as receives do.
    fn discard_claimed(&mut self, parked: u32, post: &ReceivePost<'_>) {
        if post.flags.contains(Flags::COMPLETION) {
            self.report_peek(parked, post, 0);
        }
        self.discard(parked);
        count_success(None, self.setup.receive.counter.as_deref());
    }

    /// A context names one claimed message: another one would be lost with its name.
    fn check_claim(&self, post: &ReceivePost<'_>) -> Result<(), PostError> {
        match claims(post.flags) && self.claimed.contains(post.context) {
            true => Err(PostError::ClaimedBefore { context: post.context }),
            false => Ok(()),
        }
    }

    pub(crate) fn peek(
        &mut self,
        source: SourceIndex,
        post: &ReceivePost<'_>,
    ) -> Result<(), PostError> {
        self.check_claim(post)?;
        let tagged = post.flags.contains(Flags::TAGGED);
        self.look_for_arrivals(tagged, source, post);
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        let Some(parked) = matcher.find_unexpected(source, post.tag, post.ignore) else {
            self.report_no_message(post);
            return Ok(());
        };
        if post.flags.intersects(Flags::CLAIM | Flags::DISCARD) {
            matcher.remove_unexpected(parked);
        }
        self.tell_peeked(parked, post);
        Ok(())
    }

    /// Reports what a peek has found, which is out of the matcher if it is claimed or discarded.
    pub(crate) fn tell_peeked(&mut self, parked: u32, post: &ReceivePost<'_>) {
        if post.flags.contains(Flags::DISCARD) {
            self.report_peek(parked, post, 0);
            return self.discard(parked);
        }
        let buffer = self.copy_peeked(parked, post);
        self.report_peek(parked, post, buffer);
        if post.flags.contains(Flags::CLAIM) {
            self.claimed.insert(post.context, parked);
        }
    }

    /// Takes what has arrived until the message is among it. Who peeks in a loop always finds
    /// the answer to the last peek in its queue, so that no read there would make progress.
    fn look_for_arrivals(&mut self, tagged: bool, source: SourceIndex, post: &ReceivePost<'_>) {
        const POLLS_MAX: usize = 32;
        for _ in 0..POLLS_MAX {
            let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
            let found = matcher.find_unexpected(source, post.tag, post.ignore).is_some();
            if found || !self.progress() {
                return;
            }
        }
    }

    /// "An application may supply a buffer if it desires to receive data as a
    /// part of the peek operation." Data of which not all has come is not given, nor such as would be
    /// written before the rest of a message that was matched before.
    fn copy_peeked(&mut self, parked: u32, post: &ReceivePost<'_>) -> u64 {
        let (copy, waits) = (self.copying(), self.waits_for_data(self.unexpected[parked].peer));
        let message = &mut self.unexpected[parked];
        if message.arriving.is_some() || post.pieces.total() == 0 || waits {
            return 0;
        }
        message.body.scatter(post.pieces, 0, message.total, copy);
        post.pieces.start() as u64
    }

    /// "If a peek request locates a matching message, the operation will complete successfully": whoever
    /// sent it. Who receives the message hears of a sender that is in no vector.
    fn report_peek(&mut self, parked: u32, post: &ReceivePost<'_>, buffer: u64) {
        self.know_sources();
        let message = &self.unexpected[parked];
        let source = self.peers[message.peer as usize].fi_addr;
        let entry = Entry {
            context: post.context,
            flags: (message.flags | Flags::RECV).bits(),
            length: message.total as u64,
            buffer,
            data: message.data,
            tag: message.tag,
            source,
            attachment: None,
        };
        if let Some(queue) = &self.setup.receive.queue {
            queue.push(entry);
        }
    }

    pub(crate) fn report_no_message(&mut self, post: &ReceivePost<'_>) {
        self.setup.receive.fail_uncounted(ErrorEntry {
            context: post.context,
            flags: (post.flags & FAMILY) | Flags::RECV,
            length: 0,
            buffer: 0,
            data: 0,
            tag: post.tag,
            overflow: 0,
            errno: Errno::NOMSG,
            reason: "no message that the peek asks for has arrived".into(),
            source: FI_ADDR_NOTAVAIL,
            source_address: None,
            attachment: None,
        });
    }

    /// Drops a message that was taken out of the matcher. Its sender is told:
    /// FI_MATCH_COMPLETE says "matched with a tagged buffer or was discarded".
    pub(crate) fn discard(&mut self, parked: u32) {
        let message = self.unexpected.remove(parked);
        self.release_charge(&message);
        let Some(index) = message.arriving else {
            if let Some(operation) = message.acknowledge {
                self.acknowledge(message.peer, operation);
            }
            return;
        };
        let incoming = &mut self.incoming[index];
        incoming.target = Target::Nowhere;
        if incoming.is_left {
            // Its first packet is still in the lane, and is met again: it would be taken for another.
            incoming.end = incoming.prefix;
        } else if incoming.is_rendezvous() {
            return self.refuse_rest(index);
        }
        // Its sender stops at the acknowledgement. Before the last packet that would leave a
        // message under way here which nobody ever finishes.
        incoming.acknowledge_whole |= message.acknowledge.is_some();
    }

    /// Finishes a rendezvous early: the rest stays at the sender. Parts of the
    /// prefix that are still on the way find nobody and are ignored.
    fn refuse_rest(&mut self, index: u32) {
        let incoming = self.incoming.remove(index);
        let operation = incoming.operation;
        self.peers[incoming.peer as usize].incoming.remove(&operation);
        self.reply(incoming.peer, Reply::new(Kind::Finish, operation, 0));
    }
}

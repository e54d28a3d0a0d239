//! Buffered receives: messages are announced, and then claimed or discarded. Reference: fi_msg(3),
//! "Buffered Receives"; fi_tagged(3), "Buffered Tagged Receives".
//!
//! They are parked like unexpected ones, and charged like them. A posted tag is no receive: it lies
//! in a matcher of its own, so that what arrives finds nothing where receives are posted, and the
//! fast path knows nothing of all this.

use std::sync::Arc;

use crate::{
    buffering::{BufferedMessage, Stage},
    completion_queue::Entry,
    endpoint::PostError,
    engine::Engine,
    error::Cause,
    flags::Flags,
    operation::{Body, Incoming, ReceiveOperation, ReceivePost, StoredPieces, Target, room_for},
    protocol::single_copy::STRETCH,
    tag_match::SourceIndex,
    transport::{PeerIndex, Transport},
};

/// What is shown of a message that was announced.
pub(crate) struct Shown {
    /// The context of its posted tag.
    context: u64,
    body: Arc<Vec<u8>>,
    arrived: usize,
}

impl Shown {
    /// The context of its posted tag, and the bytes that there are.
    pub(crate) fn look<R>(&self, look: impl FnOnce(u64, &[u8]) -> R) -> R {
        look(self.context, &self.body[..self.arrived])
    }
}

impl<T: Transport> Engine<T> {
    /// Posts a tag, or a peek, a claim or a discard, where messages are buffered.
    pub(crate) fn receive_buffered(
        &mut self,
        source: SourceIndex,
        post: ReceivePost<'_>,
    ) -> Result<(), PostError> {
        let flags = post.flags;
        if flags.contains(Flags::PEEK) {
            return self.peek(source, &post);
        }
        if flags.intersects(Flags::CLAIM | Flags::DISCARD) {
            let found = self.buffering.as_ref().and_then(|all| all.find(post.context));
            return match found {
                Some(parked) => {
                    self.unshow(parked, flags)?;
                    self.take_announced(parked, post);
                    Ok(())
                }
                None => self.claim_peeked(post),
            };
        }
        self.post_tag(source, post)
    }

    /// "Parameters related to the input buffers are ignored".
    fn post_tag(&mut self, source: SourceIndex, post: ReceivePost<'_>) -> Result<(), PostError> {
        let (tag, ignore, context) = (post.tag, post.ignore, post.context);
        let parked = self.tagged.take_unexpected(source, tag, ignore);
        if let (Some(over), None) = (self.over, &parked) {
            return Err(over.refusal());
        }
        let operation = ReceiveOperation::from_post(post);
        let receive =
            self.receives.insert(ReceiveOperation { pieces: StoredPieces::EMPTY, ..operation });
        match (parked, &mut self.buffering) {
            (Some(parked), _) => self.line_up(parked, Some((receive, context))),
            (None, Some(buffering)) => {
                buffering.tags.post(source, tag, ignore, receive);
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Gives a message that was just parked to the tag that is posted for it, or lets it wait for
    /// one. One without a tag is announced.
    pub(crate) fn buffer(&mut self, parked: u32) {
        let message = &self.unexpected[parked];
        let (tag, tagged) = (message.tag, message.flags.contains(Flags::TAGGED));
        if !tagged {
            return self.line_up(parked, None);
        }
        let source = self.peers[message.peer as usize].matched_as;
        let Some(buffering) = &mut self.buffering else { return };
        match buffering.tags.take_posted(source, tag) {
            Some(receive) => {
                let context = self.receives[receive].context;
                self.line_up(parked, Some((receive, context)));
            }
            None => {
                self.tagged.park(source, tag, parked);
            }
        }
    }

    /// Takes over what came before the context that buffers was enabled.
    pub(crate) fn buffer_parked(&mut self) {
        if self.buffering.is_some() {
            for (parked, _) in self.untagged.unexpected() {
                self.untagged.remove_unexpected(parked);
                self.line_up(parked, None);
            }
        }
    }

    /// Puts a message behind those of its peer that are to be announced.
    fn line_up(&mut self, parked: u32, tag: Option<(u32, u64)>) {
        let message = &mut self.unexpected[parked];
        let (peer, arriving) = (message.peer, message.arriving);
        message.body.settle();
        let Some(buffering) = &mut self.buffering else { return };
        buffering.add(peer, parked, tag);
        let Some(index) = arriving else {
            buffering.note_ready(parked);
            return self.announce_from(peer);
        };
        let incoming = &mut self.incoming[index];
        incoming.target = Target::Buffered(parked);
        incoming.end = incoming.prefix;
        self.finish_if_whole(index);
    }

    /// What was awaited of a message is there: it is announced, or more is asked for.
    pub(crate) fn buffer_more(&mut self, index: u32, parked: u32) {
        let Some(buffering) = self.buffering.as_mut().filter(|all| all.is_arriving(parked)) else {
            return;
        };
        let Incoming { peer, total, received, .. } = self.incoming[index];
        if received < buffering.wanted(total) {
            self.ask_more(index, parked);
        } else {
            self.is_buffered_now(index, parked);
        }
        self.announce_from(peer);
    }

    /// As much of a message is here as is wanted for now; maybe it is all.
    fn is_buffered_now(&mut self, index: u32, parked: u32) {
        if let Some(buffering) = &mut self.buffering {
            buffering.note_ready(parked);
        }
        let Incoming { total, received, .. } = self.incoming[index];
        if received == total {
            self.unexpected[parked].arriving = None;
            self.close_incoming(index);
        }
    }

    /// Asks for what is to be buffered of a message beyond its prefix. False if that has to wait,
    /// since enough is held.
    fn ask_more(&mut self, index: u32, parked: u32) -> bool {
        let Incoming { peer, total, received, remote, .. } = self.incoming[index];
        let held = (self.windows + self.left_behind, self.setup.unexpected_budget);
        let Some(buffering) = &mut self.buffering else { return false };
        let wanted = buffering.wanted(total);
        let more = (wanted - received) as u64;
        if !buffering.ask(peer, parked, more, held) {
            return false;
        }
        self.windows += more;
        let body = &mut self.unexpected[parked].body;
        *body = body.lengthened(wanted);
        self.incoming[index].end = wanted;
        let is_readable = remote != 0
            && wanted <= STRETCH
            && !self.peers[peer as usize].copies.unreadable
            && !self.seems_withdrawn(peer)
            && self.transport.can_read_remote(peer);
        if !is_readable {
            self.consent(index);
            return true;
        }
        let piece = self.unexpected[parked].body.piece().part(received, more as usize);
        let read = self.transport.read_remote(peer, remote.wrapping_add(received as u64), piece);
        let withdrawn = self.is_withdrawn(peer);
        if read && !withdrawn {
            self.incoming[index].received = wanted;
            self.is_buffered_now(index, parked);
        } else {
            self.peers[peer as usize].copies.unreadable |= !withdrawn;
            self.consent(index);
        }
        true
    }

    /// Announces the messages of `peer` that are ready, in their order.
    #[cold]
    #[inline(never)]
    fn announce_from(&mut self, peer: PeerIndex) {
        self.know_sources();
        while let Some(buffering) = &mut self.buffering {
            if let Some((parked, context, receive)) = buffering.announce_next(peer) {
                self.announce(parked, context, receive);
            } else if let Some(parked) = buffering.starved_head(peer) {
                // Its turn has come. It may be ready at once, where it is read.
                let arriving = self.unexpected[parked].arriving;
                if !arriving.is_some_and(|index| self.ask_more(index, parked)) {
                    return;
                }
            } else {
                return;
            }
        }
    }

    /// Announces a message. This is always an entry, however the queue is bound, since nobody else
    /// knows where the message lies; what counters count is the claim.
    fn announce(&mut self, parked: u32, context: u64, receive: Option<u32>) {
        let limit = self.buffering.as_ref().map_or(0, |buffering| buffering.setup.limit);
        let attachment = receive.and_then(|receive| self.receives.remove(receive).attachment);
        let message = &mut self.unexpected[parked];
        let peer = message.peer;
        let more = if message.total > limit { Flags::MORE } else { Flags::empty() };
        let entry = Entry {
            context,
            flags: (message.flags | Flags::RECV | more).bits(),
            length: message.total as u64,
            buffer: message.body.piece().as_ptr() as u64,
            data: message.data,
            tag: message.tag,
            source: self.peers[peer as usize].fi_addr,
            attachment,
        };
        let acknowledge = message.acknowledge.take();
        let announcer = self.buffering.as_ref().and_then(|buffering| buffering.announcer.as_ref());
        if let Some(announcer) = announcer {
            announcer.announce(entry);
        }
        if let Some(operation) = acknowledge {
            self.acknowledge(peer, operation);
        }
    }

    /// Claims or discards a message that was announced.
    fn take_announced(&mut self, parked: u32, mut post: ReceivePost<'_>) {
        let peer = self.unexpected[parked].peer;
        let Some(message) = self.unbuffer(peer, parked) else { return };
        // "The 'context' of the associated CQ entry will be set to the 'context' value passed in
        // through the fi_recv_context structure".
        post.context = message.record.context();
        if post.flags.contains(Flags::DISCARD) {
            self.discard(parked);
        } else if let Stage::Lost(why) = &message.stage {
            let mut lost = self.unexpected.remove(parked);
            lost.flags |= Flags::CLAIM;
            let receive = self.keep_receive(post);
            self.release_charge(&lost);
            self.fail_arriving(None, receive, &lost.summary(), 0, why);
        } else {
            self.claim_parked(parked, post);
        }
        if let Some(buffering) = &mut self.buffering {
            buffering.reuse(message.record);
        }
        self.ask_on();
    }

    /// Gives a message to the receive that claims it: "the CQ entry flags will have the FI_CLAIM
    /// bit set".
    fn claim_parked(&mut self, parked: u32, post: ReceivePost<'_>) {
        let message = &mut self.unexpected[parked];
        message.flags |= Flags::CLAIM;
        if let Some(index) = message.arriving {
            let incoming = &mut self.incoming[index];
            incoming.flags |= Flags::CLAIM;
            incoming.end = incoming.total;
        }
        let receive = self.keep_receive(post);
        self.receive_parked(receive, parked);
    }

    /// Retrieves a message that a peek claimed.
    fn claim_peeked(&mut self, post: ReceivePost<'_>) -> Result<(), PostError> {
        let discards = post.flags.contains(Flags::DISCARD);
        if discards && self.claimed.is_lost(post.context) {
            self.claimed.take(post.context);
            return Ok(());
        }
        let Some((parked, post)) = self.take_claimed(post)? else { return Ok(()) };
        match discards {
            true => self.discard(parked),
            false => self.claim_parked(parked, post),
        }
        Ok(())
    }

    /// Asks for what had to wait, now that less is held.
    fn ask_on(&mut self) {
        let starved = self.buffering.as_ref().map_or(0, |buffering| buffering.starved_len());
        for _ in 0..starved {
            let next = self.buffering.as_mut().and_then(|buffering| buffering.next_starved());
            let Some(peer) = next else { return };
            while let Some(parked) = self.buffering.as_ref().and_then(|all| all.first_starved(peer))
                && let Some(index) = self.unexpected[parked].arriving
                && self.ask_more(index, parked)
            {
                self.announce_from(peer);
            }
            if let Some(buffering) = &mut self.buffering {
                buffering.is_served(peer);
            }
        }
    }

    /// Whether a message is in the application's hands, or about to be.
    pub(crate) fn is_buffered(&self, parked: u32) -> bool {
        self.buffering.as_ref().is_some_and(|all| all.get(parked).is_some())
    }

    /// Forgets what is known of a buffered message beside the parked one.
    pub(crate) fn unbuffer(&mut self, peer: PeerIndex, parked: u32) -> Option<BufferedMessage> {
        let message = self.buffering.as_mut()?.remove(peer, parked)?;
        self.windows -= message.asked;
        Some(message)
    }

    /// What `peer` had begun is over: others need not wait for it any more.
    pub(crate) fn buffer_on(&mut self, peer: PeerIndex) {
        if self.buffering.is_some() {
            self.announce_from(peer);
            self.ask_on();
        }
    }

    /// The sender of a message has gone with the rest of it. One that was announced stays until it
    /// is claimed or discarded; any other is returned, to be dropped, and the tag that it matched
    /// fails.
    pub(crate) fn lose_buffered(
        &mut self,
        parked: u32,
        incoming: &Incoming,
        why: &Cause,
    ) -> Option<u32> {
        let buffering = self.buffering.as_mut()?;
        let message = buffering.get(parked)?;
        if matches!(message.stage, Stage::Announced | Stage::Lost(_)) {
            buffering.note_lost(parked, why);
            self.unexpected[parked].arriving = None;
            return None;
        }
        let receive = self.unbuffer(incoming.peer, parked)?.receive;
        if let Some(receive) = receive {
            let operation = self.receives.remove(receive);
            self.fail_receive(operation, Some(&incoming.message()), 0, why);
        }
        Some(parked)
    }

    /// The start of a message that was announced with `announced`, to be looked at outside of the
    /// engine: whatever becomes of the message, the bytes stay as they are and where they are.
    pub(crate) fn show_buffered(&mut self, announced: u64) -> Result<Shown, PostError> {
        let nothing = PostError::NothingClaimed { context: announced };
        let buffering = self.buffering.as_mut().ok_or(nothing)?;
        let parked = buffering.find(announced).ok_or(nothing)?;
        let known = buffering.get_mut(parked).ok_or(nothing)?;
        let message = &mut self.unexpected[parked];
        let arrived = message.arriving.map_or(message.total, |index| self.incoming[index].received);
        // Nothing is written to it any more: what comes after the announcement goes to the claim's buffer.
        let body = match (&mut known.shown, &mut message.body) {
            (Some(shown), _) => shown.clone(),
            (None, Body::Large(bytes)) => {
                known.shown.insert(Arc::new(std::mem::take(bytes).into_box().into_vec())).clone()
            }
            (None, Body::Small(_)) => return Err(nothing),
        };
        Ok(Shown { context: known.record.context(), arrived: arrived.min(body.len()), body })
    }

    /// Puts the body of a message that was shown back to where a claim with these `flags` finds it. Whoever
    /// still looks keeps it, and then that is a copy.
    ///
    /// # Errors
    /// There is no memory for it.
    fn unshow(&mut self, parked: u32, flags: Flags) -> Result<(), PostError> {
        let known = self.buffering.as_mut().and_then(|all| all.get_mut(parked));
        let Some(known) = known.filter(|_| !flags.contains(Flags::DISCARD)) else { return Ok(()) };
        let Some(shown) = known.shown.take() else { return Ok(()) };
        let body = Arc::try_unwrap(shown).or_else(|shown| {
            let copy = room_for(shown.len()).map(|mut copy| {
                copy.extend_from_slice(&shown);
                copy
            });
            known.shown = copy.is_err().then_some(shown);
            copy
        });
        self.unexpected[parked].body = Body::Large(body?.into_boxed_slice().into());
        Ok(())
    }

    /// Claims the message that was announced with `announced`; the claim completes with the post's
    /// context.
    pub(crate) fn claim_as(
        &mut self,
        announced: u64,
        post: ReceivePost<'_>,
    ) -> Result<(), PostError> {
        let nothing = PostError::NothingClaimed { context: announced };
        let buffering = self.buffering.as_ref().ok_or(nothing)?;
        let parked = buffering.find(announced).ok_or(nothing)?;
        self.unshow(parked, post.flags)?;
        if let Some(message) = self.buffering.as_ref().and_then(|all| all.get(parked)) {
            message.record.set_context(post.context);
        }
        self.take_announced(parked, post);
        Ok(())
    }
}

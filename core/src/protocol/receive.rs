//! Posting a receive: it finds its message waiting, or waits for it.

use std::collections::{BTreeSet, HashSet};

use crate::{
    buffering::BUFFERED,
    endpoint::PostError,
    engine::{
        Engine,
        order::receive::{Owed, Receipt},
        peer::ONE_SIDED,
        report::Message,
    },
    error::{Cause, Errno},
    flags::Flags,
    memory::Pieces,
    operation::{ReceiveOperation, ReceivePost, StoredPieces, Target, Unexpected, set_down},
    pool::Pool,
    protocol::{claim::retrieves, fence::Earlier},
    scalable_endpoint::pair::Direction,
    tag_match::{ANY_SOURCE, Matcher, STICKY, SourceIndex},
    transport::{PeerIndex, Transport},
};

/// What makes a receive more than a buffer to be filled once.
const SPECIAL: Flags =
    Flags::PEEK.union(Flags::CLAIM).union(Flags::DISCARD).union(Flags::MULTI_RECV).union(BUFFERED);

/// Where receives are posted.
#[derive(Clone, Copy)]
pub(crate) enum Posted {
    Tagged,
    Untagged,
    /// Tags whose messages are buffered.
    Tags,
}

impl Posted {
    pub(crate) const ALL: [Posted; 3] = [Posted::Tagged, Posted::Untagged, Posted::Tags];
}

impl<T: Transport> Engine<T> {
    /// Posts a receive. An error has no side effect.
    ///
    /// Cost: no system call, no lock; no allocation once as many receives were
    /// posted before.
    #[inline(always)]
    pub fn receive(&mut self, post: ReceivePost<'_>) -> Result<(), PostError> {
        let Some(source) = self.source_at(post.from, post.flags) else {
            return self.receive_from_nobody(set_down(post));
        };
        if post.flags.intersects(SPECIAL) {
            let posted = self.receive_special(source, set_down(post));
            self.flush();
            return posted;
        }
        if post.region.is_some() {
            return self.receive_in_region(source, set_down(post));
        }
        self.receive_as::<false>(source, post)
    }

    /// Posts a receive from somebody who is not in the address vector. What retrieves a claimed message
    /// names that by its context, and who sent it may have been removed since.
    #[cold]
    #[inline(never)]
    fn receive_from_nobody(&mut self, post: ReceivePost<'_>) -> Result<(), PostError> {
        if !retrieves(post.flags) {
            return Err(self.no_source(post.from, post.flags));
        }
        let posted = self.receive_special(ANY_SOURCE, post);
        self.flush();
        posted
    }

    /// Posts a receive that says which region its buffer lies in. Apart, since the others would pay for
    /// what they have not.
    #[inline(never)]
    fn receive_in_region(
        &mut self,
        source: SourceIndex,
        post: ReceivePost<'_>,
    ) -> Result<(), PostError> {
        self.receive_as::<true>(source, post)
    }

    /// Posts a receive that is no more than a buffer to be filled once. `IN_REGION`: the post may say
    /// which region that lies in. (No closure makes the record: those are not always inlined.)
    #[inline(always)]
    fn receive_as<const IN_REGION: bool>(
        &mut self,
        source: SourceIndex,
        post: ReceivePost<'_>,
    ) -> Result<(), PostError> {
        let tagged = post.flags.contains(Flags::TAGGED);
        let (tag, ignore) = (post.tag, post.ignore);
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        let parked = match matcher.unexpected_len() {
            0 => None,
            _ => matcher.take_unexpected(source, tag, ignore),
        };
        if let (Some(over), None) = (self.over, &parked) {
            return Err(over.refusal());
        }
        let receive = match IN_REGION {
            true => self.keep_receive(post),
            false => self.receives.insert(ReceiveOperation::from_post(post)),
        };
        if let Some(parked) = parked {
            self.receive_parked(receive, parked);
            self.flush();
            return Ok(());
        }
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        matcher.post(source, tag, ignore, receive);
        Ok(())
    }

    /// The record of a receive: it is remembered which region its buffer lies in.
    pub(crate) fn keep_receive(&mut self, post: ReceivePost<'_>) -> u32 {
        let region = post.region.and_then(|region| self.regions.note(region.key()));
        self.receives.insert(ReceiveOperation { region, ..ReceiveOperation::from_post(post) })
    }

    /// Takes a receive that was left for the owner: what is wrong with it becomes
    /// an error completion.
    #[cold]
    pub(crate) fn receive_submitted(&mut self, post: ReceivePost<'_>) {
        let mut attachment = post.attachment.and_then(Option::take);
        let post = ReceivePost { attachment: None, ..post };
        if let Err(refused) =
            self.receive(ReceivePost { attachment: Some(&mut attachment), ..post })
        {
            let why = Cause::of(&refused);
            let operation = ReceiveOperation { attachment, ..ReceiveOperation::from_post(post) };
            self.fail_receive(operation, None, 0, &why);
        }
    }

    /// Gives a parked message to a receive.
    pub(crate) fn receive_parked(&mut self, receive: u32, parked: u32) {
        self.know_sources();
        let Unexpected { peer, total, .. } = self.unexpected[parked];
        // It found the message waiting, so it is not posted.
        let target = self.open_receive(receive, false, total);
        if self.waits_for_data(peer) {
            return self.hold(target, parked);
        }
        self.write_parked(target, parked, None);
    }

    /// Writes what has come of a parked message to where it belongs, and asks for the rest. It may
    /// have a `place` among completions already.
    pub(crate) fn write_parked(&mut self, target: Target, parked: u32, place: Option<u32>) {
        let Target::Receive { receive, start, room } = target else {
            return;
        };
        let mut message = self.unexpected.remove(parked);
        let arrived = match message.arriving {
            Some(incoming) => self.incoming[incoming].received,
            None => message.total,
        };
        let pieces = self.receives[receive].pieces.view();
        message.body.scatter(pieces, start, arrived.min(room), self.copying());
        self.settle_parked(message, target, place);
    }

    fn settle_parked(&mut self, message: Unexpected, target: Target, place: Option<u32>) {
        let Target::Receive { receive, start, room } = target else {
            return;
        };
        self.release_charge(&message);
        let is_charged = message.cost > 0 && !message.is_left_behind;
        if let Some(incoming) = message.arriving {
            self.aim(incoming, target);
            if self.matched(incoming, message.acknowledge) {
                self.finish_if_whole(incoming);
            }
            return;
        }
        if let Some(operation) = message.acknowledge {
            self.acknowledge(message.peer, operation);
        }
        let owed = if is_charged { Owed::Credit } else { Owed::Nothing };
        self.close_receive(place, receive, &message.summary(), start, room, owed);
    }

    /// Drops parked messages that their sender can no longer finish, which whoever has claimed one
    /// is told. Where receives are shared it looks through everything that is parked there.
    pub(crate) fn forget_unexpected(&mut self, parked: &HashSet<u32>, why: &Cause) {
        if parked.is_empty() {
            return;
        }
        for matcher in [&mut self.tagged, &mut self.untagged] {
            for &message in parked {
                if matcher.is_parked(message) {
                    matcher.remove_unexpected(message);
                }
            }
        }
        if let Some(shared) = &self.shared {
            let gone = |message: u64| parked.contains(&(message as u32));
            shared.pool.lock().forget(shared.member, gone);
        }
        self.claimed.lose(parked, why);
        for &index in parked {
            let message = self.unexpected.remove(index);
            self.release_charge(&message);
            // The posted tag that it matched goes with it.
            let buffered = self.unbuffer(message.peer, index);
            if let Some(receive) = buffered.and_then(|buffered| buffered.receive) {
                let operation = self.receives.remove(receive);
                self.fail_receive(operation, None, 0, why);
            }
        }
    }

    /// The matcher that receives of this kind are posted to, if there are any.
    pub(crate) fn posted_in(&mut self, posted: Posted) -> Option<&mut Matcher> {
        self.posted_and_receives(posted).map(|(matcher, _)| matcher)
    }

    /// The matcher that receives of this kind are posted to, and the receives that it has the numbers
    /// of.
    fn posted_and_receives(
        &mut self,
        posted: Posted,
    ) -> Option<(&mut Matcher, &Pool<ReceiveOperation>)> {
        let matcher = match posted {
            Posted::Tagged => &mut self.tagged,
            Posted::Untagged => &mut self.untagged,
            Posted::Tags => &mut self.buffering.as_mut()?.tags,
        };
        Some((matcher, &self.receives))
    }

    /// Cancels the first operation posted with `context`. Reference:
    /// fi_endpoint(3), `fi_cancel`: the operation completes with `FI_ECANCELED`,
    /// one that has completed or is matched is unaffected, one match only. Of a context it is only
    /// what was posted in that direction.
    pub fn cancel(&mut self, context: u64, only: Option<Direction>) -> Result<(), PostError> {
        if only != Some(Direction::Transmit) && self.cancel_receive(context) {
            return Ok(());
        }
        match only {
            Some(Direction::Receive) => Err(PostError::NothingToCancel { context }),
            _ => self.cancel_send(context),
        }
    }

    fn cancel_receive(&mut self, context: u64) -> bool {
        for family in Posted::ALL {
            let Some((matcher, receives)) = self.posted_and_receives(family) else { continue };
            let context_of = |receive: u32| receives[receive & !STICKY].context;
            if let Some(receive) = matcher.earliest_posted(context, context_of) {
                matcher.remove_posted(receive);
                self.fail_posted(receive & !STICKY, &canceled());
                return true;
            }
        }
        false
    }

    /// What is queued with `context`: what comes first in the queue of the first peer that it is for. What
    /// is queued is little, and peers may be many.
    fn queued_with(&self, context: u64) -> Option<u32> {
        let (sends, remotes) = (&self.sends, &self.remotes);
        let is_meant = |&queued: &u32| match queued & ONE_SIDED {
            0 => sends[queued].can_be_canceled(context),
            _ => remotes[queued & !ONE_SIDED].can_be_canceled(context),
        };
        let meant = sends.indices().filter(is_meant).map(|send| sends[send].peer);
        let one_sided = remotes.indices().filter(|index| is_meant(&(index | ONE_SIDED)));
        let meant = meant.chain(one_sided.map(|index| remotes[index].peer));
        let peers: BTreeSet<PeerIndex> = meant.collect();
        let queue_of = |peer: PeerIndex| self.peers[peer as usize].queue.iter().copied();
        peers.into_iter().find_map(|peer| queue_of(peer).find(is_meant))
    }

    fn cancel_send(&mut self, context: u64) -> Result<(), PostError> {
        let Some(send) = self.queued_with(context) else {
            return Err(PostError::NothingToCancel { context });
        };
        if send & ONE_SIDED != 0 {
            self.cancel_remote(send & !ONE_SIDED);
            return Ok(());
        }
        let peer = self.sends[send].peer;
        self.peers[peer as usize].queue.retain(|&queued| queued != send);
        self.leave_line(send);
        self.drop_fence(peer, Earlier::Send(self.sends.name(send)));
        self.fail_send(send, &canceled());
        self.note_backlog(peer);
        Ok(())
    }

    /// A posted receive, already out of the matcher, fails.
    pub(crate) fn fail_posted(&mut self, receive: u32, why: &Cause) {
        if self.receives[receive].flags.contains(Flags::MULTI_RECV) {
            return self.fail_multi(receive, why);
        }
        let operation = self.receives.remove(receive);
        self.fail_receive(operation, None, 0, why);
    }

    /// A receive whose message was under way fails: of one that was `incoming`, or is lost at once.
    pub(crate) fn fail_arriving(
        &mut self,
        incoming: Option<u32>,
        receive: u32,
        message: &Message,
        placed: u64,
        why: &Cause,
    ) {
        if self.receives_in_order {
            let receipt = Receipt::Failed { receive, message: *message, placed, why: why.clone() };
            return self.tell_in_turn(message.peer, incoming, receipt, Owed::Late(None));
        }
        self.report_arriving_failed(receive, message, placed, why);
    }

    /// Reports that.
    pub(crate) fn report_arriving_failed(
        &mut self,
        receive: u32,
        message: &Message,
        placed: u64,
        why: &Cause,
    ) {
        if self.receives[receive].flags.contains(Flags::MULTI_RECV) {
            return self.fail_arriving_multi(receive, message, placed, why);
        }
        let operation = self.receives.remove(receive);
        self.fail_receive(operation, Some(message), placed, why);
        self.end_slice(receive);
    }
}

pub(crate) fn canceled() -> Cause {
    Cause { errno: Errno::CANCELED, reason: "canceled by the application".into() }
}

impl ReceiveOperation {
    /// The record of a posted receive.
    #[inline(always)]
    pub(crate) fn from_post(post: ReceivePost<'_>) -> ReceiveOperation {
        ReceiveOperation {
            pieces: match post.pieces {
                Pieces::One(piece) => StoredPieces::One(piece),
                many => StoredPieces::store(many),
            },
            context: post.context,
            flags: post.flags,
            filled: 0,
            arriving: 0,
            exhausted: false,
            canceled: false,
            region: None,
            attachment: post.attachment.and_then(Option::take),
        }
    }
}

impl Unexpected {
    /// What its completion will say.
    pub(crate) fn summary(&self) -> Message {
        let Unexpected { peer, flags, tag, data, total, .. } = *self;
        Message { peer, flags, tag, data, total }
    }
}

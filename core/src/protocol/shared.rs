//! Messages for receives of a shared context: matched in its pool, received in the engine of the
//! endpoint that they come to. Reference: fi_endpoint(3), "SHARED CONTEXTS".

use crate::{
    address::Address,
    auth_key::KeyNumber,
    endpoint::PostError,
    engine::{Engine, peer::Peer},
    error::{Cause, Errno},
    flags::Flags,
    operation::ReceivePost,
    shared_context::{
        pool::{Envelope, Matched, Parked, SharedPool, SharedSeat},
        sources::Source,
    },
    transport::{PeerIndex, Transport},
};

impl<T: Transport> Engine<T> {
    /// From now on messages are for receives of a shared context: those too that came before the
    /// context of a scalable endpoint was enabled.
    pub(crate) fn share(&mut self, shared: SharedSeat) {
        self.shared = Some(shared);
        self.offers = true;
        for peer in 0..self.peers.len() as PeerIndex {
            if self.peers[peer as usize].incarnation.is_some() {
                self.note_shared_source(peer);
            }
        }
        for tagged in [true, false] {
            let matcher = if tagged { &self.tagged } else { &self.untagged };
            for (parked, _) in matcher.unexpected() {
                // A peer that turns out to break the protocol takes those of its messages along that wait.
                if self.unexpected.get(parked).is_none() {
                    continue;
                }
                let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
                matcher.remove_unexpected(parked);
                self.offer_parked(parked);
            }
        }
    }

    /// The shared receive for a message that found none here, if there is one.
    pub(crate) fn take_shared(
        &mut self,
        peer: PeerIndex,
        flags: Flags,
        tag: u64,
        total: usize,
    ) -> Option<u32> {
        let shared = self.shared.as_ref()?;
        let source = self.shared_source(shared, peer);
        let tagged = flags.contains(Flags::TAGGED);
        let envelope = Envelope { tagged, source, tag, ignore: 0 };
        let matched = shared.pool.lock().take(envelope, total)?;
        Some(self.take_in(matched))
    }

    /// Whom messages of `peer` are from, where receives can be directed.
    fn shared_source(&self, shared: &SharedSeat, peer: PeerIndex) -> Source {
        let Peer { source, key, .. } = self.peers[peer as usize];
        match shared.has_sources {
            true => Source::Peer(self.peers[source as usize].address, key),
            false => Source::Nobody,
        }
    }

    fn take_in(&mut self, matched: Matched) -> u32 {
        let Matched { mut operation, buffer } = matched;
        if !self.setup.receive.selective {
            operation.flags |= Flags::COMPLETION;
        }
        let receive = self.receives.insert(operation);
        if let (Some(buffer), Some(shared)) = (buffer, &mut self.shared) {
            shared.slices.insert(receive, buffer);
        }
        receive
    }

    /// Lets shared receives find a parked message, or gives it to one that was posted since it
    /// found none: true. Where messages are buffered it is the application that gets it: true, too.
    pub(crate) fn offer_parked(&mut self, index: u32) -> bool {
        if !self.offers {
            return false;
        }
        if self.buffering.is_some() {
            self.buffer(index);
            return true;
        }
        let Some(shared) = &self.shared else {
            return false;
        };
        let member = shared.member;
        let message = &self.unexpected[index];
        let (tag, total) = (message.tag, message.total);
        let tagged = message.flags.contains(Flags::TAGGED);
        let source = self.shared_source(shared, message.peer);
        let envelope = Envelope { tagged, source, tag, ignore: 0 };
        let mut pool = shared.pool.lock();
        let Some(matched) = pool.take(envelope, total) else {
            let message = self.unexpected.name(index);
            pool.park(envelope, Parked { member, message, total });
            return false;
        };
        drop(pool);
        let receive = self.take_in(matched);
        self.receive_parked(receive, index);
        true
    }

    /// Takes the receive that a parked message matched, unless the message is gone.
    pub(crate) fn receive_shared(&mut self, matched: &mut Option<Matched>, message: u64) {
        let index = self.unexpected.index_of(message).filter(|_| self.shared.is_some());
        if let Some(index) = index
            && let Some(matched) = matched.take()
        {
            let receive = self.take_in(matched);
            self.receive_parked(receive, index);
        }
    }

    /// Tells of a parked message that a peek has found, unless it is gone: false.
    pub(crate) fn peek_shared(&mut self, message: u64, post: &ReceivePost<'_>) -> bool {
        let index = self.unexpected.index_of(message).filter(|_| self.shared.is_some());
        if let Some(index) = index {
            self.tell_peeked(index, post);
        }
        index.is_some()
    }

    /// Receives or discards what a peek of the shared context has claimed here.
    pub(crate) fn claim_shared(&mut self, mut post: ReceivePost<'_>) -> Result<(), PostError> {
        if !self.setup.receive.selective {
            post.flags |= Flags::COMPLETION;
        }
        self.claim(post)
    }

    /// A receive is over; if it was part of a shared multi-receive buffer, maybe the buffer is
    /// too.
    pub(crate) fn end_slice(&mut self, receive: u32) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        let Some(buffer) = shared.slices.remove(&receive) else {
            return;
        };
        let released = shared.pool.lock().leave(buffer);
        if let Some(released) = released {
            self.release_buffer(released);
        }
    }

    /// `peer` is connected: shared receives that are directed at it may have messages by this endpoint.
    #[cold]
    pub(crate) fn note_shared_source(&self, peer: PeerIndex) {
        // Receives of datagrams wait for whoever comes.
        if let Some(shared) = self.shared.as_ref().filter(|_| self.datagrams.is_none())
            && let Source::Peer(address, key) = self.shared_source(shared, peer)
        {
            shared.pool.lock().note_connected(address, key, shared.member);
        }
    }

    /// It turns out to be part of another source, or is gone. Returns whether it still is connected with
    /// another endpoint of the shared context.
    #[cold]
    pub(crate) fn forget_shared_source(&self, source: PeerIndex) -> bool {
        let Peer { address, key, .. } = self.peers[source as usize];
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| shared.pool.lock().note_apart(address, key, shared.member))
    }

    /// `source` is gone, and with it whatever shared receives are directed at it wait for, unless they may
    /// have it by another endpoint.
    pub(crate) fn fail_shared_from(&mut self, source: PeerIndex, why: &Cause) {
        let is_elsewhere = self.forget_shared_source(source);
        let Some(shared) = self.shared.as_ref().filter(|it| it.has_sources && !is_elsewhere) else {
            return;
        };
        let Peer { address, key, .. } = self.peers[source as usize];
        self.fail_directed(&shared.pool.clone(), (address, key), why);
    }

    /// Fails the shared receives that are directed at an address.
    fn fail_directed(
        &mut self,
        pool: &SharedPool,
        (address, key): (Address, KeyNumber),
        why: &Cause,
    ) {
        let gone = pool.lock().take_directed(address, key);
        gone.into_iter().for_each(|operation| self.fail_receive(operation, None, 0, why));
    }

    /// The endpoint is about to be closed.
    pub(crate) fn leave_shared(&mut self) {
        let reason = "the endpoint that the message came to was closed".to_owned();
        let why = Cause { errno: Errno::CANCELED, reason };
        self.setup.hears = Flags::empty();
        for peer in 0..self.peers.len() as PeerIndex {
            self.give_up_arriving(peer, &why);
        }
        if let Some(shared) = &self.shared {
            let pool = shared.pool.clone();
            let lost = pool.lock().forget_member(shared.member);
            for source in lost {
                let address = source.0;
                let reason =
                    format!("{address} is gone, and so is the last endpoint that it spoke to");
                let why = Cause { errno: Errno::CONNRESET, reason };
                self.fail_directed(&pool, source, &why);
            }
        }
        self.shared = None;
    }
}

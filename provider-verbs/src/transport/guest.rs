//! The end of a window at which a peer reaches our memory.
//!
//! Its device writes and reads, and we hear nothing of it, but for writes that carry data: each
//! takes a receive of nothing, and waits in front of the peer's packets until core has told of it.
//! There are as many as core may leave untold, so that who polls late holds back the peer, as with
//! packets.

use kestrel_core::{
    transport::{Arrival, PeerIndex},
    window::{Access, Invitation},
    wire::{Head, Kind},
};

use super::{
    Came, RcTransport,
    lane::Written,
    receiving::Current,
    window::{end_of_peer, to_words},
};
use crate::verbs::{Completion, Origin, PathEnd, QueuePair, Role, Status, Verbs};

/// Our end of a peer's window.
pub struct Guest<V: Verbs> {
    pair: V::QueuePair,
    immediates: u32,
}

impl<V: Verbs> RcTransport<V> {
    /// The end at which a peer reaches our memory: the earlier one is over.
    pub(super) fn make_guest(
        &mut self,
        peer: PeerIndex,
        theirs: Invitation,
        permitted: Access,
    ) -> Option<Invitation> {
        self.dismiss_guest(peer);
        let lane = self.peers.get(peer as usize)?.receive.as_ref()?;
        let from = self.shared.origin.along(lane.managed.as_deref());
        let (end, _) = end_of_peer(theirs, lane.place.as_ref())?;
        let taken = if permitted.write { self.shared.receives.take_immediates() } else { 0 };
        let made = self.join_guest(&from, &end, permitted, taken);
        let Some((guest, ours)) = made else {
            self.shared.receives.return_immediates(taken);
            return None;
        };
        self.guests.insert(guest.pair.number(), peer);
        self.peer(peer).guest = Some(guest);
        Some(ours)
    }

    fn join_guest(
        &self,
        from: &Origin,
        theirs: &PathEnd,
        permitted: Access,
        immediates: u32,
    ) -> Option<(Guest<V>, Invitation)> {
        let role = Role::Admits { access: permitted, immediates };
        let (pair, first_packet, ours) = self.make_pair(role, from)?;
        let ready = pair.post_empty(immediates);
        let joined = ready.and_then(|()| pair.connect(first_packet, from, theirs));
        joined.inspect_err(|error| tracing::info!("no window: {error}")).ok()?;
        Some((Guest { pair, immediates }, to_words(&ours, immediates > 0)))
    }

    /// Ends it: the peer reaches our memory no more. What it has told of its writes stays told.
    pub(super) fn dismiss_guest(&mut self, peer: PeerIndex) {
        let Some(guest) = self.peers.get_mut(peer as usize).and_then(|peer| peer.guest.take())
        else {
            return;
        };
        let number = guest.pair.number();
        let Guest { pair, immediates } = guest;
        drop(pair);
        if immediates > 0 {
            // The place of its completions is another's from now on.
            while self.poll_receives() {}
        }
        self.guests.remove(&number);
        self.shared.receives.return_immediates(immediates);
    }

    /// A receive of nothing is over: a write was done, or its queue pair has come to an end.
    #[cold]
    #[inline(never)]
    pub(super) fn guest_wrote(&mut self, completion: &Completion) {
        let Completion { status, bytes, immediate: data, queue_pair, .. } = *completion;
        let Some(&peer) = self.guests.get(&queue_pair) else {
            return;
        };
        let lane = self.peers[peer as usize].receive.as_mut();
        let (Status::SUCCESS, Some(lane)) = (status, lane) else {
            return;
        };
        if let Some(data) = data {
            lane.arrived.push_back(Came::Written(Written { queue_pair, bytes, data }));
            self.note_ready(peer);
        } else {
            self.broke(peer, "it sent a packet where it may write");
        }
    }

    /// Makes an arrival of a write that was done.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_written(&mut self, peer: PeerIndex, written: Written) -> Arrival {
        self.current = Some(Current::without_packet(peer));
        let word = u64::from(written.data) | u64::from(written.bytes) << 32;
        Arrival { peer, head: Head::new(Kind::Written, 0), word, length: 0, tiny: None }
    }

    /// Core has told of it: the peer may write another.
    #[cold]
    #[inline(never)]
    pub(super) fn written_was_told(&mut self, peer: PeerIndex, written: Written) {
        let guest = self.peers[peer as usize].guest.as_ref();
        if let Some(guest) = guest.filter(|guest| guest.pair.number() == written.queue_pair)
            && let Err(error) = guest.pair.post_empty(1)
        {
            // The device is gone, and its packets say so.
            tracing::info!(peer, "a window takes no more data: {error}");
        }
    }
}

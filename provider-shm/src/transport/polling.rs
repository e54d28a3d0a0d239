//! Which lane is looked at next, and which become quiet.

use std::ptr::NonNull;

use kestrel_core::{
    ring::lane::WISH_CLOSED,
    transport::{Arrival, PeerIndex},
};

use super::*;

impl ShmTransport {
    /// The packet at the head of a lane, whose head is `head`.
    ///
    /// Only what fits registers passes between functions here. An arrival that is written to
    /// memory and read again in other widths waits until the stores before it have left the
    /// store buffer, and those are the payload of the last packet.
    #[inline(always)]
    pub(super) fn take(&mut self, active: Active, head: Head) -> Option<Arrival> {
        let Active { peer, mut lane } = active;
        // SAFETY: the invariant of `Active`; nobody else points into the lane now.
        let (length, tiny) = match unsafe { lane.as_mut() }.next_plain(head) {
            Some(plain) => {
                if self.streak > 1 {
                    // More are likely to be there already. Not so after the first packet, and
                    // not if the sender has more to do for each: to fetch a line that it has
                    // yet to write makes it wait.
                    // SAFETY: as above.
                    unsafe { lane.as_ref() }.prefetch();
                }
                plain
            }
            None => (self.take_other(active, head)?, None),
        };
        self.current = Some(lane);
        // SAFETY: as above; a lane that broke is not looked at.
        let word = unsafe { lane.as_ref() }.tag();
        Some(Arrival { peer, head, word, length, tiny })
    }

    #[inline(never)]
    fn take_other(&mut self, Active { peer, mut lane }: Active, head: Head) -> Option<usize> {
        let other_way = self.peers[peer as usize].send.as_ref();
        // SAFETY: as in `take`.
        let next = unsafe { lane.as_mut() }.next(head, other_way);
        next.map_err(|error| self.broke(peer, error)).ok()
    }

    /// The next active lane that has a packet, and the packet's head.
    #[inline(always)]
    pub(super) fn find_speaking(&mut self) -> Option<(Active, Head)> {
        if self.streak >= STREAK_MAX {
            self.pass_the_word_on();
        }
        if self.rounds >= ROUNDS_PER_QUIET {
            self.look_at_quiet();
        }
        for _ in 0..self.active.len() {
            if let Some(found) = self.look_at_turn() {
                self.streak += 1;
                return Some(found);
            }
            self.pass_the_word_on();
        }
        if self.active.is_empty() {
            self.rounds += 1;
        }
        None
    }

    /// Has the cache fetch the line of an answer to the first packet after a silence.
    ///
    /// When the packet has been taken, not when it comes: whoever waits for the answer polls that
    /// line, and would have taken it back before it is written.
    #[inline(always)]
    pub(super) fn prepare_answer(&self) {
        if let Some(active) = self.active.get(self.turn)
            && let Some(lane) = &self.peers[active.peer as usize].send
        {
            lane.prepare();
        }
    }

    /// The active lane whose turn it is, and its packet's head, if it has one.
    #[inline(always)]
    fn look_at_turn(&self) -> Option<(Active, Head)> {
        let &active = self.active.get(self.turn)?;
        // SAFETY: the invariant of `Active`.
        let head = unsafe { active.lane.as_ref() }.peek()?;
        Some((active, head))
    }

    /// The next packet of an active lane other than the one that spoke last.
    #[inline(never)]
    pub(super) fn look_elsewhere(&mut self) -> Option<Arrival> {
        for _ in 1..self.active.len() {
            self.pass_the_word_on();
            if let Some((active, head)) = self.look_at_turn() {
                self.streak = 1;
                return self.take(active, head);
            }
        }
        // Back to the one that spoke.
        self.pass_the_word_on();
        None
    }

    /// Rounds are counted, not polls that find nothing: where one lane or other always has a packet
    /// there are none of those, and quiet lanes would wait for ever.
    #[inline(always)]
    fn pass_the_word_on(&mut self) {
        self.streak = 0;
        self.turn += 1;
        if self.turn >= self.active.len() {
            self.turn = 0;
            self.rounds += 1;
        }
    }

    /// The active lanes have had their turns: looks at a quiet one. A lane that speaks again is polled
    /// first from now on.
    #[cold]
    #[inline(never)]
    fn look_at_quiet(&mut self) {
        self.rounds = 0;
        self.looks += 1;
        self.look_for_closed();
        if !self.closing.is_empty() {
            self.settle_closing();
        }
        if self.looks >= LOOKS_PER_QUIETENING {
            self.looks = 0;
            self.look_for_silence();
            if self.active.len() > ACTIVE_MAX {
                self.quieten();
            }
        }
        if self.quiet.is_empty() {
            return;
        }
        let turn = next_turn(&mut self.quiet_turn, self.quiet.len());
        if self.lane_has_packet(self.quiet[turn]) {
            (self.turn, self.streak) = (self.active.len(), 0);
            self.wake_lane(turn);
        }
    }

    /// Looks whether one of the receivers, each in turn, has closed its end. All indices have a turn, those of
    /// other transports' peers as well: to go by the list of those with a lane costs a poll beside 200 of them
    /// 3 % of half a round trip.
    pub(super) fn look_for_closed(&mut self) {
        let turn = next_turn(&mut self.closed_turn, self.peers.len());
        self.tell_if_closed(turn as PeerIndex);
    }

    /// Looks whether nothing has gone to and from one of the peers, each in turn, for long.
    fn look_for_silence(&mut self) {
        let turn = next_turn(&mut self.silent_turn, self.peers.len());
        if let Some(peer) = self.peers.get_mut(turn) {
            peer.look_for_silence(&mut self.pool, SILENCE);
        }
    }

    fn tell_if_closed(&mut self, peer: PeerIndex) {
        let Some(record) = self.peers.get_mut(peer as usize) else {
            return;
        };
        if record.seen_closed || !record.send.as_ref().is_some_and(SendLane::is_closed) {
            return;
        }
        record.seen_closed = true;
        // It may have sent on a lane of its own before, which is not ours yet.
        match self.station.settle(peer) {
            true => record.settling += 1,
            false => self.tell(TransportEvent::Closed { peer }),
        }
    }

    pub(super) fn lane_has_packet(&self, peer: PeerIndex) -> bool {
        self.peers[peer as usize].receive.as_ref().is_some_and(|lane| lane.peek().is_some())
    }

    /// Puts a quiet lane back among those that are polled.
    pub(super) fn wake_lane(&mut self, place: usize) {
        let peer = self.quiet.swap_remove(place);
        let wish = if self.armed > 0 { self.wish } else { 0 };
        self.unfenced |= self.armed > 0;
        if let Some(lane) = &mut self.peers[peer as usize].receive {
            lane.set_attention(wish);
            self.active.push(Active { peer, lane: NonNull::from(&mut **lane) });
        }
    }

    /// Lanes that had nothing since the last look become quiet.
    pub(super) fn quieten(&mut self) {
        self.wish = next_wish(self.wish);
        let (wish, peers, quiet) = (self.wish, &mut self.peers, &mut self.quiet);
        self.active.retain(|&Active { peer, .. }| {
            let Some(lane) = &mut peers[peer as usize].receive else { return true };
            let is_silent = lane.looked_at == lane.position() && lane.peek().is_none();
            lane.looked_at = lane.position();
            if is_silent {
                // Lanes that are looked at in turn anyway need no fence to be found; a
                // sleeper needs one, which lies between `arm` and `is_quiet`.
                lane.set_attention(wish);
                quiet.push(peer);
            }
            !is_silent
        });
        self.turn = 0;
    }

    /// Lanes that are quiet but have something after all.
    pub(super) fn wake_quiet_lanes(&mut self) {
        for place in (0..self.quiet.len()).rev() {
            if self.lane_has_packet(self.quiet[place]) {
                self.wake_lane(place);
            }
        }
    }

    /// Asks all senders anew, for whoever sleeps. Behind a heavy fence it is told whether something is there.
    pub(super) fn ask_for_bell(&mut self) {
        // The fence that follows is behind all that was asked so far.
        self.unfenced = false;
        self.wish = next_wish(self.wish);
        self.station.bell().drain();
        self.set_attention(self.wish);
    }

    /// Whether nothing is there.
    pub(super) fn has_nothing(&mut self) -> bool {
        for place in 0..self.connected.len() {
            self.tell_if_closed(self.connected[place]);
        }
        let active = self.active.iter().map(|active| active.peer);
        let mut lanes = active.chain(self.quiet.iter().copied());
        // Of one that is being filled its sender rings at the end.
        let lane = |peer: PeerIndex| self.peers[peer as usize].receive.as_ref();
        let packet = lanes.any(|peer| lane(peer).is_some_and(|lane| lane.has_whole_packet()));
        !packet && !self.has_event() && self.long.is_empty()
    }

    pub(super) fn set_attention(&mut self, wish: u32) {
        for Active { peer, .. } in &self.active {
            if let Some(lane) = &self.peers[*peer as usize].receive {
                lane.set_attention(wish);
            }
        }
    }
}

/// The number of the wish after `wish`: neither none nor the last word.
fn next_wish(wish: u32) -> u32 {
    (wish + 1) % WISH_CLOSED + u32::from(wish + 1 == WISH_CLOSED)
}

/// Whose turn is next, of so many.
fn next_turn(turn: &mut usize, count: usize) -> usize {
    *turn += 1;
    if *turn >= count {
        *turn = 0;
    }
    *turn
}

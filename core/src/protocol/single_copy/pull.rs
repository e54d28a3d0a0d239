//! The receiver's side of single-copy: reading, and offering a share of it to the sender.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{BLOCK_MIN, STRETCH};
use crate::{
    attachment::Attachment,
    engine::{Engine, peer::Reply},
    operation::{Incoming, Target},
    primitive::yield_now,
    ring::claims::{CLAIMS, Offer},
    transport::{PeerIndex, Transport},
    wire::Kind,
};

/// The shortest message that is worth the help of a sender who waits. Units: bytes.
const SHARED_MIN: usize = 64 << 10;
/// The shortest message that is worth the help of a sender with more to send, whose caches the help
/// costs. Units: bytes.
const SHARED_STREAMING_MIN: usize = 512 << 10;
/// Blocks of a message that is not too long for them: one for each side, since every block costs
/// a system call.
const BLOCKS: usize = 2;
/// How long a receiver that closes waits for a sender that is about to write.
const TAKE_BACK_MAX: Duration = Duration::from_millis(200);

/// A message that is read from its sender's memory.
#[derive(Debug)]
pub struct Pull {
    peer: PeerIndex,
    /// Index of the incoming message.
    incoming: u32,
    share: Option<Share>,
    /// Nothing is left to do before the sender is done.
    waits: bool,
    /// It cannot be read.
    unreadable: bool,
}

impl Pull {
    /// The sender.
    pub fn peer(&self) -> PeerIndex {
        self.peer
    }
}

/// What is offered to the sender.
#[derive(Debug)]
struct Share {
    offer: Offer,
    /// Bytes of each block.
    block: usize,
}

/// How far a pass over a message came.
enum Step {
    /// Everything is there.
    Done,
    /// There is more to read.
    More,
    /// The sender has claimed the rest.
    Waits,
    /// The sender's memory cannot be read.
    Unreadable,
    /// The sender's claims contradict themselves.
    Contradiction,
}

impl<T: Transport> Engine<T> {
    /// Begins to read a message whose receive is known, if it can be read.
    pub(crate) fn pull(&mut self, index: u32) -> bool {
        let incoming = &mut self.incoming[index];
        let peer = incoming.peer;
        let Target::Receive { room, .. } = incoming.target else {
            return false;
        };
        let denied = self.peers[peer as usize].copies.unreadable;
        if incoming.remote == 0 || denied || !self.transport.can_read_remote(peer) {
            return false;
        }
        incoming.end = incoming.total.min(room).max(incoming.received);
        // No adapter reads it: what it lends, if it says so, is of no use.
        incoming.fetch.key = 0;
        let share = self.offer_share(index);
        let pull = Pull { peer, incoming: index, share, waits: false, unreadable: false };
        self.pull_with(pull);
        true
    }

    /// Reads some more of the message whose turn it is.
    pub(crate) fn pull_on(&mut self) -> bool {
        for _ in 0..self.copies.pulls.len() {
            let Some(pull) = self.copies.pulls.pop_front() else {
                break;
            };
            let goes_on = !pull.waits || self.is_written(&pull);
            if goes_on && !self.seems_withdrawn(pull.peer) {
                self.pull_with(pull);
                return true;
            }
            self.copies.pulls.push_back(pull);
        }
        false
    }

    /// Whether the sender has written all that it claimed of a message of which nothing is left to
    /// claim. It says so in a packet, but maybe late: at its next poll.
    fn is_written(&self, pull: &Pull) -> bool {
        let claims = self.transport.claims_from(pull.peer);
        let share = pull.share.as_ref().filter(|_| !pull.unreadable);
        share.zip(claims).is_some_and(|(share, claims)| share.offer.is_there(claims))
    }

    fn pull_with(&mut self, mut pull: Pull) {
        let index = pull.incoming;
        if self.seems_withdrawn(pull.peer) {
            return self.pull_later(pull);
        }
        match self.read_on(&mut pull) {
            // Whether it is this message that is given up will be told, and fails it then.
            Step::Done if self.is_withdrawn(pull.peer) => self.pull_later(pull),
            Step::Done => {
                self.end_share(&mut pull);
                self.finish_if_whole(index);
            }
            Step::More => self.pull_later(pull),
            Step::Waits => {
                pull.waits = true;
                self.pull_later(pull);
            }
            Step::Unreadable => self.fall_back(pull),
            Step::Contradiction => {
                self.violation(pull.peer, "it claims blocks that are not there");
            }
        }
    }

    /// Keeps a message that is not wholly read, for those who poll.
    fn pull_later(&mut self, pull: Pull) {
        self.copies.pulls.push_back(pull);
        self.wake_sound_sleepers();
    }

    fn read_on(&mut self, pull: &mut Pull) -> Step {
        let mut left = STRETCH;
        loop {
            let Incoming { received: from, end, .. } = self.incoming[pull.incoming];
            let to = match &mut pull.share {
                None if from == end => return Step::Done,
                None => end.min(from + left),
                Some(Share { offer, block }) => {
                    let Some(claims) = self.transport.claims_from(pull.peer) else {
                        return Step::Contradiction;
                    };
                    match offer.take(claims) {
                        Ok(Some(mine)) => end.min((mine as usize + 1) * *block),
                        Ok(None) if offer.back() == offer.blocks() => return Step::Done,
                        Ok(None) if offer.is_there(claims) => {
                            self.incoming[pull.incoming].end = from;
                            return Step::Done;
                        }
                        Ok(None) => return Step::Waits,
                        Err(_) => return Step::Contradiction,
                    }
                }
            };
            if !self.read_between(pull.incoming, from, to) {
                return Step::Unreadable;
            }
            self.incoming[pull.incoming].received = to;
            left = left.saturating_sub(to - from);
            if left == 0 {
                return Step::More;
            }
        }
    }

    /// Reads the bytes of a message from `from` to `to`. Returns false if that is not possible.
    fn read_between(&mut self, index: u32, from: usize, to: usize) -> bool {
        let Incoming { peer, remote, target, .. } = self.incoming[index];
        let Target::Receive { receive, start, .. } = target else {
            return false;
        };
        let mut readable = true;
        let (transport, pieces) = (&mut self.transport, self.receives[receive].pieces.view());
        pieces.for_each_part(start + from, to - from, |done, part| {
            let address = remote.wrapping_add((from + done) as u64);
            readable = readable && transport.read_remote(peer, address, part);
        });
        readable
    }

    /// Whether the sender has given messages up and we have not heard which: what was read may be
    /// anything.
    pub(crate) fn is_withdrawn(&self, peer: PeerIndex) -> bool {
        let known = self.peers[peer as usize].withdrawn_by_it;
        self.transport.claims_from(peer).is_some_and(|claims| claims.is_withdrawn_beyond(known))
    }

    /// Whether the sender seems to have given messages up that we have not heard of, before anything is
    /// read, which would be in vain then.
    pub(crate) fn seems_withdrawn(&self, peer: PeerIndex) -> bool {
        let known = self.peers[peer as usize].withdrawn_by_it;
        self.transport.claims_from(peer).is_some_and(|claims| claims.seems_withdrawn_beyond(known))
    }

    /// What could not be read is asked for in parts, once the sender has written what it claimed.
    #[cold]
    #[inline(never)]
    fn fall_back(&mut self, mut pull: Pull) {
        // Memory that was given back need not be there any more; that says nothing of other.
        self.peers[pull.peer as usize].copies.unreadable |= !self.is_withdrawn(pull.peer);
        pull.unreadable = true;
        if let Some(share) = &mut pull.share {
            let claims = self.transport.claims_from(pull.peer);
            let closed = claims.is_some_and(|claims| share.offer.close(claims).is_ok());
            if !closed {
                return self.violation(pull.peer, "it claims blocks that are not there");
            }
            pull.waits = share.offer.back() < share.offer.blocks();
        }
        if pull.waits {
            return self.pull_later(pull);
        }
        self.end_share(&mut pull);
        self.consent(pull.incoming);
    }

    /// Offers the sender to write some of the message, if it can and that is worth its while: not
    /// where messages of ours are on their way to it, which it is busy with.
    fn offer_share(&mut self, index: u32) -> Option<Share> {
        let Incoming { peer, operation, target, end, sender_waits, received, .. } =
            self.incoming[index];
        let Target::Receive { receive, start, .. } = target else {
            return None;
        };
        let least = if sender_waits { SHARED_MIN } else { SHARED_STREAMING_MIN };
        let piece = self.receives[receive].pieces.view().contiguous(start, end);
        let record = &mut self.peers[peer as usize];
        let slot = record.copies.offered.trailing_ones() as usize;
        // Blocks are counted from the first byte, so all of it has to be wanted.
        let free = record.awaiting == 0 && slot < CLAIMS && received == 0;
        let worth = free && end >= least && piece.len() == end;
        // Who may read our memory may write it.
        if !worth || !self.transport.is_readable_by(peer) {
            return None;
        }
        let claims = self.transport.claims_from(peer)?;
        let block = end.div_ceil(BLOCKS).next_multiple_of(BLOCK_MIN).min(STRETCH);
        let generation = record.copies.generation.wrapping_add(1);
        (record.copies.offered, record.copies.generation) =
            (record.copies.offered | 1 << slot, generation);
        let offer = Offer::open(claims, slot, generation, end.div_ceil(block) as u32);
        let claim = u64::from(generation) << 8 | slot as u64;
        let words = [claim, piece.as_ptr() as u64, end as u64, block as u64];
        self.reply(peer, Reply { kind: Kind::Share, operation, words });
        Some(Share { offer, block })
    }

    fn end_share(&mut self, pull: &mut Pull) {
        if let Some(share) = pull.share.take() {
            self.peers[pull.peer as usize].copies.offered &= !(1 << share.offer.slot());
        }
    }

    /// The sender has written a message from byte `from` on, and writes no more of it.
    pub(crate) fn arrive_wrote(&mut self, peer: PeerIndex, operation: u64, from: u64) {
        let Some(&index) = self.peers[peer as usize].incoming.get(&operation) else {
            return;
        };
        let shared = |pull: &Pull| pull.incoming == index && pull.share.is_some();
        let Some(at) = self.copies.pulls.iter().position(shared) else {
            return self.violation(peer, "it helped with a message that was not offered");
        };
        let incoming = &mut self.incoming[index];
        if !(incoming.received as u64..=incoming.end as u64).contains(&from) {
            return self.violation(peer, "it wrote where the receiver had read");
        }
        incoming.end = from as usize;
        let whole = incoming.received == incoming.end;
        let Some(mut pull) = self.copies.pulls.remove(at) else {
            return;
        };
        self.end_share(&mut pull);
        pull.waits = false;
        match pull.unreadable && !whole {
            true => self.consent(index),
            false => self.pull_with(pull),
        }
    }

    /// Ends what goes from buffer to buffer with a peer, before buffers are the application's again: an
    /// adapter writes no more to our memory when this returns, and the peer believes nothing that it reads
    /// there. Nor does the peer write, except one that has stopped in the middle of a block: see
    /// [`Self::take_back`].
    pub(crate) fn end_single_copy(&mut self, peer: PeerIndex) {
        self.forget_pulls(peer);
        self.forget_fetches(peer);
        self.withdraw_all(peer);
    }

    /// Has a peer believe nothing of what it reads in our memory from now on.
    pub(crate) fn withdraw_all(&mut self, peer: PeerIndex) {
        if let Some(claims) = self.transport.claims_to(peer) {
            claims.withdraw();
        }
    }

    /// Gives up what is being read from a peer. Returns whether it writes no more to our memory.
    pub(crate) fn forget_pulls(&mut self, peer: PeerIndex) -> bool {
        let pulls = std::mem::take(&mut self.copies.pulls);
        let (gone, left): (VecDeque<Pull>, _) =
            pulls.into_iter().partition(|pull| pull.peer == peer);
        self.copies.pulls = left;
        gone.into_iter().fold(true, |quiet, pull| quiet & self.take_back(pull))
    }

    /// Gives up one message that is being read. Returns whether its sender writes no more to our memory.
    pub(crate) fn stop_pull(&mut self, incoming: u32) -> bool {
        let at = self.copies.pulls.iter().position(|pull| pull.incoming == incoming);
        at.and_then(|at| self.copies.pulls.remove(at)).is_none_or(|pull| self.take_back(pull))
    }

    /// Closes what was offered of a message, and waits until its sender writes no more of it. Returns
    /// whether that is so: a sender that has stopped in the middle of a block is not waited for without
    /// end, and writes the rest when it goes on. A buffer that was moved in is nobody's from then on.
    fn take_back(&mut self, mut pull: Pull) -> bool {
        let mut quiet = true;
        // A lane that is gone has no sender any more.
        if let (Some(share), Some(claims)) =
            (&mut pull.share, self.transport.claims_from(pull.peer))
            && share.offer.close(claims).is_ok()
        {
            let deadline = Instant::now() + TAKE_BACK_MAX;
            quiet = share.offer.is_quiet(claims);
            while !quiet && Instant::now() < deadline {
                yield_now();
                // Who was killed in the middle of a block never says that it is written.
                quiet = share.offer.is_quiet(claims) || self.transport.has_ended(pull.peer);
            }
        }
        self.end_share(&mut pull);
        if !quiet {
            self.leave_buffer(pull.incoming);
        }
        quiet
    }

    /// Leaves the buffer that a message goes to where it is for good, if it is one of ours: nobody ever
    /// hears that its sender, who has stopped, writes there no more.
    #[cold]
    fn leave_buffer(&mut self, index: u32) {
        let Incoming { peer, target, .. } = self.incoming[index];
        let Target::Receive { receive, .. } = target else { return };
        let shared = self.shared.as_ref().and_then(|it| Some((it, *it.slices.get(&receive)?)));
        let leaked = match shared {
            Some((shared, buffer)) => shared.pool.lock().leak(buffer),
            None => Attachment::leak(&mut self.receives[receive].attachment),
        };
        if let Some(bytes) = leaked {
            tracing::warn!(
                address = %self.peers[peer as usize].address,
                "{bytes} bytes of a receive are never freed: their sender has stopped while it writes there"
            );
        }
    }
}

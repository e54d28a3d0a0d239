//! Single-copy: a receiver reads the sender's memory itself when the sender
//! does not come round to streaming.
//!
//! A sender keeps its buffer until the receiver's finish, so reading is safe at
//! any time in between. Streaming through chunks moves more per second as long
//! as both sides run; a sender that computes, or sleeps, would let the receiver
//! wait, and then one read is better than none.

use std::time::{Duration, Instant};

use crate::{
    engine::{Engine, peer::Reply},
    error::Errno,
    operation::Target,
    transport::{Transport, Unreachable},
    wire::Kind,
};

/// How long a sender may be silent before its memory is read.
const PATIENCE: Duration = Duration::from_micros(50);
/// Bytes read in one poll at most, so that the poll stays short.
const READ_MAX: usize = 4 << 20;

/// A consented message whose sender may have stalled.
#[derive(Debug)]
pub struct Stalled {
    /// Index of the incoming message.
    pub incoming: u32,
    received: usize,
    since: Instant,
}

impl Stalled {
    /// Starts watching.
    pub fn new(incoming: u32) -> Stalled {
        Stalled { incoming, received: usize::MAX, since: Instant::now() }
    }
}

/// How a try to read came out.
#[derive(PartialEq, Eq)]
enum Outcome {
    /// Some of the message was read, or all of it.
    Read,
    /// It cannot be read: streaming goes on.
    Unreadable,
}

impl<T: Transport> Engine<T> {
    /// Looks at messages under way, and reads those whose senders are silent.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_stalled(&mut self) -> bool {
        let now = Instant::now();
        let mut moved = false;
        for index in (0..self.stalled.len()).rev() {
            let stalled = &mut self.stalled[index];
            let incoming = &self.incoming[stalled.incoming];
            if stalled.received != incoming.received && !incoming.pulled {
                stalled.received = incoming.received;
                stalled.since = now;
            }
            if now - stalled.since < PATIENCE {
                continue;
            }
            // A message that is finished takes itself off the list, at this place.
            let incoming = self.stalled[index].incoming;
            if self.read_some(incoming) == Outcome::Read {
                moved = true;
                continue;
            }
            self.stalled.swap_remove(index);
            if self.incoming[incoming].pulled {
                self.give_up(incoming);
            }
        }
        moved
    }

    /// Reads a stretch of a message.
    fn read_some(&mut self, index: u32) -> Outcome {
        let incoming = &self.incoming[index];
        let (peer, remote, total) = (incoming.peer, incoming.remote, incoming.total);
        let Target::Receive { receive, start, room } = incoming.target else {
            return Outcome::Unreadable;
        };
        let from = incoming.received;
        let wanted = (total - from).min(READ_MAX).min(room.saturating_sub(from));
        // What does not fit is not read, and passed over in one step.
        let length = if from + wanted < room { wanted } else { total - from };
        let pieces = self.receives[receive].pieces.view();
        let (mut readable, mut done) = (true, 0);
        let address = |offset: usize| remote.wrapping_add(offset as u64);
        let transport = &mut self.transport;
        pieces.for_each_part(start + from, wanted, |part| {
            readable = readable && transport.read_remote(peer, address(from + done), part);
            done += part.len();
        });
        if !readable {
            return Outcome::Unreadable;
        }
        let incoming = &mut self.incoming[index];
        incoming.pulled = true;
        incoming.received = from + length;
        self.finish_if_whole(index);
        Outcome::Read
    }

    /// A message that was partly read cannot be read on, and its parts were let
    /// go: both sides are told. A sender that died is found out in its own way.
    #[cold]
    #[inline(never)]
    fn give_up(&mut self, index: u32) {
        let incoming = self.incoming.remove(index);
        let (peer, operation) = (incoming.peer, incoming.operation);
        self.peers[peer as usize].incoming.remove(&operation);
        let errno = Errno::CONNABORTED;
        let reason = "the sender's memory could be read only in part".into();
        self.reply(peer, Reply { kind: Kind::Finish, operation, errno: errno.0 as u64 });
        if let Target::Receive { receive, room, .. } = incoming.target {
            let placed = incoming.received.min(room) as u64;
            let why = Unreachable { errno, reason };
            self.fail_arriving(receive, &incoming.message(), placed, &why);
        }
    }
}

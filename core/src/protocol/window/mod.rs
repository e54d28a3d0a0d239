//! One-sided operations that an adapter carries out, through a window to the peer's memory.
//!
//! The first operation on a region goes as packets, and asks: for a window to the peer, if there
//! is none, and for a lease of the region. Those that come after the answers go through the
//! window, and the peer's processor has no part in them. A transport may have peers tell all who have
//! a window of their regions ([`crate::window::Publisher`]): then none asks for those. What the
//! window cannot do goes as packets for ever: remote data that it does not carry, several pieces or segments, regions whose
//! use is counted, and all that the target has to refuse, since its engine says best why. So do
//! atomics, unless they are declared to be for adapters alone.
//!
//! An adapter that is slower than packets says so ([`crate::window::Worth`]), and one that is done
//! when it has started leaves nothing under way.
//!
//! Order. Operations in a window follow each other; so do packets. Between the two:
//!
//! - W1: a packet with a message or a one-sided operation waits until the window is empty. So a
//!   message finds the writes before it done.
//! - W2: an operation enters the window when every one-sided packet is answered, and none of
//!   our messages has left behind the last of them. So it finds done what was sent before it.
//!   Behind a message an operation goes as packets, therefore, whose answer says that the
//!   target has taken the message. So says the answer to a question. Who has not asked for that order
//!   (FI_ORDER_WAS for writes, FI_ORDER_RAS for reads) has operations that enter all the same, unless
//!   he fences: what is behind a fence has to find done what is before it, whether it is a message, and
//!   complete, or not.
//!
//! In reading order: [`lease`] asks and answers, [`reach`] starts operations and ends them,
//! [`atomic`] does so with atomics, [`doubt`] sees to what may have been done.

pub mod atomic;
pub mod doubt;
pub mod lease;
pub mod reach;

use rustc_hash::FxHashMap;

use crate::{engine::peer::Peer, window::Lease};

/// Leases of one peer's regions that are remembered.
const LEASES_MAX: usize = 256;

/// How an operation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is under way in the window.
    Window,
    /// As packets, now or behind others.
    Packets,
    /// Not now.
    Wait,
}

/// What the engine keeps of its window to a peer.
#[derive(Debug, Default)]
pub struct PeerWindow {
    /// Operations in the window.
    pub under_way: u32,
    /// Packet operations that are not answered.
    packets: u32,
    /// Messages of several packets that left.
    pub longs: u32,
    /// What of our messages had left before the last packet operation, and before the last one
    /// that is known to be answered.
    left: Epoch,
    settled: Epoch,
    /// Whether it is asked for.
    invitation: Invited,
    /// What the peer said of its regions; none: not by window. And what it was asked.
    leases: FxHashMap<u64, Option<Lease>>,
    asked: Option<u64>,
    /// Answers on their way that are not believed any more.
    stale: u32,
    /// What of our messages had left before the question.
    asked_at: Epoch,
    /// Whether an atomic waits for the answer, and which answer has come for one.
    wanted: Option<u64>,
    answered: Option<u64>,
    /// An atomic is under way that may have to be tried again: nothing starts behind it.
    alone: bool,
}

/// Whether a window was asked for, which is done once for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Invited {
    /// Not yet; or it was, and there is one.
    #[default]
    No,
    /// It is not answered.
    Yes,
    /// In vain.
    Refused,
}

/// A moment in what was sent to a peer: bytes charged, and long messages.
type Epoch = (u64, u32);

impl PeerWindow {
    /// The window has closed, and with it what the peer said of its regions.
    pub fn forget_leases(&mut self) {
        self.leases.clear();
        self.stale += u32::from(self.asked.is_some());
        (self.asked, self.wanted, self.answered) = (None, None, None);
    }

    /// The next answer has come. Whether it is that to the present question, about `key`: the same may have
    /// been asked before the window closed, and what left since then is behind that answer.
    fn is_answered(&mut self, key: u64) -> bool {
        if self.stale > 0 {
            self.stale -= 1;
            return false;
        }
        self.asked.take_if(|asked| *asked == key).is_some()
    }

    /// An operation is under way no more.
    #[inline(always)]
    pub fn note_over(&mut self, repeats: bool) {
        self.under_way -= 1;
        self.alone &= !repeats;
    }
}

impl Peer {
    fn epoch(&self) -> Epoch {
        (self.credit.charged, self.window.longs)
    }

    /// The last packet of an operation has left.
    #[inline(always)]
    pub fn packet_left(&mut self) {
        self.window.packets += 1;
        self.window.left = self.epoch();
    }

    /// A packet operation was answered, and so were those before it.
    #[inline(always)]
    pub fn packet_answered(&mut self) {
        self.window.packets -= 1;
        if self.window.packets == 0 {
            self.window.settled = self.window.left;
        }
    }

    /// Whether anything that was posted before a fence is not complete.
    #[inline(always)]
    pub fn has_unfinished(&self) -> bool {
        self.awaiting > 0 || self.window.under_way > 0
    }
}

#[cfg(test)]
mod tests {
    use super::PeerWindow;

    #[test]
    fn an_answer_to_what_was_forgotten_is_not_believed() {
        let mut window = PeerWindow { asked: Some(5), ..PeerWindow::default() };
        window.forget_leases();
        window.asked = Some(5);
        assert!(!window.is_answered(5), "that is what was asked before");
        assert!(window.is_answered(5));
        assert!(!window.is_answered(5), "nothing is asked any more");
        window.forget_leases();
        window.asked = Some(6);
        assert!(window.is_answered(6), "nothing was on its way");
    }
}

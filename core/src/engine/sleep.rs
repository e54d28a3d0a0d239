//! Who sleeps on an engine's bell.
//!
//! Peers ring it. What waits for room at one of them, or is copied piece by piece, or an event that is put off,
//! rings nothing: a sleeper that finds such work only naps, and looks again by itself. One that found none sleeps
//! soundly, and is rung for by whoever leaves some behind, in a post or a poll of another thread.

use std::time::Duration;

use super::Engine;
use crate::transport::Transport;

/// The longest nap.
const NAP: Duration = Duration::from_millis(1);

/// How long to sleep of what is left: all of it, unless the sleeper must look again by itself.
pub fn rest(left: Option<Duration>, looks_again: bool) -> Option<Duration> {
    if looks_again { Some(left.map_or(NAP, |left| left.min(NAP))) } else { left }
}

/// How a thread may sleep that has asked for the bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Not at all: there is something to do already.
    Awake,
    /// For a moment: something waits for what rings no bell.
    Nap,
    /// Until the bell rings.
    Sound,
}

impl<T: Transport> Engine<T> {
    /// Asks peers for the bell. The transport's fence follows, and then
    /// [`how_to_sleep`](Self::how_to_sleep) or `disarm`.
    pub fn arm(&mut self) {
        self.drop_finished();
        self.transport.arm();
    }

    /// How to sleep with the bell that was asked for.
    pub fn how_to_sleep(&mut self) -> Sleep {
        // What the transport met on its way rings no more.
        if !self.transport.is_quiet() && !self.waits_for_reader() || self.take_confirmed() {
            return Sleep::Awake;
        }
        if !self.waits_for_room() {
            self.sound_sleepers += 1;
            return Sleep::Sound;
        }
        // The ring that this has silenced may not have reached them yet.
        self.wake_sound_sleepers();
        Sleep::Nap
    }

    /// One sleeper less: the counterpart of each `arm`, with what [`how_to_sleep`](Self::how_to_sleep)
    /// answered: [`Sleep::Awake`] if it was not asked. True if others sleep on: the transport's fence follows, and
    /// then [`ring_for_others`](Self::ring_for_others).
    pub fn disarm(&mut self, sleep: Sleep) -> bool {
        let others_sleep = self.transport.disarm();
        self.take_confirmed();
        if sleep == Sleep::Sound {
            self.sound_sleepers -= 1;
        }
        if self.waits_for_room() {
            // The ring that this has silenced may not have reached the others yet.
            self.wake_sound_sleepers();
        }
        others_sleep
    }

    /// Rings for who sleeps on, if something is there whose ring may have been silenced.
    pub fn ring_for_others(&mut self) {
        let is_quiet = self.transport.is_quiet();
        // What the transport met on its way rings no more.
        if self.take_confirmed() || !is_quiet {
            self.transport.ring();
        }
    }

    /// What a sleeper waits for.
    pub fn bell(&self) -> std::os::fd::RawFd {
        self.transport.bell()
    }

    /// Rings for who would not look at what is left behind here.
    #[inline(always)]
    pub(crate) fn wake_sound_sleepers(&mut self) {
        if self.sound_sleepers > 0 {
            self.transport.ring();
        }
    }

    /// Whether something here waits for room at a peer, or for what rings no bell.
    fn waits_for_room(&self) -> bool {
        let copies = !self.copies.is_empty();
        let waits = !(self.backlog.is_empty() && self.fetches.is_empty());
        copies || waits || self.shortage.holds_event() || self.waits_for_reader()
    }
}

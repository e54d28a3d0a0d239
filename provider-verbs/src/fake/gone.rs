//! A device of the fake that goes away, or loses queues: what is posted on it is taken and never completes.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

use super::FakeDevice;
use crate::trouble::Trouble;

/// The channel of what a device has to say of itself.
pub(super) fn channel() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a test has a descriptor")
}

impl FakeDevice {
    /// It goes away, and says so.
    pub fn remove(&self) {
        self.remove_for_manager();
        self.lose_pairs();
        self.say(Trouble::Device("the test says so".into()));
    }

    /// It goes away, and the connection manager alone says so.
    pub fn remove_for_manager(&self) {
        self.lose_pairs();
        self.fabric.lock().exchange.remove_device(self.ordinal);
    }

    /// The queues that it has now are in error, and it says so.
    pub fn fail_queues(&self) {
        for name in self.lose_pairs() {
            self.say(Trouble::Queue { name, what: "the test says so".into() });
        }
    }

    /// The queues that it has now cannot be polled any more, of which it says nothing by itself.
    pub fn fail_polls(&self) {
        for name in self.lose_pairs() {
            if let Some(queues) = self.fabric.lock().queues.get_mut(&name) {
                queues.fails = true;
            }
        }
    }

    /// Nothing completes any more of what is posted to the queue pairs that there are now: their queues.
    fn lose_pairs(&self) -> Vec<u64> {
        let mut state = self.fabric.lock();
        let ours = state.pairs.values_mut().filter(|pair| pair.device == self.ordinal);
        let mut queues: Vec<u64> = ours
            .map(|pair| {
                pair.gone = true;
                pair.queues
            })
            .collect();
        // Who waits for a receive of theirs is not answered any more.
        state.shared_posted();
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    fn say(&self, trouble: Trouble) {
        self.fabric.lock().troubles.push((self.ordinal, trouble));
        // The counter cannot fill up.
        let _ = rustix::io::write(&self.troubles, &1u64.to_ne_bytes());
    }

    pub(super) fn take_trouble(&self) -> Option<Trouble> {
        let mut state = self.fabric.lock();
        let next = state.troubles.iter().position(|(device, _)| *device == self.ordinal);
        if next.is_none() {
            // EAGAIN: it was not readable.
            let _ = rustix::io::read(&self.troubles, &mut [0; 8]);
        }
        Some(state.troubles.remove(next?).1)
    }
}

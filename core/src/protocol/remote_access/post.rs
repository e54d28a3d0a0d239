//! Posting a one-sided operation: straight into the lane if nothing stands in
//! the way, else into the peer's queue.

use std::convert::Infallible;

use super::push::Pushed;
use crate::{
    completion_queue::ErrorEntry,
    endpoint::PostError,
    engine::{Engine, peer::ONE_SIDED},
    error::{Cause, HasErrno},
    flags::Flags,
    one_sided::{RemoteOperation, RemotePost},
    protocol::{fence::Earlier, window::Way},
    transport::{PeerIndex, Transport},
};

impl<T: Transport> Engine<T> {
    /// Starts a one-sided operation, or queues it. An error has no side effect.
    ///
    /// Cost of an operation up to one packet on a connected peer: no system
    /// call, no lock; no allocation once as many were under way before. Through a window it costs
    /// what the adapter takes: over shared memory a system call.
    #[inline]
    pub fn remote(&mut self, post: RemotePost<'_>) -> Result<(), PostError> {
        let Some(peer) = self.peer_at(post.to) else {
            return Err(self.refuse_nobody(post.to));
        };
        if self.is_full() {
            self.pump(peer);
            if self.is_full() {
                return Err(self.no_place());
            }
        }
        let flags = post.flags;
        if flags.contains(Flags::INJECT)
            && let Err(refused) = self.check_injected(peer, flags, post.context)
        {
            self.flush();
            return Err(refused);
        }
        self.start_remote(peer, RemoteOperation::from_post(peer, post));
        self.let_leave(peer, flags);
        self.flush_unless_more(flags);
        Ok(())
    }

    /// Refuses what is injected for nobody, or could not be copied.
    #[inline(always)]
    fn check_injected(
        &mut self,
        peer: PeerIndex,
        flags: Flags,
        context: u64,
    ) -> Result<(), PostError> {
        self.refuse_unreachable(peer, flags, context)?;
        self.reserve.stock()
    }

    /// Sends and one-sided operations that are not complete, or not reported.
    #[inline(always)]
    pub(crate) fn under_way(&self) -> usize {
        self.sends.len() + self.remotes.len() + self.unreported()
    }

    /// Whether no one-sided operation fits beside them.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.under_way() >= self.setup.transmit_size
    }

    #[inline(always)]
    fn start_remote(&mut self, peer: PeerIndex, operation: RemoteOperation) {
        let mut clear = self.peers[peer as usize].clear;
        let is_fenced = operation.flags.contains(Flags::FENCE);
        let is_behind = self.peers[peer as usize].fenced;
        let mut waits =
            is_fenced || is_behind || self.peers[peer as usize].reads.hold_up(&operation);
        let index = self.remotes.insert(operation);
        if is_fenced {
            self.note_fence(peer, Earlier::OneSided(self.remotes.name(index)));
        }
        if self.orders.transmit.is_some() {
            self.enter_line(peer, index | ONE_SIDED);
            clear = self.peers[peer as usize].is_open();
        }
        if !waits && self.is_worth_a_window(peer, index) {
            match self.start_behind_nothing(peer, index) {
                Way::Window => return,
                Way::Wait => waits = true,
                Way::Packets => {}
            }
        }
        if waits || !clear || self.push_remote(peer, index) != Pushed::Whole {
            self.queue_remote(peer, index);
        }
    }

    #[cold]
    #[inline(never)]
    fn queue_remote(&mut self, peer: PeerIndex, index: u32) {
        self.keep_injected(index);
        self.peers[peer as usize].queue.push_back(index | ONE_SIDED);
        self.pump(peer);
        self.note_backlog(peer);
    }

    /// Copies what an injected operation sends, if that is not done.
    #[inline(always)]
    pub(crate) fn keep_injected(&mut self, index: u32) {
        let (operation, reserve) = (&mut self.remotes[index], &mut self.reserve);
        let Ok(()) = operation.keep_injected(|length| Ok::<_, Infallible>(reserve.take(length)));
    }

    /// Takes an operation that was left for the owner, whatever the transmit size says: whoever posted
    /// it was told that it is taken. What is wrong with it becomes an error completion.
    #[cold]
    pub(crate) fn remote_submitted(&mut self, to: u64, mut operation: RemoteOperation) {
        if let Some(peer) = self.peer_at(to) {
            operation.peer = peer;
            let flags = operation.flags;
            self.start_remote(peer, operation);
            return self.let_leave(peer, flags);
        }
        let refused = self.no_peer(to);
        let reason = format!("before the operation left: {refused}");
        self.fail_unsent_remote(operation, &Cause { errno: refused.errno(), reason });
    }

    /// Fails an operation that has no record.
    #[cold]
    pub(crate) fn fail_unsent_remote(&mut self, operation: RemoteOperation, why: &Cause) {
        let flags = operation.action.completion_flags();
        let error = ErrorEntry {
            data: operation.data,
            attachment: operation.attachment,
            ..ErrorEntry::new(operation.context, flags, why.errno, why.reason.clone())
        };
        self.report_failure(operation.action.counted(), error);
    }
}

//! How a one-sided operation ends: the target's data or word, a death, a cancel.

use crate::{
    attachment::Attachment,
    completion_queue::{Entry, ErrorEntry},
    engine::{Engine, peer::ONE_SIDED, report::count_failure},
    error::{Cause, Errno},
    flags::Flags,
    one_sided::{Action, RemoteOperation, RemoteStage},
    operation::{StoredPieces, can_be_named},
    protocol::{fence::Earlier, receive::canceled},
    transport::{Arrival, PeerIndex, Transport},
};

/// Why a target does not make something durable.
const VOLATILE: &str = "its memory region was not registered as persistent memory";
/// Why a target plays no atomic operation.
const FOR_ADAPTERS: &str = "atomic operations on its memory are for adapters alone \
    (FI_KESTREL_NIC_ATOMICS) and need FI_MR_ALLOCATED: none of ours can do this one";

impl RemoteOperation {
    /// Whether a cancel with `context` finds it.
    pub(crate) fn can_be_canceled(&self, context: u64) -> bool {
        let queued = self.stage == RemoteStage::Queued;
        queued && self.context == context && can_be_named(self.flags, context)
    }
}

impl<T: Transport> Engine<T> {
    /// An operation of ours with this name that has left for `peer`.
    #[inline(always)]
    pub(crate) fn own_remote(&self, peer: PeerIndex, name: u64) -> Option<u32> {
        let index = self.remotes.index_of(name)?;
        self.remotes[index].has_begun_with(peer).then_some(index)
    }

    /// Data that we asked for.
    #[inline]
    pub(super) fn arrive_data(&mut self, arrival: Arrival) {
        let peer = arrival.peer;
        // What a failed operation had asked for may still be on the way.
        let Some(index) = self.own_remote(peer, arrival.word) else {
            return;
        };
        let operation = &mut self.remotes[index];
        let (at, length) = (operation.received, arrival.length);
        let asked_for = operation.action.fetches() && length > 0 && length <= operation.sent - at;
        if !asked_for || self.transport.word(0) != at as u64 {
            return self.violation(peer, "it sent data that nobody asked for");
        }
        let transport = &self.transport;
        operation.results.view().for_each_part(at, length, |done, part| {
            transport.copy_out(done, part);
        });
        operation.received = at + length;
        if operation.received == operation.total {
            self.finish_remote(index);
        }
    }

    /// The target's word.
    #[inline]
    pub(super) fn arrive_done(&mut self, peer: PeerIndex, name: u64, errno: u64) {
        let Some(index) = self.own_remote(peer, name) else {
            return;
        };
        let operation = &self.remotes[index];
        if operation.stage == RemoteStage::InWindow {
            // Its buffer is not the application's before the adapter says so.
            return self.violation(peer, "it finished an operation that an adapter carries out");
        }
        if errno != 0 {
            return self.refused(index, errno);
        }
        let can_be = matches!(operation.stage, RemoteStage::Awaiting | RemoteStage::Asked)
            && (operation.total == 0 || !operation.action.fetches());
        if operation.stage == RemoteStage::Asked && !operation.landed {
            return self.lose_remote(index);
        }
        if !can_be {
            return self.violation(peer, "it finished an operation that is under way");
        }
        self.finish_remote(index);
    }

    /// An operation is complete.
    #[inline]
    pub(crate) fn finish_remote(&mut self, index: u32) {
        let mut operation = self.take_remote(index);
        // Who hears of the end may give the memory back.
        operation.own = None;
        if operation.discarded {
            return;
        }
        if let Some(run) = operation.run {
            let served = &mut self.peers[operation.peer as usize].served;
            self.contests.finish(operation.total, run, served);
        }
        let tally = Attachment::take_tally(&mut operation.attachment);
        let entry = operation.flags.contains(Flags::COMPLETION).then(|| Entry {
            context: operation.context,
            flags: operation.action.completion_flags().bits(),
            attachment: operation.attachment,
            ..Entry::default()
        });
        let named = (operation.peer, index | ONE_SIDED);
        self.succeed(named, operation.action.counted(), entry, tally);
    }

    /// Takes an operation out, and lets go who waits for its end.
    #[inline]
    fn take_remote(&mut self, index: u32) -> RemoteOperation {
        let operation = self.remotes.remove(index);
        let record = &mut self.peers[operation.peer as usize];
        match operation.stage {
            RemoteStage::Queued => return operation,
            RemoteStage::Leaving | RemoteStage::Doubtful => {
                record.queue.retain(|&queued| queued != index | ONE_SIDED);
            }
            RemoteStage::Awaiting | RemoteStage::Asked => {
                record.awaiting -= 1;
                record.packet_answered();
            }
            RemoteStage::InWindow => {
                record.window.note_over(operation.may_repeat());
                self.in_windows -= 1;
                if record.window.under_way == 0 {
                    record.settle();
                }
                if !record.queue.is_empty() {
                    self.note_backlog(operation.peer);
                }
                return operation;
            }
        }
        let asks = matches!(operation.stage, RemoteStage::Doubtful | RemoteStage::Asked);
        if operation.action.fetches() && !asks {
            record.reads.note_over(&operation);
        }
        if !record.queue.is_empty() {
            self.note_backlog(operation.peer);
        }
        operation
    }

    #[cold]
    #[inline(never)]
    fn refused(&mut self, index: u32, errno: u64) {
        // Only the numbers that a target has reasons for; a peer may write any.
        let errno = Errno(i32::try_from(errno).unwrap_or(Errno::OTHER.0));
        let RemoteOperation { flags, action, .. } = &self.remotes[index];
        // Where adapters play atomic operations, it is more likely that the other's does not.
        let commits = flags.contains(Flags::COMMIT_COMPLETE) && !self.setup.adapter_atomics;
        let is_volatile = commits || *action == Action::Write;
        let what = match errno {
            Errno::KEYREJECTED => "it has no memory region with this key",
            Errno::ACCES => "its memory region or its endpoint does not allow that",
            Errno::INVAL => "that is not within its memory region, or not aligned",
            Errno::OPNOTSUPP if is_volatile => VOLATILE,
            Errno::OPNOTSUPP => FOR_ADAPTERS,
            Errno::NOMEM => "it has no memory for what may have to wait",
            Errno::IO => "the storage behind its memory region did not take it",
            _ => "it did not say why",
        };
        let operation = self.take_remote(index);
        self.forget_leases_of(&operation);
        let address = self.peers[operation.peer as usize].address;
        let reason = format!("the target {address} refused: {what}");
        self.report_failed(index, operation, &Cause { errno, reason });
    }

    /// The window closed over an operation that the target permits: it may have been done.
    #[cold]
    pub(crate) fn lose_remote(&mut self, index: u32) {
        let operation = self.take_remote(index);
        let address = self.peers[operation.peer as usize].address;
        let reason = format!(
            "an error of the adapter closed the window to {address}: whether the operation was \
             done is not known"
        );
        self.report_failed(index, operation, &Cause { errno: Errno::IO, reason });
    }

    /// An operation that is in no queue any more failed.
    #[cold]
    pub(crate) fn fail_remote(&mut self, index: u32, why: &Cause) {
        let operation = self.remotes.remove(index);
        self.report_failed(index, operation, why);
    }

    fn report_failed(&mut self, index: u32, mut operation: RemoteOperation, why: &Cause) {
        operation.own = None;
        if operation.discarded {
            return;
        }
        let peer = &self.peers[operation.peer as usize];
        let flags = operation.action.completion_flags();
        let entry = ErrorEntry {
            data: operation.data,
            source: peer.fi_addr,
            source_address: Some(peer.address),
            attachment: operation.attachment,
            ..ErrorEntry::new(operation.context, flags, why.errno, why.reason.clone())
        };
        self.fail((operation.peer, index | ONE_SIDED), operation.action.counted(), entry);
    }

    /// Fails what had begun with the peer's incarnation that is now gone.
    pub(crate) fn fail_begun_remotes(&mut self, peer: PeerIndex, why: &Cause) {
        let remotes = &self.remotes;
        let begun = |&index: &u32| remotes[index].has_begun_with(peer);
        let has_left = |&queued: &u32| {
            queued & ONE_SIDED != 0 && remotes[queued & !ONE_SIDED].has_begun_with(peer)
        };
        self.peers[peer as usize].queue.retain(|queued| !has_left(queued));
        let begun: Vec<u32> = remotes.indices().filter(begun).collect();
        for index in begun {
            self.fail_remote(index, why);
        }
    }

    /// Discards what has begun with `peer`, whose context is closed: its buffers are not looked at
    /// any more when this returns. Reads whose answers are under way are waited for, with nothing to
    /// tell, since the target counts how many there are.
    pub(crate) fn discard_begun_remotes(&mut self, peer: PeerIndex, why: &Cause) {
        let remotes = &self.remotes;
        let begun = |&index: &u32| remotes[index].has_begun_with(peer);
        let begun: Vec<u32> = remotes.indices().filter(begun).collect();
        if begun.iter().any(|&index| self.remotes[index].stage == RemoteStage::InWindow) {
            self.transport.close_window(peer);
            self.peers[peer as usize].window.forget_leases();
        }
        for index in begun {
            let operation = &mut self.remotes[index];
            let reads = operation.action == Action::Read;
            if matches!(operation.stage, RemoteStage::InWindow | RemoteStage::Doubtful)
                || operation.stage == RemoteStage::Leaving && !reads
            {
                let operation = self.take_remote(index);
                self.report_failed(index, operation, why);
                continue;
            }
            operation.discarded = true;
            operation.run = None;
            operation.results = StoredPieces::EMPTY;
            count_failure(Attachment::take_tally(&mut operation.attachment), None);
            operation.attachment = None;
        }
    }

    /// Cancels an operation of which nothing has left.
    pub(crate) fn cancel_remote(&mut self, index: u32) {
        let peer = self.remotes[index].peer;
        self.peers[peer as usize].queue.retain(|&queued| queued != index | ONE_SIDED);
        self.leave_line(index | ONE_SIDED);
        self.drop_fence(peer, Earlier::OneSided(self.remotes.name(index)));
        self.fail_remote(index, &canceled());
        self.note_backlog(peer);
    }
}

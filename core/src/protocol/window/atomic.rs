//! Atomic operations by the adapter, where the user has declared memory to be for adapters alone
//! (FI_KESTREL_NIC_ATOMICS).
//!
//! An adapter's step is not atomic towards a processor's, so where adapters play nobody else does:
//! an engine that was told so plays no atomic operation that comes as a packet, but for reading.
//! The first operation on a region waits, therefore, until there is a window and a lease. It goes
//! as a packet if the target has just said that no adapter may do it: then the target's engine
//! refuses it, and says why, or plays it, where adapters have no part.

use super::{Way, lease::Wanted};
use crate::{
    engine::Engine,
    flags::Flags,
    info::MessageOrder,
    memory::{Piece, Pieces},
    one_sided::{Action, RemoteOperation, StoredSegments},
    protocol::{
        atomic::{AtomicCall, Form},
        remote_access::push::gather,
    },
    transport::{PeerIndex, Transport},
    window::{AtomicRequest, Started},
};

/// Windows that may close over one operation, since regions come and go. Then the target's engine
/// is asked: its device refuses for a reason that no lease tells.
const REFUSALS_MAX: u32 = 16;

/// The word that the pieces hold, or 0.
fn word_of(pieces: Pieces<'_>) -> u64 {
    let mut bytes = [0; 8];
    gather(pieces, 0, Piece::of_owned(&mut bytes));
    u64::from_ne_bytes(bytes)
}

impl RemoteOperation {
    /// Hands the value from before to the application.
    fn put_result(&self, before: u64) {
        let bytes = before.to_ne_bytes();
        self.results.view().for_each_part(0, bytes.len(), |done, part| {
            part.fill(&bytes[done..]);
        });
    }
}

impl<T: Transport> Engine<T> {
    /// The call of an operation that adapters alone may do.
    #[inline(always)]
    pub(super) fn for_adapter(&self, index: u32) -> Option<AtomicCall> {
        let operation = &self.remotes[index];
        // Nobody but the target's processor makes it durable.
        let commits = operation.flags.contains(Flags::COMMIT_COMPLETE);
        match operation.action {
            Action::Atomic(call) if self.setup.adapter_atomics && !commits => Some(call),
            _ => None,
        }
    }

    /// Starts an atomic operation that nothing waits before.
    #[inline(never)]
    pub(super) fn start_atomic(&mut self, peer: PeerIndex, index: u32, call: AtomicCall) -> Way {
        let operation = &self.remotes[index];
        let StoredSegments::One(segment) = operation.segments else {
            return self.as_packet(peer);
        };
        if operation.refusals > REFUSALS_MAX {
            return self.as_packet(peer);
        }
        let lease = self.peers[peer as usize].window.leases.get(&segment.key).copied().flatten();
        let place = lease.and_then(|lease| lease.locate_word(segment.address));
        let (Some(lease), Some(address), true) =
            (lease, place, self.transport.is_window_open(peer))
        else {
            return self.learn(peer, segment.key);
        };
        let record = &self.peers[peer as usize];
        if record.window.packets > 0 || record.window.alone {
            return Way::Wait;
        }
        // W2, where a packet would say that the target has taken what left before.
        if self.is_behind_messages(peer, MessageOrder::WAS | MessageOrder::RAS) {
            self.ask_for(peer, segment.key);
            return Way::Wait;
        }
        let operation = &self.remotes[index];
        let (operand, compare) = (operation.source.view(), operation.compare.view());
        let change = call.step(word_of(operand), word_of(compare), operation.guess);
        let token = self.remotes.name(index);
        let request = AtomicRequest { token, change, address, remote_key: lease.remote_key };
        match self.transport.start_atomic(peer, &request) {
            Started::Yes | Started::Registered => {
                self.peers[peer as usize].window.alone = !call.is_one_step();
                self.note_started(peer, index);
                Way::Window
            }
            Started::NoRoom => Way::Wait,
            Started::Done | Started::Landed | Started::Refused | Started::Ended => {
                self.as_packet(peer)
            }
        }
    }

    /// W1: the target's engine has to look at it.
    fn as_packet(&self, peer: PeerIndex) -> Way {
        if self.peers[peer as usize].window.under_way > 0 { Way::Wait } else { Way::Packets }
    }

    /// Asks what an adapter may reach of a region: what was known may be out of date.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, peer: PeerIndex, key: u64) -> Way {
        if self.peers[peer as usize].window.under_way > 0 {
            return Way::Wait;
        }
        match self.want_window(peer) {
            Wanted::Open => {}
            Wanted::Later => return Way::Wait,
            Wanted::Never => return Way::Packets,
        }
        let window = &mut self.peers[peer as usize].window;
        if window.answered.take() == Some(key) {
            return Way::Packets;
        }
        if window.wanted != Some(key) {
            window.leases.remove(&key);
            self.ask_for(peer, key);
            let window = &mut self.peers[peer as usize].window;
            window.wanted = window.asked.filter(|&asked| asked == key);
        }
        Way::Wait
    }

    /// An adapter has done an operation, or found something else than was believed to be there.
    #[inline]
    pub(super) fn atomic_over(&mut self, index: u32, call: AtomicCall, before: u64) {
        let operation = &mut self.remotes[index];
        if !call.is_one_step() && before != operation.guess {
            operation.guess = before;
            return self.put_back(index);
        }
        if call.form != Form::Base {
            operation.put_result(before);
        }
        self.finish_remote(index);
    }
}

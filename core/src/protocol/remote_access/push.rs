//! Making packets of a one-sided operation.

use crate::{
    engine::Engine,
    flags::Flags,
    memory::{Piece, Pieces},
    one_sided::{Action, RemoteSegment, RemoteStage},
    protocol::{
        atomic::{ATOMIC_BYTES_MAX, AtomicCall},
        fence::Earlier,
        pump::{Cut, fit},
        window::Way,
    },
    transport::{PeerIndex, Transport},
    wire::{self, Head, Kind},
};

/// How much of an operation left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// There is no room for more of it.
    Part,
    /// All its packets.
    Whole,
}

/// What the next packet of an operation is about.
#[derive(Clone, Copy)]
struct Step {
    name: u64,
    segment: RemoteSegment,
    /// Bytes of the segment that are behind us.
    within: u64,
    /// Bytes of the operation that are behind us, and in all.
    sent: usize,
    total: usize,
    /// What every packet of it says.
    mark: u8,
}

impl Step {
    /// Bytes of the segment that are ahead.
    fn ahead(&self) -> usize {
        (self.segment.length - self.within).min((self.total - self.sent) as u64) as usize
    }

    /// The flags of a packet about `length` bytes.
    fn flags(&self, length: usize) -> u8 {
        self.mark | if self.sent + length == self.total { wire::LAST } else { 0 }
    }

    fn address(&self) -> u64 {
        self.segment.address.wrapping_add(self.within)
    }
}

impl<T: Transport> Engine<T> {
    /// Pushes the operation at the head of its peer's queue. Returns whether
    /// anything moved.
    pub(crate) fn pump_remote(&mut self, peer: PeerIndex, index: u32) -> bool {
        let operation = &self.remotes[index];
        if operation.stage == RemoteStage::Queued {
            let fenced = operation.flags.contains(Flags::FENCE);
            let record = &self.peers[peer as usize];
            if fenced && record.has_unfinished()
                || record.reads.hold_up(operation)
                || record.fenced
                    && self.is_behind_a_fence(peer, Earlier::OneSided(self.remotes.name(index)))
            {
                return false;
            }
            match self.start_in_window(peer, index) {
                Way::Window => {
                    self.peers[peer as usize].queue.pop_front();
                    return true;
                }
                Way::Wait => return false,
                Way::Packets => {}
            }
        } else if operation.stage == RemoteStage::Doubtful {
            return self.ask_about(peer, index);
        }
        let operation = &self.remotes[index];
        let before = (operation.stage, operation.sent);
        if self.push_remote(peer, index) == Pushed::Whole {
            self.peers[peer as usize].queue.pop_front();
            return true;
        }
        let operation = &self.remotes[index];
        (operation.stage, operation.sent) != before
    }

    /// Pushes as many packets of an operation as there is room for.
    #[inline]
    pub(super) fn push_remote(&mut self, peer: PeerIndex, index: u32) -> Pushed {
        loop {
            let operation = &self.remotes[index];
            let (sent, total) = (operation.sent, operation.total);
            let (segment, within) = operation.segments.at(sent);
            let name = self.remotes.name(index);
            let commits = operation.flags.contains(Flags::COMMIT_COMPLETE);
            let mark = if commits { wire::COMMIT } else { 0 };
            let step = Step { name, segment, within, sent, total, mark };
            let pushed = match operation.action {
                Action::Write => self.push_write(peer, index, &step),
                Action::Read => self.push_read(peer, &step),
                Action::Atomic(call) => self.push_atomic(peer, index, call, &step),
            };
            let Some(length) = pushed else {
                return Pushed::Part;
            };
            self.note_left(peer, index, length);
            if sent + length == total {
                return Pushed::Whole;
            }
        }
    }

    /// A packet about `length` bytes has left.
    #[inline(always)]
    fn note_left(&mut self, peer: PeerIndex, index: u32, length: usize) {
        let operation = &mut self.remotes[index];
        let record = &mut self.peers[peer as usize];
        if operation.stage == RemoteStage::Queued && operation.action.fetches() {
            record.reads.note_begun(operation);
        }
        operation.sent += length;
        operation.stage = RemoteStage::Leaving;
        if operation.sent == operation.total {
            operation.stage = RemoteStage::Awaiting;
            record.awaiting += 1;
            record.packet_left();
        }
    }

    /// Pushes a packet of a write: the rest of its segment if that fits one
    /// packet, else some of it.
    #[inline]
    fn push_write(&mut self, peer: PeerIndex, index: u32, step: &Step) -> Option<usize> {
        let ahead = step.ahead();
        let operation = &self.remotes[index];
        let piece = operation.source.view().contiguous(step.sent, ahead);
        if ahead > self.limits.single || step.within > 0 {
            return self.push_write_part(peer, index, step, piece);
        }
        let piece = if piece.len() == ahead {
            piece
        } else if ahead <= ATOMIC_BYTES_MAX {
            gather(operation.source.view(), step.sent, self.scratch.operands().part(0, ahead))
        } else {
            return self.push_write_part(peer, index, step, piece);
        };
        let flags = step.flags(ahead);
        let RemoteSegment { address, key, .. } = step.segment;
        let with_data = operation.flags.contains(Flags::REMOTE_CQ_DATA);
        let pushed = if with_data && flags & wire::LAST != 0 {
            let words = [key, address, operation.data];
            self.transport.push(peer, Head::new(Kind::WriteData, flags), step.name, &words, piece)
        } else {
            let words = [key, address];
            self.transport.push(peer, Head::new(Kind::Write, flags), step.name, &words, piece)
        };
        if pushed {
            return Some(ahead);
        }
        // No room for all of it at once: there may be for some of it.
        if ahead > 0 { self.push_write_part(peer, index, step, piece) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn push_write_part(
        &mut self,
        peer: PeerIndex,
        index: u32,
        step: &Step,
        piece: Piece,
    ) -> Option<usize> {
        let operation = &self.remotes[index];
        let busy = self.peers[peer as usize].awaiting > 0;
        let wanted = Cut::to(busy).part_of(step.segment.length as usize, self.limits.fragment);
        let part = fit(&mut self.transport, peer, piece.part(0, wanted))?;
        let mut flags = step.flags(part.len());
        if flags & wire::LAST != 0 && operation.flags.contains(Flags::REMOTE_CQ_DATA) {
            flags |= wire::DATA;
        }
        let RemoteSegment { address, length, key } = step.segment;
        let words = [key, address, length, step.within, operation.data];
        let head = Head::new(Kind::WritePart, flags);
        self.transport.push(peer, head, step.name, &words, part).then_some(part.len())
    }

    #[inline]
    fn push_read(&mut self, peer: PeerIndex, step: &Step) -> Option<usize> {
        let ahead = step.ahead();
        let words = [step.segment.key, step.address(), ahead as u64, step.sent as u64];
        let head = Head::new(Kind::Read, step.flags(ahead));
        self.transport.push(peer, head, step.name, &words, Piece::EMPTY).then_some(ahead)
    }

    #[inline]
    fn push_atomic(
        &mut self,
        peer: PeerIndex,
        index: u32,
        call: AtomicCall,
        step: &Step,
    ) -> Option<usize> {
        let ahead = step.ahead();
        let operation = &self.remotes[index];
        let (source, compare) = (operation.source.view(), operation.compare.view());
        let operands = call.operands(ahead);
        let mut payload = source.contiguous(step.sent, operands);
        if payload.len() < operands || call.payload(ahead) > operands {
            let target = self.scratch.operands().part(0, call.payload(ahead));
            gather(source, step.sent, target.part(0, operands));
            gather(compare, step.sent, target.part(operands, ahead));
            payload = target;
        }
        let words = [step.segment.key, step.address(), call.to_word(ahead, step.sent)];
        let head = Head::new(Kind::Atomic, step.flags(ahead));
        self.transport.push(peer, head, step.name, &words, payload).then_some(ahead)
    }
}

/// Copies what `target` has room for from byte `from` of `pieces` on, and answers it.
pub(crate) fn gather(pieces: Pieces<'_>, from: usize, target: Piece) -> Piece {
    pieces.for_each_part(from, target.len(), |done, part| {
        part.copy_to(target.part(done, part.len()));
    });
    target
}

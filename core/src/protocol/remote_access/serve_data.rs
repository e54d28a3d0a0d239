//! Data that a peer asked for and that could not leave at once.

use std::sync::Arc;

use super::{
    SERVING_MAX, SNAPSHOT_MAX,
    serve::Stretch,
    several::{InTheMiddle, Several, is_last},
};
use crate::{
    engine::{Engine, peer::Reply},
    flags::Flags,
    memory::Piece,
    memory_region::{MemoryRegion, access::Refusal},
    operation::room_for,
    protocol::pump::{Cut, fit},
    transport::{Arrival, PeerIndex, Transport},
    wire::{Head, Kind},
};

/// Something that a peer reads.
#[derive(Debug)]
pub struct Serving {
    /// The peer's name for its operation.
    operation: u64,
    /// Where in the operation's buffer the data belongs.
    offset: u64,
    length: usize,
    /// Bytes that have left.
    sent: usize,
    source: Source,
    /// The operation wants no more than this.
    last: bool,
    /// What is counted when it has left.
    several: InTheMiddle,
}

impl Serving {
    /// Whether it is the answer of what was done: what an atomic operation fetched, a short read.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.source, Source::Copy(_))
    }
}

#[derive(Debug)]
enum Source {
    /// A region's memory, from this byte on: looked at when it leaves.
    Region(Arc<MemoryRegion>, u64),
    /// What it was when its turn was.
    Copy(Vec<u8>),
}

impl<T: Transport> Engine<T> {
    /// Serves a read when there is room: a short one with what is there now.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_later(
        &mut self,
        arrival: &Arrival,
        stretch: Stretch,
        offset: u64,
    ) -> Result<(), Refusal> {
        let (peer, operation, last) = (arrival.peer, arrival.word, is_last(arrival));
        let region = self.regions.find(stretch.key)?;
        region.admit(|| self.setup.who(&self.peers, peer))?;
        let start = region.offset_of(stretch.address, stretch.length)?;
        let source = if stretch.length > SNAPSHOT_MAX as u64 {
            Source::Region(region.clone(), start)
        } else {
            Source::Copy(copy_of(region, start, stretch.length)?)
        };
        let known = &mut self.peers[peer as usize].several;
        if !last || known.is_some() || region.is_counted() {
            Several::keep(known, operation, stretch.length, region, Flags::REMOTE_READ);
        }
        let several = if last { known.take() } else { None };
        let length = stretch.length as usize;
        self.serve(peer, Serving { operation, offset, length, sent: 0, source, last, several });
        Ok(())
    }

    /// Keeps an atomic's results until there is room. They are not to be had again: there is memory
    /// for them.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_results(
        &mut self,
        peer: PeerIndex,
        operation: u64,
        offset: u64,
        results: Piece,
        last: bool,
    ) {
        let mut copy = self.reserve.take(results.len());
        results.append_to(&mut copy);
        let source = Source::Copy(copy);
        let length = results.len();
        let several = None;
        self.serve(peer, Serving { operation, offset, length, sent: 0, source, last, several });
    }

    fn serve(&mut self, peer: PeerIndex, serving: Serving) {
        self.peers[peer as usize].serving.push_back(serving);
        self.pump(peer);
        self.note_backlog(peer);
        if self.peers[peer as usize].serving.len() > SERVING_MAX {
            self.violation(peer, "it reads more at once than anybody can");
        }
    }

    /// Drops what is still to leave of an operation that is refused: it would be data that nobody asked
    /// for.
    pub(super) fn forget_serving(&mut self, peer: PeerIndex, operation: u64) {
        self.peers[peer as usize].serving.retain(|serving| serving.operation != operation);
    }

    /// Pushes one packet of what a peer reads. Returns whether anything moved.
    pub(crate) fn pump_serving(&mut self, peer: PeerIndex) -> bool {
        if self.peers[peer as usize].serving.is_empty() {
            return false;
        }
        self.pump_first_serving(peer)
    }

    #[inline(never)]
    fn pump_first_serving(&mut self, peer: PeerIndex) -> bool {
        let record = &mut self.peers[peer as usize];
        let Some(serving) = record.serving.front_mut() else {
            return false;
        };
        let operation = serving.operation;
        let pushed = serving.push_part(&mut self.transport, peer, self.limits.fragment);
        let (done, last) = (serving.sent == serving.length, serving.last);
        match pushed {
            Ok(false) => return false,
            Ok(true) if !done => {}
            Ok(true) => {
                if let Some(several) = serving.several.take() {
                    several.count();
                }
                record.serving.pop_front();
                self.served(last);
            }
            Err(refusal) => {
                Several::refuse_rest(&mut record.several, operation);
                let errno = refusal.errno().0 as u64;
                record.replies.push_back(Reply::new(Kind::Done, operation, errno));
                self.forget_serving(peer, operation);
            }
        }
        true
    }
}

impl Serving {
    /// Pushes one packet, if there is room for one.
    fn push_part<T: Transport>(
        &mut self,
        transport: &mut T,
        peer: PeerIndex,
        fragment: usize,
    ) -> Result<bool, Refusal> {
        let part = Cut::to(false).part_of(self.length, fragment);
        let wanted = part.min(self.length - self.sent);
        // The peer chose it, and gets it back: it means nothing here.
        let offset = self.offset.wrapping_add(self.sent as u64);
        let mut push = |piece: Piece| {
            let part = fit(transport, peer, piece)?;
            let head = Head::new(Kind::Data, 0);
            transport.push(peer, head, self.operation, &[offset], part).then_some(part.len())
        };
        let pushed = match &mut self.source {
            Source::Copy(copy) => push(Piece::of_owned(copy).part(self.sent, wanted)),
            Source::Region(region, start) => {
                let access = region.access_as(Flags::REMOTE_READ)?;
                push(access.contiguous(*start + self.sent as u64, wanted as u64))
            }
        };
        let Some(length) = pushed else {
            return Ok(false);
        };
        self.sent += length;
        Ok(true)
    }
}

/// What `length` bytes of a region are now.
fn copy_of(region: &MemoryRegion, start: u64, length: u64) -> Result<Vec<u8>, Refusal> {
    let access = region.access_as(Flags::REMOTE_READ)?;
    let mut copy = room_for(length as usize).map_err(|_| Refusal::Memory)?;
    access.for_each_part(start, length, |_, part| part.append_to(&mut copy));
    Ok(copy)
}

//! The sender's side of single-copy: writing some of a message that the receiver reads.

use super::{BLOCK_MIN, STRETCH};
use crate::{
    engine::{Engine, peer::Reply},
    operation::SendStage,
    ring::claims::{BLOCKS_MAX, Help},
    transport::{PeerIndex, Transport},
    wire::{Kind, REPLY_WORDS},
};

/// A message of ours that we help its receiver with.
#[derive(Debug)]
pub struct Helping {
    peer: PeerIndex,
    /// The send's name.
    name: u64,
    help: Help,
    /// Where the message goes in the receiver's memory.
    remote: u64,
    /// Bytes that the receiver wants, in blocks of so many.
    wanted: usize,
    block: usize,
    /// From this byte on everything is written.
    written_from: usize,
}

impl Helping {
    /// The receiver.
    pub fn peer(&self) -> PeerIndex {
        self.peer
    }
}

/// How far a pass over a message came.
#[derive(PartialEq, Eq)]
enum Step {
    More,
    Over,
}

impl<T: Transport> Engine<T> {
    /// The receiver of one of our messages reads it, and says where we may write some of it.
    pub(crate) fn arrive_share(&mut self, peer: PeerIndex, name: u64) {
        let [claim, remote, wanted, block] =
            std::array::from_fn::<_, REPLY_WORDS, _>(|index| self.transport.word(index));
        // One that was finished since, because we were late, is nobody's.
        let Some(index) = self.sends.index_of(name).filter(|&send| self.sends[send].peer == peer)
        else {
            return;
        };
        // What a sender has not come to the end of is kept, and what it has written is told: one share of each
        // message, and no more.
        let send = &mut self.sends[index];
        if std::mem::replace(&mut send.is_shared, true) {
            return self.violation(peer, "it offered a share of a message twice");
        }
        let blocks = wanted.checked_div(block).map_or(0, |whole| whole + (wanted % block).min(1));
        let help = Help::new(claim as u8 as usize, (claim >> 8) as u16, blocks as u32)
            .filter(|_| blocks <= BLOCKS_MAX.into());
        let offered = send.stage == SendStage::AwaitConsent && wanted <= send.total as u64;
        let contiguous = send.pieces.view().contiguous(0, send.total).len() == send.total;
        // A poll writes up to a stretch: with small blocks by any number of system calls, with a large one by
        // a call without an end.
        let bearable = (blocks == 1 || block >= BLOCK_MIN as u64) && block <= STRETCH as u64;
        let Some(help) = help.filter(|_| offered && contiguous && bearable) else {
            return self.violation(peer, "it offered a share of what it cannot have");
        };
        if self.peers[peer as usize].copies.unwritable {
            return;
        }
        let (wanted, block) = (wanted as usize, block as usize);
        self.help_with(Helping { peer, name, help, remote, wanted, block, written_from: wanted });
    }

    /// Writes some more of the message whose turn it is.
    pub(crate) fn help_on(&mut self) -> bool {
        let helping = self.copies.helps.pop_front();
        helping.map(|helping| self.help_with(helping)).is_some()
    }

    fn help_with(&mut self, mut helping: Helping) {
        match self.write_on(&mut helping) {
            Step::More => {
                self.copies.helps.push_back(helping);
                self.wake_sound_sleepers();
            }
            Step::Over if helping.help.has_any() => {
                let reply = Reply::new(Kind::Wrote, helping.name, helping.written_from as u64);
                self.reply(helping.peer, reply);
            }
            Step::Over => {}
        }
    }

    fn write_on(&mut self, helping: &mut Helping) -> Step {
        let Helping { peer, name, remote, wanted, block, .. } = *helping;
        let mut left = STRETCH;
        while left > 0 {
            // The receiver may have given the message up since.
            let Some(index) = self.sends.index_of(name) else {
                return Step::Over;
            };
            let claims = self.transport.claims_to(peer);
            let Some(mine) = claims.and_then(|claims| helping.help.take(claims)) else {
                return Step::Over;
            };
            let from = mine as usize * block;
            let piece = self.sends[index].pieces.view().contiguous(from, block.min(wanted - from));
            let written =
                self.transport.write_remote(peer, remote.wrapping_add(from as u64), piece);
            let claims = self.transport.claims_to(peer);
            if let Some(claims) = claims {
                helping.help.wrote(claims, written);
            }
            // Who makes no other call for long says now that it is done.
            let is_over = claims.is_none_or(|claims| helping.help.is_over(claims));
            if !written {
                self.peers[peer as usize].copies.unwritable = true;
                return Step::Over;
            }
            helping.written_from = from;
            left = left.saturating_sub(piece.len());
            if is_over {
                return Step::Over;
            }
        }
        Step::More
    }
}

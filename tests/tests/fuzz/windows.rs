//! What the chaos does beside packets: an adapter that fails when it likes, and peers that claim
//! blocks of messages as they like.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kestrel_core::{
    memory::Piece,
    ring::claims::{CLAIMS, Claims, Help, Offer},
    transport::PeerIndex,
    window::{Direction, End, Finished, Found, Registration, Request, Started},
    wire::Kind,
};
use kestrel_tests::random::Random;

use crate::packet::Packet;

struct Registered;

impl Registration for Registered {
    fn remote_key(&self) -> u32 {
        7
    }
}

pub fn registration() -> Arc<dyn Registration> {
    Arc::new(Registered)
}

struct UnderWay {
    peer: PeerIndex,
    token: u64,
    /// What it reads from or fills.
    local: Piece,
    fills: bool,
}

/// Carries operations out, now, later or never.
#[derive(Default)]
pub struct Adapter {
    open: HashSet<PeerIndex>,
    /// The oldest first.
    under_way: VecDeque<UnderWay>,
    /// Ends of windows that broke, in the order in which they are told.
    undone: VecDeque<(PeerIndex, Finished)>,
    /// How many operations were started.
    pub started: u64,
}

// SAFETY: what operations point to is the rig's, whose one thread does everything.
unsafe impl Send for Adapter {}

impl Adapter {
    pub fn is_open(&self, peer: PeerIndex) -> bool {
        self.open.contains(&peer)
    }

    pub fn open(&mut self, peer: PeerIndex) {
        self.open.insert(peer);
    }

    /// The peer is disconnected: nothing of it is told any more.
    pub fn forget(&mut self, peer: PeerIndex) {
        self.open.remove(&peer);
        self.under_way.retain(|operation| operation.peer != peer);
        self.undone.retain(|&(of, _)| of != peer);
    }

    /// The window ends: its operations are told of from the newest to the oldest.
    pub fn break_window(&mut self, peer: PeerIndex) {
        self.open.remove(&peer);
        let of_peer = self.under_way.iter().filter(|operation| operation.peer == peer);
        let ends =
            of_peer.map(|operation| (peer, Finished { token: operation.token, end: End::Undone }));
        self.undone.extend(ends.collect::<Vec<_>>().into_iter().rev());
        self.under_way.retain(|operation| operation.peer != peer);
    }

    pub fn start(&mut self, peer: PeerIndex, request: Request, random: &mut Random) -> Started {
        if !self.is_open(peer) {
            return Started::Refused;
        }
        let Request { token, local, .. } = request;
        let operation =
            UnderWay { peer, token, local, fills: request.direction == Direction::Read };
        if !operation.fills {
            // What is written must be there to be read.
            local.append_to(&mut Vec::new());
        }
        match random.below(6) {
            0 => Started::Refused,
            1 => Started::Ended,
            2 => Started::NoRoom,
            4 if request.direction == Direction::Write => Started::Landed,
            3 if !request.is_fetch() => {
                self.started += 1;
                operation.fill();
                Started::Done
            }
            _ => {
                self.started += 1;
                self.under_way.push_back(operation);
                Started::Yes
            }
        }
    }

    /// Whose operation it has in hand, and its name, if that is no message that is fetched.
    pub fn in_hand(&self) -> Option<(PeerIndex, u64)> {
        let named = |operation: &&UnderWay| operation.token < 1 << 31;
        self.under_way.iter().find(named).map(|operation| (operation.peer, operation.token))
    }

    /// Whether any of `bytes` is still read or filled.
    pub fn has_in_hand(&self, bytes: &[u8]) -> bool {
        let within = |operation: &UnderWay| {
            bytes.as_ptr_range().contains(&operation.local.as_ptr().cast_const())
        };
        self.under_way.iter().any(within)
    }

    pub fn start_atomic(&mut self, peer: PeerIndex, token: u64, random: &mut Random) -> Started {
        if !self.is_open(peer) || random.once_in(4) {
            return Started::Refused;
        }
        if random.once_in(4) {
            return Started::NoRoom;
        }
        self.under_way.push_back(UnderWay { peer, token, local: Piece::EMPTY, fills: false });
        Started::Yes
    }

    pub fn finished(&mut self, random: &mut Random) -> Found {
        if let Some((_, over)) = self.undone.pop_front() {
            return Found::Finished(over);
        }
        let Some(oldest) = self.under_way.front() else { return Found::Nothing };
        match random.below(8) {
            0 => Found::Progress,
            1..=3 => Found::Nothing,
            4 => {
                self.break_window(oldest.peer);
                let (_, over) = self.undone.pop_front().expect("the oldest at least");
                Found::Finished(over)
            }
            _ => {
                let operation = self.under_way.pop_front().expect("it is there");
                operation.fill();
                let end = End::Done(random.number());
                Found::Finished(Finished { token: operation.token, end })
            }
        }
    }
}

impl UnderWay {
    fn fill(&self) {
        let length = if self.fills { self.local.len() } else { 0 };
        assert_eq!(self.local.fill(&vec![9; length]), length);
    }
}

/// Claims that a peer has its hand on.
#[derive(Default)]
pub struct Claimed(Claims);

impl Claimed {
    pub fn claims(&self) -> &Claims {
        &self.0
    }

    /// The peer opens what it says in a packet that it shares.
    pub fn offer(&self, share: &Packet) {
        let [claim, _, wanted, block, ..] = share.words;
        let slot = claim as u8 as usize;
        if share.head.kind == Kind::Share as u8 && slot < CLAIMS && wanted <= 64 * block {
            Offer::open(&self.0, slot, (claim >> 8) as u16, wanted.div_ceil(block) as u32);
        }
    }

    /// Now and then the peer does its part, or writes whatever it likes.
    pub fn meddle(&self, random: &mut Random) {
        const WORDS: usize = size_of::<Claims>() / size_of::<AtomicU64>();
        let word = |index: usize| {
            assert!(index < WORDS);
            // SAFETY: within the claims, which are words that change by atomic accesses alone.
            unsafe { &*(&raw const self.0).cast::<AtomicU64>().add(index) }
        };
        let slot = random.below(CLAIMS as u64) as usize;
        match random.below(60) {
            0 => {
                let word = word(random.below(WORDS as u64) as usize);
                word.store(random.number() >> random.below(64), Ordering::Relaxed);
            }
            1..=9 => {
                let taken = word(slot * 8).load(Ordering::Relaxed);
                let (generation, blocks) = ((taken >> 48) as u16, taken as u32 & 0xff_ffff);
                let help = Help::new(slot, generation, blocks);
                if let Some(mut help) = help.filter(|_| blocks < 64) {
                    let _ = help.take(&self.0);
                    help.wrote(&self.0, true);
                }
            }
            _ => {}
        }
    }
}

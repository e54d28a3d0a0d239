//! A peer on the mock that says what it likes.

use std::time::Instant;

use kestrel_core::{
    address::Address,
    memory::Piece,
    mock::{MockProvider, MockTransport},
    ring::claims::{Help, Offer},
    transport::{Provider, SingleCopy, Transport, TransportEvent},
    wire::{Head, Kind},
};

use crate::{bed::Bed, link::Driven, scale::PATIENCE};

/// What it calls its victim.
const VICTIM: u32 = 0;

/// One that is connected to its victim, as far as lanes go.
pub struct Liar(pub MockTransport);

impl Liar {
    /// One at a place of its own.
    pub fn new(bed: &Bed<MockProvider>, victim: Address) -> Liar {
        let mut transport = bed.provider.open(None, &[]).unwrap();
        transport.connect(VICTIM, victim);
        let connected = transport.event();
        assert!(matches!(connected, Some(TransportEvent::Connected { .. })), "{connected:?}");
        Liar(transport)
    }

    /// Says something of `kind` whose words are zeroes.
    pub fn say(&mut self, kind: Kind, word: u64, length: usize) {
        let words = vec![0; Head::new(kind, 0).words()];
        self.say_all(kind, word, &words, length);
    }

    /// Says something with all there is to say, and some payload.
    pub fn say_all(&mut self, kind: Kind, word: u64, words: &[u64], length: usize) {
        self.say_with(Head::new(kind, 0), word, words, length);
    }

    /// The same with flags.
    pub fn say_with(&mut self, head: Head, word: u64, words: &[u64], length: usize) {
        let mut bytes = vec![7; length];
        // SAFETY: a packet is copied before `push` returns, and the bytes live until then.
        let payload = unsafe { Piece::of(&mut bytes) };
        assert!(self.0.push(VICTIM, head, word, words, payload));
    }

    /// Takes what the victim has said. Returns how often that was of `kind`.
    pub fn count_said(&mut self, kind: Kind) -> usize {
        let mut count = 0;
        while let Some(arrival) = self.0.arrival() {
            count += usize::from(arrival.head.kind == kind as u8);
            self.0.consume();
        }
        count
    }

    /// What its victim has granted it: the first bytes unasked.
    pub fn credit(&self) -> u64 {
        self.0.credit(VICTIM).max(64 << 10)
    }

    /// Claims that it has given up so many messages.
    pub fn withdraw_in_all(&self, count: u64) {
        self.0.claims_to(VICTIM).unwrap().withdraw_in_all(count);
    }

    /// Opens an offer of so many blocks, in the first place that there is for one.
    pub fn offer(&self, generation: u16, blocks: u32) {
        Offer::open(self.0.claims_from(VICTIM).unwrap(), 0, generation, blocks);
    }

    /// Claims a block of what the victim has offered, as whoever is about to write it does. Returns
    /// where the victim's buffer lies.
    pub fn claim_block(&mut self) -> Option<u64> {
        while let Some(arrival) = self.0.arrival() {
            let [claim, remote, wanted, block] =
                std::array::from_fn(|index| match arrival.head.kind {
                    kind if kind == Kind::Share as u8 => self.0.word(index),
                    _ => 0,
                });
            self.0.consume();
            if block > 0 {
                let blocks = wanted.div_ceil(block) as u32;
                let mut help = Help::new(claim as u8 as usize, (claim >> 8) as u16, blocks)?;
                return help.take(self.0.claims_to(VICTIM)?).map(|_| remote);
            }
        }
        None
    }

    /// Takes what happens: the victim's lane, once it makes one. Returns whether it has let go.
    pub fn hear(&mut self) -> bool {
        match self.0.event() {
            Some(TransportEvent::Closed { .. }) => return true,
            Some(TransportEvent::Incoming { ticket, .. }) => self.0.adopt(VICTIM, ticket),
            _ => {}
        }
        false
    }

    /// Whether the victim has let go of it.
    pub fn is_cut_off(&mut self, victim: &dyn Driven) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            victim.drive();
            if self.hear() {
                return true;
            }
        }
        false
    }
}

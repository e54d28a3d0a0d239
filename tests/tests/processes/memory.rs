//! Scenes about memory that peers reach: reads, writes, atomic operations, a rank that sleeps.

use kestrel_core::{
    endpoint::PostError,
    error::Errno,
    flags::Flags,
    memory::Pieces,
    one_sided::RemoteSegment,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
};
use kestrel_tests::{
    arithmetic,
    bed::{Receive, Send, pattern, same},
    one_sided::{Atomic, Rma},
    random::Random,
};

use crate::{
    messages::{RECEIVE, in_pieces},
    rank::{Kind, READ_ONLY_KEY, READABLE, Rank, WORDS, segment},
    script::{Deed, OneSided, RANKS, ZONE},
};

/// Operations on words of 8 bytes that any element of the family can stand for.
const CALLS: [(AtomicOperation, Form); 9] = [
    (AtomicOperation::Sum, Form::Base),
    (AtomicOperation::Bxor, Form::Base),
    (AtomicOperation::Write, Form::Base),
    (AtomicOperation::Max, Form::Fetch),
    (AtomicOperation::Sum, Form::Fetch),
    (AtomicOperation::Read, Form::Fetch),
    (AtomicOperation::Cswap, Form::Compare),
    (AtomicOperation::Mswap, Form::Compare),
    (AtomicOperation::CswapLt, Form::Compare),
];

impl Rank {
    pub fn play_one_sided(&mut self, operations: &[OneSided], seed: u64, random: &mut Random) {
        assert_eq!(
            self.own(READABLE, ZONE).fill(&pattern(readable(seed, self.number), ZONE)),
            ZONE
        );
        let follows = |operation: &&OneSided| operation.deed == Deed::Followed;
        let expected: Vec<_> =
            operations.iter().filter(|it| it.to == self.number).copied().collect();
        for operation in expected.iter().filter(follows) {
            let (tag, context) = (Some((operation.id, 0)), RECEIVE | operation.id);
            let (from, flags) = (operation.from as u64, self.told(false));
            let receive = Receive { tag, context, from, flags, ..Receive::default() };
            self.post(|rank| rank.endpoint.post_receive(receive.post()));
        }
        self.barrier();
        let own = self.number;
        let mut reads = Vec::new();
        let mut told = 0;
        for operation in operations.iter().filter(|operation| operation.from == own) {
            told += usize::from(operation.deed != Deed::Injected);
            reads.extend(self.start(operation, random));
            if operation.deed == Deed::Followed {
                let (tag, flags) = (Some(operation.id), self.told(false));
                let send = Send { tag, context: operation.id, flags, ..Send::default() };
                self.post(|rank| rank.endpoint.post_send(send.post(operation.to as u64)));
                told += 1;
            }
        }
        self.hear_of_writes(&expected);
        for _ in 0..told {
            let done = self.sent().good();
            let kind = match done.flags {
                flags if flags.contains(Flags::READ) => Kind::Read,
                flags if flags.contains(Flags::WRITE) => Kind::Write,
                _ => Kind::Send,
            };
            self.count(kind, None);
        }
        for (operation, into) in reads {
            let OneSided { to, offset, size, .. } = operation;
            let content = pattern(readable(seed, to), ZONE);
            same(&into.bytes(), &content[offset..offset + size], "read");
        }
        // What was injected is there when a read that its initiator posts afterwards is over.
        self.read_all_ranks();
        self.barrier();
        for operation in expected.iter().filter(|operation| operation.deed.writes()) {
            self.check_written(operation);
        }
        self.end_scene();
    }

    /// Messages and data that come with writes: what they tell of is there.
    fn hear_of_writes(&mut self, expected: &[OneSided]) {
        let told = expected.iter().filter(|it| [Deed::Followed, Deed::WithData].contains(&it.deed));
        for _ in 0..told.count() {
            let done = self.received().good();
            let writes = done.flags.contains(Flags::REMOTE_WRITE);
            let id = if writes { done.data } else { done.context & !RECEIVE };
            let operation = expected.iter().find(|operation| operation.id == id).unwrap();
            self.check_written(operation);
            if writes {
                let flags = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
                assert_eq!((done.flags, done.length), (flags, operation.size as u64), "{done:?}");
            } else {
                self.count(Kind::Receive, None);
            }
            assert_eq!(done.source, operation.from as u64, "{done:?}");
        }
    }

    fn check_written(&self, operation: &OneSided) {
        let OneSided { id, from, offset, size, .. } = *operation;
        same(&self.own_bytes(from * ZONE + offset, size), &pattern(id, size), "written");
    }

    /// Starts an operation; of a read, with where its bytes go.
    fn start(
        &mut self,
        operation: &OneSided,
        random: &mut Random,
    ) -> Option<(OneSided, std::rc::Rc<kestrel_tests::bed::Memory>)> {
        let OneSided { id, to, deed, size, offset, flags, .. } = *operation;
        let reads = !deed.writes();
        let local = self.memory(if reads { vec![0; size] } else { pattern(id, size) });
        let base = if reads { READABLE } else { self.number * ZONE } + offset;
        let half = size / 2;
        let cut = [segment(to, base, half), segment(to, base + half, size - half)];
        let whole = [segment(to, base, size)];
        if deed == Deed::Injected {
            let bytes = local.bytes();
            let RemoteSegment { address, key, .. } = whole[0];
            self.post(|rank| rank.endpoint.inject_write(&bytes, to as u64, address, key));
            self.count(Kind::Write, None);
            return None;
        }
        let pieces = in_pieces(&local, random);
        let several = [Deed::Pieces, Deed::ReadPieces].contains(&deed);
        let rma = Rma {
            pieces: if several { Pieces::Many(&pieces) } else { local.all() },
            segments: if several { &cut } else { &whole },
            data: (deed == Deed::WithData).then_some(id),
            context: id,
            flags: flags | self.told(false),
            region: None,
        };
        self.post(|rank| match reads {
            true => rank.endpoint.post_read(rma.post(to as u64)),
            false => rank.endpoint.post_write(rma.post(to as u64)),
        });
        reads.then_some((*operation, local))
    }

    /// A byte of each rank, behind whatever was written there before.
    fn read_all_ranks(&mut self) {
        for to in 0..RANKS {
            let into = self.memory(vec![0]);
            let flags = Flags::FENCE | self.told(false);
            let segments = [segment(to, READABLE, 1)];
            let read = Rma { pieces: into.all(), segments: &segments, flags, ..Rma::default() };
            self.post(|rank| rank.endpoint.post_read(read.post(to as u64)));
            self.sent().good();
            self.count(Kind::Read, None);
        }
    }

    /// No such key, beyond the region, and one that may only be read.
    pub fn play_refused(&mut self) {
        for to in 0..RANKS {
            let good = segment(to, self.number * ZONE, 300);
            let cases = [
                (RemoteSegment { key: 77, ..good }, Errno::KEYREJECTED),
                (segment(to, (RANKS + 2) * ZONE - 299, 300), Errno::INVAL),
                (RemoteSegment { key: READ_ONLY_KEY + to as u64, ..good }, Errno::ACCES),
            ];
            for (segment, errno) in cases {
                let bytes = self.memory(vec![1; 300]);
                let (segments, flags) = ([segment], self.told(false));
                let write =
                    Rma { pieces: bytes.all(), segments: &segments, flags, ..Rma::default() };
                self.post(|rank| rank.endpoint.post_write(write.post(to as u64)));
                let done = self.sent().bad(errno);
                self.count(Kind::Write, done.errno);
            }
        }
        self.end_scene();
    }

    /// Words that all add to, and words of each initiator's own at each target.
    pub fn play_atomics(&mut self, rounds: usize, random: &mut Random) {
        let words = RANKS + 1;
        let length = 8 * words;
        assert_eq!(self.own(WORDS, length).fill(&vec![0; length]), length);
        self.barrier();
        let mut values = [0_u64; RANKS];
        let mut last = [None; RANKS];
        for round in 0..rounds {
            for to in 0..RANKS {
                let sum = AtomicCall {
                    operation: AtomicOperation::Sum,
                    datatype: Datatype::Uint64,
                    form: Form::Fetch,
                };
                let before = self.change(to, 0, sum, 1, 0).expect("it fetches");
                assert!(last[to] < Some(before), "{before} after {:?}", last[to]);
                assert!(before < (RANKS * rounds) as u64);
                last[to] = Some(before);
                let (operation, form) = CALLS[random.below(CALLS.len() as u64) as usize];
                let call = AtomicCall { operation, datatype: Datatype::Uint64, form };
                let operand = random.below(1 << 40);
                let compare = if random.once_in(2) { values[to] } else { random.number() };
                let found = self.change(to, 1 + self.number, call, operand, compare);
                assert!(found.is_none_or(|found| found == values[to]), "{call:?} in {round}");
                let bytes = |value: u64| value.to_le_bytes();
                let after =
                    arithmetic::after(call, &bytes(values[to]), &bytes(operand), &bytes(compare));
                values[to] = u64::from_le_bytes(after.try_into().unwrap());
            }
        }
        for (to, value) in values.into_iter().enumerate() {
            let call = AtomicCall {
                operation: AtomicOperation::Read,
                datatype: Datatype::Uint64,
                form: Form::Fetch,
            };
            assert_eq!(self.change(to, 1 + self.number, call, 0, 0), Some(value));
        }
        self.barrier();
        let sum = u64::from_le_bytes(self.own_bytes(WORDS, 8).try_into().unwrap());
        assert_eq!(sum, (RANKS * rounds) as u64, "what all have added");
        self.end_scene();
    }

    /// Changes a word of a target's, and says what was there, if the call fetches that.
    fn change(
        &mut self,
        to: usize,
        word: usize,
        call: AtomicCall,
        operand: u64,
        compare: u64,
    ) -> Option<u64> {
        let own = |rank: &mut Rank, value: u64| rank.memory(value.to_le_bytes().to_vec());
        let (operands, compare) = (own(self, operand), own(self, compare));
        let results = own(self, 0);
        let segments = [segment(to, WORDS + 8 * word, 8)];
        let none = Atomic::new(call);
        let fetches = call.form != Form::Base;
        let atomic = Atomic {
            operands: if call.operands(8) > 0 { operands.all() } else { none.operands },
            compare: if call.form == Form::Compare { compare.all() } else { none.compare },
            results: if fetches { results.all() } else { none.results },
            segments: &segments,
            context: word as u64,
            flags: self.told(false),
            ..none
        };
        self.post(|rank| -> Result<(), PostError> {
            rank.endpoint.post_atomic(atomic.post(to as u64))
        });
        let direction = if fetches { Flags::READ } else { Flags::WRITE };
        assert_eq!(self.sent().good().flags, Flags::ATOMIC | direction);
        self.count(if fetches { Kind::Read } else { Kind::Write }, None);
        fetches.then(|| u64::from_le_bytes(results.bytes().try_into().unwrap()))
    }

    /// One makes no call until the others have written to it, and sent to it, and know that all has
    /// arrived.
    pub fn play_sleeper(&mut self, sleeper: usize) {
        const SIZES: [usize; 4] = [8, 3_000, 60_000, 200_000];
        let id = |from: usize, nth: usize| (from * SIZES.len() + nth) as u64;
        if self.number == sleeper {
            let mut buffers = Vec::new();
            for from in (0..RANKS).filter(|&from| from != sleeper) {
                for (nth, size) in SIZES.into_iter().enumerate() {
                    let into = self.memory(vec![0; size]);
                    let (tag, context) = (Some((id(from, nth), 0)), RECEIVE | id(from, nth));
                    let (pieces, flags) = (into.all(), self.told(false));
                    let receive = Receive { pieces, tag, context, flags, ..Receive::default() };
                    self.post(|rank| rank.endpoint.post_receive(receive.post()));
                    buffers.push((into, id(from, nth)));
                }
            }
            self.barrier();
            self.sleep_till_all_are_here();
            for (into, id) in &buffers {
                same(&into.bytes(), &pattern(*id, into.bytes().len()), "sent to a sleeper");
            }
            for from in (0..RANKS).filter(|&from| from != sleeper) {
                same(&self.own_bytes(from * ZONE, 9_000), &pattern(from as u64, 9_000), "written");
            }
            for _ in buffers {
                self.received().good();
                self.count(Kind::Receive, None);
            }
        } else {
            self.barrier();
            let flags = Flags::DELIVERY_COMPLETE | self.told(false);
            for (nth, size) in SIZES.into_iter().enumerate() {
                let bytes = self.memory(pattern(id(self.number, nth), size));
                let (pieces, tag) = (bytes.all(), Some(id(self.number, nth)));
                let send = Send { pieces, tag, flags, ..Send::default() };
                self.post(|rank| rank.endpoint.post_send(send.post(sleeper as u64)));
            }
            let bytes = self.memory(pattern(self.number as u64, 9_000));
            let segments = [segment(sleeper, self.number * ZONE, 9_000)];
            let write = Rma { pieces: bytes.all(), segments: &segments, flags, ..Rma::default() };
            self.post(|rank| rank.endpoint.post_write(write.post(sleeper as u64)));
            for _ in 0..=SIZES.len() {
                let writes = self.sent().good().flags.contains(Flags::WRITE);
                self.count(if writes { Kind::Write } else { Kind::Send }, None);
            }
            self.barrier();
        }
        self.end_scene();
    }
}

impl Deed {
    fn writes(self) -> bool {
        ![Deed::Read, Deed::ReadPieces].contains(&self)
    }
}

/// What all may read of a rank in a scene.
fn readable(seed: u64, rank: usize) -> u64 {
    seed.wrapping_mul(31) + rank as u64
}

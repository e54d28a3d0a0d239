//! Arbitrary packets, events and calls for an engine: nothing panics, nothing is read out of bounds,
//! and every operation ends once.

#[path = "fuzz/chaos.rs"]
mod chaos;
#[path = "fuzz/packet.rs"]
mod packet;
#[path = "fuzz/windows.rs"]
mod windows;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use chaos::{Chaos, World};
use kestrel_core::{
    address::Address,
    address_vector::{AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC},
    auth_key::ONLY_KEY,
    buffering::BufferingSetup,
    completion_queue::{
        Entry,
        store::{CompletionStore, Head},
    },
    engine::{
        Engine, Setup,
        permitted::Permitted,
        report::{OneSidedCounters, Side},
    },
    error::{Cause, Errno},
    flags::{FAMILY, Flags},
    info::MemoryRegionMode,
    memory::{Piece, Pieces},
    memory_region::{MemoryRange, MemoryRegionAttributes, MemoryRegionRegistry},
    one_sided::{Action, RemotePost, RemoteSegment},
    operation::{MESSAGE_MAX, ReceivePost, SendPost},
    protocol::atomic::{ATOMIC_BYTES_MAX, AtomicCall, AtomicOperation, Datatype, Form},
    transport::TransportEvent,
};
use kestrel_tests::{bed::Memory, one_sided, packets, random::Random, scale::scaled};
use packet::{KEY, Packet, REGION, THEIR_KEY};

/// An engine in a world of chaos, with what was posted to it.
struct Rig {
    engine: Engine<Chaos>,
    world: World,
    store: Arc<CompletionStore>,
    random: Random,
    /// Operations under way, with their buffers.
    under_way: HashMap<u64, (bool, Vec<u8>)>,
    /// Contexts of messages that were announced and not taken.
    announced: Vec<u64>,
    buffers: bool,
    /// Multi-receive buffers: kept to the end, since they are used many times.
    multi: Vec<Vec<u8>>,
    /// What peers can reach is the middle third.
    region: Memory,
    next: u64,
    ended: u64,
    seen: HashSet<u64>,
}

const PEERS: u64 = 4;

impl Rig {
    fn new(seed: u64) -> Rig {
        let world = World::new(seed);
        let vector = Arc::new(AddressVector::open(AddressVectorAttributes::default()).unwrap());
        for peer in 0..PEERS {
            vector.insert_one(address(peer)).unwrap();
        }
        let region = Memory::zeroed(3 * REGION as usize);
        let regions = Arc::new(MemoryRegionRegistry::new(MemoryRegionMode::empty(), 1));
        let reachable = MemoryRange { address: region.start() + REGION, len: REGION };
        let attributes = MemoryRegionAttributes {
            ranges: &[reachable],
            access: one_sided::BOTH,
            requested_key: KEY,
            ..Default::default()
        };
        // SAFETY: the memory is the rig's, and dropped after the engine.
        unsafe { regions.register_unowned(&attributes) }.unwrap();
        // SAFETY: the rig is one thread's, which makes no call from inside of another.
        let store = unsafe { CompletionStore::exclusive(64, Box::new(chaos::Silent)) };
        let store = Arc::new(store);
        let side = || Side { queue: Some(store.clone()), ..Side::default() };
        let buffers = seed.is_multiple_of(3);
        let setup = Setup {
            keys: None,
            transmit: side(),
            receive: side(),
            buffering: buffers.then_some(BufferingSetup { limit: 9_000, min: 200, endpoint: 0 }),
            address_vector: vector,
            one_sided: OneSidedCounters::default(),
            permitted: Permitted { rma: one_sided::BOTH, atomics: one_sided::BOTH },
            hears: FAMILY,
            adapter_atomics: seed.is_multiple_of(2),
            source_errors: false,
            names_contexts: false,
            memory_regions: regions,
            transmit_size: 64,
            multi_receive_min: 64,
            message_max: MESSAGE_MAX,
            inject_size: 0,
            unexpected_budget: 1 << 20,
        };
        let engine = Engine::new(world.transport(PEERS), setup);
        let (random, under_way, multi) = (Random::new(seed), HashMap::new(), Vec::new());
        Rig {
            engine,
            world,
            store,
            random,
            under_way,
            announced: Vec::new(),
            buffers,
            multi,
            region,
            next: 1,
            ended: 0,
            seen: HashSet::new(),
        }
    }

    /// A buffer whose completion is waited for.
    fn buffer(&mut self, send: bool) -> (u64, Piece) {
        let length = [0, 8, 40, 700, 9_000, 70_000][self.random.below(6) as usize];
        let mut bytes = vec![1u8; length];
        // SAFETY: the bytes stay in `under_way`, and so where they are, until completion.
        let piece = unsafe { Piece::new(bytes.as_mut_ptr(), bytes.len()) };
        self.next += 1;
        self.under_way.insert(self.next, (send, bytes));
        (self.next, piece)
    }

    fn family(&mut self) -> Flags {
        if self.random.once_in(2) { Flags::TAGGED } else { Flags::MSG }
    }

    fn send(&mut self) {
        let (context, piece) = self.buffer(true);
        let levels = [
            Flags::empty(),
            Flags::DELIVERY_COMPLETE,
            Flags::MATCH_COMPLETE,
            Flags::FENCE,
            Flags::INJECT,
        ];
        let level = levels[self.random.below(5) as usize];
        let flags = self.family() | Flags::COMPLETION | level;
        let to = self.random.below(PEERS + 1);
        let tag = if flags.contains(Flags::TAGGED) { self.random.below(4) } else { 0 };
        let third = piece.len() / 3;
        let parts = [piece.part(0, third), piece.part(third, usize::MAX)];
        let pieces = if self.random.once_in(3) { Pieces::Many(&parts) } else { Pieces::One(piece) };
        let post =
            SendPost { pieces, to, tag, data: 0, context, flags, region: None, attachment: None };
        if self.engine.send(post).is_err() {
            self.under_way.remove(&context);
        }
    }

    /// A write, a read or a fetching sum.
    fn reach(&mut self) {
        let (context, piece) = self.buffer(true);
        let none = Pieces::One(Piece::EMPTY);
        // Words are what adapters can change.
        let datatype = if piece.len() == 8 { Datatype::Uint64 } else { Datatype::Uint8 };
        let sum = AtomicCall { operation: AtomicOperation::Sum, datatype, form: Form::Fetch };
        let atomic = piece.len() <= ATOMIC_BYTES_MAX && !piece.is_empty() && self.random.once_in(2);
        let (action, all) = match self.random.below(2) {
            _ if atomic => (Action::Atomic(sum), Pieces::One(piece)),
            0 => (Action::Write, Pieces::One(piece)),
            _ => (Action::Read, Pieces::One(piece)),
        };
        let levels = [Flags::empty(), Flags::FENCE, Flags::INJECT];
        let inject = action == Action::Write;
        let flags = levels[self.random.below(2 + u64::from(inject)) as usize] | Flags::COMPLETION;
        let total = piece.len();
        let segment = |length| RemoteSegment { address: 0, length, key: THEIR_KEY };
        // An adapter does what has one segment.
        let whole = datatype == Datatype::Uint64 || self.random.once_in(2);
        let cut = if whole { total as u64 } else { self.random.below(total as u64 + 1) };
        let two = [segment(cut), segment(total as u64 - cut)];
        let segments = if whole { &two[..1] } else { &two[..] };
        let post = RemotePost {
            action,
            source: if action == Action::Read { none } else { all },
            compare: none,
            results: if action == Action::Write { none } else { all },
            to: self.random.below(PEERS + 1),
            segments,
            total,
            data: 0,
            context,
            flags,
            region: None,
            attachment: None,
        };
        if self.engine.remote(post).is_err() {
            self.under_way.remove(&context);
        }
    }

    fn receive(&mut self) {
        let (context, piece) = self.buffer(false);
        let mut flags = self.family() | Flags::COMPLETION;
        if self.buffers {
            // As the endpoint marks the tags that it posts.
            flags = Flags::TAGGED | Flags::COMPLETION | Flags::VARIABLE_MSG;
        } else if self.random.once_in(8) {
            flags |= Flags::MULTI_RECV;
            let (_, bytes) = self.under_way.remove(&context).expect("just made");
            self.multi.push(bytes);
        }
        let from =
            if self.random.once_in(2) { FI_ADDR_UNSPEC } else { self.random.below(PEERS + 1) };
        let (tag, ignore) = if flags.contains(Flags::TAGGED) {
            (self.random.below(4), [0, 1, 3, u64::MAX][self.random.below(4) as usize])
        } else {
            (0, 0)
        };
        let pieces = Pieces::One(piece);
        let post = ReceivePost {
            pieces,
            from,
            tag,
            ignore,
            context,
            flags,
            region: None,
            attachment: None,
        };
        if self.engine.receive(post).is_err() {
            self.under_way.remove(&context);
        }
    }

    /// Peeks, with or without a claim, and now and then takes what was claimed.
    fn peek(&mut self) {
        let extra = [Flags::empty(), Flags::CLAIM, Flags::DISCARD][self.random.below(3) as usize];
        let flags = Flags::TAGGED | Flags::PEEK | extra;
        let context = 1 << 40 | self.random.below(4);
        let pieces = Pieces::One(Piece::EMPTY);
        let mut post = ReceivePost {
            pieces,
            from: FI_ADDR_UNSPEC,
            tag: self.random.below(4),
            ignore: 0,
            context,
            flags,
            region: None,
            attachment: None,
        };
        if self.random.once_in(2) {
            post.flags = Flags::TAGGED | Flags::CLAIM;
            if self.random.once_in(2) {
                post.flags |= Flags::DISCARD;
            }
        }
        // What was not claimed cannot be taken: an error, and nothing happens.
        let _ = self.engine.receive(post);
    }

    /// Claims or discards what was announced, now and then something else.
    fn take(&mut self) {
        let at = self.random.below(1 + self.announced.len() as u64) as usize;
        let context = if at == self.announced.len() { 1 } else { self.announced.swap_remove(at) };
        let (_, pieces) = self.buffer(false);
        self.multi.push(self.under_way.remove(&self.next).expect("just made").1);
        let take = [Flags::CLAIM, Flags::DISCARD][self.random.below(2) as usize];
        let flags = Flags::MSG | Flags::COMPLETION | Flags::VARIABLE_MSG | take;
        let (pieces, from) = (Pieces::One(pieces), FI_ADDR_UNSPEC);
        let post = ReceivePost {
            pieces,
            from,
            tag: 0,
            ignore: 0,
            context,
            flags,
            region: None,
            attachment: None,
        };
        assert!(self.engine.receive(post).is_ok() || context == 1, "it was announced");
    }

    fn arrive(&mut self) {
        let peer = self.random.below(PEERS) as u32;
        if !self.world.hears(peer) && self.random.once_in(2) {
            self.come(peer);
        }
        if self.world.is_polite() && !self.random.once_in(20) {
            // Windows are for who does little else.
            return self.reach();
        }
        let mut packet = Packet::arbitrary(&mut self.random, peer);
        if !self.random.once_in(4) {
            packet = packet.plausible(&mut self.random);
        }
        self.world.arrive(packet);
    }

    fn event(&mut self) {
        let peer = self.random.below(PEERS) as u32;
        // Most of the time peers are there.
        let event = match self.random.below(60) {
            0 => TransportEvent::Died { peer },
            1 => TransportEvent::Closed { peer },
            2 => TransportEvent::Broken { peer, reason: unreachable() },
            _ if self.world.hears(peer) && !self.random.once_in(20) => return,
            _ => return self.come(peer),
        };
        if self.world.knows(peer) {
            self.world.tell(event);
        }
    }

    /// A peer connects, maybe as another incarnation.
    fn come(&mut self, peer: u32) {
        self.world.tell(TransportEvent::Incoming {
            ticket: 1,
            address: address(peer.into()),
            incarnation: 1 + self.random.below(2),
            key: ONLY_KEY,
        });
    }

    fn step(&mut self) {
        match self.random.below(18) {
            16..=17 => self.reach(),
            0..=1 => self.send(),
            2..=3 => self.receive(),
            4 if self.buffers => self.take(),
            4 => self.peek(),
            5..=10 => self.arrive(),
            11 => self.event(),
            12 => {
                let context = self.random.below(self.next + 1);
                // Whether there is something to cancel is chance.
                let _ = self.engine.cancel(context, None);
            }
            _ => {
                self.engine.progress();
            }
        }
        self.read();
    }

    fn read(&mut self) {
        loop {
            let mut entry = [Entry::default()];
            let context = match self.store.pop(&mut entry) {
                Head::Empty => return,
                // Our own contexts are less than an address.
                Head::Taken(_) if self.buffers && entry[0].context > 1 << 41 => {
                    self.announced.push(entry[0].context);
                    continue;
                }
                Head::Taken(_) => entry[0].context,
                Head::Error => {
                    let error = self.store.pop_error().unwrap();
                    assert!(!error.reason.is_empty());
                    error.context
                }
            };
            if let Some((_, bytes)) = self.under_way.remove(&context) {
                self.ended += 1;
                assert!(self.seen.insert(context), "{context} ended twice");
                assert!(!self.world.has_in_hand(&bytes), "an adapter has {context} in hand");
            } else {
                assert!(!self.seen.contains(&context), "{context} ended twice");
            }
        }
    }

    /// Everybody dies: no send is left.
    fn end(&mut self) {
        for _ in 0..3 {
            for peer in self.world.known() {
                self.world.tell(TransportEvent::Died { peer });
            }
            self.world.refuse_connections();
            for _ in 0..200 {
                self.engine.progress();
                self.read();
            }
        }
        let bytes = self.region.bytes();
        let (before, behind) = (&bytes[..REGION as usize], &bytes[2 * REGION as usize..]);
        assert!(before.iter().chain(behind).all(|&byte| byte == 0), "out of the region's bounds");
        let sends = self.under_way.values().filter(|(send, _)| *send).count();
        assert_eq!(sends, 0, "sends that never end");
    }
}

fn address(peer: u64) -> Address {
    Address::new([127, 0, 0, 1].into(), 1000 + peer as u16)
}

fn unreachable() -> Cause {
    Cause { errno: Errno::CONNABORTED, reason: "chaos".into() }
}

#[test]
fn arbitrary_packets_and_events_end_every_operation() {
    let mut ended = 0;
    let mut reached = [0, 0];
    let mut delivered = BTreeMap::<u8, u64>::new();
    for seed in 0..scaled(150, 1500, 50_000) as u64 {
        let mut rig = Rig::new(seed);
        // A panic says which seed it was.
        let _guard = Seed(seed);
        for _ in 0..rig.random.between(50, 600) {
            rig.step();
        }
        rig.end();
        ended += rig.ended;
        for (sum, count) in reached.iter_mut().zip(rig.world.reached()) {
            *sum += count;
        }
        for (kind, count) in rig.world.delivered() {
            *delivered.entry(kind).or_default() += count;
        }
    }
    println!("{ended} operations ended; reached: {reached:?}; packets by kind: {delivered:?}");
    assert!(ended > 0 && reached.iter().all(|&count| count > 0));
    for kind in packets::kinds() {
        assert!(delivered.contains_key(&(kind as u8)), "no {kind:?} came");
    }
}

/// Of a message that says both where it lies and by which key it is lent, which is read: its sender
/// gives it up, and no adapter had to do with it.
#[test]
fn a_message_that_is_read_although_it_is_lent_is_given_up() {
    const LENGTH: usize = 3 << 20;
    for seed in 0..100 {
        let mut rig = Rig::new(seed);
        let _guard = Seed(seed);
        rig.come(0);
        rig.engine.progress();
        let mut bytes = vec![0; LENGTH];
        // SAFETY: the bytes stay in `under_way`, and so where they are, until completion.
        let pieces = Pieces::One(unsafe { Piece::new(bytes.as_mut_ptr(), LENGTH) });
        rig.under_way.insert(1, (false, bytes));
        let (from, flags) = (FI_ADDR_UNSPEC, Flags::MSG | Flags::COMPLETION);
        let post = ReceivePost {
            pieces,
            from,
            tag: 0,
            ignore: 0,
            context: 1,
            flags,
            region: None,
            attachment: None,
        };
        let _ = rig.engine.receive(post);
        rig.world.arrive(Packet::lent(0, 5, LENGTH as u64));
        rig.world.arrive(Packet::withdrawal(0, 5));
        rig.end();
    }
}

/// A target has no word about what an adapter carries out, whose buffer is not the application's yet.
#[test]
fn what_an_adapter_carries_out_is_not_refused_by_its_target() {
    let mut refused = 0;
    for seed in (0..200).step_by(2) {
        let mut rig = Rig::new(seed);
        let _guard = Seed(seed);
        (0..PEERS as u32).for_each(|peer| rig.come(peer));
        for _ in 0..200 {
            rig.reach();
            rig.engine.progress();
            rig.read();
            if let Some((peer, operation)) = rig.world.in_hand() {
                rig.world.arrive(Packet::refusal(peer, operation));
                refused += 1;
            }
        }
        rig.end();
    }
    assert!(refused > 0);
}

/// Names the seed of a run that panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}", self.0);
        }
    }
}

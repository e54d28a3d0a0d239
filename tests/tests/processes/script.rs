//! The script: what all ranks know, made from a seed.

use kestrel_core::{
    config::{CmaPolicy, LaneChunks},
    domain::ProgressMode,
    flags::Flags,
};
use kestrel_shm::ShmOptions;
use kestrel_tests::{random::Random, scale::scaled};

/// Processes that play together.
pub const RANKS: usize = 3;
/// What an initiator may write in a target's region, and what it may read there. Units: bytes.
pub const ZONE: usize = 2 << 20;
/// The most that a message to a multi-receive buffer has. Units: bytes.
pub const MULTI_MAX: usize = 8 << 10;

/// Inline, spilled, in a chunk, filled in sight, prefix and parts, read by the receiver, by both.
const SIZES: [usize; 19] = [
    0, 1, 8, 17, 32, 49, 393, 700, 2_100, 5_000, 8_192, 9_300, 20_000, 33_000, 66_000, 90_000,
    300_000, 1_048_581, 3_145_733,
];

/// What every rank is opened with.
#[derive(Clone, Debug)]
pub struct Setup {
    pub shm: ShmOptions,
    pub progress: ProgressMode,
    pub exclusive: bool,
    /// Successes are reported to who asks.
    pub selective: bool,
    pub counted: bool,
}

impl Setup {
    /// Of a seed; `variant` fixes what a test is about.
    fn new(seed: u64, variant: &str) -> Setup {
        let mut shm = ShmOptions {
            cma: [CmaPolicy::Auto, CmaPolicy::On, CmaPolicy::Off][seed as usize % 3],
            ..ShmOptions::default()
        };
        let mut helped = seed % 4 == 1;
        match variant {
            "copied" => shm.cma = CmaPolicy::Off,
            "helped" => helped = true,
            _ => {}
        }
        if seed % 5 == 4 {
            (shm.chunk_bytes, shm.chunk_count) = (8 << 10, 8);
            shm.lane_chunks = LaneChunks::Off;
        }
        let progress = if helped { ProgressMode::Automatic } else { ProgressMode::Manual };
        let (selective, counted) = (seed % 4 >= 2, seed % 3 != 1);
        Setup { shm, progress, exclusive: !helped && seed.is_multiple_of(2), selective, counted }
    }
}

/// How a message leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    /// By an inject call, which has no completion.
    Injected,
    /// With the flag, which has one.
    Flagged,
    /// From several pieces.
    Pieces,
}

/// A message, and the receive that is for it.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub id: u64,
    pub from: usize,
    pub to: usize,
    /// None: untagged.
    pub tag: Option<u64>,
    /// Of the receive.
    pub wanted: (u64, u64),
    pub size: usize,
    pub room: usize,
    pub data: bool,
    pub way: Way,
    /// A level, a fence, a hint that more follows.
    pub flags: Flags,
    /// Its receive names the source.
    pub directed: bool,
    /// Neither end is told: where completions are selective.
    pub silent: bool,
}

/// When receives are posted.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// By all, before anything is sent.
    First,
    /// Among the sends; by some ranks when everything is sent.
    Mixed { late: [bool; RANKS] },
}

/// What happens between two barriers; its number makes its own random numbers.
#[derive(Clone, Debug)]
pub enum Scene {
    /// Messages that match by tag or source.
    Messages {
        messages: Vec<Message>,
        when: When,
    },
    /// Untagged messages, and receives from anybody.
    Anybody {
        count: usize,
    },
    /// Messages into buffers that take several.
    Multi {
        count: usize,
    },
    /// Messages that are looked for, claimed and discarded.
    Peeks {
        sizes: Vec<usize>,
    },
    Cancels {
        count: usize,
    },
    /// What completes before it is received, and what not.
    Levels {
        size: usize,
    },
    OneSided {
        operations: Vec<OneSided>,
    },
    /// Operations that a target refuses.
    Refused,
    Atomics {
        rounds: usize,
    },
    /// A rank that makes no call is reached all the same.
    Sleeper {
        rank: usize,
    },
}

/// What is done to a target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Write,
    Injected,
    /// Tells the target of its end.
    WithData,
    /// Several pieces to several segments.
    Pieces,
    Read,
    ReadPieces,
    /// A message follows at once, and finds it done.
    Followed,
}

#[derive(Clone, Copy, Debug)]
pub struct OneSided {
    pub id: u64,
    pub from: usize,
    pub to: usize,
    pub deed: Deed,
    pub size: usize,
    /// In the zone.
    pub offset: usize,
    pub flags: Flags,
}

pub struct Script {
    pub seed: u64,
    pub setup: Setup,
    pub scenes: Vec<Scene>,
}

/// What makes one.
struct Writer {
    random: Random,
    inject_size: usize,
    selective: bool,
    last: u64,
}

impl Script {
    pub fn new(seed: u64, variant: &str, inject_size: usize) -> Script {
        let setup = Setup::new(seed, variant);
        let selective = setup.selective;
        let mut writer = Writer { random: Random::new(seed + 1), inject_size, selective, last: 0 };
        let helped = setup.progress == ProgressMode::Automatic;
        let scenes = (0..scaled(14, 24, 48)).map(|number| writer.scene(number, helped)).collect();
        Script { seed, setup, scenes }
    }
}

impl Writer {
    fn scene(&mut self, number: usize, helped: bool) -> Scene {
        let random = &mut self.random;
        match number % 12 {
            0 | 4 | 8 | 11 => self.messages(),
            1 => Scene::Anybody { count: random.between(1, 12) as usize },
            2 => Scene::Multi { count: random.between(4, 40) as usize },
            3 => Scene::Peeks { sizes: (0..4).map(|_| size(random)).collect() },
            5 => self.one_sided(),
            6 => Scene::Atomics { rounds: random.between(4, 30) as usize },
            7 => Scene::Levels { size: size(random) },
            9 if helped => Scene::Sleeper { rank: random.below(RANKS as u64) as usize },
            9 => Scene::Refused,
            _ => Scene::Cancels { count: random.between(1, 9) as usize },
        }
    }

    fn id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn messages(&mut self) -> Scene {
        let mut messages = Vec::new();
        for from in 0..RANKS {
            for to in 0..RANKS {
                for _ in 0..self.random.below(9) {
                    messages.push(self.message(from, to));
                }
            }
        }
        // What is injected behind a fence has no room before the messages in front are matched: so
        // with fences all receives are posted first.
        let ready = self.random.once_in(3);
        let late = std::array::from_fn(|_| self.random.once_in(2));
        if !ready {
            messages.iter_mut().for_each(|message| message.flags.remove(Flags::FENCE));
        }
        let when = if ready { When::First } else { When::Mixed { late } };
        Scene::Messages { messages, when }
    }

    /// Messages of one class match its receives in order: a class is a sender, and for tagged ones a
    /// number below 4, of which the odd ones have receives that ignore the upper half of the tag.
    fn message(&mut self, from: usize, to: usize) -> Message {
        let (id, inject_size) = (self.id(), self.inject_size);
        let random = &mut self.random;
        let class = random.below(4);
        let low = (from as u64) << 8 | class;
        let upper = |random: &mut Random| if class % 2 == 1 { random.number() << 32 } else { 0 };
        let ignore = if class % 2 == 1 { u64::from(u32::MAX) << 32 } else { 0 };
        let (sent, wanted) = (low | upper(random), low | upper(random));
        let tag = (!random.once_in(4)).then_some(sent);
        let mut size = size(random);
        let way = match random.below(5) {
            0 => Way::Injected,
            1 => Way::Flagged,
            2 => Way::Pieces,
            _ => Way::Plain,
        };
        if [Way::Injected, Way::Flagged].contains(&way) {
            size = size.min(inject_size);
        }
        let levels = [Flags::empty(), Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE];
        let levels =
            [levels[0], levels[1], levels[2], Flags::TRANSMIT_COMPLETE, Flags::FENCE, Flags::MORE];
        let mut flags = levels[random.below(6) as usize];
        let silent = self.selective && random.once_in(4);
        let cut = !silent && size > 0 && random.once_in(6);
        let room = if cut { random.below(size as u64) as usize } else { size + 3 };
        if silent {
            flags = Flags::DELIVERY_COMPLETE;
        }
        let way = if silent { Way::Plain } else { way };
        // What is not tagged is told apart by its source alone.
        let directed = tag.is_none() || random.once_in(2);
        let data = random.once_in(3);
        let wanted = (wanted, ignore);
        Message { id, from, to, tag, wanted, size, room, data, way, flags, directed, silent }
    }

    fn one_sided(&mut self) -> Scene {
        let mut operations = Vec::new();
        for from in 0..RANKS {
            for to in 0..RANKS {
                let mut offset = 0;
                for _ in 0..self.random.below(10) {
                    let mut next = self.operation(from, to);
                    if next.deed == Deed::Injected {
                        next.size = next.size.min(self.inject_size);
                    }
                    if offset + next.size <= ZONE {
                        operations.push(OneSided { offset, ..next });
                        offset += next.size;
                    }
                }
            }
        }
        Scene::OneSided { operations }
    }

    fn operation(&mut self, from: usize, to: usize) -> OneSided {
        let id = self.id();
        let random = &mut self.random;
        let deeds = [
            Deed::Write,
            Deed::Injected,
            Deed::WithData,
            Deed::Pieces,
            Deed::Read,
            Deed::ReadPieces,
            Deed::Followed,
        ];
        let levels = [Flags::empty(), Flags::DELIVERY_COMPLETE, Flags::FENCE, Flags::MORE];
        let flags = levels[random.below(4) as usize];
        let deed = deeds[random.below(deeds.len() as u64) as usize];
        OneSided { id, from, to, deed, size: size(random).max(1), offset: 0, flags }
    }
}

/// Any length, the longer ones seldom.
fn size(random: &mut Random) -> usize {
    let last = if random.once_in(6) { SIZES.len() } else { SIZES.len() - 3 };
    SIZES[random.below(last as u64) as usize]
}

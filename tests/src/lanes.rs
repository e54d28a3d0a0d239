//! Lanes without an endpoint, for tests that look at what is in them.

use std::ptr::NonNull;

use kestrel_core::{
    memory::Piece,
    wire::{Head, Kind, WAITS},
};
use kestrel_shm::{
    Doorbell, LANE_CHUNK_BYTES, LANE_HEAD_BYTES, LaneMemory, PeerIdentity, PoolMemory, Station,
    StationEvent,
    chunk::ChunkPool,
    copy::Copier,
    lane::{LaneError, Means, OwnChunks, ReceiveLane, SendLane},
};

use crate::station;

/// Words of a lane that every lane uses.
pub const LANE_WORDS: usize = LANE_HEAD_BYTES / 8;
/// The word at which its lines start.
pub const LINES_FROM: usize = 512;
/// Lines, of eight words.
pub const LINES: u64 = 128;
/// The word of a line that says where in a chunk the payload lies.
pub const CHUNK_WORD: usize = 7;

/// Whose chunk a payload lies in: the two upper bits of its length.
pub const OWNER_SHIFT: u32 = 30;
/// The sender's pool's.
pub const POOL: u64 = 0;
/// The lane's own.
pub const LANE: u64 = 1;
/// The lane's own, and the receiver's from then on.
pub const GIVEN: u64 = 2;
/// The receiver's, who gave it.
pub const RETURNED: u64 = 3;

/// A lane that was connected: the sender's end, raw, and the receiver's.
pub struct Connected {
    /// What the sender writes.
    pub memory: LaneMemory,
    /// The receiver's.
    pub receive: ReceiveLane,
    bell: Doorbell,
    peer: PeerIdentity,
}

impl Connected {
    /// The sender's end.
    fn into_send(self, own: OwnChunks, chunk_bytes: usize) -> (SendLane, ReceiveLane) {
        (SendLane::new(self.memory, self.bell, self.peer, own, chunk_bytes), self.receive)
    }
}

/// Opens a station, with a pool of that many bytes.
pub fn open(pool_bytes: usize) -> (PoolMemory, Station) {
    let options = station::options(pool_bytes);
    (options.pool.clone(), Station::open(options).unwrap())
}

/// Connects two stations one way, by a lane with such chunks of its own.
pub fn connect(from: &Station, to: &Station, own: OwnChunks) -> Connected {
    from.connect(1, to.address());
    let next_event = |station| station::next_event(station).expect("they connect");
    let StationEvent::Connected { lane: memory, bell, peer, .. } = next_event(from) else {
        panic!()
    };
    let StationEvent::Incoming { lane, pool, bell: theirs, peer: sender } = next_event(to) else {
        panic!()
    };
    let receive = ReceiveLane::new(lane, pool, theirs, sender, own);
    Connected { memory, receive, bell, peer }
}

/// One of two that speak with each other.
pub struct Side {
    send: SendLane,
    receive: ReceiveLane,
    pool: ChunkPool,
    copier: Copier,
    /// The lane that it sends on, and how many packets of one line it has sent there.
    lane: NonNull<u64>,
    sent: u64,
    _station: Station,
}

/// Two sides, connected both ways, with chunks of so many bytes: of their lanes as `own` says, and of
/// their pools.
pub fn pair(chunk_bytes: usize, own: OwnChunks) -> [Side; 2] {
    let [(pool, one), (other_pool, other)] = [open(1 << 20), open(1 << 20)];
    let (there, back) = (connect(&one, &other, own), connect(&other, &one, own));
    let lines = [&there, &back].map(|lane| lane.memory.as_ptr().cast());
    let [(there, heard), (back, answered)] =
        [there, back].map(|lane| lane.into_send(own, chunk_bytes));
    let side = |pool: &PoolMemory, station, send, receive, lane| Side {
        send,
        receive,
        pool: ChunkPool::new(pool, chunk_bytes),
        copier: Copier::choose("auto").unwrap(),
        lane,
        sent: 0,
        _station: station,
    };
    [side(&pool, one, there, answered, lines[0]), side(&other_pool, other, back, heard, lines[1])]
}

impl Side {
    /// Sends a message in a chunk, which is shown while it is copied in or not. Returns where its chunk
    /// is said to be, or none if there is no room.
    pub fn push(&mut self, content: &[u8], shown: bool) -> Option<u64> {
        let mut content = content.to_vec();
        // SAFETY: the content lives through the call.
        let piece = unsafe { Piece::new(content.as_mut_ptr(), content.len()) };
        let head = Head::new(Kind::Eager, if shown { WAITS } else { 0 });
        let (pool, copier) = (&mut self.pool, &self.copier);
        let other_way = Some(&self.receive);
        if !self.send.push(|| Means { pool, copier, other_way }, head, 7, &[], piece).unwrap() {
            return None;
        }
        self.sent += 1;
        // SAFETY: within the lane; nobody writes there meanwhile.
        Some(unsafe { self.last_place().read_volatile() })
    }

    /// Says another place of the last message's chunk.
    pub fn tamper(&mut self, place: u64) {
        // SAFETY: within the lane; the receiver reads it later.
        unsafe { self.last_place().write_volatile(place) };
    }

    /// Nothing has gone either way for long. False if what it has sent is not all read.
    pub fn rest(&mut self) -> bool {
        self.receive.give_pages_back();
        self.send.give_pages_back(&mut self.pool)
    }

    /// Pages that there are of the chunks of the lane that it sends on.
    pub fn chunk_pages(&self) -> usize {
        let mut there = [0; LANE_CHUNK_BYTES / 4096];
        // SAFETY: the range is the lane's, and the answer has a byte for each page of it.
        let failed = unsafe {
            let chunks = self.lane.as_ptr().byte_add(LANE_HEAD_BYTES);
            libc::mincore(chunks.cast(), LANE_CHUNK_BYTES, there.as_mut_ptr())
        };
        assert_eq!(failed, 0);
        there.iter().filter(|&&page| page & 1 != 0).count()
    }

    fn last_place(&self) -> *mut u64 {
        let line = (self.sent - 1) % LINES;
        self.lane.as_ptr().wrapping_add(LINES_FROM + line as usize * 8 + CHUNK_WORD)
    }

    /// Takes a message, if there is one and what it says can be.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, LaneError> {
        let Some(head) = self.receive.peek() else { return Ok(None) };
        let length = self.receive.next(head, Some(&self.send))?;
        assert!(self.receive.placed() >= length);
        let mut content = vec![0; length];
        // SAFETY: the content lives through the call.
        let piece = unsafe { Piece::new(content.as_mut_ptr(), length) };
        self.receive.copy_out(&self.copier, 0, piece);
        self.receive.consume();
        Ok(Some(content))
    }
}

/// Whose chunk a place says that it is.
pub fn owner(place: u64) -> u64 {
    place as u32 as u64 >> OWNER_SHIFT
}

/// Where the chunk of a place starts. Units: bytes.
pub fn offset(place: u64) -> u64 {
    (place >> 32) * 64
}

/// A place.
pub fn place(owner: u64, offset: u64, length: u64) -> u64 {
    (offset / 64) << 32 | owner << OWNER_SHIFT | length
}

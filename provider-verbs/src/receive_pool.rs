//! Receive buffers of an endpoint: slabs of registered memory that feed the shared receive queue.
//!
//! Each connection is promised a window of packets, and every promise is backed by a buffer that
//! is posted, or holds a packet of that very connection. So no sender ever finds the queue dry:
//!
//! - R1: `buffers = spare + sum of all windows`.
//! - R2: a window's packets are granted only after as many buffers were posted.
//!
//! The control thread promises the first window of a connection, so that a peer can send before
//! our application polls; the engine lends more to connections that use it.
//!
//! Datagrams are promised nothing: what finds the queue dry is lost.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use kestrel_core::ring::allowance::Allowance;

use crate::verbs::{Depths, Queues, ReceiveRequest, Region, Segment, Verbs, VerbsError};

/// Bytes of a receive buffer, and so the longest packet. Part of the protocol.
pub const BUFFER_BYTES: usize = 8192;
/// Packets that every connection may send before the receiver's word. Part of the protocol.
pub const WINDOW_MIN: u32 = 4;
/// The most that a connection is lent. Part of the protocol.
pub const WINDOW_MAX: u32 = 32;
/// Buffers of a slab: registered together.
pub const SLAB_BUFFERS: usize = 32;
/// Units: bytes.
pub const SLAB_BYTES: usize = SLAB_BUFFERS * BUFFER_BYTES;
/// Slabs of an endpoint at most.
const SLABS_MAX: usize = 256;
/// Receives that are posted at once at most.
pub const RECEIVES_MAX: u32 = (SLAB_BUFFERS * SLABS_MAX) as u32;

/// Buffers that may be promised beyond first windows, all peers' together.
const LENDABLE: u32 = 64;

/// Writes with data that may have come, and that nobody has told of yet: all peers' together, and
/// one's at most.
pub const IMMEDIATES: u32 = 2048;
pub const IMMEDIATES_EACH: u32 = 32;

/// A buffer's number: slab and place.
pub type BufferIndex = u32;

/// The pool, shared by the engine and the control thread.
pub struct ReceivePool<V: Verbs> {
    device: Arc<V>,
    queues: Arc<V::Queues>,
    slabs: Box<[OnceLock<V::Region>]>,
    /// Slabs that exist; the control thread alone adds some, once the endpoint is open.
    count: AtomicUsize,
    slabs_max: usize,
    slabs_each: usize,
    /// Buffers that are posted and promised to nobody.
    spare: Allowance,
    /// Of these, how many may be promised beyond first windows. What is lent is no reason to add a slab, or
    /// those who send much would have all that there can be, and no window would be left for others.
    lendable: Allowance,
    /// Of [`IMMEDIATES`], those that no peer has.
    immediates: Allowance,
}

impl<V: Verbs> ReceivePool<V> {
    /// A pool with so many slabs at first, and as many more at a time.
    pub fn new(
        device: Arc<V>,
        queues: Arc<V::Queues>,
        depths: Depths,
        slabs_each: usize,
    ) -> Result<Self, VerbsError> {
        let slabs_max = (depths.receives as usize / SLAB_BUFFERS).clamp(1, SLABS_MAX);
        let slabs = (0..slabs_max).map(|_| OnceLock::new()).collect();
        let (count, spare) = (AtomicUsize::new(0), Allowance::default());
        let immediates = Allowance::default();
        immediates.put(depths.immediates);
        let lendable = Allowance::default();
        lendable.put(LENDABLE);
        let pool = ReceivePool {
            device,
            queues,
            slabs,
            count,
            slabs_max,
            slabs_each,
            spare,
            lendable,
            immediates,
        };
        pool.grow()?;
        Ok(pool)
    }

    /// Adds as many slabs as there are at first. False if there are all that there can be.
    fn grow(&self) -> Result<bool, VerbsError> {
        (0..self.slabs_each).try_fold(false, |grown, _| Ok(self.add_slab()? || grown))
    }

    /// Adds a slab. False if there are as many as there can be.
    fn add_slab(&self) -> Result<bool, VerbsError> {
        let nth = self.count.load(Ordering::Relaxed);
        if nth == self.slabs_max {
            return Ok(false);
        }
        let region = self.device.allocate(SLAB_BYTES, false)?;
        let _ = self.slabs[nth].set(region);
        self.count.store(nth + 1, Ordering::Relaxed);
        let first = (nth * SLAB_BUFFERS) as BufferIndex;
        let buffers: Vec<BufferIndex> = (first..first + SLAB_BUFFERS as BufferIndex).collect();
        self.post(&buffers)?;
        // Who takes finds the buffers posted.
        self.spare.put(SLAB_BUFFERS as u32);
        Ok(true)
    }

    /// Connections that can be promised one.
    pub fn connections_max(&self) -> usize {
        self.slabs_max * SLAB_BUFFERS / WINDOW_MIN as usize
    }

    /// Promises the first window to a new connection; false if there is no buffer left to.
    pub fn reserve(&self) -> Result<bool, VerbsError> {
        while !self.spare.take(WINDOW_MIN) {
            if !self.grow()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Promises more to a connection, if there are so many.
    pub fn lend(&self, count: u32) -> bool {
        if !self.lendable.take(count) {
            return false;
        }
        let taken = self.spare.take(count);
        if !taken {
            self.lendable.put(count);
        }
        taken
    }

    /// Of what was lent that much is promised no more.
    pub fn return_lent(&self, count: u32) {
        self.spare.put(count);
        self.lendable.put(count);
    }

    /// Nothing is promised any more of a window.
    pub fn return_window(&self, window: u32) {
        let lent = window.saturating_sub(WINDOW_MIN);
        self.return_lent(lent);
        self.spare.put(window - lent);
    }

    /// How many can be lent.
    pub fn lendable(&self) -> u32 {
        self.spare.left().min(self.lendable.left())
    }

    /// Takes what a peer may have of writes with data that nobody has told of; 0 if there is too
    /// little left.
    pub fn take_immediates(&self) -> u32 {
        if self.immediates.take(IMMEDIATES_EACH) { IMMEDIATES_EACH } else { 0 }
    }

    /// What a peer had is another's.
    pub fn return_immediates(&self, count: u32) {
        self.immediates.put(count);
    }

    /// The memory of a buffer, and where it starts there.
    #[inline(always)]
    pub fn buffer(&self, index: BufferIndex) -> (&V::Region, usize) {
        let (slab, place) = (index as usize / SLAB_BUFFERS, index as usize % SLAB_BUFFERS);
        let region = self.slabs[slab].get().expect("a buffer's slab exists as long as the pool");
        (region, place * BUFFER_BYTES)
    }

    /// Posts buffers whose content nobody needs, as chains.
    pub fn post(&self, buffers: &[BufferIndex]) -> Result<(), VerbsError> {
        const CHAIN: usize = 16;
        let segment = Segment { address: 0, length: 0, local_key: 0 };
        let mut requests = [ReceiveRequest { request: 0, segment }; CHAIN];
        for chain in buffers.chunks(CHAIN) {
            for (request, &index) in requests.iter_mut().zip(chain) {
                let (region, start) = self.buffer(index);
                request.request = u64::from(index);
                request.segment = Segment {
                    address: region.memory().address(start),
                    length: BUFFER_BYTES as u32,
                    local_key: region.local_key(),
                };
            }
            // SAFETY: slabs live as long as the pool, which every holder of queue pairs on these
            // queues keeps until they are gone.
            unsafe { self.queues.post_receives(&requests[..chain.len()])? };
        }
        Ok(())
    }
}

//! How much two threads move with a pair of contexts each, beside what one moves: messages of
//! 8 bytes that each context sends to itself. They share nothing, so nothing should be lost.

use crate::cores;
use crate::fabric::{FabricError, FabricOptions};
use crate::statistics::Ratio;
use crate::units;
use kestrel::{CompletionQueue, Domain, Endpoint, ScalableEndpoint};
use kestrel_core::address_vector::{
    AddressVector, AddressVectorAttributes, FI_ADDR_UNSPEC, fi_rx_addr,
};
use kestrel_core::completion_queue::Entry;
use kestrel_core::endpoint::EndpointOptions;
use kestrel_core::flags::Flags;
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::operation::ReceivePost;
use kestrel_core::scalable_endpoint::ContextCounts;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Bits of an address that name a context: enough for as many as there are cores.
const BITS: u32 = 10;
/// How long one thread, or all of them, move messages in a round.
const ROUND: Duration = Duration::from_millis(100);
const ROUNDS: usize = 20;
/// Messages between two looks at the clock's flag.
const BATCH: u64 = 16;

/// The transmit and the receive context of one index.
struct Pair {
    transmit: Arc<Endpoint>,
    sent: Arc<CompletionQueue>,
    receive: Arc<Endpoint>,
    received: Arc<CompletionQueue>,
    own: u64,
}

/// Measures, and says what was found.
///
/// # Errors
/// The contexts could not be opened, or a message was refused.
pub fn run(options: &FabricOptions, cores: &[usize]) -> Result<String, FabricError> {
    let threads = cores.len().clamp(2, 1 << BITS);
    let domain = options.domain()?;
    let pairs = open(&domain, threads)?;
    let mut ratios = Vec::new();
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let one = rate(&pairs[..1], cores);
        let all = rate(&pairs[..threads], cores);
        ratios.push(all / one);
        rates.push((one, all));
    }
    // There is one ratio at least.
    let ratio = Ratio::of(&ratios).ok_or_else(|| FabricError::Open("no round".to_owned()))?;
    let best =
        |which: fn(&(f64, f64)) -> f64| units::count(rates.iter().map(which).fold(0.0, f64::max));
    Ok(format!(
        "contexts that send to themselves, 8 bytes, {ROUNDS} rounds in turns\n\
         one thread      {}/s at best\n\
         {threads:<2} threads      {}/s at best\n\
         ratio           {:.2} (median; p10 {:.2}, p90 {:.2})\n",
        best(|rates| rates.0),
        best(|rates| rates.1),
        ratio.median,
        ratio.p10,
        ratio.p90,
    ))
}

fn open(domain: &Arc<Domain>, count: usize) -> Result<Vec<Pair>, FabricError> {
    fn failed(error: impl std::fmt::Display) -> FabricError {
        FabricError::Open(error.to_string())
    }
    let options = EndpointOptions::default();
    let capabilities = options.capabilities | Flags::NAMED_RX_CTX;
    let options = EndpointOptions { capabilities, ..options };
    let counts = ContextCounts { transmit: count, receive: count };
    let endpoint = ScalableEndpoint::open(domain, options.clone(), counts).map_err(failed)?;
    let attributes = AddressVectorAttributes { rx_ctx_bits: BITS, ..Default::default() };
    let vector = Arc::new(AddressVector::open(attributes).map_err(failed)?);
    endpoint.bind_address_vector(&vector).map_err(failed)?;
    let own = vector.insert_one(endpoint.address()).map_err(failed)?;
    let enabled = |context: Arc<Endpoint>, direction| {
        let queue = CompletionQueue::open(domain, 0).map_err(failed)?;
        context.bind_completion_queue(&queue, direction).map_err(failed)?;
        context.enable().map_err(failed)?;
        Ok((context, queue))
    };
    let pair = |index| {
        let transmit = endpoint.transmit_context(index, options.clone()).map_err(failed)?;
        let receive = endpoint.receive_context(index, options.clone()).map_err(failed)?;
        let (transmit, sent) = enabled(transmit, Flags::TRANSMIT)?;
        let (receive, received) = enabled(receive, Flags::RECV)?;
        let own = fi_rx_addr(own, index as u64, BITS);
        Ok(Pair { transmit, sent, receive, received, own })
    };
    (0..count).map(pair).collect()
}

/// Messages a second that all of `pairs` move, with a thread each.
fn rate(pairs: &[Pair], cores: &[usize]) -> f64 {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(pairs.len() + 1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .iter()
            .enumerate()
            .map(|(index, pair)| {
                let (stop, start) = (&stop, &start);
                scope.spawn(move || {
                    cores::pin(index, cores);
                    pair.exchange();
                    start.wait();
                    let (begun, mut moved) = (Instant::now(), 0);
                    while !stop.load(Ordering::Relaxed) {
                        (0..BATCH).for_each(|_| pair.exchange());
                        moved += BATCH;
                    }
                    moved as f64 / begun.elapsed().as_secs_f64()
                })
            })
            .collect();
        start.wait();
        std::thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        // A thread that panicked has said why.
        threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
    })
}

impl Pair {
    /// One message from the transmit context to the receive context.
    #[inline(always)]
    fn exchange(&self) {
        let mut word = 0_u64;
        // SAFETY: the word outlives the receive: its completion is waited for.
        let piece = unsafe { Piece::new((&raw mut word).cast(), 8) };
        let receive = ReceivePost {
            pieces: Pieces::One(piece),
            from: FI_ADDR_UNSPEC,
            tag: 1,
            ignore: 0,
            context: 0,
            flags: Flags::TAGGED,
            owner: None,
        };
        self.receive.post_receive(receive).expect("a receive is always taken");
        while self.transmit.inject_tagged(&7_u64.to_ne_bytes(), self.own, 1).is_err() {
            let _ = self.sent.read(&mut [Entry::default()]);
        }
        while self.received.read(&mut [Entry::default()]).is_err() {}
        assert_eq!(word, 7);
    }
}

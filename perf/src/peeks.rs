//! What a peek and a claim cost beside a plain receive, by how many messages wait: an endpoint
//! that sends to itself, so that no other core takes part.

use crate::fabric::{FabricError, FabricOptions, Setup, Side};
use crate::measure::matching::{DEPTHS, MESSAGES};
use crate::statistics::median;
use kestrel::{CompletionQueue, Endpoint};
use kestrel_core::address_vector::FI_ADDR_UNSPEC;
use kestrel_core::completion_queue::Entry;
use kestrel_core::flags::Flags;
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::operation::ReceivePost;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

/// Rounds of a depth at least.
const ROUNDS: u64 = 9;
/// At any depth a peek, or a claim, may cost so many times a plain receive.
const RATIO_MAX: f64 = 2.0;
/// The tag behind all others.
const LAST: u64 = u64::MAX;

/// An endpoint with its queue, which knows itself.
struct Loopback {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    own: u64,
}

/// Nanoseconds a message.
struct Costs {
    plain: f64,
    peek: f64,
    claiming_peek: f64,
    claim: f64,
}

/// Measures, and says what was found.
///
/// # Errors
/// The endpoint could not be opened, or a message was refused.
pub fn run(options: &FabricOptions) -> Result<String, FabricError> {
    let loopback = Loopback::open(options.setup(0)?)?;
    let mut text = String::from(
        "unexpected messages of 8 bytes in the worst order, ns a message: median of the rounds\n\
         depth     receive   peek            peek to claim   claim\n",
    );
    for depth in DEPTHS {
        let rounds = (MESSAGES / depth).max(ROUNDS);
        let costs = (0..rounds).map(|_| loopback.round(depth)).collect::<Result<Vec<_>, _>>()?;
        let of = |which: fn(&Costs) -> f64| median(&costs.iter().map(which).collect::<Vec<_>>());
        let plain = of(|costs| costs.plain);
        let beside = |ns: f64| format!("{ns:.0} ({:.2} x)", ns / plain);
        let (peek, claim) = (of(|costs| costs.peek), of(|costs| costs.claim));
        let claiming = beside(of(|costs| costs.claiming_peek));
        let (peek, claim) = (beside(peek), beside(claim));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{depth:<9} {plain:<9.0} {peek:<15} {claiming:<15} {claim}");
    }
    let _ = writeln!(text, "the aim: at most {RATIO_MAX} x a plain receive, at any depth");
    Ok(text)
}

impl Loopback {
    fn open(setup: Setup) -> Result<Loopback, FabricError> {
        let Side { endpoint, queue, vector } = Side::of(&setup.open_domain()?, setup.endpoint)?;
        let own = vector.insert_one(endpoint.address());
        let own = own.map_err(|error| FabricError::Address(error.to_string()))?;
        Ok(Loopback { endpoint, queue, own })
    }

    /// Each of `depth` messages is received as it is; then as many are peeked at, claimed by a
    /// peek, and retrieved.
    fn round(&self, depth: u64) -> Result<Costs, FabricError> {
        let none = Flags::empty();
        self.fill(depth)?;
        let plain = self.each(depth, none)?;
        self.fill(depth)?;
        let peek = self.each(depth, Flags::PEEK)?;
        let claiming_peek = self.each(depth, Flags::PEEK | Flags::CLAIM)?;
        let claim = self.each(depth, Flags::CLAIM)?;
        Ok(Costs { plain, peek, claiming_peek, claim })
    }

    /// Has `depth` messages wait.
    fn fill(&self, depth: u64) -> Result<(), FabricError> {
        for tag in (0..depth).chain([LAST]) {
            while self.endpoint.inject_tagged(&tag.to_ne_bytes(), self.own, tag).is_err() {
                let _ = self.queue.read(&mut [Entry::default()]);
            }
        }
        // Messages keep their order, so all are there when the last one is.
        self.post(LAST, Flags::empty())
    }

    /// The time of one operation, with its completion.
    fn each(&self, depth: u64, flags: Flags) -> Result<f64, FabricError> {
        let start = Instant::now();
        for tag in (0..depth).rev() {
            self.post(tag, flags)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / depth as f64)
    }

    #[inline(always)]
    fn post(&self, tag: u64, flags: Flags) -> Result<(), FabricError> {
        let mut word = 0_u64;
        let asks = flags.contains(Flags::PEEK);
        // SAFETY: the word outlives the receive: its completion is waited for.
        let piece = unsafe { Piece::new((&raw mut word).cast(), 8) };
        let pieces = Pieces::One(if asks { Piece::EMPTY } else { piece });
        let receive = ReceivePost {
            pieces,
            from: FI_ADDR_UNSPEC,
            tag,
            ignore: 0,
            context: tag,
            flags: Flags::TAGGED | flags,
            owner: None,
        };
        self.endpoint.post_receive(receive).map_err(FabricError::Post)?;
        let mut entry = [Entry::default()];
        while self.queue.read(&mut entry).is_err() {}
        assert!(entry[0].context == tag && (asks || word == tag), "a message went astray");
        Ok(())
    }
}

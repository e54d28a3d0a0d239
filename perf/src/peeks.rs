//! What a peek and a claim cost beside a plain receive, by how many messages wait: an endpoint
//! that sends to itself, so that no other core takes part.

use crate::fabric::{FabricError, Setup, Side, await_one, inject_word, no_address};
use crate::measure::matching::{DEPTHS, MESSAGES, Queue, refusal};
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use kestrel::{CompletionQueue, Endpoint};
use kestrel_core::address_vector::FI_ADDR_UNSPEC;
use kestrel_core::flags::Flags;
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::operation::ReceivePost;
use std::sync::Arc;
use std::time::Instant;

/// Rounds of a depth at least.
const ROUNDS_MIN: u64 = 9;
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

/// What is done to each message: the first is what the others are compared with.
const WAYS: [&str; 4] = ["receive", "peek", "peek to claim", "claim"];

/// Rank 0: its process alone. A row for each way and depth.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let title = "Peeks and claims of unexpected messages in the worst order, a message";
    let mut section = Section::new("peeks", title);
    let loopback = Loopback::open(session.options.fabric.setup()?)?;
    let depths = session.options.depths(&DEPTHS);
    session.bar.begin("peeks", depths.len() as u64);
    let mut worst = WAYS.map(|_| 0.0_f64);
    let config = session.options.fabric.config()?;
    for depth in depths {
        if let Some(why) = refusal(&config, Queue::Unexpected, size_of::<u64>(), depth + 1) {
            section.rows.extend(WAYS.map(|name| Row {
                depth: Some(depth),
                note: why.to_owned(),
                ..Row::new(name, &format!("{depth} deep"))
            }));
            session.bar.advance(1);
            continue;
        }
        let rounds = session.options.iterations(MESSAGES).div_ceil(depth).max(ROUNDS_MIN);
        for _ in 0..session.options.warmup(0).div_ceil(depth) {
            loopback.round(depth)?;
        }
        let mut costs = Vec::new();
        for round in 0..rounds {
            if round >= ROUNDS_MIN && session.bar.is_late() {
                break;
            }
            costs.push(loopback.round(depth)?);
        }
        let median_of =
            |way: usize| median(&costs.iter().map(|cost| cost[way]).collect::<Vec<_>>());
        let plain = median_of(0);
        for (way, name) in WAYS.into_iter().enumerate() {
            let ns = median_of(way);
            worst[way] = worst[way].max(ns / plain);
            let beside = format!("{:.2} × a receive", ns / plain);
            section.rows.push(Row {
                depth: Some(depth),
                ns: Some(ns),
                messages_per_s: Some(1e9 / ns),
                note: if way == 0 { String::new() } else { beside },
                ..Row::new(name, &format!("{depth} deep"))
            });
        }
        session.bar.advance(1);
    }
    // None was measured where no depth was.
    for (name, worst) in WAYS.into_iter().zip(worst).skip(1).filter(|(_, worst)| *worst > 0.0) {
        let what = format!("{name}, of a plain receive, at the worst depth");
        section.aims.push(Aim::at_most(&what, worst, RATIO_MAX));
    }
    Ok(section)
}

impl Loopback {
    fn open(setup: Setup) -> Result<Loopback, FabricError> {
        let Side { endpoint, queue, vector, .. } = Side::of(&setup.open_domain()?, setup.endpoint)?;
        let own = vector.insert_one(endpoint.address()).map_err(no_address)?;
        Ok(Loopback { endpoint, queue, own })
    }

    /// Each of `depth` messages is received as it is; then as many are peeked at, claimed by a
    /// peek, and retrieved. Nanoseconds a message, for each of the ways.
    fn round(&self, depth: u64) -> Result<[f64; WAYS.len()], FabricError> {
        let none = Flags::empty();
        self.fill(depth)?;
        let plain = self.each(depth, none)?;
        self.fill(depth)?;
        let peek = self.each(depth, Flags::PEEK)?;
        let claiming_peek = self.each(depth, Flags::PEEK | Flags::CLAIM)?;
        let claim = self.each(depth, Flags::CLAIM)?;
        Ok([plain, peek, claiming_peek, claim])
    }

    /// Has `depth` messages wait.
    fn fill(&self, depth: u64) -> Result<(), FabricError> {
        for tag in (0..depth).chain([LAST]) {
            inject_word(&self.endpoint, &self.queue, tag, self.own, tag)?;
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
            region: None,
            attachment: None,
        };
        self.endpoint.post_receive(receive).map_err(FabricError::Post)?;
        let entry = await_one(&self.queue)?;
        assert!(entry.context == tag && (asks || word == tag), "a message went astray");
        Ok(())
    }
}

//! What peers cost that are not spoken to: messages of 8 bytes to and fro between two endpoints that know
//! nobody else, beside two that have many inserted peers, and two that have many connected ones besides. And
//! between two connected endpoints, beside two whose queues have many others.

mod connections;
mod crowd;
mod ping_pong;

use crate::fabric::{FabricError, Setup};
use crate::report::{Against, Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::{Ratio, median};
use crate::units;
use connections::Connections;
use crowd::Crowd;
use kestrel_core::address_vector::AddressVector;
use kestrel_core::config::TransportChoice;
use ping_pong::PingPong;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Peers that are inserted and never spoken to: many more than the 2,000 that are to cost nothing, so that
/// their bytes can be told from what the process has besides.
const INSERTED: u32 = 65_536;
/// Messages of each connected peer, more than a lane of shared memory has lines: all its pages are touched.
const MESSAGES: u64 = 150;
const ROUND: Duration = Duration::from_millis(5);
const ROUNDS: usize = 40;
const ROUNDS_MIN: usize = 5;

/// What two endpoints take that know many, of the time of two that know nobody else.
const RATIO_MAX: f64 = 1.05;
/// Of a peer that was inserted and never spoken to. Unit: bytes.
const INSERTED_BYTES_MAX: f64 = 64.0;
/// Of a peer that is connected and idle: of a lane both ends together, of queue pairs either. Unit: bytes.
const LANE_BYTES_MAX: f64 = 16384.0;
const QUEUE_PAIR_BYTES_MAX: f64 = 65536.0;

const SERIES: &str = "half a round trip";
const CONNECTED_SERIES: &str = "half a round trip, connected endpoints";

/// Rank 0: its process alone.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let mut section = Section::new("peers", "Peers that are not spoken to: 8 bytes beside them");
    let (setup, count) = (session.options.fabric.setup()?, session.options.peers());
    session.bar.begin("peers", 4);
    let (alone, _) = PingPong::open(&setup)?;
    let (inserted, vectors) = PingPong::open(&setup)?;
    let bytes_inserted = cost_of(2 * u64::from(INSERTED), || know_strangers(&vectors))?;
    session.bar.advance(1);
    let (connected, vectors) = PingPong::open(&setup)?;
    know_strangers(&vectors)?;
    let crowd = Crowd::open(&setup, count)?;
    let [hub, other] = connected.ends();
    // What an endpoint needs for the first peer of its life is its own.
    crowd.speak_to(other, MESSAGES)?;
    let mut took = Duration::ZERO;
    let bytes_connected = cost_of(count.into(), || {
        took = crowd.speak_to(hub, MESSAGES)?;
        Ok(())
    })?;
    session.bar.advance(1);
    let (another, _) = PingPong::open(&setup)?;
    let (many, crowded) =
        (format!("{INSERTED} peers inserted"), format!("and {count} connected, idle"));
    let pairs = [
        ("alone", &alone),
        ("another two alone", &another),
        (&many, &inserted),
        (&crowded, &connected),
    ];
    beside_each_other(session, SERIES, &pairs, &mut section)?;
    // What two differ by that are alike is not what peers cost.
    for row in &section.rows[2..] {
        if let Some(Against { ratio, .. }) = &row.against {
            let what = format!("{SERIES}, {}, of the time alone", row.label);
            section.aims.push(Aim::at_most(&what, ratio.median, RATIO_MAX));
        }
    }
    session.bar.advance(1);
    let each = took.as_nanos() as f64 / f64::from(count);
    section.rows.extend([
        Row { bytes: bytes_inserted, ..Row::new("peer", "inserted") },
        Row {
            ns: Some(each),
            bytes: bytes_connected,
            note: format!(
                "{count} to one in {}; bytes of both ends",
                units::nanoseconds(each * f64::from(count))
            ),
            ..Row::new("peer", "connected, idle")
        },
    ]);
    drop((crowd, alone, another, inserted, connected));
    connected_endpoints(session, &setup, &mut section)?;
    session.bar.advance(1);
    let transport = session.options.fabric.transport()?;
    section.aims.extend(aims(bytes_inserted, bytes_connected, transport));
    Ok(section)
}

/// Two connected endpoints, and two whose queues have as many others as the command line says.
fn connected_endpoints(
    session: &Session,
    setup: &Setup,
    section: &mut Section,
) -> Result<(), FabricError> {
    let count = session.options.peers();
    let (alone, mut many) = (Connections::open(setup)?, Connections::open(setup)?);
    let mut took = 0.0;
    let bytes = cost_of(count.into(), || {
        let begun = Instant::now();
        many.add(count)?;
        took = begun.elapsed().as_nanos() as f64;
        Ok(())
    })?;
    let label = format!("with {count} others at its queue, idle");
    let pairs = [("alone", alone.pair()), (&label, many.pair())];
    beside_each_other(session, CONNECTED_SERIES, &pairs, section)?;
    section.rows.push(Row {
        ns: Some(took / f64::from(count)),
        bytes,
        note: format!("{count} in {}; bytes of both endpoints", units::nanoseconds(took)),
        ..Row::new("connection", "idle")
    });
    Ok(())
}

fn aims(
    inserted: Option<f64>,
    connected: Option<f64>,
    transport: TransportChoice,
) -> impl Iterator<Item = Aim> {
    let (ends, each, bound) = match transport {
        TransportChoice::Verbs => ("an end", 0.5, QUEUE_PAIR_BYTES_MAX),
        _ => ("both ends", 1.0, LANE_BYTES_MAX),
    };
    let what = |what: &str| format!("bytes of a peer that {what}");
    let inserted = inserted.map(|bytes| {
        Aim::at_most(&what("was inserted and never spoken to"), bytes, INSERTED_BYTES_MAX)
    });
    let connected = connected.map(|bytes| {
        Aim::at_most(&what(&format!("is connected and idle, {ends}")), bytes * each, bound)
    });
    inserted.into_iter().chain(connected)
}

fn know_strangers(vectors: &[Arc<AddressVector>; 2]) -> Result<(), FabricError> {
    vectors.iter().try_for_each(|vector| crowd::insert_strangers(vector, INSERTED))
}

/// The rows of all pairs, which work in turns. The first is what the others are compared with.
fn beside_each_other(
    session: &Session,
    series: &str,
    pairs: &[(&str, &PingPong)],
    section: &mut Section,
) -> Result<(), FabricError> {
    let half_trip = |pair: &PingPong| pair.half_trip(&session.cores, ROUND);
    // The first round connects.
    pairs.iter().try_for_each(|(_, pair)| half_trip(pair).map(drop))?;
    let mut times = vec![Vec::new(); pairs.len()];
    for round in 0..ROUNDS {
        if round >= ROUNDS_MIN && session.bar.is_late() {
            break;
        }
        for ((_, pair), times) in pairs.iter().zip(&mut times) {
            times.push(half_trip(pair)?);
        }
    }
    let alone = &times[0];
    for (index, ((label, _), times)) in pairs.iter().zip(&times).enumerate() {
        let ratios: Vec<f64> = times.iter().zip(alone).map(|(time, alone)| time / alone).collect();
        let ratio = Ratio::of(&ratios).filter(|_| index > 0);
        let against =
            ratio.map(|ratio| Against { name: pairs[0].0.to_owned(), ns: median(alone), ratio });
        let note =
            if index > 0 { String::new() } else { format!("{} rounds in turns", times.len()) };
        section.rows.push(Row {
            ns: Some(median(times)),
            against,
            note,
            ..Row::new(series, label)
        });
    }
    Ok(())
}

/// Bytes of this process that `work` leaves for each of `count`; nothing if the kernel does not say.
fn cost_of(
    count: u64,
    work: impl FnOnce() -> Result<(), FabricError>,
) -> Result<Option<f64>, FabricError> {
    let before = held_bytes();
    work()?;
    let of = |before, after| (after - before) / count as f64;
    Ok(before.zip(held_bytes()).map(|(before, after)| of(before, after)))
}

/// The pages that this process has in memory, its share of those that it maps several times. Without those
/// that were given back to the heap: what takes them next would cost nothing. And without those of files,
/// programs among them, which a kernel that is short of memory takes away.
fn held_bytes() -> Option<f64> {
    #[cfg(target_env = "gnu")]
    // SAFETY: it gives back pages that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
    // Mapping for mapping: the kernel's own sum (`smaps_rollup`) of Linux 6.1 leaves out mappings, megabytes of
    // them, when another thread maps memory meanwhile.
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let (mut kib, mut is_files) = (0.0, false);
    for line in smaps.lines() {
        match line.strip_prefix("Pss:") {
            Some(share) if !is_files => {
                kib += share.trim().trim_end_matches(" kB").parse::<f64>().ok()?;
            }
            Some(_) => {}
            // A mapping begins with its addresses and ends with its path; a property's name ends with a colon.
            None if line.split(' ').next().is_some_and(|word| !word.ends_with(':')) => {
                is_files = line.contains(" /") && !line.contains(" /memfd:");
            }
            None => {}
        }
    }
    Some(kib * 1024.0).filter(|bytes| *bytes > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores;
    use crate::fabric::FabricOptions;

    /// All of it, though there was as much before, which was given back: as measurements leave it. Other tests
    /// have memory meanwhile, far less than this.
    #[test]
    fn what_is_kept_is_counted() {
        const PIECES: u64 = 64 << 10;
        let pieces = || (0..PIECES).map(|_| vec![1_u8; 1024]).collect::<Vec<_>>();
        let mut before = pieces();
        // The heap's end is in use, so that it does not shrink by itself.
        let last = before.pop();
        drop(before);
        let mut kept = Vec::new();
        let each = cost_of(PIECES, || {
            kept = pieces();
            Ok(())
        });
        let each = each.unwrap().expect("the kernel says it");
        assert!((800.0..1300.0).contains(&each), "{each} bytes for 1024");
        std::hint::black_box((last, kept));
    }

    #[test]
    fn messages_go_to_and_fro_beside_a_crowd() {
        let options = FabricOptions { provider: "shm".to_owned(), automatic_progress: false };
        let (setup, cores) = (options.setup().unwrap(), cores::usable(&[]).unwrap());
        let (pair, vectors) = PingPong::open(&setup).unwrap();
        crowd::insert_strangers(&vectors[0], 100).unwrap();
        Crowd::open(&setup, 3).unwrap().speak_to(pair.ends()[0], 5).unwrap();
        let mut connections = Connections::open(&setup).unwrap();
        connections.add(20).unwrap();
        for pair in [&pair, connections.pair()] {
            for _ in 0..2 {
                assert!(pair.half_trip(&cores, ROUND).unwrap() > 0.0);
            }
        }
    }
}

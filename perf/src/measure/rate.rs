//! Messages a second, one way, with a window of receives posted ahead.

use super::pump::Pump;
use super::{MeasureError, Sample, Work};
use crate::clock::Reminder;
use crate::floor::Task;
use crate::port::Port;
use crate::report::{Aim, Row, Section};
use crate::session::{Session, SessionError};
use crate::statistics::median;
use std::time::Instant;

const TAG: u64 = 0x22;
/// Short ones: what disturbs a machine then spoils few of them.
const ROUNDS: usize = 31;
const ROUNDS_MIN: usize = 5;
const SIZE: usize = 8;
/// The rate, of UCX's.
pub const UCX_RATE_MIN: f64 = 1.5;
pub const WINDOW: u64 = 64;

/// Rank 0 sends, rank 1 receives and answers once at the end.
///
/// Sends that complete are bounded by the window; injects by the fabric.
pub fn one_way<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    messages: u64,
    warmup: u64,
    window: u64,
) -> Result<Sample, MeasureError> {
    pump.doing("a one-way stream");
    let start = if pump.rank() == 0 {
        pump.await_signal(1)?;
        stream_out(pump, size, warmup, window)?;
        let start = Instant::now();
        stream_out(pump, size, messages, window)?;
        pump.await_signal(1)?;
        start
    } else {
        let total = warmup + messages;
        let posted_ahead = window.min(total);
        for _ in 0..posted_ahead {
            pump.receive(Some(0), size, TAG, 0)?;
        }
        pump.signal(0)?;
        let start = Instant::now();
        stream_in(pump, size, total, posted_ahead)?;
        pump.signal(0)?;
        start
    };
    Ok(Sample { ns: start.elapsed().as_nanos() as f64 / messages as f64, spread: None })
}

fn stream_out<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    messages: u64,
    window: u64,
) -> Result<(), MeasureError> {
    let mut reminder = Reminder::new();
    for _ in 0..messages {
        while pump.sends_posted - pump.sent >= window {
            pump.poll()?;
        }
        pump.send(1, size, TAG)?;
        if reminder.is_due() {
            pump.look()?;
        }
    }
    pump.await_sent()
}

fn stream_in<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    total: u64,
    mut posted: u64,
) -> Result<(), MeasureError> {
    let window = posted;
    while pump.received < total {
        pump.poll()?;
        while posted < total && posted - pump.received < window {
            pump.receive(Some(0), size, TAG, 0)?;
            posted += 1;
        }
    }
    Ok(())
}

/// The warm-up that fits a stream if nobody says. Units: messages.
pub fn warmup(session: &Session, messages: u64, window: u64) -> u64 {
    session.options.warmup(messages / 10 + window)
}

/// What a stream does.
pub fn stream(session: &Session, size: usize, messages: u64, window: u64) -> Work {
    let warmup = warmup(session, messages, window);
    Work::OneWay { size, messages, warmup, window, touch: false }
}

/// Rank 0: the rate beside the bare slot ring, and beside the peer's where asked.
pub fn job(session: &mut Session) -> Result<Section, SessionError> {
    let mut section = Section::new("rate", "Message rate: one way, tagged");
    let window = session.options.window(WINDOW);
    let sizes = session.options.sizes(&[SIZE]);
    session.bar.begin("rate", sizes.len() as u64);
    for size in sizes {
        let messages =
            session.options.iterations(100_000.min((1 << 30) / (size as u64 + 64)).max(100));
        let work = stream(session, size, messages, window);
        let (mut ours, mut floors, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        let began = Instant::now();
        for round in 0..ROUNDS {
            if round >= ROUNDS_MIN && session.is_enough_of_ours(round, began) {
                break;
            }
            floors.push(session.floor(&Task::Slots { messages: 200_000 })?[0]);
            ours.push(session.work(&work)?.ns);
            if session.peer.is_some() && round % 4 == 0 {
                theirs.push(session.peer_rate_ns(size)?);
            }
        }
        session.bar.advance(1);
        let (ns, floor) = (median(&ours), median(&floors));
        let mut note = format!("window {window}");
        if session.has_floor() {
            note += "; floor: a bare ring of 64-byte slots";
        }
        if !theirs.is_empty() {
            let peer = median(&theirs);
            note += &format!("; UCX {}/s", crate::units::count(1e9 / peer));
            section.aims.push(Aim::at_least("rate, of UCX's tag_bw", peer / ns, UCX_RATE_MIN));
        }
        section.rows.push(Row {
            size: Some(size as u64),
            ns: Some(ns),
            messages_per_s: Some(1e9 / ns),
            floor: Some(floor),
            ratio: Some(ns / floor),
            note,
            ..Row::new("one way", &crate::units::bytes(size as u64))
        });
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::super::Rank;
    use super::*;
    use crate::buffer::Buffer;
    use crate::door::DoorError;
    use crate::port::{Grant, Local, Outcome, PortError, Verb};

    /// Takes whatever is sent, and says that it failed to who looks.
    struct Dead;

    impl Port for Dead {
        type Entry = ();
        type Region = ();

        fn context((): &()) -> u64 {
            0
        }

        fn inject_bytes_max(&self) -> usize {
            SIZE
        }

        unsafe fn inject(
            &mut self,
            _: *const u8,
            _: usize,
            _: u64,
            _: u64,
        ) -> Result<Outcome, PortError> {
            Ok(Outcome::Done)
        }

        unsafe fn send(
            &mut self,
            _: *const u8,
            _: usize,
            _: u64,
            _: u64,
            _: u64,
        ) -> Result<Outcome, PortError> {
            Ok(Outcome::Again)
        }

        unsafe fn receive(
            &mut self,
            _: *mut u8,
            _: usize,
            _: Option<u64>,
            _: u64,
            _: u64,
            _: u64,
        ) -> Result<Outcome, PortError> {
            Ok(Outcome::Again)
        }

        fn poll(&mut self, _: &mut [()]) -> Result<usize, PortError> {
            Err(DoorError::Operation("the peer is gone".to_owned()).into())
        }

        unsafe fn expose(&mut self, _: *mut u8, _: usize) -> Result<((), Grant), PortError> {
            Ok(((), Grant { address: 0, key: 0 }))
        }

        fn hide(&mut self, (): ()) -> Result<(), PortError> {
            Ok(())
        }

        unsafe fn reach(
            &mut self,
            _: Verb,
            _: Local,
            _: Grant,
            _: u64,
            _: u64,
        ) -> Result<Outcome, PortError> {
            Ok(Outcome::Again)
        }
    }

    /// An injected message completes nowhere.
    #[test]
    fn a_peer_that_dies_ends_a_stream_of_injected_messages() {
        let (outgoing, incoming) = (&mut Buffer::new(64), &mut Buffer::new(64));
        let rank = Rank { side: &mut Dead, rank: 0, peers: &[0, 1], outgoing, incoming };
        let pump = &mut Pump::new(rank, SIZE);
        let error = stream_out(pump, SIZE, u64::MAX, WINDOW).expect_err("it is gone").to_string();
        assert!(error.contains("the peer is gone"), "{error}");
    }
}

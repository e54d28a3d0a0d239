//! A one-way stream of buffers that change, as programs have them: each is written before it is sent,
//! and read after it was received, within the time. Every message under way has a part of the buffer of
//! its own, which are taken in turn.

use super::pump::Pump;
use super::{MeasureError, Sample, Work, rate};
use crate::clock::Reminder;
use crate::port::Port;
use crate::session::Session;
use std::time::Instant;

const TAG: u64 = 0x44;
/// What a rank's parts have together at most, unless two have more.
const BYTES: usize = 256 << 20;

/// What the title of a section says.
pub const TOUCHED: &str = "; buffers written before and read after, within the time";

/// What a stream does, with as many messages under way as there is memory for.
pub fn stream(session: &Session, size: usize, messages: u64, window: u64) -> Work {
    let window = window.min((BYTES / size.max(1)).max(2) as u64);
    let warmup = rate::warmup(session, messages, window);
    Work::OneWay { size, messages, warmup, window, touch: true }
}

/// Rank 0 writes and sends, rank 1 receives and reads, and answers once at the end.
pub fn one_way<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    messages: u64,
    warmup: u64,
    window: u64,
) -> Result<Sample, MeasureError> {
    pump.doing("a one-way stream of buffers that change");
    let mut start = Instant::now();
    if pump.rank() == 0 {
        pump.free.extend(0..window);
        pump.await_signal(1)?;
        write_out(pump, size, 0..warmup)?;
        start = Instant::now();
        write_out(pump, size, warmup..warmup + messages)?;
        pump.await_signal(1)?;
    } else {
        read_in(pump, size, warmup + messages, window)?;
    }
    Ok(Sample { ns: start.elapsed().as_nanos() as f64 / messages as f64, spread: None })
}

fn write_out<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    numbers: std::ops::Range<u64>,
) -> Result<(), MeasureError> {
    let mut reminder = Reminder::new();
    for number in numbers {
        let part = loop {
            match pump.free.pop_front() {
                Some(part) => break part,
                None => pump.poll()?,
            }
        };
        pump.write(size, part as usize * size, number);
        pump.send_part(1, size, TAG, part)?;
        if reminder.is_due() {
            pump.look()?;
        }
    }
    pump.await_sent()
}

fn read_in<P: Port>(
    pump: &mut Pump<'_, P>,
    size: usize,
    total: u64,
    window: u64,
) -> Result<(), MeasureError> {
    let mut posted = window.min(total);
    for part in 0..posted {
        pump.receive_part(0, size, TAG, part)?;
    }
    pump.signal(0)?;
    let mut read = 0;
    while read < total {
        pump.poll()?;
        while let Some(part) = pump.landed.pop_front() {
            // Which number it has is unknown: completions need not come in the order of their sends.
            pump.check(size, part as usize * size, None)?;
            read += 1;
            if posted < total {
                pump.receive_part(0, size, TAG, part)?;
                posted += 1;
            }
        }
    }
    pump.signal(0)
}

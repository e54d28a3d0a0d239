//! Completions as the cases look at them: good ones and errors alike.

use std::time::Duration;

use crate::socket::{IN, poll};
use kestrel_core::{
    address::Address,
    completion_queue::{CompletionQueue, Entry, ErrorEntry, QueueWait, ReadError},
    error::Errno,
    flags::Flags,
    transport::Provider,
};

/// A completion, good or bad.
#[derive(Debug)]
pub struct Done {
    pub context: u64,
    pub flags: Flags,
    pub length: u64,
    pub buffer: u64,
    pub data: u64,
    pub tag: u64,
    pub source: u64,
    /// The error, if it is one.
    pub errno: Option<Errno>,
    pub overflow: u64,
    pub reason: String,
    pub source_address: Option<Address>,
    /// The buffer of a safe operation.
    pub returned: Option<Vec<u8>>,
}

impl From<Entry> for Done {
    fn from(mut entry: Entry) -> Done {
        Done {
            context: entry.context,
            flags: entry.flags(),
            length: entry.length,
            buffer: entry.buffer,
            data: entry.data,
            tag: entry.tag,
            source: entry.source,
            errno: None,
            overflow: 0,
            reason: String::new(),
            source_address: None,
            returned: entry.take_buffer(),
        }
    }
}

impl From<ErrorEntry> for Done {
    fn from(mut error: ErrorEntry) -> Done {
        let returned = error.take_buffer();
        Done {
            context: error.context,
            flags: error.flags,
            length: error.length,
            buffer: error.buffer,
            data: error.data,
            tag: error.tag,
            source: error.source,
            errno: Some(error.errno),
            overflow: error.overflow,
            reason: error.reason,
            source_address: error.source_address,
            returned,
        }
    }
}

/// Reads up to `capacity` completions, 16 at most, and hands each over with its index.
pub fn read_each<P: Provider>(
    queue: &CompletionQueue<P>,
    capacity: usize,
    mut take: impl FnMut(usize, Entry),
) -> Result<usize, ReadError> {
    let mut entries: [Entry; 16] = Default::default();
    let count = queue.read(&mut entries[..capacity])?;
    for (index, entry) in entries[..count].iter_mut().enumerate() {
        take(index, std::mem::take(entry));
    }
    Ok(count)
}

/// Reads everything that `queue` has.
pub fn read_all<P: Provider>(queue: &CompletionQueue<P>, mut take: impl FnMut(Done)) {
    let mut entries: [Entry; 16] = Default::default();
    loop {
        match queue.read(&mut entries) {
            Ok(count) => {
                for entry in &mut entries[..count] {
                    take(std::mem::take(entry).into());
                }
            }
            Err(ReadError::ErrorAvailable) => {
                take(queue.read_error().expect("an error was announced").into());
            }
            Err(ReadError::Empty) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether a sleeper would be woken now.
pub fn is_rung<P: Provider>(wait: &QueueWait<P>) -> bool {
    let bells: Vec<_> = wait.descriptors().into_iter().map(|bell| (bell, IN)).collect();
    poll(&bells, Duration::ZERO).into_iter().any(|shown| shown != 0)
}

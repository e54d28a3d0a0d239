//! Events as C reads them. Reference: fi_eq(3), `fi_eq_read`.

use kestrel_core::event_queue::Event;

use crate::abi::attributes::EqEntry;

/// The bytes of an event as C reads it.
pub fn bytes_of(event: &Event) -> Vec<u8> {
    let entry = |fid: u64, context: u64, data: u64| {
        [fid, context, data].into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>()
    };
    match event {
        Event::MemoryRegionComplete { fid, context, data }
        | Event::AddressVectorComplete { fid, context, data }
        | Event::JoinComplete { fid, context, data } => entry(*fid, *context, *data),
        // Where a request's info is, is known when it is read.
        Event::ConnectionRequest { fid, data, .. } | Event::Connected { fid, data } => {
            let mut bytes = entry(*fid, 0, 0);
            bytes.truncate(2 * size_of::<u64>());
            bytes.extend(data);
            bytes
        }
        Event::Shutdown { fid } => entry(*fid, 0, 0)[..2 * size_of::<u64>()].to_vec(),
        Event::User { bytes, .. } => bytes.clone(),
    }
}

const _: () = assert!(size_of::<EqEntry>() == 3 * size_of::<u64>());

/// The least that there has to be room for: "Any application data … is limited to the buffer space
/// provided by the application".
pub fn least_of(event: &Event) -> usize {
    match event {
        Event::ConnectionRequest { .. } | Event::Connected { .. } => 2 * size_of::<u64>(),
        _ => bytes_of(event).len(),
    }
}

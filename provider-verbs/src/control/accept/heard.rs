//! How many senders of datagrams of one host are heard by an endpoint.
//!
//! Connections take buffers, of which there are so many. A sender of datagrams takes nothing but a TCP
//! connection, and a peer of the engine's; and whoever has the key can be as many as it has ports.

use std::{collections::HashMap, net::IpAddr};

/// Senders of one host that an endpoint hears; those whose last word of the handshake is on its way come
/// on top.
const HEARD_MAX: usize = 1024;

/// Those that are heard, by station and host.
#[derive(Default)]
pub(in crate::control) struct Heard(HashMap<(u64, IpAddr), usize>);

impl Heard {
    /// Whether one more may be.
    pub fn has_place(&self, station: u64, host: IpAddr) -> bool {
        self.0.get(&(station, host)).is_none_or(|count| *count < HEARD_MAX)
    }

    pub fn add(&mut self, station: u64, host: IpAddr) {
        *self.0.entry((station, host)).or_default() += 1;
    }

    pub fn remove(&mut self, station: u64, host: IpAddr) {
        if let Some(count) = self.0.get_mut(&(station, host)) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&(station, host));
            }
        }
    }
}

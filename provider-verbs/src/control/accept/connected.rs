//! How many connections of one host an endpoint has.
//!
//! Each is promised receive buffers, of which there are so many; and whoever has the key can be as many as it
//! has ports.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

/// Those that hold a share, by station and host: as long as the endpoint holds what they were promised.
#[derive(Default)]
pub(in crate::control) struct Connected(HashMap<(u64, IpAddr), Arc<()>>);

impl Connected {
    /// The share of one more, if the host has fewer than `most`.
    pub fn take(&mut self, station: u64, host: IpAddr, most: usize) -> Option<Arc<()>> {
        let count = |shares: &Arc<()>| Arc::strong_count(shares) - 1;
        self.0.retain(|_, shares| count(shares) > 0);
        let shares = self.0.entry((station, host)).or_default();
        (count(shares) < most).then(|| shares.clone())
    }
}

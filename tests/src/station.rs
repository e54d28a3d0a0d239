//! Stations without an endpoint, for tests that play a peer themselves.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use kestrel_core::transport::Service;
use kestrel_shm::{PoolMemory, Station, StationEvent, StationOptions};

use crate::scale::PATIENCE;

/// At an address that is chosen, without a key, with a pool of that many bytes; the kernel copies nothing.
pub fn options(pool_bytes: usize) -> StationOptions {
    StationOptions {
        address: None,
        default_ip: IpAddr::from([127, 0, 0, 1]),
        auth_key: Vec::new(),
        keys_follow: false,
        service: Service::Reliable,
        admits: None,
        incarnation: None,
        pool: PoolMemory::create(pool_bytes).unwrap(),
        connect_timeout: PATIENCE,
        cma: false,
    }
}

/// The next event, if there is one before patience ends.
pub fn next_event(station: &Station) -> Option<StationEvent> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(event) = station.next_event() {
            return Some(event);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    None
}

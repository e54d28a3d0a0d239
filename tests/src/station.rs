//! Stations without an endpoint, for tests that play a peer themselves.

use std::net::IpAddr;

use kestrel_core::transport::Service;
use kestrel_shm::{PoolMemory, StationOptions};

use crate::scale::PATIENCE;

/// At an address that is chosen, without a key, with a pool of that many bytes; the kernel copies nothing.
pub fn options(pool_bytes: usize) -> StationOptions {
    StationOptions {
        address: None,
        default_ip: IpAddr::from([127, 0, 0, 1]),
        auth_key: Vec::new(),
        keys_follow: false,
        service: Service::Reliable,
        incarnation: None,
        pool: PoolMemory::create(pool_bytes).unwrap(),
        connect_timeout: PATIENCE,
        cma: false,
    }
}

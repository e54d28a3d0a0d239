//! Beds on the mock.

use std::sync::Arc;

use kestrel_core::{
    domain::Sharing,
    mock::{MockOptions, MockProvider},
    transport::Limits,
};

use crate::bed::Bed;

/// A bed on a network of its own.
pub fn mock_bed(options: MockOptions) -> Bed<MockProvider> {
    Bed { provider: Arc::new(MockProvider::new(options)), sharing: Sharing::Exclusive }
}

/// What is long takes several packets, and there is no room for them.
pub fn tight() -> MockOptions {
    MockOptions {
        limits: Limits {
            short: 500,
            single: 500,
            fragment: 4096,
            prefix: 10_000,
            single_copy: 2000,
            single_copy_streaming: 5000,
            contested: false,
        },
        lane_packets: 3,
        room_bytes: 1_300,
        read_remote: false,
    }
}

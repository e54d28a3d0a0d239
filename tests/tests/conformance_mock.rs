//! The suite on the in-memory mock: roomy, tight, and with readable memory.

use std::sync::Arc;

use kestrel_core::{
    completion_queue::store::Sharing,
    mock::{MockOptions, MockProvider},
    transport::Limits,
};
use kestrel_tests::{bed::Bed, conformance};

fn bed(options: MockOptions, sharing: Sharing) -> Bed<MockProvider> {
    Bed { provider: Arc::new(MockProvider::new(options)), sharing }
}

mod roomy {
    use super::*;
    conformance!(bed(MockOptions::default(), Sharing::Exclusive));
}

mod tight {
    use super::*;

    /// Lanes of three packets, fragments of a few hundred bytes.
    fn options() -> MockOptions {
        MockOptions {
            limits: Limits { single: 600, fragment: 4096, prefix: 10_000 },
            lane_packets: 3,
            room_bytes: 1500,
            read_remote: false,
        }
    }

    conformance!(bed(options(), Sharing::Shared));
}

mod readable {
    use super::*;

    fn options() -> MockOptions {
        MockOptions { lane_packets: 5, read_remote: true, ..MockOptions::default() }
    }

    conformance!(bed(options(), Sharing::Shared));
}

//! The suite on shared memory, within this process.

use std::sync::Arc;

use kestrel_core::completion_queue::store::Sharing;
use kestrel_shm::{ShmOptions, ShmProvider};
use kestrel_tests::{bed::Bed, conformance};

fn bed(options: ShmOptions, sharing: Sharing) -> Bed<ShmProvider> {
    Bed { provider: Arc::new(ShmProvider::new(options).unwrap()), sharing }
}

mod exclusive {
    use super::*;
    conformance!(bed(ShmOptions::default(), Sharing::Exclusive));
    conformance!(datagrams over bed(ShmOptions::default(), Sharing::Exclusive));
}

mod shared {
    use super::*;

    fn options() -> ShmOptions {
        ShmOptions { chunk_bytes: 8 << 10, chunk_count: 8, cma: false, ..ShmOptions::default() }
    }

    conformance!(bed(options(), Sharing::Shared));
    conformance!(datagrams over bed(options(), Sharing::Shared));
}

//! The suite on the in-memory mock: roomy, tight, and with readable memory.

use std::{sync::Arc, time::Duration};

use kestrel_core::{
    completion_counter::{CompletionCounter, WaitError},
    completion_queue::{Entry, ReadError},
    domain::{DomainOptions, Sharing},
    mock::{MockOptions, MockProvider},
    transport::Limits,
};
use kestrel_tests::{
    bed::{Bed, Options},
    conformance, mock,
};

fn bed(options: MockOptions, sharing: Sharing) -> Bed<MockProvider> {
    Bed { provider: Arc::new(MockProvider::new(options)), sharing }
}

mod roomy {
    use super::*;
    conformance!(bed(MockOptions::default(), Sharing::Exclusive));
    conformance!(datagrams over bed(MockOptions::default(), Sharing::Exclusive));
    conformance!(multicast over bed(MockOptions::default(), Sharing::Exclusive));
}

mod tight {
    use super::*;

    /// Lanes of three packets, fragments of a few hundred bytes, messages that are seen while they are
    /// copied in.
    fn options() -> MockOptions {
        MockOptions {
            limits: Limits { short: 60, single: 600, ..mock::tight().limits },
            room_bytes: 1500,
            ..mock::tight()
        }
    }

    conformance!(bed(options(), Sharing::Shared));
    conformance!(datagrams over bed(options(), Sharing::Shared));
    conformance!(multicast over bed(options(), Sharing::Shared));
}

mod readable {
    use super::*;

    fn options() -> MockOptions {
        MockOptions { lane_packets: 5, read_remote: true, ..MockOptions::default() }
    }

    conformance!(bed(options(), Sharing::Shared));
    conformance!(datagrams over bed(options(), Sharing::Shared));
    conformance!(multicast over bed(options(), Sharing::Shared));
}

/// How often a queue's reader and a counter's waiter, who wait in vain, have slept.
fn sleeps_in_vain(spin: Duration) -> [usize; 2] {
    let wait = Some(Duration::from_millis(10));
    let domain = DomainOptions { spin, ..DomainOptions::default() };
    let bed = bed(MockOptions::default(), Sharing::Exclusive);
    let node = bed.world_with(1, &Options { domain, ..Options::default() }).nodes.remove(0);
    let counter = CompletionCounter::open(&node.domain);
    let before = MockProvider::sleeps();
    let read = node.receives.read_blocking(&mut [Entry::default()], wait);
    assert_eq!(read, Err(ReadError::Empty));
    let between = MockProvider::sleeps();
    assert_eq!(counter.wait(1, wait), Err(WaitError::TimedOut { threshold: 1, value: 0 }));
    [between - before, MockProvider::sleeps() - between]
}

#[test]
fn a_wait_spins_as_long_as_its_domain_says() {
    assert_eq!(sleeps_in_vain(Duration::from_secs(60)), [0, 0]);
    // A thread that is kept away for the whole wait has no time left to sleep.
    let slept: Vec<_> = (0..5).map(|_| sleeps_in_vain(Duration::ZERO)).collect();
    assert!(slept.iter().any(|slept| slept.iter().all(|&times| times > 0)), "{slept:?}");
}

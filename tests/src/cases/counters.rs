//! Counters. Reference: fi_cntr(3).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{
    completion_counter::{CompletionCounter, WaitError},
    completion_queue::{CompletionQueue, Entry, ErrorEntry, ReadError},
    domain::Sharing,
    endpoint::{Endpoint, EndpointOptions},
    error::{Errno, HasErrno},
    flags::Flags,
    transport::Provider,
    triggered::Threshold,
};

use crate::bed::{Bed, Memory, Options, Receive, open_vector};
use crate::completion::read_all;
use crate::one_sided::{BOTH, expose};
use crate::process::woken;
use crate::scale::PATIENCE;

struct Counted<P: Provider> {
    endpoint: Arc<Endpoint<P>>,
    sends: Arc<CompletionCounter<P>>,
    receives: Arc<CompletionCounter<P>>,
    queue: Arc<CompletionQueue<P>>,
}

/// An endpoint that is its own peer, and reports successes in its queue if that is asked for.
fn counted<P: Provider>(bed: &Bed<P>) -> Counted<P> {
    counted_and_reported(bed, Flags::SELECTIVE_COMPLETION)
}

fn counted_and_reported<P: Provider>(bed: &Bed<P>, reported: Flags) -> Counted<P> {
    let domain = bed.domain(Default::default());
    let mut options = EndpointOptions::default();
    options.capabilities |= Flags::TRIGGER;
    let endpoint = Endpoint::open(&domain, options).unwrap();
    let (sends, receives) = (CompletionCounter::open(&domain), CompletionCounter::open(&domain));
    let queue = CompletionQueue::open(&domain, 0).unwrap();
    endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV | reported).unwrap();
    endpoint.bind_counter(&sends, Flags::SEND).unwrap();
    endpoint.bind_counter(&receives, Flags::RECV).unwrap();
    let vector = open_vector();
    endpoint.bind_address_vector(&vector).unwrap();
    vector.insert_one(endpoint.address()).unwrap();
    endpoint.enable().unwrap();
    Counted { endpoint, sends, receives, queue }
}

pub fn every_success_counts_once<P: Provider>(bed: &Bed<P>) {
    let Counted { endpoint, sends, receives, .. } = counted(bed);
    let mut expected = 0;
    // Suppressed, injected, short and long: to itself.
    for length in [0, 8, 300, 5_000, 300_000] {
        for inject in [true, false] {
            if inject && length > endpoint.options().inject_size {
                continue;
            }
            endpoint.receive(vec![0; length], 0, 1).unwrap();
            if inject {
                endpoint.inject(&vec![1; length], 0).unwrap();
            } else {
                endpoint.send(vec![1; length], 0, 2).unwrap();
            }
            expected += 1;
            receives.wait(expected, Some(PATIENCE)).unwrap();
            sends.wait(expected, Some(PATIENCE)).unwrap();
        }
    }
    assert_eq!((sends.read(), receives.read()), (expected, expected));
    assert_eq!((sends.counter().read_error(), receives.counter().read_error()), (0, 0));
    // A multi-receive buffer counts its messages, not its release.
    endpoint.receive_multi(vec![0; 300], 0, 3).unwrap();
    for _ in 0..3 {
        endpoint.inject(&[1; 100], 0).unwrap();
    }
    receives.wait(expected + 3, Some(PATIENCE)).unwrap();
    for _ in 0..20 {
        receives.read();
    }
    assert_eq!(receives.read(), expected + 3);
}

/// A peek receives nothing, and counts neither way, also where it waits for a counter in vain. A claim
/// that discards completes as a receive does.
pub fn a_discarded_claim_counts_and_a_peek_does_not<P: Provider>(bed: &Bed<P>) {
    let Counted { endpoint, sends, receives, queue } = counted(bed);
    let post = |flags| {
        let receive = Receive { tag: Some((5, 0)), context: 7, flags, ..Receive::default() };
        endpoint.post_receive(receive.post()).unwrap();
        let mut told = None;
        read_all(&queue, |done| told = Some(done.errno));
        told
    };
    let counts = || (receives.read(), receives.counter().read_error());
    for ends in [Flags::DISCARD, Flags::CLAIM] {
        assert_eq!(post(Flags::PEEK | ends), Some(Some(Errno::NOMSG)));
        endpoint.inject_tagged(&[1; 8], 0, 5).unwrap();
        let start = Instant::now();
        while post(Flags::PEEK | ends) != Some(None) {
            assert!(start.elapsed() < PATIENCE, "in vain: the message arrives");
        }
        assert_eq!(counts(), (0, 0), "peeks count as nothing");
    }
    let receive =
        Receive { tag: Some((6, 0)), context: 8, flags: Flags::PEEK, ..Receive::default() };
    let never = Threshold { counter: sends, value: 1 << 40, work: None };
    endpoint.trigger_receive(receive.post(), &never).unwrap();
    endpoint.cancel(8).unwrap();
    read_all(&queue, |done| assert_eq!(done.bad(Errno::CANCELED).context, 8));
    assert_eq!(counts(), (0, 0), "a peek that is canceled counts as nothing");
    assert_eq!(
        post(Flags::CLAIM | Flags::DISCARD),
        None,
        "selective completions are not asked for"
    );
    assert_eq!(counts(), (1, 0));
}

/// An inject call "behaves as if the FI_INJECT transfer flag were set" (fi_msg(3)), and has the other
/// default flags as any call has.
pub fn what_is_injected_counts_at_its_default_level<P: Provider>(bed: &Bed<P>) {
    let Counted { endpoint, sends, receives, queue } = counted(bed);
    let level = Flags::MATCH_COMPLETE | Flags::COMPLETION;
    endpoint.set_default_flags(Flags::TRANSMIT | level).unwrap();
    endpoint.inject_tagged(b"late", 0, 5).unwrap();
    for _ in 0..100 {
        assert_eq!(sends.read(), 0, "nobody has matched it");
    }
    endpoint.receive_tagged(vec![0; 4], 0, 5, 0, 1).unwrap();
    sends.wait(1, Some(PATIENCE)).unwrap();
    receives.wait(1, Some(PATIENCE)).unwrap();
    let mut entries: [Entry; 4] = Default::default();
    assert_eq!(queue.read(&mut entries), Ok(1), "the receive's");
    assert_eq!(entries[0].context, 1);
    assert_eq!(queue.read(&mut entries), Err(ReadError::Empty), "it writes no entry");
}

pub fn errors_count_apart_and_end_waits<P: Provider>(bed: &Bed<P>) {
    let Counted { endpoint, receives, .. } = counted(bed);
    endpoint.receive(vec![0; 4], 0, 1).unwrap();
    endpoint.inject(&[1; 8], 0).unwrap();
    let ended = receives.wait(1, Some(PATIENCE));
    assert_eq!(ended, Err(WaitError::Failed { errors: 1 }));
    assert_eq!((receives.read(), receives.counter().read_error()), (0, 1));
    endpoint.receive(vec![0; 4], 0, 5).unwrap();
    endpoint.cancel(5).unwrap();
    assert_eq!((receives.read(), receives.counter().read_error()), (0, 2));
}

/// fi_cq(3), of `fi_cq_readerr`: "If no error completions are available to read from the CQ, returns
/// -FI_EAGAIN". Here nobody has read the entries in front of it, and the reads after it find them.
pub fn an_error_is_there_when_its_counter_tells_of_it<P: Provider>(bed: &Bed<P>) {
    let Counted { endpoint, receives, queue, .. } = counted_and_reported(bed, Flags::empty());
    for (context, room) in [(1, 8), (2, 4), (3, 8), (4, 4)] {
        endpoint.receive(vec![0; room], 0, context).unwrap();
        endpoint.inject(&[1; 8], 0).unwrap();
        let start = Instant::now();
        while receives.read() + receives.counter().read_error() < context {
            assert!(start.elapsed() < PATIENCE);
        }
    }
    let context = |error: ErrorEntry| (error.context, error.errno);
    assert_eq!(queue.read_error().map(context), Some((2, Errno::TRUNC)));
    let mut entries: [Entry; 4] = Default::default();
    assert_eq!(queue.read(&mut entries), Ok(2), "what stands between the errors that are left");
    assert_eq!((entries[0].context, entries[1].context), (1, 3));
    assert_eq!(queue.read(&mut entries), Err(ReadError::ErrorAvailable));
    assert_eq!(queue.read_error().map(context), Some((4, Errno::TRUNC)));
    assert!(queue.read_error().is_none());
    assert_eq!(queue.read(&mut entries), Err(ReadError::Empty));
}

pub fn a_wait_times_out<P: Provider>(bed: &Bed<P>) {
    let Counted { receives, .. } = counted(bed);
    for timeout in [0, 5] {
        let outcome = receives.wait(1, Some(Duration::from_millis(timeout)));
        assert_eq!(outcome, Err(WaitError::TimedOut { threshold: 1, value: 0 }));
    }
    receives.wait(0, None).unwrap();
}

pub fn a_bound_counter_does_not_close<P: Provider>(bed: &Bed<P>) {
    let Counted { endpoint, sends, receives, .. } = counted(bed);
    for counter in [&sends, &receives] {
        assert_eq!(counter.close().unwrap_err().errno(), Errno::BUSY);
    }
    endpoint.close();
    sends.close().unwrap();
    receives.close().unwrap();
}

/// A counter that is bound to a region drives the domain from then on, also for who sleeps already.
/// One of another domain would drive that.
pub fn who_sleeps_drives_what_the_counter_is_bound_to<P: Provider>(bed: &Bed<P>) {
    let world = bed.world_with(2, &Options::default());
    let [target, writer] = &world.nodes[..] else { unreachable!() };
    let memory = Memory::zeroed(64);
    let region = expose(target, &memory, BOTH, 7);
    let stranger = CompletionCounter::open(&writer.domain);
    let refused = target.domain.bind_memory_counter(&region, &stranger, Flags::REMOTE_WRITE);
    assert_eq!(refused.unwrap_err().errno(), Errno::DOMAIN);
    stranger.close().unwrap();
    if bed.sharing == Sharing::Exclusive {
        return;
    }
    let counter = CompletionCounter::open(&target.domain);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| woken(|| counter.wait(1, Some(PATIENCE))));
        std::thread::sleep(Duration::from_millis(20));
        target.domain.bind_memory_counter(&region, &counter, Flags::REMOTE_WRITE).unwrap();
        writer.endpoint.write(vec![5; 64], 0, region.base(), region.key(), 1).unwrap();
        while !sleeper.is_finished() {
            writer.poll();
        }
        assert_eq!(sleeper.join().unwrap(), Ok(()));
    });
    target.domain.close_memory(&region).unwrap();
}

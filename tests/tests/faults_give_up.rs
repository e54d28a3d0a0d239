//! Messages that are given up while the peer's adapter reads them where they lie, lent by their region, or by a
//! registration that is kept: the buffers are the application's again, and what it writes there reaches nobody. On the fake.

use std::sync::Arc;

use kestrel_core::{
    domain::{Domain, DomainOptions, Sharing},
    endpoint::Endpoint,
    error::Errno,
    flags::Flags,
    info::MemoryRegionMode,
    memory_region::MemoryRegion,
    operation::SendPost,
};
use kestrel_tests::{
    bed::{Bed, Memory, Receive, Send, pattern, same},
    completion::Done,
    contexts::{Portal, counts, next},
    fake::fake_bed,
    link::{self, Driven, End, Listener},
    one_sided::{Rma, expose_in, segment},
    scale::skip,
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric},
};

type Fake = RcProvider<FakeDevice>;

const LENGTH: usize = 100_000;

/// What lets the receiver read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The region that it lies in.
    Region,
    /// A registration that the endpoint keeps.
    Kept,
}

/// A message that its receiver may read, and the place that it goes to.
struct Lent {
    by: By,
    bed: Bed<Fake>,
    fabric: FakeFabric,
    /// The sender's, whose keys are the application's.
    domain: Arc<Domain<Fake>>,
    source: Memory,
    into: Memory,
    region: Arc<MemoryRegion>,
}

impl Lent {
    fn new(by: By) -> Lent {
        let options = VerbsOptions { fetch_min: LENGTH, ..VerbsOptions::default() };
        let (bed, fabric) = fake_bed(options);
        let bed = Bed { sharing: Sharing::Shared, ..bed };
        let memory_region_mode = MemoryRegionMode::ALLOCATED;
        let domain = bed.domain(DomainOptions { memory_region_mode, ..DomainOptions::default() });
        let (source, into) = (Memory::from(pattern(5, LENGTH)), Memory::zeroed(LENGTH));
        let access = Flags::SEND | Flags::REMOTE_READ;
        let region = expose_in(&domain, &[source.piece()], access, 1, Flags::empty()).unwrap();
        Lent { by, bed, fabric, domain, source, into, region }
    }

    fn send(&self, from: &Endpoint<Fake>, to: u64) {
        let send = Send { pieces: self.source.all(), flags: Flags::COMPLETION, ..Send::default() };
        let region = self.region.descriptor().filter(|_| self.by == By::Region);
        from.post_send(SendPost { region, ..send.post(to) }).unwrap();
    }

    fn receive(&self, at: &Endpoint<Fake>) {
        let receive =
            Receive { pieces: self.into.all(), flags: Flags::COMPLETION, ..Receive::default() };
        at.post_receive(receive.post()).unwrap();
    }

    /// The read of a further message has begun when `give_up` is called, and goes on when the buffers are
    /// the application's. What became of the receive: `end` has it.
    #[track_caller]
    fn gives_up(&self, poll: impl Fn(), give_up: impl FnOnce(), end: impl FnOnce() -> Done) {
        assert_eq!(self.fabric.tally().reached, 1, "one went by the device");
        let registered = self.fabric.tally().registered;
        (0..50).for_each(|_| poll());
        give_up();
        assert!(self.fabric.tally().registered < registered, "nobody reads there any more");
        self.source.fill(9);
        self.into.fill(7);
        self.fabric.hold(false);
        let ended = end();
        assert!(ended.errno.is_some(), "nobody sent that");
        same(&self.into.bytes(), &[7; LENGTH], "nothing of what is the application's again");
        self.domain.close_memory(&self.region).unwrap();
    }
}

/// Where the kernel tells when memory is unmapped.
fn by_kept(name: &str, test: fn(By)) {
    match kestrel_verbs::can_keep_registrations() {
        Ok(()) => test(By::Kept),
        Err(reason) => skip(name, &reason),
    }
}

/// "All canceled completions will be written before fi_shutdown returns" (fi_cm(3)).
#[test]
fn a_shutdown_takes_back_what_its_region_lent() {
    a_shutdown_takes_back(By::Region);
}

#[test]
fn a_shutdown_takes_back_what_a_kept_registration_lent() {
    by_kept("a_shutdown_takes_back", a_shutdown_takes_back);
}

fn a_shutdown_takes_back(by: By) {
    let lent = Lent::new(by);
    let listener = Listener::listening(&lent.bed);
    let endpoint = Endpoint::open(&lent.domain, link::options()).unwrap();
    let caller = End::over(&lent.domain, endpoint);
    caller.endpoint.connect(listener.passive.address(), &[]).unwrap();
    let acceptor = End::acceptor(&lent.bed, listener.take(&[&caller]));
    acceptor.endpoint.accept(&[]).unwrap();
    caller.connected(&[&acceptor, &listener]);
    acceptor.connected(&[&caller, &listener]);
    let send = || {
        lent.send(&caller.endpoint, 0);
        lent.receive(&acceptor.endpoint);
    };
    send();
    caller.done(&[&acceptor]).good();
    acceptor.done(&[&caller]).good();
    lent.fabric.hold(true);
    send();
    let poll = || {
        caller.drive();
        acceptor.drive();
    };
    let give_up = || {
        caller.endpoint.shutdown().unwrap();
        assert_eq!(caller.failed_already().errno, Some(Errno::CANCELED));
    };
    lent.gives_up(poll, give_up, || acceptor.done(&[&caller]));
}

/// "Outstanding operations posted to the endpoint when fi_close is called will be discarded"
/// (fi_endpoint(3)): of one context of a pair, and the other one goes on.
#[test]
fn a_context_that_closes_takes_back_what_its_region_lent() {
    a_context_that_closes_takes_back(By::Region);
}

#[test]
fn a_context_that_closes_takes_back_what_a_kept_registration_lent() {
    by_kept("a_context_that_closes_takes_back", a_context_that_closes_takes_back);
}

fn a_context_that_closes_takes_back(by: By) {
    let lent = Lent::new(by);
    let ours = Portal::on(&lent.domain, counts(1, 1));
    let theirs = Portal::open(&lent.bed, counts(1, 1));
    let all = [&ours, &theirs];
    let [our_address, their_address] = all.map(|portal| portal.endpoint.address());
    ours.knows(&[our_address, their_address]);
    theirs.knows(&[their_address, our_address]);
    let send = || {
        lent.send(&ours.transmit[0].endpoint, 1);
        lent.receive(&theirs.receive[0].endpoint);
    };
    send();
    next(&ours.transmit[0], &all).good();
    next(&theirs.receive[0], &all).good();
    lent.fabric.hold(true);
    send();
    let poll = || all.iter().for_each(|portal| portal.poll());
    let give_up = || ours.transmit[0].endpoint.close();
    lent.gives_up(poll, give_up, || next(&theirs.receive[0], &all));
    let bytes = pattern(3, 300);
    ours.receive[0].endpoint.receive(vec![0; 300], 1, 8).unwrap();
    theirs.transmit[0].endpoint.send(bytes.clone(), 1, 9).unwrap();
    same(&next(&ours.receive[0], &all).good().returned.unwrap(), &bytes, "the other one goes on");
}

/// A receive context closes while the window that its message asked for is not there yet: the context that
/// is left has it.
#[test]
fn a_window_that_comes_behind_the_close_of_its_context_is_the_others() {
    let lent = Lent::new(By::Region);
    let theirs = Portal::on(&lent.domain, counts(1, 1));
    let ours = Portal::open(&lent.bed, counts(1, 1));
    let all = [&ours, &theirs];
    let addresses = all.map(|portal| portal.endpoint.address());
    all.into_iter().for_each(|portal| portal.knows(&addresses));
    for (from, to, peer) in [(&ours, &theirs, 1), (&theirs, &ours, 0)] {
        to.receive[0].endpoint.receive(vec![0; 8], 1 - peer, 1).unwrap();
        from.transmit[0].endpoint.send(vec![1; 8], peer, 2).unwrap();
        next(&from.transmit[0], &all).good();
        next(&to.receive[0], &all).good();
    }
    lent.send(&theirs.transmit[0].endpoint, 0);
    (0..50).for_each(|_| all.iter().for_each(|portal| portal.poll()));
    let before = lent.fabric.tally().queue_pairs;
    lent.receive(&ours.receive[0].endpoint);
    (0..50).for_each(|_| ours.poll());
    assert_eq!(lent.fabric.tally().queue_pairs - before, 1, "it has asked for a window");
    ours.receive[0].endpoint.close();
    assert!(next(&theirs.transmit[0], &all).errno.is_some(), "nobody receives it");
    let (byte, mut reads) = (Memory::zeroed(1), 0);
    let segments = [segment(&lent.region, 0, 1)];
    while lent.fabric.tally().reached == 0 {
        let flags = Flags::COMPLETION;
        let read = Rma { pieces: byte.all(), segments: &segments, flags, ..Rma::default() };
        ours.transmit[0].endpoint.post_read(read.post(1)).unwrap();
        next(&ours.transmit[0], &all).good();
        reads += 1;
        assert!(reads < 100, "in vain: a window");
    }
    lent.domain.close_memory(&lent.region).unwrap();
}

//! The control thread is held up, as where its process is stopped, or the kernel looks for the hardware
//! addresses of hosts that are not there: what lies there when it goes on has come in time.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use crate::common::{
    FakeTransport, KEY, adopt, event, provider_with,
    raw::{Raw, signed},
    raw_managed, wait_for_listener, wait_until,
};
use kestrel_core::{
    address::Address,
    config::ConnectBy,
    transport::{Provider, Transport, TransportEvent},
};
use kestrel_verbs::{
    RcProvider, VerbsOptions,
    fake::{FakeDevice, FakeFabric, FakeOptions},
    manager::{Happening, ManagedId},
    testing::wire::{Message, RejectReason},
};

/// Longer than a busy machine takes from one step of a test to the next.
const WAIT: Duration = Duration::from_secs(3);

/// A provider whose timers are short, and an endpoint.
fn hasty(fabric: &FakeFabric) -> (RcProvider<FakeDevice>, FakeTransport) {
    let (connect_by, connect_timeout, confirm_wait) = (ConnectBy::RdmaCm, WAIT, WAIT);
    let options =
        VerbsOptions { connect_by, connect_timeout, confirm_wait, ..VerbsOptions::default() };
    let provider = provider_with(fabric, FakeOptions::default(), options);
    let victim = provider.open(None, KEY).unwrap();
    wait_for_listener(&victim);
    (provider, victim)
}

/// Has somebody ask for a path that the thread looks for until [`go_on`].
fn hold_up(provider: &RcProvider<FakeDevice>, victim: &FakeTransport) -> Raw {
    provider.device().hold_paths(true);
    let mut raw = Raw::connect(victim.address());
    let nonce = raw.greeting();
    raw.say(&signed(raw.hello(victim.address()), KEY, &nonce));
    wait_until("somebody who looks for a path", || provider.device().seeks_path());
    raw
}

/// The thread goes on when timers have run out that were set before `since`.
fn go_on(provider: &RcProvider<FakeDevice>, since: Instant) {
    std::thread::sleep((WAIT + Duration::from_millis(200)).saturating_sub(since.elapsed()));
    provider.device().hold_paths(false);
}

#[test]
fn a_last_word_that_lies_there_counts() {
    let (provider, mut victim) = hasty(&FakeFabric::default());
    let mut raw = Raw::connect(victim.address());
    let hello = raw.hello(victim.address());
    raw.introduce(hello);
    let since = Instant::now();
    let _other = hold_up(&provider, &victim);
    raw.say(&Message::Confirm.encode());
    go_on(&provider, since);
    adopt(&mut victim, 3);
    drop(raw);
    assert!(matches!(event(&mut victim), TransportEvent::Lost { peer: 3, .. }));
}

#[test]
fn a_last_word_through_the_manager_that_lies_there_counts() {
    let fabric = FakeFabric::default();
    let (provider, mut victim) = hasty(&fabric);
    let raw = raw_managed::Raw::on(&fabric, victim.address().socket_addr());
    let (id, answered) = raw.ask(&raw.question().encode(KEY, &raw.parties()));
    assert!(matches!(answered, Happening::Answered { .. }));
    let since = Instant::now();
    let _other = hold_up(&provider, &victim);
    id.establish().unwrap();
    go_on(&provider, since);
    adopt(&mut victim, 3);
    drop(id);
    assert!(matches!(event(&mut victim), TransportEvent::Lost { peer: 3, .. }));
}

/// No host answers for its GID. Looking for it again at once would hold all others up once more.
#[test]
fn where_nobody_was_is_not_looked_for_again_at_once() {
    let fake = FakeOptions { reaches_nobody: true, ..FakeOptions::default() };
    let provider = provider_with(&FakeFabric::default(), fake, VerbsOptions::default());
    let victim = provider.open(None, KEY).unwrap();
    let is_refused =
        |mut raw: Raw| matches!(raw.read(), Some((Message::Reject(RejectReason::Path), _)));
    let raw = hold_up(&provider, &victim);
    std::thread::sleep(Duration::from_millis(200));
    provider.device().hold_paths(false);
    assert!(is_refused(raw));
    provider.device().hold_paths(true);
    let ask_from = |gid| {
        let mut raw = Raw::connect(victim.address());
        let (nonce, mut hello) = (raw.greeting(), raw.hello(victim.address()));
        hello.end.gid = gid;
        raw.say(&signed(hello, KEY, &nonce));
        raw
    };
    assert!(is_refused(ask_from([0; 16])));
    assert!(!provider.device().seeks_path(), "it is looked for");
    let other = ask_from([7; 16]);
    wait_until("another one is looked for", || provider.device().seeks_path());
    provider.device().hold_paths(false);
    assert!(is_refused(other));
}

/// Who connects has an answer, although its time ran out meanwhile.
#[test]
fn an_answer_that_lies_there_counts() {
    let fabric = FakeFabric::default();
    let options = VerbsOptions { connect_timeout: WAIT, ..VerbsOptions::default() };
    let provider = provider_with(&fabric, FakeOptions::default(), options);
    let mut victim = provider.open(None, KEY).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to: SocketAddr = listener.local_addr().unwrap();
    let since = Instant::now();
    victim.connect(0, Address::from(to));
    let (mut socket, _) = listener.accept().unwrap();
    socket.write_all(&Message::Greeting([1; 32]).encode()).unwrap();
    assert!(socket.read(&mut [0; 256]).unwrap() > 0, "a HELLO");
    let _other = hold_up(&provider, &victim);
    socket.write_all(&Message::Reject(RejectReason::Key).encode()).unwrap();
    go_on(&provider, since);
    match event(&mut victim) {
        TransportEvent::Failed { peer: 0, reason } => {
            assert!(reason.reason.contains("the keys differ"), "{}", reason.reason);
        }
        other => panic!("{other:?}"),
    }
}

//! Forked children that drop what they inherited disturb nobody.

#[path = "fake/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{connect, managed_provider, open, provider, stream};
use kestrel_core::transport::{Provider, Transport};
use kestrel_tests::fork::{fork, wait};
use kestrel_verbs::{
    RcProvider,
    fake::{FakeDevice, FakeFabric, FakeOptions},
};

#[test]
fn a_child_that_drops_an_endpoint_does_not_close_the_parents() {
    for make in [provider, managed_provider] {
        let fabric = FakeFabric::default();
        fork_with(&fabric, make(&fabric, FakeOptions::default()));
    }
}

fn fork_with(fabric: &FakeFabric, provider: RcProvider<FakeDevice>) {
    let (mut one, mut other) = (open(&provider), open(&provider));
    connect(&mut one, &mut other, 0);
    assert!(!provider.forked());
    let before = fabric.tally();
    let mut inherited = Some((provider, one, other));
    let child = fork(|| {
        let (provider, one, other) = inherited.take().expect("what was inherited");
        let start = Instant::now();
        let forked = provider.forked();
        drop((one, other));
        drop(provider);
        // All of it is the parent's: nothing is waited for, nothing is destroyed.
        let untouched = fabric.tally() == before;
        i32::from(!(forked && untouched && start.elapsed() < Duration::from_secs(5)))
    });
    assert_eq!(wait(child), 0);
    let (_provider, mut one, mut other) = inherited.expect("the child took its own copy");
    assert!(one.event().is_none() && other.event().is_none());
    stream(&mut one, &mut other, 0, 100);
}

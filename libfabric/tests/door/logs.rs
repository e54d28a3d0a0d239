//! What is refused is told: an error code, and a line of libfabric's log (FI_LOG_LEVEL=info) that
//! says what was asked and why not.

use std::{io::Read, process::Stdio, ptr::null_mut};

use kestrel_tests::process::{CHILD_VARIABLE, child_role};

use crate::{
    code,
    host::host,
    nodes::find_with,
    world::{World, close, info},
};

/// What libfabric logs of kestrel while a process of its own has this role.
fn log_of(role: &str) -> String {
    let own = std::env::current_exe().expect("a test binary knows its path");
    let mut child = std::process::Command::new(own)
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, role)
        .envs([("FI_LOG_LEVEL", "info"), ("FI_LOG_PROV", "kestrel")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child starts");
    let (mut log, mut errors) = (Vec::new(), child.stderr.take().expect("its errors are a pipe"));
    errors.read_to_end(&mut log).unwrap();
    let log = String::from_utf8_lossy(&log).into_owned();
    assert!(child.wait().unwrap().success(), "{log}");
    log
}

#[track_caller]
fn has(log: &str, words: &[&str]) {
    let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(found, "no line has {words:?} in:\n{log}");
}

/// What [`log_of`] starts.
pub fn child() {
    match child_role().unwrap_or_default().first().map(String::as_str) {
        Some("hints") => ask_too_much(),
        Some("closed") => call_what_is_not_there(),
        _ => {}
    }
}

fn ask_too_much() {
    let host = host("child").expect("it was there a moment ago");
    // SAFETY: hints have all attributes.
    let refused = info(host, |hints| unsafe {
        (*hints.tx_attr).inject_size = 1 << 40;
        (*hints.domain_attr).threading = 4_000_000;
        (*hints.domain_attr).av_type = 4_000_001;
        (*hints.ep_attr).kind = 77;
    });
    assert_eq!(refused, Err(code::NODATA));
    let found = find_with(host, (Some("::1"), None), 0, |hints| hints.addr_format = 2);
    assert_eq!(found, Err(code::NODATA));
}

/// Every hint that cannot be met is told, also beside others that no version of the interface knows.
#[test]
fn every_hint_that_cannot_be_met_is_logged() {
    if host("every_hint_that_cannot_be_met_is_logged").is_none() {
        return;
    }
    let log = log_of("hints");
    has(&log, &["nothing was chosen", "domain_attr->threading", "4000000"]);
    has(&log, &["nothing was chosen", "domain_attr->av_type", "4000001"]);
    has(&log, &["nothing was chosen", "ep_attr->type", "77"]);
    has(&log, &["was not chosen", "tx_attr->inject_size", "1099511627776"]);
    has(&log, &["fi_getinfo", "the hints cannot be met"]);
    has(&log, &["fi_getinfo", "no address of FI_SOCKADDR_IN"]);
}

fn call_what_is_not_there() {
    let host = host("child").expect("it was there a moment ago");
    let mut world = World::new(host, 1);
    let node = world.nodes.pop().expect("one was opened");
    let counter = {
        let mut counter = null_mut();
        // SAFETY: the domain is open; zeroes are the defaults.
        unsafe {
            let (mut attr, open) = (std::mem::zeroed(), (*(*world.domain).ops).cntr_open);
            assert_eq!(open(world.domain, &raw mut attr, &raw mut counter, null_mut()), 0);
        }
        counter
    };
    // SAFETY: the endpoint is open; what it has not refuses whatever is passed.
    unsafe {
        let barrier = (*(*node.ep).collective).barrier;
        let none = null_mut();
        assert_eq!(barrier(node.ep, 0, none) as i32, code::NOSYS);
    }
    assert_eq!([close(node.ep), close(node.cq), close(counter)], [0; 3]);
    assert_eq!(close(node.ep), code::BADF);
    // SAFETY: closed objects are remembered.
    unsafe {
        let tsend = (*(*node.ep).tagged).send;
        assert_eq!(tsend(node.ep, null_mut(), 0, null_mut(), 0, 0, null_mut()) as i32, code::BADF);
        assert_eq!(((*(*node.cq).ops).read)(node.cq, null_mut(), 0) as i32, code::BADF);
        assert_eq!(((*(*counter).ops).read)(counter), 0, "there is no code to answer");
    }
}

/// Calls that an object does not have, and those on one that is closed.
#[test]
fn calls_of_what_is_not_there_are_logged() {
    if host("calls_of_what_is_not_there_are_logged").is_none() {
        return;
    }
    let log = log_of("closed");
    has(&log, &["fi_ops_collective.barrier of endpoint", "no such call"]);
    has(&log, &["fi_ops.close of endpoint", "closed"]);
    has(&log, &["fi_ops_tagged.send of endpoint", "closed"]);
    has(&log, &["fi_ops_cq.read of completion queue", "closed"]);
    has(&log, &["fi_ops_cntr.read of counter", "closed"]);
}

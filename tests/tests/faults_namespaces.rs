//! Peers in other namespaces: messages flow where the kernel lets them, and the
//! error says why where it does not.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use kestrel_core::error::Errno;
use kestrel_tests::{
    node::{Done, Node, Wait, says_gone},
    process::{Peer, child_role, listen_to_parent, say},
    scale::{PATIENCE, skip, takes_less_than},
    traffic::{Mix, Operation, Traffic},
};

#[test]
fn child() {
    let Some(role) = child_role() else { return };
    assert_eq!(role[0], "talker");
    talk(role.get(1).map(String::as_str));
}

fn mix() -> Mix {
    Mix { backlog: 0, ..Mix::default() }
}

/// Exchanges messages with one peer, told by role or by the parent, and says what became of them.
fn talk(to: Option<&str>) {
    let orders = listen_to_parent();
    let node = Node::open();
    say(&format!("ready {}", node.address().socket_addr()));
    let to = to.map_or_else(|| orders.recv().unwrap(), str::to_owned);
    let mut traffic = Traffic::new(node.insert_text(to.trim()), 1, 5, mix());
    let (mut told, mut failed) = (false, false);
    loop {
        // One that has failed says so, and is silent from then on.
        if !failed {
            traffic.post(&node);
        }
        while let Some(done) = node.poll() {
            assert!(traffic.take(done).is_none());
        }
        if let Some((_, error)) = traffic.failed.first()
            && !failed
        {
            failed = true;
            say(&format!("failed {} {}", error.errno.0, error.reason));
        }
        if traffic.received > 100 && !told {
            told = true;
            say("received");
        }
    }
}

/// A talker under `unshare` with these flags, if they are permitted here.
fn unshared(name: &str, flags: &[&str], to: &str) -> Option<Peer> {
    let mut wrapper = vec!["unshare"];
    wrapper.extend(flags);
    let reason = match Command::new("unshare").args(flags).arg("true").output() {
        Ok(output) if output.status.success() => {
            return Some(Peer::start_under(&wrapper, format!("talker {to}").trim()));
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    skip(name, &reason);
    None
}

/// Exchanges messages with a peer until both have enough.
fn exchange(node: &Node, peer: &mut Peer, traffic: &mut Traffic) {
    let deadline = Instant::now() + PATIENCE;
    let mut theirs = false;
    while !theirs || traffic.received < 100 {
        assert!(Instant::now() < deadline, "{}", traffic.describe());
        traffic.post(node);
        while let Some(done) = node.poll() {
            assert!(traffic.take(done).is_none());
        }
        assert!(traffic.failed.is_empty(), "{:?}", traffic.failed);
        while let Some(said) = peer.heard() {
            assert_eq!(said, "received");
            theirs = true;
        }
    }
}

const PID_NAMESPACE: &[&str] = &["--pid", "--fork", "--kill-child", "--mount-proc"];

/// A death is known by then.
const WITHIN: Duration = Duration::from_secs(1);

fn talks_and_dies(name: &str, flags: &[&str]) {
    takes_less_than(WITHIN, || death_known_after(name, flags));
}

/// How long it takes; no time where the system forbids it.
fn death_known_after(name: &str, flags: &[&str]) -> Duration {
    let node = Node::open();
    let own = node.address().socket_addr().to_string();
    let Some(mut peer) = unshared(name, flags, &own) else { return Duration::ZERO };
    let to = node.insert_text(&peer.hear_after("ready "));
    let mut traffic = Traffic::new(to, 1, 1, mix());
    exchange(&node, &mut peer, &mut traffic);
    traffic.post_sentinel(&node);
    peer.kill();
    let killed = Instant::now();
    while traffic.under_way(Operation::Send) + traffic.under_way(Operation::ReceiveDirected) > 0 {
        let Some(done) = node.within(PATIENCE, Wait::Sleeping) else {
            panic!("no news: {}", traffic.describe())
        };
        assert!(traffic.take(done).is_none());
    }
    let took = killed.elapsed();
    assert!(traffic.failed.iter().all(|(_, error)| says_gone(error.errno)));
    took
}

#[test]
fn a_peer_in_a_child_pid_namespace() {
    talks_and_dies("a_peer_in_a_child_pid_namespace", PID_NAMESPACE);
}

#[test]
fn a_peer_in_a_user_namespace_with_our_name() {
    let flags = ["--user", "--map-root-user"];
    talks_and_dies("a_peer_in_a_user_namespace_with_our_name", &flags);
}

/// Both are process 1, or nearly, in their own eyes: neither may read itself for the other.
#[test]
fn two_pid_namespaces() {
    let name = "two_pid_namespaces";
    let Some(mut one) = unshared(name, PID_NAMESPACE, "") else { return };
    let first = one.hear_after("ready ");
    let Some(mut two) = unshared(name, PID_NAMESPACE, &first) else { return };
    let second = two.hear_after("ready ");
    one.order(&second);
    assert_eq!(one.hear(), "received");
    assert_eq!(two.hear(), "received");
    two.kill();
    let said = one.hear_after("failed ");
    assert!(said.contains(&second) || said.contains("gone"), "{said}");
}

#[test]
fn two_network_namespaces() {
    let node = Node::open();
    let own = node.address().socket_addr().to_string();
    let Some(mut peer) = unshared("two_network_namespaces", &["--net"], &own) else { return };
    let to = node.insert_text(&peer.hear_after("ready "));
    node.endpoint.send(vec![1; 8], to, 1).unwrap();
    let Some(Done::Badly(error)) = node.within(PATIENCE, Wait::Sleeping) else {
        panic!("nothing can be sent there")
    };
    assert_eq!(error.errno, Errno::HOSTUNREACH);
    assert!(error.reason.contains("network namespace"), "{}", error.reason);
    let said = peer.hear_after("failed ");
    assert!(said.starts_with(&Errno::HOSTUNREACH.0.to_string()), "{said}");
}

#[test]
fn a_peer_in_a_user_namespace_without_a_name() {
    let node = Node::open();
    let own = node.address().socket_addr().to_string();
    let name = "a_peer_in_a_user_namespace_without_a_name";
    let Some(mut peer) = unshared(name, &["--user"], &own) else { return };
    peer.hear_after("ready ");
    let said = peer.hear_after("failed ");
    assert!(said.contains("cannot tell whether"), "{said}");
    assert!(node.poll().is_none());
}

/// The dead peer's PID is given to a stranger at once: nothing is read from the stranger, and
/// the death is seen all the same.
#[test]
fn a_pid_that_is_used_again() {
    let name = "a_pid_that_is_used_again";
    let last = "/proc/sys/kernel/ns_last_pid";
    let Ok(old) = std::fs::read_to_string(last) else {
        return skip(name, "no /proc/sys/kernel/ns_last_pid");
    };
    if std::fs::write(last, &old).is_err() {
        return skip(name, "ns_last_pid cannot be written without privileges");
    }
    let node = Node::open();
    let own = node.address().socket_addr();
    let mut peer = Peer::start(&format!("talker {own}"));
    let to = node.insert_text(&peer.hear_after("ready "));
    let mut traffic = Traffic::new(to, 1, 1, mix());
    exchange(&node, &mut peer, &mut traffic);
    traffic.post_sentinel(&node);
    let pid = peer.pid();
    peer.kill();
    peer.finish();
    let mut stranger = None;
    for _ in 0..200 {
        std::fs::write(last, (pid - 1).to_string()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        if child.id() as i32 == pid {
            stranger = Some(child);
            break;
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    while traffic.under_way(Operation::Send) + traffic.under_way(Operation::ReceiveDirected) > 0 {
        let Some(done) = node.within(PATIENCE, Wait::Sleeping) else {
            panic!("no news: {}", traffic.describe())
        };
        assert!(traffic.take(done).is_none());
    }
    assert!(traffic.failed.iter().all(|(_, error)| says_gone(error.errno)));
    match stranger {
        Some(mut stranger) => {
            let _ = stranger.kill();
            let _ = stranger.wait();
        }
        None => skip(name, "the PID was never given out again"),
    }
}

//! Canceling. Reference: fi_endpoint(3), `fi_cancel`.

use crate::{
    code,
    completion_order::{STRICT, completed, connected},
    counters::{add_counted, awaits, close_counted},
    flag,
    host::host,
    tagged::{FENCE, MATCH_COMPLETE, Message},
    world::{Node, World},
};

const ANYBODY: u64 = u64::MAX;

/// The next entry is that of an operation which was canceled, with this context and these flags.
#[track_caller]
fn is_canceled(node: Node, context: usize, flags: u64) {
    assert_eq!(node.read().err(), Some(code::AVAIL));
    let error = node.read_error().unwrap();
    assert_eq!((error.err, error.op_context as usize), (-code::CANCELED, context));
    assert_eq!(error.flags, flags);
}

/// "If it is still pending, complete it as having been canceled": no message finds it any more.
#[test]
fn a_canceled_receive_gets_nothing() {
    let Some(host) = host("a_canceled_receive_gets_nothing") else { return };
    let (world, [from, to]) = connected(host, (0, 0));
    let (sent, mut canceled, mut room) = ([7_u8; 8], [0_u8; 8], [0_u8; 8]);
    assert_eq!(to.receive(&mut canceled, ANYBODY, 1), 0);
    assert_eq!(to.cancel(1), 0);
    is_canceled(to, 1, flag::MSG | flag::RECV);
    assert_eq!(to.cancel(1), code::NOENT);
    assert_eq!(from.send(&sent, 1, 3), 0);
    assert!(completed(to, &[from]).is_empty());
    assert_eq!(to.receive(&mut room, ANYBODY, 2), 0);
    assert_eq!(world.completion(to).op_context as usize, 2);
    assert_eq!((canceled, room), ([0; 8], sent));
}

/// "If multiple outstanding operations match the context parameter, only one will be canceled."
#[test]
fn one_of_several_is_canceled() {
    let Some(host) = host("one_of_several_is_canceled") else { return };
    let (world, [from, to]) = connected(host, (0, 0));
    let mut rooms = [[0_u8; 8]; 3];
    for room in &mut rooms {
        assert_eq!(to.receive(room, ANYBODY, 1), 0);
    }
    assert_eq!(to.cancel(1), 0);
    is_canceled(to, 1, flag::MSG | flag::RECV);
    assert!(completed(to, &[from]).is_empty());
    for byte in [1, 2] {
        let sent = [byte; 8];
        assert_eq!(from.send(&sent, 1, 3), 0);
        assert_eq!(world.completion(to).op_context as usize, 1);
        world.completion(from);
    }
    let mut firsts = rooms.map(|room| room[0]);
    firsts.sort_unstable();
    assert_eq!(firsts, [0, 1, 2], "the two that were left");
    assert_eq!(to.cancel(1), code::NOENT);
    assert_eq!(to.read().err(), Some(code::AGAIN));
}

/// "If the operation completed before the call to fi_cancel, then the completion status of that
/// operation will be available in the associated completion queue."
#[test]
fn what_has_completed_is_unaffected() {
    let Some(host) = host("what_has_completed_is_unaffected") else { return };
    let mut world = World::empty(host, |_| {});
    let [sends] = add_counted(&mut world, [flag::SEND]);
    let [receives] = add_counted(&mut world, [flag::RECV]);
    let [from, to] = [world.nodes[0], world.nodes[1]];
    for (length, done) in [8, 5_000, 500_000].into_iter().zip(1..) {
        let (sent, mut room) = (vec![done as u8; length], vec![0; length]);
        assert_eq!(to.receive(&mut room, ANYBODY, 1), 0);
        assert_eq!(from.send(&sent, 1, 2), 0);
        awaits(sends, (done, 0), &world.nodes);
        awaits(receives, (done, 0), &world.nodes);
        assert_eq!((to.cancel(1), from.cancel(2)), (code::NOENT, code::NOENT));
        for (node, context) in [(to, 1), (from, 2)] {
            assert_eq!(world.completion(node).op_context as usize, context);
            assert_eq!(node.read().err(), Some(code::AGAIN), "{length}");
        }
        assert!(room == sent);
    }
    close_counted(&mut world, &[sends, receives]);
}

/// Of sends as well; what is behind one goes on, and one that waits for its turn to be told of is not
/// waited for.
#[test]
fn a_canceled_send_is_told_at_once() {
    let Some(host) = host("a_canceled_send_is_told_at_once") else { return };
    let (world, [from, to]) = connected(host, (STRICT, 0));
    let (mut sent, mut rooms) = ([[1_u8; 8], [2; 8], [3; 8]], [[0_u8; 8]; 3]);
    for (at, flags) in [MATCH_COMPLETE, FENCE, 0].into_iter().enumerate() {
        let context = (at + 1) as *mut _;
        Message { context, ..Message::of(&mut sent[at], at as u64) }.send(from, flags);
    }
    assert_eq!(from.cancel(2), 0);
    is_canceled(from, 2, flag::TAGGED | flag::SEND);
    let [first, second, third] = &mut rooms;
    assert_eq!(Message::of(third, 2).receive(to, 0), 0);
    assert_eq!(world.completion(to).tag, 2);
    assert!(completed(from, &[to]).is_empty(), "the first comes first");
    for (tag, room) in [(1, second), (0, first)] {
        assert_eq!(Message::of(room, tag).receive(to, 0), 0);
    }
    assert_eq!(world.completion(to).tag, 0, "what was canceled does not come");
    for context in [1, 3] {
        assert_eq!(world.completion(from).op_context as usize, context);
    }
    assert_eq!(rooms, [[1; 8], [0; 8], [3; 8]]);
}

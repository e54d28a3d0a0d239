//! The end of an old connection that is heard after a new one with the same peer is there.

use std::time::{Duration, Instant};

use kestrel_core::{config::ConnectBy, error::Errno};
use kestrel_tests::{
    bed::{pattern, same},
    fake::fake_bed,
};
use kestrel_verbs::{VerbsOptions, fake::ManagerFaults, verbs::Status};

/// Longer than it takes until a connection whose end got lost is asked for a sign of life.
const PROBED_WITHIN: Duration = Duration::from_millis(2_500);

/// Who lets go of its peer lets go of both directions. The peer hears of the idle one when the new
/// connection has long been in use.
#[test]
fn the_late_end_of_an_old_connection_does_not_end_the_new_one() {
    let connect_by = ConnectBy::RdmaCm;
    let (bed, fabric) = fake_bed(VerbsOptions { connect_by, ..VerbsOptions::default() });
    let world = bed.world(2);
    world.warm_up();
    fabric.set_manager_faults(ManagerFaults { loses_ends: true, ..ManagerFaults::default() });
    fabric.fail_sends(1, Status::RETRIES_EXCEEDED);
    world.nodes[0].send(pattern(1, 100), 1, Some(1), 1);
    assert_eq!(world.sent(0).bad(Errno::CONNRESET).context, 1);
    let start = Instant::now();
    let mut turn = 2;
    while start.elapsed() < PROBED_WITHIN {
        world.nodes[1].receive(100, Some(turn), turn);
        world.nodes[0].send(pattern(turn, 100), 1, Some(turn), turn);
        same(&world.received(1).good().returned.unwrap(), &pattern(turn, 100), "by the new one");
        assert_eq!(world.sent(0).good().context, turn);
        world.poll(10);
        turn += 1;
    }
    world.nodes[0].receive(100, Some(1), 1);
    world.nodes[1].send(pattern(1, 100), 0, Some(1), 1);
    same(&world.received(0).good().returned.unwrap(), &pattern(1, 100), "the other way");
    assert_eq!(world.sent(1).good().context, 1);
}

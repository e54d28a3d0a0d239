//! Peers that connect properly, and then say of their messages what cannot be: each costs its sender the
//! connection, and what it had begun, and nobody else anything.

use std::time::Instant;

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_counter::CompletionCounter,
    completion_queue::Entry,
    domain::DomainOptions,
    endpoint::EndpointOptions,
    error::Errno,
    flags::Flags,
    info::TX_SIZE_MAX,
    mock::{MockOptions, MockProvider},
    transport::Transport,
    wire::{ENVELOPE_COST, Head, Kind, LAST},
};
use kestrel_tests::{
    bed::{Bed, Memory, Options, Receive, World, same},
    contexts::Sharers,
    liar::Liar,
    link::Driven,
    mock::mock_bed,
    one_sided::{BOTH, expose},
    scale::PATIENCE,
};

const LENGTH: usize = 9_000;
/// More than is copied at a few polls.
const LONG: usize = 16 << 20;
/// Of messages that nobody has asked for, and as many of their envelopes.
const BUDGET: u64 = 64 << 10;
const IN_BUDGET: usize = (BUDGET / ENVELOPE_COST) as usize;
/// More than anybody can have under way.
const MANY: usize = 10 * TX_SIZE_MAX;
/// What a liar calls its message.
const NAME: u64 = 5;

fn bed() -> Bed<MockProvider> {
    mock_bed(MockOptions { read_remote: true, ..MockOptions::default() })
}

/// The words of a long message's first packet.
fn long(total: usize, prefix: usize, remote: &[u8]) -> [u64; 5] {
    [NAME, total as u64, prefix as u64, 0, remote.as_ptr() as u64]
}

/// The liar has lost its connection, and the receive that its message had matched fails; an honest peer's
/// message finds the next one.
fn is_refused(world: &World<MockProvider>, liar: &mut Liar) {
    let victim = &world.nodes[1];
    assert!(liar.is_cut_off(victim));
    world.received(1).bad(Errno::CONNABORTED);
    victim.receive(LENGTH, None, 2);
    world.nodes[0].send(vec![3; LENGTH], 1, None, 3);
    assert_eq!(world.received(1).context(), 2);
    world.sent(0).good();
    world.nothing_more();
}

/// A message is read from its sender's memory, or comes in packets. One that comes both ways would be over
/// while it is read, and its place another's.
#[test]
fn what_is_read_does_not_come_in_packets_as_well() {
    let message = vec![1; LENGTH];
    for part in [LENGTH, 0] {
        let bed = bed();
        let world = bed.world(2);
        world.warm_up();
        let victim = &world.nodes[1];
        let mut liar = Liar::new(&bed, victim.endpoint.address());
        victim.receive(LENGTH, None, 1);
        // So it is not read at once.
        liar.withdraw_in_all(1);
        liar.say_all(Kind::Long, 0, &long(LENGTH, 0, &message), 0);
        liar.say_all(Kind::Part, NAME, &[0], part);
        victim.poll();
        liar.withdraw_in_all(0);
        is_refused(&world, &mut liar);
    }
}

/// Where a message lies is told in the place of a prefix.
#[test]
fn what_has_a_prefix_is_not_read() {
    let message = vec![1; LENGTH];
    let bed = bed();
    let world = bed.world(2);
    world.warm_up();
    let victim = &world.nodes[1];
    let mut liar = Liar::new(&bed, victim.endpoint.address());
    liar.say_all(Kind::Long, 0, &long(LENGTH, 8, &message), 8);
    assert!(liar.is_cut_off(victim));
    world.nothing_more();
}

/// A liar, and the name of the message of `length` bytes that has come to it.
fn receiver(bed: &Bed<MockProvider>, world: &World<MockProvider>, length: usize) -> (Liar, u64) {
    let sender = &world.nodes[0];
    let mut liar = Liar::new(bed, sender.endpoint.address());
    let to = sender.vector.insert_one(liar.0.address()).unwrap();
    sender.send(vec![1; length], to, None, 1);
    let start = Instant::now();
    loop {
        sender.poll();
        liar.hear();
        if let Some(arrival) = liar.0.arrival() {
            assert_eq!(arrival.head.kind, Kind::Long as u8);
            let name = liar.0.word(0);
            liar.0.consume();
            return (liar, name);
        }
        assert!(start.elapsed() < PATIENCE, "nothing comes");
    }
}

/// Whoever reads a message offers its sender one share of it. The sender keeps what it has not come to the
/// end of, so it would keep more and more of them.
#[test]
fn a_message_is_shared_once() {
    // As long as what a sender copies at once; and one that is over at once, of which it tells.
    for (wanted, block) in [(LONG, 1 << 20), (1, 1)] {
        let bed = bed();
        let world = bed.world(2);
        world.warm_up();
        let (mut liar, name) = receiver(&bed, &world, LONG);
        let buffer = vec![0_u8; LONG];
        for generation in 1..=2 {
            liar.offer(generation, (wanted / block) as u32);
            let claim = u64::from(generation) << 8;
            let words = [claim, buffer.as_ptr() as u64, wanted as u64, block as u64];
            liar.say_all(Kind::Share, name, &words, 0);
            world.nodes[0].poll();
        }
        assert!(liar.is_cut_off(&world.nodes[0]));
        world.sent(0).bad(Errno::CONNABORTED);
        world.nothing_more();
    }
}

/// Each block that a sender helps with is a system call, and it helps with up to 1 MiB at a poll. So there are
/// no blocks that are tiny, nor one that is longer than that.
#[test]
fn blocks_that_hold_a_sender_up_are_refused() {
    for (wanted, block) in
        [(1 << 20, 1), (8 << 10, 4095), (LONG, LONG), (4 << 20, (1 << 20) + 4096)]
    {
        let bed = bed();
        let world = bed.world(2);
        world.warm_up();
        let (mut liar, name) = receiver(&bed, &world, LONG);
        let buffer = vec![0_u8; LONG];
        liar.offer(1, wanted.div_ceil(block) as u32);
        let words = [1 << 8, buffer.as_ptr() as u64, wanted as u64, block as u64];
        liar.say_all(Kind::Share, name, &words, 0);
        assert!(liar.is_cut_off(&world.nodes[0]), "{wanted} bytes by {block}");
        world.sent(0).bad(Errno::CONNABORTED);
        world.nothing_more();
        assert!(buffer.iter().all(|&byte| byte == 0), "nothing is written");
    }
}

/// Two whose completions keep an order, with little room for what nobody has asked for.
fn in_order(bed: &Bed<MockProvider>) -> World<MockProvider> {
    let domain = DomainOptions { unexpected_budget: BUDGET, ..DomainOptions::default() };
    let endpoint = EndpointOptions { receives_in_order: true, ..EndpointOptions::default() };
    let world = bed.world_with(2, &Options { domain, endpoint, ..Options::default() });
    world.warm_up();
    world
}

/// A liar that begins a message to node 1, which waits for it.
fn begin(bed: &Bed<MockProvider>, world: &World<MockProvider>) -> Liar {
    let victim = &world.nodes[1];
    let mut liar = Liar::new(bed, victim.endpoint.address());
    victim.receive(LENGTH, None, 1);
    liar.say_all(Kind::Long, 0, &[NAME, LENGTH as u64, 8, 0, 0], 8);
    world.poll(50);
    liar
}

/// The same, with a buffer for all that comes behind it.
fn begin_in_front_of(into: &Memory, bed: &Bed<MockProvider>, world: &World<MockProvider>) -> Liar {
    let liar = begin(bed, world);
    let flags = Flags::MULTI_RECV;
    let receive = Receive { pieces: into.all(), flags, context: 2, ..Receive::default() };
    world.nodes[1].post_receive(&receive).unwrap();
    liar
}

/// Where completions keep an order, the data of writes waits behind a message that is still to come: as much as
/// the budget has room for. Beyond it writes are answered when their turn comes, so that nobody writes more than
/// it can have under way. Whoever finishes the message loses nothing; whoever writes on is cut off.
#[test]
fn data_behind_an_unfinished_message_is_bounded() {
    let bed = mock_bed(MockOptions::default());
    for finishes in [true, false] {
        let world = in_order(&bed);
        let (victim, mut liar) = (&world.nodes[1], begin(&bed, &world));
        let most = if finishes { TX_SIZE_MAX } else { 5 * TX_SIZE_MAX };
        let (mut written, mut answered) = (0, 0);
        while written < most && !liar.hear() {
            liar.say_with(Head::new(Kind::WriteData, LAST), written as u64, &[0, 0, 7], 0);
            written += 1;
            victim.poll();
            answered += liar.count_said(Kind::Done);
        }
        assert!(written < 5 * TX_SIZE_MAX, "it writes for ever");
        assert_eq!(answered, IN_BUDGET);
        assert_eq!(world.waiting(1), (0, usize::from(!finishes) * (written + 1)));
        if finishes {
            liar.say_all(Kind::Part, NAME, &[8], LENGTH - 8);
            assert_eq!(world.received(1).context(), 1);
        } else {
            world.received(1).bad(Errno::CONNABORTED);
        }
        (0..written).for_each(|_| assert_eq!(world.received(1).good().data, 7));
        while finishes && answered < written {
            victim.poll();
            answered += liar.count_said(Kind::Done);
        }
        victim.receive(LENGTH, None, 2);
        world.nodes[0].send(vec![3; LENGTH], 1, None, 3);
        assert_eq!(world.received(1).context(), 2);
        world.sent(0).good();
        world.nothing_more();
    }
}

/// The same of messages that take no room of a buffer. Those with credit get that back when they are told, and
/// those without it their answer, beyond the budget.
#[test]
fn messages_behind_an_unfinished_one_are_bounded() {
    let bed = mock_bed(MockOptions::default());
    for finishes in [true, false] {
        let (world, into) = (in_order(&bed), Memory::zeroed(64));
        let (victim, mut liar) = (&world.nodes[1], begin_in_front_of(&into, &bed, &world));
        let (mut charged, mut sent) = (2 * ENVELOPE_COST + 8, 0);
        while charged <= liar.credit() && sent < MANY {
            liar.say(Kind::Eager, 0, 0);
            (charged, sent) = (charged + ENVELOPE_COST, sent + 1);
            victim.poll();
            assert!(!liar.hear());
        }
        assert!(sent < MANY, "credit comes back for ever");
        let most = if finishes { sent + TX_SIZE_MAX } else { MANY };
        let mut answered = 0;
        let with_credit = sent;
        while sent < most && !liar.hear() {
            liar.say_all(Kind::Long, 0, &[NAME + sent as u64 + 1, 0, 0, 0, 0], 0);
            sent += 1;
            victim.poll();
            answered += liar.count_said(Kind::Finish);
        }
        assert!(sent < MANY, "without end");
        assert!(answered <= IN_BUDGET.saturating_sub(with_credit) + 1, "{answered} answered");
        if finishes {
            liar.say_all(Kind::Part, NAME, &[8], LENGTH - 8);
            assert_eq!(world.received(1).context(), 1);
        } else {
            world.received(1).bad(Errno::CONNABORTED);
        }
        let told = if finishes { sent } else { sent - 1 };
        (0..told).for_each(|_| assert_eq!(world.received(1).context(), 2));
        while finishes && answered < sent - with_credit + 1 {
            victim.poll();
            answered += liar.count_said(Kind::Finish);
        }
        if finishes {
            // Who asks has credit again.
            liar.say_all(Kind::Long, 0, &[NAME, 0, 0, 0, 0], 0);
            assert_eq!(world.received(1).context(), 2);
            assert!(charged <= liar.credit());
        }
        world.nothing_more();
    }
}

/// And of messages that are begun and given up.
#[test]
fn given_up_messages_behind_an_unfinished_one_are_bounded() {
    let bed = mock_bed(MockOptions::default());
    let (world, into) = (in_order(&bed), Memory::zeroed(1 << 20));
    let (victim, mut liar) = (&world.nodes[1], begin_in_front_of(&into, &bed, &world));
    let mut given_up = 0;
    while given_up < MANY && !liar.hear() {
        let name = NAME + given_up as u64 + 1;
        liar.say_all(Kind::Long, 0, &[name, 1, 0, 0, 0], 0);
        liar.say_all(Kind::Withdraw, name, &[], 0);
        given_up += 1;
        (0..2).for_each(|_| victim.poll());
        liar.count_said(Kind::Consent);
    }
    assert!(given_up < MANY, "without end");
    world.received(1).bad(Errno::CONNABORTED);
    (1..given_up).for_each(|_| drop(world.received(1).bad(Errno::CONNRESET)));
    world.poll(50);
}

/// What a receiver gives up a message for is an error. 0 is none, and nor is what no error number is.
#[test]
fn a_message_is_given_up_for_an_error() {
    for errno in [0x1000, 0x7fff_f000, 1 << 33] {
        let bed = bed();
        let world = bed.world(2);
        world.warm_up();
        let (mut liar, name) = receiver(&bed, &world, LONG);
        liar.say_all(Kind::Finish, name, &[errno], 0);
        assert!(liar.is_cut_off(&world.nodes[0]));
        world.sent(0).bad(Errno::CONNABORTED);
        world.nothing_more();
    }
}

/// "whenever a remote RMA write or atomic operation modifies the memory region" (fi_mr(3)): who goes in the
/// middle of an operation of several segments has done so.
#[test]
fn what_was_done_is_counted_when_its_initiator_goes() {
    let target = Memory::zeroed(8);
    let bed = bed();
    let world = bed.world(2);
    world.warm_up();
    let victim = &world.nodes[1];
    let region = expose(victim, &target, BOTH, 0);
    let counter = CompletionCounter::open(&victim.domain);
    victim.domain.bind_memory_counter(&region, &counter, Flags::REMOTE_WRITE).unwrap();
    let mut liar = Liar::new(&bed, victim.endpoint.address());
    liar.say_all(Kind::Write, NAME, &[region.key(), region.base()], 8);
    world.poll(50);
    same(&target.bytes(), &[7; 8], "written");
    assert_eq!(counter.read(), 0, "more may come of it");
    drop(liar);
    world.drive("it is counted", || counter.read() == 1);
    victim.domain.close_memory(&region).unwrap();
}

/// Has a liar begin a long message to `victim`, and stop in the middle of a block that it writes there. Answers
/// where it would write the last byte.
fn stop_in_a_block(liar: &mut Liar, victim: &dyn Driven, message: &[u8]) -> *mut u8 {
    liar.say_all(Kind::Long, 0, &long(LONG, 0, message), 0);
    let start = Instant::now();
    loop {
        victim.drive();
        liar.hear();
        if let Some(place) = liar.claim_block() {
            return (place + LONG as u64 - 1) as *mut u8;
        }
        assert!(start.elapsed() < PATIENCE, "no share is offered");
    }
}

/// Nobody hears from a sender that has stopped in the middle of a block whether it still writes there. A buffer
/// that the engine owns is therefore never freed.
#[test]
fn what_a_stopped_sender_may_write_to_is_never_freed() {
    let message = vec![1; LONG];
    for closes in [false, true] {
        let bed = bed();
        let world = bed.world(2);
        world.warm_up();
        let victim = &world.nodes[1];
        let mut liar = Liar::new(&bed, victim.endpoint.address());
        victim.receive(LONG, None, 1);
        let last = stop_in_a_block(&mut liar, victim, &message);
        if closes {
            victim.endpoint.close();
        } else {
            liar.say_all(Kind::Part, NAME, &[0], 0);
            assert!(liar.is_cut_off(victim));
            assert_eq!(world.received(1).bad(Errno::CONNABORTED).returned, None);
        }
        // It goes on.
        // SAFETY: what is checked here is that the memory stays, for whoever was offered it.
        unsafe { last.write_volatile(2) };
        world.nothing_more();
    }
}

/// Nor is a buffer of several messages, one of whose senders has stopped: the others have their place there, and
/// what releases it comes without it.
#[test]
fn a_buffer_of_several_that_a_stopped_sender_may_write_to_is_never_freed() {
    let message = vec![1; LONG];
    let bed = bed();
    let world = bed.world(2);
    world.warm_up();
    let victim = &world.nodes[1];
    let mut liar = Liar::new(&bed, victim.endpoint.address());
    victim.endpoint.receive_multi(vec![0; LONG + 4 * LENGTH], FI_ADDR_UNSPEC, 1).unwrap();
    let last = stop_in_a_block(&mut liar, victim, &message);
    liar.say_all(Kind::Part, NAME, &[0], 0);
    assert!(liar.is_cut_off(victim));
    assert_eq!(world.received(1).bad(Errno::CONNABORTED).returned, None);
    // SAFETY: as above.
    unsafe { last.write_volatile(2) };
    let mut released = false;
    while !released {
        world.nodes[0].send(vec![3; LENGTH], 1, None, 1);
        let done = world.received(1).good();
        released = done.flags.contains(Flags::MULTI_RECV);
        assert_eq!(done.returned, None);
        if !released {
            let mut entry = Entry::default();
            (entry.context, entry.buffer, entry.length) = (1, done.buffer, done.length);
            same(&victim.endpoint.copy_received(&entry).unwrap(), &[3; LENGTH], "it is still read");
        }
        world.sent(0).good();
    }
    world.nothing_more();
}

/// The same of a buffer that endpoints share.
#[test]
fn a_shared_buffer_that_a_stopped_sender_may_write_to_is_never_freed() {
    let message = vec![1; LONG];
    let bed = bed();
    let sharers = Sharers::open(&bed, 2, &Options::default());
    let victim = &sharers.members[1];
    let mut liar = Liar::new(&bed, victim.endpoint.address());
    sharers.shared.receive_multi(vec![0; LONG + LENGTH], FI_ADDR_UNSPEC, 1).unwrap();
    let last = stop_in_a_block(&mut liar, victim, &message);
    liar.say_all(Kind::Part, NAME, &[0], 0);
    assert!(liar.is_cut_off(victim));
    sharers.next(|| ()).1.bad(Errno::CONNABORTED);
    drop(sharers);
    // SAFETY: as above.
    unsafe { last.write_volatile(2) };
}

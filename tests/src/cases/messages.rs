//! Every call of fi_msg(3) and fi_tagged(3).

use std::time::Instant;

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    completion_queue::{CompletionQueue, Entry},
    endpoint::{
        EndpointOptions, PostError,
        owned::{OwnedReceive, OwnedSend},
    },
    error::{Errno, HasErrno},
    flags::Flags,
    memory::Pieces,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, Receive, Send, World, family, pattern, same},
    link,
    scale::{PATIENCE, leaves_in_time, unspoilt},
};

const TAG: u64 = 0xdead_beef_0123_4567;
const DATA: u64 = 0xfedc_ba98_7654_3210;

/// The ways to send: what each call comes down to.
#[derive(Clone, Copy, Debug)]
enum Way {
    Send,
    SendVector,
    SendFlags,
    SendData,
    Inject,
    InjectData,
}

/// The ways to receive.
#[derive(Clone, Copy, Debug)]
enum Taking {
    Receive,
    ReceiveVector,
    Directed,
    Ignoring,
}

fn send_by<P: Provider>(
    world: &World<P>,
    way: Way,
    bytes: &Memory,
    tag: Option<u64>,
) -> (bool, Option<u64>) {
    let endpoint = &world.nodes[0].endpoint;
    let raw = bytes.bytes();
    let length = raw.len();
    let cut = bytes.cut(&[length / 3, 0, length - length / 3]);
    let send = Send { pieces: bytes.all(), tag, context: 1, ..Send::default() };
    match (way, tag) {
        (Way::Send, _) => world.nodes[0].send(raw, 1, tag, 1),
        (Way::SendVector, _) => {
            world.nodes[0].post_send(1, &Send { pieces: Pieces::Many(&cut), ..send }).unwrap();
        }
        (Way::SendFlags, _) => {
            let flags = Flags::COMPLETION | Flags::TRANSMIT_COMPLETE;
            world.nodes[0].post_send(1, &Send { flags, data: Some(DATA), ..send }).unwrap();
        }
        (Way::SendData, None) => endpoint.send_data(raw, 1, DATA, 1).unwrap(),
        (Way::SendData, Some(tag)) => endpoint.send_tagged_data(raw, 1, tag, DATA, 1).unwrap(),
        (Way::Inject, None) => endpoint.inject(&raw, 1).unwrap(),
        (Way::Inject, Some(tag)) => endpoint.inject_tagged(&raw, 1, tag).unwrap(),
        (Way::InjectData, None) => endpoint.inject_data(&raw, 1, DATA).unwrap(),
        (Way::InjectData, Some(tag)) => endpoint.inject_tagged_data(&raw, 1, tag, DATA).unwrap(),
    }
    let completes = !matches!(way, Way::Inject | Way::InjectData);
    let data = matches!(way, Way::SendData | Way::InjectData | Way::SendFlags).then_some(DATA);
    (completes, data)
}

fn post_taking<P: Provider>(world: &World<P>, taking: Taking, into: &Memory, tag: Option<u64>) {
    let length = into.bytes().len();
    let cut = into.cut(&[1, length / 2, length - length / 2 - 1]);
    let all = Receive {
        pieces: into.all(),
        tag: tag.map(|tag| (tag, 0)),
        context: 2,
        ..Receive::default()
    };
    let receive = match taking {
        Taking::Receive => all,
        Taking::ReceiveVector => Receive { pieces: Pieces::Many(&cut), ..all },
        Taking::Directed => Receive { from: 0, ..all },
        Taking::Ignoring => {
            // The second one asks a receive for nothing.
            let flags = Flags::COMPLETION | Flags::REMOTE_CQ_DATA;
            Receive { tag: tag.map(|tag| (tag ^ 0xff00, 0xffff)), flags, ..all }
        }
    };
    world.nodes[1].post_receive(&receive).unwrap();
}

pub fn every_send_call_reaches_every_receive_call<P: Provider>(bed: &Bed<P>) {
    use Taking::*;
    use Way::*;
    for (tag, length) in [(None, 24), (Some(TAG), 24), (None, 700), (Some(TAG), 700)] {
        for way in [Send, SendVector, SendFlags, SendData, Inject, InjectData] {
            let world = bed.world(2);
            for taking in [Receive, ReceiveVector, Directed, Ignoring] {
                for first in [true, false] {
                    let bytes = Memory::from(pattern(length as u64 + first as u64, length));
                    let into = Memory::zeroed(length + 5);
                    if first {
                        post_taking(&world, taking, &into, tag);
                    }
                    let (completes, data) = send_by(&world, way, &bytes, tag);
                    if completes {
                        let sent = world.sent(0).good();
                        assert_eq!(sent.context, 1);
                        assert_eq!(sent.flags, family(tag.is_some()) | Flags::SEND);
                    } else {
                        world.poll(5);
                    }
                    if !first {
                        post_taking(&world, taking, &into, tag);
                    }
                    let received = world.received(1).good();
                    assert_eq!((received.context, received.length), (2, length as u64));
                    assert_eq!(received.tag, tag.unwrap_or(0));
                    assert_eq!(received.data, data.unwrap_or(0));
                    let kind = family(tag.is_some()) | Flags::RECV;
                    let with = if data.is_some() { Flags::REMOTE_CQ_DATA } else { Flags::empty() };
                    assert_eq!(received.flags, kind | with);
                    let what = format!("{way:?} to {taking:?}, posted first: {first}");
                    same(&into.bytes()[..length], &bytes.bytes(), &what);
                    assert_eq!(&into.bytes()[length..], [0; 5], "{what}: beyond the message");
                    world.nothing_more();
                }
            }
        }
    }
}

pub fn entries_tell_all_there_is<P: Provider>(bed: &Bed<P>) {
    for length in [0, 3, 300, 5_000, 200_000] {
        for posted_first in [true, false] {
            let bytes = Memory::from(pattern(1, length));
            let into = Memory::zeroed(length);
            let world = bed.world(3);
            let receive = Receive {
                pieces: into.all(),
                tag: Some((5, 0)),
                context: 77,
                ..Receive::default()
            };
            if posted_first {
                world.nodes[2].post_receive(&receive).unwrap();
            }
            let send = Send {
                pieces: bytes.all(),
                tag: Some(5),
                data: Some(9),
                context: 66,
                ..Send::default()
            };
            world.nodes[1].post_send(2, &send).unwrap();
            world.poll(20);
            if !posted_first {
                world.nodes[2].post_receive(&receive).unwrap();
            }
            let received = world.received(2).good();
            assert_eq!(received.context, 77);
            assert_eq!(received.flags, Flags::TAGGED | Flags::RECV | Flags::REMOTE_CQ_DATA);
            assert_eq!((received.length, received.data, received.tag), (length as u64, 9, 5));
            assert_eq!(received.source, 1);
            assert_eq!(received.buffer, into.start());
            let sent = world.sent(1).good();
            assert_eq!((sent.context, sent.flags), (66, Flags::TAGGED | Flags::SEND));
            same(&into.bytes(), &bytes.bytes(), "content");
            world.nothing_more();
        }
    }
}

/// The next entry of a queue as it is, with what it owns.
fn entry<P: Provider>(world: &World<P>, queue: &CompletionQueue<P>) -> Entry {
    let (mut entries, start) = ([Entry::default()], Instant::now());
    while queue.read(&mut entries).is_err() {
        // Drives the others, and takes nothing.
        for node in &world.nodes {
            let _ = node.sends.read(&mut []);
        }
        assert!(start.elapsed() < PATIENCE, "in vain: an entry");
    }
    std::mem::take(&mut entries[0])
}

/// Several buffers and flags of one operation, without a pointer: sent, received, looked for, claimed,
/// discarded, refused.
pub fn owned_buffers_come_back_as_they_were<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let [sender, receiver] = [0, 1].map(|node: usize| &world.nodes[node].endpoint);
    let parts = || vec![pattern(1, 700), Vec::new(), pattern(2, 40_000)];
    let message = |tag| OwnedSend {
        buffers: parts(),
        to: 1,
        tag,
        data: Some(DATA),
        context: 5,
        flags: Flags::COMPLETION | Flags::DELIVERY_COMPLETE,
    };
    let room = || vec![vec![0; 10], vec![0; 40_690]];
    for tag in [None, Some(TAG)] {
        let wanted = || OwnedReceive {
            buffers: room(),
            from: 0,
            tag: tag.map(|tag| (tag, 1)),
            context: 6,
            ..OwnedReceive::default()
        };
        sender.send_message(message(tag)).unwrap();
        receiver.receive_message(wanted()).unwrap();
        let mut received = entry(&world, &world.nodes[1].receives);
        assert_eq!((received.context, received.data, received.length), (6, DATA, 40_700));
        let found = received.take_buffers().unwrap();
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [10, 40_690]);
        same(&found.concat(), &parts().concat(), "the message");
        let mut sent = entry(&world, &world.nodes[0].sends);
        assert_eq!((sent.context, sent.take_buffers().unwrap()), (5, parts()));

        // One is looked for, claimed, and received; another is discarded.
        let look = |flags| OwnedReceive {
            buffers: Vec::new(),
            flags: Flags::COMPLETION | Flags::PEEK | flags,
            ..wanted()
        };
        sender.send_message(message(tag)).unwrap();
        world.poll(50);
        receiver.receive_message(look(Flags::CLAIM)).unwrap();
        assert_eq!(world.received(1).good().length, 40_700);
        let flags = Flags::COMPLETION | Flags::CLAIM;
        receiver.receive_message(OwnedReceive { flags, ..wanted() }).unwrap();
        let claimed = world.received(1).good().returned.unwrap();
        same(&claimed, &parts().concat(), "the claimed message");
        world.sent(0).good();
        sender.send_message(message(tag)).unwrap();
        world.poll(50);
        receiver.receive_message(look(Flags::DISCARD)).unwrap();
        world.received(1).good();
        world.sent(0).good();
    }
    // Who says nothing of flags has its buffers back as well.
    let unflagged = OwnedSend { buffers: parts(), to: 1, context: 6, ..OwnedSend::default() };
    sender.send_message(unflagged).unwrap();
    receiver.receive_message(OwnedReceive { buffers: room(), ..OwnedReceive::default() }).unwrap();
    let mut sent = entry(&world, &world.nodes[0].sends);
    assert_eq!((sent.context, sent.take_buffers()), (6, Some(parts())));
    assert_eq!(world.received(1).good().length, 40_700);
    // What is refused comes back.
    let refused = sender.send_message(OwnedSend { to: 77, ..message(None) }).unwrap_err();
    assert_eq!(refused.error, PostError::UnknownAddress { address: 77 });
    assert_eq!(refused.buffers, parts());
    let flags = Flags::COMPLETION | Flags::FENCE;
    let refused = receiver.receive_message(OwnedReceive { flags, ..OwnedReceive::default() });
    assert!(matches!(refused.unwrap_err().error, PostError::BadFlags { .. }));
    world.nothing_more();
}

pub fn vectors_of_any_cut_arrive_whole<P: Provider>(bed: &Bed<P>) {
    let cuts: [&[usize]; 7] = [
        &[],
        &[0, 0],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[0, 512, 0],
        &[513, 0, 1],
        &[3_000, 1, 4_096, 0, 10_000, 7, 8, 70_001],
        &[1 << 20, 1, 1 << 19, 3],
    ];
    let world = bed.world(2);
    for (index, cut) in cuts.iter().enumerate() {
        for (other, into_cut) in cuts.iter().enumerate() {
            let length: usize = cut.iter().sum();
            let room: usize = into_cut.iter().sum();
            let bytes = Memory::from(pattern(index as u64 + 1, length));
            let into = Memory::zeroed(room);
            let (from, to) = (bytes.cut(cut), into.cut(into_cut));
            let send = Send { pieces: Pieces::Many(&from), context: 1, ..Send::default() };
            let receive = Receive { pieces: Pieces::Many(&to), context: 2, ..Receive::default() };
            if (index + other) % 2 == 0 {
                world.nodes[1].post_receive(&receive).unwrap();
                world.nodes[0].post_send(1, &send).unwrap();
            } else {
                world.nodes[0].post_send(1, &send).unwrap();
                world.poll(10);
                world.nodes[1].post_receive(&receive).unwrap();
            }
            let received = world.received(1);
            world.sent(0).good();
            let placed = length.min(room);
            same(
                &into.bytes()[..placed],
                &bytes.bytes()[..placed],
                &format!("{cut:?} {into_cut:?}"),
            );
            if length > room {
                let received = received.bad(Errno::TRUNC);
                assert_eq!(received.overflow, (length - room) as u64);
            } else {
                assert_eq!(received.good().length, length as u64);
            }
        }
    }
}

pub fn an_injected_buffer_is_free_at_once<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let length = world.nodes[0].endpoint.options().inject_size;
    for (number, length) in [0, 1, 8, 41, 100, length].into_iter().enumerate() {
        let mut bytes = pattern(number as u64, length);
        let expected = bytes.clone();
        // Not connected at first, unexpected later: both must have copied.
        world.post(|| world.nodes[0].endpoint.inject(&bytes, 1));
        bytes.fill(0xee);
        let raw = Memory::from(expected.clone());
        let flags = Flags::INJECT | Flags::COMPLETION;
        let send = Send { pieces: raw.all(), flags, context: 3, ..Send::default() };
        world.post(|| world.nodes[0].post_send(1, &send));
        raw.scribble();
        let cut = Memory::from(expected.clone());
        let pieces = cut.cut(&[length / 2, length - length / 2]);
        let send = Send { pieces: Pieces::Many(&pieces), flags, context: 4, ..Send::default() };
        world.post(|| world.nodes[0].post_send(1, &send));
        cut.scribble();
        for _ in 0..3 {
            world.nodes[1].receive(length, None, 0);
            same(&world.received(1).good().returned.unwrap(), &expected, "injected");
        }
        // FI_INJECT as a flag only speaks of the buffer; it completes all the same.
        assert_eq!(world.sent(0).context(), 3);
        assert_eq!(world.sent(0).context(), 4);
        world.nothing_more();
    }
}

/// Whoever was told that an injected message is taken may make no progress any more.
pub fn an_injected_message_needs_its_sender_no_more<P: Provider>(bed: &Bed<P>) {
    unspoilt(|| {
        let world = bed.world(3);
        [1, 2].into_iter().all(|to| {
            let (bytes, into) = (pattern(to, 100), Memory::zeroed(100));
            let inject = || world.nodes[0].endpoint.inject_tagged(&bytes, to, 3).unwrap();
            if !leaves_in_time(inject) {
                return false;
            }
            let node = &world.nodes[to as usize];
            let tag = Some((3, 0));
            node.post_receive(&Receive { pieces: into.all(), tag, ..Receive::default() }).unwrap();
            link::drive("it leaves", &[node], || world.waiting(to as usize).1 > 0);
            world.received(to as usize).good();
            same(&into.bytes(), &bytes, "injected");
            true
        })
    });
}

pub fn what_is_too_long_to_inject_is_refused<P: Provider>(bed: &Bed<P>) {
    let endpoint = EndpointOptions { inject_size: 100, ..EndpointOptions::default() };
    let world = bed.world_with(2, &Options { endpoint, ..Options::default() });
    // Before the connection is made and after.
    for round in 0..2 {
        let sender = &world.nodes[0].endpoint;
        let refused = PostError::InjectTooLarge { length: 101, limit: 100 };
        assert_eq!(sender.inject(&[0; 101], 1), Err(refused));
        assert_eq!(sender.inject_data(&[0; 101], 1, 2), Err(refused));
        assert_eq!(sender.inject_tagged(&[0; 101], 1, 2), Err(refused));
        assert_eq!(sender.inject_tagged_data(&[0; 101], 1, 2, 3), Err(refused));
        let memory = Memory::zeroed(101);
        for flags in [Flags::INJECT, Flags::INJECT | Flags::DELIVERY_COMPLETE] {
            let whole = Send { pieces: memory.all(), flags, ..Send::default() };
            assert_eq!(world.nodes[0].post_send(1, &whole), Err(refused));
            let cut = memory.cut(&[50, 51]);
            let cut = Send { pieces: Pieces::Many(&cut), ..whole };
            assert_eq!(world.nodes[0].post_send(1, &cut), Err(refused));
        }
        assert_eq!(refused.errno(), Errno::MSGSIZE);
        sender.inject(&[round; 100], 1).unwrap();
        world.nodes[1].receive(200, None, 0);
        let received = world.received(1).good();
        assert_eq!(received.length, 100, "only the one that fits has arrived");
        world.nothing_more();
    }
}

pub fn an_injected_message_writes_no_entry<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    // The first waits for the connection, the last for room or credit.
    for number in 0..600u64 {
        world.post(|| world.nodes[0].endpoint.inject_tagged(&number.to_le_bytes(), 1, number));
    }
    for number in 0..600u64 {
        world.nodes[1].receive(8, Some(number), number);
        let received = world.received(1).good();
        assert_eq!(received.returned.unwrap(), number.to_le_bytes());
    }
    world.nothing_more();
}

pub fn more_is_only_a_hint<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let bytes = Memory::from(pattern(1, 64));
    for context in 0..10 {
        let send = Send { pieces: bytes.all(), flags: Flags::MORE, context, ..Send::default() };
        world.post(|| world.nodes[0].post_send(1, &send));
    }
    for context in 0..10 {
        assert_eq!(world.sent(0).context(), context);
        let into = Memory::zeroed(64);
        let receive =
            Receive { pieces: into.all(), flags: Flags::MORE, context, ..Receive::default() };
        world.nodes[1].post_receive(&receive).unwrap();
        assert_eq!(world.received(1).context(), context);
        same(&into.bytes(), &bytes.bytes(), "content");
    }
    world.nothing_more();
}

pub fn nonsense_is_refused<P: Provider>(bed: &Bed<P>) {
    let world = bed.world(2);
    let (node, memory) = (&world.nodes[0], Memory::zeroed(16));
    let send = Send { pieces: memory.all(), ..Send::default() };
    let receive = Receive { pieces: memory.all(), ..Receive::default() };
    for flags in [Flags::PEEK, Flags::RMA, Flags::MULTI_RECV, Flags::READ] {
        let refused = node.post_send(1, &Send { flags, ..send }).unwrap_err();
        assert_eq!(refused.errno(), Errno::BADFLAGS, "{flags:?}");
    }
    let claim_multi = Flags::CLAIM | Flags::MULTI_RECV;
    for flags in [Flags::INJECT, Flags::FENCE, Flags::DISCARD, claim_multi, Flags::WRITE] {
        let refused = node.post_receive(&Receive { flags, ..receive }).unwrap_err();
        assert_eq!(refused.errno(), Errno::BADFLAGS, "{flags:?}");
    }
    let nine = memory.cut(&[1; 9]);
    let many = PostError::TooManyPieces { count: 9, limit: 8 };
    let pieces = Pieces::Many(&nine);
    assert_eq!(node.post_send(1, &Send { pieces, ..send }), Err(many));
    assert_eq!(node.post_receive(&Receive { pieces, ..receive }), Err(many));
    for address in [2, 1 << 20, 1 << 40, FI_ADDR_UNSPEC] {
        let unknown = PostError::UnknownAddress { address };
        assert_eq!(node.post_send(address, &send), Err(unknown));
        if address != FI_ADDR_UNSPEC {
            assert_eq!(node.post_receive(&Receive { from: address, ..receive }), Err(unknown));
        }
    }
    let refused = node.endpoint.send(vec![7; 3], 2, 1).unwrap_err();
    assert_eq!(refused.buffer, [7; 3], "the buffer comes back");
    let only_tagged = EndpointOptions {
        capabilities: Flags::TAGGED | Flags::SEND | Flags::RECV,
        ..EndpointOptions::default()
    };
    let world = bed.world_with(1, &Options { endpoint: only_tagged, ..Options::default() });
    let refused = world.nodes[0].post_send(0, &send).unwrap_err();
    assert_eq!(refused, PostError::NotCapable { missing: Flags::MSG });
    assert_eq!(refused.errno(), Errno::OPNOTSUPP);
    world.nothing_more();
}

pub fn an_endpoint_sends_to_itself<P: Provider>(bed: &Bed<P>) {
    for length in [0, 8, 100, 5_000, 40_000, 1 << 20] {
        for posted_first in [true, false] {
            let world = bed.world(1);
            let bytes = pattern(3, length);
            if posted_first {
                world.nodes[0].receive(length, Some(4), 1);
            }
            world.nodes[0].send(bytes.clone(), 0, Some(4), 2);
            if !posted_first {
                world.poll(10);
                world.nodes[0].receive(length, Some(4), 1);
            }
            let received = world.received(0).good();
            assert_eq!((received.context, received.source), (1, 0));
            same(&received.returned.unwrap(), &bytes, "to itself");
            assert_eq!(world.sent(0).context(), 2);
            world.nothing_more();
        }
    }
}

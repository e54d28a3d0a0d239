//! Fences before an endpoint that is several peers of ours: receive contexts that are named, and
//! one by several keys. fi_tagged(3), FI_FENCE: "the fenced operation, and any operation posted
//! after the fenced operation will be deferred until all previous operations targeting the same
//! peer endpoint have completed."

use kestrel_core::{
    address_vector::{FI_ADDR_UNSPEC, Marks},
    domain::DomainOptions,
    endpoint::PostError,
    error::Errno,
    flags::Flags,
    memory_region::{MemoryRange, MemoryRegionAttributes},
    one_sided::{RemoteSegment, RmaPost},
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory, Options, Send, World, pattern, same},
    contexts::{Portal, counts, named, next, nothing_more, two},
};

/// A message that is complete when it is matched, and may have a fence.
fn message(bytes: &Memory, flags: Flags, context: u64) -> Send<'static> {
    Send { pieces: bytes.all(), flags, context, ..Send::default() }
}

/// Messages of one packet, and of several.
const LENGTHS: [usize; 2] = [100, 100_000];

pub fn a_fence_waits_for_every_context_of_its_peer<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let (bytes, short) = (Memory::from(pattern(1, length)), Memory::from(pattern(2, 8)));
        let [ours, theirs] = two(bed, counts(1, 1), counts(1, 3));
        let all = [&ours, &theirs];
        let sender = &ours.transmit[0];
        let receive = |at: usize, room: usize, context| {
            let receiver = &theirs.receive[at].endpoint;
            receiver.receive(vec![0; room], FI_ADDR_UNSPEC, context).unwrap();
        };
        for at in [0, 1] {
            sender.endpoint.inject(&[1], named(1, at as u64)).unwrap();
            receive(at, 8, 0);
            next(&theirs.receive[at], &all).good();
        }
        let post = |to, flags, context| {
            let bytes = if context == 1 { &bytes } else { &short };
            sender.endpoint.post_send(message(bytes, flags, context).post(to)).unwrap();
        };
        [1, 2].into_iter().for_each(|at| receive(at, 8, 9));
        post(named(1, 0), Flags::MATCH_COMPLETE, 1);
        post(named(1, 1), Flags::FENCE, 2);
        // Behind it, also to a context that nothing was sent to before.
        post(named(1, 2), Flags::empty(), 3);
        post(named(1, 1), Flags::empty(), 4);
        assert_eq!(sender.endpoint.inject(&[1], named(1, 0)), Err(PostError::Again));
        nothing_more(&all);
        // Another endpoint does not wait.
        ours.receive[0].endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 9).unwrap();
        post(named(0, 0), Flags::FENCE, 5);
        assert_eq!(next(&ours.receive[0], &all).context(), 9);
        assert_eq!(next(sender, &all).context(), 5);
        nothing_more(&all);
        receive(0, length, 9);
        same(&next(&theirs.receive[0], &all).good().returned.unwrap(), &bytes.bytes(), "sent");
        assert_eq!(next(sender, &all).context(), 1);
        let mut behind: Vec<u64> = (0..3).map(|_| next(sender, &all).context()).collect();
        behind.sort_unstable();
        assert_eq!(behind, [2, 3, 4]);
        receive(1, 8, 9);
        for at in [1, 2, 1] {
            next(&theirs.receive[at], &all).good();
        }
        // It is over, for calls that cannot wait as well.
        sender.endpoint.inject(&[1], named(1, 0)).unwrap();
        receive(0, 8, 7);
        assert_eq!(next(&theirs.receive[0], &all).context(), 7);
        nothing_more(&all);
    }
}

pub fn a_fence_waits_for_every_key_of_its_peer<P: Provider>(bed: &Bed<P>) {
    for length in LENGTHS {
        let (bytes, short) = (Memory::from(pattern(1, length)), Memory::from(pattern(2, 8)));
        let keys = vec![b"blue".to_vec(), b"red".to_vec()];
        let options = Options { keys, ..Options::default() };
        let world = World { nodes: vec![bed.stranger(&options), bed.stranger(&options)] };
        let node = &world.nodes[0];
        let to = [&b"blue"[..], b"red"].map(|key| {
            let handle = node.vector.insert_auth_key(key).unwrap();
            let (mut handle_at, mut found) = (|_| handle, None);
            let address = world.nodes[1].endpoint.address();
            let marks = Marks::AuthKeys(&mut handle_at);
            node.vector.insert_each([address], marks, |result| found = result.ok());
            found.unwrap()
        });
        for to in to {
            world.nodes[1].receive(8, None, 0);
            world.post(|| node.endpoint.inject(&[1], to));
            world.received(1).good();
        }
        let post = |to, tag, flags| {
            let bytes = if tag == 3 { &short } else { &bytes };
            let send = Send { tag: Some(tag), ..message(bytes, flags, tag) };
            node.post_send(to, &send).unwrap();
        };
        world.nodes[1].receive(8, Some(3), 3);
        // The last one waits for both, and the second for the first.
        post(to[0], 1, Flags::MATCH_COMPLETE);
        post(to[1], 2, Flags::MATCH_COMPLETE | Flags::FENCE);
        post(to[0], 3, Flags::FENCE);
        world.nothing_more();
        for tag in [1, 2] {
            world.nodes[1].receive(length, Some(tag), tag);
            assert_eq!(world.received(1).context(), tag);
            assert_eq!(world.sent(0).context(), tag);
            if tag == 1 {
                world.nothing_more();
            }
        }
        assert_eq!((world.received(1).context(), world.sent(0).context()), (3, 3));
        world.nothing_more();
    }
}

pub fn a_canceled_fence_keeps_nothing_back<P: Provider>(bed: &Bed<P>) {
    let bytes = Memory::from(pattern(1, 8));
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 3));
    let (all, sender) = ([&ours, &theirs], &ours.transmit[0]);
    let post = |to, flags, context| {
        sender.endpoint.post_send(message(&bytes, flags, context).post(named(1, to))).unwrap();
    };
    let cancel = |context| {
        sender.endpoint.cancel(context).unwrap();
        assert_eq!(next(sender, &all).bad(Errno::CANCELED).context, context);
    };
    post(0, Flags::MATCH_COMPLETE, 1);
    for (fenced, behind) in [(2, 3), (4, 5), (6, 7)] {
        post(1, Flags::FENCE, fenced);
        post(2, Flags::empty(), behind);
    }
    nothing_more(&all);
    cancel(4);
    nothing_more(&all);
    cancel(2);
    let mut free = [next(sender, &all).context(), next(sender, &all).context()];
    free.sort_unstable();
    assert_eq!(free, [3, 5]);
    // The fence that is left waits for what they waited for.
    nothing_more(&all);
    cancel(6);
    assert_eq!(next(sender, &all).context(), 7);
    nothing_more(&all);
    for at in [0, 2, 2, 2] {
        let receiver = &theirs.receive[at];
        receiver.endpoint.receive(vec![0; 8], FI_ADDR_UNSPEC, 9).unwrap();
        assert_eq!(next(receiver, &all).context(), 9);
    }
    assert_eq!(next(sender, &all).context(), 1);
    nothing_more(&all);
}

pub fn one_sided_operations_wait_for_every_context<P: Provider>(bed: &Bed<P>) {
    let (memory, bytes) = (Memory::zeroed(4_096), Memory::from(pattern(1, 4_096)));
    let ours = Portal::open(bed, counts(1, 1));
    let domain = bed.domain(DomainOptions::default());
    let theirs = Portal::on(&domain, counts(1, 2));
    ours.knows(&[theirs.endpoint.address()]);
    let range = MemoryRange { address: memory.start(), len: 4_096 };
    let access = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
    let attributes =
        MemoryRegionAttributes { ranges: &[range], access, ..MemoryRegionAttributes::default() };
    // SAFETY: the memory outlives the domain.
    let region = unsafe { domain.register_memory(&attributes) }.unwrap();
    let (all, sender) = ([&ours, &theirs], &ours.transmit[0]);
    // The first one asks for a window, where there are any.
    for context in 0..2 {
        let to = named(0, context);
        let written = sender.endpoint.write(vec![0; 4_096], to, region.base(), region.key(), 6);
        written.unwrap();
        assert_eq!(next(sender, &all).context(), 6);
    }
    let segment = RemoteSegment { address: region.base(), length: 4_096, key: region.key() };
    let write = |flags, context| {
        let (pieces, to, segments) = (bytes.all(), named(0, 1), &[segment]);
        let post = RmaPost {
            pieces,
            to,
            segments,
            data: 0,
            context,
            flags,
            region: None,
            attachment: None,
        };
        sender.endpoint.post_write(post).unwrap();
    };
    let slow = message(&bytes, Flags::MATCH_COMPLETE, 1);
    sender.endpoint.post_send(slow.post(named(0, 0))).unwrap();
    write(Flags::FENCE, 2);
    write(Flags::empty(), 3);
    nothing_more(&all);
    same(&memory.bytes(), &[0; 4_096], "written too early");
    theirs.receive[0].endpoint.receive(vec![0; 4_096], FI_ADDR_UNSPEC, 9).unwrap();
    let done: Vec<u64> = (0..3).map(|_| next(sender, &all).context()).collect();
    assert_eq!(done, [1, 2, 3]);
    same(&memory.bytes(), &bytes.bytes(), "written");
    next(&theirs.receive[0], &all).good();
    // One that is canceled keeps nothing back.
    sender.endpoint.post_send(slow.post(named(0, 0))).unwrap();
    write(Flags::FENCE, 2);
    write(Flags::empty(), 3);
    nothing_more(&all);
    sender.endpoint.cancel(2).unwrap();
    assert_eq!(next(sender, &all).bad(Errno::CANCELED).context, 2);
    assert_eq!(next(sender, &all).context(), 3);
    theirs.receive[0].endpoint.receive(vec![0; 4_096], FI_ADDR_UNSPEC, 9).unwrap();
    assert_eq!(next(sender, &all).context(), 1);
    next(&theirs.receive[0], &all).good();
    domain.close_memory(&region).unwrap();
}

//! What an endpoint is bound to. Reference: fi_endpoint(3), `fi_ep_bind`.

use crate::{
    code,
    connections::Place,
    contexts::open_sep,
    flag,
    host::host,
    one_sided::{KEY, register},
    triggered::counter,
    vectors::Vector,
    world::{Node, World, bind, close, cq_attr, enable},
};

const ANYBODY: u64 = u64::MAX;

/// "An endpoint may only be bound to a single CQ or counter for a given type of operation."
#[test]
fn what_is_bound_twice_is_refused() {
    let Some(host) = host("what_is_bound_twice_is_refused") else { return };
    let world = World::new(host, 0);
    let ep = world.open_ep();
    let queues = [(); 2].map(|()| world.open_cq(&mut cq_attr()).unwrap());
    let counters = [(); 2].map(|()| counter(&world));
    let other = Vector::open(&world, 0);
    let vectors = [world.av, other.av];
    assert_eq!(bind(ep, queues[0], flag::SEND), 0);
    for flags in [flag::SEND, flag::SEND | flag::RECV] {
        assert_eq!(queues.map(|cq| bind(ep, cq, flags)), [code::INVAL; 2], "{flags:#x}");
    }
    assert_eq!(bind(ep, queues[0], flag::RECV), 0, "what was refused has bound nothing");
    let [read, write] = [flag::READ | flag::REMOTE_READ, flag::WRITE | flag::REMOTE_WRITE];
    for kinds in [flag::SEND, flag::RECV, read, write] {
        assert_eq!(bind(ep, counters[0], kinds), 0, "{kinds:#x}");
        assert_eq!(counters.map(|cntr| bind(ep, cntr, kinds)), [code::INVAL; 2], "{kinds:#x}");
    }
    for kind in [flag::READ, flag::WRITE, flag::REMOTE_READ, flag::REMOTE_WRITE] {
        assert_eq!(bind(ep, counters[1], kind), code::INVAL, "{kind:#x}");
    }
    assert_eq!(bind(ep, vectors[0], 0), 0);
    assert_eq!(vectors.map(|av| bind(ep, av, 0)), [code::INVAL; 2]);
    // Neither was bound, so they close.
    assert_eq!((close(queues[1]), close(counters[1]), close(other.av)), (0, 0, 0));
    assert_eq!((close(queues[0]), close(counters[0])), (code::BUSY, code::BUSY));
    assert_eq!((close(ep), close(queues[0]), close(counters[0])), (0, 0, 0));
}

/// "The following flags may be OR'ed together"; "CQs, counters, AV, and shared contexts must be bound
/// to endpoints before they are enabled".
#[test]
fn what_is_bound_wrongly_or_late_is_refused() {
    let Some(host) = host("what_is_bound_wrongly_or_late_is_refused") else { return };
    let mut world = World::new(host, 0);
    let ep = world.open_ep();
    let (cq, cntr) = (world.open_cq(&mut cq_attr()).unwrap(), counter(&world));
    for flags in [0, flag::SELECTIVE_COMPLETION, flag::SEND | flag::READ, flag::REMOTE_WRITE] {
        assert_eq!(bind(ep, cq, flags), code::BADFLAGS, "{flags:#x}");
    }
    for flags in [0, flag::SELECTIVE_COMPLETION, flag::SEND | flag::SELECTIVE_COMPLETION] {
        assert_eq!(bind(ep, cntr, flags), code::BADFLAGS, "{flags:#x}");
    }
    assert_eq!(bind(ep, world.av, flag::SEND), code::BADFLAGS);
    assert_eq!([bind(ep, world.domain, 0), bind(ep, ep, 0)], [code::INVAL; 2]);
    // Nothing is bound yet; then it is enabled with what it needs.
    let node = world.add(ep, &mut cq_attr(), 0);
    assert_eq!(bind(ep, cq, flag::SEND), code::OPBADSTATE);
    assert_eq!(bind(ep, cntr, flag::SEND), code::OPBADSTATE);
    assert_eq!(bind(ep, world.av, 0), code::OPBADSTATE);
    world.nodes.clear();
    assert_eq!([close(cq), close(cntr), close(ep), close(node.cq)], [0; 4]);
    // Flags are of queues and counters; an endpoint that listens has an event queue, and nothing else.
    let sep = open_sep(&world).unwrap();
    assert_eq!(bind(sep, world.av, flag::SEND), code::BADFLAGS);
    let place = Place::listening(host);
    assert_eq!(bind(place.pep, world.av, 0), code::INVAL);
    // Which means nothing of a passive one's: some programs pass FI_CONNREQ, a number, there.
    let pep = place.open_pep(place.info);
    assert_eq!([bind(pep, place.events, 1), close(pep), close(sep)], [0; 3]);
    place.close();
}

/// "An active endpoint may direct asynchronous completions to different CQs, based on the type of
/// operation": FI_TRANSMIT "includes send message, RMA, and atomic operations".
#[test]
fn completions_go_to_the_queue_of_their_direction() {
    let Some(host) = host("completions_go_to_the_queue_of_their_direction") else { return };
    let world = World::new(host, 0);
    let ep = world.open_ep();
    let queues = [(); 2].map(|()| world.open_cq(&mut cq_attr()).unwrap());
    let [outbound, inbound] = queues.map(|cq| Node { cq, ep });
    assert_eq!([bind(ep, queues[0], flag::SEND), bind(ep, queues[1], flag::RECV)], [0, 0]);
    assert_eq!((bind(ep, world.av, 0), enable(ep), world.insert(ep)), (0, 0, 0));
    let mut memory = [5_u64; 1];
    let mr = register(&world, &mut memory, flag::REMOTE_READ | flag::REMOTE_WRITE);
    let (sent, mut room, mut word, none) = ([7_u8; 8], [0_u8; 8], 0_u64, std::ptr::null_mut());
    assert_eq!(inbound.receive(&mut room, ANYBODY, 1), 0);
    assert_eq!(outbound.send(&sent, 0, 2), 0);
    // SAFETY: the endpoint is open, and the words outlive their operations.
    unsafe {
        let (rma, at) = (&*(*ep).rma, (&raw mut word).cast());
        assert_eq!((rma.read)(ep, at, 8, none, 0, 0, KEY, 3 as *mut _), 0);
        assert_eq!((rma.write)(ep, sent.as_ptr().cast(), 8, none, 0, 0, KEY, 4 as *mut _), 0);
    }
    let next = |node: Node, other: Node| match node.outcome(&[other]) {
        Ok(entry) => entry.op_context as usize,
        Err(error) => panic!("an operation failed: {}", error.err),
    };
    let mut told = [(); 3].map(|()| next(outbound, inbound));
    told.sort_unstable();
    assert_eq!((told, next(inbound, outbound)), ([2, 3, 4], 1));
    for node in [outbound, inbound] {
        assert_eq!(node.read().err(), Some(code::AGAIN));
    }
    // SAFETY: the word is there.
    assert_eq!((unsafe { (&raw const word).read_volatile() }, room), (5, sent));
    assert_eq!([close(mr), close(ep), close(queues[0]), close(queues[1])], [0; 4]);
}

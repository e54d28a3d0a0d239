//! A shared context of one direction beside several contexts of the other. Reference:
//! fi_endpoint(3), "SHARED CONTEXTS".

use std::ptr::null_mut;

use crate::{
    abi::{fid::FidEp, info::Info},
    code,
    connections::name,
    contexts::{
        NAMED_RX_CTX, SHARED, completion, insert, named, open_av, open_sep, open_shared, receive,
        rx_context, send, tx_context,
    },
    flag,
    host::{Host, host},
    world::{Node, World, bind, close, cq_attr, enable, info},
};

/// A domain for scalable endpoints of so many contexts.
fn mixed_world(host: &'static Host, transmit: usize, receive: usize) -> World {
    let world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::TAGGED | NAMED_RX_CTX | flag::SOURCE;
        set_counts(hints, transmit, receive);
    });
    // SAFETY: the info has all attributes.
    assert_eq!(counts(unsafe { &*world.info }), (transmit, receive));
    world
}

fn set_counts(info: &mut Info, transmit: usize, receive: usize) {
    // SAFETY: an info has all attributes.
    let attr = unsafe { &mut *info.ep_attr };
    (attr.tx_ctx_cnt, attr.rx_ctx_cnt) = (transmit, receive);
}

fn counts(info: &Info) -> (usize, usize) {
    // SAFETY: as above.
    let attr = unsafe { &*info.ep_attr };
    (attr.tx_ctx_cnt, attr.rx_ctx_cnt)
}

/// A context with a queue of its own, enabled.
pub fn enabled(world: &World, ep: *mut FidEp, direction: u64) -> Node {
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!((bind(ep, cq, direction), enable(ep)), (0, 0));
    Node { cq, ep }
}

#[test]
fn receive_contexts_stand_beside_a_shared_transmit_context() {
    let Some(host) = host("receive_contexts_stand_beside_a_shared_transmit_context") else {
        return;
    };
    let world = mixed_world(host, SHARED, 2);
    let (stx, srx) = open_shared(&world);
    let (sep, av) = (open_sep(&world).unwrap(), open_av(&world));
    assert_eq!(bind(sep, av, 0), 0);
    let transmit = tx_context(sep, 0, null_mut()).unwrap();
    assert_eq!(tx_context(sep, 1, null_mut()), Err(code::INVAL), "there is one that is shared");
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!((bind(transmit, cq, flag::SEND), enable(transmit)), (0, code::OPBADSTATE));
    assert_eq!([bind(transmit, stx, 0), bind(sep, srx, 0)], [code::INVAL; 2]);
    assert_eq!([bind(sep, stx, 0), bind(sep, stx, 0)], [0, code::INVAL]);
    assert_eq!(bind(sep, null_mut::<FidEp>(), 0), code::INVAL);
    assert_eq!(enable(transmit), 0);
    let transmit = Node { cq, ep: transmit };
    let receives = [0, 1]
        .map(|index| enabled(&world, rx_context(sep, index, null_mut()).unwrap(), flag::RECV));
    assert_eq!(insert(av, &name(sep)), 0);
    let all = [transmit, receives[0], receives[1]];
    for (index, node) in receives.into_iter().enumerate() {
        let (sent, mut received) = (7 + index as u64, 0);
        assert_eq!(receive(node.ep, &mut received, 3), 0);
        assert_eq!(send(transmit.ep, &sent, named(0, index as u64), 4), 0);
        let (entry, source) = completion(node, &all);
        assert_eq!((entry.op_context as usize, source, received), (3, 0, sent));
        assert_eq!(completion(transmit, &all).0.op_context as usize, 4);
    }
    assert_eq!(all.map(|node| close(node.ep)), [0; 3]);
    assert_eq!([close(stx), close(sep), close(stx), close(srx)], [code::BUSY, 0, 0, 0]);
    assert_eq!(all.map(|node| close(node.cq)), [0; 3]);
    assert_eq!(close(av), 0);
}

#[test]
fn transmit_contexts_stand_beside_a_shared_receive_context() {
    let Some(host) = host("transmit_contexts_stand_beside_a_shared_receive_context") else {
        return;
    };
    let world = mixed_world(host, 2, SHARED);
    let (stx, srx) = open_shared(&world);
    let (sep, av) = (open_sep(&world).unwrap(), open_av(&world));
    assert_eq!([bind(sep, av, 0), bind(sep, srx, 0)], [0; 2]);
    let receives = enabled(&world, rx_context(sep, 0, null_mut()).unwrap(), flag::RECV);
    let sends = [0, 1]
        .map(|index| enabled(&world, tx_context(sep, index, null_mut()).unwrap(), flag::SEND));
    assert_eq!(insert(av, &name(sep)), 0);
    let all = [receives, sends[0], sends[1]];
    for (index, node) in sends.into_iter().enumerate() {
        let (sent, mut received) = (7 + index as u64, 0);
        assert_eq!(receive(srx, &mut received, 3), 0);
        assert_eq!(send(node.ep, &sent, 0, 4), 0);
        let (entry, source) = completion(receives, &all);
        assert_eq!((entry.op_context as usize, source, received), (3, 0, sent));
        assert_eq!(completion(node, &all).0.op_context as usize, 4);
    }
    let mut buffer = 0;
    assert_eq!(receive(receives.ep, &mut buffer, 0) as i32, code::OPNOTSUPP);
    assert_eq!(all.map(|node| close(node.ep)), [0; 3]);
    assert_eq!([close(srx), close(sep), close(srx), close(stx)], [code::BUSY, 0, 0, 0]);
    assert_eq!(all.map(|node| close(node.cq)), [0; 3]);
    assert_eq!(close(av), 0);
}

/// "Endpoints associated with a shared transmit context must use a subset of the transmit context's
/// attributes": of transmit attributes, and the same of what they receive.
#[test]
fn a_side_shares_what_its_own_attributes_say() {
    let Some(host) = host("a_side_shares_what_its_own_attributes_say") else { return };
    let world = World::empty(host, |hints| {
        hints.caps = flag::MSG | flag::RMA;
        // SAFETY: hints have all attributes.
        unsafe {
            (*hints.tx_attr).caps = flag::RMA | flag::WRITE;
            (*hints.rx_attr).caps = flag::MSG | flag::RECV;
            ((*hints.ep_attr).tx_ctx_cnt, (*hints.ep_attr).rx_ctx_cnt) = (SHARED, SHARED);
        }
    });
    let (stx, srx) = open_shared(&world);
    let (ep, cq) = (world.open_ep(), world.open_cq(&mut cq_attr()).unwrap());
    assert_eq!([bind(ep, stx, 0), bind(ep, srx, 0), bind(ep, world.av, 0)], [0; 3]);
    assert_eq!((bind(ep, cq, flag::SEND | flag::RECV), enable(ep)), (0, 0));
    assert_eq!([close(ep), close(cq), close(stx), close(srx)], [0; 4]);
}

/// "This is the reverse of the requirement for transmit contexts": what the domain was opened with is no
/// bound of a shared context that has no attributes.
#[test]
fn a_shared_context_without_attributes_has_the_usual_sizes() {
    let Some(host) = host("a_shared_context_without_attributes_has_the_usual_sizes") else {
        return;
    };
    let world = World::empty(host, |hints| {
        hints.caps = flag::MSG;
        // SAFETY: hints have all attributes.
        unsafe {
            ((*hints.tx_attr).size, (*hints.tx_attr).inject_size) = (64, 64);
            (*hints.ep_attr).tx_ctx_cnt = SHARED;
        }
    });
    let mut stx = null_mut();
    // SAFETY: the domain is open, and the info has all attributes.
    unsafe {
        let open = (*(*world.domain).ops).stx_ctx;
        assert_eq!(open(world.domain, null_mut(), &raw mut stx, null_mut()), 0);
        let asked = &mut *(*world.info).tx_attr;
        (asked.size, asked.inject_size) = (1024, 4096);
    }
    let ep = world.open_ep();
    assert_eq!(bind(ep, stx, 0), 0);
    assert_eq!([close(ep), close(stx)], [0; 2]);
}

/// "If not specified (0), 1 context will be assigned"; and there are no more than the domain's
/// max_ep_tx_ctx and max_ep_rx_ctx say.
#[test]
fn counts_of_contexts_have_a_default_and_a_limit() {
    let Some(host) = host("counts_of_contexts_have_a_default_and_a_limit") else { return };
    let world = World::empty(host, |hints| set_counts(hints, 0, 0));
    // SAFETY: the info has all attributes, and nobody else uses it.
    let (given, most) = unsafe { (&mut *world.info, &*(*world.info).domain_attr) };
    assert_eq!(counts(given), (1, 1));
    set_counts(given, 0, 0);
    let sep = open_sep(&world).unwrap();
    let contexts = [tx_context(sep, 0, null_mut()), rx_context(sep, 0, null_mut())];
    assert_eq!(contexts.map(|context| close(context.unwrap())), [0; 2]);
    let second = [tx_context(sep, 1, null_mut()), rx_context(sep, 1, null_mut())];
    assert_eq!(second, [Err(code::INVAL); 2]);
    assert_eq!(close(sep), 0);
    let [transmit, receive] = [most.max_ep_tx_ctx, most.max_ep_rx_ctx];
    assert_eq!([transmit, receive], [256; 2]);
    let found = info(host, |hints| set_counts(hints, transmit, receive)).unwrap();
    // SAFETY: the info is libfabric's.
    unsafe {
        assert_eq!(counts(&*found), (transmit, receive));
        (host.freeinfo)(found);
    }
    for (transmit, receive) in [(transmit + 1, 1), (1, receive + 1)] {
        let found = info(host, |hints| set_counts(hints, transmit, receive));
        assert_eq!(found, Err(code::NODATA));
        set_counts(given, transmit, receive);
        assert_eq!(open_sep(&world), Err(code::INVAL));
    }
}

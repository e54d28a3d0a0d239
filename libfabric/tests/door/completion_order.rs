//! The order of completions that an application asks for. Reference: fi_endpoint(3), "comp_order".

use std::{ffi::c_void, ptr::null_mut};

use crate::{
    abi::{
        attributes::Iovec,
        fid::FidEp,
        info::{Info, RxAttr, TxAttr},
        message::MsgTagged,
    },
    code,
    data_order::DATA,
    host::{Host, host},
    kind,
    world::{Node, World, bind, close, cq_attr, enable, info},
};

pub const STRICT: u64 = 0x1ff;
const UNSPEC: u64 = u64::MAX;
/// Longer than what may leave unasked.
pub const LONG: usize = 200_000;

/// What each direction's order is in the answer to hints of these orders.
pub fn answered(host: &Host, kind: u32, (tx, rx): (u64, u64)) -> Result<(u64, u64), i32> {
    let found = info(host, |hints| order(hints, kind, (tx, rx)))?;
    // SAFETY: libfabric's answer, with all attributes.
    unsafe {
        let orders = ((*(*found).tx_attr).comp_order, (*(*found).rx_attr).comp_order);
        (host.freeinfo)(found);
        Ok(orders)
    }
}

pub fn order(hints: &mut Info, kind: u32, (tx, rx): (u64, u64)) {
    // SAFETY: hints have all attributes.
    unsafe {
        (*hints.ep_attr).kind = kind;
        (*hints.tx_attr).comp_order = tx;
        (*hints.rx_attr).comp_order = rx;
    }
}

#[test]
fn an_order_is_for_who_asks() {
    let Some(host) = host("an_order_is_for_who_asks") else { return };
    for kind in [kind::RDM, kind::MSG, kind::DGRAM] {
        for asked in [(0, 0), (STRICT, 0), (0, STRICT), (STRICT, STRICT)] {
            assert_eq!(answered(host, kind, asked), Ok(asked));
        }
    }
    // Where nothing completes there is no order.
    assert_eq!(answered(host, kind::SOCK_STREAM, (STRICT, 0)), Err(code::NODATA));
}

/// A tagged send of two pieces, so that nobody reads it where it lies, or a receive of one.
pub fn post(node: Node, bytes: &mut [u8], tag: u64, sends: bool) {
    let (left, right) = bytes.split_at_mut(if sends { bytes.len() / 2 } else { bytes.len() });
    let iov = [left, right].map(|it| Iovec { base: it.as_mut_ptr().cast(), len: it.len() });
    let message = MsgTagged {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: iov.len(),
        addr: if sends { 1 } else { UNSPEC },
        tag,
        ignore: 0,
        context: tag as *mut c_void,
        data: 0,
    };
    // SAFETY: the endpoint is open, and the test keeps the bytes until their completions.
    unsafe {
        let calls = &*(*node.ep).tagged;
        let call = if sends { calls.sendmsg } else { calls.recvmsg };
        assert_eq!(call(node.ep, &raw const message, 0), 0);
    }
}

/// The contexts of all that has completed by now, while `driven` are driven.
pub fn completed(node: Node, driven: &[Node]) -> Vec<usize> {
    let mut contexts = Vec::new();
    for _ in 0..200 {
        driven.iter().for_each(|node| node.progress());
        contexts.extend(node.read().map(|entry| entry.op_context as usize));
    }
    contexts
}

/// Two endpoints with these orders, connected.
pub fn connected(host: &'static Host, orders: (u64, u64)) -> (World, [Node; 2]) {
    let mut world = World::empty(host, |hints| order(hints, kind::RDM, orders));
    let [from, to] = [(); 2].map(|()| world.add_node(&mut cq_attr(), 0));
    let (mut sent, mut received) = ([3; 8], [0; 8]);
    post(to, &mut received, 3, false);
    post(from, &mut sent, 3, true);
    for node in [to, from] {
        assert_eq!(world.completion(node).op_context as usize, 3);
    }
    (world, [from, to])
}

#[test]
fn requests_complete_in_the_order_of_submission() {
    let Some(host) = host("requests_complete_in_the_order_of_submission") else { return };
    for asked in [0, STRICT] {
        let (mut long, mut short) = (vec![1; LONG], [2; 8]);
        let (mut long_into, mut short_into) = (vec![0; LONG], [0; 8]);
        let (world, [from, to]) = connected(host, (asked, 0));
        post(to, &mut short_into, 2, false);
        post(from, &mut long, 1, true);
        post(from, &mut short, 2, true);
        assert_eq!(world.completion(to).op_context as usize, 2);
        let mut sent = completed(from, &[to]);
        let early: &[usize] = if asked == STRICT { &[] } else { &[2] };
        assert_eq!(sent, early);
        post(to, &mut long_into, 1, false);
        while sent.len() < 2 {
            sent.push(world.completion(from).op_context as usize);
        }
        assert_eq!(sent, if asked == STRICT { [1, 2] } else { [2, 1] });
        assert_eq!(world.completion(to).op_context as usize, 1);
        assert!(long_into == long && short_into == short);
    }
}

#[test]
fn receives_complete_in_the_order_of_matching() {
    let Some(host) = host("receives_complete_in_the_order_of_matching") else { return };
    for asked in [0, STRICT] {
        let (mut long, mut short) = (vec![1; LONG], [2; 8]);
        let (mut long_into, mut short_into) = (vec![0; LONG], [0; 8]);
        let (world, [from, to]) = connected(host, (0, asked));
        post(to, &mut long_into, 1, false);
        post(to, &mut short_into, 2, false);
        post(from, &mut long, 1, true);
        post(from, &mut short, 2, true);
        // Without its sender the long one does not come.
        let mut received = completed(to, &[]);
        let early: &[usize] = if asked == STRICT { &[] } else { &[2] };
        assert_eq!(received, early);
        while received.len() < 2 {
            received.push(world.completion(to).op_context as usize);
        }
        assert_eq!(received, if asked == STRICT { [1, 2] } else { [2, 1] });
        assert!(long_into == long && short_into == short);
    }
}

/// Opens a transmit or a receive context of an endpoint, with attributes of its own or without.
fn context<A>(
    sep: *mut FidEp,
    attr: Option<&mut A>,
    open: impl FnOnce(*mut FidEp, *mut A, *mut *mut FidEp) -> i32,
) -> *mut FidEp {
    let mut ep = null_mut();
    assert_eq!(open(sep, attr.map_or(null_mut(), |attr| attr), &raw mut ep), 0);
    ep
}

/// "By default, a transmit context inherits the properties of its associated endpoint."
#[test]
fn contexts_inherit_the_order() {
    let Some(host) = host("contexts_inherit_the_order") else { return };
    for asked in [(0, 0), (STRICT, STRICT), (STRICT, STRICT | DATA)] {
        let world = World::empty(host, |hints| order(hints, kind::RDM, asked));
        let mut sep = null_mut();
        // SAFETY: the domain is open, the info libfabric's; attributes of zeroes ask for nothing.
        unsafe {
            let ops = &*(*world.domain).ops;
            assert_eq!((ops.scalable_ep)(world.domain, world.info, &raw mut sep, null_mut()), 0);
            assert_eq!((bind(sep, world.av, 0), enable(sep)), (0, 0));
            let (tx_ctx, rx_ctx) = ((*(*sep).ops).tx_ctx, (*(*sep).ops).rx_ctx);
            let (mut tx, mut rx): (TxAttr, RxAttr) = (std::mem::zeroed(), std::mem::zeroed());
            let transmit = context(sep, Some(&mut tx), |sep, attr, place| {
                tx_ctx(sep, 0, attr, place, null_mut())
            });
            let receive = context(sep, Some(&mut rx), |sep, attr, place| {
                rx_ctx(sep, 0, attr, place, null_mut())
            });
            assert_eq!((tx.comp_order, rx.comp_order), asked);
            assert_eq!((close(transmit), close(receive)), (0, 0));
            // One may have an order that its endpoint has not.
            let mut tx: TxAttr = std::mem::zeroed();
            tx.comp_order = STRICT;
            let transmit = context(sep, Some(&mut tx), |sep, attr, place| {
                tx_ctx(sep, 0, attr, place, null_mut())
            });
            assert_eq!((tx.comp_order, close(transmit), close(sep)), (STRICT, 0, 0));
        }
    }
}

//! Aliases: other ways to the same endpoint, with default flags of their own.
//! Reference: fi_endpoint(3), `fi_ep_alias`.

use std::{ffi::c_void, ptr::null_mut};

use crate::{
    abi::{
        attributes::Alias,
        fid::{Fid, FidEp, class},
        info::TxAttr,
    },
    code,
    connections::{CONNECTED, End, Place, are_told, name},
    contexts::{open_sep, rx_context, scalable_world, tx_context},
    control::flags_of,
    flag,
    host::host,
    world::{Node, World, bind, close, cq_attr, enable},
};

const ALIAS: i32 = 4;
const COMPLETION: u64 = 1 << 24;
const FENCE: u64 = 1 << 21;

/// `fi_ep_alias`.
pub fn alias(ep: *mut FidEp, flags: u64) -> Result<*mut FidEp, i32> {
    let mut other: *mut Fid = null_mut();
    let mut asked = Alias { fid: &raw mut other, flags };
    // SAFETY: the endpoint is open; the command takes a `struct fi_alias`.
    let status =
        unsafe { ((*(*ep).fid.ops).control)(ep.cast(), ALIAS, (&raw mut asked).cast::<c_void>()) };
    if status == 0 { Ok(other.cast()) } else { Err(status) }
}

fn send(ep: *mut FidEp, context: usize) {
    // SAFETY: the endpoint is open; there is no buffer.
    let answer =
        unsafe { ((*(*ep).msg).send)(ep, null_mut(), 0, null_mut(), 0, context as *mut c_void) };
    assert_eq!(answer, 0);
}

#[test]
fn an_alias_differs_by_its_default_flags() {
    let Some(host) = host("an_alias_differs_by_its_default_flags") else { return };
    let mut world = World::empty(host, |_| {});
    let node = world.add_node(&mut cq_attr(), flag::SELECTIVE_COMPLETION);
    let other = alias(node.ep, flag::SEND | COMPLETION).unwrap();
    send(node.ep, 1);
    send(other, 2);
    send(node.ep, 3);
    // Only the alias asks for completions, and only of sends.
    let done = world.completion(node);
    assert_eq!((done.op_context as usize, done.flags), (2, flag::MSG | flag::SEND));
    for _ in 0..100 {
        assert_eq!(node.read().err(), Some(code::AGAIN));
    }
    assert_eq!(close(node.ep), code::BUSY, "an alias is open");
    let third = alias(other, flag::RECV).unwrap();
    assert_eq!(close(other), 0);
    assert_eq!(close(node.ep), code::BUSY, "an alias of an alias is open");
    send(third, 4);
    assert_eq!(world.completion(node).op_context as usize, 4, "inherited from the first alias");
    assert_eq!(close(third), 0);
}

#[test]
fn an_alias_can_do_what_its_endpoint_can() {
    let Some(host) = host("an_alias_can_do_what_its_endpoint_can") else { return };
    let world = World::new(host, 0);
    let ep = world.open_ep();
    let other = alias(ep, flag::SEND).unwrap();
    let cq = world.open_cq(&mut cq_attr()).unwrap();
    assert_eq!(bind(other, cq, flag::SEND | flag::RECV), 0);
    assert_eq!((bind(ep, world.av, 0), enable(other)), (0, 0));
    assert_eq!(enable(ep), code::OPBADSTATE);
    let names = [ep, other].map(|ep| {
        let (mut name, mut length) = ([0_u8; 64], 64);
        // SAFETY: the endpoint is open, and the buffer that long.
        let status =
            unsafe { ((*(*ep).cm).getname)(ep.cast(), name.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!(status, 0);
        name
    });
    assert_eq!(names[0], names[1]);
    assert_eq!([close(other), close(ep), close(cq)], [0; 3]);
}

#[test]
fn aliases_are_of_one_direction() {
    let Some(host) = host("aliases_are_of_one_direction") else { return };
    let world = World::new(host, 1);
    let ep = world.nodes[0].ep;
    for flags in [0, flag::SEND | flag::RECV, COMPLETION, flag::SEND | 1 << 62] {
        assert_eq!(alias(ep, flags).err(), Some(code::BADFLAGS), "{flags:#x}");
    }
    let mut nowhere = Alias { fid: null_mut(), flags: flag::SEND };
    // SAFETY: the endpoint is open; what is null is what is tested.
    unsafe {
        let control = (*(*ep).fid.ops).control;
        assert_eq!(control(ep.cast(), ALIAS, null_mut()), code::INVAL);
        assert_eq!(control(ep.cast(), ALIAS, (&raw mut nowhere).cast()), code::INVAL);
    }
}

#[test]
fn a_context_has_aliases() {
    let Some(host) = host("a_context_has_aliases") else { return };
    let mut world = scalable_world(host);
    let sep = open_sep(&world).unwrap();
    assert_eq!(bind(sep, world.av, 0), 0);
    assert_eq!(world.insert(sep), 0);
    let [sends, receives] = [(); 2].map(|()| world.open_cq(&mut cq_attr()).unwrap());
    let transmit = tx_context(sep, 0, null_mut()).unwrap();
    let receive = rx_context(sep, 0, null_mut()).unwrap();
    let selective = flag::SELECTIVE_COMPLETION;
    assert_eq!(bind(transmit, sends, flag::SEND | selective), 0);
    assert_eq!(bind(receive, receives, flag::RECV), 0);
    let other = alias(transmit, flag::SEND | COMPLETION).unwrap();
    // SAFETY: it is open.
    assert_eq!(unsafe { (*other).fid.fclass }, class::TX_CTX);
    assert_eq!(name(other), name(sep));
    assert_eq!([enable(other), enable(receive), enable(transmit)], [0, 0, code::OPBADSTATE]);
    for (context, no_flags) in [(receive, flag::SEND), (transmit, flag::RECV)] {
        assert_eq!(alias(context, no_flags).err(), Some(code::BADFLAGS), "of the other direction");
    }
    send(transmit, 1);
    send(other, 2);
    let (sends, receives) = (Node { cq: sends, ep: other }, Node { cq: receives, ep: receive });
    world.nodes.extend([sends, receives]);
    assert_eq!(world.completion(sends).op_context as usize, 2, "only the alias asks for it");
    world.nodes.clear();
    assert_eq!(close(transmit), code::BUSY, "an alias is open");
    assert_eq!([close(receive), close(sep)], [0, code::BUSY]);
    assert_eq!([close(other), close(transmit), close(sep)], [0; 3]);
    assert_eq!([close(sends.cq), close(receives.cq)], [0; 2]);
}

/// "An alias EP differs from its parent endpoint only by its default data transfer flags": events name the
/// endpoint, by whichever way its queue was bound.
#[test]
fn events_name_the_endpoint_and_not_an_alias() {
    let Some(host) = host("events_name_the_endpoint_and_not_an_alias") else { return };
    let place = Place::listening(host);
    let end = End { eq: place.open_eq(), ..place.open_alone(place.info).unwrap() };
    let other = alias(end.ep, flag::SEND).unwrap();
    assert_eq!((bind(other, end.eq, 0), close(other)), (0, 0));
    assert_eq!(end.connect(&name(place.pep), &[]), 0);
    let request = place.request(end);
    let acceptor = place.acceptor(&request);
    assert_eq!(acceptor.accept(&[]), 0);
    are_told([end, acceptor]);
    for end in [end, acceptor] {
        end.sees(CONNECTED);
    }
    end.close();
    acceptor.close();
    place.close();
}

/// "By default, a transmit context inherits the properties of its associated endpoint": an alias's
/// flags are those of the contexts that are opened by it.
#[test]
fn contexts_inherit_the_flags_of_an_alias() {
    let Some(host) = host("contexts_inherit_the_flags_of_an_alias") else { return };
    let world = scalable_world(host);
    let sep = open_sep(&world).unwrap();
    let other = alias(sep, flag::SEND | COMPLETION | FENCE).unwrap();
    let third = alias(other, flag::RECV | COMPLETION).unwrap();
    // SAFETY: it is open.
    assert_eq!(unsafe { (*other).fid.fclass }, class::SEP);
    assert_eq!(name(other), name(sep));
    assert_eq!(alias(sep, flag::SEND | flag::RECV).err(), Some(code::BADFLAGS));
    let both = [flag::SEND, flag::RECV];
    assert_eq!(both.map(|direction| flags_of(sep, direction)), [0, 0]);
    let expected = COMPLETION | FENCE;
    assert_eq!(both.map(|direction| flags_of(other, direction)), [expected, 0]);
    assert_eq!(both.map(|direction| flags_of(third, direction)), [expected, COMPLETION]);
    let [plain, ours] = [(0, sep, 0), (1, other, expected)].map(|(index, by, flags)| {
        // SAFETY: attributes of zeroes are valid.
        let mut attr: TxAttr = unsafe { std::mem::zeroed() };
        let context = tx_context(by, index, &raw mut attr).unwrap();
        assert_eq!((attr.op_flags, flags_of(context, flag::SEND)), (flags, flags));
        // What was told can be asked for.
        assert_eq!(close(context), 0);
        let context = tx_context(by, index, &raw mut attr).unwrap();
        assert_eq!((attr.op_flags, flags_of(context, flag::SEND)), (flags, flags));
        context
    });
    let receive = rx_context(third, 0, null_mut()).unwrap();
    assert_eq!(flags_of(receive, flag::RECV), COMPLETION);
    // What was opened by an alias is the endpoint's.
    assert_eq!(tx_context(sep, 1, null_mut()), Err(code::BUSY));
    assert_eq!([close(sep), close(other), close(sep)], [code::BUSY, 0, code::BUSY]);
    assert_eq!([plain, ours, receive].map(close), [0; 3]);
    assert_eq!(close(sep), code::BUSY, "an alias of an alias is open");
    assert_eq!([close(third), close(sep)], [0; 2]);
}

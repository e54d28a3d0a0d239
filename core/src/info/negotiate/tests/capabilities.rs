//! Capabilities: of endpoints, and of their sides.

use super::*;

#[test]
fn primary_caps_only_as_asked_and_secondary_ones_all() {
    let info = accepted(&Hints::new().caps(Flags::TAGGED));
    let secondary = Flags::MULTI_RECV | Flags::SOURCE | Flags::FENCE;
    let reach = Flags::LOCAL_COMM | Flags::REMOTE_COMM | Flags::SHARED_AV;
    assert_eq!(info.caps, Flags::TAGGED | Flags::SEND | Flags::RECV | secondary | reach);
    assert_eq!(info.transmit.caps, Flags::TAGGED | Flags::SEND | Flags::FENCE);
    let receive = Flags::TAGGED | Flags::RECV | Flags::MULTI_RECV | Flags::SOURCE;
    assert_eq!(info.receive.caps, receive);
}

#[test]
fn a_direction_restricts_both_sides() {
    let info = accepted(&Hints::new().caps(Flags::MSG | Flags::RECV));
    assert!(!info.caps.contains(Flags::SEND));
    assert!(!info.transmit.caps.intersects(Flags::MSG | Flags::SEND));
    assert!(info.receive.caps.contains(Flags::MSG | Flags::RECV));
}

#[test]
fn context_caps_are_subsets_of_the_endpoints() {
    let mut hints = Hints::new().caps(Flags::MSG | Flags::TAGGED);
    hints.transmit.caps = Flags::MSG;
    let info = accepted(&hints);
    assert_eq!(info.transmit.caps, Flags::MSG | Flags::SEND | Flags::FENCE);
    assert!(info.receive.caps.contains(Flags::MSG | Flags::TAGGED));
    let mut hints = Hints::new().caps(Flags::MSG);
    hints.receive.caps = Flags::TAGGED;
    assert_eq!(rejected(&hints), ["rx_attr->caps"]);
    // What means nothing on a side is none of it, but may be named: so does OpenSHMEM.
    let target = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
    let one_sided = Flags::RMA | Flags::ATOMIC;
    let initiator = one_sided | Flags::READ | Flags::WRITE | Flags::RECV;
    for (caps, transmit, receive) in [
        (one_sided | target, one_sided, one_sided | target),
        (initiator, initiator, Flags::RECV),
        (Flags::MSG | Flags::RECV, Flags::MSG, Flags::MSG),
    ] {
        let mut hints = Hints::new().caps(caps);
        (hints.transmit.caps, hints.receive.caps) = (transmit, receive);
        let info = accepted(&hints);
        assert!(info.caps.contains(caps));
        assert!(!info.transmit.caps.intersects(target | Flags::RECV), "{:?}", info.transmit.caps);
        let initiates = Flags::READ | Flags::WRITE | Flags::SEND;
        assert!(!info.receive.caps.intersects(initiates), "{:?}", info.receive.caps);
    }
}

/// Charm++ asks to be read alone, and reads.
#[test]
fn who_sends_may_use_the_memory_of_others() {
    let granted = |caps| accepted(&Hints::new().caps(caps)).caps & (Flags::READ | Flags::WRITE);
    let both = Flags::READ | Flags::WRITE;
    assert_eq!(granted(Flags::TAGGED | Flags::RMA | Flags::REMOTE_READ), both);
    assert_eq!(granted(Flags::MSG | Flags::ATOMIC | Flags::REMOTE_WRITE), both);
    // Who sends nothing has no queue for what it would do.
    for target in [
        Flags::RMA | Flags::REMOTE_READ,
        Flags::MSG | Flags::RECV | Flags::RMA | Flags::REMOTE_READ,
    ] {
        assert!(granted(target).is_empty(), "{target:?}");
    }
    assert_eq!(granted(Flags::MSG | Flags::RMA | Flags::READ), Flags::READ);
    assert_eq!(granted(Flags::MSG | Flags::RMA | Flags::READ | Flags::REMOTE_WRITE), Flags::READ);
}

/// "This flag requires that FI_RMA be set" (fi_getinfo(3), FI_RMA_PMEM).
#[test]
fn persistent_memory_comes_with_remote_memory() {
    let granted = |caps| {
        let info = accepted(&Hints::new().caps(caps));
        [info.caps, info.transmit.caps, info.receive.caps].map(|it| it.contains(Flags::RMA_PMEM))
    };
    assert_eq!(granted(Flags::empty()), [true; 3]);
    assert_eq!(granted(Flags::RMA | Flags::RMA_PMEM), [true; 3]);
    assert_eq!(granted(Flags::RMA | Flags::WRITE), [true, true, false]);
    assert_eq!(granted(Flags::MSG | Flags::ATOMIC), [false; 3]);
}

#[test]
fn errors_for_strangers_are_for_who_asks() {
    assert!(!accepted(&Hints::new()).caps.contains(Flags::SOURCE_ERR));
    assert!(!accepted(&Hints::new().caps(Flags::MSG)).caps.contains(Flags::SOURCE_ERR));
    let hints = Hints::new().caps(Flags::MSG | Flags::SOURCE_ERR);
    for offer in [Offer::rdm(), Offer::datagrams(1 << 12)] {
        let info = negotiate(&offer, Some(&hints), V1_17).unwrap();
        // "Must be paired with FI_SOURCE".
        let both = Flags::SOURCE | Flags::SOURCE_ERR;
        assert!(info.caps.contains(both) && info.receive.caps.contains(both));
        assert!(!info.transmit.caps.contains(Flags::SOURCE_ERR));
    }
    let refused = negotiate(&Offer::msg(), Some(&hints), V1_17).unwrap_err();
    assert!(refused[0].asked.contains("FI_SOURCE_ERR"), "{refused:?}");
}

#[test]
fn triggers_are_for_who_asks() {
    for hints in [Hints::new(), Hints::new().caps(Flags::MSG | Flags::RMA)] {
        assert!(!accepted(&hints).caps.contains(Flags::TRIGGER), "nobody asked for it");
    }
    let hints = Hints::new().caps(Flags::MSG | Flags::TRIGGER);
    for offer in [Offer::rdm(), Offer::msg(), Offer::datagrams(1 << 12)] {
        let info = negotiate(&offer, Some(&hints), V1_17).unwrap();
        for caps in [info.caps, info.transmit.caps, info.receive.caps] {
            assert!(caps.contains(Flags::TRIGGER), "{:?}", info.endpoint.kind);
        }
    }
    let refused = negotiate(&Offer::stream(), Some(&hints), V1_17).unwrap_err();
    assert!(refused[0].asked.contains("FI_TRIGGER"), "{refused:?}");
}

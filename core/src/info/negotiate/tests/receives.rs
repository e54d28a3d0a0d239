//! Receives with a tag that take several messages, or are for one peer.

use super::*;

/// The bit of FI_TAGGED_MULTI_RECV means that since version 2.0. Nobody has it unasked: a default flag
/// FI_MULTI_RECV would be tagged receives' as well.
#[test]
fn tagged_multi_receives_are_for_who_asks() {
    const V2: ApiVersion = ApiVersion::new(2, 0);
    let many = Flags::TAGGED_MULTI_RECV;
    let hints = Hints::new().caps(Flags::TAGGED | many);
    let rejections = negotiate(&Offer::rdm(), Some(&hints), V1_17).unwrap_err();
    assert_eq!(rejections[0].field, "caps");
    for offer in [Offer::rdm(), Offer::msg()] {
        let ask = |hints: Hints| negotiate(&offer, Some(&hints), V2).unwrap();
        let found = ask(hints.clone());
        assert!(found.caps.contains(many) && found.receive.caps.contains(many));
        assert!(!found.transmit.caps.contains(many));
        let all = [
            Hints::new().caps(Flags::TAGGED | Flags::MULTI_RECV),
            Hints::new(),
            // It is a modifier of tagged receives.
            Hints::new().caps(Flags::MSG | many),
            Hints::new().caps(Flags::TAGGED | Flags::SEND | many),
        ];
        for hints in all {
            assert!(!ask(hints).caps.contains(many));
        }
        assert!(!negotiate(&offer, None, V2).unwrap().caps.contains(many));
    }
    assert!(negotiate(&Offer::datagrams(4096), Some(&hints), V2).is_err());
}

/// The same of FI_TAGGED_DIRECTED_RECV, since version 2.0: "Primary capabilities must explicitly be
/// requested".
#[test]
fn tagged_directed_receives_are_for_who_asks() {
    const V2: ApiVersion = ApiVersion::new(2, 0);
    let directed = Flags::TAGGED_DIRECTED_RECV;
    let hints = Hints::new().caps(Flags::TAGGED | Flags::MSG | directed);
    let rejections = negotiate(&Offer::rdm(), Some(&hints), V1_17).unwrap_err();
    assert_eq!(rejections[0].field, "caps");
    let ask = |hints: &Hints| negotiate(&Offer::rdm(), Some(hints), V2).unwrap();
    let found = ask(&hints);
    assert!(found.caps.contains(directed) && found.receive.caps.contains(directed));
    assert!(!found.caps.contains(Flags::DIRECTED_RECV) && !found.transmit.caps.contains(directed));
    assert!(found.caps.direct(Flags::TAGGED) && !found.caps.direct(Flags::MSG));
    for hints in [Hints::new().caps(Flags::TAGGED | Flags::DIRECTED_RECV), Hints::new()] {
        assert!(!ask(&hints).caps.contains(directed));
    }
    // One has no sources, the other no tags.
    for offer in [Offer::msg(), Offer::datagrams(4096)] {
        assert!(negotiate(&offer, Some(&hints), V2).is_err());
    }
}

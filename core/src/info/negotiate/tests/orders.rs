//! Orders of completions and of data.

use super::*;

/// "Providers should return the completion order that they actually provide": one for who asks.
#[test]
fn completions_keep_an_order_for_who_asks() {
    let orders = |info: Info| (info.transmit.completion_order, info.receive.completion_order);
    let (none, strict) = (CompletionOrder::empty(), CompletionOrder::STRICT);
    assert_eq!(orders(accepted(&Hints::new())), (none, none));
    assert_eq!(orders(accepted(&Hints::new().completion_order(strict))), (strict, strict));
    let mut hints = Hints::new();
    hints.transmit.completion_order = strict;
    assert_eq!(orders(accepted(&hints)), (strict, none));
    // Bits of it stand for nothing that is less.
    hints.transmit.completion_order = CompletionOrder::from_bits_retain(1);
    assert_eq!(orders(accepted(&hints)), (strict, none));
    // What never completes has no order.
    let hints = Hints::new().completion_order(strict);
    for offer in [Offer::msg(), Offer::datagrams(4096)] {
        assert_eq!(orders(negotiate(&offer, Some(&hints), V1_17).unwrap()), (strict, strict));
    }
    assert!(negotiate(&Offer::stream(), Some(&hints), V1_17).is_err());
}

/// "Received data is written into memory in order", for who asks for that.
#[test]
fn data_keeps_an_order_for_who_asks() {
    let (data, strict) = (CompletionOrder::DATA, CompletionOrder::STRICT);
    for asked in [data, data | strict] {
        let info = accepted(&Hints::new().completion_order(asked));
        assert_eq!(info.receive.completion_order, asked);
        assert_eq!(info.transmit.completion_order, asked - data);
        // What is not kept is not returned, and who insists on it is told.
        let order = info.receive.message_order;
        assert_eq!(order, MessageOrder::all() - MessageOrder::WAS);
        let hints = Hints::new().completion_order(asked);
        assert!(accepted(&hints.clone().message_order(order)).receive.message_order == order);
        let both = hints.message_order(order | MessageOrder::WAS);
        assert_eq!(rejected(&both), ["rx_attr->msg_order"]);
    }
    assert_eq!(accepted(&Hints::new()).receive.message_order, MessageOrder::all());
    // Nothing that is sent is written here.
    let mut hints = Hints::new();
    hints.transmit.completion_order = data;
    assert_eq!(rejected(&hints), ["tx_attr->comp_order"]);
    let hints = Hints::new().completion_order(data);
    for offer in [Offer::msg(), Offer::datagrams(4096)] {
        let info = negotiate(&offer, Some(&hints), V1_17).unwrap();
        assert_eq!(info.receive.completion_order, data);
        assert!(!info.receive.message_order.contains(MessageOrder::WAS));
    }
    assert!(negotiate(&Offer::stream(), Some(&hints), V1_17).is_err());
}

//! The transmit and the receive context of one index: what is done to one of them does not concern
//! the other. Reference: fi_endpoint(3), "SCALABLE ENDPOINTS": "Transmit contexts are independent
//! transmit queues"; `fi_cancel`, options.

use kestrel_core::{
    endpoint::{Endpoint, EndpointError, OptionName, PostError},
    error::{Errno, HasErrno},
    flags::Flags,
    operation::SendPost,
    transport::Provider,
};

use crate::{
    bed::{Bed, Memory},
    contexts::{Portal, counts, next, nothing_more, two},
};

const LONG: usize = 4 << 20;

/// Whom the other one of [`two`] knows as 1.
const OTHER: u64 = 1;

/// Polls both so often, which leaves what is under way at another point each time.
fn poll_some<P: Provider>(all: &[&Portal<P>], rounds: usize) {
    for _ in 0..rounds {
        all.iter().for_each(|portal| portal.poll());
    }
}

fn post<P: Provider>(context: &Endpoint<P>, message: &Memory, flags: Flags, named: u64) {
    let (pieces, flags) = (message.all(), flags | Flags::COMPLETION);
    let post = SendPost { pieces, to: OTHER, tag: 0, data: 0, context: named, flags, owner: None };
    context.post_send(post).unwrap();
}

pub fn what_is_canceled_is_the_contexts_own<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
    let all = [&ours, &theirs];
    let (send, receive) = (&ours.transmit[0].endpoint, &ours.receive[0].endpoint);
    let nothing = |context| Err(PostError::NothingToCancel { context });
    // Both have one with the same context, and one of their own. The sends wait for a fence.
    send.send(vec![1; LONG], OTHER, 1).unwrap();
    let fenced = Memory::from(vec![2; 8]);
    for context in [5, 6] {
        post(send, &fenced, Flags::MSG | Flags::FENCE, context);
    }
    for context in [5, 7] {
        receive.receive(vec![0; 8], OTHER, context).unwrap();
    }
    poll_some(&all, 50);
    assert_eq!((send.cancel(7), receive.cancel(6)), (nothing(7), nothing(6)));
    assert_eq!(send.cancel(7).unwrap_err().errno(), Errno::NOENT);
    nothing_more(&all);
    send.cancel(5).unwrap();
    assert_eq!(next(&ours.transmit[0], &all).bad(Errno::CANCELED).context, 5);
    assert_eq!(send.cancel(5), nothing(5));
    receive.cancel(5).unwrap();
    assert_eq!(next(&ours.receive[0], &all).bad(Errno::CANCELED).context, 5);
    assert_eq!(receive.cancel(5), nothing(5));
    // The others are as they were.
    for length in [LONG, 8] {
        theirs.receive[0].endpoint.receive(vec![0; length], OTHER, 20).unwrap();
        next(&theirs.receive[0], &all).good();
    }
    let sent = [(); 2].map(|()| next(&ours.transmit[0], &all).good().context);
    assert_eq!(sent, [1, 6]);
    theirs.transmit[0].endpoint.inject(&[3; 8], OTHER).unwrap();
    assert_eq!(next(&ours.receive[0], &all).good().context, 7);
    nothing_more(&all);
}

pub fn the_least_of_a_buffer_is_the_receive_contexts<P: Provider>(bed: &Bed<P>) {
    let [ours, theirs] = two(bed, counts(1, 1), counts(1, 1));
    let all = [&ours, &theirs];
    let (transmit, receive) = (&ours.transmit[0].endpoint, &ours.receive[0].endpoint);
    receive.set_option(OptionName::MinMultiRecv, 8).unwrap();
    let refused = transmit.set_option(OptionName::MinMultiRecv, 20).unwrap_err();
    assert!(matches!(refused, EndpointError::UnknownOption { option: 0 }));
    assert_eq!(refused.errno(), Errno::NOPROTOOPT);
    let refused = transmit.option(OptionName::MinMultiRecv).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOPROTOOPT);
    assert_eq!(receive.option(OptionName::MinMultiRecv).unwrap(), 8);
    // Two messages leave 16 and 8 bytes, which is enough for one more.
    receive.receive_multi(vec![0; 24], OTHER, 30).unwrap();
    for (nth, last) in [(1, false), (2, false), (3, true)] {
        theirs.transmit[0].endpoint.inject(&[nth; 8], OTHER).unwrap();
        let received = next(&ours.receive[0], &all).good();
        assert_eq!((received.context, received.length), (30, 8));
        assert_eq!(received.flags.contains(Flags::MULTI_RECV), last, "message {nth}");
    }
    nothing_more(&all);
}

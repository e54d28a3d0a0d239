//! Scenes about messages that nobody has asked for yet: looking, claiming, canceling, levels.

use kestrel_core::{address_vector::FI_ADDR_UNSPEC, error::Errno, flags::Flags};
use kestrel_tests::{
    bed::{Receive, Send, pattern, same},
    completion::Done,
    random::Random,
};

use crate::{
    messages::RECEIVE,
    rank::{Kind, Rank},
    script::RANKS,
};

/// What becomes of a message that was found.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Received,
    Claimed,
    ClaimedAndDiscarded,
    Discarded,
}

const FATES: [Fate; 4] =
    [Fate::Received, Fate::Claimed, Fate::ClaimedAndDiscarded, Fate::Discarded];

impl Rank {
    /// Each sends to its right, and looks for what its left sends.
    pub fn play_peeks(&mut self, sizes: &[usize], random: &mut Random) {
        let (right, left) = ((self.number + 1) % RANKS, (self.number + RANKS - 1) % RANKS);
        for (nth, &size) in (0..).zip(sizes) {
            let bytes = self.memory(pattern(self.number as u64 * 100 + nth, size));
            let level = [Flags::empty(), Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE];
            let flags = level[nth as usize % 3] | self.told(false);
            let (tag, data, pieces) = (Some(nth), Some(nth + 7), bytes.all());
            let send = Send { pieces, tag, data, context: nth, flags };
            self.post(|rank| rank.endpoint.post_send(send.post(right as u64)));
        }
        // In another order than they were sent.
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        for at in 1..order.len() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        for nth in order {
            self.find_and_end(left, nth as u64, sizes[nth], FATES[nth % FATES.len()]);
        }
        for _ in sizes {
            self.sent().good();
            self.count(Kind::Send, None);
        }
        self.end_scene();
    }

    fn find_and_end(&mut self, left: usize, nth: u64, size: usize, fate: Fate) {
        let look = match fate {
            Fate::Received => Flags::empty(),
            Fate::Claimed | Fate::ClaimedAndDiscarded => Flags::CLAIM,
            Fate::Discarded => Flags::DISCARD,
        };
        let from = if nth.is_multiple_of(2) { left as u64 } else { FI_ADDR_UNSPEC };
        let receive =
            Receive { from, tag: Some((nth, 0)), context: RECEIVE | nth, ..Receive::default() };
        let peek = Receive { flags: Flags::PEEK | look | self.told(false), ..receive };
        loop {
            let done = self.look(&peek);
            if done.errno.is_none() {
                self.check_found(&done, left, nth, size);
                break;
            }
        }
        let content = pattern(left as u64 * 100 + nth, size);
        let into = self.memory(vec![0x55; size]);
        let take = match fate {
            Fate::Received => Some(Flags::empty()),
            Fate::Claimed => Some(Flags::CLAIM),
            Fate::ClaimedAndDiscarded => Some(Flags::CLAIM | Flags::DISCARD),
            Fate::Discarded => None,
        };
        if let Some(take) = take {
            let receive = Receive { pieces: into.all(), flags: take | self.told(false), ..receive };
            self.post(|rank| rank.endpoint.post_receive(receive.post()));
            let done = self.received();
            self.count(Kind::Receive, done.errno);
            self.check_found(&done.good(), left, nth, size);
        }
        if [Fate::Received, Fate::Claimed].contains(&fate) {
            same(&into.bytes(), &content, "what was found");
        } else {
            assert!(into.bytes().iter().all(|&byte| byte == 0x55), "what was discarded");
        }
        assert_eq!(self.look(&peek).errno, Some(Errno::NOMSG), "it is gone");
    }

    fn look(&mut self, peek: &Receive<'_>) -> Done {
        self.post(|rank| rank.endpoint.post_receive(peek.post()));
        let done = self.received();
        assert_eq!(done.context, peek.context, "{done:?}");
        assert!([None, Some(Errno::NOMSG)].contains(&done.errno), "{done:?}");
        // A counter counts what is received, and nothing is here, whatever is found.
        done
    }

    fn check_found(&self, done: &Done, left: usize, nth: u64, size: usize) {
        let flags = Flags::TAGGED | Flags::RECV | Flags::REMOTE_CQ_DATA;
        assert_eq!((done.flags, done.length), (flags, size as u64), "{done:?}");
        assert_eq!((done.source, done.tag, done.data), (left as u64, nth, nth + 7), "{done:?}");
    }

    /// Receives that nobody sends to.
    pub fn play_cancels(&mut self, count: usize, random: &mut Random) {
        let mut posted = Vec::new();
        for nth in 0..count as u64 {
            let into = self.memory(vec![0; 64]);
            let tag = (nth % 2 == 0).then_some((u64::MAX - nth, 0xff << 8));
            let from = if random.once_in(2) { FI_ADDR_UNSPEC } else { random.below(RANKS as u64) };
            let context = RECEIVE | nth;
            let flags = self.told(false);
            let receive = Receive { pieces: into.all(), from, tag, context, flags };
            self.post(|rank| rank.endpoint.post_receive(receive.post()));
            posted.push(context);
        }
        assert!(self.endpoint.cancel(RECEIVE | count as u64).is_err(), "nothing has that context");
        while !posted.is_empty() {
            let context = posted.swap_remove(random.below(posted.len() as u64) as usize);
            self.endpoint.cancel(context).unwrap();
            let done = self.received().bad(Errno::CANCELED);
            assert_eq!(done.context, context, "{done:?}");
            self.count(Kind::Receive, done.errno);
            assert!(self.endpoint.cancel(context).is_err(), "it was canceled before");
        }
        self.end_scene();
    }

    /// Nobody has posted a receive: what completes at the sender all the same.
    pub fn play_levels(&mut self, size: usize) {
        let right = (self.number + 1) % RANKS;
        let lengths = [8, 300, size];
        let levels = [Flags::TRANSMIT_COMPLETE, Flags::DELIVERY_COMPLETE, Flags::MATCH_COMPLETE];
        for (nth, (length, level)) in (0..).zip(lengths.into_iter().zip(levels)) {
            let bytes = self.memory(pattern(nth, length));
            let (pieces, flags) = (bytes.all(), level | self.told(false));
            let send = Send { pieces, tag: Some(nth), context: nth, flags, ..Send::default() };
            self.post(|rank| rank.endpoint.post_send(send.post(right as u64)));
        }
        // The last one waits for a receive, and the others for none.
        for _ in 0..2 {
            let done = self.sent().good();
            assert!(done.context < 2, "{done:?}");
            self.count(Kind::Send, None);
        }
        for _ in 0..200 {
            self.poll();
        }
        assert_eq!(self.sent_by_now(), 0, "a match without a receive");
        self.barrier();
        assert_eq!(self.sent_by_now(), 0, "a match without a receive");
        self.barrier();
        for (nth, length) in (0..).zip(lengths) {
            let into = self.memory(vec![0; length]);
            let (tag, flags) = (Some((nth, 0)), self.told(false));
            let (pieces, context) = (into.all(), RECEIVE | nth);
            let receive = Receive { pieces, tag, context, flags, ..Receive::default() };
            self.post(|rank| rank.endpoint.post_receive(receive.post()));
            let done = self.received();
            self.count(Kind::Receive, done.errno);
            assert_eq!(done.good().context, RECEIVE | nth);
            same(&into.bytes(), &pattern(nth, length), "received late");
        }
        assert_eq!(self.sent().context(), 2);
        self.count(Kind::Send, None);
        self.end_scene();
    }
}

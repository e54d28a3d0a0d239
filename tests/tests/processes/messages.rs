//! Scenes of messages: what is matched, and how it is told.

use std::{collections::HashMap, rc::Rc};

use kestrel_core::{
    address_vector::FI_ADDR_UNSPEC,
    error::Errno,
    flags::Flags,
    memory::{Piece, Pieces},
};
use kestrel_tests::{
    bed::{Memory, Receive, Send, pattern, same},
    completion::Done,
    random::Random,
};

use crate::{
    rank::{Kind, Rank},
    script::{MULTI_MAX, Message, RANKS, Way, When},
};

/// Contexts of receives, beside those of sends, which are the messages' numbers.
pub const RECEIVE: u64 = 1 << 32;

/// Cut into three, the middle one empty now and then.
pub fn in_pieces(memory: &Memory, random: &mut Random) -> Vec<Piece> {
    let length = memory.piece().len();
    let first = random.below(length as u64 + 1) as usize;
    let second = random.below(3) as usize * ((length - first) / 3);
    memory.cut(&[first, second, length - first - second])
}

impl Rank {
    /// The flag that has a completion written.
    pub fn told(&self, silent: bool) -> Flags {
        if self.selective && !silent { Flags::COMPLETION } else { Flags::empty() }
    }

    fn post_message(&mut self, message: &Message, random: &mut Random) {
        let Message { id, to, tag, size, way, flags, .. } = *message;
        let data = message.data.then_some(id);
        let bytes = self.memory(pattern(id, size));
        if way == Way::Injected {
            let content = bytes.bytes();
            self.post(|rank| match (tag, data) {
                (Some(tag), None) => rank.endpoint.inject_tagged(&content, to as u64, tag),
                (Some(tag), Some(data)) => {
                    rank.endpoint.inject_tagged_data(&content, to as u64, tag, data)
                }
                (None, None) => rank.endpoint.inject(&content, to as u64),
                (None, Some(data)) => rank.endpoint.inject_data(&content, to as u64, data),
            });
            return self.count(Kind::Send, None);
        }
        let pieces = in_pieces(&bytes, random);
        let pieces = if way == Way::Pieces { Pieces::Many(&pieces) } else { bytes.all() };
        let mut flags = flags | self.told(message.silent);
        flags.set(Flags::INJECT, way == Way::Flagged);
        let send = Send { pieces, tag, data, context: id, flags };
        self.post(|rank| rank.endpoint.post_send(send.post(to as u64)));
        if way == Way::Flagged {
            bytes.scribble();
        }
        if message.silent {
            self.count(Kind::Send, None);
        }
    }

    fn post_receive_of(&mut self, message: &Message, random: &mut Random) -> Rc<Memory> {
        let into = self.memory(vec![0x55; message.room]);
        let pieces = in_pieces(&into, random);
        let pieces = if random.once_in(3) { Pieces::Many(&pieces) } else { into.all() };
        let receive = Receive {
            pieces,
            from: if message.directed { message.from as u64 } else { FI_ADDR_UNSPEC },
            tag: message.tag.map(|_| message.wanted),
            context: RECEIVE | message.id,
            flags: self.told(message.silent),
        };
        self.post(|rank| rank.endpoint.post_receive(receive.post()));
        into
    }

    /// What is sent, in order, mixed with what is received, in order.
    pub fn play_messages(&mut self, messages: &[Message], when: When, random: &mut Random) {
        let own = self.number;
        let mut sends: Vec<_> = messages.iter().filter(|message| message.from == own).collect();
        let mut receives: Vec<_> = messages.iter().filter(|message| message.to == own).collect();
        let (told, expected): (usize, usize) = (
            sends.iter().filter(|m| m.way != Way::Injected && !m.silent).count(),
            receives.iter().filter(|m| !m.silent).count(),
        );
        sends.reverse();
        receives.reverse();
        let mut buffers = HashMap::new();
        let late = match when {
            When::First => {
                while let Some(message) = receives.pop() {
                    buffers.insert(message.id, (message, self.post_receive_of(message, random)));
                }
                self.barrier();
                false
            }
            When::Mixed { late } => late[own],
        };
        while !sends.is_empty() || (!late && !receives.is_empty()) {
            let receiving = !late && (sends.is_empty() || random.once_in(2));
            match if receiving { receives.pop() } else { None } {
                Some(message) => {
                    buffers.insert(message.id, (message, self.post_receive_of(message, random)));
                }
                None => {
                    let Some(message) = sends.pop() else { continue };
                    self.post_message(message, random);
                }
            }
        }
        self.barrier();
        while let Some(message) = receives.pop() {
            buffers.insert(message.id, (message, self.post_receive_of(message, random)));
        }
        for _ in 0..expected {
            let done = self.received();
            let (message, into) = &buffers[&(done.context & !RECEIVE)];
            check(message, &done, into);
            self.count(Kind::Receive, done.errno);
        }
        for _ in 0..told {
            let done = self.sent().good();
            assert!(messages.iter().any(|m| m.id == done.context && m.from == own), "{done:?}");
            assert!(done.flags.contains(Flags::SEND), "{done:?}");
            self.count(Kind::Send, None);
        }
        self.settle_silent(&buffers);
        self.end_scene();
    }

    /// What nobody is told of has been delivered when its sender ends: a fence shows that.
    fn settle_silent(&mut self, buffers: &HashMap<u64, (&Message, Rc<Memory>)>) {
        for to in 0..RANKS {
            let flags = Flags::FENCE | Flags::DELIVERY_COMPLETE | self.told(false);
            let send = Send { tag: Some(u64::MAX), context: to as u64, flags, ..Send::default() };
            let context = RECEIVE | to as u64;
            let from = to as u64;
            let flags = self.told(false);
            let tag = Some((u64::MAX, 0));
            let receive = Receive { tag, from, context, flags, ..Receive::default() };
            self.post(|rank| rank.endpoint.post_receive(receive.post()));
            self.post(|rank| rank.endpoint.post_send(send.post(to as u64)));
        }
        for _ in 0..RANKS {
            self.received().good();
            self.count(Kind::Receive, None);
            self.sent().good();
            self.count(Kind::Send, None);
        }
        for (message, into) in buffers.values().filter(|(message, _)| message.silent) {
            same(&into.bytes()[..message.size], &pattern(message.id, message.size), "in silence");
            self.count(Kind::Receive, None);
        }
    }

    /// Untagged messages of all, which any receive may take: of each sender in order.
    pub fn play_anybody(&mut self, count: usize, random: &mut Random) {
        const ROOM: usize = 70_000;
        let sizes: Vec<usize> = (0..count).map(|nth| [8, 700, 20_000, ROOM][nth % 4]).collect();
        let id = |from: usize, nth: usize| (from * count + nth) as u64;
        let mut buffers = Vec::new();
        for nth in 0..RANKS * count {
            let into = self.memory(vec![0; ROOM]);
            let flags = self.told(false);
            let context = RECEIVE | nth as u64;
            let receive = Receive { pieces: into.all(), context, flags, ..Receive::default() };
            self.post(|rank| rank.endpoint.post_receive(receive.post()));
            buffers.push(into);
            if random.once_in(count as u64) {
                self.poll();
            }
        }
        for (nth, &size) in sizes.iter().enumerate() {
            for to in 0..RANKS {
                let context = id(self.number, nth);
                let bytes = self.memory(pattern(context, size));
                let (pieces, flags) = (bytes.all(), self.told(false));
                let send =
                    Send { pieces, data: Some(nth as u64), context, flags, ..Send::default() };
                self.post(|rank| rank.endpoint.post_send(send.post(to as u64)));
            }
        }
        let mut found = vec![None; RANKS * count];
        for _ in 0..RANKS * count {
            let done = self.received().good();
            let (from, nth) = (done.source as usize, done.data as usize);
            let place = (done.context & !RECEIVE) as usize;
            assert_eq!(done.length as usize, sizes[nth], "{done:?}");
            same(&buffers[place].bytes()[..sizes[nth]], &pattern(id(from, nth), sizes[nth]), "any");
            assert_eq!(found[place].replace((from, nth)), None, "{done:?}");
            self.sent().good();
            self.count(Kind::Receive, None);
            self.count(Kind::Send, None);
        }
        for from in 0..RANKS {
            let order = found.iter().flatten().filter(|(source, _)| *source == from);
            assert!(order.map(|(_, nth)| *nth).eq(0..count), "from {from}: {found:?}");
        }
        self.end_scene();
    }

    /// Messages of all fill buffers one after the other; what is left of those is canceled.
    pub fn play_multi(&mut self, count: usize) {
        const ROOM: usize = 8 * MULTI_MAX;
        let size = |nth: usize| [0, 8, 700, 3_000, MULTI_MAX][nth % 5];
        let total: usize = (0..count).map(size).sum();
        let many = RANKS * total / (ROOM - MULTI_MAX) + 2;
        let mut buffers = Vec::new();
        for nth in 0..many {
            let into = self.memory(vec![0; ROOM]);
            let (context, flags) = (RECEIVE | nth as u64, Flags::MULTI_RECV | self.told(false));
            let receive = Receive { pieces: into.all(), context, flags, ..Receive::default() };
            self.post(|rank| rank.endpoint.post_receive(receive.post()));
            buffers.push((into, false));
        }
        self.barrier();
        for nth in 0..count {
            for to in 0..RANKS {
                let bytes = self.memory(pattern((self.number * count + nth) as u64, size(nth)));
                let (pieces, flags) = (bytes.all(), self.told(false));
                let (data, context) = (Some(nth as u64), nth as u64);
                let send = Send { pieces, data, context, flags, ..Send::default() };
                self.post(|rank| rank.endpoint.post_send(send.post(to as u64)));
            }
        }
        let mut messages = 0;
        while messages < RANKS * count {
            let done = self.received().good();
            let place = (done.context & !RECEIVE) as usize;
            let (into, over) = &mut buffers[place];
            assert!(!*over, "released before: {done:?}");
            *over = done.flags.contains(Flags::MULTI_RECV);
            if !done.flags.contains(Flags::RECV) {
                continue;
            }
            messages += 1;
            let (nth, at) = (done.data as usize, (done.buffer - into.start()) as usize);
            assert_eq!(done.length as usize, size(nth), "{done:?}");
            let seed = done.source * count as u64 + nth as u64;
            same(&into.bytes()[at..at + size(nth)], &pattern(seed, size(nth)), "multi");
            self.count(Kind::Receive, None);
            self.sent().good();
            self.count(Kind::Send, None);
        }
        self.cancel_rest(&buffers);
        self.end_scene();
    }

    fn cancel_rest(&mut self, buffers: &[(Rc<Memory>, bool)]) {
        let left = (0..).zip(buffers).filter(|(_, (_, over))| !over).map(|(nth, _)| nth);
        for nth in left {
            let context: u64 = RECEIVE | nth;
            // It may be full, and its release on the way.
            let canceled = self.endpoint.cancel(context).is_ok();
            let done = self.received();
            assert_eq!(done.context, context, "{done:?}");
            assert!(done.flags.contains(Flags::MULTI_RECV), "{done:?}");
            assert_eq!(done.errno, canceled.then_some(Errno::CANCELED), "{done:?}");
            if canceled {
                self.count(Kind::Receive, done.errno);
            }
        }
    }
}

/// Whether a receive got the message that is meant for it, and was told all of it.
fn check(message: &Message, done: &Done, into: &Memory) {
    let Message { id, from, tag, size, room, data, .. } = *message;
    let placed = size.min(room);
    let what = format!("{message:?}: {done:?}");
    same(&into.bytes()[..placed], &pattern(id, size)[..placed], &what);
    assert!(into.bytes()[placed..].iter().all(|&byte| byte == 0x55), "beyond it: {what}");
    let mut flags = Flags::RECV | if tag.is_some() { Flags::TAGGED } else { Flags::MSG };
    flags.set(Flags::REMOTE_CQ_DATA, data);
    assert_eq!(done.flags, flags, "{what}");
    assert_eq!((done.length, done.source), (placed as u64, from as u64), "{what}");
    assert_eq!(done.tag, tag.unwrap_or(0), "{what}");
    assert_eq!(done.data, if data { id } else { 0 }, "{what}");
    let cut = size - placed;
    let errno = (cut > 0).then_some(Errno::TRUNC);
    assert_eq!((done.errno, done.overflow), (errno, cut as u64), "{what}");
}

//! The oracle of the tag matcher: two `Vec`s, searched from the front.
//!
//! `Pair` drives a `Matcher` and the model side by side and compares every answer, so that
//! property tests and fuzzing share it: both only have to produce numbers for `Step::decode`.

use kestrel_core::tag_match::{ANY_SOURCE, Matcher, SourceIndex};

struct Receive {
    source: SourceIndex,
    tag: u64,
    ignore: u64,
    receive: u32,
}

struct Message {
    source: SourceIndex,
    tag: u64,
    message: u32,
}

/// The rule of fi_tagged(3), word for word.
fn matches(receive: (SourceIndex, u64, u64), message: (SourceIndex, u64)) -> bool {
    let (wanted, tag, ignore) = receive;
    (wanted == ANY_SOURCE || wanted == message.0) && (message.1 & !ignore) == (tag & !ignore)
}

/// One call, or a pair of calls, that a user of the matcher makes.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A receive: takes a parked message, or is posted.
    Receive { source: SourceIndex, tag: u64, ignore: u64 },
    /// A message: takes a posted receive, or is parked.
    Message { source: SourceIndex, tag: u64 },
    /// A receive that is posted although a parked message may match, as multi-recv does.
    Post { source: SourceIndex, tag: u64, ignore: u64 },
    /// A message that is parked although a receive may match.
    Park { source: SourceIndex, tag: u64 },
    /// A message finds a receive that stays posted.
    FindPosted { source: SourceIndex, tag: u64 },
    /// `FI_PEEK`.
    Peek { source: SourceIndex, tag: u64, ignore: u64 },
    /// `FI_CLAIM`: a peek, then a removal by name.
    Claim { source: SourceIndex, tag: u64, ignore: u64 },
    /// Cancels the n-th posted receive, counted modulo their number.
    Cancel { nth: usize },
    /// Cancels the first posted receive with that name, modulo their number: `fi_cancel`.
    CancelNamed { name: u64 },
    /// Takes off all receives from one source alone: it is gone.
    Part { source: SourceIndex },
    /// Discards the n-th parked message, counted modulo their number.
    Discard { nth: usize },
    /// Lists both sides.
    List,
}

/// Where numbers become tags, masks and sources. Few of each, so that they collide often.
#[derive(Clone, Copy, Debug)]
pub struct Alphabet {
    pub tag_count: u64,
    pub ignore_count: u64,
    pub source_count: u32,
}

impl Alphabet {
    /// Few masks: every class has a table.
    pub const NARROW: Alphabet = Alphabet { tag_count: 4, ignore_count: 4, source_count: 2 };
    /// More classes than tables.
    pub const WIDE: Alphabet = Alphabet { tag_count: 6, ignore_count: 24, source_count: 3 };
    /// Many tags: tables grow, and chains have several keys.
    pub const DEEP: Alphabet = Alphabet { tag_count: 4096, ignore_count: 3, source_count: 40 };

    fn tag(self, number: u64) -> u64 {
        let n = number % self.tag_count;
        // The low and the high bits carry the tag, so that masks of either leave something.
        n | n << 60
    }

    fn ignore(self, number: u64) -> u64 {
        match number % self.ignore_count {
            0 => 0,
            1 => 1 << 62,
            2 => u64::MAX,
            3 => 1,
            n => n << 2 | n << 58,
        }
    }
}

impl Step {
    /// Makes a step of a number; any number will do.
    pub fn decode(alphabet: Alphabet, number: u64) -> Step {
        let tag = alphabet.tag(number >> 8 & 0xffff);
        let ignore = alphabet.ignore(number >> 24 & 0xff);
        let from = (number >> 32 & 0xff) as u32 % alphabet.source_count;
        // A third of all receives take any source.
        let source = if (number >> 40 & 0xff).is_multiple_of(3) { ANY_SOURCE } else { from };
        let nth = (number >> 48) as usize;
        match number % 32 {
            0..9 => Step::Receive { source, tag, ignore },
            9..18 => Step::Message { source: from, tag },
            18..21 => Step::Post { source, tag, ignore },
            21..24 => Step::Park { source: from, tag },
            24 => Step::FindPosted { source: from, tag },
            25 => Step::Peek { source, tag, ignore },
            26 => Step::CancelNamed { name: nth as u64 },
            27 => Step::Claim { source, tag, ignore },
            28 => Step::Cancel { nth },
            29 => Step::Discard { nth },
            30 => Step::Part { source: from },
            _ => Step::List,
        }
    }
}

/// How many names receives have: several have one.
const NAMES: u64 = 3;

fn name_of(receive: u32) -> u64 {
    u64::from(receive) % NAMES
}

/// A matcher and its model, which must never disagree.
pub struct Pair {
    matcher: Matcher,
    receives: Vec<Receive>,
    messages: Vec<Message>,
    /// Receives and messages have different numbers, so that any mix-up shows.
    next: u32,
    /// Numbers that nobody has any more. Every other one is used again, as pools do.
    free: Vec<u32>,
}

impl Pair {
    pub fn new(matcher: Matcher) -> Self {
        Pair { matcher, receives: Vec::new(), messages: Vec::new(), next: 0, free: Vec::new() }
    }

    /// Takes one step on both sides. Panics where they differ.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Receive { source, tag, ignore } => self.receive(source, tag, ignore),
            Step::Message { source, tag } => self.message(source, tag),
            Step::Post { source, tag, ignore } => self.post(source, tag, ignore),
            Step::Park { source, tag } => self.park(source, tag),
            Step::FindPosted { source, tag } => self.find_posted(source, tag),
            Step::Peek { source, tag, ignore } => {
                self.peek(source, tag, ignore);
            }
            Step::Claim { source, tag, ignore } => self.claim(source, tag, ignore),
            Step::Cancel { nth } => self.cancel(nth),
            Step::CancelNamed { name } => self.cancel_named(name % NAMES),
            Step::Part { source } => self.part(source),
            Step::Discard { nth } => self.discard(nth),
            Step::List => self.list(),
        }
        assert_eq!(self.matcher.posted_len(), self.receives.len());
        assert_eq!(self.matcher.unexpected_len(), self.messages.len());
    }

    /// Matches or cancels everything that is left, so that nothing can be stuck.
    pub fn drain(&mut self) {
        self.list();
        while let Some(last) = self.messages.last() {
            let (source, tag) = (last.source, last.tag);
            self.take_unexpected(source, tag, 0);
        }
        while !self.receives.is_empty() {
            self.cancel(self.receives.len() / 2);
        }
        self.list();
    }

    fn receive(&mut self, source: SourceIndex, tag: u64, ignore: u64) {
        if !self.take_unexpected(source, tag, ignore) {
            self.post(source, tag, ignore);
        }
    }

    fn message(&mut self, source: SourceIndex, tag: u64) {
        let at = self.position_of_receive(source, tag);
        let expected = at.map(|at| self.receives.remove(at).receive);
        self.free.extend(expected);
        assert_eq!(self.matcher.take_posted(source, tag), expected);
        if expected.is_none() {
            self.park(source, tag);
        }
    }

    fn post(&mut self, source: SourceIndex, tag: u64, ignore: u64) {
        let receive = self.number();
        self.matcher.post(source, tag, ignore, receive);
        self.receives.push(Receive { source, tag, ignore, receive });
    }

    fn park(&mut self, source: SourceIndex, tag: u64) {
        let message = self.number();
        self.matcher.park(source, tag, message);
        self.messages.push(Message { source, tag, message });
    }

    fn find_posted(&mut self, source: SourceIndex, tag: u64) {
        let at = self.position_of_receive(source, tag);
        let expected = at.map(|at| self.receives[at].receive);
        assert_eq!(self.matcher.find_posted(source, tag), expected);
    }

    fn peek(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> Option<usize> {
        let at = self.position_of_message(source, tag, ignore);
        let expected = at.map(|at| self.messages[at].message);
        assert_eq!(self.matcher.find_unexpected(source, tag, ignore), expected);
        at
    }

    fn claim(&mut self, source: SourceIndex, tag: u64, ignore: u64) {
        if let Some(at) = self.peek(source, tag, ignore) {
            self.discard(at);
        }
    }

    fn take_unexpected(&mut self, source: SourceIndex, tag: u64, ignore: u64) -> bool {
        let at = self.position_of_message(source, tag, ignore);
        let expected = at.map(|at| self.messages.remove(at).message);
        self.free.extend(expected);
        assert_eq!(self.matcher.take_unexpected(source, tag, ignore), expected);
        expected.is_some()
    }

    fn cancel(&mut self, nth: usize) {
        if let Some(at) = nth.checked_rem(self.receives.len()) {
            let removed = self.receives.remove(at);
            self.matcher.remove_posted(removed.receive);
            self.free.push(removed.receive);
        }
    }

    fn cancel_named(&mut self, name: u64) {
        if let Some(at) = self.find_named(name) {
            self.cancel(at);
        }
    }

    fn find_named(&mut self, name: u64) -> Option<usize> {
        let at = self.receives.iter().position(|entry| name_of(entry.receive) == name);
        let expected = at.map(|at| self.receives[at].receive);
        assert_eq!(self.matcher.earliest_posted(name, name_of), expected);
        at
    }

    fn part(&mut self, source: SourceIndex) {
        for receive in self.find_from(source) {
            self.matcher.remove_posted(receive);
            self.free.push(receive);
        }
        self.receives.retain(|entry| entry.source != source);
    }

    fn find_from(&mut self, source: SourceIndex) -> Vec<u32> {
        let from = self.receives.iter().filter(|entry| entry.source == source);
        let expected: Vec<u32> = from.map(|entry| entry.receive).collect();
        assert_eq!(self.matcher.posted_from(source), expected);
        expected
    }

    fn discard(&mut self, nth: usize) {
        if let Some(at) = nth.checked_rem(self.messages.len()) {
            let removed = self.messages.remove(at);
            self.matcher.remove_unexpected(removed.message);
            self.free.push(removed.message);
        }
    }

    fn list(&mut self) {
        let receives = self.receives.iter().map(|entry| (entry.receive, entry.source));
        assert!(self.matcher.posted().eq(receives));
        for number in 0..3 {
            self.find_named(u64::from(number));
            self.find_from(number);
        }
        let messages = self.messages.iter().map(|entry| (entry.message, entry.source));
        assert!(self.matcher.unexpected().eq(messages));
    }

    fn position_of_receive(&self, source: SourceIndex, tag: u64) -> Option<usize> {
        let fits =
            |entry: &Receive| matches((entry.source, entry.tag, entry.ignore), (source, tag));
        self.receives.iter().position(fits)
    }

    fn position_of_message(&self, source: SourceIndex, tag: u64, ignore: u64) -> Option<usize> {
        let fits = |entry: &Message| matches((source, tag, ignore), (entry.source, entry.tag));
        self.messages.iter().position(fits)
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        if self.next.is_multiple_of(2)
            && let Some(number) = self.free.pop()
        {
            return number;
        }
        self.next
    }
}

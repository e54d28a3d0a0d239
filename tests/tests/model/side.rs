//! The model of one endpoint: two lists and linear search.

use kestrel_tests::{bed::Memory, completion::Done};

/// FI_OPT_MIN_MULTI_RECV's default.
pub const MULTI_MIN: usize = 64;

/// A message, named by its context.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub id: u64,
    pub from: usize,
    pub tag: Option<u64>,
    pub size: usize,
    pub data: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub context: u64,
    pub from: Option<usize>,
    pub tag: Option<(u64, u64)>,
    pub room: usize,
    pub filled: usize,
    pub multi: bool,
}

pub fn matches(from: Option<usize>, tag: Option<(u64, u64)>, message: &Message) -> bool {
    let tags = match (tag, message.tag) {
        (Some((tag, ignore)), Some(sent)) => (tag | ignore) == (sent | ignore),
        (None, None) => true,
        _ => false,
    };
    tags && from.is_none_or(|from| from == message.from)
}

/// What a completion has to be.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    Message { message: Message, room: usize, at: usize, released: bool },
    Canceled { multi: bool },
    Release,
    Found(Message),
    Nothing,
}

impl Expected {
    /// Whether a multi-receive buffer is given back with it.
    pub fn releases(&self) -> bool {
        match *self {
            Expected::Message { released, .. } => released,
            Expected::Canceled { multi } => multi,
            Expected::Release => true,
            Expected::Found(_) | Expected::Nothing => false,
        }
    }

    /// Whether `done`, of the same receive, may be meant.
    pub fn fits(&self, done: &Done, into: Option<&Memory>) -> bool {
        let Expected::Message { message, room, at, .. } = *self else { return true };
        let place = into.map_or(0, |into| into.start() + at as u64);
        done.buffer == place
            && done.length == message.size.min(room) as u64
            && done.tag == message.tag.unwrap_or(0)
            && done.source == message.from as u64
    }
}

/// One endpoint as the model sees it.
#[derive(Default)]
pub struct Side {
    pub posted: Vec<Posted>,
    pub unexpected: Vec<Message>,
    pub claimed: Vec<(u64, Message)>,
    pub expected: Vec<(u64, Expected)>,
}

impl Side {
    pub fn arrive(&mut self, message: Message) {
        let fits = |posted: &Posted| matches(posted.from, posted.tag, &message);
        match self.posted.iter().position(fits) {
            None => self.unexpected.push(message),
            Some(place) => {
                let mut posted = self.posted.remove(place);
                if self.place(&mut posted, message) {
                    self.posted.insert(place, posted);
                }
            }
        }
    }

    /// Puts a message into a receive; whether that stays posted.
    fn place(&mut self, posted: &mut Posted, message: Message) -> bool {
        let room = posted.room - posted.filled;
        let at = posted.filled;
        let mut stays = false;
        let mut released = false;
        if posted.multi {
            posted.filled += message.size.min(room);
            stays = posted.room - posted.filled >= MULTI_MIN;
            released = !stays && message.size <= room;
        }
        let expected = Expected::Message { message, room, at, released };
        self.expected.push((posted.context, expected));
        if posted.multi && !stays && !released {
            self.expected.push((posted.context, Expected::Release));
        }
        stays
    }

    pub fn post(&mut self, mut posted: Posted) {
        loop {
            let fits = |message: &Message| matches(posted.from, posted.tag, message);
            let Some(place) = self.unexpected.iter().position(fits) else {
                return self.posted.push(posted);
            };
            let message = self.unexpected.remove(place);
            if !self.place(&mut posted, message) {
                return;
            }
        }
    }
}

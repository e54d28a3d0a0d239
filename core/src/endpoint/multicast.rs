//! Joining multicast groups, and sending to them. Reference: fi_cm(3), `fi_join`.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::{Endpoint, PostError};
use crate::{
    address::Address,
    error::{Cause, Errno, HasErrno},
    event_queue::{Event, EventQueue},
    flags::Flags,
    operation::SendPost,
    transport::Provider,
};

/// Why a group was not joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Its messages go to one peer each.
    #[error("the endpoint has no multicast")]
    NotForThisType,
    /// The flags make no sense, or the endpoint has no such direction.
    #[error("flags {flags:?} do not fit an endpoint that joins a group")]
    BadFlags {
        /// As given.
        flags: Flags,
    },
    /// No address of a group.
    #[error("{group} is no multicast address")]
    NoGroup {
        /// As given.
        group: Address,
    },
    /// It has joined that group already.
    #[error("the endpoint has joined {group} already")]
    Joined {
        /// As given.
        group: Address,
    },
    /// No event queue: the result is reported there.
    #[error("no event queue is bound")]
    NoEventQueue,
    /// The transport refuses.
    #[error("{}", .0.reason)]
    Refused(Cause),
    /// The endpoint is not enabled, or closed.
    #[error(transparent)]
    Endpoint(#[from] PostError),
}

impl HasErrno for GroupError {
    fn errno(&self) -> Errno {
        match self {
            GroupError::NotForThisType => Errno::OPNOTSUPP,
            GroupError::BadFlags { .. } => Errno::BADFLAGS,
            GroupError::NoGroup { .. } | GroupError::Joined { .. } => Errno::INVAL,
            GroupError::NoEventQueue => Errno::NOEQ,
            GroupError::Refused(why) => why.errno,
            GroupError::Endpoint(error) => error.errno(),
        }
    }
}

impl From<Cause> for GroupError {
    fn from(why: Cause) -> GroupError {
        GroupError::Refused(why)
    }
}

/// A group that an endpoint has joined, and leaves when this is dropped.
pub struct Group<P: Provider> {
    endpoint: Arc<Endpoint<P>>,
    number: u64,
    /// Where it is told that it is joined.
    events: Arc<EventQueue>,
    /// What it was called there.
    fid: OnceLock<u64>,
}

impl<P: Provider> fmt::Debug for Group<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("number", &self.number)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Group<P> {
    /// What messages to the group are sent to, with the flag `MULTICAST`.
    /// Reference: fi_cm(3), `fi_mc_addr`.
    pub fn address(&self) -> u64 {
        self.number
    }

    /// Tells that it is joined, as an event of the object `fid`: of whoever reads it that object may
    /// be at once.
    pub fn announce(&self, fid: u64, context: u64) {
        let fid = *self.fid.get_or_init(|| fid);
        self.events.push(Event::JoinComplete { fid, context, data: 0 });
    }
}

impl<P: Provider> Drop for Group<P> {
    fn drop(&mut self) {
        if let Ok(unit) = self.endpoint.unit() {
            // A closed endpoint has left all its groups.
            let _ = unit.with(|engine| engine.leave_group(self.number));
        }
        if let Some(&fid) = self.fid.get() {
            self.events.discard(fid);
        }
    }
}

impl<P: Provider> Endpoint<P> {
    /// Joins a multicast group: to send and to receive as far as the endpoint can, or with `SEND`
    /// or `RECV` to do that alone. It is done when this returns, and who has asked for it tells the
    /// event queue ([`Group::announce`]).
    /// Reference: fi_cm(3), `fi_join`.
    ///
    /// # Errors
    /// The endpoint cannot, or the group cannot be joined; nothing has happened then.
    pub fn join(self: &Arc<Self>, group: Address, flags: Flags) -> Result<Group<P>, GroupError> {
        if !self.options.capabilities.contains(Flags::MULTICAST) {
            return Err(GroupError::NotForThisType);
        }
        let mut able = Flags::SEND | Flags::RECV;
        [Flags::SEND, Flags::RECV].into_iter().for_each(|way| able.set(way, !self.lacks(way)));
        let wanted = if flags.is_empty() { able } else { flags };
        if !able.contains(wanted) {
            return Err(GroupError::BadFlags { flags });
        }
        // However it is written.
        let group = Address::from(group.canonical());
        if !group.ip().is_multicast() {
            return Err(GroupError::NoGroup { group });
        }
        let events = self.reporter_queue().ok_or(GroupError::NoEventQueue)?;
        let (sends, receives) = (wanted.contains(Flags::SEND), wanted.contains(Flags::RECV));
        let number = self.unit()?.with(|engine| engine.join_group(group, sends, receives))??;
        Ok(Group { endpoint: self.clone(), number, events, fid: OnceLock::new() })
    }

    /// Posts a send to a group, whose flags were checked.
    #[cold]
    #[inline(never)]
    pub(super) fn post_to_group(&self, post: SendPost<'_>) -> Result<(), PostError> {
        self.check_pieces(&post.pieces)?;
        if post.flags.contains(Flags::INJECT) {
            self.check_inject(post.pieces.total())?;
        }
        self.unit()?.with(|engine| engine.send_to_group(post))?
    }
}

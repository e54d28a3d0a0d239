//! Multi-receive: one buffer, many messages. Reference: fi_endpoint(3)
//! (FI_OPT_MIN_MULTI_RECV), fi_msg(3).
//!
//! The buffer is released once, with `MULTI_RECV` on the completion that comes
//! strictly last, or on an entry of its own; it is always reported, even where
//! completions are suppressed.

use crate::{
    completion_queue::Entry,
    endpoint::PostError,
    engine::{Engine, order::receive::Owed, report::Message},
    error::Cause,
    flags::Flags,
    memory::Piece,
    operation::{ReceiveOperation, ReceivePost, Target, room_for},
    protocol::receive::canceled,
    tag_match::{STICKY, SourceIndex},
    transport::{PeerIndex, Transport},
};

impl ReceiveOperation {
    /// Which of its bytes is at `address`; also that behind the last one, where no message has a byte.
    fn place_of(&self, address: u64) -> Option<usize> {
        let (view, mut at) = (self.pieces.view(), 0);
        loop {
            let part = view.contiguous(at, usize::MAX);
            let within = address.checked_sub(part.as_ptr() as u64);
            match within.and_then(|within| usize::try_from(within).ok()) {
                Some(within) if within <= part.len() => return Some(at + within),
                _ if part.is_empty() => return None,
                _ => at += part.len(),
            }
        }
    }
}

impl<T: Transport> Engine<T> {
    /// Posts a multi-receive buffer: first it takes what waits for it.
    pub(crate) fn receive_multi(
        &mut self,
        source: SourceIndex,
        post: ReceivePost<'_>,
    ) -> Result<(), PostError> {
        let tagged = post.flags.contains(Flags::TAGGED);
        let (tag, ignore) = (post.tag, post.ignore);
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        if let Some(over) = self.over
            && matcher.find_unexpected(source, tag, ignore).is_none()
        {
            return Err(over.refusal());
        }
        let receive = self.keep_receive(post);
        loop {
            let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
            let Some(parked) = matcher.take_unexpected(source, tag, ignore) else {
                break;
            };
            self.receive_parked(receive, parked);
            // Exhausted, and released unless something still arrives.
            if self.receives.get(receive).is_none_or(|operation| operation.exhausted) {
                return Ok(());
            }
        }
        if let Some(over) = self.over {
            // What had come is in it, and no more comes.
            self.fail_multi(receive, &over.cause());
            return Ok(());
        }
        let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
        matcher.post(source, tag, ignore, receive | STICKY);
        Ok(())
    }

    /// Reserves room for a message of `total` bytes; takes the buffer off the
    /// matcher if what remains is less than the minimum.
    pub(crate) fn open_multi(&mut self, receive: u32, is_posted: bool, total: usize) -> Target {
        let minimum = self.setup.multi_receive_min.max(1);
        let operation = &mut self.receives[receive];
        let capacity = operation.pieces.view().total();
        let start = operation.filled;
        let room = total.min(capacity - start);
        operation.filled += room;
        operation.arriving += 1;
        if capacity - operation.filled < minimum {
            operation.exhausted = true;
            if is_posted {
                let tagged = operation.flags.contains(Flags::TAGGED);
                let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
                matcher.remove_posted(receive);
            }
        }
        Target::Receive { receive, start, room }
    }

    /// Places a whole eager message.
    pub(crate) fn place_in_multi(&mut self, receive: u32, message: &Message) {
        let target = self.open_multi(receive, true, message.total);
        let Target::Receive { start, room, .. } = target else {
            return;
        };
        if self.waits_for_data(message.peer) {
            return self.hold_whole(target, message);
        }
        let pieces = self.receives[receive].pieces.view();
        self.place_payload(pieces, start, room, message.total);
        self.close_receive(None, receive, message, start, room, Owed::Credit);
    }

    /// A message is wholly in the buffer.
    pub(crate) fn close_multi(
        &mut self,
        receive: u32,
        message: &Message,
        start: usize,
        room: usize,
    ) {
        let operation = &self.receives[receive];
        let buffer = operation.pieces.view().contiguous(start, usize::MAX).as_ptr() as u64;
        if message.total > room {
            self.report_truncated_multi(receive, message, buffer, room);
            return self.leave_multi(receive, None);
        }
        let entry = Entry {
            context: operation.context,
            flags: (message.flags | Flags::RECV).bits(),
            length: message.total as u64,
            buffer,
            data: message.data,
            tag: message.tag,
            source: self.peers[message.peer as usize].fi_addr,
            attachment: None,
        };
        self.leave_multi(receive, Some((entry, message.peer)));
    }

    /// A copy of the message of `entry`, if it lies in a buffer that was moved in and is not released:
    /// of whatever bytes are there, if the entry is made up.
    pub(crate) fn copy_received(&self, entry: &Entry) -> Result<Vec<u8>, PostError> {
        let length = entry.length as usize;
        let found = self.receives.indices().find_map(|receive| {
            let operation = &self.receives[receive];
            let is_meant = operation.flags.contains(Flags::MULTI_RECV)
                && operation.context == entry.context
                && operation.attachment.is_some();
            let place = is_meant.then(|| operation.place_of(entry.buffer)).flatten()?;
            let is_filled = place.checked_add(length).is_some_and(|end| end <= operation.filled);
            is_filled.then_some((operation, place))
        });
        let (operation, place) = found.ok_or(PostError::NotInBuffer { context: entry.context })?;
        let mut bytes = room_for(length)?;
        bytes.resize(length, 0);
        let copy = Piece::of_owned(&mut bytes);
        operation.pieces.view().for_each_part(place, length, |done, part| {
            part.copy_to(copy.part(done, part.len()));
        });
        Ok(bytes)
    }

    /// One user of the buffer less; the last one of an exhausted buffer releases it.
    fn leave_multi(&mut self, receive: u32, message: Option<(Entry, PeerIndex)>) {
        let operation = &mut self.receives[receive];
        operation.arriving -= 1;
        let last = operation.exhausted && operation.arriving == 0;
        let wanted = operation.flags.contains(Flags::COMPLETION);
        let received = message.is_some();
        let message = message.filter(|_| wanted);
        if last {
            let buffer = self.receives.remove(receive);
            self.push_last_message(message, buffer);
        } else {
            self.push_message(message);
        }
        if let (Some(counter), true) = (&self.setup.receive.counter, received) {
            counter.add(1);
        }
    }

    /// Releases the buffer, with the message if there is one that says so.
    fn push_last_message(&mut self, message: Option<(Entry, PeerIndex)>, buffer: ReceiveOperation) {
        match message {
            Some((mut entry, peer)) if !buffer.canceled => {
                entry.flags |= Flags::MULTI_RECV.bits();
                entry.attachment = buffer.attachment;
                self.push_received(peer, entry);
            }
            message => {
                self.push_message(message);
                self.release_buffer(buffer);
            }
        }
    }

    fn push_message(&self, message: Option<(Entry, PeerIndex)>) {
        if let Some((entry, peer)) = message {
            self.push_received(peer, entry);
        }
    }

    /// Reports that a multi-receive buffer is the application's again: always. "If other flag bits are
    /// zero, the provider is reporting that the multi-recv buffer has been released, and the
    /// completion entry is not associated with a received message" (fi_cq(3)).
    pub(crate) fn release_buffer(&mut self, buffer: ReceiveOperation) {
        if buffer.canceled {
            return self.fail_receive(buffer, None, 0, &canceled());
        }
        let entry = Entry {
            context: buffer.context,
            flags: Flags::MULTI_RECV.bits(),
            attachment: buffer.attachment,
            ..Entry::default()
        };
        if let Some(queue) = &self.setup.receive.queue {
            queue.push(entry);
        }
    }

    fn report_truncated_multi(
        &mut self,
        receive: u32,
        message: &Message,
        buffer: u64,
        room: usize,
    ) {
        let operation = self.receives[receive].shadow();
        let reason = format!(
            "a message of {} bytes arrived where {room} bytes of a multi-receive buffer were left",
            message.total
        );
        let why = Cause { errno: crate::error::Errno::TRUNC, reason };
        self.fail_receive_into(operation, Some(message), buffer, room as u64, &why);
    }

    /// The posted buffer is canceled or its only sender died. What still arrives
    /// into it (after a death nothing does) comes before the error.
    pub(crate) fn fail_multi(&mut self, receive: u32, why: &Cause) {
        let operation = &mut self.receives[receive];
        operation.exhausted = true;
        if operation.arriving > 0 {
            operation.canceled = true;
            return;
        }
        let operation = self.receives.remove(receive);
        self.fail_receive(operation, None, 0, why);
    }

    /// A message that was arriving into the buffer failed.
    pub(crate) fn fail_arriving_multi(
        &mut self,
        receive: u32,
        message: &Message,
        placed: u64,
        why: &Cause,
    ) {
        let operation = self.receives[receive].shadow();
        self.fail_receive_into(operation, Some(message), 0, placed, why);
        self.leave_multi(receive, None);
    }
}

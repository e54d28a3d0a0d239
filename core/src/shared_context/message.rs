//! The safe calls of a shared receive context: as those of an endpoint, a call takes the buffer
//! over and its completion hands it back.

use super::receive::SharedReceive;
use crate::{
    attachment::Attachment, endpoint::message::Refused, flags::Flags, memory::Pieces,
    operation::ReceivePost, transport::Provider,
};

impl<P: Provider> SharedReceive<P> {
    /// Receives a message of any endpoint into `buffer`. Reference: fi_msg(3), `fi_recv`.
    pub fn receive(&self, buffer: Vec<u8>, from: u64, context: u64) -> Result<(), Refused> {
        self.receive_owned(buffer, from, (0, 0), context, Flags::MSG)
    }

    /// Receives messages of any endpoint into `buffer`, one after the other, until less than
    /// the minimum is left (`FI_MULTI_RECV`); the last completion returns the buffer.
    pub fn receive_multi(&self, buffer: Vec<u8>, from: u64, context: u64) -> Result<(), Refused> {
        self.receive_owned(buffer, from, (0, 0), context, Flags::MSG | Flags::MULTI_RECV)
    }

    /// Receives a message of any endpoint whose tag is `tag` in all bits that are not in
    /// `ignore`. Reference: fi_tagged(3), `fi_trecv`.
    pub fn receive_tagged(
        &self,
        buffer: Vec<u8>,
        from: u64,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<(), Refused> {
        self.receive_owned(buffer, from, (tag, ignore), context, Flags::TAGGED)
    }

    fn receive_owned(
        &self,
        buffer: Vec<u8>,
        from: u64,
        (tag, ignore): (u64, u64),
        context: u64,
        kind: Flags,
    ) -> Result<(), Refused> {
        let (attachment, piece) = Attachment::new(buffer);
        let mut attachment = Some(attachment);
        let flags = self.default_flags().receive_of(kind) | kind | Flags::COMPLETION;
        let post = ReceivePost {
            pieces: Pieces::One(piece),
            from,
            tag,
            ignore,
            context,
            flags,
            region: None,
            attachment: Some(&mut attachment),
        };
        let posted = self.post_receive(post);
        posted.map_err(|error| Refused { error, buffer: Attachment::reclaim(attachment) })
    }
}

//! Messages that the provider buffers and announces. Reference: fi_msg(3), "Buffered Receives",
//! "Variable Length Messages"; fi_tagged(3), "Buffered Tagged Receives".
//!
//! The context of an announcement names the message until it is claimed or discarded.

use super::{Endpoint, EndpointError, EndpointOptions, OptionName, PostError, message::Refused};
use crate::{
    address_vector::FI_ADDR_UNSPEC,
    attachment::Attachment,
    buffering::{BUFFERED_LIMIT_DEFAULT, BUFFERED_MIN_DEFAULT, BufferingSetup},
    flags::Flags,
    memory::{Piece, Pieces},
    operation::ReceivePost,
    primitive::{AtomicU64, AtomicUsize, Ordering},
    transport::Provider,
};

/// What is to be known of buffering before an endpoint is enabled.
pub(super) struct BufferingOptions {
    buffers: bool,
    limit: AtomicUsize,
    min: AtomicUsize,
    announced_as: AtomicU64,
}

impl BufferingOptions {
    pub(super) fn new(options: &EndpointOptions) -> Self {
        BufferingOptions {
            buffers: options.buffers(),
            limit: BUFFERED_LIMIT_DEFAULT.into(),
            min: BUFFERED_MIN_DEFAULT.into(),
            announced_as: AtomicU64::new(0),
        }
    }

    pub(super) fn setup(&self) -> Option<BufferingSetup> {
        self.buffers.then(|| BufferingSetup {
            limit: self.limit.load(Ordering::Relaxed),
            min: self.min.load(Ordering::Relaxed),
            endpoint: self.announced_as.load(Ordering::Relaxed),
        })
    }

    fn place(&self, name: OptionName) -> Result<(&AtomicUsize, &'static str), EndpointError> {
        match name {
            OptionName::BufferedMin if self.buffers => Ok((&self.min, "FI_OPT_BUFFERED_MIN")),
            OptionName::BufferedLimit if self.buffers => Ok((&self.limit, "FI_OPT_BUFFERED_LIMIT")),
            _ => Err(EndpointError::UnknownOption { option: name as i32 }),
        }
    }

    /// "fi_getopt() will return the currently configured threshold, or the provider's default
    /// threshold if one has not be set by the application" (fi_endpoint(3)): also where nothing is
    /// buffered, and none can be set.
    pub(super) fn option(&self, name: OptionName) -> Result<usize, EndpointError> {
        match name {
            OptionName::BufferedLimit => Ok(self.limit.load(Ordering::Relaxed)),
            name => Ok(self.place(name)?.0.load(Ordering::Relaxed)),
        }
    }

    /// Whether it can be set here.
    pub(super) fn check(&self, name: OptionName) -> Result<(), EndpointError> {
        self.place(name).map(|_| ())
    }

    /// "If the provider cannot support the requested threshold, it will fail the fi_setopt() call
    /// with FI_EMSGSIZE. Calling fi_setopt() with the threshold set to SIZE_MAX will set the
    /// threshold to the maximum": `most`, what an endpoint may hold.
    pub(super) fn set_option(
        &self,
        name: OptionName,
        value: usize,
        most: usize,
    ) -> Result<(), EndpointError> {
        let (place, option) = self.place(name)?;
        let is_limit = name == OptionName::BufferedLimit;
        let value = if is_limit && value == usize::MAX { most } else { value };
        if is_limit && value > most {
            return Err(EndpointError::OptionTooLarge { option, value, limit: most });
        }
        let limit = self.limit.load(Ordering::Relaxed);
        if is_limit {
            // What is buffered whole has its minimum there.
            self.min.fetch_min(value, Ordering::Relaxed);
        } else if value > limit {
            let bounds = "0 to FI_OPT_BUFFERED_LIMIT";
            return Err(EndpointError::BadOptionValue { option, value, bounds });
        }
        place.store(value, Ordering::Relaxed);
        Ok(())
    }
}

impl<P: Provider> Endpoint<P> {
    /// Whether messages are announced, and nothing but tags is posted for them.
    pub fn buffers(&self) -> bool {
        self.buffering.buffers
    }

    /// Whether a receive with these flags and its family's has buffers that nobody looks at: it is a
    /// discard, or a tag of messages that are buffered. "Tags are posted using fi_trecv, fi_trecvv,
    /// and fi_trecvmsg; however, parameters related to the input buffers are ignored" (fi_tagged(3)).
    ///
    /// For the C door.
    #[doc(hidden)]
    #[inline(always)]
    pub fn ignores_buffers(&self, flags: Flags) -> bool {
        let plain = self.enabled.get().is_some_and(|enabled| enabled.receive.is_plain(flags));
        !plain && self.is_tag_or_discard(flags)
    }

    #[cold]
    #[inline(never)]
    fn is_tag_or_discard(&self, flags: Flags) -> bool {
        let takes = flags.intersects(Flags::PEEK | Flags::CLAIM);
        let is_tag = self.buffers() && flags.contains(Flags::TAGGED) && !takes;
        is_tag || flags.contains(Flags::DISCARD)
    }

    /// The buffers of a receive with these flags: none, where nobody looks at them, whatever they are.
    pub(super) fn heeded<'a>(&self, pieces: Pieces<'a>, flags: Flags) -> Pieces<'a> {
        if self.is_tag_or_discard(flags) { Pieces::One(Piece::EMPTY) } else { pieces }
    }

    /// What events call the endpoint where nobody says otherwise: see [`Self::announce_as`].
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn known_as(&self) -> u64 {
        self.buffering.announced_as.load(Ordering::Relaxed)
    }

    /// Says what announcements of untagged messages call the endpoint, and events in the queue of
    /// its domain. Has to be said before the
    /// endpoint is enabled.
    ///
    /// For the C door.
    #[doc(hidden)]
    pub fn announce_as(&self, fid: u64) {
        self.buffering.announced_as.store(fid, Ordering::Relaxed);
    }

    /// Posts a tag: messages from `from` that it matches, not counting the bits of `ignore`, are
    /// announced one for each posted tag.
    ///
    /// # Errors
    /// As [`Self::post_receive`].
    /// # Reference
    /// fi_tagged(3), "Buffered Tagged Receives"
    pub fn post_tag(
        &self,
        from: u64,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Result<(), PostError> {
        let flags = Flags::TAGGED | self.default_receive_flags(Flags::TAGGED);
        let pieces = Pieces::One(Piece::EMPTY);
        self.post_receive(ReceivePost {
            pieces,
            from,
            tag,
            ignore,
            context,
            flags,
            region: None,
            attachment: None,
        })
    }

    /// Shows `look` the context that the tag of a message was posted with, 0 if it has no tag, and
    /// the bytes that are there: all of them unless its announcement said `MORE`.
    ///
    /// `look` may call whatever it likes, this endpoint as well, and may panic. The bytes that it is
    /// shown stay until it returns, also if the message is claimed or discarded meanwhile, here or by
    /// another thread, or the endpoint is closed. A claim of a message that somebody looks at copies it
    /// once more.
    ///
    /// # Errors
    /// No message was `announced` that way, or it was claimed or discarded.
    pub fn look_at_announced<R>(
        &self,
        announced: u64,
        look: impl FnOnce(u64, &[u8]) -> R,
    ) -> Result<R, PostError> {
        Ok(self.unit()?.with(|engine| engine.show_buffered(announced))??.look(look))
    }

    /// Receives a message that was announced into `buffer`. The completion, which says `CLAIM`,
    /// has this `context` and returns the buffer.
    ///
    /// # Errors
    /// As [`Self::look_at_announced`]; the buffer comes back.
    pub fn claim(&self, announced: u64, buffer: Vec<u8>, context: u64) -> Result<(), Refused> {
        let (attachment, piece) = Attachment::new(buffer);
        let mut attachment = Some(attachment);
        let post = ReceivePost {
            pieces: Pieces::One(piece),
            from: FI_ADDR_UNSPEC,
            tag: 0,
            ignore: 0,
            context,
            flags: Flags::CLAIM | Flags::COMPLETION,
            region: None,
            attachment: Some(&mut attachment),
        };
        let result =
            self.unit().and_then(|unit| unit.with(|engine| engine.claim_as(announced, post))?);
        result.map_err(|error| Refused { error, buffer: Attachment::reclaim(attachment) })
    }

    /// Gives the memory of a message that was announced back. There is no completion.
    ///
    /// # Errors
    /// As [`Self::look_at_announced`].
    pub fn discard(&self, announced: u64) -> Result<(), PostError> {
        let post = ReceivePost {
            pieces: Pieces::One(Piece::EMPTY),
            from: FI_ADDR_UNSPEC,
            tag: 0,
            ignore: 0,
            context: 0,
            flags: Flags::DISCARD,
            region: None,
            attachment: None,
        };
        self.unit()?.with(|engine| engine.claim_as(announced, post))?
    }
}

/// What may be asked for where messages are buffered: a discard stands for itself, and the only
/// receives are posted tags.
pub(super) fn check_buffered_flags(flags: Flags) -> Result<(), PostError> {
    if flags.contains(Flags::MULTI_RECV) {
        return Err(PostError::BadFlags { flags });
    }
    let takes = flags.intersects(Flags::PEEK | Flags::CLAIM | Flags::DISCARD);
    if takes || flags.contains(Flags::TAGGED) { Ok(()) } else { Err(PostError::NothingToPost) }
}

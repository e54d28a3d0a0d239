//! Atomic operations on a peer's memory. Reference: fi_atomic(3).

use super::{Endpoint, PostError, rma::WRITE_FLAGS};
use crate::{
    flags::Flags,
    memory::{Piece, Pieces},
    one_sided::{Action, AtomicPost, RemotePost},
    protocol::atomic::{AtomicCall, Form},
    transport::Provider,
};

const ATOMIC_FLAGS: Flags = WRITE_FLAGS.difference(Flags::REMOTE_CQ_DATA);

impl<P: Provider> Endpoint<P> {
    /// Posts an atomic operation of any form.
    ///
    /// As [`Self::post_write`]. Results, operands and what is compared with are the
    /// engine's until the completion; the last two not with `INJECT`. An operation
    /// is atomic element by element. How many elements it may have says
    /// [`Domain::atomic_count_max`](crate::domain::Domain::atomic_count_max).
    /// # Errors
    /// As [`Self::post_read`]; [`PostError::NoSuchAtomic`], [`PostError::BrokenElement`].
    /// # Reference
    /// fi_atomic(3)
    #[inline]
    pub fn post_atomic(&self, mut post: AtomicPost<'_>) -> Result<(), PostError> {
        self.add_completion(&mut post.flags);
        self.post_atomic_unreported(post)
    }

    /// Posts an atomic operation that writes an entry when it succeeds only if its
    /// flags say `COMPLETION`: what `fi_inject_atomic` comes down to.
    ///
    /// # Errors
    /// As [`Self::post_atomic`].
    #[inline]
    pub fn post_atomic_unreported(&self, post: AtomicPost<'_>) -> Result<(), PostError> {
        self.enabled()?.remote(self.prepare_atomic(post)?)
    }

    /// What the engine takes, after all checks of what was posted.
    #[inline(always)]
    pub(super) fn prepare_atomic<'a>(
        &self,
        post: AtomicPost<'a>,
    ) -> Result<RemotePost<'a>, PostError> {
        let AtomicPost { call, operands, compare, results, to, segments, data, context, flags } =
            post;
        if !ATOMIC_FLAGS.contains(flags) {
            return Err(PostError::BadFlags { flags });
        }
        let fetches = call.form != Form::Base;
        let direction = if fetches { Flags::READ } else { Flags::WRITE };
        let total = self.check_remote(Flags::ATOMIC | direction, segments)?;
        self.check_call(call, total)?;
        // What a form does not have is not looked at.
        let none = Pieces::One(Piece::EMPTY);
        let source = if call.operands(total) == 0 { none } else { operands };
        let compare = if call.form == Form::Compare { compare } else { none };
        let results = if fetches { results } else { none };
        let expected = [call.operands(total), call.payload(total) - call.operands(total)];
        for (pieces, remote) in [(&source, expected[0]), (&compare, expected[1])] {
            self.check_pieces(pieces)?;
            check_length(pieces, remote)?;
        }
        self.check_pieces(&results)?;
        check_length(&results, if fetches { total } else { 0 })?;
        if flags.contains(Flags::INJECT) {
            self.check_inject(call.payload(total))?;
        }
        let whole = |length: u64| length.is_multiple_of(call.datatype.size() as u64);
        if !segments.iter().all(|segment| whole(segment.length)) {
            return Err(PostError::BrokenElement { size: call.datatype.size() });
        }
        Ok(RemotePost {
            action: Action::Atomic(call),
            source,
            compare,
            results,
            to,
            segments,
            total,
            data,
            context,
            flags,
            region: None,
            attachment: None,
        })
    }

    #[inline]
    fn check_call(&self, call: AtomicCall, total: usize) -> Result<(), PostError> {
        let Some(count_max) = self.domain.atomic_count_max(call) else {
            return Err(PostError::NoSuchAtomic { call });
        };
        let limit = count_max * call.datatype.size();
        match total {
            0 => Err(PostError::NoElements),
            length if length > limit => Err(PostError::TooLong { length, limit }),
            _ => Ok(()),
        }
    }
}

#[inline]
fn check_length(pieces: &Pieces<'_>, remote: usize) -> Result<(), PostError> {
    let local = pieces.total();
    if local == remote { Ok(()) } else { Err(PostError::LengthsDiffer { local, remote }) }
}

//! One of two endpoints that exchange messages of 8 bytes, each driven by a thread of this process.

use crate::fabric::FabricError;
use kestrel::{CompletionQueue, Endpoint};
use kestrel_core::address_vector::FI_ADDR_UNSPEC;
use kestrel_core::flags::Flags;
use kestrel_core::memory::{Piece, Pieces};
use kestrel_core::operation::ReceivePost;
use std::sync::Arc;

/// The tag of all messages.
pub const TAG: u64 = 1;

/// An endpoint, or a context of one, with the queue that its operations complete at.
pub struct End {
    pub endpoint: Arc<Endpoint>,
    pub queue: Arc<CompletionQueue>,
}

impl End {
    /// Posts a receive of 8 bytes, from anybody.
    ///
    /// # Safety
    /// `place` is valid, and used for nothing else, until the receive has completed or its endpoint is
    /// closed.
    #[inline(always)]
    pub unsafe fn receive(&self, place: *mut u64, context: u64) -> Result<(), FabricError> {
        // SAFETY: as the caller says.
        let piece = unsafe { Piece::new(place.cast(), size_of::<u64>()) };
        let receive = ReceivePost {
            pieces: Pieces::One(piece),
            from: FI_ADDR_UNSPEC,
            tag: TAG,
            ignore: 0,
            context,
            flags: Flags::TAGGED,
            region: None,
            attachment: None,
        };
        self.endpoint.post_receive(receive).map_err(FabricError::Post)
    }
}

//! What a peer's memory is reached by without its processor: windows, registrations and loans.

use std::sync::Arc;

use super::{EVERYBODY, PeerIndex};
use crate::{
    memory::Piece,
    window::{
        Access, AtomicRequest, Found, Invitation, Lease, Loan, LoanWorth, OwnRegistration,
        Publisher, Registration, RegistrationRequest, Request, Started, Worth,
    },
};

/// One-sided operations that no packet carries: see [`crate::window`]. Unless a transport says
/// otherwise, all go by packets.
pub trait Windows {
    /// What goes through a window to `peer`, if any can be opened: see [`crate::window`]. All that
    /// follows is for those who answer something.
    #[inline(always)]
    fn windows_to(&self, _peer: PeerIndex) -> Option<Worth> {
        None
    }

    /// Whether the window to `peer` is open.
    fn is_window_open(&self, _peer: PeerIndex) -> bool {
        false
    }

    /// Makes our end of a window to `peer`, and says what its end has to know. The earlier one
    /// is given up.
    fn invite(&mut self, _peer: PeerIndex) -> Option<Invitation> {
        None
    }

    /// The peer's end exists: the window is open if this returns true.
    fn open_window(&mut self, _peer: PeerIndex, _theirs: Invitation) -> bool {
        false
    }

    /// Makes the end at which `peer` reaches our memory, in the ways that are permitted to all.
    fn admit(
        &mut self,
        _peer: PeerIndex,
        _theirs: Invitation,
        _permitted: Access,
    ) -> Option<Invitation> {
        None
    }

    /// By what regions are told of to `peer`, and to all others with such a window. The first call
    /// may make it.
    fn publisher(&mut self, _peer: PeerIndex) -> Option<Arc<dyn Publisher>> {
        None
    }

    /// What `peer`, to whom a window is open, tells of the region with `key`, if it does.
    #[inline(always)]
    fn published(&self, _peer: PeerIndex, _key: u64) -> Option<Lease> {
        None
    }

    /// For whom a registration is that `peer` asked for: those with the same number share it, and
    /// with [`EVERYBODY`] whoever has a window.
    fn audience(&self, _peer: PeerIndex) -> u64 {
        EVERYBODY
    }

    /// Registers memory of the application, for peers with a window to reach: `peer`, and those
    /// who share its registrations. The memory stays valid until the registration is dropped.
    fn register(
        &mut self,
        _peer: PeerIndex,
        _request: &RegistrationRequest,
    ) -> Option<Arc<dyn Registration>> {
        None
    }

    /// Registers memory of the application for our own adapter, which reaches `peer`, and tells what
    /// requests name it by. The memory stays valid until the registration is dropped.
    fn register_own(
        &mut self,
        _peer: PeerIndex,
        _memory: Piece,
        _written: bool,
    ) -> Option<OwnRegistration> {
        None
    }

    /// Starts an operation through the window to `peer`. Operations to one peer take effect in the
    /// order of their starts.
    fn start(&mut self, _peer: PeerIndex, _request: &Request) -> Started {
        Started::Refused
    }

    /// Starts an atomic operation through the window to `peer`, as [`Self::start`] does others. It
    /// is under way, finds no room, or is refused.
    fn start_atomic(&mut self, _peer: PeerIndex, _request: &AtomicRequest) -> Started {
        Started::Refused
    }

    /// Looks for an operation that is over. Those of a peer that was disconnected need not be told.
    fn finished(&mut self) -> Found {
        Found::Nothing
    }

    /// Ends the window to `peer`: the adapter touches no memory of ours for it when this returns.
    /// `finished` may tell what was under way, as for a window that failed, and need not.
    fn close_window(&mut self, _peer: PeerIndex) {}

    /// The shortest messages that are lent to `peer`, whose adapter reads them, if any are: see
    /// [`crate::protocol::fetch`].
    fn lends_to(&self, _peer: PeerIndex) -> Option<LoanWorth> {
        None
    }

    /// Lends a message to `peer`, unless it is shorter than what is worth that. Its memory stays valid
    /// until the loan is dropped, or taken back if its registration is kept.
    fn lend(&mut self, _peer: PeerIndex, _message: Piece) -> Option<Loan> {
        None
    }

    /// Ends a loan that did not come to its end, and whose registration is kept: nobody reads there any
    /// more when this returns.
    fn take_back(&mut self, _loan: &Loan) {}

    /// Whether a window to `peer`, which is connected, reaches what it lends.
    fn fetches_from(&self, _peer: PeerIndex) -> bool {
        false
    }
}

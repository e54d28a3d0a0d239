//! Which side each one-sided operation is for.

use std::sync::Arc;

use kestrel_core::{
    memory::Piece,
    transport::{PeerIndex, Transport, Windows},
    window::{
        Access, AtomicRequest, Found, Invitation, Lease, Loan, LoanWorth, OwnRegistration,
        Publisher, Registration, RegistrationRequest, Request, Started, Worth,
    },
};

use super::{
    Composite, Side,
    sides::{by, comes, leaves, leaving},
};

impl<N: Transport, F: Transport> Windows for Composite<N, F> {
    #[inline(always)]
    fn windows_to(&self, peer: PeerIndex) -> Option<Worth> {
        leaves!(&self, peer, it => it.windows_to(peer))
    }

    fn is_window_open(&self, peer: PeerIndex) -> bool {
        leaves!(&self, peer, it => it.is_window_open(peer))
    }

    fn invite(&mut self, peer: PeerIndex) -> Option<Invitation> {
        leaves!(&mut self, peer, it => it.invite(peer))
    }

    fn open_window(&mut self, peer: PeerIndex, theirs: Invitation) -> bool {
        leaves!(&mut self, peer, it => it.open_window(peer, theirs))
    }

    fn admit(
        &mut self,
        peer: PeerIndex,
        theirs: Invitation,
        permitted: Access,
    ) -> Option<Invitation> {
        comes!(&mut self, peer, it => it.admit(peer, theirs, permitted))
    }

    fn publisher(&mut self, peer: PeerIndex) -> Option<Arc<dyn Publisher>> {
        comes!(&mut self, peer, it => it.publisher(peer))
    }

    #[inline(always)]
    fn published(&self, peer: PeerIndex, key: u64) -> Option<Lease> {
        leaves!(&self, peer, it => it.published(peer, key))
    }

    /// The far side's peers share one device. The near side's numbers are never 0.
    fn audience(&self, peer: PeerIndex) -> u64 {
        comes!(&self, peer, it => it.audience(peer))
    }

    fn register(
        &mut self,
        peer: PeerIndex,
        request: &RegistrationRequest,
    ) -> Option<Arc<dyn Registration>> {
        comes!(&mut self, peer, it => it.register(peer, request))
    }

    fn register_own(
        &mut self,
        peer: PeerIndex,
        memory: Piece,
        written: bool,
    ) -> Option<OwnRegistration> {
        leaves!(&mut self, peer, it => it.register_own(peer, memory, written))
    }

    #[inline(always)]
    fn start(&mut self, peer: PeerIndex, request: &Request) -> Started {
        let (started, sent) = leaving!(self, peer, it => it.start(peer, request));
        sent.count_request(request, started);
        started
    }

    fn start_atomic(&mut self, peer: PeerIndex, request: &AtomicRequest) -> Started {
        let (started, sent) = leaving!(self, peer, it => it.start_atomic(peer, request));
        sent.count_started(size_of::<u64>(), started);
        started
    }

    fn finished(&mut self) -> Found {
        match &mut self.far {
            Some(far) => far.finished(&mut self.near),
            None => self.near.finished(),
        }
    }

    fn close_window(&mut self, peer: PeerIndex) {
        leaves!(&mut self, peer, it => it.close_window(peer))
    }

    fn lends_to(&self, peer: PeerIndex) -> Option<LoanWorth> {
        leaves!(&self, peer, it => it.lends_to(peer))
    }

    fn lend(&mut self, peer: PeerIndex, message: Piece) -> Option<Loan> {
        leaves!(&mut self, peer, it => it.lend(peer, message))
    }

    /// Of the two the far one keeps registrations, and the peer's lane may be gone.
    fn take_back(&mut self, loan: &Loan) {
        match &mut self.far {
            Some(far) => far.transport.take_back(loan),
            None => self.near.take_back(loan),
        }
    }

    /// What one side lends the other cannot reach.
    fn fetches_from(&self, peer: PeerIndex) -> bool {
        match &self.far {
            Some(far) if far.route(peer).receive == Some(Side::Far) => {
                far.sends(peer) && far.transport.fetches_from(peer)
            }
            Some(far) if far.sends(peer) => false,
            _ => self.near.fetches_from(peer),
        }
    }
}

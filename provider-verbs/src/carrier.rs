//! What a provider opens: a transport of connections, or one of datagrams.

use std::{os::fd::RawFd, sync::Arc};

use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, Keyring},
    error::Cause,
    group::Spread,
    memory::Piece,
    transport::{
        Arrival, Confirmation, Limits, Multicast, PeerIndex, Room, SingleCopy, Transport,
        TransportEvent, Windows,
    },
    window::{
        Access, AtomicRequest, Found, Invitation, Loan, LoanWorth, OwnRegistration, Registration,
        RegistrationRequest, Request, Started, Worth,
    },
    wire::Head,
};

use crate::{datagrams::UdTransport, transport::RcTransport, verbs::Verbs};

/// The transport of one endpoint. What it does not say here is the same for both kinds.
pub enum Carrier<V: Verbs> {
    Reliable(RcTransport<V>),
    Datagrams(UdTransport<V>),
}

/// The same call on whichever it is.
macro_rules! either {
    ($carrier:expr, $it:ident => $call:expr) => {
        match $carrier {
            Carrier::Reliable($it) => $call,
            Carrier::Datagrams($it) => $call,
        }
    };
}

impl<V: Verbs> Carrier<V> {
    /// The reliable one, which alone has windows.
    #[inline(always)]
    fn reliable(&self) -> Option<&RcTransport<V>> {
        match self {
            Carrier::Reliable(it) => Some(it),
            Carrier::Datagrams(_) => None,
        }
    }

    #[inline(always)]
    fn reliable_mut(&mut self) -> Option<&mut RcTransport<V>> {
        match self {
            Carrier::Reliable(it) => Some(it),
            Carrier::Datagrams(_) => None,
        }
    }
}

impl<V: Verbs> Transport for Carrier<V> {
    fn address(&self) -> Address {
        either!(self, it => it.address())
    }

    fn limits(&self) -> Limits {
        either!(self, it => it.limits())
    }

    fn take_keys(&mut self, keys: Option<&Keyring>) {
        either!(self, it => it.take_keys(keys));
    }

    fn choose_key(&mut self, peer: PeerIndex, key: KeyNumber) {
        either!(self, it => it.choose_key(peer, key));
    }

    fn connect(&mut self, peer: PeerIndex, address: Address) {
        either!(self, it => it.connect(peer, address));
    }

    fn adopt(&mut self, peer: PeerIndex, ticket: u64) {
        either!(self, it => it.adopt(peer, ticket));
    }

    fn disconnect(&mut self, peer: PeerIndex) {
        either!(self, it => it.disconnect(peer));
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        either!(self, it => it.hang_up(peer));
    }

    fn forget_peer(&mut self, peer: PeerIndex) -> bool {
        either!(self, it => it.forget_peer(peer))
    }

    #[inline(always)]
    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        either!(self, it => it.room(peer, wanted))
    }

    #[inline(always)]
    fn push(
        &mut self,
        peer: PeerIndex,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        either!(self, it => it.push(peer, head, word, words, payload))
    }

    fn waits_for_itself(&mut self, peer: PeerIndex) -> bool {
        either!(self, it => it.waits_for_itself(peer))
    }

    fn credit(&self, peer: PeerIndex) -> u64 {
        either!(self, it => it.credit(peer))
    }

    fn grant(&mut self, peer: PeerIndex, credit: u64) {
        either!(self, it => it.grant(peer, credit));
    }

    #[inline(always)]
    fn arrival(&mut self) -> Option<Arrival> {
        either!(self, it => it.arrival())
    }

    fn pass_over(&mut self) {
        either!(self, it => it.pass_over());
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        either!(self, it => it.arrival_from(peer))
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        either!(self, it => it.word(index))
    }

    #[inline(always)]
    fn copy_out(&self, offset: usize, to: Piece) {
        either!(self, it => it.copy_out(offset, to));
    }

    #[inline(always)]
    fn consume(&mut self) {
        either!(self, it => it.consume());
    }

    #[inline(always)]
    fn flush(&mut self) {
        if let Some(it) = self.reliable_mut() {
            it.flush();
        }
    }

    #[inline(always)]
    fn has_event(&self) -> bool {
        either!(self, it => it.has_event())
    }

    fn event(&mut self) -> Option<TransportEvent> {
        either!(self, it => it.event())
    }

    fn arm(&mut self) {
        either!(self, it => it.arm());
    }

    fn fence_armed() {
        RcTransport::<V>::fence_armed();
        UdTransport::<V>::fence_armed();
    }

    fn is_quiet(&mut self) -> bool {
        either!(self, it => it.is_quiet())
    }

    fn disarm(&mut self) -> bool {
        either!(self, it => it.disarm())
    }

    fn ring(&self) {
        either!(self, it => it.ring());
    }

    fn bell(&self) -> RawFd {
        either!(self, it => it.bell())
    }
}

impl<V: Verbs> SingleCopy for Carrier<V> {}

impl<V: Verbs> Windows for Carrier<V> {
    #[inline(always)]
    fn windows_to(&self, peer: PeerIndex) -> Option<Worth> {
        self.reliable()?.windows_to(peer)
    }

    #[inline(always)]
    fn is_window_open(&self, peer: PeerIndex) -> bool {
        self.reliable().is_some_and(|it| it.is_window_open(peer))
    }

    fn invite(&mut self, peer: PeerIndex) -> Option<Invitation> {
        self.reliable_mut()?.invite(peer)
    }

    fn open_window(&mut self, peer: PeerIndex, theirs: Invitation) -> bool {
        self.reliable_mut().is_some_and(|it| it.open_window(peer, theirs))
    }

    fn admit(
        &mut self,
        peer: PeerIndex,
        theirs: Invitation,
        permitted: Access,
    ) -> Option<Invitation> {
        self.reliable_mut()?.admit(peer, theirs, permitted)
    }

    fn register(
        &mut self,
        peer: PeerIndex,
        request: &RegistrationRequest,
    ) -> Option<Arc<dyn Registration>> {
        self.reliable_mut()?.register(peer, request)
    }

    fn register_own(
        &mut self,
        peer: PeerIndex,
        memory: Piece,
        written: bool,
    ) -> Option<OwnRegistration> {
        self.reliable_mut()?.register_own(peer, memory, written)
    }

    #[inline(always)]
    fn start(&mut self, peer: PeerIndex, request: &Request) -> Started {
        self.reliable_mut().map_or(Started::Refused, |it| it.start(peer, request))
    }

    #[inline(always)]
    fn start_atomic(&mut self, peer: PeerIndex, request: &AtomicRequest) -> Started {
        self.reliable_mut().map_or(Started::Refused, |it| it.start_atomic(peer, request))
    }

    #[inline(always)]
    fn finished(&mut self) -> Found {
        self.reliable_mut().map_or(Found::Nothing, |it| it.finished())
    }

    fn close_window(&mut self, peer: PeerIndex) {
        if let Some(it) = self.reliable_mut() {
            it.close_window(peer);
        }
    }

    fn lends_to(&self, peer: PeerIndex) -> Option<LoanWorth> {
        self.reliable()?.lends_to(peer)
    }

    fn lend(&mut self, peer: PeerIndex, message: Piece) -> Option<Loan> {
        self.reliable_mut()?.lend(peer, message)
    }

    fn take_back(&mut self, loan: &Loan) {
        if let Some(it) = self.reliable_mut() {
            it.take_back(loan);
        }
    }

    fn fetches_from(&self, peer: PeerIndex) -> bool {
        self.reliable().is_some_and(|it| it.fetches_from(peer))
    }
}

impl<V: Verbs> Confirmation for Carrier<V> {
    fn confirms(&self, peer: PeerIndex) -> bool {
        self.reliable().is_some_and(|it| it.confirms(peer))
    }

    fn confirm_next(&mut self, peer: PeerIndex) {
        if let Some(it) = self.reliable_mut() {
            it.confirm_next(peer);
        }
    }

    fn pushed(&self, peer: PeerIndex) -> u32 {
        self.reliable().map_or(0, |it| it.pushed(peer))
    }

    fn look_for_confirmations(&mut self) {
        if let Some(it) = self.reliable_mut() {
            it.look_for_confirmations();
        }
    }

    fn confirmed(&self, peer: PeerIndex) -> u32 {
        self.reliable().map_or(0, |it| it.confirmed(peer))
    }

    fn receipt(&mut self, peer: PeerIndex) -> u64 {
        self.reliable_mut().map_or(0, |it| it.receipt(peer))
    }

    fn take_receipt(&mut self, peer: PeerIndex, receipt: u64) {
        if let Some(it) = self.reliable_mut() {
            it.take_receipt(peer, receipt);
        }
    }
}

impl<V: Verbs> Multicast for Carrier<V> {
    fn join(&mut self, group: Address, receives: bool) -> Result<Spread, Cause> {
        either!(self, it => it.join(group, receives))
    }

    fn leave(&mut self, group: Address) {
        either!(self, it => it.leave(group));
    }

    fn recognize(&mut self, peer: PeerIndex, ticket: u64) {
        either!(self, it => it.recognize(peer, ticket));
    }

    fn push_to_group(
        &mut self,
        group: Address,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        either!(self, it => it.push_to_group(group, head, word, words, payload))
    }

    fn group_room(&self) -> usize {
        either!(self, it => it.group_room())
    }
}

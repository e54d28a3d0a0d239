//! Which side each call of an endpoint with two transports is for.

use std::{os::fd::RawFd, sync::Arc, time::Duration};

use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, Keyring},
    group::{Member, Spread},
    memory::Piece,
    ring::claims::Claims,
    transport::{
        Arrival, Limits, PeerIndex, Room, Service, Transport, TransportEvent, Unreachable,
    },
    window::{
        Access, AtomicRequest, Found, Invitation, Loan, LoanWorth, OwnRegistration, Registration,
        RegistrationRequest, Request, Started, Worth,
    },
    wire::Head,
};

use super::{Composite, Side, Turn, route::explain};

/// A call of the side whose route of `peer` is far, or of the near one.
macro_rules! by {
    ($way:ident, [$($reference:tt)+] $self:ident, $peer:ident, $it:ident => $call:expr) => {
        match $($reference)+ $self.far {
            Some(far) if far.route($peer).$way == Some(Side::Far) => {
                let $it = $($reference)+ far.transport;
                $call
            }
            _ => {
                let $it = $($reference)+ $self.near;
                $call
            }
        }
    };
}

/// A call of the side that `peer`'s packets leave by.
macro_rules! leaves {
    (&mut $($rest:tt)+) => { by!(send, [&mut] $($rest)+) };
    (&$($rest:tt)+) => { by!(send, [&] $($rest)+) };
}

/// The same, and what that side has sent.
macro_rules! leaving {
    ($self:ident, $peer:ident, $it:ident => $call:expr) => {
        match &mut $self.far {
            Some(far) if far.route($peer).send == Some(Side::Far) => {
                let $it = &mut far.transport;
                ($call, &mut far.sent)
            }
            _ => {
                let $it = &mut $self.near;
                ($call, &mut $self.near_sent)
            }
        }
    };
}

/// A call of the side that `peer`'s packets come by.
macro_rules! comes {
    (&mut $($rest:tt)+) => { by!(receive, [&mut] $($rest)+) };
    (&$($rest:tt)+) => { by!(receive, [&] $($rest)+) };
}

impl<N: Transport, F: Transport> Transport for Composite<N, F> {
    fn address(&self) -> Address {
        match &self.far {
            Some(far) => far.transport.address(),
            None => self.near.address(),
        }
    }

    /// The near side's: how much travels without consent is the protocol's, and the same for all.
    /// What is too much for one packet of the far side finds no room there, and goes in parts; a
    /// datagram cannot, so that the shorter limit holds for all.
    fn limits(&self) -> Limits {
        let near = self.near.limits();
        match &self.far {
            Some(far) if far.service == Service::Datagrams => {
                let single = near.single.min(far.transport.limits().single);
                Limits { short: near.short.min(single), single, ..near }
            }
            _ => near,
        }
    }

    fn finds(&self, address: Address) -> bool {
        self.near.finds(address)
            || self.far.as_ref().is_some_and(|far| far.transport.finds(address))
    }

    fn speaks_for(&self, peer: PeerIndex, address: Address) -> bool {
        let far = self.far.as_ref().filter(|far| far.route(peer).receive == Some(Side::Far));
        let near = || self.near.speaks_for(peer, address);
        far.map_or_else(near, |far| far.transport.speaks_for(peer, address))
    }

    fn take_keys(&mut self, keys: &Keyring) {
        self.near.take_keys(keys);
        self.far.iter_mut().for_each(|far| far.transport.take_keys(keys));
    }

    fn choose_key(&mut self, peer: PeerIndex, key: KeyNumber) {
        self.near.choose_key(peer, key);
        self.far.iter_mut().for_each(|far| far.transport.choose_key(peer, key));
    }

    fn connect(&mut self, peer: PeerIndex, address: Address) {
        match &mut self.far {
            None => self.near.connect(peer, address),
            Some(far) => far.connect(&mut self.near, peer, address),
        }
    }

    fn adopt(&mut self, peer: PeerIndex, ticket: u64) {
        match &mut self.far {
            None => self.near.adopt(peer, ticket),
            Some(far) => far.adopt(&mut self.near, peer, ticket),
        }
    }

    fn disconnect(&mut self, peer: PeerIndex) {
        self.near.disconnect(peer);
        self.far.iter_mut().for_each(|far| far.disconnect(peer));
    }

    fn hang_up(&mut self, peer: PeerIndex) {
        self.near.hang_up(peer);
        self.far.iter_mut().for_each(|far| far.hang_up(peer));
    }

    fn forget_peer(&mut self, peer: PeerIndex) -> bool {
        self.near.forget_peer(peer) && self.far.as_mut().is_none_or(|far| far.forget_peer(peer))
    }

    fn room(&mut self, peer: PeerIndex, wanted: usize) -> Room {
        leaves!(&mut self, peer, it => it.room(peer, wanted))
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
        if self.near.push(peer, head, word, words, payload) {
            self.near_sent.count(head, words, payload.len());
            return true;
        }
        self.far.is_some() && self.push_far(peer, head, word, words, payload)
    }

    fn waits_for_itself(&mut self, peer: PeerIndex) -> bool {
        leaves!(&mut self, peer, it => it.waits_for_itself(peer))
    }

    fn credit(&self, peer: PeerIndex) -> u64 {
        leaves!(&self, peer, it => it.credit(peer))
    }

    fn grant(&mut self, peer: PeerIndex, credit: u64) {
        match &mut self.far {
            Some(far) if far.route(peer).receive == Some(Side::Far) => {
                far.transport.grant(peer, credit);
            }
            _ => self.near.grant(peer, credit),
        }
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.near.flush();
        if let Some(far) = &mut self.far {
            far.transport.flush();
        }
    }

    #[inline(always)]
    fn arrival(&mut self) -> Option<Arrival> {
        if self.turn.get() != Turn::Near {
            return self.arrival_far_first();
        }
        let arrival = self.near.arrival();
        if arrival.is_none() && self.far.is_some() {
            return self.arrival_of_far();
        }
        arrival
    }

    #[inline(always)]
    fn arrival_elsewhere(&mut self) -> Option<Arrival> {
        if self.turn.get() == Turn::Far { None } else { self.near.arrival_elsewhere() }
    }

    fn pass_over(&mut self) {
        if self.turn.get() != Turn::Far {
            self.near.pass_over();
        }
    }

    fn arrival_from(&mut self, peer: PeerIndex) -> Option<Arrival> {
        self.turn.set(Turn::Near);
        if let Some(arrival) = self.near.arrival_from(peer) {
            return Some(arrival);
        }
        let arrival = self.far.as_mut()?.transport.arrival_from(peer)?;
        self.turn.set(Turn::Far);
        Some(arrival)
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        match self.speaking_far() {
            Some(far) => far.transport.word(index),
            None => self.near.word(index),
        }
    }

    #[inline(always)]
    fn placed(&self) -> usize {
        match self.speaking_far() {
            Some(far) => far.transport.placed(),
            None => self.near.placed(),
        }
    }

    #[inline(always)]
    fn copy_out(&self, offset: usize, to: Piece) {
        match self.speaking_far() {
            Some(far) => far.transport.copy_out(offset, to),
            None => self.near.copy_out(offset, to),
        }
    }

    #[inline(always)]
    fn consume(&mut self) {
        if self.turn.get() != Turn::Far {
            return self.near.consume();
        }
        if let Some(far) = &mut self.far {
            far.transport.consume();
        }
    }

    fn read_remote(&mut self, peer: PeerIndex, remote: u64, to: Piece) -> bool {
        comes!(&mut self, peer, it => it.read_remote(peer, remote, to))
    }

    fn write_remote(&mut self, peer: PeerIndex, remote: u64, from: Piece) -> bool {
        leaves!(&mut self, peer, it => it.write_remote(peer, remote, from))
    }

    fn has_ended(&self, peer: PeerIndex) -> bool {
        comes!(&self, peer, it => it.has_ended(peer))
    }

    fn claims_from(&self, peer: PeerIndex) -> Option<&Claims> {
        comes!(&self, peer, it => it.claims_from(peer))
    }

    fn claims_to(&self, peer: PeerIndex) -> Option<&Claims> {
        leaves!(&self, peer, it => it.claims_to(peer))
    }

    fn can_read_remote(&self, peer: PeerIndex) -> bool {
        comes!(&self, peer, it => it.can_read_remote(peer))
    }

    fn is_readable_by(&self, peer: PeerIndex) -> bool {
        leaves!(&self, peer, it => it.is_readable_by(peer))
    }

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

    fn confirms(&self, peer: PeerIndex) -> bool {
        leaves!(&self, peer, it => it.confirms(peer))
    }

    fn confirm_next(&mut self, peer: PeerIndex) {
        leaves!(&mut self, peer, it => it.confirm_next(peer))
    }

    fn pushed(&self, peer: PeerIndex) -> u32 {
        leaves!(&self, peer, it => it.pushed(peer))
    }

    fn confirmed(&mut self, peer: PeerIndex) -> u32 {
        leaves!(&mut self, peer, it => it.confirmed(peer))
    }

    fn lends_to(&self, peer: PeerIndex) -> Option<LoanWorth> {
        leaves!(&self, peer, it => it.lends_to(peer))
    }

    fn lend(&mut self, peer: PeerIndex, message: Piece) -> Option<Loan> {
        leaves!(&mut self, peer, it => it.lend(peer, message))
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

    /// Groups are the far side's, which reaches those of this host as well; where it is not there
    /// they are the near one's.
    fn join(&mut self, group: Address, receives: bool) -> Result<Spread, Unreachable> {
        match &mut self.far {
            Some(far) => far.transport.join(group, receives),
            None => self.near.join(group, receives),
        }
    }

    fn recognize(&mut self, peer: PeerIndex, ticket: u64) {
        if let Some(far) = &mut self.far {
            far.transport.recognize(peer, ticket);
        }
    }

    fn leave(&mut self, group: Address) {
        match &mut self.far {
            Some(far) => far.transport.leave(group),
            None => self.near.leave(group),
        }
    }

    fn members(&mut self, group: Address) -> Option<Vec<Member>> {
        match &mut self.far {
            Some(far) => far.transport.members(group),
            None => self.near.members(group),
        }
    }

    fn expel(&mut self, group: Address, member: Member) {
        match &mut self.far {
            Some(far) => far.transport.expel(group, member),
            None => self.near.expel(group, member),
        }
    }

    fn is_deserted(&self, address: Address) -> bool {
        self.far.is_none() && self.near.is_deserted(address)
    }

    fn push_to_group(
        &mut self,
        group: Address,
        head: Head,
        word: u64,
        words: &[u64],
        payload: Piece,
    ) -> bool {
        self.far.as_mut().is_some_and(|far| {
            let pushed = far.transport.push_to_group(group, head, word, words, payload);
            if pushed {
                far.sent.count(head, words, payload.len());
            }
            pushed
        })
    }

    fn group_room(&self) -> usize {
        self.far.as_ref().map_or(usize::MAX, |far| far.transport.group_room())
    }

    #[inline(always)]
    fn has_event(&self) -> bool {
        if let Some(far) = &self.far
            && (far.passes(&self.turn) || !far.held.is_empty())
        {
            return true;
        }
        self.near.has_event()
    }

    fn event(&mut self) -> Option<TransportEvent> {
        let Some(far) = &mut self.far else {
            return self.near.event().map(|event| explain(event, self.absence.as_ref()));
        };
        // Each turn takes one event of a queue, and those that are not told lead to one later.
        loop {
            let told = match self.near.event() {
                Some(event) => far.near_event(event),
                None => match far.transport.event() {
                    Some(event) => far.far_event(event),
                    None => Some(far.release()?),
                },
            };
            if told.is_some() {
                return told;
            }
        }
    }

    fn arm(&mut self) -> bool {
        let near = self.near.arm();
        // What is kept back is told by no bell.
        self.far.as_mut().is_none_or(|far| far.transport.arm() && far.held.is_empty()) && near
    }

    fn disarm(&mut self) {
        self.near.disarm();
        self.far.iter_mut().for_each(|far| far.transport.disarm());
    }

    fn ring(&self) {
        self.near.ring();
    }

    fn bell(&self) -> RawFd {
        self.far.as_ref().map_or_else(|| self.near.bell(), |far| far.bells.fd())
    }

    /// The bells of both sides are descriptors that poll(2) understands.
    fn sleep(bells: &[RawFd], timeout: Option<Duration>) {
        kestrel_shm::doorbell::wait_any(bells, timeout);
    }
}

//! Which side each call of an endpoint with two transports is for.

use std::os::fd::RawFd;

use kestrel_core::{
    address::Address,
    auth_key::{KeyNumber, Keyring},
    memory::Piece,
    ring::claims::Claims,
    transport::{
        Arrival, Confirmation, Limits, PeerIndex, Room, Service, SingleCopy, Transport,
        TransportEvent,
    },
    wire::Head,
};

use super::{
    Composite, Side, Turn,
    far::Far,
    route::explain,
    sides::{by, comes, leaves},
};

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

    fn speaks_for(&self, peer: PeerIndex, address: Address) -> Option<bool> {
        let far = self.far.as_ref().filter(|far| far.route(peer).receive == Some(Side::Far));
        let near = || self.near.speaks_for(peer, address);
        far.map_or_else(near, |far| far.transport.speaks_for(peer, address))
    }

    fn take_keys(&mut self, keys: Option<&Keyring>) {
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

    /// The other side is looked at first.
    fn pass_over(&mut self) {
        match (&mut self.far, self.turn.get()) {
            (Some(far), Turn::Far) => {
                far.transport.pass_over();
                self.turn.set(Turn::Near);
            }
            (far, _) => {
                self.near.pass_over();
                self.turn.set(if far.is_some() { Turn::FarIsDue } else { Turn::Near });
            }
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

    fn arm(&mut self) {
        self.near.arm();
        self.far.iter_mut().for_each(|far| far.transport.arm());
    }

    fn fence_armed() {
        N::fence_armed();
        F::fence_armed();
    }

    fn is_quiet(&mut self) -> bool {
        // What is kept back is told by no bell.
        let quiet = |far: &mut Box<Far<F>>| far.transport.is_quiet() && far.held.is_empty();
        self.far.as_mut().is_none_or(quiet) && self.near.is_quiet()
    }

    fn disarm(&mut self) -> bool {
        let near = self.near.disarm();
        self.far.as_mut().is_some_and(|far| far.transport.disarm()) || near
    }

    fn ring(&self) {
        self.near.ring();
    }

    fn bell(&self) -> RawFd {
        self.far.as_ref().map_or_else(|| self.near.bell(), |far| far.bells.fd())
    }
}

impl<N: Transport, F: Transport> SingleCopy for Composite<N, F> {
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
}

impl<N: Transport, F: Transport> Confirmation for Composite<N, F> {
    fn confirms(&self, peer: PeerIndex) -> bool {
        leaves!(&self, peer, it => it.confirms(peer))
    }

    fn confirm_next(&mut self, peer: PeerIndex) {
        leaves!(&mut self, peer, it => it.confirm_next(peer))
    }

    fn pushed(&self, peer: PeerIndex) -> u32 {
        leaves!(&self, peer, it => it.pushed(peer))
    }

    fn look_for_confirmations(&mut self) {
        self.near.look_for_confirmations();
        if let Some(far) = &mut self.far {
            far.transport.look_for_confirmations();
        }
    }

    fn confirmed(&self, peer: PeerIndex) -> u32 {
        leaves!(&self, peer, it => it.confirmed(peer))
    }

    fn receipt(&mut self, peer: PeerIndex) -> u64 {
        comes!(&mut self, peer, it => it.receipt(peer))
    }

    fn take_receipt(&mut self, peer: PeerIndex, receipt: u64) {
        leaves!(&mut self, peer, it => it.take_receipt(peer, receipt))
    }
}

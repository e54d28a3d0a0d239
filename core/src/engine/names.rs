//! What peers are called: what the address vector calls them now.
//!
//! Asking it takes its writer mutex, which an insertion holds until it is over. A poll does not wait
//! for that, since others wait for its thread: it takes no packets that time.

use super::{Engine, peer::Peer};
use crate::{
    address_vector::{FI_ADDR_NOTAVAIL, FiAddr, LOOK_EACH_TIME},
    tag_match::source_in,
    transport::{PeerIndex, Transport},
};

/// As a count of changes: there is somebody who has not been named since.
const UNNAMED: u64 = LOOK_EACH_TIME - 1;

impl<T: Transport> Engine<T> {
    /// Makes sure that each peer is called what the address vector calls it now, and waits for that.
    #[inline(always)]
    pub(crate) fn know_sources(&mut self) {
        if self.sources_valid_for != self.setup.address_vector.changes() {
            self.refresh_sources(true);
        }
    }

    /// Makes sure that each peer is called what the address vector calls it now, for a poll, which does
    /// not wait. False: it cannot be told who sent what there may be.
    #[inline(always)]
    pub(super) fn knows_sources(&mut self) -> bool {
        self.sources_valid_for == self.setup.address_vector.changes() || self.refresh_sources(false)
    }

    #[cold]
    #[inline(never)]
    fn refresh_sources(&mut self, waits: bool) -> bool {
        let changes = self.setup.address_vector.changes_everywhere();
        // Of a vector that other processes share this comes at every poll.
        let looks_each_time = self.setup.address_vector.changes() == LOOK_EACH_TIME;
        if looks_each_time && self.sources_made_for == changes {
            return true;
        }
        let vector = self.setup.address_vector.clone();
        let names = if waits { Some(vector.names()) } else { vector.names_at_once() };
        let Some(mut names) = names else { return false };
        match looks_each_time {
            true => self.sources_made_for = changes,
            false => self.sources_valid_for = changes,
        }
        for peer in 0..self.peers.len() as PeerIndex {
            let source = self.peers[peer as usize].source;
            let Peer { address, key, .. } = self.peers[source as usize];
            self.set_source(peer, source, names.reported_by(&address, key));
        }
        true
    }

    /// What `peer` sends comes from `source`.
    pub(crate) fn attribute_to(&mut self, peer: PeerIndex, source: PeerIndex) {
        let Peer { address, key, .. } = self.peers[source as usize];
        let fi_addr = self.setup.address_vector.names().reported_by(&address, key);
        self.set_source(peer, source, fi_addr);
    }

    /// What `peer` sends comes from `source`: for who waits for nobody. What that is called is found out
    /// before anything of it is taken, if it cannot be now.
    pub(crate) fn attribute_at_once(&mut self, peer: PeerIndex, source: PeerIndex) {
        let Peer { address, key, .. } = self.peers[source as usize];
        let names = self.setup.address_vector.names_at_once();
        let fi_addr = names.map(|mut names| names.reported_by(&address, key));
        if fi_addr.is_none() {
            (self.sources_valid_for, self.sources_made_for) = (UNNAMED, UNNAMED);
        }
        self.set_source(peer, source, fi_addr.unwrap_or(FI_ADDR_NOTAVAIL));
    }

    fn set_source(&mut self, peer: PeerIndex, source: PeerIndex, fi_addr: FiAddr) {
        let matched_as = source_in(self.group_of(self.peers[source as usize].key), source);
        let record = &mut self.peers[peer as usize];
        let before = std::mem::replace(&mut record.source, source);
        (record.matched_as, record.fi_addr) = (matched_as, fi_addr);
        if before != source {
            self.further_contexts.move_over(peer, before, source);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        iter,
        net::Ipv4Addr,
        sync::{Arc, mpsc},
        thread,
        time::Duration,
    };

    use crate::{
        address::Address,
        address_vector::{AddressVector, FI_ADDR_NOTAVAIL, Marks},
        completion_queue::{CompletionQueue, Entry, ReadError},
        domain::{Domain, DomainOptions},
        endpoint::{Endpoint, EndpointOptions},
        flags::Flags,
        mock::{MockOptions, MockProvider},
    };

    const PATIENCE: Duration = Duration::from_secs(10);

    struct Node {
        endpoint: Arc<Endpoint<MockProvider>>,
        queue: Arc<CompletionQueue<MockProvider>>,
        vector: Arc<AddressVector>,
    }

    impl Node {
        fn open(provider: &Arc<MockProvider>) -> Node {
            let domain = Domain::open(provider.clone(), DomainOptions::default()).unwrap();
            let endpoint = Endpoint::open(&domain, EndpointOptions::default()).unwrap();
            let queue = CompletionQueue::open(&domain, 0).unwrap();
            let vector = Arc::new(AddressVector::open(Default::default()).unwrap());
            endpoint.bind_address_vector(&vector).unwrap();
            endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV).unwrap();
            endpoint.enable().unwrap();
            Node { endpoint, queue, vector }
        }

        /// Who sent the message that is received next, if it comes in so many polls.
        fn source(&self, polls: usize) -> Option<u64> {
            let mut entry = [Entry::default()];
            let mut reads = iter::repeat_with(|| self.queue.read(&mut entry)).take(polls);
            reads.any(|read| read != Err(ReadError::Empty)).then(|| entry[0].source)
        }
    }

    /// The event that ends a lane waits until it can be told who sent what is there: nothing rings then.
    #[test]
    fn nobody_sleeps_soundly_over_an_event_that_is_put_off() {
        let provider = Arc::new(MockProvider::new(MockOptions::default()));
        let [to, from] = [(); 2].map(|()| Node::open(&provider));
        from.vector.insert_one(to.endpoint.address()).unwrap();
        to.endpoint.receive(vec![0; 8], u64::MAX, 1).unwrap();
        from.endpoint.inject(&[1; 8], 0).unwrap();
        assert_eq!(to.source(100), Some(FI_ADDR_NOTAVAIL));
        let sleeps = || {
            assert_eq!(to.source(100), None);
            to.queue.prepare_wait().is_some()
        };
        assert!(sleeps());
        thread::scope(|scope| {
            let mut answer = None;
            let addresses = (1..3).map(|nth| {
                // The first is in by now, and the mutex is held.
                if nth == 2 {
                    provider.kill(from.endpoint.address());
                    let (tell, told) = mpsc::channel();
                    scope.spawn(move || tell.send(sleeps()));
                    answer = told.recv_timeout(PATIENCE).ok();
                }
                other(nth)
            });
            assert_eq!(to.vector.insert_each(addresses, Marks::None, |_| ()), 2);
            assert_eq!(answer, Some(false), "looks again by itself");
        });
        assert!(sleeps(), "it was told");
    }

    fn other(nth: u32) -> Address {
        Address::new(Ipv4Addr::from_bits(0x7f00_0900 + nth).into(), 1)
    }

    /// Somebody inserts as long as it takes: polls go on beside, and tell nothing wrong.
    #[test]
    fn polls_do_not_wait_for_who_inserts() {
        let provider = Arc::new(MockProvider::new(MockOptions::default()));
        let nodes = [(); 3].map(|()| Node::open(&provider));
        let [to, known, stranger] = &nodes;
        for from in [known, stranger] {
            from.vector.insert_one(to.endpoint.address()).unwrap();
            to.endpoint.receive(vec![0; 8], u64::MAX, 1).unwrap();
        }
        known.endpoint.inject(&[1; 8], 0).unwrap();
        assert_eq!(to.source(100), Some(FI_ADDR_NOTAVAIL));
        let fi_addr = to.vector.insert_one(known.endpoint.address()).unwrap();
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let mut answer = None;
            let addresses = (1..3).map(|nth| {
                // The first is in by now, and the mutex is held.
                if nth == 2 {
                    known.endpoint.inject(&[1; 8], 0).unwrap();
                    let tell = tell.clone();
                    scope.spawn(move || tell.send(to.source(100)));
                    answer = told.recv_timeout(PATIENCE).ok();
                }
                other(nth)
            });
            assert_eq!(to.vector.insert_each(addresses, Marks::None, |_| ()), 2);
            assert_eq!(answer, Some(None), "polled, and nothing without its name");
        });
        assert_eq!(to.source(100), Some(fi_addr));
    }
}

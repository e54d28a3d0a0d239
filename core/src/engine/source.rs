//! What came from somebody who is not in the address vector. Reference: fi_cq(3), FI_SOURCE_ERR.

use super::Engine;
use crate::{
    address_vector::{FI_ADDR_NOTAVAIL, FiAddr},
    completion_queue::{Entry, ErrorEntry, store::CompletionStore},
    error::Errno,
    flags::Flags,
    transport::{PeerIndex, Transport},
};

impl<T: Transport> Engine<T> {
    /// Writes the entry of what came from `peer`: "if the source address cannot be converted into a
    /// valid fi_addr_t value, fi_cq_readfrom and fi_cq_sreadfrom will return -FI_EAVAIL, even if
    /// the data were received successfully".
    #[inline(always)]
    pub(crate) fn push_received(&self, peer: PeerIndex, entry: Entry) {
        match &self.setup.receive.queue {
            Some(queue) if self.is_unknown(entry.source) => self.push_unknown(queue, peer, entry),
            Some(queue) => queue.push(entry),
            None => {}
        }
    }

    /// Whether what comes from there may have to be told as an error.
    #[inline(always)]
    pub(crate) fn is_unknown(&self, source: FiAddr) -> bool {
        source == FI_ADDR_NOTAVAIL && self.setup.source_errors
    }

    #[cold]
    #[inline(never)]
    fn push_unknown(&self, queue: &CompletionStore, peer: PeerIndex, mut entry: Entry) {
        let key = self.peers[peer as usize].key;
        let address = self.peers[self.peers[peer as usize].source as usize].address;
        let vector = &self.setup.address_vector;
        // One that is there may have no name, where names are the user's.
        let known = vector.names().known_by(&address, key);
        if let Some(source) = known {
            entry.source = source;
            return queue.push(entry);
        }
        queue.push_error(ErrorEntry {
            context: self.setup.receive.blame(entry.context),
            flags: Flags::from_bits_retain(entry.flags),
            length: entry.length,
            buffer: entry.buffer,
            data: entry.data,
            tag: entry.tag,
            overflow: 0,
            errno: Errno::ADDRNOTAVAIL,
            reason: format!("it came from {address}, which is not in the address vector"),
            source: vector.reported_key(key),
            source_address: Some(address),
            attachment: entry.attachment,
        });
    }
}

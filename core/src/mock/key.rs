//! Which key a connection is made by.

use super::{MockTransport, Station, lock};
use crate::{
    auth_key::{KeyNumber, ONLY_KEY},
    error::{Cause, Errno},
    transport::PeerIndex,
};

impl MockTransport {
    /// Which of the keys of `to` ours for `peer` is.
    pub(super) fn prove(&self, peer: PeerIndex, to: &Station) -> Result<KeyNumber, Cause> {
        let refused = |why| Cause {
            errno: Errno::CONNREFUSED,
            reason: format!("{} refused: {why}", to.address),
        };
        let number = self.peers.get(peer as usize).map_or(ONLY_KEY, |peer| peer.key);
        let ours = lock(&self.station.keys).told().cloned();
        let ours = ours.as_ref().and_then(|keys| keys.get(number));
        let ours = ours.ok_or_else(|| refused("we have no such key"))?;
        let theirs = lock(&to.keys).told().cloned().ok_or_else(|| refused("it has no key yet"))?;
        theirs.proved(|key| key == ours.bytes()).ok_or_else(|| refused("the keys differ"))
    }
}

//! GIDs at which nobody is.
//!
//! Where a path goes over Ethernet, the call that makes it has the kernel look for the hardware address of
//! the peer's GID, and for one that nobody has it looks a second. No other handshake goes on meanwhile.
//! A peer says by itself what its GID is, which need not be the address that it comes from: it may be
//! of a network that does not lead here, or be none at all. So a GID that was looked for in vain is not
//! looked for again at once, and hosts with several such GIDs not for another.

use std::{
    io,
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use crate::{
    path,
    verbs::{LocalPort, PathEnd, VerbsError},
};

/// A look that fails after so long was in vain; before, the kernel knew at once.
const IN_VAIN: Duration = Duration::from_millis(50);
/// How long nobody is looked for again: an application that tries again is told at once, and a host
/// that was just starting is found when it tries a little later.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
/// GIDs of a host that may be looked for in vain, unless it is its own address, until none is.
const OF_HOST_MAX: usize = 4;

/// By which port, and by which of its own GIDs, one is looked for: another may lead there.
type Way = (u8, u8);

/// What was looked for in vain, not long ago.
#[derive(Default)]
pub(super) struct Nowhere(Vec<Missed>);

struct Missed {
    gid: [u8; 16],
    way: Way,
    /// Who has said that it is there.
    host: IpAddr,
    until: Instant,
}

impl Nowhere {
    /// Makes a path to where `host` says that it is, by `join`, unless that was in vain just now.
    pub fn look<T>(
        &mut self,
        device: &str,
        port: &LocalPort,
        host: IpAddr,
        end: &PathEnd,
        join: impl FnOnce() -> Result<T, VerbsError>,
    ) -> Result<T, VerbsError> {
        let since = Instant::now();
        self.0.retain(|missed| missed.until > since);
        let way = (port.number, port.gid_index);
        if self.is_in_vain(host, way, end.gid) {
            let source = io::Error::other("nobody was found there a moment ago");
            return Err(path::none(device, port, end, source));
        }
        let joined = join();
        if matches!(joined, Err(VerbsError::Path { .. })) && since.elapsed() >= IN_VAIN {
            let until = Instant::now() + BELIEVED_FOR;
            self.0.push(Missed { gid: end.gid, way, host, until });
        }
        joined
    }

    fn is_in_vain(&self, host: IpAddr, way: Way, gid: [u8; 16]) -> bool {
        let is_its_address = Ipv6Addr::from(gid).to_canonical() == host.to_canonical();
        let on_the_way = || self.0.iter().filter(|missed| missed.way == way);
        let of_host = on_the_way().filter(|missed| missed.host == host).count();
        on_the_way().any(|missed| missed.gid == gid) || (!is_its_address && of_host >= OF_HOST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_few_places_where_nobody_is() {
        let host = IpAddr::from([10, 0, 0, 1]);
        let own = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
        let (way, other) = ((1, 0), (1, 1));
        let until = Instant::now() + BELIEVED_FOR;
        let missed = |nth| Missed { gid: [nth; 16], way, host, until };
        let mut nowhere = Nowhere::default();
        for nth in 1..=OF_HOST_MAX as u8 {
            assert!(!nowhere.is_in_vain(host, way, [nth; 16]));
            nowhere.0.push(missed(nth));
            assert!(nowhere.is_in_vain(host, way, [nth; 16]));
        }
        assert!(nowhere.is_in_vain(host, way, [99; 16]));
        assert!(!nowhere.is_in_vain(host, way, own), "its own address is looked for once");
        assert!(!nowhere.is_in_vain([10, 0, 0, 2].into(), way, [99; 16]), "another host");
        assert!(!nowhere.is_in_vain(host, other, [1; 16]), "another way");
    }
}

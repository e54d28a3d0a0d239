//! The fake's connection manager: what the ids of one fabric say to each other, in memory.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fd::OwnedFd,
};

use super::{FakeDevice, FakeQueuePair, ManagedPath, joined::Joined, objects::refusal};
use crate::{
    device::LinkLayer,
    manager::{
        ANSWER_BYTES_MAX, Happening, ManagedId, Manager, ManagerEvent, REFUSAL_BYTES_MAX,
        REQUEST_BYTES_MAX,
    },
    path::{self, Marks, Route},
    verbs::{Agreement, LocalPort, Verbs, VerbsError, group_gid},
};

/// What happens to managed connections on a fabric beyond what their ends do.
#[derive(Clone, Copy, Debug, Default)]
pub struct ManagerFaults {
    /// No device has a connection manager.
    pub absent: bool,
    /// No path is found.
    pub no_route: bool,
    /// Requests get lost.
    pub loses_requests: bool,
    /// So does the last word of a handshake.
    pub loses_last_words: bool,
    /// So does what tells of an end.
    pub loses_ends: bool,
}

/// Everything that managers of a fabric share.
#[derive(Default)]
pub(super) struct Exchange {
    pub faults: ManagerFaults,
    last: u64,
    /// Handshakes that were finished.
    made: u64,
    channels: HashMap<u64, Channel>,
    ends: HashMap<u64, End>,
}

struct Channel {
    device: usize,
    /// To which end, and what.
    events: VecDeque<(u64, Said)>,
    readable: Arc<OwnedFd>,
}

/// An id.
struct End {
    channel: u64,
    name: u64,
    at: SocketAddr,
    to: Option<SocketAddr>,
    listens: bool,
    /// The other end, once it was asked for, and as long as it is there.
    peer: Option<u64>,
    /// What it uses here, and there.
    queue_pair: u32,
    peers_queue_pair: u32,
    /// The MTU of the path, as who asks names it: that of its own port.
    path_mtu: u32,
    dscp: u8,
    stands: bool,
}

/// What an end is told, of which others are known by their numbers.
type Said = Happening<u64>;

impl Exchange {
    /// Connections that were made, and ids that exist.
    pub fn count(&self) -> (u64, usize) {
        (self.made, self.ends.len())
    }

    /// A device is gone: ids of connections on it hear of that.
    pub fn remove_device(&mut self, device: usize) {
        let is_on =
            |end: &End| self.channels.get(&end.channel).is_some_and(|it| it.device == device);
        let hit = self.ends.iter().filter(|(_, end)| !end.listens && is_on(end));
        let hit: Vec<u64> = hit.map(|(id, _)| *id).collect();
        for id in hit {
            self.say(id, Said::Failed("its device is gone".into()));
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn end(&mut self, id: u64) -> &mut End {
        self.ends.get_mut(&id).expect("an end exists as long as its handle")
    }

    fn say(&mut self, to: u64, said: Said) {
        let Some(channel) = self.ends.get(&to).map(|end| end.channel) else {
            return;
        };
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.events.push_back((to, said));
            // The counter cannot fill up.
            let _ = rustix::io::write(&channel.readable, &1u64.to_ne_bytes());
        }
    }

    fn add(&mut self, channel: u64, name: u64, at: SocketAddr, to: Option<SocketAddr>) -> u64 {
        let id = self.number();
        let (peer, queue_pair, peers_queue_pair, dscp) = (None, 0, 0, 0);
        let (listens, stands) = (false, false);
        let end = End {
            channel,
            name,
            at,
            to,
            listens,
            peer,
            queue_pair,
            peers_queue_pair,
            path_mtu: 0,
            dscp,
            stands,
        };
        self.ends.insert(id, end);
        id
    }

    fn ask(&mut self, caller: u64, queue_pair: u32, path_mtu: u32, data: &[u8]) {
        let end = self.end(caller);
        (end.queue_pair, end.path_mtu) = (queue_pair, path_mtu);
        let (from, to, dscp) = (end.at, end.to, end.dscp);
        if self.faults.loses_requests {
            return;
        }
        let listens = |(_, end): &(&u64, &End)| end.listens && Some(end.at) == to;
        let Some((&listener, end)) = self.ends.iter().find(listens) else {
            return self.say(caller, Said::Nobody);
        };
        let (channel, name, at) = (end.channel, end.name, end.at);
        let passive = self.add(channel, name, at, Some(from));
        let end = self.end(passive);
        (end.peer, end.peers_queue_pair, end.dscp) = (Some(caller), queue_pair, dscp);
        end.path_mtu = path_mtu;
        self.end(caller).peer = Some(passive);
        let mut data = data.to_vec();
        data.resize(REQUEST_BYTES_MAX, 0);
        self.say(listener, Said::Asked { id: passive, from, queue_pair, data });
    }

    /// An end goes: the other one hears of it, and so do those who had asked it.
    fn remove(&mut self, id: u64) {
        self.disconnect(id);
        let Some(end) = self.ends.remove(&id) else {
            return;
        };
        let mut turned_away = Vec::new();
        if let Some(channel) = self.channels.get_mut(&end.channel) {
            channel.events.retain(|(to, said)| {
                if let (true, Said::Asked { id: passive, .. }) = (*to == id, said) {
                    turned_away.push(*passive);
                }
                *to != id
            });
        }
        for passive in turned_away {
            self.remove(passive);
        }
    }

    fn disconnect(&mut self, id: u64) {
        let end = self.end(id);
        let (stands, peer) = (end.stands, end.peer.take());
        let Some(peer) = peer.filter(|peer| self.ends.contains_key(peer)) else {
            return;
        };
        self.end(peer).peer = None;
        if self.faults.loses_ends {
            return;
        }
        let asks = !stands && !self.end(peer).stands;
        let gone = Said::Refused { data: vec![0; REFUSAL_BYTES_MAX] };
        self.say(peer, if asks { gone } else { Said::Disconnected });
    }
}

/// The way to the fake's connection manager.
pub struct FakeManager {
    device: Arc<FakeDevice>,
    number: u64,
    readable: Arc<OwnedFd>,
}

impl FakeManager {
    pub(super) fn new(device: &Arc<FakeDevice>) -> Result<FakeManager, VerbsError> {
        let mut state = device.fabric.lock();
        if state.exchange.faults.absent {
            let (device, reason) = (device.name.clone(), "the test says so".into());
            return Err(VerbsError::NoManager { device, reason });
        }
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| refusal(device, "eventfd", errno.raw_os_error()))?;
        let readable = Arc::new(readable);
        let number = state.exchange.number();
        let channel =
            Channel { device: device.ordinal, events: VecDeque::new(), readable: readable.clone() };
        state.exchange.channels.insert(number, channel);
        drop(state);
        Ok(FakeManager { device: device.clone(), number, readable })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Exchange) -> R) -> R {
        work(&mut self.device.fabric.lock().exchange)
    }
}

impl Manager<FakeDevice> for FakeManager {
    type Id = FakeId;

    fn channel(&self) -> RawFd {
        self.readable.as_raw_fd()
    }

    fn bind(self: &Arc<Self>, name: u64, at: SocketAddr) -> Result<FakeId, VerbsError> {
        self.with(|exchange| {
            if exchange.ends.values().any(|end| end.at == at) {
                return Err(refusal(&self.device, "rdma_bind_addr", libc::EADDRINUSE));
            }
            let id = exchange.add(self.number, name, at, None);
            Ok(FakeId { manager: self.clone(), id })
        })
    }

    fn resolve(
        self: &Arc<Self>,
        name: u64,
        own: SocketAddr,
        to: SocketAddr,
        marks: Marks,
        _within: Duration,
    ) -> Result<FakeId, VerbsError> {
        self.with(|exchange| {
            let from = SocketAddr::new(own.ip(), 0);
            let id = exchange.add(self.number, name, from, Some(to));
            exchange.end(id).dscp = marks.code_point().unwrap_or(self.device.options.default_dscp);
            exchange.say(id, Said::AddressResolved);
            Ok(FakeId { manager: self.clone(), id })
        })
    }

    fn next_event(self: &Arc<Self>) -> Option<ManagerEvent<FakeId>> {
        let (name, said) = self.with(|exchange| {
            let next = exchange.channels.get_mut(&self.number)?.events.pop_front();
            if next.is_none() {
                // EAGAIN: it was not readable.
                let _ = rustix::io::read(&self.readable, &mut [0; 8]);
            }
            let (to, said) = next?;
            Some((exchange.end(to).name, said))
        })?;
        let happening = match said {
            Said::AddressResolved => Happening::AddressResolved,
            Said::RouteResolved => Happening::RouteResolved,
            Said::Asked { id, from, queue_pair, data } => Happening::Asked {
                id: FakeId { manager: self.clone(), id },
                from,
                queue_pair,
                data,
            },
            Said::Answered { queue_pair, data } => Happening::Answered { queue_pair, data },
            Said::Nobody => Happening::Nobody,
            Said::Refused { data } => Happening::Refused { data },
            Said::Failed(why) => Happening::Failed(why),
            Said::Established => Happening::Established,
            Said::Disconnected => Happening::Disconnected,
        };
        Some(ManagerEvent { name, happening })
    }
}

impl Drop for FakeManager {
    fn drop(&mut self) {
        self.with(|exchange| exchange.channels.remove(&self.number));
    }
}

/// An id of the fake's connection manager.
pub struct FakeId {
    manager: Arc<FakeManager>,
    id: u64,
}

impl FakeId {
    fn with<R>(&self, work: impl FnOnce(&mut Exchange) -> R) -> R {
        self.manager.with(work)
    }

    /// Says something to the other end; without one it is refused.
    fn tell_peer(&self, call: &'static str, said: Said) -> Result<(), VerbsError> {
        self.with(|exchange| match exchange.end(self.id).peer {
            Some(peer) => {
                exchange.say(peer, said);
                Ok(())
            }
            None => Err(refusal(&self.manager.device, call, libc::EINVAL)),
        })
    }
}

impl ManagedId<FakeDevice> for FakeId {
    fn rename(&mut self, name: u64) {
        self.with(|exchange| exchange.end(self.id).name = name);
    }

    fn listen(&self) -> Result<(), VerbsError> {
        self.with(|exchange| exchange.end(self.id).listens = true);
        Ok(())
    }

    fn resolve_route(&self, _within: Duration) -> Result<(), VerbsError> {
        self.with(|exchange| {
            let failed = exchange.faults.no_route;
            let no_route = Said::Failed("the test says so".into());
            exchange.say(self.id, if failed { no_route } else { Said::RouteResolved });
        });
        Ok(())
    }

    fn ask(&self, queue_pair: u32, data: &[u8]) -> Result<(), VerbsError> {
        assert!(data.len() <= REQUEST_BYTES_MAX);
        let path_mtu = self.manager.device.port.mtu_bytes;
        self.with(|exchange| exchange.ask(self.id, queue_pair, path_mtu, data));
        Ok(())
    }

    fn join(
        &self,
        pair: &FakeQueuePair,
        marks: Marks,
        mtu_bytes_max: u32,
    ) -> Result<Agreement, VerbsError> {
        let (own, to, peer, path_mtu, agreed) = self.with(|exchange| {
            let end = exchange.end(self.id);
            (end.at.ip(), end.to, end.peers_queue_pair, end.path_mtu, end.dscp)
        });
        let dscp = marks.code_point().unwrap_or(agreed);
        let device = &self.manager.device;
        let own_path =
            ManagedPath { partition_key: device.port.partition_key, service_level: dscp >> 3 };
        let ManagedPath { partition_key, service_level } =
            device.options.managed_path.unwrap_or(own_path);
        let partition_key_index = 1;
        let port = LocalPort { partition_key, partition_key_index, ..device.port_at(own) };
        let (lid, mut gid) = device.fabric.lock().place_of(peer).unwrap_or_default();
        if let (LinkLayer::Ethernet, Some(to)) = (port.link_layer, to) {
            gid = group_gid(to.ip());
        }
        let route =
            Route { lid, service_level, ..path::by_gid(&port, gid, Marks::of_code_point(dscp)) };
        device.fabric.lock().note_path(port, route);
        let mtu_bytes = mtu_bytes_max.min(path_mtu);
        pair.join(Joined { peer, port, route, mtu_bytes }, dscp);
        let is_narrowed = mtu_bytes < path_mtu;
        Ok(Agreement { route, partition_key, partition_key_index, mtu_bytes, is_narrowed })
    }

    fn establish(&self) -> Result<(), VerbsError> {
        let lost = self.with(|exchange| {
            exchange.made += 1;
            exchange.end(self.id).stands = true;
            exchange.faults.loses_last_words
        });
        if lost { Ok(()) } else { self.tell_peer("rdma_establish", Said::Established) }
    }

    fn answer(&self, queue_pair: u32, data: &[u8]) -> Result<(), VerbsError> {
        assert!(data.len() <= ANSWER_BYTES_MAX);
        let mut data = data.to_vec();
        data.resize(ANSWER_BYTES_MAX, 0);
        self.with(|exchange| {
            exchange.end(self.id).queue_pair = queue_pair;
            if let Some(peer) = exchange.end(self.id).peer {
                exchange.end(peer).peers_queue_pair = queue_pair;
            }
        });
        self.tell_peer("rdma_accept", Said::Answered { queue_pair, data })
    }

    fn refuse(&self, data: &[u8]) -> Result<(), VerbsError> {
        assert!(data.len() <= REFUSAL_BYTES_MAX);
        let mut data = data.to_vec();
        data.resize(REFUSAL_BYTES_MAX, 0);
        self.tell_peer("rdma_reject", Said::Refused { data })?;
        self.with(|exchange| exchange.end(self.id).peer = None);
        Ok(())
    }

    fn note_use(&self) {
        self.with(|exchange| exchange.say(self.id, Said::Established));
    }

    fn disconnect(&self) {
        self.with(|exchange| exchange.disconnect(self.id));
    }
}

impl Drop for FakeId {
    fn drop(&mut self) {
        self.with(|exchange| exchange.remove(self.id));
    }
}

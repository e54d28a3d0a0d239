//! A peer that has the key, and a queue pair of its own by which it does what no kestrel does.

use std::{net::IpAddr, sync::Arc};

use kestrel_core::transport::Transport as _;
use kestrel_verbs::{
    fake::{FakeDevice, FakeFabric, FakeOptions},
    memory::Memory,
    testing::wire,
    verbs::{
        Depths, Destination, Marks, Origin, PathEnd, QueuePair, Region, Role, Segment, SendRequest,
        Verb, Verbs,
    },
};

use super::{
    Scene,
    raw::{Raw, path_end},
};

const DEPTHS: Depths = Depths { receives: 16, immediates: 0, sends: 256 };
pub const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A queue pair of a peer's, by which it sends what it likes.
pub struct Intruder {
    pub device: Arc<FakeDevice>,
    pub pair: <FakeDevice as Verbs>::QueuePair,
}

impl Intruder {
    pub fn on(fabric: &FakeFabric, options: FakeOptions, role: Role) -> Intruder {
        let device = Arc::new(fabric.device(options));
        let queues = Arc::new(device.open_queues(DEPTHS).unwrap());
        let pair = device.create_queue_pair(&queues, DEPTHS.sends, role).unwrap();
        Intruder { device, pair }
    }

    /// One that sends to the victim, which it has not told yet that it has its answer.
    pub fn unconfirmed(scene: &Scene) -> (Intruder, Raw) {
        let intruder = Intruder::on(&scene.fabric, FakeOptions::default(), Role::Sends);
        let mut raw = Raw::connect(scene.victim.address());
        let hello = raw.hello(scene.victim.address());
        let accept = raw.introduce(wire::Hello { end: intruder.end(), ..hello });
        intruder.pair.connect(path_end().first_packet, &intruder.origin(), &accept.end).unwrap();
        (intruder, raw)
    }

    pub fn origin(&self) -> Origin {
        Origin { port: self.device.port_at(HOME), marks: Marks::default(), agreed: None }
    }

    pub fn end(&self) -> PathEnd {
        let port = self.origin().port;
        PathEnd {
            queue_pair: self.pair.number(),
            lid: port.lid,
            partition_key: port.partition_key,
            link_layer: port.link_layer,
            gid: port.gid,
            mtu_bytes: port.mtu_bytes,
            ..path_end()
        }
    }

    /// Posts what is in a region of its own, and waits until the fake has carried it.
    pub fn post(&self, bytes: usize, fill: impl FnOnce(&Memory), verb: Verb) {
        let region = self.device.allocate(bytes, false).unwrap();
        fill(region.memory());
        let (address, local_key) = (region.memory().address(0), region.local_key());
        let segment = Segment { address, length: bytes as u32, local_key };
        let (inline, signalled, fenced) = (false, true, false);
        let request = SendRequest { request: 1, segment, inline, signalled, fenced, verb };
        // SAFETY: the fake has carried it when the call returns, and the region lives until then.
        unsafe { self.pair.post_sends(&[request]) }.unwrap();
    }

    /// Sends words as a datagram.
    pub fn send_words(&self, words: &[u64], to: Destination) {
        let fill = |memory: &Memory| {
            (0..words.len()).for_each(|nth| memory.set_word(nth * 8, words[nth]));
        };
        self.post(words.len() * 8, fill, Verb::Datagram(to));
    }
}

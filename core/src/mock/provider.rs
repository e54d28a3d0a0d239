//! The mock's provider: who is where, and what goes wrong.

use super::*;

impl MockProvider {
    /// A network of its own.
    pub fn new(options: MockOptions) -> MockProvider {
        MockProvider { options, network: Arc::default() }
    }

    /// The next `count` connections to `address` fail.
    pub fn refuse(&self, address: Address, count: usize, errno: Errno) {
        lock(&self.network).refused.insert(address, (count, errno));
    }

    /// From now on connecting takes this many looks of the one who connects.
    pub fn delay_connections(&self, looks: usize) {
        lock(&self.network).connect_looks = looks;
    }

    /// The next `count` pushes to `address` find no room.
    pub fn block(&self, address: Address, count: usize) {
        if let Some(station) = lock(&self.network).stations.get(&address) {
            station.pushes.block(count);
        }
    }

    /// Packets on their way to `address` whose receiver could see their payload come.
    pub fn shown(&self, address: Address) -> usize {
        let network = lock(&self.network);
        network.stations.get(&address).map_or(0, |station| station.pushes.shown())
    }

    /// Bytes that the endpoint at `address` has copied out of a packet at once, at most.
    pub fn largest_copy(&self, address: Address) -> usize {
        let network = lock(&self.network);
        network.stations.get(&address).map_or(0, |station| station.pushes.largest_copy())
    }

    /// After so many more reads of others' memory, and writes to it, the endpoint at `address` is
    /// permitted none.
    pub fn forbid_copying(&self, address: Address, reads: usize, writes: usize) {
        if let Some(station) = lock(&self.network).stations.get(&address) {
            station.reads.forbid_after(reads);
            station.writes.forbid_after(writes);
        }
    }

    /// Bytes that the endpoint at `address` has read of others' memory, and written to it.
    pub fn copied(&self, address: Address) -> (usize, usize) {
        let network = lock(&self.network);
        let station = network.stations.get(&address);
        station.map_or((0, 0), |station| (station.reads.bytes(), station.writes.bytes()))
    }

    /// How often the calling thread has slept on bells.
    pub fn sleeps() -> usize {
        bell::sleeps()
    }

    /// The process of the endpoint at `address` dies: it does nothing more, its
    /// peers hear of it, and another may open its address.
    pub fn kill(&self, address: Address) {
        let mut network = lock(&self.network);
        let Some(dead) = network.stations.remove(&address) else {
            return;
        };
        dead.dead.store(true, Ordering::SeqCst);
        for station in network.stations.values() {
            station.tell(0, What::Died { incarnation: dead.incarnation });
        }
    }
}

impl Provider for MockProvider {
    type Transport = MockTransport;

    fn open_as(&self, opening: Opening<'_>) -> Result<MockTransport, Cause> {
        let mut network = lock(&self.network);
        network.opened += 1;
        let opened = network.opened;
        let default = Address::new([127, 0, 0, 1].into(), 0);
        let mut address = opening.address.unwrap_or(default);
        if address.port() == 0 {
            address = address.with_port(1024 + opened as u16);
        }
        if network.stations.contains_key(&address) {
            let reason = format!("the address {address} is in use");
            return Err(Cause { errno: Errno::ADDRINUSE, reason });
        }
        let station = Arc::new(Station {
            address,
            incarnation: opening.incarnation.unwrap_or(opened),
            keys: Mutex::new(ProvedKeys::new(opening.auth_key, opening.keys_follow)),
            service: opening.service,
            bell: MockBell::new()?,
            armed: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            pushes: Pushes::default(),
            reads: Copies::default(),
            writes: Copies::default(),
            events: Mutex::default(),
        });
        network.stations.insert(address, station.clone());
        Ok(MockTransport {
            options: self.options.clone(),
            network: self.network.clone(),
            station,
            peers: Vec::new(),
            turn: 0,
            current: None,
            offers: HashMap::new(),
            next_ticket: 0,
            ready: VecDeque::new(),
            joined: Joined::new(opening.auth_key),
        })
    }

    fn new_bell(&self) -> Result<Box<dyn Bell>, Cause> {
        Ok(Box::new(MockBell::new()?))
    }

    fn claim_core(&self, core: usize) -> Result<Box<dyn CoreClaim>, Cause> {
        if lock(&self.network).cores.insert(core) {
            return Ok(Box::new(MockCore { core, network: self.network.clone() }));
        }
        Err(Cause { errno: Errno::BUSY, reason: format!("core {core} is taken") })
    }

    fn forked(&self) -> bool {
        false
    }
}

/// A core that is taken in the mock's network.
struct MockCore {
    core: usize,
    network: Arc<Mutex<Network>>,
}

impl CoreClaim for MockCore {}

impl Drop for MockCore {
    fn drop(&mut self) {
        lock(&self.network).cores.remove(&self.core);
    }
}

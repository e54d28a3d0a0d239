//! A rank of a job: `rank OWN ADDRESS…` opens an endpoint at address number OWN, sends every other
//! rank messages, checks what comes, and prints how much went through which transport.

use std::{
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel::{Address, CompletionQueue, Endpoint, Entry, FI_ADDR_UNSPEC, Hints, ReadError};
use kestrel_tests::{
    bed::pattern,
    hints::with_class,
    opened::{Opened, run_on_words},
};

/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(100);
/// Messages to each other rank.
const MESSAGES: u64 = 40;
const LENGTHS: [usize; 5] = [0, 8, 700, 9_000, 100_000];
const ANSWER: u64 = 1 << 32;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    run_on_words("rank", run)
}

fn run(words: &[&str]) -> Result<(), Failure> {
    let (own, addresses) = words.split_first().ok_or("rank OWN ADDRESS…")?;
    let own: usize = own.parse()?;
    let addresses: Vec<SocketAddr> =
        addresses.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let rank = Rank::open(own, &addresses)?;
    wait_for_all(&addresses)?;
    rank.talk()?;
    let traffic = kestrel::traffic(&rank.endpoint)?;
    println!("rank {own}: {traffic}");
    Ok(())
}

/// Endpoints on a device listen on TCP: ranks that start late are waited for.
fn wait_for_all(addresses: &[SocketAddr]) -> Result<(), Failure> {
    let start = Instant::now();
    for address in addresses {
        while TcpStream::connect_timeout(address, Duration::from_secs(1)).is_err() {
            if start.elapsed() > PATIENCE {
                return Err(format!("{address} does not come").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

struct Rank {
    own: u64,
    count: u64,
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
}

impl Rank {
    fn open(own: usize, addresses: &[SocketAddr]) -> Result<Rank, Failure> {
        let hints = with_class(Hints::new())?;
        let opened = Opened::at(&addresses[own].to_string(), &hints)?;
        let Opened { info, endpoint, queue, peers } = opened;
        println!("rank {own}: domain {}", info.domain.name);
        let addresses: Vec<Address> = addresses.iter().copied().map(Address::from).collect();
        if peers.insert(&addresses).count() != addresses.len() {
            return Err("not all addresses are good".into());
        }
        endpoint.enable()?;
        Ok(Rank { own: own as u64, count: addresses.len() as u64, endpoint, queue })
    }

    /// Everybody sends everybody, and receives from anybody; then each tells each that it has
    /// all, so that nobody leaves before.
    fn talk(&self) -> Result<(), Failure> {
        let others: Vec<u64> = (0..self.count).filter(|&rank| rank != self.own).collect();
        let receives = others.len() as u64 * MESSAGES;
        for context in 0..receives {
            let buffer = vec![0; LENGTHS[4]];
            self.endpoint.receive_tagged(buffer, FI_ADDR_UNSPEC, 1, 0, context)?;
        }
        for nth in 0..MESSAGES {
            for &to in &others {
                let bytes = pattern(self.seed(self.own, to, nth), LENGTHS[nth as usize % 5]);
                self.endpoint.send_tagged(bytes, to, 1, ANSWER)?;
            }
        }
        let mut received = self.complete(receives, receives)?;
        received.sort_by_key(|entry| entry.context);
        let mut next = vec![0; self.count as usize];
        for mut entry in received {
            let nth = next[entry.source as usize];
            next[entry.source as usize] += 1;
            let expected =
                pattern(self.seed(entry.source, self.own, nth), LENGTHS[nth as usize % 5]);
            let found = entry.take_buffer().ok_or("a receive without its buffer")?;
            if found[..entry.length as usize] != expected {
                return Err(format!("message {nth} of rank {} is another", entry.source).into());
            }
        }
        for &from in &others {
            self.endpoint.receive_tagged(vec![0; 1], from, 2, 0, from)?;
            self.endpoint.send_tagged(vec![1], from, 2, ANSWER)?;
        }
        let last = others.len() as u64;
        self.complete(last, last).map(drop)
    }

    fn seed(&self, from: u64, to: u64, nth: u64) -> u64 {
        (from * self.count + to) * MESSAGES + nth
    }

    /// Waits for so many sends and receives; the receives.
    fn complete(&self, mut sends: u64, mut receives: u64) -> Result<Vec<Entry>, Failure> {
        let (start, mut received) = (Instant::now(), Vec::new());
        while sends > 0 || receives > 0 {
            let mut entry = [Entry::default()];
            match self.queue.read_blocking(&mut entry, Some(PATIENCE)) {
                Ok(_) => {}
                Err(ReadError::ErrorAvailable) => {
                    let error = self.queue.read_error().map(|error| error.reason);
                    return Err(format!("an operation failed: {error:?}").into());
                }
                Err(error) => return Err(error.into()),
            }
            let [entry] = entry;
            if entry.context == ANSWER {
                sends -= 1;
            } else {
                receives -= 1;
                received.push(entry);
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{sends} sends and {receives} receives are missing").into());
            }
        }
        Ok(received)
    }
}

//! Tagged messages to and fro between two processes, on one host or on two.
//!
//!   ping_pong serve                 prints its address, and answers who asks there
//!   ping_pong ask ADDRESS [COUNT]   asks there so often, and prints how long one answer takes
//!
//! An address is text wherever two processes swap it: here once on a command line, and once in the
//! first message, which says whom to answer. FI_KESTREL_TRANSPORT=verbs goes through a device.

use std::{env, error::Error, sync::Arc, time::Instant};

use kestrel::{
    Address, AddressVector, AddressVectorAttributes, CompletionQueue, Endpoint, Entry,
    FI_ADDR_UNSPEC, Flags, Hints, ReadError,
};

type Failure = Box<dyn Error>;

/// Tags: of the message that says who asks and how often, and of those that go to and fro.
const HELLO: u64 = 1;
const PING: u64 = 2;
const PONG: u64 = 3;

/// Contexts: what a completion is of.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

/// Room for a message. Units: bytes.
const ROOM: usize = 256;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let node = Node::open()?;
    match words[..] {
        ["serve"] => {
            println!("{}", node.endpoint.address());
            node.serve()
        }
        ["ask", peer] => node.ask(peer.parse()?, 10_000),
        ["ask", peer, count] => node.ask(peer.parse()?, count.parse()?),
        _ => Err("ping_pong serve | ping_pong ask ADDRESS [COUNT]".into()),
    }
}

/// An endpoint with what belongs to it.
struct Node {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    peers: Arc<AddressVector>,
}

impl Node {
    fn open() -> Result<Node, Failure> {
        let hints = Hints::new().caps(Flags::TAGGED);
        let info = kestrel::discover(Some(&hints))?.into_iter().next().ok_or("nothing is there")?;
        let domain = kestrel::open_domain(&info)?;
        let endpoint = kestrel::open_endpoint(&domain, &info)?;
        let queue = CompletionQueue::open(&domain, 0)?;
        let peers = Arc::new(AddressVector::open(AddressVectorAttributes::default())?);
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV)?;
        endpoint.bind_address_vector(&peers)?;
        endpoint.enable()?;
        Ok(Node { endpoint, queue, peers })
    }

    /// Answers one who asks, as often as it says.
    fn serve(&self) -> Result<(), Failure> {
        self.expect(HELLO, vec![0; ROOM])?;
        let hello = self.received()?;
        let text = std::str::from_utf8(&hello)?;
        let (peer, count) = text.split_once(' ').ok_or("a greeting of one word")?;
        let peer = self.peers.insert_one(peer.parse()?)?;
        let count: u64 = count.parse()?;
        let mut buffer = vec![0; ROOM];
        for _ in 0..count {
            self.expect(PING, buffer)?;
            buffer = self.received()?;
            self.send(buffer, peer, PONG)?;
            buffer = self.completed(SENT)?;
        }
        Ok(())
    }

    /// Asks `count` times, one after the other.
    fn ask(&self, peer: Address, count: u64) -> Result<(), Failure> {
        let peer = self.peers.insert_one(peer)?;
        let hello = format!("{} {count}", self.endpoint.address());
        self.send(hello.into_bytes(), peer, HELLO)?;
        self.completed(SENT)?;
        let start = Instant::now();
        for number in 0..count {
            // Posted first, so that the answer finds it.
            self.expect(PONG, vec![0; ROOM])?;
            self.send(number.to_le_bytes().to_vec(), peer, PING)?;
            if self.received()? != number.to_le_bytes() {
                return Err(format!("answer {number} is another").into());
            }
        }
        println!("{:?} to and fro", start.elapsed().checked_div(count as u32).unwrap_or_default());
        Ok(())
    }

    /// Sends `bytes`, which come back with the completion.
    fn send(&self, bytes: Vec<u8>, peer: u64, tag: u64) -> Result<(), Failure> {
        Ok(self.endpoint.send_tagged(bytes, peer, tag, SENT)?)
    }

    /// Posts a receive from anybody.
    fn expect(&self, tag: u64, buffer: Vec<u8>) -> Result<(), Failure> {
        Ok(self.endpoint.receive_tagged(buffer, FI_ADDR_UNSPEC, tag, 0, RECEIVED)?)
    }

    /// The next message.
    fn received(&self) -> Result<Vec<u8>, Failure> {
        self.completed(RECEIVED)
    }

    /// Waits for the next completion of that context, which drives the endpoint; the bytes of its
    /// message.
    fn completed(&self, context: u64) -> Result<Vec<u8>, Failure> {
        let mut entries = [Entry::default()];
        loop {
            match self.queue.read_blocking(&mut entries, None) {
                Ok(_) if entries[0].context == context => break,
                // A send that is over while an answer is waited for.
                Ok(_) => {}
                Err(ReadError::ErrorAvailable) => {
                    return Err(self.queue.read_error().ok_or("an error that is none")?.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut buffer = entries[0].take_buffer().ok_or("a message without its buffer")?;
        if context == RECEIVED {
            buffer.truncate(entries[0].length as usize);
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_is_answered() {
        let server = Node::open().unwrap();
        let address = server.endpoint.address().to_string();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server.serve().unwrap());
            Node::open().unwrap().ask(address.parse().unwrap(), 100).unwrap();
            serving.join().unwrap();
        });
    }
}

//! A peer that makes its handshakes by hand.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use kestrel_core::{address::Address, transport::Service};
use kestrel_verbs::{
    device::LinkLayer,
    testing::{
        BUFFER_BYTES,
        proof::{self, Speaker},
        wire::{Accept, Hello, Message, Nonce},
    },
    verbs::{PathEnd, RemoteMemory},
};

use super::{KEY, PATIENCE};

/// A raw connection to an endpoint.
pub struct Raw {
    pub socket: TcpStream,
    input: Vec<u8>,
    pub own: SocketAddr,
}

impl Raw {
    pub fn connect(to: Address) -> Raw {
        let socket = TcpStream::connect(to.socket_addr()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let own = SocketAddr::new(socket.local_addr().unwrap().ip(), 7);
        Raw { socket, input: Vec::new(), own }
    }

    /// Waits for one that is asked for.
    pub fn accept(listener: &TcpListener) -> Raw {
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let own = listener.local_addr().unwrap();
        Raw { socket, input: Vec::new(), own }
    }

    /// Lets the other side in, whose packets come to that end: its HELLO.
    pub fn welcome(&mut self, end: PathEnd) -> Hello {
        let nonce = [3; 32];
        self.say(&Message::Greeting(nonce).encode());
        let hello = match self.read() {
            Some((Message::Hello(hello), _)) => *hello,
            other => panic!("{other:?}"),
        };
        let buffer_bytes = BUFFER_BYTES as u32;
        let accept = Accept { incarnation: 6, from: self.own, end, buffer_bytes };
        let mut bytes = Message::Accept(Box::new(accept)).encode();
        proof::sign(KEY, Speaker::Accepts, [&nonce, &hello.nonce], &mut bytes);
        self.say(&bytes);
        hello
    }

    /// The next message, with its bytes; none if the other side hung up.
    pub fn read(&mut self) -> Option<(Message, Vec<u8>)> {
        loop {
            if let Some((message, length)) = Message::decode(&self.input).unwrap() {
                return Some((message, self.input.drain(..length).collect()));
            }
            let mut buffer = [0; 256];
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn greeting(&mut self) -> Nonce {
        match self.read() {
            Some((Message::Greeting(nonce), _)) => nonce,
            other => panic!("{other:?}"),
        }
    }

    pub fn hello(&self, wanted: Address) -> Hello {
        Hello {
            incarnation: 5,
            from: self.own,
            wanted: wanted.socket_addr(),
            end: path_end(),
            buffer_bytes: BUFFER_BYTES as u32,
            credit: RemoteMemory { address: 4096, key: 1 },
            nonce: [9; 32],
            service: Service::Reliable,
        }
    }

    /// Says what it is, and is accepted: what the endpoint says of its own end.
    pub fn introduce(&mut self, hello: Hello) -> Accept {
        let nonce = self.greeting();
        self.say(&signed(hello, KEY, &nonce));
        match self.read() {
            Some((Message::Accept(accept), _)) => *accept,
            other => panic!("not accepted: {other:?}"),
        }
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }
}

pub fn path_end() -> PathEnd {
    PathEnd {
        queue_pair: 0xabcdef,
        first_packet: 1,
        lid: 0,
        partition_key: 0xffff,
        link_layer: LinkLayer::Ethernet,
        gid: [0; 16],
        mtu_bytes: 1024,
        reads_max: 1,
    }
}

pub fn signed(hello: Hello, key: &[u8], theirs: &Nonce) -> Vec<u8> {
    let ours = hello.nonce;
    let mut bytes = Message::Hello(Box::new(hello)).encode();
    proof::sign(key, Speaker::Connects, [theirs, &ours], &mut bytes);
    bytes
}

//! An echo server and its client, over socket endpoints.
//!
//!   socket_echo serve ADDRESS                      sends back what comes by any stream
//!   socket_echo ask ADDRESS PEER BYTES             sends so many there, and checks what comes back
//!   socket_echo serve-datagrams ADDRESS            sends every datagram back
//!   socket_echo ask-datagrams ADDRESS PEER COUNT   sends so many, and tells how many came back

use std::process::ExitCode;

use kestrel_tests::{
    echo::{self, Datagrams, Failure, Server},
    opened::run_on_words,
};

fn main() -> ExitCode {
    run_on_words("socket_echo", run)
}

fn run(words: &[&str]) -> Result<(), Failure> {
    match *words {
        ["serve", own] => {
            let mut server = Server::open(own.parse()?)?;
            println!("serving at {}", server.address());
            server.run()
        }
        ["ask", own, peer, bytes] => {
            echo::ask(own.parse()?, peer.parse()?, bytes.parse()?)?;
            println!("{bytes} bytes came back");
            Ok(())
        }
        ["serve-datagrams", own] => {
            let server = Datagrams::open(own.parse()?)?;
            println!("serving at {}", server.address());
            server.serve()
        }
        ["ask-datagrams", own, peer, count] => {
            let answers = Datagrams::open(own.parse()?)?.ask(peer.parse()?, count.parse()?)?;
            println!("{answers} of {count} datagrams came back");
            Ok(())
        }
        _ => Err("socket_echo serve | ask | serve-datagrams | ask-datagrams ADDRESS …".into()),
    }
}

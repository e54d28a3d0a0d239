//! What the example programs begin with: the words of the command line, and an endpoint at an
//! address of it.

use std::{env, error::Error, process::ExitCode, sync::Arc};

use kestrel::{
    AddressVector, AddressVectorAttributes, CompletionQueue, Endpoint, Flags, Hints, Info,
};

/// Runs the program `name` on the words of its command line. What went wrong is told in one line.
pub fn run_on_words(
    name: &str,
    run: impl FnOnce(&[&str]) -> Result<(), Box<dyn Error>>,
) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name} {arguments:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An endpoint with a queue and an address vector, not yet enabled.
pub struct Opened {
    /// What it was opened with.
    pub info: Info,
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Of all that it sends and receives.
    pub queue: Arc<CompletionQueue>,
    /// Whom it knows: nobody.
    pub peers: Arc<AddressVector>,
}

impl Opened {
    /// The best that discovery finds at `own`, ADDRESS:PORT.
    ///
    /// # Errors
    /// There is no port, nothing is found, or it cannot be opened.
    pub fn at(own: &str, hints: &Hints) -> Result<Opened, Box<dyn Error>> {
        let (node, port) = own.rsplit_once(':').ok_or("no port")?;
        let found = kestrel::discover_at(Some(node), Some(port), true, Some(hints))?;
        let info = found.into_iter().next().ok_or("nothing was found")?;
        let domain = kestrel::open_domain(&info)?;
        let endpoint = kestrel::open_endpoint(&domain, &info)?;
        let queue = CompletionQueue::open(&domain, 0)?;
        let peers = Arc::new(AddressVector::open(AddressVectorAttributes::default())?);
        endpoint.bind_address_vector(&peers)?;
        endpoint.bind_completion_queue(&queue, Flags::TRANSMIT | Flags::RECV)?;
        Ok(Opened { info, endpoint, queue, peers })
    }
}

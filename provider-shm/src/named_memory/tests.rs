//! What a process of our own user may do where the memory is looked for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use kestrel_core::address::Address;
use kestrel_core::address_vector::AddressVector;
use rustix::fs::fstat;

use super::holders::{greeting, socket_name};
use super::*;
use crate::control::socket::{self, Socket};

/// Holds `name`, as others do or otherwise.
struct Impostor {
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Impostor {
    /// Says this, with that descriptor, to whoever asks the holder of that number.
    fn as_holder(number: &str, name: &str, said: Vec<u8>, given: Option<OwnedFd>) -> Impostor {
        let listener = socket::listen_as(&socket_name(Name::Vector(name), number)).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let given: Vec<_> = given.iter().map(AsFd::as_fd).collect();
            while !stop.load(Ordering::Relaxed) {
                match socket::accept(listener.as_fd()) {
                    // Who asked may have waited long enough, and ask once more.
                    Ok(asker) => drop(socket::send(asker.as_fd(), &said, &given)),
                    Err(_) => sleep(PAUSE),
                }
            }
        });
        Impostor { over, thread }
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn impostor(name: &str, said: Vec<u8>, given: Option<OwnedFd>) -> Impostor {
    Impostor::as_holder("0", name, said, given)
}

fn new_name(test: &str) -> String {
    format!("{test}/{}", std::process::id())
}

fn refusal(name: &str) -> NamedMemoryError {
    NamedMemory::open(name, 0, Opening::Write).err().expect("no memory")
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let name = new_name("shrinks");
    let unsealed = unsealed_memfd("kestrel-vector", 8 << 10).unwrap();
    let impostor = impostor(&name, greeting(Name::Vector(&name)), Some(unsealed));
    let error = refusal(&name);
    assert!(matches!(error, NamedMemoryError::Region(RegionError::MissingSeals { .. })), "{error}");
    impostor.stop();
}

#[test]
fn memory_of_no_pages_is_refused() {
    let name = new_name("odd");
    let odd = unsealed_memfd("kestrel-vector", 5000).unwrap();
    fcntl_add_seals(&odd, size_seals()).unwrap();
    let impostor = impostor(&name, greeting(Name::Vector(&name)), Some(odd));
    let error = refusal(&name);
    let size =
        NamedMemoryError::Region(RegionError::TableSize { have: 5000, most: TABLE_BYTES_MAX });
    assert_eq!(error.to_string(), size.to_string());
    impostor.stop();
}

/// Memory costs whoever passes it nothing where nobody has written; and whoever reads there is charged for it.
#[test]
fn memory_larger_than_any_table_is_refused() {
    for (bytes, fits) in [(TABLE_BYTES_MAX, true), (TABLE_BYTES_MAX + PAGE_BYTES, false)] {
        let name = new_name("huge");
        let huge = make(Name::Vector(&name), bytes).unwrap();
        let impostor = impostor(&name, greeting(Name::Vector(&name)), Some(huge));
        match NamedMemory::open(&name, 0, Opening::Write).err() {
            None => assert!(fits),
            Some(NamedMemoryError::Region(RegionError::TableSize { .. })) => assert!(!fits),
            Some(error) => panic!("{error}"),
        }
        impostor.stop();
    }
}

/// Where it says that all its numbers are used, and has written none, nothing is read.
#[test]
fn pages_that_nobody_wrote_are_not_read() {
    let name = new_name("hollow");
    let hollow = make(Name::Vector(&name), shared_bytes(COUNT_MIN)).unwrap();
    let pages = hollow.try_clone().unwrap();
    let impostor = impostor(&name, greeting(Name::Vector(&name)), Some(hollow));
    let memory = Arc::new(NamedMemory::open(&name, 0, Opening::Write).unwrap());
    let vector = AddressVector::open_shared(Default::default(), memory.clone()).unwrap();
    let address = |port| Address::new([127, 0, 0, 1].into(), port);
    assert_eq!(vector.insert_one(address(1)), Ok(0));
    // What is used, what was removed, and that something changed.
    let lie = |at: usize, value| memory.words()[at].store(value, Ordering::Relaxed);
    [(1, u64::MAX), (3, 1), (4, 9)].into_iter().for_each(|(at, value)| lie(at, value));
    assert_eq!((vector.find(&address(1)), vector.find(&address(2))), (Some(0), None));
    assert!(fstat(&pages).unwrap().st_blocks * 512 <= 4 * PAGE_BYTES as i64);
    impostor.stop();
}

#[test]
fn memory_of_another_name_is_refused() {
    let name = new_name("another");
    for (said, given) in [
        (greeting(Name::Group(&name)), Some(make(Name::Group(&name), 1).unwrap())),
        (greeting(Name::Vector("something else")), Some(make(Name::Vector(&name), 1).unwrap())),
        (greeting(Name::Vector(&name)), None),
        (vec![1; 100], Some(make(Name::Vector(&name), 1).unwrap())),
    ] {
        let impostor = impostor(&name, said, given);
        let error = refusal(&name);
        assert_eq!(error.errno(), Errno::BUSY, "{error}");
        impostor.stop();
    }
    assert!(NamedMemory::open(&name, 0, Opening::Write).is_ok());
}

/// Whoever has it and says nothing is not passed over: there would be two of it.
#[test]
fn a_silent_holder_is_not_replaced() {
    let name = new_name("silent");
    let silent = socket::listen_as(&socket_name(Name::Vector(&name), "0")).unwrap();
    assert_eq!(refusal(&name).errno(), Errno::BUSY);
    drop(silent);
    let opening = socket::take_name(&socket_name(Name::Vector(&name), "opening")).unwrap();
    assert_eq!(refusal(&name).errno(), Errno::BUSY, "somebody has been opening it for long");
    drop(opening);
    assert!(NamedMemory::open(&name, 0, Opening::Write).is_ok());
}

/// However many of those who have it are stopped, one who is not gives it.
#[test]
fn silent_holders_hide_no_other() {
    let name = new_name("hidden");
    let silent = ["0", "1", "2"]
        .map(|number| socket::listen_as(&socket_name(Name::Vector(&name), number)).unwrap());
    let memory = make(Name::Vector(&name), 4711).unwrap();
    let other = Impostor::as_holder("3", &name, greeting(Name::Vector(&name)), Some(memory));
    let found = NamedMemory::open(&name, 0, Opening::Write).map(|memory| memory.words().len());
    assert_eq!(found.ok(), Some(1024));
    other.stop();
    drop(silent);
}

/// Whoever has it and cannot pass it is asked again, and not replaced either.
#[test]
fn a_holder_that_hangs_up_is_not_replaced() {
    let name = new_name("hangs-up");
    let listener = socket::listen_as(&socket_name(Name::Vector(&name), "0")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let asked = thread::spawn(move || {
        let mut asked = 0;
        while !stop.load(Ordering::Relaxed) {
            asked += u32::from(socket::accept(listener.as_fd()).is_ok());
            sleep(PAUSE);
        }
        asked
    });
    let error = refusal(&name);
    assert_eq!(error.errno(), Errno::BUSY, "{error}");
    over.store(true, Ordering::Relaxed);
    assert!(asked.join().unwrap() > 1);
    assert!(NamedMemory::open(&name, 0, Opening::Write).is_ok(), "it does not listen any more");
}

/// Whoever holds it without being found would have it beside those who find nobody.
#[test]
fn who_would_not_be_found_is_refused() {
    let name = new_name("full");
    let number = |number: u32| socket_name(Name::Vector(&name), &number.to_string());
    let taken: Vec<Socket> = (0..1024).map(|n| socket::take_name(&number(n)).unwrap()).collect();
    let error = refusal(&name);
    assert_eq!(error.errno(), Errno::BUSY);
    assert!(error.to_string().contains("1024 times"), "{error}");
    drop(taken);
    assert!(NamedMemory::open(&name, 0, Opening::Write).is_ok());
}

//! Memory with a name: how processes find it, what it survives, and that nothing of it stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kestrel_core::address::Address;
use kestrel_core::address_vector::{
    AddressVector, AddressVectorAttributes, AddressVectorFlags, SharedMemory, shared_bytes,
};
use kestrel_core::error::{Errno, HasErrno};
use kestrel_shm::named_memory::{NAME_BYTES_MAX, Opening};
use kestrel_shm::{NamedMemory, NamedMemoryError};
use kestrel_tests::figures::{FilesBefore, descriptors, mappings};
use kestrel_tests::fork::{fork, wait};
use kestrel_tests::process::{Peer, child_role, listen_to_parent, say};

/// A name that no other test has.
fn new_name() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("test/{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

fn open(name: &str) -> NamedMemory {
    NamedMemory::open(name, 0, Opening::Write).unwrap()
}

fn vector(memory: NamedMemory, flags: AddressVectorFlags) -> AddressVector {
    let attributes = AddressVectorAttributes { flags, ..Default::default() };
    AddressVector::open_shared(attributes, Arc::new(memory)).unwrap()
}

fn writable(name: &str) -> AddressVector {
    vector(open(name), AddressVectorFlags::empty())
}

fn nth(n: u32) -> Address {
    Address::new(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 7)
}

fn is_gone(name: &str) -> bool {
    match NamedMemory::open(name, 0, Opening::Read) {
        Err(NamedMemoryError::NotThere { .. }) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

/// What a test starts in processes of their own.
#[test]
fn child() {
    let Some(role) = child_role() else { return };
    let orders = listen_to_parent();
    let (what, name) = (role[0].as_str(), role[1].as_str());
    match what {
        "hold" => {
            let av = writable(name);
            say(&format!("has {}", av.len()));
            for order in orders {
                let n = order.parse().unwrap();
                say(&format!("at {}", av.insert_one(nth(n)).unwrap()));
            }
        }
        "insert" => {
            let av = writable(name);
            let (from, count): (u32, u32) = (role[2].parse().unwrap(), role[3].parse().unwrap());
            let find = |n| (n, av.insert_one(nth(n)).unwrap());
            let mine: Vec<(u32, u64)> = (from..from + count).map(find).collect();
            assert!(mine.iter().all(|&(n, at)| av.get(at) == Some(nth(n))));
            say("inserted");
            orders.recv().ok();
        }
        "keep" => {
            let memory = open(name);
            let _held = memory.lock().unwrap();
            say("kept");
            orders.recv().ok();
        }
        "keep-and-fork" => {
            let memory = open(name);
            let _held = memory.lock().unwrap();
            let child = fork(|| {
                // Whoever hears its parent waits for the end of that.
                // SAFETY: nothing here writes to it any more.
                unsafe { libc::close(libc::STDOUT_FILENO) };
                thread::sleep(Duration::from_secs(60));
                0
            });
            say(&child.to_string());
            orders.recv().ok();
        }
        "read" => {
            let memory = NamedMemory::open(name, 0, Opening::Read).unwrap();
            let av = vector(memory, AddressVectorFlags::READ);
            say(&format!("{} {:?}", av.len(), av.insert_one(nth(1)).unwrap_err().errno().0));
        }
        _ => panic!("{what}"),
    }
}

#[test]
fn a_table_outlives_its_maker_and_goes_with_the_last() {
    let files = FilesBefore::now();
    let name = new_name();
    assert!(is_gone(&name));
    let mut maker = Peer::start(&format!("hold {name}"));
    assert_eq!(maker.hear(), "has 0");
    let ours = writable(&name);
    maker.order("5");
    assert_eq!(maker.hear(), "at 0");
    assert_eq!((ours.get(0), ours.find(&nth(5))), (Some(nth(5)), Some(0)));
    maker.kill();
    let _ = maker.finish();
    // We hold it now, and are found.
    let mut third = Peer::start(&format!("hold {name}"));
    assert_eq!(third.hear(), "has 1");
    assert_eq!(ours.insert_one(nth(6)), Ok(1));
    third.order("7");
    assert_eq!(third.hear(), "at 2");
    drop(ours);
    assert!(!is_gone(&name));
    third.kill();
    let _ = third.finish();
    assert!(is_gone(&name));
    assert_eq!(files.left(), [] as [&str; 0]);
    assert_eq!(writable(&name).len(), 0, "a new one is empty");
}

/// A signal of the application's ends no wait for who has the table.
#[test]
fn a_handled_signal_makes_no_holder_silent() {
    extern "C" fn nothing(_: libc::c_int) {}
    let name = new_name();
    let mut holder = Peer::start(&format!("hold {name}"));
    assert_eq!(holder.hear(), "has 0");
    let pid = holder.pid();
    // SAFETY: the PID is that of a child that was not waited for.
    let tell = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    tell(libc::SIGSTOP);
    // SAFETY: says when all of it has stopped, and reaps nothing before it ends.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED) };
    let handler = nothing as extern "C" fn(libc::c_int);
    // SAFETY: the handler does nothing, and no other test has to do with this signal.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: asks for our own name.
    let asker = unsafe { libc::pthread_self() };
    let opened = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..30 {
                thread::sleep(Duration::from_millis(10));
                // SAFETY: that thread is there until the scope ends.
                unsafe { libc::pthread_kill(asker, libc::SIGUSR1) };
            }
            assert_eq!(opened.load(Ordering::Relaxed), 0, "nobody answers yet");
            tell(libc::SIGCONT);
        });
        let memory = NamedMemory::open(&name, 0, Opening::Write);
        opened.store(1, Ordering::Relaxed);
        assert!(memory.is_ok(), "{:?}", memory.err());
    });
}

#[test]
fn many_processes_insert_at_once() {
    let name = new_name();
    let ours = writable(&name);
    const EACH: u32 = 200;
    let start = |n: u32| Peer::start(&format!("insert {name} {} {EACH}", 1000 * n));
    let mut peers: Vec<Peer> = (1..5).map(start).collect();
    for peer in &mut peers {
        assert_eq!(peer.hear(), "inserted");
    }
    assert_eq!(ours.len(), 4 * EACH as usize);
    for n in (1..5).flat_map(|n| 1000 * n..1000 * n + EACH) {
        let at = ours.find(&nth(n)).unwrap();
        assert!(at < u64::from(4 * EACH), "no number is left out");
        assert_eq!(ours.get(at), Some(nth(n)));
    }
}

/// Two that find nobody at the same time make one.
#[test]
fn who_open_at_once_open_the_same() {
    for _ in 0..20 {
        let name = new_name();
        let open = || open(&name);
        let opened: Vec<NamedMemory> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        opened[0].words()[9].store(4711, Ordering::Relaxed);
        for memory in &opened {
            assert_eq!(memory.words()[9].load(Ordering::Relaxed), 4711);
        }
        drop(opened);
        assert!(is_gone(&name));
    }
}

#[test]
fn a_reader_reads_and_nothing_more() {
    let name = new_name();
    let ours = writable(&name);
    ours.insert_one(nth(1)).unwrap();
    let mut reader = Peer::start(&format!("read {name}"));
    assert_eq!(reader.hear(), format!("1 {}", Errno::ACCES.0));
    reader.succeed();
    let memory = NamedMemory::open(&name, 0, Opening::Read).unwrap();
    assert!(memory.lock().is_err());
}

/// Whoever keeps the lock is waited for, not for ever; and death gives it back.
#[test]
fn a_lock_goes_with_its_process() {
    let name = new_name();
    let ours = writable(&name);
    let mut keeper = Peer::start(&format!("keep {name}"));
    assert_eq!(keeper.hear(), "kept");
    let error = ours.insert_one(nth(1)).unwrap_err();
    assert_eq!(error.errno(), Errno::AGAIN, "{error}");
    assert_eq!(ours.len(), 0);
    keeper.kill();
    let _ = keeper.finish();
    assert_eq!(ours.insert_one(nth(1)), Ok(0));
}

/// A forked child that lives on has none of it.
#[test]
fn a_lock_goes_with_a_process_whose_child_lives_on() {
    let name = new_name();
    let ours = writable(&name);
    let mut keeper = Peer::start(&format!("keep-and-fork {name}"));
    let child: i32 = keeper.hear().parse().unwrap();
    keeper.kill();
    let _ = keeper.finish();
    let inserted = ours.insert_one(nth(1));
    // SAFETY: the child sleeps for far longer than this takes, so that the PID is its.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(inserted, Ok(0));
}

#[test]
fn a_forked_child_cannot_have_the_lock() {
    let memory = open(&new_name());
    assert_eq!(wait(fork(|| i32::from(memory.lock().is_ok()))), 0);
    assert!(memory.lock().is_ok());
}

/// Threads of one process exclude each other too, whatever they opened.
#[test]
fn a_lock_is_one_holders() {
    let name = new_name();
    let [first, second] = [(); 2].map(|()| open(&name));
    let sum = AtomicU32::new(0);
    thread::scope(|scope| {
        for memory in [&first, &first, &second] {
            scope.spawn(|| {
                for _ in 0..50 {
                    let _held = memory.lock().unwrap();
                    let seen = sum.load(Ordering::Relaxed);
                    thread::yield_now();
                    sum.store(seen + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 150);
}

/// A forked child has copies of the sockets, and neither the memory nor anything to say.
#[test]
fn a_forked_child_keeps_nothing() {
    let name = new_name();
    let memory = open(&name);
    let child = fork(|| {
        thread::sleep(kestrel_tests::scale::PATIENCE);
        0
    });
    drop(memory);
    assert!(is_gone(&name));
    let ours = writable(&name);
    ours.insert_one(nth(1)).unwrap();
    assert_eq!(writable(&name).len(), 1);
    // SAFETY: ends and reaps the one process that was forked here, by its id.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

#[test]
fn what_is_expected_has_room() {
    let name = new_name();
    let memory = NamedMemory::open(&name, 3 << 20, Opening::Write).unwrap();
    assert!(memory.words().len() * 8 >= shared_bytes(3 << 20));
    // It is as large as it was made, whoever expects more.
    let other = NamedMemory::open(&name, 9 << 20, Opening::Write).unwrap();
    assert_eq!(other.words().len(), memory.words().len());
    let long = NamedMemory::open(&"x".repeat(NAME_BYTES_MAX + 1), 0, Opening::Write).err();
    assert_eq!(long.map(|error| error.errno()), Some(Errno::INVAL));
    let longest = "y".repeat(NAME_BYTES_MAX);
    assert_eq!(writable(&longest).len(), 0);
}

#[test]
fn nothing_stays_of_what_was_closed() {
    let round = || {
        let name = new_name();
        drop((open(&name), open(&name)));
    };
    round();
    // Other tests open and close as well: what stays would grow by a hundred.
    let before = (descriptors(), mappings("kestrel-vector"));
    (0..100).for_each(|_| round());
    let deadline = Instant::now() + kestrel_tests::scale::PATIENCE;
    loop {
        let now = (descriptors(), mappings("kestrel-vector"));
        if now.0 < before.0 + 100 && now.1 < before.1 + 50 {
            return;
        }
        assert!(Instant::now() < deadline, "{before:?} became {now:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

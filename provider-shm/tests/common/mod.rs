//! What the tests of the control plane share: stations with defaults, waits with an end, and
//! children that are this same test binary and are killed by their own id.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod raw;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use kestrel_core::transport::Service;
use kestrel_shm::{PoolMemory, Station, StationEvent, StationOptions};
use kestrel_tests::process::woken;

/// The end of every wait: far beyond what any machine needs, so that no test depends on speed.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// A death is known by then.
pub const DEATH_KNOWN_WITHIN: Duration = Duration::from_secs(1);
const CHILD_VARIABLE: &str = "KESTREL_SHM_TEST_CHILD";

pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub fn options() -> StationOptions {
    StationOptions {
        address: None,
        default_ip: LOCAL,
        auth_key: b"test".to_vec(),
        keys_follow: false,
        service: Service::Reliable,
        admits: None,
        incarnation: None,
        pool: PoolMemory::create(64 << 10).unwrap(),
        connect_timeout: Duration::from_secs(10),
        cma: true,
    }
}

pub fn station() -> Station {
    Station::open(options()).unwrap()
}

pub fn station_at(address: SocketAddr) -> Station {
    Station::open(StationOptions { address: Some(address), ..options() }).unwrap()
}

/// The next event, which has to come and ring.
pub fn event(station: &Station) -> StationEvent {
    woken(|| event_within(station, PATIENCE)).expect("an event")
}

/// Sleeps on the station's bell, as an endpoint does, until there is an event.
pub fn event_within(station: &Station, patience: Duration) -> Option<StationEvent> {
    use rustix::event::{PollFd, PollFlags, poll};
    let deadline = Instant::now() + patience;
    loop {
        station.bell().drain();
        if station.events_pending()
            && let Some(event) = station.next_event()
        {
            return Some(event);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let left = rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let _ = poll(&mut [PollFd::new(station.bell(), PollFlags::IN)], Some(&left));
    }
}

/// A short word for an event, for children to print.
pub fn describe(event: &StationEvent) -> String {
    match event {
        StationEvent::Connected { request, peer, .. } => {
            format!("connected {request} {} cma={}", peer.address, peer.memory.is_some())
        }
        StationEvent::Failed { request, error } => format!("failed {request} {error}"),
        StationEvent::Incoming { peer, .. } => {
            format!("incoming {} cma={}", peer.address, peer.memory.is_some())
        }
        StationEvent::Settled { request } => format!("settled {request}"),
        StationEvent::Died { .. } => "died".to_owned(),
    }
}

/// Who "nobody" is: any user but root and the one that stands for users without a name.
pub const NOBODY: u32 = 4321;

/// Has this process belong to another user, for ever.
pub fn become_nobody() {
    // SAFETY: setuid has no preconditions. It takes effect for every thread.
    assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
}

/// A user namespace in which whoever makes it is root, beside the users that it was lent.
pub const USERS_OF_OUR_OWN: &[&str] = &["--user", "--map-root-user", "--map-auto"];

/// Why `unshare` with these flags is not permitted here, if it is not.
pub fn forbidden(flags: &[&str]) -> Option<String> {
    match Command::new("unshare").args(flags).arg("true").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Some(said.lines().next().unwrap_or("unshare fails").to_owned())
        }
        Err(error) => Some(format!("unshare: {error}")),
    }
}

pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until `done`, for what has no event.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What this process is asked to be, if it is a child.
pub fn child_role() -> Option<Vec<String>> {
    let role = std::env::var(CHILD_VARIABLE).ok()?;
    Some(role.split(' ').map(str::to_owned).collect())
}

/// What a program that is about to be started is asked to be.
pub fn set_role<'a>(program: &'a mut Command, role: &str) -> &'a mut Command {
    program.env(CHILD_VARIABLE, role)
}

/// Says a line to the parent.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {line}").and_then(|()| out.flush()).expect("the parent listens");
}

/// Reads what the parent says; its end is the end of the child.
pub fn listen_to_parent() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        std::process::exit(0);
    });
    receiver
}

/// A child's life: opens a station at `address`, connects where it is told to, says its events.
pub fn live_as_station(address: Option<SocketAddr>, shape: impl FnOnce(&mut StationOptions)) {
    let orders = listen_to_parent();
    let mut options = StationOptions { address, ..options() };
    shape(&mut options);
    let station = Station::open(options).unwrap();
    say(&format!("ready {}", station.address()));
    let mut held = Vec::new();
    loop {
        if let Some(event) = event_within(&station, Duration::from_millis(5)) {
            say(&describe(&event));
            held.push(event);
        }
        while let Ok(order) = orders.try_recv() {
            station.connect(7, order.trim().parse().unwrap());
        }
    }
}

/// A child process, killed and reaped at the latest when this goes.
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts this test binary again, to run the one test `entry`, which looks at [`child_role`].
    pub fn start(entry: &str, role: &str) -> Peer {
        Self::start_under(&[], entry, role)
    }

    /// The same, started through another program (`unshare`).
    pub fn start_under(wrapper: &[&str], entry: &str, role: &str) -> Peer {
        let own = std::env::current_exe().unwrap();
        let mut words: Vec<String> = wrapper.iter().map(|&word| word.to_owned()).collect();
        words.push(own.to_str().unwrap().to_owned());
        words.extend(["--exact", entry, "--nocapture", "--test-threads=1"].map(str::to_owned));
        let mut command = Command::new(&words[0]);
        set_role(&mut command, role).args(&words[1..]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child starts");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix("> ") {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        let input = child.stdin.take();
        Peer { child, input, lines }
    }

    /// The same in namespaces of its own.
    pub fn start_unshared(flags: &[&str], role: &str) -> Peer {
        Self::start_under(&[&["unshare"], flags].concat(), "child", role)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that the child says.
    pub fn hear(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the child says something")
    }

    /// The address of a child that lives as a station.
    pub fn ready(&self) -> SocketAddr {
        let said = self.hear();
        said.strip_prefix("ready ").unwrap_or_else(|| panic!("{said}")).parse().unwrap()
    }

    pub fn order(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for the child's end; its exit code.
    pub fn finish(&mut self) -> Option<i32> {
        drop(self.input.take());
        let mut status = None;
        eventually("the child ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! The loop: orders, sockets, deaths, timers.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use kestrel_core::threads::take_turns;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::handshake::{Handshake, Stage};
use super::socket::{self, Socket};
use super::{Command, Control, StationRecord, own_nonce};
use crate::cma::NONCE_BYTES;
use crate::doorbell::PeerBells;
use crate::end_mark::EndMark;
use crate::process::{Holder, ProcessId, ProcessTable, Watch};
use crate::station::{ConnectError, StationError, StationEvent};

const EVENTS_AT_ONCE: usize = 64;

/// What a descriptor that epoll reports stands for. Numbers are never used again, so an event
/// that was fetched before its object went finds nobody.
#[derive(Clone, Copy)]
pub(super) enum Token {
    Wake,
    Listener(u64),
    Handshake(u64),
    Process(ProcessId),
    Kept(u64),
}

impl Token {
    pub(super) fn data(self) -> EventData {
        let (kind, number) = match self {
            Token::Wake => (0, 0),
            Token::Listener(station) => (1, station),
            Token::Handshake(id) => (2, id),
            Token::Process(process) => (3, process.get()),
            Token::Kept(id) => (4, id),
        };
        EventData::new_u64(kind << 56 | number)
    }

    fn of(data: EventData) -> Option<Token> {
        let (kind, number) = (data.u64() >> 56, data.u64() & ((1 << 56) - 1));
        Some(match kind {
            0 => Token::Wake,
            1 => Token::Listener(number),
            2 => Token::Handshake(number),
            3 => Token::Process(ProcessId::from_u64(number)?),
            4 => Token::Kept(number),
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Handshake(u64),
    ResumeAccepting,
    Crowd,
}

/// A socket that stays open.
struct Kept {
    station: u64,
    socket: Socket,
    /// Of which there is something as long as there is something of our end of the lane.
    lane: Weak<()>,
}

/// Everything that the control thread owns.
pub(super) struct ControlThread {
    control: Arc<Control>,
    pub(super) epoll: OwnedFd,
    pub(super) stations: HashMap<u64, StationRecord>,
    pub(super) handshakes: HashMap<u64, Handshake>,
    pub(super) processes: ProcessTable,
    pub(super) bells: PeerBells,
    pub(super) timers: BTreeSet<(Instant, Timer)>,
    /// Connects that have no socket yet, in the order of their asking.
    pub(super) waiting: VecDeque<u64>,
    /// Connects that may have a socket.
    pub(super) connecting: usize,
    /// Handshakes that others began.
    pub(super) accepting: BTreeSet<u64>,
    /// Whether it is looked soon who is late with its handshakes.
    pub(super) crowd_watched: bool,
    /// Listeners that epoll is not told of.
    pub(super) not_listening: usize,
    pub(super) accept_paused: bool,
    pub(super) told_out_of_descriptors: bool,
    pub(super) refused_users: HashSet<u32>,
    pub(super) told_refusals: HashSet<String>,
    /// Sockets that stay open since the peer knows our death by them.
    kept: HashMap<u64, Kept>,
    /// What a peer that can read our memory finds at its address, and where that is.
    pub(super) nonce: [u8; NONCE_BYTES],
    pub(super) nonce_address: u64,
    /// What a peer that reads our memory knows our end by: this thread's.
    pub(super) end_mark: EndMark,
    pub(super) jitter: u64,
    last_id: u64,
    stop: bool,
}

impl ControlThread {
    /// Called in the thread itself, whose end its end mark tells.
    pub(super) fn new(control: Arc<Control>) -> Result<ControlThread, StationError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| StationError::system("epoll_create1", e.into(), 2))?;
        epoll::add(&epoll, &control.wake, Token::Wake.data(), EventFlags::IN)
            .map_err(|e| StationError::system("epoll_ctl", e.into(), 0))?;
        let (nonce_address, nonce) = own_nonce()?;
        Ok(ControlThread {
            control,
            epoll,
            stations: HashMap::new(),
            handshakes: HashMap::new(),
            processes: ProcessTable::default(),
            bells: PeerBells::default(),
            timers: BTreeSet::new(),
            waiting: VecDeque::new(),
            connecting: 0,
            accepting: BTreeSet::new(),
            crowd_watched: false,
            not_listening: 0,
            accept_paused: false,
            told_out_of_descriptors: false,
            refused_users: HashSet::new(),
            told_refusals: HashSet::new(),
            kept: HashMap::new(),
            nonce,
            nonce_address,
            end_mark: EndMark::of_this_thread()
                .map_err(|error| StationError::system("memfd_create", error, 1))?,
            jitter: super::random_u64()?.max(1),
            last_id: 0,
            stop: false,
        })
    }

    /// Serves until told to stop.
    pub(super) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        take_turns("the control thread of shared memory", || {
            // First, since the turn before may have met a bug behind the order.
            if self.stop {
                return ControlFlow::Break(());
            }
            self.turn(&mut events);
            ControlFlow::Continue(())
        });
    }

    fn turn(&mut self, events: &mut Vec<epoll::Event>) {
        self.carry_out_orders();
        self.run_timers();
        self.admit_waiting();
        if self.not_listening > 0 {
            self.resume_listening();
        }
        if self.stop {
            return;
        }
        let timeout = self.timers.first().map(|(at, _)| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("epoll_wait: {error}"),
        }
        for event in events.drain(..) {
            match Token::of(event.data) {
                Some(Token::Wake) => drop(self.control.wake.drain()),
                Some(Token::Listener(station)) => self.listener_readable(station),
                Some(Token::Handshake(id)) => self.handshake_readable(id),
                Some(Token::Process(process)) => self.process_died(process),
                Some(Token::Kept(id)) => self.drop_kept(id),
                None => {}
            }
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn carry_out_orders(&mut self) {
        while let Some(command) = self.control.commands.pop() {
            match command {
                Command::Register(record) => self.register(*record),
                Command::TakeKeys { station, keys } => {
                    if let Some(record) = self.stations.get_mut(&station) {
                        record.keys.take(keys);
                    }
                }
                Command::Connect { station, request, to, key } => {
                    self.start_connect(station, request, to, key);
                }
                Command::Settle { station, request } => self.settle(station, request),
                Command::Forget { station, process, taken } => {
                    self.forget(station, process, taken);
                }
                Command::Unregister { station, done } => {
                    self.unregister(station);
                    let _ = done.try_send(());
                }
                Command::Stop => self.stop = true,
            }
        }
    }

    fn register(&mut self, record: StationRecord) {
        let id = record.id;
        self.stations.insert(id, record);
        self.not_listening += 1;
        self.listen(id, true);
    }

    fn unregister(&mut self, station: u64) {
        // First the listener, so that nothing more comes.
        self.listen(station, false);
        if let Some(record) = self.stations.get(&station) {
            socket::close_listener(&record.listener);
        }
        let handshakes = self.handshakes_where(|h| h.station == station);
        for id in handshakes {
            match self.handshakes.get(&id).map(|h| &h.stage) {
                Some(Stage::Connecting(_)) => self.fail(id, ConnectError::Closed),
                _ => self.finish_accept(id),
            }
        }
        let Some(record) = self.stations.remove(&station) else {
            return;
        };
        self.not_listening -= 1;
        for process in record.interest.keys() {
            if let Some(watch) = self.processes.release(*process, Holder::Station(station)) {
                self.unwatch(watch);
            }
        }
        self.drop_kept_where(|kept| kept.station == station);
    }

    fn handshakes_where(&self, which: impl Fn(&Handshake) -> bool) -> Vec<u64> {
        self.handshakes.iter().filter(|(_, h)| which(h)).map(|(id, _)| *id).collect()
    }

    /// Takes the confirmations that are there, each of which is a lane to its sender.
    fn settle(&mut self, station: u64, request: u32) {
        let awaits =
            |h: &Handshake| h.station == station && matches!(h.stage, Stage::AwaitConfirm(_));
        for id in self.handshakes_where(awaits) {
            self.accept_readable(id);
        }
        if let Some(record) = self.stations.get_mut(&station) {
            record.push(StationEvent::Settled { request });
        }
    }

    fn forget(&mut self, station: u64, process: ProcessId, taken: u64) {
        let Some(record) = self.stations.get_mut(&station) else {
            return;
        };
        if record.interest.get(&process).is_none_or(|last| *last > taken) {
            return;
        }
        record.interest.remove(&process);
        if let Some(watch) = self.processes.release(process, Holder::Station(station)) {
            self.unwatch(watch);
        }
    }

    fn handshake_readable(&mut self, id: u64) {
        match self.handshakes.get(&id).map(|h| &h.stage) {
            Some(Stage::Connecting(_)) => self.connect_readable(id),
            Some(_) => self.accept_readable(id),
            None => {}
        }
    }

    /// Tells every station that has lanes with the process, after whatever it had still sent.
    fn process_died(&mut self, process: ProcessId) {
        for id in self.handshakes_where(|h| h.process == Some(process)) {
            match self.handshakes.get(&id).map(|h| &h.stage) {
                Some(Stage::Connecting(_)) => self.connect_peer_died(id),
                _ => self.finish_accept(id),
            }
        }
        let Some(watch) = self.processes.remove(process) else {
            return;
        };
        tracing::debug!(process = process.get(), "a peer process died");
        for holder in &watch.holders {
            let Holder::Station(station) = holder else {
                continue;
            };
            let Some(record) = self.stations.get_mut(station) else {
                continue;
            };
            if record.interest.remove(&process).is_some() {
                record.push(StationEvent::Died { process });
            }
        }
        self.unwatch(watch);
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        while let Some(&(at, timer)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::ResumeAccepting => self.accept_paused = false,
                Timer::Crowd => self.end_late(),
                Timer::Handshake(id) => {
                    let Some(handshake) = self.handshakes.get_mut(&id) else {
                        continue;
                    };
                    handshake.timer = None;
                    match handshake.stage {
                        Stage::Connecting(_) => self.connect_timer(id),
                        _ => self.finish_accept(id),
                    }
                }
            }
        }
    }

    /// Tells epoll of a watch.
    pub(super) fn watch_process(
        &mut self,
        process: ProcessId,
        flags: EventFlags,
    ) -> std::io::Result<()> {
        let Some(watch) = self.processes.get(process) else {
            return Ok(());
        };
        let added = epoll::add(&self.epoll, &*watch.fd, Token::Process(process).data(), flags);
        if added.is_err() {
            self.processes.remove(process);
        }
        Ok(added?)
    }

    /// Tells epoll that a handshake's socket is a watch from now on. Nothing is added, for which there
    /// might be no memory, or too many watches: the peer counts on the lane by now.
    pub(super) fn watch_by_socket(&mut self, process: ProcessId) -> std::io::Result<()> {
        let Some(watch) = self.processes.get(process) else {
            return Ok(());
        };
        // No flags: a hang-up is always told, and what the peer may send is not read.
        let (token, none) = (Token::Process(process), EventFlags::empty());
        let changed = epoll::modify(&self.epoll, &*watch.fd, token.data(), none);
        if changed.is_err() {
            self.processes.remove(process);
        }
        Ok(changed?)
    }

    /// Ends a watch. A forked child may still have its descriptor open, and epoll would go on
    /// telling of it: so say that it is over, rather than closing it alone.
    pub(super) fn unwatch(&self, watch: Watch) {
        let _ = epoll::delete(&self.epoll, &*watch.fd);
    }

    /// Keeps a socket open by which the peer will know our death, as long as something is left of
    /// what this returns: our end of the lane.
    pub(super) fn keep_for_peer(&mut self, station: u64, socket: Socket) -> Arc<()> {
        // A peer that never hangs up has us keep no more sockets than it has lanes.
        self.drop_kept_where(|kept| kept.lane.strong_count() == 0);
        let (id, lane) = (self.next_id(), Arc::new(()));
        // The handshake's own watch, changed, since there might be no room for another. Whatever comes of
        // it, to close the socket would be our death to the peer.
        let (token, none) = (Token::Kept(id), EventFlags::empty());
        let _ = epoll::modify(&self.epoll, &socket, token.data(), none);
        self.kept.insert(id, Kept { station, socket, lane: Arc::downgrade(&lane) });
        lane
    }

    fn drop_kept_where(&mut self, which: impl Fn(&Kept) -> bool) {
        let found = self.kept.iter().filter(|(_, kept)| which(kept)).map(|(id, _)| *id);
        for id in found.collect::<Vec<_>>() {
            self.drop_kept(id);
        }
    }

    fn drop_kept(&mut self, id: u64) {
        let socket = self.kept.remove(&id).map(|kept| kept.socket);
        self.close_socket(socket);
    }
}

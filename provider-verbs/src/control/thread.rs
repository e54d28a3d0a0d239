//! The loop: orders, sockets, timers, and the connections that stand.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    net::IpAddr,
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use kestrel_core::{threads::take_turns, transport::Bell as _};
use rustix::{
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    io::Errno,
};

use super::{
    Command, Orders, StationRecord,
    accept::{Abandoned, Connected, Heard, Incoming, PAUSE},
    connect::Outgoing,
    line::Line,
    managed::PROBE,
    nowhere::Nowhere,
    socket::{self, Received, Socket},
    wire::Message,
};
use crate::{manager::ManagedId, receipt::Receipt, station::StationEvent, verbs::Verbs};

const EVENTS_AT_ONCE: usize = 64;

/// After an event that took so long, orders and timers come before the next one.
const HELD_UP: Duration = Duration::from_millis(10);

/// The timer after which connections are taken again.
pub(super) const RESUME: u64 = 0;

/// What a descriptor that epoll reports stands for. Numbers are never used again, so an event
/// that was fetched before its object went finds nobody; but a connect keeps its number from attempt to
/// attempt, and has what is there for the present one looked at.
#[derive(Clone, Copy)]
pub(super) enum Token {
    Wake,
    Listener(u64),
    Handshake(u64),
    Link(u64),
    Manager,
    Device,
}

impl Token {
    pub(super) fn data(self) -> EventData {
        let (kind, number) = match self {
            Token::Wake => (0, 0),
            Token::Listener(station) => (1, station),
            Token::Handshake(id) => (2, id),
            Token::Link(id) => (3, id),
            Token::Manager => (4, 0),
            Token::Device => (5, 0),
        };
        EventData::new_u64(kind << 56 | number)
    }

    fn of(data: EventData) -> Token {
        let (kind, number) = (data.u64() >> 56, data.u64() & ((1 << 56) - 1));
        match kind {
            1 => Token::Listener(number),
            2 => Token::Handshake(number),
            3 => Token::Link(number),
            4 => Token::Manager,
            5 => Token::Device,
            _ => Token::Wake,
        }
    }
}

/// A connection that stands: its line tells of the peer's end.
pub(super) struct Link<V: Verbs> {
    pub station: u64,
    pub line: Line<V>,
    /// The host, of a sender of datagrams that is heard.
    pub heard: Option<IpAddr>,
}

/// Everything that the control thread owns.
pub(super) struct ControlThread<V: Verbs> {
    orders: Arc<Orders<V>>,
    pub(super) epoll: OwnedFd,
    pub(super) stations: HashMap<u64, StationRecord<V>>,
    pub(super) outgoing: HashMap<u64, Outgoing<V>>,
    pub(super) incoming: HashMap<u64, Incoming<V>>,
    pub(super) links: HashMap<u64, Link<V>>,
    pub(super) heard: Heard,
    pub(super) connected: Connected,
    pub(super) nowhere: Nowhere,
    /// Handshakes that came to nothing, as long as their endpoints do not know.
    pub(super) abandoned: Vec<Abandoned>,
    /// Once a station uses it.
    pub(super) manager: Option<Arc<V::Manager>>,
    /// Once there is a station on it.
    pub(super) device: Option<Arc<V>>,
    /// What it said last, if it is gone.
    pub(super) device_failed: Option<String>,
    /// One for each handshake.
    timers: BTreeSet<(Instant, u64)>,
    timer_of: HashMap<u64, Instant>,
    /// Connects that wait for their turn, in the order that it comes.
    pub(super) waiting: VecDeque<u64>,
    /// Connects that have it.
    pub(super) connecting: usize,
    /// Listeners that epoll is not told of, since too many handshakes are under way.
    pub(super) deaf: bool,
    /// Those that it could not be told of, which is tried again.
    pub(super) unwatched: Vec<u64>,
    pub(super) told_unwatched: bool,
    /// It was said that a connection could not be taken, and none was since.
    pub(super) told_untaken: bool,
    last_id: u64,
    stop: bool,
}

impl<V: Verbs> ControlThread<V> {
    pub(super) fn new(orders: Arc<Orders<V>>) -> io::Result<ControlThread<V>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake_of(&orders), Token::Wake.data(), EventFlags::IN)?;
        Ok(ControlThread {
            orders,
            epoll,
            stations: HashMap::new(),
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            links: HashMap::new(),
            heard: Heard::default(),
            connected: Connected::default(),
            nowhere: Nowhere::default(),
            abandoned: Vec::new(),
            manager: None,
            device: None,
            device_failed: None,
            timers: BTreeSet::new(),
            timer_of: HashMap::new(),
            waiting: VecDeque::new(),
            connecting: 0,
            deaf: false,
            unwatched: Vec::new(),
            told_unwatched: false,
            told_untaken: false,
            last_id: 0,
            stop: false,
        })
    }

    pub(super) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        take_turns("the control thread of a device", || {
            // First, since the turn before may have met a bug behind the order.
            if self.stop {
                return ControlFlow::Break(());
            }
            self.turn(&mut events);
            ControlFlow::Continue(())
        });
    }

    /// First what a turn that met a bug may have left, then what comes.
    fn turn(&mut self, events: &mut Vec<epoll::Event>) {
        self.go_on();
        if self.stop {
            return;
        }
        let timeout = self.timers.first().map(|(at, _)| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounded up, so that the timer has run out when we wake.
            let left = left + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        events.clear();
        let spare = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("epoll_wait: {errno}"),
        }
        let mut since = Instant::now();
        for event in events.iter() {
            match Token::of(event.data) {
                Token::Wake => self.orders.wake.drain(),
                Token::Listener(station) => self.listener_readable(station),
                Token::Handshake(id) => self.handshake_ready(id),
                Token::Link(id) => self.link_readable(id),
                Token::Manager => self.manager_readable(),
                Token::Device => self.device_readable(),
            }
            // It may have looked for a path, which others need not wait for.
            if since.elapsed() >= HELD_UP {
                self.go_on();
                since = Instant::now();
            }
            if self.stop {
                return;
            }
        }
    }

    /// What comes between events: orders, and what is due.
    fn go_on(&mut self) {
        self.take_orders();
        self.run_timers();
        self.begin_waiting();
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn take_orders(&mut self) {
        while let Some(command) = self.orders.commands.pop() {
            match command {
                Command::Register(record) => {
                    let id = record.id;
                    self.watch_device(&record.shared.device);
                    if let Some(bound) = &record.managed {
                        self.listen_managed(bound);
                    }
                    self.stations.insert(id, *record);
                    if let Some(what) = self.device_failed.clone() {
                        self.give_up_station(id, &what);
                    }
                    if !self.deaf {
                        self.listen(id);
                    }
                }
                Command::TakeKeys { station, keys } => {
                    if let Some(record) = self.stations.get_mut(&station) {
                        record.keys.take(keys);
                    }
                }
                Command::Connect { station, request, to, key } => {
                    self.ask_to_connect(station, request, to, key);
                }
                Command::HangUp { link, receipt } => self.end_link(link, Some(receipt)),
                Command::HangUpSoon { link } => self.end_link_soon(link),
                Command::Used { queue_pair } => self.queue_pair_used(queue_pair),
                Command::GiveUp { station, what } => {
                    tracing::error!("a queue has failed: {what}");
                    self.give_up_station(station, &what);
                }
                Command::Mute => self.mute_all(),
                Command::Unregister { station, done } => {
                    self.unregister(station);
                    let _ = done.try_send(());
                }
                Command::Stop => self.stop = true,
            }
        }
    }

    pub(super) fn listen(&mut self, station: u64) {
        let Some(record) = self.stations.get(&station) else {
            return;
        };
        let data = Token::Listener(station).data();
        if let Err(errno) = epoll::add(&self.epoll, &record.listener, data, EventFlags::IN) {
            if !std::mem::replace(&mut self.told_unwatched, true) {
                let address = record.address;
                tracing::error!(%address, "nobody can connect for now: epoll: {errno}");
            }
            self.unwatched.push(station);
            self.set_timer(RESUME, Some(Instant::now() + PAUSE));
        }
    }

    fn unregister(&mut self, station: u64) {
        let Some(record) = self.stations.remove(&station) else {
            return;
        };
        if !self.deaf {
            let _ = epoll::delete(&self.epoll, &record.listener);
        }
        // A forked child may have a copy, which would keep the address.
        let _ = rustix::net::shutdown(&record.listener, rustix::net::Shutdown::Both);
        self.outgoing_of(station).into_iter().for_each(|id| drop(self.take_outgoing(id)));
        self.incoming_of(station).into_iter().for_each(|id| self.take_incoming(id));
        self.links_of(station)
            .into_iter()
            .for_each(|id| self.end_link(id, Some(Receipt::default())));
    }

    pub(super) fn outgoing_of(&self, station: u64) -> Vec<u64> {
        ids_where(&self.outgoing, |outgoing| outgoing.station == station)
    }

    pub(super) fn incoming_of(&self, station: u64) -> Vec<u64> {
        ids_where(&self.incoming, |incoming| incoming.station == station)
    }

    pub(super) fn links_of(&self, station: u64) -> Vec<u64> {
        ids_where(&self.links, |link| link.station == station)
    }

    pub(super) fn handshake_ready(&mut self, id: u64) {
        if self.outgoing.contains_key(&id) {
            self.outgoing_ready(id);
        } else if self.incoming.contains_key(&id) {
            self.incoming_ready(id);
        }
    }

    /// Sets, moves or ends a handshake's timer.
    pub(super) fn set_timer(&mut self, id: u64, at: Option<Instant>) {
        if let Some(old) = self.timer_of.remove(&id) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
            self.timer_of.insert(id, at);
        }
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        while let Some(&(at, id)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            self.timer_of.remove(&id);
            if id == RESUME {
                self.resume_listening();
            } else if id == PROBE {
                self.probe();
            } else if self.outgoing.contains_key(&id) {
                self.outgoing_timer(id);
            } else if self.incoming.contains_key(&id) {
                self.incoming_timer(id);
            } else {
                self.end_link(id, Some(Receipt::default()));
            }
        }
    }

    /// Takes what has come for a handshake whose time is over: where this thread was held up, its peer was
    /// not late. Whether there is still one that waits, and for nothing new.
    pub(super) fn is_late(&mut self, id: u64) -> bool {
        self.manager_readable();
        self.handshake_ready(id);
        let waits = self.outgoing.contains_key(&id) || self.incoming.contains_key(&id);
        waits && !self.has_timer(id)
    }

    pub(super) fn has_timer(&self, id: u64) -> bool {
        self.timer_of.contains_key(&id)
    }

    /// Tells epoll of a handshake's socket.
    pub(super) fn watch(&self, id: u64, socket: &Socket, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, Token::Handshake(id).data(), flags)?)
    }

    /// Closes a handshake's socket for good.
    pub(super) fn close(&self, socket: &Socket) {
        let _ = epoll::delete(&self.epoll, socket);
        socket::hang_up(socket);
    }

    /// Keeps the line of a handshake that succeeded, under the handshake's number.
    pub(super) fn keep_link(
        &mut self,
        id: u64,
        station: u64,
        line: Line<V>,
        heard: Option<IpAddr>,
    ) {
        if let Some(host) = heard {
            self.heard.add(station, host);
        }
        match &line {
            Line::Tcp(socket, _) => {
                let data = Token::Link(id).data();
                if let Err(errno) = epoll::modify(&self.epoll, socket, data, EventFlags::IN) {
                    tracing::error!("a peer's death will not be noticed: epoll: {errno}");
                }
            }
            Line::Managed(_) | Line::Mute => self.probe_later(),
        }
        self.links.insert(id, Link { station, line, heard });
    }

    /// Hands over a connection that others began.
    pub(super) fn tell_incoming(&self, station: u64, event: StationEvent<V>) {
        if let Some(record) = self.stations.get(&station) {
            record.shared.push(event);
        }
    }

    /// Looks at a connection that was handed over just now: its end may already have come.
    pub(super) fn look_at_link(&mut self, id: u64) {
        self.link_readable(id);
    }

    fn link_readable(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Line::Tcp(socket, input) = &mut link.line else {
            return;
        };
        let record = self.stations.get(&link.station);
        let event = match socket::receive(socket, input) {
            Received::Nothing => return,
            Received::Message(Message::End(receipt), _) => {
                StationEvent::Closed { link: id, receipt }
            }
            Received::Message(message, _) => {
                let reason = format!("it said {message:?} on a connection that stands");
                StationEvent::Lost { link: id, reason }
            }
            // Of datagrams there is no connection of a device that could tell.
            Received::Silent(reason) if record.is_some_and(|it| it.datagrams.is_none()) => {
                return self.mute(id, &reason);
            }
            Received::Silent(reason) | Received::Gone(reason) => {
                StationEvent::Lost { link: id, reason }
            }
            Received::Bad(error) => StationEvent::Lost { link: id, reason: error.to_string() },
        };
        if let Some(record) = record {
            record.shared.push(event);
        }
        self.end_link(id, None);
    }

    /// Ends a connection, with a word if it is us who end it: what came. Through the
    /// connection manager there is none, and the receiver has written it where the sender looks.
    pub(super) fn end_link(&mut self, id: u64, say: Option<Receipt>) {
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        self.set_timer(id, None);
        if let Some(host) = link.heard {
            self.heard.remove(link.station, host);
        }
        match (link.line, say) {
            (Line::Tcp(socket, _), say) => {
                if let Some(receipt) = say {
                    // A peer that is gone need not hear it.
                    let _ = socket::send(&socket, &Message::End(receipt).encode());
                }
                self.close(&socket);
            }
            (Line::Managed(id), Some(_)) => id.disconnect(),
            (Line::Managed(_), None) | (Line::Mute, _) => {}
        }
    }
}

/// The descriptor by which orders wake the thread.
#[allow(unsafe_code)]
fn wake_of<V: Verbs>(orders: &Orders<V>) -> impl AsFd + '_ {
    // SAFETY: the bell's descriptor is open as long as the orders, which are borrowed.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(orders.wake.fd()) }
}

fn ids_where<T>(map: &HashMap<u64, T>, which: impl Fn(&T) -> bool) -> Vec<u64> {
    map.iter().filter(|(_, value)| which(value)).map(|(id, _)| *id).collect()
}

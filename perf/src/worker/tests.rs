use super::*;
use crate::measure::matching::{Class, Deep, Queue};
use crate::port::Verb;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Two ranks, each with a thread of its own: its endpoint is never another's.
struct Ranks {
    orders: Vec<Sender<Order>>,
    /// Each answer, with what the rank has sent so far.
    answers: Vec<Receiver<(Answer, Traffic)>>,
    /// What both have sent so far: messages, and their bytes.
    sent: (u64, u64),
}

impl Ranks {
    fn open() -> Ranks {
        let mut ranks = Ranks { orders: Vec::new(), answers: Vec::new(), sent: (0, 0) };
        for rank in 0..2 {
            let (orders, taken) = channel::<Order>();
            let (answered, answers) = channel();
            std::thread::spawn(move || {
                let mut worker = Worker::new(rank, None);
                for order in taken {
                    let answer = worker.obey(&order);
                    // Nobody is left to hear it where a test has failed.
                    let _ = answered.send((answer, worker.traffic().unwrap_or_default()));
                }
            });
            ranks.orders.push(orders);
            ranks.answers.push(answers);
        }
        let fabric = FabricOptions { provider: "shm".to_owned(), automatic_progress: false };
        let addresses = ranks.all(&Order::Open(fabric)).map(|answer| match answer {
            Answer::Address(address) => address,
            other => panic!("no address: {other:?}"),
        });
        ranks.all(&Order::Connect(addresses.to_vec()));
        ranks
    }

    fn all(&mut self, order: &Order) -> [Answer; 2] {
        // What is sent to a rank in another process is this text.
        let copy = || serde_json::from_str(&serde_json::to_string(order).unwrap()).unwrap();
        self.orders.iter().for_each(|orders| orders.send(copy()).expect("the rank lives"));
        self.sent = (0, 0);
        [0, 1].map(|rank: usize| {
            let (answer, Traffic { near, .. }) = self.answers[rank].recv().expect("an answer");
            self.sent = (self.sent.0 + near.messages, self.sent.1 + near.bytes);
            assert!(!matches!(answer, Answer::Failed { .. }), "{order:?}: {answer:?}");
            answer
        })
    }

    /// What both send for it together: messages, and their bytes.
    fn sent_for(&mut self, work: Work) -> (u64, u64) {
        let (messages, bytes) = self.sent;
        self.all(&Order::Work(work));
        (self.sent.0 - messages, self.sent.1 - bytes)
    }
}

/// A name, what is done with a warm-up of so many, and the messages of each of them.
type Case = (&'static str, fn(u64) -> Work, u64);

/// As much more is sent as the warm-up has operations, and nothing where it has none.
#[test]
fn a_warmup_is_done_by_every_workload() {
    let mut ranks = Ranks::open();
    let works: [Case; 9] = [
        // A round trip is two messages.
        ("ping-pong", |warmup| ping_pong(8, warmup, false), 2),
        ("one way", |warmup| one_way(8, warmup, false), 1),
        ("one way, touched", |warmup| one_way(8, warmup, true), 1),
        // Of 5 messages, and a signal each way.
        (
            "matching",
            |warmup| {
                let (queue, class) = (Queue::Posted, Class::Exact);
                Work::Matching(Deep { size: 8, depth: 5, rounds: 2, warmup, queue, class })
            },
            7,
        ),
        ("all-to-all", |warmup| Work::AllToAll { size: 8, messages: 20, warmup, window: 8 }, 2),
        ("barrier", |warmup| Work::Barrier { rounds: 5, warmup }, 2),
        ("write", |warmup| one_sided(Verb::Write, warmup), 1),
        ("fetch-add", |warmup| one_sided(Verb::FetchAdd, warmup), 1),
        // Each is granted, and has an end.
        ("new regions", new_regions, 3),
    ];
    for (name, work, a_warmup) in works {
        let (without, _) = ranks.sent_for(work(0));
        let (with, _) = ranks.sent_for(work(30));
        assert_eq!(with - without, 30 * a_warmup, "{name}");
    }
}

fn ping_pong(size: usize, warmup: u64, touch: bool) -> Work {
    Work::PingPong { size, iterations: 20, warmup, each_timed: false, touch }
}

fn one_way(size: usize, warmup: u64, touch: bool) -> Work {
    Work::OneWay { size, messages: 20, warmup, window: 4, touch }
}

fn one_sided(verb: Verb, warmup: u64) -> Work {
    Work::OneSided { verb, size: 8, operations: 20, warmup, window: 4 }
}

fn new_regions(warmup: u64) -> Work {
    Work::NewRegions { verb: Verb::Write, size: 8, operations: 20, warmup }
}

/// Handshakes have no bytes.
#[test]
fn messages_have_the_size_that_is_asked_for() {
    let mut ranks = Ranks::open();
    let all_to_all = |size| Work::AllToAll { size, messages: 20, warmup: 0, window: 8 };
    let deep = |queue, size| {
        let class = Class::FourMasks;
        Work::Matching(Deep { size, depth: 20, rounds: 2, warmup: 0, queue, class })
    };
    for size in [0, 8, 1_000, 70_000] {
        assert_eq!(ranks.sent_for(all_to_all(size)).1, 2 * 20 * size as u64, "{size}");
        for queue in [Queue::Posted, Queue::Unexpected] {
            assert_eq!(ranks.sent_for(deep(queue, size)).1, 2 * 20 * size as u64, "{queue:?}");
        }
    }
}

/// Whoever reads holds what it reads against what it should be: buffers begin with bytes that differ,
/// so whatever is not written before it is sent, or not there when it is read, is found.
#[test]
fn what_is_written_before_it_is_sent_is_read_after_it_was_received() {
    let mut ranks = Ranks::open();
    for size in [0, 1, 8, 1_000, 20_000, 70_000, 300_001] {
        let (messages, bytes) = ranks.sent_for(ping_pong(size, 5, true));
        assert!(messages >= 50 && bytes == 50 * size as u64, "{size}: {messages}, {bytes}");
        assert_eq!(ranks.sent_for(one_way(size, 5, true)).1, 25 * size as u64, "{size}");
    }
}

/// Whoever answers where ranks meet names no file that a rank loads.
#[test]
fn a_rank_that_was_not_started_for_a_comparison_loads_nothing() {
    let provider = "kestrel".to_owned();
    let options = DoorOptions { provider, one_sided: false, automatic_progress: false };
    let open = |libfabric: Option<&str>| {
        let mut worker = Worker::new(1, libfabric.map(PathBuf::from));
        match worker.obey(&Order::OpenDoor(0, options.clone())) {
            Answer::Failed { reason, stalled: false } => reason,
            other => panic!("{other:?}"),
        }
    };
    let reason = open(None);
    assert!(reason.contains("kestrel-perf compare --connect HOST:PORT"), "{reason}");
    let reason = open(Some("/nonexistent/libfabric.so"));
    assert!(reason.contains("cannot load \"/nonexistent/libfabric.so\""), "{reason}");
}

#[test]
fn who_waited_in_vain_is_told_from_who_failed() {
    assert!(
        is_stall(&MeasureError::Stalled { doing: "waiting", seconds: 10 })
            && is_stall(&FloorError::Stalled)
    );
    assert!(!is_stall(&MeasureError::NotAsSent { size: 8 }));
}

//! Loom models of a lane's doorbell: whoever falls asleep is woken.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kestrel-core --release --test loom_attention`
//!
//! A sleeper wishes for a bell, fences, looks once more and sleeps if nothing is
//! there. A producer publishes, fences, looks for the wish and rings. What is
//! modelled is the moment after both: who sleeps has a bell that rings.
#![cfg(loom)]

mod models;

use kestrel_core::{
    primitive::fence,
    ring::lane::{LaneConsumer, LaneProducer},
};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use models::{explore, lane::lane};

/// The bell: how often it was rung. It is a system call in life, so its order is
/// not in question.
#[derive(Clone)]
struct Bell(Arc<AtomicUsize>);

impl Bell {
    fn new() -> Bell {
        Bell(Arc::new(AtomicUsize::new(0)))
    }

    fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn rings(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// How the producer's fence comes about.
#[derive(Clone, Copy, PartialEq)]
enum Fence {
    /// The producer issues it.
    Own,
    /// The sleeper has it executed, wherever the producer is just then.
    Heavy,
    /// Not at all: what must go wrong.
    Missing,
}

/// membarrier(2): the caller asks, and every running thread executes a full fence
/// at whatever point it has come to.
#[derive(Clone)]
struct Barrier {
    asked: Arc<AtomicUsize>,
    executed: Arc<AtomicUsize>,
}

const NEVER_AGAIN: usize = 1 << 16;

impl Barrier {
    fn new() -> Barrier {
        Barrier { asked: Arc::new(AtomicUsize::new(0)), executed: Arc::new(AtomicUsize::new(0)) }
    }

    /// Our side of it: `barrier::heavy_fence`.
    fn issue(&self) {
        fence(Ordering::SeqCst);
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        while self.executed.load(Ordering::Relaxed) < number {
            thread::yield_now();
        }
        fence(Ordering::SeqCst);
    }

    /// A point where the other thread may be interrupted.
    fn interruptible(&self) {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked > self.executed.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            self.executed.store(asked, Ordering::Relaxed);
        }
    }

    /// The thread ends: off its core, it has executed whatever is asked later.
    fn leave(&self) {
        fence(Ordering::SeqCst);
        self.executed.store(NEVER_AGAIN, Ordering::Relaxed);
    }
}

/// A producer as provider-shm's `SendLane`: publish, look, ring once a wish.
struct Sender {
    producer: models::lane::Held<LaneProducer>,
    bell: Bell,
    barrier: Barrier,
    fence: Fence,
    answered: u32,
    rung: Vec<u32>,
}

impl Sender {
    fn send(&mut self, n: u32) {
        self.barrier.interruptible();
        self.producer.end.first_line().put(0, n.into());
        self.producer.end.publish(n, 1);
        self.barrier.interruptible();
        let wish = self.producer.end.attention(self.fence != Fence::Own);
        self.barrier.interruptible();
        if wish != 0 && wish != self.answered {
            self.answered = wish;
            self.rung.push(wish);
            self.bell.ring();
        }
    }
}

/// Two ends, the bell between them, and the fence that the sleeper issues.
fn pair(fence: Fence) -> (Sender, models::lane::Held<LaneConsumer>, Bell, Barrier) {
    let (producer, consumer) = lane(4);
    let (bell, barrier) = (Bell::new(), Barrier::new());
    let (answered, rung) = (0, Vec::new());
    let ring = (bell.clone(), barrier.clone());
    let sender = Sender { producer, bell: ring.0, barrier: ring.1, fence, answered, rung };
    (sender, consumer, bell, barrier)
}

/// A thread that sends two packets; which wishes it has rung for.
fn sends_two(mut sender: Sender) -> thread::JoinHandle<Vec<u32>> {
    thread::spawn(move || {
        sender.send(1);
        sender.send(2);
        sender.barrier.leave();
        sender.rung
    })
}

/// Asks for the bell and looks once more, as `ShmTransport` does it in `arm`, `fence_armed` and `is_quiet`.
/// Whether to sleep.
fn arm(consumer: &LaneConsumer, wish: u32, barrier: &Barrier, kind: Fence) -> bool {
    consumer.set_attention(wish);
    if kind == Fence::Heavy {
        barrier.issue();
    }
    consumer.peek().is_none()
}

fn falls_asleep_beside_a_sender(name: &str, kind: Fence) {
    explore(name, 6, move || {
        let (mut sender, receiver, bell, barrier) = pair(kind);
        let sending = thread::spawn(move || {
            sender.send(1);
            sender.barrier.leave();
            sender.rung
        });
        let sleeps = arm(&receiver.end, 5, &barrier, kind);
        let rung = sending.join().unwrap();
        assert!(!sleeps || bell.rings() == 1, "asleep for ever");
        assert!(rung.is_empty() || rung == [5]);
        assert_eq!(receiver.end.peek(), Some(1));
    });
}

#[test]
fn a_sleeper_is_woken_by_fences_on_both_sides() {
    falls_asleep_beside_a_sender("own fence", Fence::Own);
}

#[test]
fn a_sleeper_is_woken_by_its_own_heavy_fence() {
    falls_asleep_beside_a_sender("heavy fence", Fence::Heavy);
}

#[test]
#[should_panic(expected = "asleep for ever")]
fn without_the_producers_fence_a_wake_up_is_lost() {
    falls_asleep_beside_a_sender("no fence", Fence::Missing);
}

/// Two sleeps, two packets: each wish is answered at most once, and whichever
/// sleep was right to begin is ended.
fn sleeps_twice(name: &str, kind: Fence) {
    explore(name, 3, move || {
        let (sender, mut receiver, bell, barrier) = pair(kind);
        let sending = sends_two(sender);
        let (mut taken, mut drained) = (0, 0);
        for wish in 1..=2 {
            drained = bell.rings();
            if arm(&receiver.end, wish, &barrier, kind) {
                // Asleep: only the bell ends it.
                while bell.rings() == drained {
                    thread::yield_now();
                }
            }
            receiver.end.set_attention(0);
            while let Some(meta) = receiver.end.peek() {
                taken += 1;
                assert_eq!(meta, taken);
                receiver.end.advance(1);
            }
            if taken == 2 {
                break;
            }
        }
        let mut rung = sending.join().unwrap();
        assert_eq!(bell.rings(), rung.len());
        assert!(drained <= rung.len());
        rung.dedup();
        assert_eq!(bell.rings(), rung.len(), "a wish was answered twice");
    });
}

#[test]
fn each_wish_is_answered_once() {
    sleeps_twice("two sleeps", Fence::Own);
}

#[test]
fn each_wish_is_answered_once_over_heavy_fences() {
    sleeps_twice("two sleeps, heavy fence", Fence::Heavy);
}

/// A quiet lane keeps the wish of the time when it became quiet, set without any
/// heavy fence; a sleeper asks the other lanes anew and leaves that one alone.
#[test]
fn a_quiet_lane_wakes_a_sleeper_by_its_old_wish() {
    explore("a quiet lane", 5, || {
        let (mut sender, receiver, bell, barrier) = pair(Fence::Heavy);
        let sending = thread::spawn(move || {
            sender.send(1);
            sender.barrier.leave();
            sender
        });
        // `quieten`: no fence but `set_attention`'s own.
        receiver.end.set_attention(3);
        // `arm`: wish 4 goes to other lanes; the fence covers this one's, too.
        barrier.issue();
        let sleeps = receiver.end.peek().is_none();
        let mut sender = sending.join().unwrap();
        assert!(!sleeps || bell.rings() == 1, "asleep for ever");
        // It wakes, finds the packet, and the lane speaks again: the next sleep
        // asks it with a number that it has not answered.
        assert_eq!(receiver.end.peek(), Some(1));
        let mut receiver = receiver;
        receiver.end.set_attention(0);
        receiver.end.advance(1);
        let before = bell.rings();
        receiver.end.set_attention(5);
        sender.send(2);
        assert_eq!(bell.rings(), before + 1, "the new wish is not answered");
    });
}

/// A lane that speaks again while somebody sleeps is asked with the sleeper's
/// wish, and no heavy fence: its sender has answered the old wish or answers the
/// new one.
#[test]
fn a_quiet_lane_that_another_thread_finds_still_wakes_the_sleeper() {
    explore("a quiet lane found by a poller", 5, || {
        let (sender, mut receiver, bell, barrier) = pair(Fence::Heavy);
        receiver.end.set_attention(3);
        let sending = sends_two(sender);
        barrier.issue();
        if receiver.end.peek().is_none() {
            // The sleeper sleeps; another thread polls, and takes what it finds.
            while receiver.end.peek().is_some() {
                receiver.end.set_attention(4);
                receiver.end.advance(1);
            }
            sending.join().unwrap();
            assert!(bell.rings() >= 1, "asleep for ever");
        } else {
            sending.join().unwrap();
        }
    });
}

/// The same where the other thread polls between the sleeper's fence and its look: it asks with no fence, and so
/// the look has one of its own in front.
fn a_lane_is_found_before_the_look(name: &str, fenced: bool) {
    explore(name, 5, move || {
        let (sender, mut receiver, bell, barrier) = pair(Fence::Heavy);
        receiver.end.set_attention(3);
        let sending = sends_two(sender);
        let drained = bell.rings();
        barrier.issue();
        let mut found = false;
        while receiver.end.peek().is_some() {
            receiver.end.set_attention(4);
            receiver.end.advance(1);
            found = true;
        }
        if found && fenced {
            barrier.issue();
        }
        let sleeps = receiver.end.peek().is_none();
        sending.join().unwrap();
        assert!(
            !sleeps || receiver.end.peek().is_none() || bell.rings() > drained,
            "asleep for ever"
        );
    });
}

#[test]
fn a_quiet_lane_that_another_thread_finds_before_the_look_wakes_the_sleeper() {
    a_lane_is_found_before_the_look("a quiet lane found before the look", true);
}

#[test]
#[should_panic(expected = "asleep for ever")]
fn without_a_fence_of_the_look_a_wake_up_is_lost() {
    a_lane_is_found_before_the_look("a look without a fence", false);
}

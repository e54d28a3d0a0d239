use std::{
    cell::{Cell, RefCell},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::*;
use crate::fake::{FakeDevice, FakeFabric, FakeOptions};

const PAGE: usize = 4096;

/// Says what a test tells it to.
#[derive(Default)]
struct Told {
    gone: RefCell<Vec<Range<usize>>>,
    changing: Cell<u32>,
    missed: Cell<bool>,
    never: Cell<bool>,
    watched: Cell<u32>,
}

impl Watcher for Told {
    fn position(&self) -> u64 {
        0
    }

    fn watch(&self, _memory: &Range<usize>) -> Watch {
        self.watched.set(self.watched.get() + 1);
        if self.never.get() { Watch::Never } else { Watch::Yes }
    }

    fn caught_up(
        &self,
        _at: usize,
        position: &mut u64,
        tell: &mut dyn FnMut(Range<usize>),
    ) -> Caught {
        self.read(position, tell)
    }

    fn read(&self, position: &mut u64, tell: &mut dyn FnMut(Range<usize>)) -> Caught {
        if let Some(left) = self.changing.get().checked_sub(1) {
            self.changing.set(left);
            return Caught::NotYet;
        }
        if self.missed.take() {
            return Caught::Missed;
        }
        for gone in self.gone.take() {
            *position += 1;
            tell(gone);
        }
        Caught::Up
    }

    fn is_behind(&self, _position: u64) -> bool {
        true
    }
}

/// Memory, a device, and what is kept of it.
struct Scene {
    kept: KeptRegistrations<FakeDevice>,
    told: Told,
    memory: Vec<u8>,
    device: Arc<FakeDevice>,
    fabric: FakeFabric,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    /// All endpoints of the process share what may be kept.
    fn new(room: Room) -> Scene {
        static ALONE: Mutex<()> = Mutex::new(());
        let fabric = FakeFabric::default();
        Scene {
            kept: KeptRegistrations::new(room, 0),
            told: Told::default(),
            memory: vec![0; 4096 * PAGE],
            device: Arc::new(fabric.device(FakeOptions::default())),
            fabric,
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn roomy() -> Scene {
        Scene::new(Room { own: usize::MAX, all: usize::MAX })
    }

    fn range(&self, from: usize, to: usize) -> Range<usize> {
        let start = self.memory.as_ptr().addr();
        start + from * PAGE..start + to * PAGE
    }

    fn look_for(
        &mut self,
        from: usize,
        to: usize,
        purpose: Purpose,
    ) -> Option<Holding<FakeDevice>> {
        let bytes = &mut self.memory[from * PAGE..to * PAGE];
        // SAFETY: the memory outlives the registrations.
        let piece = unsafe { Piece::of(bytes) };
        self.kept.look_for(&self.device, &self.told, (piece, purpose, true))
    }

    /// How many registrations it takes to have one of these pages.
    fn takes(&mut self, from: usize, to: usize, purpose: Purpose) -> u64 {
        let before = self.fabric.tally().registrations;
        assert!(self.look_for(from, to, purpose).is_some_and(|holding| holding.kept));
        self.fabric.tally().registrations - before
    }

    fn registered(&self) -> usize {
        self.fabric.tally().registered / PAGE
    }
}

#[test]
fn whatever_holds_the_buffer_for_that_purpose_is_found() {
    use Purpose::{Lend, Receive, Send};
    let mut scene = Scene::roomy();
    assert_eq!([scene.takes(10, 20, Send), scene.takes(10, 20, Send)], [1, 0]);
    assert_eq!([scene.takes(12, 19, Send), scene.takes(19, 20, Send)], [0, 0], "parts");
    assert_eq!([scene.takes(9, 11, Send), scene.takes(19, 21, Send)], [1, 1], "not wholly within");
    assert_eq!(scene.takes(12, 13, Receive), 1, "what is read may not be written to");
    assert_eq!(scene.takes(12, 13, Lend), 1, "or by others");
    assert_eq!(scene.takes(30, 40, Receive), 1);
    assert_eq!(scene.takes(31, 39, Send), 0, "what is written to may be read");
    // What lies within one that is new goes.
    let before = scene.registered();
    assert_eq!(scene.takes(0, 29, Send), 1);
    assert_eq!(scene.registered(), before + 29 - 10 - 2 - 2);
    for nth in 0..20 {
        assert_eq!(scene.takes(nth, nth + 5, Send), 0, "{nth}");
    }
}

#[test]
fn what_was_invalidated_is_found_no_more() {
    let mut scene = Scene::roomy();
    assert_eq!(scene.takes(0, 4, Purpose::Send), 1);
    scene.told.gone.replace(vec![scene.range(4, 9)]);
    assert_eq!(scene.takes(0, 4, Purpose::Send), 0, "beside it");
    scene.told.gone.replace(vec![scene.range(3, 9)]);
    assert_eq!(scene.takes(0, 4, Purpose::Send), 1);
    scene.told.missed.set(true);
    assert_eq!(scene.takes(0, 4, Purpose::Send), 1, "who knows");
    scene.told.gone.replace(vec![scene.range(0, 1)]);
    scene.kept.sweep(&scene.told);
    assert_eq!(scene.registered(), 0);
}

/// An operation, and a loan, have theirs until they are over.
#[test]
fn what_is_invalidated_under_way_ends_behind_it() {
    let mut scene = Scene::roomy();
    let under_way = scene.look_for(0, 4, Purpose::Send).unwrap();
    let lent: Arc<dyn kestrel_core::window::Registration> =
        scene.look_for(8, 12, Purpose::Lend).unwrap().registration;
    let loan = Loan::kept(&lent);
    drop(lent);
    for missed in [false, true] {
        scene.told.missed.set(missed);
        scene.told.gone.replace(vec![scene.range(0, 1), scene.range(11, 12)]);
        scene.kept.sweep(&scene.told);
        assert_eq!(scene.registered(), 8);
    }
    assert_eq!(scene.takes(0, 4, Purpose::Send), 1, "it is not used again");
    drop(under_way);
    scene.kept.sweep(&scene.told);
    assert_eq!(scene.registered(), 8);
    scene.kept.take_back(&loan);
    assert_eq!(scene.registered(), 4);
}

#[test]
fn a_loan_that_is_taken_back_ends_and_others_do_not() {
    let mut scene = Scene::roomy();
    let mut lend = |from, to| {
        let lent: Arc<dyn kestrel_core::window::Registration> =
            scene.look_for(from, to, Purpose::Lend).unwrap().registration;
        Loan::kept(&lent)
    };
    let [one, same, other] = [lend(0, 4), lend(1, 2), lend(5, 6)];
    assert_eq!(one.remote_key(), same.remote_key());
    assert_eq!(scene.registered(), 5);
    scene.kept.take_back(&same);
    assert_eq!(scene.registered(), 1);
    scene.kept.take_back(&one);
    assert_eq!(scene.registered(), 1);
    scene.kept.take_back(&other);
    assert_eq!(scene.registered(), 0);
}

#[test]
fn what_changes_just_now_is_waited_for_and_not_for_long() {
    let mut scene = Scene::roomy();
    assert_eq!(scene.takes(0, 4, Purpose::Send), 1);
    scene.told.changing.set(LOOKS_MAX - 1);
    assert_eq!(scene.takes(0, 4, Purpose::Send), 0);
    scene.told.changing.set(LOOKS_MAX);
    assert!(scene.look_for(0, 4, Purpose::Send).is_none());
    assert_eq!(scene.takes(0, 4, Purpose::Send), 0, "it stayed");
    // One that is new is used, and is not kept.
    scene.told.changing.set(1);
    assert!(scene.look_for(8, 9, Purpose::Send).is_none(), "nothing was registered yet");
    assert_eq!(scene.registered(), 4);
}

#[test]
fn what_cannot_be_watched_is_not_asked_about_again_and_again() {
    let mut scene = Scene::roomy();
    scene.told.never.set(true);
    for _ in 0..100 {
        assert!(scene.look_for(0, 4, Purpose::Send).is_none());
    }
    assert_eq!(scene.told.watched.get(), 1);
    scene.told.never.set(false);
    assert!(scene.look_for(2, 3, Purpose::Send).is_none());
    assert_eq!(scene.takes(4, 5, Purpose::Send), 1, "another one");
    scene.kept.clock += UNWATCHED_USES;
    assert_eq!(scene.takes(0, 4, Purpose::Send), 1);
}

#[test]
fn the_one_that_was_used_the_longest_time_ago_makes_room() {
    for room in [Room { own: 3 * PAGE, all: usize::MAX }, Room { own: usize::MAX, all: 3 * PAGE }] {
        let mut scene = Scene::new(room);
        let mut takes = |at: usize| scene.takes(at, at + 1, Purpose::Send);
        assert_eq!([0, 1, 2, 0, 3].map(&mut takes), [1, 1, 1, 0, 1]);
        assert_eq!([0, 2, 3].map(&mut takes), [0; 3]);
        assert_eq!(takes(1), 1);
        assert_eq!(scene.registered(), 3);
        // What is under way makes none.
        let under_way = [1, 2, 3].map(|at| scene.look_for(at, at + 1, Purpose::Send).unwrap());
        assert!(scene.look_for(9, 10, Purpose::Send).is_none());
        assert!(scene.look_for(20, 24, Purpose::Send).is_none(), "longer than all of it");
        drop(under_way);
        assert_eq!(scene.takes(9, 10, Purpose::Send), 1);
        assert!(scene.kept.release_idle());
        assert!(!scene.kept.release_idle());
        assert_eq!((scene.registered(), scene.kept.bytes), (0, 0));
    }
    let mut scene = Scene::roomy();
    for nth in 0..COUNT_MAX + 10 {
        assert_eq!(scene.takes(nth, nth + 1, Purpose::Send), 1);
    }
    assert_eq!(scene.registered(), COUNT_MAX);
    drop(scene.kept);
    assert_eq!(ALL.load(Ordering::Relaxed), 0);
}

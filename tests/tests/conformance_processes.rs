//! The conformance of shared memory between real processes: three of them play one script, which
//! each makes from the same seed, and each checks what it is told against what the script says.
//!
//! The cases of the suite have all endpoints in one process, where whatever copies between processes
//! copies within one, and everybody is driven by one thread.

#[path = "processes/memory.rs"]
mod memory;
#[path = "processes/messages.rs"]
mod messages;
#[path = "processes/rank.rs"]
mod rank;
#[path = "processes/script.rs"]
mod script;
#[path = "processes/unasked.rs"]
mod unasked;

use kestrel_core::endpoint::EndpointOptions;
use kestrel_tests::{
    process::{Peer, child_role, listen_to_parent, say},
    random::Random,
    scale::scaled,
};
use rank::Rank;
use script::{RANKS, Scene, Script};

#[test]
fn child() {
    match child_role().as_deref() {
        None => {}
        Some([role, number, seed, variant]) if role == "rank" => {
            play(number.parse().unwrap(), seed.parse().unwrap(), variant);
        }
        other => panic!("{other:?}"),
    }
}

/// A rank's part of the script.
fn play(number: usize, seed: u64, variant: &str) {
    let script = Script::new(seed, variant, EndpointOptions::default().inject_size);
    let mut rank = Rank::open(number, &script.setup, listen_to_parent());
    rank.meet_all();
    for (nth, scene) in (0..).zip(&script.scenes) {
        // Of the scene and of the rank.
        let seed = script.seed << 16 | nth;
        let random = &mut Random::new(seed * RANKS as u64 + number as u64);
        let _guard = Place { seed: script.seed, nth, scene, number };
        match scene {
            Scene::Messages { messages, when } => rank.play_messages(messages, *when, random),
            Scene::Anybody { count } => rank.play_anybody(*count, random),
            Scene::Multi { count } => rank.play_multi(*count),
            Scene::Peeks { sizes } => rank.play_peeks(sizes, random),
            Scene::Cancels { count } => rank.play_cancels(*count, random),
            Scene::Levels { size } => rank.play_levels(*size),
            Scene::OneSided { operations } => rank.play_one_sided(operations, seed, random),
            Scene::Refused => rank.play_refused(),
            Scene::Atomics { rounds } => rank.play_atomics(*rounds, random),
            Scene::Sleeper { rank: sleeper } => rank.play_sleeper(*sleeper),
        }
    }
    say("over");
}

/// Says where a rank is that fails.
struct Place<'a> {
    seed: u64,
    nth: u64,
    scene: &'a Scene,
    number: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Place { seed, nth, scene, number } = self;
            eprintln!("seed {seed}, scene {nth}, rank {number}: {scene:?}");
        }
    }
}

/// Starts the ranks, and lets them go on when all have come to the same place.
fn perform(seed: u64, variant: &str) {
    let start = |number| Peer::start(&format!("rank {number} {seed} {variant}"));
    let mut ranks: Vec<Peer> = (0..RANKS).map(start).collect();
    let addresses: Vec<String> = ranks.iter_mut().map(|rank| rank.hear_after("at ")).collect();
    let all = addresses.join(" ");
    ranks.iter_mut().for_each(|rank| rank.order(&all));
    loop {
        let heard: Vec<String> = ranks.iter_mut().map(Peer::hear).collect();
        assert!(heard.iter().all(|place| *place == heard[0]), "seed {seed}: {heard:?}");
        if heard[0] == "over" {
            break;
        }
        ranks.iter_mut().for_each(|rank| rank.order("on"));
    }
    ranks.iter_mut().for_each(Peer::succeed);
}

#[test]
fn processes_play_one_script() {
    for seed in 0..scaled(3, 8, 200) {
        perform(seed, "any");
    }
}

/// What `FI_KESTREL_CMA=off` means: everything goes through chunks.
#[test]
fn the_kernel_copies_nothing_between_processes() {
    for seed in 1_000..1_000 + scaled(1, 2, 50) {
        perform(seed, "copied");
    }
}

/// Helpers drive, and one rank sleeps while the others reach it.
#[test]
fn helpers_drive_processes_that_make_no_call() {
    for seed in 2_000..2_000 + scaled(1, 3, 50) {
        perform(seed, "helped");
    }
}

use super::*;

const TOTAL: usize = 1000;

/// What each manner takes. Units: picoseconds a byte.
type Costs = [u64; MANNERS.len()];

/// Plays `count` operations, of which `batch` end at once; how many went each manner.
fn play(contest: &mut Contest, count: usize, batch: usize, costs: Costs) -> Costs {
    play_at(contest, TOTAL, count, batch, costs)
}

/// Plays `count` operations of `total` bytes, of which `batch` end at once; how many went each
/// manner.
fn play_at(contest: &mut Contest, total: usize, count: usize, batch: usize, costs: Costs) -> Costs {
    let mut went = Costs::default();
    let mut left = count;
    while left > 0 {
        let started: Vec<_> = (0..batch).map(|_| contest.choose(total, batch > 1)).collect();
        left = left.saturating_sub(batch);
        started.iter().for_each(|(manner, _)| went[*manner as usize] += 1);
        // They are served one after the other, and all of them are heard of with the last.
        let mut took = started.iter().map(|(manner, _)| costs[*manner as usize]).sum::<u64>();
        took *= (total / TOTAL) as u64;
        for run in started.into_iter().filter_map(|(_, run)| run) {
            contest.note(total, run, std::mem::take(&mut took));
        }
    }
    went
}

fn new() -> Contest {
    Contest::new(Discipline::Reads)
}

#[test]
fn the_fastest_manner_is_taken() {
    for batch in [1, 3, 16, 64] {
        for costs in [[50, 100], [100, 50], [200, 50]] {
            let went = play(&mut new(), 100_000, batch, costs);
            let fastest = costs.iter().position(|&cost| cost == 50).unwrap();
            assert!((92_000..100_000).contains(&went[fastest]), "{batch}, {costs:?}: {went:?}");
            assert!(went.iter().all(|&count| count > 0), "{batch}, {costs:?}: {went:?}");
        }
    }
}

#[test]
fn a_draw_is_direct() {
    assert!(play(&mut new(), 100_000, 1, [100, 98])[0] > 98_000);
}

#[test]
fn what_changes_is_noticed() {
    let mut contest = new();
    play(&mut contest, 100_000, 1, [100, 50]);
    play(&mut contest, 2 * VALID_MAX as usize, 1, [50, 100]);
    assert_eq!(play(&mut contest, 100, 1, [50, 100]), [100, 0]);
}

#[test]
fn outsiders_are_tried_once() {
    let mut contest = new();
    // Three rounds, and then as much of each trial as tells that one is over.
    let went = play(&mut contest, 100_000, 1, [100, 50]);
    assert!((27..27 + 3 * 11).contains(&went[0]), "{went:?}");
    // Nor are they tried where nothing is known but of other lengths.
    let went = play_at(&mut contest, 16 * TOTAL, 50, 1, [100, 50]);
    assert_eq!(went[0], 3);
    // Unless they are none there.
    let went = play_at(&mut contest, 256 * TOTAL, 200, 1, [40, 50]);
    assert!(went[0] > 100, "{went:?}");
}

#[test]
fn one_that_waited_does_not_decide() {
    let (mut trial, took) = (Trial::NEW, [100, 50]);
    let decided = (0..100).find_map(|at| {
        // The first two rounds have one each.
        let each = if at == 5 || at == 12 { 1_000_000 } else { took[trial.next as usize] };
        trial.note(trial.next, each, ROUND, true)
    });
    assert_eq!(decided, Some(took));
}

#[test]
fn a_peer_that_shares_its_core_does_not_decide() {
    let (mut trial, took) = (Trial::NEW, [50, 100]);
    let decided = (0..100).find_map(|at| {
        // It answers at once when it runs, and that is seldom; the slower manner is luckier.
        let waits = if trial.next == MANNERS[0] { at % 4 > 0 } else { at % 2 > 0 };
        let each = took[trial.next as usize] + if waits { 10_000 } else { 0 };
        trial.note(trial.next, each, ROUND, false)
    });
    assert_eq!(decided, Some(took));
}

/// Single operations, of which each takes what `took` says; how many went each manner.
fn watch(contest: &mut Contest, count: u64, took: impl Fn(Manner, u64) -> u64) -> Costs {
    let mut went = Costs::default();
    for at in 0..count {
        let (manner, run) = contest.choose_watched(TOTAL, false);
        went[manner as usize] += 1;
        run.into_iter().for_each(|run| contest.note(TOTAL, run, took(manner, at)));
    }
    went
}

#[test]
fn a_target_that_begins_to_compute_is_noticed_soon() {
    let mut contest = new();
    watch(&mut contest, 100_000, |manner, _| [100, 50][manner as usize]);
    let computes = |manner, _| [100, 5_000][manner as usize];
    watch(&mut contest, 200, computes);
    assert_eq!(watch(&mut contest, 400, computes), [400, 0]);
}

#[test]
fn a_surprise_now_and_then_is_none() {
    let mut contest = new();
    let took = |manner, at| [100, if at % 40 < 10 { 5_000 } else { 50 }][manner as usize];
    assert!(watch(&mut contest, 100_000, took)[0] < 100, "no more than without");
}

#[test]
fn surprises_in_vain_are_heeded_less_and_less() {
    let mut contest = new();
    // Both wait for a core most of the time.
    let waits = |at: u64| if at % 7 < 6 { 10_000 } else { 0 };
    let took = |manner, at| waits(at) + [100, 50][manner as usize];
    watch(&mut contest, 1_000_000, took);
    let went = watch(&mut contest, 100_000, took);
    assert!(went[0] < 500, "{went:?}");
    // But never not at all.
    watch(&mut contest, VALID_MAX.into(), |manner, _| [100, 5_000][manner as usize]);
    assert_eq!(watch(&mut contest, 100, took), [100, 0]);
}

#[test]
fn those_that_are_lost_are_not_waited_for() {
    let mut contest = new();
    for _ in 0..1000 {
        contest.choose(TOTAL, false);
    }
    assert!(play(&mut contest, 10_000, 1, [100, 50])[1] > 9000);
}

#[test]
fn lengths_do_not_touch_each_other() {
    let mut contest = new();
    play(&mut contest, 10_000, 1, [100, 50]);
    assert_eq!(contest.choose(TOTAL, false).0, Manner::Packets);
    assert_eq!(contest.choose(TOTAL * 16, false).0, Manner::Direct);
    assert_eq!(contest.choose(TOTAL, true).0, Manner::Direct);
    let all = [1, 2047, 2048, 4096, 5000, 8 << 20, 1 << 40].map(length_of);
    assert_eq!(all, [0, 0, 0, 1, 1, 12, 12]);
}

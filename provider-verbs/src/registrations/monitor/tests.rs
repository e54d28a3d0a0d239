use std::{
    ffi::c_void,
    ptr,
    sync::{
        MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, mremap_fixed, munmap,
};

use super::*;

const BYTES: usize = 16 * PAGE_BYTES;
const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A monitor of a test that is alone with the process's memory. None, with the reason, where the kernel
/// lets nobody watch it.
fn alone() -> Option<(MutexGuard<'static, ()>, MemoryMonitor)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let monitor = MemoryMonitor::start();
    Some((alone, monitor.inspect_err(|error| eprintln!("skipped: userfaultfd: {error}")).ok()?))
}

/// New memory, at `place` if that is free.
fn map(place: usize) -> Option<usize> {
    let fixed = if place == 0 { MapFlags::empty() } else { MapFlags::FIXED_NOREPLACE };
    let (place, flags) = (ptr::with_exposed_provenance_mut(place), MapFlags::PRIVATE | fixed);
    // SAFETY: nothing else is replaced.
    let start = unsafe { mmap_anonymous(place, BYTES, PROTECTION, flags) }.ok()?;
    // SAFETY: it is ours, and was mapped just now.
    unsafe { start.cast::<u8>().write_bytes(1, BYTES) };
    Some(start.expose_provenance())
}

/// What is done to memory, whether there is some at that place then, and how.
type Case = (&'static str, bool, fn(*mut c_void));

/// What is told of the memory at `start` to who has kept something there.
fn told(monitor: &MemoryMonitor, start: usize, position: &mut u64) -> (Caught, bool) {
    let mut gone = false;
    let caught = monitor.caught_up(start, position, &mut |range| {
        gone |= overlap(&range, &(start..start + BYTES));
    });
    (caught, gone)
}

#[test]
fn what_is_unmapped_moved_or_discarded_is_known_at_once() {
    let Some((_alone, monitor)) = alone() else {
        return;
    };
    let cases: [Case; 6] = [
        // SAFETY: here and below, the memory is this test's.
        ("unmapped", false, |start| unsafe { munmap(start, BYTES) }.unwrap()),
        ("mapped over", true, |start| {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: as above.
            let over = unsafe { mmap_anonymous(start, BYTES, PROTECTION, flags) }.unwrap();
            // SAFETY: as above.
            unsafe { over.cast::<u8>().write_bytes(2, BYTES) };
        }),
        ("discarded", true, |start| {
            let second = start.wrapping_byte_add(PAGE_BYTES);
            // SAFETY: as above.
            unsafe { madvise(second, PAGE_BYTES, Advice::LinuxDontNeed) }.unwrap();
        }),
        ("moved away", false, |start| {
            let to = ptr::with_exposed_provenance_mut(map(0).unwrap());
            // SAFETY: as above; what is at the other place is this test's as well.
            unsafe { mremap_fixed(start, BYTES, BYTES, MremapFlags::MAYMOVE, to) }.unwrap();
        }),
        ("moved away, and the place kept", true, |start| {
            let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
            let to = ptr::with_exposed_provenance_mut(map(0).unwrap());
            // SAFETY: as above.
            unsafe { mremap_fixed(start, BYTES, BYTES, flags, to) }.unwrap();
            // SAFETY: as above.
            unsafe { start.cast::<u8>().write_bytes(3, BYTES) };
        }),
        ("made shorter, and longer again", true, |start| {
            for (from, to) in [(BYTES, PAGE_BYTES), (PAGE_BYTES, BYTES)] {
                // SAFETY: as above.
                let same = unsafe { mremap(start, from, to, MremapFlags::empty()) };
                if same != Ok(start) {
                    eprintln!("somebody was faster: {same:?}");
                }
            }
        }),
    ];
    for (what, stays, change) in cases {
        let start = map(0).unwrap();
        let memory = start..start + BYTES;
        let mut position = monitor.position();
        assert!(settled(|| monitor.watch(&memory) == Watch::Yes), "{what}");
        let mut unchanged = || told(&monitor, start, &mut position) == (Caught::Up, false);
        assert!(settled(&mut unchanged), "{what}");
        change(ptr::with_exposed_provenance_mut(start));
        assert!(!unchanged(), "{what}: right after it");
        assert!(
            !stays || settled(|| monitor.watch(&(start..start + PAGE_BYTES)) == Watch::Yes),
            "{what}"
        );
        assert!(!stays || settled(&mut unchanged), "{what}: from then on");
    }
}

/// Whether that comes true when the thread has had a while.
fn settled(mut is_so: impl FnMut() -> bool) -> bool {
    (0..1_000).any(|turn| {
        thread::sleep(Duration::from_micros(turn));
        is_so()
    })
}

/// Many, or as many as there is time for: each waits for the thread, which others may hold up.
fn rounds() -> impl Iterator<Item = usize> {
    let start = Instant::now();
    (0..20_000).take_while(move |_| start.elapsed() < Duration::from_secs(3))
}

/// Whoever has discarded memory, and filled it again, is not believed to have done nothing, however late
/// the thread is with what it has taken.
#[test]
fn who_discards_memory_knows_it_when_the_call_returns() {
    let Some((_alone, monitor)) = alone() else {
        return;
    };
    let start = map(0).unwrap();
    let at: *mut c_void = ptr::with_exposed_provenance_mut(start);
    let memory = start..start + BYTES;
    let mut misled = 0;
    for _ in rounds() {
        let mut position = monitor.position();
        monitor.watch(&memory);
        // SAFETY: the memory is this test's.
        unsafe { madvise(at, PAGE_BYTES, Advice::LinuxDontNeed) }.unwrap();
        // SAFETY: as above.
        unsafe { at.cast::<u8>().write_volatile(1) };
        misled += u32::from(told(&monitor, start, &mut position) == (Caught::Up, false));
    }
    assert_eq!(misled, 0);
}

/// One thread unmaps memory, another maps new memory there as soon as it can, and looks: never is it
/// believed that nothing has happened.
#[test]
fn who_maps_memory_where_another_unmaps_it_is_not_misled() {
    let Some((_alone, monitor)) = alone() else {
        return;
    };
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let start = next.swap(0, Ordering::AcqRel);
                if start != 0 {
                    let start = ptr::with_exposed_provenance_mut(start);
                    // SAFETY: the other thread gives it away, and takes it when it is free.
                    unsafe { munmap(start, BYTES) }.unwrap();
                }
            }
        });
        let mut start = map(0).unwrap();
        let mut misled = 0;
        for _ in rounds() {
            let mut position = monitor.position();
            if monitor.watch(&(start..start + BYTES)) != Watch::Yes {
                continue;
            }
            next.store(start, Ordering::Release);
            let again = (0..1_000_000).find_map(|_| map(start));
            misled += u32::from(told(&monitor, start, &mut position) == (Caught::Up, false));
            start = again.or_else(|| map(0)).unwrap();
        }
        stop.store(true, Ordering::Release);
        assert_eq!(misled, 0);
    });
}

/// A thread's stack is memory like any other, and may be watched with what lies beside it.
#[test]
fn it_ends_though_its_own_stack_is_watched() {
    let Some((_alone, monitor)) = alone() else {
        return;
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    for (start, end) in ranges {
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        monitor.watch(&(address(start)..address(end)));
    }
    assert!(monitor.watched.lock().unwrap().ranges.len() > 1);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        drop(monitor);
        ended.send(())
    });
    end.recv_timeout(Duration::from_secs(60)).expect("the thread ends");
}

#[test]
fn ranges_are_taken_out_of_others() {
    let mut ranges = vec![0..10, 20..30];
    subtract(&mut ranges, &(10..20));
    assert_eq!(ranges, [0..10, 20..30]);
    subtract(&mut ranges, &(25..26));
    assert_eq!(ranges, [0..10, 20..25, 26..30]);
    subtract(&mut ranges, &(5..22));
    assert_eq!(ranges, [0..5, 26..30, 22..25]);
    subtract(&mut ranges, &(0..100));
    assert_eq!(ranges, [] as [Range<usize>; 0]);
}

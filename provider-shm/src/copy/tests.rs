//! Every routine against a plain copy, with guard bytes at both ends.

use super::*;
use proptest::prelude::*;

const GUARD: u8 = 0xA5;
const GUARD_BYTES: usize = 192;

/// Copies with `copy` at the given misalignments and checks every byte of the
/// destination, the guards included, against a plain copy.
fn check(copy: impl Fn(*mut u8, *const u8, usize), len: usize, skew_to: usize, skew_from: usize) {
    let source: Vec<u8> =
        (0..len + skew_from).map(|i| (i.wrapping_mul(167) >> 3) as u8 ^ i as u8).collect();
    let mut destination = vec![GUARD; GUARD_BYTES + skew_to + len + GUARD_BYTES];
    let start = GUARD_BYTES + skew_to;
    copy(destination[start..].as_mut_ptr(), source[skew_from..].as_ptr(), len);
    let mut expected = vec![GUARD; destination.len()];
    expected[start..start + len].copy_from_slice(&source[skew_from..]);
    assert!(
        destination == expected,
        "len {len}, destination skewed by {skew_to}, source by {skew_from}"
    );
}

fn check_all(len: usize, skew_to: usize, skew_from: usize) {
    for routine in Routine::available() {
        let function = routine.function().expect("available");
        // SAFETY: `check` passes ranges of `len` bytes; the routine is available.
        check(|to, from, len| unsafe { function(to, from, len) }, len, skew_to, skew_from);
    }
    let copier = Copier::choose("auto").expect("auto always works");
    // SAFETY: `check` passes ranges of `len` bytes, here and below.
    check(|to, from, len| unsafe { copier.copy_in(to, from, len) }, len, skew_to, skew_from);
    // SAFETY: as above.
    check(|to, from, len| unsafe { copier.copy_out(to, from, len) }, len, skew_to, skew_from);
    for routine in Routine::available() {
        let copier = Copier::of(routine, routine).expect("available");
        check_back(copier, len, skew_to, skew_from);
    }
}

/// As [`check`], of what hands lines back: the source stays what it is, too.
fn check_back(copier: Copier, len: usize, skew_to: usize, skew_from: usize) {
    let copy = |to: *mut u8, from: *const u8, len: usize| {
        // SAFETY: `check` passes a range of `len` bytes.
        let content = unsafe { std::slice::from_raw_parts(from, len) };
        let mut source = vec![GUARD; 128 + len];
        let start = source.as_ptr().align_offset(64) + skew_from % 64;
        source[start..start + len].copy_from_slice(content);
        let before = source.clone();
        // SAFETY: both ranges have `len` bytes, and are ours.
        unsafe { copier.copy_out_and_back(to, source[start..].as_mut_ptr(), len) };
        assert!(source == before, "{copier}: the source of {len} bytes changes");
    };
    check(copy, len, skew_to, skew_from);
}

#[test]
fn every_short_length_at_every_misalignment_of_a_word() {
    for len in 0..=2 * SMALL_BYTES_MAX + 3 {
        for (skew_to, skew_from) in [(0, 0), (1, 0), (0, 1), (3, 5), (7, 7), (31, 33), (63, 1)] {
            check_all(len, skew_to, skew_from);
        }
    }
}

#[test]
fn chunk_sizes_and_their_neighbours() {
    for power in 8..=18 {
        for len in [(1 << power) - 1, 1 << power, (1 << power) + 1] {
            check_all(len, 0, 0);
            check_all(len, 5, 60);
        }
    }
}

proptest! {
    #[test]
    fn any_length_and_misalignment(len in 0usize..20_000, skew_to in 0usize..128, skew_from in 0usize..128) {
        check_all(len, skew_to, skew_from);
    }

    #[test]
    fn small_copies(len in 0..=SMALL_BYTES_MAX, skew_to in 0usize..64, skew_from in 0usize..64) {
        // SAFETY: `check` passes ranges of `len` bytes, at most SMALL_BYTES_MAX.
        check(|to, from, len| unsafe { copy_small(to, from, len) }, len, skew_to, skew_from);
    }
}

#[test]
fn names_choose_and_errors_explain() {
    let both = Copier::choose("memcpy").expect("memcpy is everywhere");
    assert_eq!((both.routine_in(), both.routine_out()), (Routine::Memcpy, Routine::Memcpy));
    assert_eq!(both.to_string(), "memcpy/memcpy");
    let auto = Copier::choose("auto").expect("something is everywhere");
    let named = Copier::choose(&auto.to_string()).expect("what is chosen has a name");
    let routines = |copier: &Copier| (copier.routine_in(), copier.routine_out());
    assert_eq!(routines(&auto), routines(&named));
    for bad in ["", "fast", "memcpy/", "/memcpy", "memcpy/memcpy/memcpy", "AVX2"] {
        let error = Copier::choose(bad).expect_err(bad);
        assert!(matches!(&error, CopyError::Unknown { given, .. } if given == bad));
        assert!(error.to_string().contains("rep-movsb"), "{error}");
    }
    for routine in Routine::ALL {
        let chosen = Copier::choose(routine.name());
        assert_eq!(chosen.is_ok(), routine.is_available());
        if let Err(error) = chosen {
            assert!(
                matches!(error, CopyError::Unavailable { routine: named, .. } if named == routine)
            );
        }
    }
    assert!(Routine::available().contains(&Routine::Memcpy));
}

//! Moving payload into and out of a shared chunk.
//!
//! Sender and receiver copy at the same time, each on its own core, so what
//! counts is not how fast one copy runs alone but how cheaply a cache line
//! changes hands. A plain `memcpy` loses half of what the machine can do
//! there: see `docs/performance.md` and `kestrel-perf floor`, which measures
//! every routine below against every other. Stores around the caches and
//! `cldemote` were measured too, reach half of the others, and left again.
//!
//! A [`Copier`] is chosen once, at start-up, from what the CPU has, or by name.
//! Short lengths never reach it: [`copy_small`] is inlined at the caller.

mod back;
mod routines;
#[cfg(test)]
mod tests;

use std::fmt;

use back::CopyBackFunction;

/// Copies `len` bytes from `source` to `destination`, which do not overlap.
///
/// # Safety
/// `source` is readable and `destination` writable for `len` bytes, and the
/// CPU has the features that the routine was compiled for: take the function
/// from a [`Copier`] or [`Routine::function`], which check that.
pub type CopyFunction = unsafe fn(destination: *mut u8, source: *const u8, len: usize);

/// AMD's first family whose `rep movsb` empties chunks well.
const ZEN_5: u32 = 26;
/// AMD's first family with the caches of those that were measured.
const ZEN_3: u32 = 25;

/// Whether a line may be overwritten faster if the other side, which has read it, wrote to it as well:
/// the copy floor tries that, too.
pub fn may_gain_by_lines_back() -> bool {
    matches!(routines::amd_family(), Some(ZEN_3..))
}

/// Whether lanes gain by that. On Zen 5 they lose: what must be written to is emptied in pieces that are
/// too short for `rep movsb` (docs/performance.md).
pub fn gains_by_lines_back() -> bool {
    matches!(routines::amd_family(), Some(ZEN_3..ZEN_5))
}

/// Lengths up to this are worth no call: [`Copier`] serves them inline.
pub const SMALL_BYTES_MAX: usize = 512;

/// One way to copy, with one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Routine {
    /// What the compiler calls: `ptr::copy_nonoverlapping`.
    Memcpy,
    /// `rep movsb`: microcode that claims whole lines without reading them first.
    RepMovsb,
    /// 32-byte loads and stores, four at a time.
    Avx2,
    /// 64-byte loads and stores, four at a time.
    Avx512,
    /// `Avx512` up to 8 KiB, `RepMovsb` beyond.
    Graded,
}

/// Why a copy routine could not be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    #[error(
        "there is no copy routine {given:?}; known: auto, {known} (or IN/OUT, as in rep-movsb/avx512)"
    )]
    Unknown { given: String, known: String },
    #[error("the copy routine {routine} needs {feature}, which this CPU does not have")]
    Unavailable { routine: Routine, feature: &'static str },
}

impl Routine {
    /// Every routine, whether this CPU has it or not.
    pub const ALL: [Routine; 5] =
        [Routine::Memcpy, Routine::RepMovsb, Routine::Avx2, Routine::Avx512, Routine::Graded];

    /// The name that configuration and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Routine::Memcpy => "memcpy",
            Routine::RepMovsb => "rep-movsb",
            Routine::Avx2 => "avx2",
            Routine::Avx512 => "avx512",
            Routine::Graded => "graded",
        }
    }

    /// The CPU feature that the routine needs, in words.
    const fn feature(self) -> &'static str {
        match self {
            Routine::Memcpy => "nothing",
            Routine::RepMovsb => "ERMS (enhanced rep movsb)",
            Routine::Avx2 => "AVX2",
            Routine::Avx512 => "AVX-512F",
            Routine::Graded => "ERMS (enhanced rep movsb) and AVX-512F",
        }
    }

    /// The routines that this CPU has.
    pub fn available() -> Vec<Routine> {
        Routine::ALL.into_iter().filter(|routine| routine.is_available()).collect()
    }

    /// Whether this CPU has what the routine needs.
    pub fn is_available(self) -> bool {
        routines::lookup(self).is_some()
    }

    /// The function behind the name.
    ///
    /// # Errors
    /// [`CopyError::Unavailable`] if this CPU lacks a feature that it needs.
    pub fn function(self) -> Result<CopyFunction, CopyError> {
        routines::lookup(self)
            .ok_or(CopyError::Unavailable { routine: self, feature: self.feature() })
    }

    /// Whether the routine can hand the lines of its source back as it reads them, on this CPU.
    pub fn hands_back(self) -> bool {
        self.back().is_some()
    }

    /// The function that does, if the routine has one.
    fn back(self) -> Option<CopyBackFunction> {
        routines::lookup_back(self)
    }

    fn from_name(name: &str) -> Option<Routine> {
        Routine::ALL.into_iter().find(|routine| routine.name() == name)
    }
}

impl fmt::Display for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The pair of routines in use: one into shared memory, one out of it.
#[derive(Clone, Copy, Debug)]
pub struct Copier {
    /// Private memory into a shared chunk, any length.
    into_shared: CopyFunction,
    /// A shared chunk into private memory, any length.
    out_of_shared: CopyFunction,
    /// The same, which hands lines back: none if the routine is used piece by piece for that.
    out_and_back: Option<CopyBackFunction>,
    routine_in: Routine,
    routine_out: Routine,
}

impl Copier {
    /// Chooses by name: `auto`, one routine for both directions, or `IN/OUT`.
    ///
    /// # Errors
    /// [`CopyError::Unknown`] for a name that does not exist,
    /// [`CopyError::Unavailable`] for one that this CPU cannot run.
    pub fn choose(choice: &str) -> Result<Copier, CopyError> {
        if choice == "auto" {
            return Ok(Copier::best());
        }
        let (name_in, name_out) = choice.split_once('/').unwrap_or((choice, choice));
        let parse = |name: &str| {
            Routine::from_name(name).ok_or_else(|| CopyError::Unknown {
                given: choice.to_owned(),
                known: Routine::ALL.map(Routine::name).join(", "),
            })
        };
        Copier::of(parse(name_in)?, parse(name_out)?)
    }

    /// This pair of routines.
    ///
    /// # Errors
    /// [`CopyError::Unavailable`] if this CPU cannot run one of them.
    pub fn of(routine_in: Routine, routine_out: Routine) -> Result<Copier, CopyError> {
        Ok(Copier {
            into_shared: routine_in.function()?,
            out_of_shared: routine_out.function()?,
            out_and_back: routine_out.back(),
            routine_in,
            routine_out,
        })
    }

    /// What measured best on machines of this kind.
    ///
    /// In: `rep movsb` where it is fast, since its microcode takes ownership of
    /// a line that it will overwrite whole without fetching the old content
    /// from the peer's cache. Out: the widest plain loads; on AMD's Zen 5 only as long as they are few,
    /// since its microcode runs further ahead of what the peer's cache has to give. On Zen 4 it
    /// gains nothing, and takes twice as long for minutes at a time, which vector loads never do.
    fn best() -> Copier {
        let first = |wanted: &[Routine]| {
            wanted.iter().copied().find(|routine| routine.is_available()).unwrap_or(Routine::Memcpy)
        };
        let routine_in = first(&[Routine::RepMovsb, Routine::Avx512, Routine::Avx2]);
        let routine_out = match routines::amd_family() {
            Some(ZEN_5..) => first(&[Routine::Graded, Routine::Avx512, Routine::Avx2]),
            _ => first(&[Routine::Avx512, Routine::Avx2]),
        };
        Copier::of(routine_in, routine_out).expect("only available routines were considered")
    }

    /// The routine that fills a shared chunk.
    pub const fn routine_in(&self) -> Routine {
        self.routine_in
    }

    /// The routine that empties one.
    pub const fn routine_out(&self) -> Routine {
        self.routine_out
    }

    /// Copies private memory into a shared chunk.
    ///
    /// Cost: no system call, no allocation; one indirect call beyond
    /// [`SMALL_BYTES_MAX`] bytes.
    /// # Safety
    /// `source` is readable and `destination` writable for `len` bytes, and
    /// the two do not overlap. The peer may write the destination meanwhile:
    /// it then finds what it deserves there.
    #[inline(always)]
    pub unsafe fn copy_in(&self, destination: *mut u8, source: *const u8, len: usize) {
        if len <= SMALL_BYTES_MAX {
            // SAFETY: the caller vouches for both ranges, and the length was just checked.
            unsafe { copy_small(destination, source, len) }
        } else {
            // SAFETY: the caller vouches for both ranges; `of` checked the CPU.
            unsafe { (self.into_shared)(destination, source, len) }
        }
    }

    /// Copies a shared chunk into private memory.
    ///
    /// Cost: as [`Copier::copy_in`].
    /// # Safety
    /// As [`Copier::copy_in`]. The bytes may change while they are read: the
    /// result is some mixture of what was there, and nothing else happens.
    #[inline(always)]
    pub unsafe fn copy_out(&self, destination: *mut u8, source: *const u8, len: usize) {
        if len <= SMALL_BYTES_MAX {
            // SAFETY: the caller vouches for both ranges, and the length was just checked.
            unsafe { copy_small(destination, source, len) }
        } else {
            // SAFETY: the caller vouches for both ranges; `of` checked the CPU.
            unsafe { (self.out_of_shared)(destination, source, len) }
        }
    }

    /// Copies a shared chunk into private memory, and writes to each of its lines, what is there: the other
    /// side, which overwrites them next, gets them as those of whoever wrote them last.
    ///
    /// Cost: as [`Copier::copy_in`]; the lines cost little beside their copy.
    /// # Safety
    /// As [`Copier::copy_out`]; `source` is writable, too.
    #[inline]
    pub unsafe fn copy_out_and_back(&self, destination: *mut u8, source: *mut u8, len: usize) {
        // SAFETY: the caller vouches for both ranges; `of` checked the CPU.
        unsafe {
            if len <= SMALL_BYTES_MAX {
                copy_small(destination, source, len);
                back::hand_back(source, len);
            } else if let Some(copy) = self.out_and_back {
                copy(destination, source, len);
            } else {
                back::in_pieces(self.out_of_shared, destination, source, len);
            }
        }
    }
}

impl fmt::Display for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.routine_in, self.routine_out)
    }
}

/// Copies up to [`SMALL_BYTES_MAX`] bytes, inline, with few branches.
///
/// Each step copies two pieces that may overlap in the middle, so that every
/// length of a class takes the same instructions.
///
/// # Safety
/// `source` is readable and `destination` writable for `len` bytes, the two do
/// not overlap, and `len` is at most [`SMALL_BYTES_MAX`].
#[inline(always)]
pub unsafe fn copy_small(destination: *mut u8, source: *const u8, len: usize) {
    debug_assert!(len <= SMALL_BYTES_MAX);
    // SAFETY: in every branch both pieces start at or after the first byte and
    // end at or before byte `len`, for which the caller vouches.
    unsafe {
        match len {
            0 => {}
            1..4 => {
                let (first, middle, last) = (*source, *source.add(len / 2), *source.add(len - 1));
                *destination = first;
                *destination.add(len / 2) = middle;
                *destination.add(len - 1) = last;
            }
            4..8 => copy_ends::<u32>(destination, source, len),
            8..16 => copy_ends::<u64>(destination, source, len),
            16..32 => copy_ends::<[u64; 2]>(destination, source, len),
            32..=64 => copy_ends::<[u64; 4]>(destination, source, len),
            _ => {
                let mut done = 0;
                while done + 64 < len {
                    copy_piece::<[u64; 8]>(destination.add(done), source.add(done));
                    done += 64;
                }
                copy_piece::<[u64; 8]>(destination.add(len - 64), source.add(len - 64));
            }
        }
    }
}

/// Copies the first and the last `size_of::<T>()` bytes of a range of `len`.
///
/// # Safety
/// Both ranges hold `len` bytes, and `len` is at least `size_of::<T>()`.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(destination: *mut u8, source: *const u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: `last + size_of::<T>()` is `len`, within both ranges.
    unsafe {
        let (head, tail) =
            (source.cast::<T>().read_unaligned(), source.add(last).cast::<T>().read_unaligned());
        destination.cast::<T>().write_unaligned(head);
        destination.add(last).cast::<T>().write_unaligned(tail);
    }
}

/// # Safety
/// Both ranges hold `size_of::<T>()` bytes.
#[inline(always)]
unsafe fn copy_piece<T: Copy>(destination: *mut u8, source: *const u8) {
    // SAFETY: the caller vouches for both ranges; no alignment is assumed.
    unsafe { destination.cast::<T>().write_unaligned(source.cast::<T>().read_unaligned()) }
}

//! The routines themselves, each behind the CPU feature that it needs.

use super::{CopyBackFunction, CopyFunction, Routine};

/// The function of a routine, if this CPU can run it.
pub(super) fn lookup(routine: Routine) -> Option<CopyFunction> {
    match routine {
        Routine::Memcpy => Some(memcpy),
        #[cfg(target_arch = "x86_64")]
        other => x86::lookup(other),
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}

/// The function of a routine that hands the lines of its source back as it reads them, if it has one.
pub(super) fn lookup_back(routine: Routine) -> Option<CopyBackFunction> {
    #[cfg(target_arch = "x86_64")]
    return x86::lookup_back(routine);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// The family of an AMD CPU: 25 is Zen 3 and 4, 26 is Zen 5.
pub(super) fn amd_family() -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    return x86::amd_family();
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// # Safety
/// As [`CopyFunction`].
unsafe fn memcpy(destination: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller vouches for both ranges, which do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(source, destination, len) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::{
        SMALL_BYTES_MAX,
        back::{hand_back, hand_back_from, touch},
        copy_small,
    };
    use super::{CopyBackFunction, CopyFunction, Routine};
    use kestrel_core::prefetch::LINE_BYTES;
    use std::arch::{asm, x86_64::*};

    pub(super) fn lookup(routine: Routine) -> Option<CopyFunction> {
        let avx2 = is_x86_feature_detected!("avx2");
        let avx512 = is_x86_feature_detected!("avx512f");
        match routine {
            Routine::Memcpy => None,
            Routine::RepMovsb => has_erms().then_some(rep_movsb as CopyFunction),
            Routine::Avx2 => avx2.then_some(avx2_copy as CopyFunction),
            Routine::Avx512 => avx512.then_some(avx512_copy as CopyFunction),
            Routine::Graded => (avx512 && has_erms()).then_some(graded as CopyFunction),
        }
    }

    pub(super) fn lookup_back(routine: Routine) -> Option<CopyBackFunction> {
        let function = match routine {
            Routine::Avx2 => avx2_copy_and_back as CopyBackFunction,
            Routine::Avx512 => avx512_copy_and_back,
            _ => return None,
        };
        lookup(routine).map(|_| function)
    }

    pub(super) fn amd_family() -> Option<u32> {
        let CpuidResult { ebx, ecx, edx, .. } = __cpuid(0);
        let is_amd = [ebx, edx, ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD";
        // CPUID leaf 1, EAX: the family in bits 8 to 11, and from 15 on what bits 20 to 27 add.
        let signature = __cpuid(1).eax;
        let (base, more) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
        is_amd.then_some(if base == 0xf { base + more } else { base })
    }

    /// CPUID leaf 7: the extended features.
    fn leaf_7() -> Option<CpuidResult> {
        (__get_cpuid_max(0).0 >= 7).then(|| __cpuid_count(7, 0))
    }

    /// ERMS, CPUID.7.0:EBX bit 9: without it `rep movsb` moves a byte a cycle.
    fn has_erms() -> bool {
        leaf_7().is_some_and(|leaf| leaf.ebx & (1 << 9) != 0)
    }

    /// # Safety
    /// As [`CopyFunction`].
    unsafe fn rep_movsb(destination: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the ABI keeps the direction flag clear, so exactly `len`
        // bytes are read and written upwards, for which the caller vouches.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") destination => _, inout("rsi") source => _,
                options(nostack, preserves_flags));
        }
    }

    /// Beyond this `rep movsb` empties a chunk faster than vector loads do.
    const VECTORS_MAX: usize = 8 << 10;

    /// # Safety
    /// As [`CopyFunction`]; the CPU has AVX-512F.
    unsafe fn graded(destination: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the caller vouches for both ranges and the CPU.
        unsafe {
            if len > VECTORS_MAX {
                rep_movsb(destination, source, len)
            } else {
                avx512_copy(destination, source, len)
            }
        }
    }

    /// A loop of vector copies: unaligned loads, stores aligned to a vector,
    /// four vectors a turn; the head and the tail are one vector each that
    /// overlaps what the loop wrote. The second function hands the lines that it has read back.
    macro_rules! vector_copy {
        ($name:ident, $name_back:ident, $body:ident, $feature:literal, $bytes:literal,
         $load:ident, $store_unaligned:ident, $store:ident) => {
            /// # Safety
            /// As [`CopyFunction`]; the CPU has the feature.
            #[target_feature(enable = $feature)]
            unsafe fn $name(destination: *mut u8, source: *const u8, len: usize) {
                // SAFETY: the caller's. Nothing is written to the source.
                unsafe { $body::<false>(destination, source.cast_mut(), len) }
            }

            /// # Safety
            /// As [`CopyBackFunction`]; the CPU has the feature.
            #[target_feature(enable = $feature)]
            unsafe fn $name_back(destination: *mut u8, source: *mut u8, len: usize) {
                // SAFETY: the caller's.
                unsafe { $body::<true>(destination, source, len) }
            }

            /// # Safety
            /// As [`CopyFunction`], and [`CopyBackFunction`] with `BACK`; the CPU has the feature.
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn $body<const BACK: bool>(destination: *mut u8, source: *mut u8, len: usize) {
                if len <= SMALL_BYTES_MAX {
                    // SAFETY: the caller vouches for both ranges, and the length was just checked.
                    return unsafe {
                        copy_small(destination, source, len);
                        if BACK {
                            hand_back(source, len);
                        }
                    };
                }
                // SAFETY: `done` starts below `len`, grows to at most `len`,
                // and each step copies only where `done + step <= len`; head
                // and tail are one vector, which `len > SMALL_BYTES_MAX` holds.
                // From the first step on `destination + done` is aligned. `line`, the next line's
                // start, is at most a line beyond `done`, so that a step has read what it touches.
                unsafe {
                    $store_unaligned(destination.cast(), $load(source.cast()));
                    let mut done = $bytes - (destination as usize & ($bytes - 1));
                    let mut line = source.align_offset(LINE_BYTES);
                    if BACK && line > 0 {
                        touch(source);
                    }
                    while done + 4 * $bytes <= len {
                        let (from, to) = (source.add(done), destination.add(done));
                        let a = $load(from.cast());
                        let b = $load(from.add($bytes).cast());
                        let c = $load(from.add(2 * $bytes).cast());
                        let d = $load(from.add(3 * $bytes).cast());
                        $store(to.cast(), a);
                        $store(to.add($bytes).cast(), b);
                        $store(to.add(2 * $bytes).cast(), c);
                        $store(to.add(3 * $bytes).cast(), d);
                        done += 4 * $bytes;
                        if BACK {
                            for nth in 0..4 * $bytes / LINE_BYTES {
                                touch(source.add(line + nth * LINE_BYTES));
                            }
                            line += 4 * $bytes;
                        }
                    }
                    while done + $bytes <= len {
                        $store(destination.add(done).cast(), $load(source.add(done).cast()));
                        done += $bytes;
                    }
                    $store_unaligned(
                        destination.add(len - $bytes).cast(),
                        $load(source.add(len - $bytes).cast()),
                    );
                    if BACK {
                        hand_back_from(source, line, len);
                    }
                }
            }
        };
    }

    vector_copy!(
        avx2_copy,
        avx2_copy_and_back,
        avx2_body,
        "avx2",
        32,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_store_si256
    );
    vector_copy!(
        avx512_copy,
        avx512_copy_and_back,
        avx512_body,
        "avx512f",
        64,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_store_si512
    );
}

//! x87's extended precision: C's `long double` on x86-64, for which Rust has no
//! type. Ten bytes count; the six behind them are padding and stay as they are.

use std::{
    arch::asm,
    cmp::Ordering,
    ops::{Add, Mul, Sub},
};

/// A number of 80 bits in 16 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct LongDouble([u8; 16]);

impl LongDouble {
    /// 0.
    pub const ZERO: LongDouble = LongDouble([0; 16]);
    /// 1: the leading bit of the significand, and an exponent of 0.
    pub const ONE: LongDouble =
        LongDouble([0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f, 0, 0, 0, 0, 0, 0]);
}

/// Loads both numbers, operates, and stores over the first one's ten bytes.
macro_rules! x87 {
    ($first:expr, $second:expr, $instruction:literal) => {{
        let mut result: LongDouble = $first;
        let second: LongDouble = $second;
        // SAFETY: both numbers are on the stack and ten bytes or more long; every register
        // of the x87 stack is declared, and it is as empty afterwards as before.
        unsafe {
            asm!(
                "fld tbyte ptr [{result}]",
                "fld tbyte ptr [{second}]",
                $instruction,
                "fstp tbyte ptr [{result}]",
                result = in(reg) result.0.as_mut_ptr(),
                second = in(reg) second.0.as_ptr(),
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        result
    }};
}

impl Add for LongDouble {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        x87!(self, other, "faddp st(1), st")
    }
}

impl Sub for LongDouble {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        // -1 times the other, so that no assembler's idea of which operand is
        // subtracted from which can matter.
        let mut minus_one = LongDouble::ONE;
        minus_one.0[9] |= 0x80;
        self + other * minus_one
    }
}

impl Mul for LongDouble {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        x87!(self, other, "fmulp st(1), st")
    }
}

impl PartialEq for LongDouble {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for LongDouble {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let (above, below, unordered): (u8, u8, u8);
        // SAFETY: as in `x87!`; the comparison pops the first number, and the last
        // instruction the second.
        unsafe {
            asm!(
                "fld tbyte ptr [{second}]",
                "fld tbyte ptr [{first}]",
                "fcomip st, st(1)",
                "seta {above}",
                "setb {below}",
                "setp {unordered}",
                "fstp st(0)",
                first = in(reg) self.0.as_ptr(),
                second = in(reg) other.0.as_ptr(),
                above = out(reg_byte) above,
                below = out(reg_byte) below,
                unordered = out(reg_byte) unordered,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack, readonly),
            );
        }
        match (above != 0, below != 0, unordered != 0) {
            (_, _, true) => None,
            (true, _, _) => Some(Ordering::Greater),
            (_, true, _) => Some(Ordering::Less),
            _ => Some(Ordering::Equal),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A whole number: its leading bit goes to the top of the significand.
    fn number(value: i64) -> LongDouble {
        let Some(highest) = value.unsigned_abs().checked_ilog2() else {
            return LongDouble::ZERO;
        };
        let significand = value.unsigned_abs() << (63 - highest);
        let sign = if value < 0 { 0x8000 } else { 0 };
        let exponent = (0x3fff + highest as u16) | sign;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&significand.to_le_bytes());
        bytes[8..10].copy_from_slice(&exponent.to_le_bytes());
        LongDouble(bytes)
    }

    #[test]
    fn whole_numbers_count_as_ever() {
        assert_eq!(number(1).0, LongDouble::ONE.0);
        // More bits than a double holds.
        let odd = (1 << 60) + 1;
        for a in [0, 1, -1, 5, -77, 1 << 40, odd] {
            for b in [0, 1, -3, 10, 12345] {
                assert_eq!((number(a) + number(b)).0, number(a + b).0, "{a} + {b}");
                assert_eq!(number(a) - number(b), number(a - b), "{a} - {b}");
                assert_eq!(number(a).partial_cmp(&number(b)), Some(a.cmp(&b)), "{a} and {b}");
                if a < odd {
                    assert_eq!(number(a) * number(b), number(a * b), "{a} * {b}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_has_no_order() {
        let mut nan = LongDouble::ONE;
        (nan.0[7], nan.0[8], nan.0[9]) = (0xc0, 0xff, 0x7f);
        assert_eq!(nan.partial_cmp(&nan), None);
        assert_ne!(nan + LongDouble::ONE, LongDouble::ONE);
        let mut padded = number(2);
        padded.0[15] = 9;
        assert_eq!((padded + number(3)).0[15], 9, "padding stays");
        assert_eq!(padded, number(2), "padding does not count");
    }
}

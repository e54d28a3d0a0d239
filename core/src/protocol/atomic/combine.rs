//! What each operation makes of a value: plain arithmetic, no memory.

use super::AtomicOperation;
#[cfg(target_arch = "x86_64")]
use super::long_double::LongDouble;

/// A value that atomic operations work on.
pub trait Value: Copy {
    /// What `operation` makes of `current`, or none to leave it as it is.
    fn combine(
        operation: AtomicOperation,
        current: Self,
        operand: Self,
        compare: Self,
    ) -> Option<Self>;
}

/// A complex number: real part first.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Complex<F> {
    /// The real part.
    pub real: F,
    /// The imaginary part.
    pub imaginary: F,
}

/// What any type can do that knows 0, 1, sums and products.
macro_rules! arithmetic {
    ($operation:ident, $current:ident, $operand:ident, $compare:ident,
     $sum:expr, $product:expr, $true:expr, $zero:expr, $rest:expr) => {{
        let truth = |value| if value { $true } else { $zero };
        let (left, right) = ($current != $zero, $operand != $zero);
        match $operation {
            AtomicOperation::Sum => Some($sum),
            AtomicOperation::Prod => Some($product),
            AtomicOperation::Lor => Some(truth(left || right)),
            AtomicOperation::Land => Some(truth(left && right)),
            AtomicOperation::Lxor => Some(truth(left != right)),
            AtomicOperation::Read => None,
            AtomicOperation::Write => Some($operand),
            AtomicOperation::Cswap => ($compare == $current).then_some($operand),
            AtomicOperation::CswapNe => ($compare != $current).then_some($operand),
            _ => $rest,
        }
    }};
}

/// What any type can do that has an order, in the words of fi_atomic(3): "if
/// (buf\[i\] < addr\[i\]) addr\[i\] = buf\[i\]", and so what is not a number changes nothing.
#[inline(always)]
fn ordered<V: Copy + PartialOrd>(
    operation: AtomicOperation,
    current: V,
    operand: V,
    compare: V,
) -> Option<V> {
    let swap = match operation {
        AtomicOperation::Min => operand < current,
        AtomicOperation::Max => operand > current,
        AtomicOperation::CswapLe => compare <= current,
        AtomicOperation::CswapLt => compare < current,
        AtomicOperation::CswapGe => compare >= current,
        AtomicOperation::CswapGt => compare > current,
        // The call was checked: nothing else comes here.
        _ => false,
    };
    swap.then_some(operand)
}

macro_rules! integers {
    ($($kind:ty),*) => {
        $(impl Value for $kind {
            #[inline(always)]
            fn combine(
                operation: AtomicOperation,
                current: Self,
                operand: Self,
                compare: Self,
            ) -> Option<Self> {
                arithmetic!(operation, current, operand, compare,
                    current.wrapping_add(operand), current.wrapping_mul(operand), 1, 0,
                    match operation {
                        AtomicOperation::Bor => Some(current | operand),
                        AtomicOperation::Band => Some(current & operand),
                        AtomicOperation::Bxor => Some(current ^ operand),
                        AtomicOperation::Mswap => {
                            Some((operand & compare) | (current & !compare))
                        }
                        _ => ordered(operation, current, operand, compare),
                    })
            }
        })*
    };
}

macro_rules! floats {
    ($($kind:ty: $zero:expr, $one:expr;)*) => {
        $(impl Value for $kind {
            #[inline(always)]
            fn combine(
                operation: AtomicOperation,
                current: Self,
                operand: Self,
                compare: Self,
            ) -> Option<Self> {
                arithmetic!(operation, current, operand, compare,
                    current + operand, current * operand, $one, $zero,
                    ordered(operation, current, operand, compare))
            }
        }

        impl Value for Complex<$kind> {
            #[inline(always)]
            fn combine(
                operation: AtomicOperation,
                current: Self,
                operand: Self,
                compare: Self,
            ) -> Option<Self> {
                const ZERO: Complex<$kind> = Complex { real: $zero, imaginary: $zero };
                const ONE: Complex<$kind> = Complex { real: $one, imaginary: $zero };
                let Complex { real: a, imaginary: b } = current;
                let Complex { real: c, imaginary: d } = operand;
                arithmetic!(operation, current, operand, compare,
                    Complex { real: a + c, imaginary: b + d },
                    Complex { real: a * c - b * d, imaginary: a * d + b * c }, ONE, ZERO, None)
            }
        })*
    };
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128);
floats! {
    f32: 0.0, 1.0;
    f64: 0.0, 1.0;
}
#[cfg(target_arch = "x86_64")]
floats! {
    LongDouble: LongDouble::ZERO, LongDouble::ONE;
}

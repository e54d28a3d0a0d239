//! Which operations there are, on which types, in which form.

use super::ATOMIC_BYTES_MAX;

macro_rules! numbered {
    ($(#[$doc:meta])* $kind:ident: $($(#[$each:meta])* $variant:ident = $value:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $kind {
            $(#[doc = concat!("Number ", $value, ".")] $(#[$each])* $variant = $value,)*
        }

        impl $kind {
            /// All there are.
            pub const ALL: &'static [$kind] = &[$($kind::$variant,)*];

            /// The one with this number.
            pub const fn from_number(number: u32) -> Option<$kind> {
                match number {
                    $($value => Some($kind::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// The type of an element, with libfabric's number (`enum fi_datatype`).
    Datatype:
    Int8 = 0,
    Uint8 = 1,
    Int16 = 2,
    Uint16 = 3,
    Int32 = 4,
    Uint32 = 5,
    Int64 = 6,
    Uint64 = 7,
    Float = 8,
    Double = 9,
    FloatComplex = 10,
    DoubleComplex = 11,
    /// x87's 80 bits, in 16 bytes: on x86-64 alone.
    LongDouble = 12,
    /// Two of them: on x86-64 alone.
    LongDoubleComplex = 13,
    Int128 = 14,
    Uint128 = 15,
}

numbered! {
    /// What is done, with libfabric's number (`enum fi_op`).
    AtomicOperation:
    Min = 0,
    Max = 1,
    Sum = 2,
    Prod = 3,
    Lor = 4,
    Land = 5,
    Bor = 6,
    Band = 7,
    Lxor = 8,
    Bxor = 9,
    Read = 10,
    Write = 11,
    Cswap = 12,
    CswapNe = 13,
    CswapLe = 14,
    CswapLt = 15,
    CswapGe = 16,
    CswapGt = 17,
    Mswap = 18,
}

numbered! {
    /// Which family of calls.
    Form:
    /// `fi_atomic`: nothing comes back.
    Base = 0,
    /// `fi_fetch_atomic`: the values from before come back.
    Fetch = 1,
    /// `fi_compare_atomic`: the same, after a comparison.
    Compare = 2,
}

impl Datatype {
    /// Units: bytes.
    #[inline(always)]
    pub const fn size(self) -> usize {
        match self {
            Datatype::Int8 | Datatype::Uint8 => 1,
            Datatype::Int16 | Datatype::Uint16 => 2,
            Datatype::Int32 | Datatype::Uint32 | Datatype::Float => 4,
            Datatype::Int64 | Datatype::Uint64 | Datatype::Double | Datatype::FloatComplex => 8,
            Datatype::Int128
            | Datatype::Uint128
            | Datatype::DoubleComplex
            | Datatype::LongDouble => 16,
            Datatype::LongDoubleComplex => 32,
        }
    }

    const fn is_integer(self) -> bool {
        !matches!(self, Datatype::Float | Datatype::Double | Datatype::LongDouble)
            && !self.is_complex()
    }

    const fn is_complex(self) -> bool {
        matches!(
            self,
            Datatype::FloatComplex | Datatype::DoubleComplex | Datatype::LongDoubleComplex
        )
    }

    const fn is_long_double(self) -> bool {
        matches!(self, Datatype::LongDouble | Datatype::LongDoubleComplex)
    }
}

impl AtomicOperation {
    const fn needs_bits(self) -> bool {
        use AtomicOperation::{Band, Bor, Bxor, Mswap};
        matches!(self, Bor | Band | Bxor | Mswap)
    }

    const fn needs_order(self) -> bool {
        use AtomicOperation::{CswapGe, CswapGt, CswapLe, CswapLt, Max, Min};
        matches!(self, Min | Max | CswapLe | CswapLt | CswapGe | CswapGt)
    }
}

/// An operation on a type, in a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicCall {
    /// What is done.
    pub operation: AtomicOperation,
    /// To elements of which type.
    pub datatype: Datatype,
    /// What comes back.
    pub form: Form,
}

impl AtomicCall {
    /// Whether this processor does it.
    pub const fn is_supported(self) -> bool {
        self.exists() && (cfg!(target_arch = "x86_64") || !self.datatype.is_long_double())
    }

    /// Whether this exists: fi_atomic(3) lists the operations of each form, and
    /// an operation must make sense for its type.
    const fn exists(self) -> bool {
        let AtomicCall { operation, datatype, form } = self;
        let number = operation as u8;
        let of_form = match form {
            Form::Base => number <= AtomicOperation::Bxor as u8 || self.is_write(),
            Form::Fetch => number <= AtomicOperation::Write as u8,
            Form::Compare => number >= AtomicOperation::Cswap as u8,
        };
        let makes_sense = !(operation.needs_bits() && !datatype.is_integer()
            || operation.needs_order() && datatype.is_complex());
        of_form && makes_sense
    }

    const fn is_write(self) -> bool {
        matches!(self.operation, AtomicOperation::Write)
    }

    /// How many elements one operation may have; none if it is not supported.
    /// Reference: fi_atomic(3), `fi_atomicvalid` and its relatives.
    pub const fn count_max(self) -> Option<usize> {
        if !self.is_supported() {
            return None;
        }
        let operands = if matches!(self.form, Form::Compare) { 2 } else { 1 };
        Some(ATOMIC_BYTES_MAX / operands / self.datatype.size())
    }

    /// Bytes of operands that travel for `length` bytes of elements.
    #[inline(always)]
    pub const fn payload(self, length: usize) -> usize {
        match self.form {
            Form::Compare => 2 * length,
            _ if matches!(self.operation, AtomicOperation::Read) => 0,
            _ => length,
        }
    }

    /// Bytes of first operands for `length` bytes of elements.
    #[inline(always)]
    pub const fn operands(self, length: usize) -> usize {
        if matches!(self.operation, AtomicOperation::Read) { 0 } else { length }
    }

    /// As part of a packet's word: the rest is how many bytes of elements, and
    /// which byte of the results they start at.
    #[inline(always)]
    pub const fn to_word(self, length: usize, offset: usize) -> u64 {
        self.operation as u64
            | (self.datatype as u64) << 8
            | (self.form as u64) << 16
            | (length as u64) << 32
            | (offset as u64) << 48
    }

    /// The call, bytes of elements and offset in a word that a peer sent; none
    /// if no such call exists. It may be one of another processor's.
    #[inline(always)]
    pub fn from_word(word: u64) -> Option<(AtomicCall, usize, usize)> {
        let call = AtomicCall {
            operation: AtomicOperation::from_number(word as u32 & 0xff)?,
            datatype: Datatype::from_number((word >> 8) as u32 & 0xff)?,
            form: Form::from_number((word >> 16) as u32 & 0xff)?,
        };
        let (length, offset) = ((word >> 32) as u16 as usize, (word >> 48) as usize);
        let whole = call.exists()
            && length.is_multiple_of(call.datatype.size())
            && call.payload(length) <= ATOMIC_BYTES_MAX
            && length <= ATOMIC_BYTES_MAX;
        whole.then_some((call, length, offset))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_the_wire_and_others_are_refused() {
        let mut supported = 0;
        for &operation in AtomicOperation::ALL {
            for &datatype in Datatype::ALL {
                for &form in Form::ALL {
                    let call = AtomicCall { operation, datatype, form };
                    let length = 2 * datatype.size();
                    let back = AtomicCall::from_word(call.to_word(length, 48));
                    assert_eq!(back, call.exists().then_some((call, length, 48)));
                    let odd = call.to_word(length + 1, 0);
                    assert!(AtomicCall::from_word(odd).is_none() || datatype.size() == 1);
                    supported += usize::from(call.is_supported());
                }
            }
        }
        // By hand from the manual page: 10 integer types with 11 + 12 + 7 calls,
        // 2 or 3 real ones with 8 + 9 + 6, as many complex ones with 6 + 7 + 2.
        let precisions = if cfg!(target_arch = "x86_64") { 3 } else { 2 };
        assert_eq!(supported, 10 * 30 + precisions * (23 + 15));
        assert_eq!(AtomicCall::from_word(u64::MAX), None);
    }

    #[test]
    fn counts_are_what_a_packet_holds() {
        let call = |operation, datatype, form| AtomicCall { operation, datatype, form };
        let sum = call(AtomicOperation::Sum, Datatype::Int64, Form::Fetch);
        assert_eq!(sum.count_max(), Some(512));
        let swap = call(AtomicOperation::Cswap, Datatype::Int64, Form::Compare);
        assert_eq!(swap.count_max(), Some(256));
        assert_eq!(call(AtomicOperation::Sum, Datatype::Int64, Form::Compare).count_max(), None);
    }
}

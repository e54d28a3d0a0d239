//! Atomic operations as adapters do them, which add to a word of 8 bytes, or compare and swap it.
//!
//! A sum of integers is one addition, reading adds 0, and exchanging integers that are equal is one
//! swap. Everything else on 8 bytes is computed by the initiator from what it believes to be there,
//! and swapped in if that is so; if not, it knows better, and tries again. Elements of other sizes
//! are left out: to swap the word around a shorter one would write its neighbours too, which a
//! processor may be storing to.

use super::{
    AtomicCall, AtomicOperation, Datatype,
    cell::Cell,
    combine::{Complex, Value},
};
use crate::window::Change;

impl AtomicCall {
    /// [`AtomicCall::count_max`] where adapters play: one element of 8 bytes.
    pub const fn adapter_count_max(self) -> Option<usize> {
        if self.is_supported() && self.datatype.size() == 8 { Some(1) } else { None }
    }

    /// Whether an adapter does it in one step, whatever is there.
    #[inline(always)]
    pub const fn is_one_step(self) -> bool {
        let integer = matches!(self.datatype, Datatype::Int64 | Datatype::Uint64);
        match self.operation {
            AtomicOperation::Read => true,
            AtomicOperation::Sum | AtomicOperation::Cswap => integer,
            _ => false,
        }
    }

    /// The next step of an adapter, where `guess` is believed to be there: it is the last one if
    /// it is the only one, or finds that.
    pub(crate) fn step(self, operand: u64, compare: u64, guess: u64) -> Change {
        match self.operation {
            AtomicOperation::Read => Change::Add(0),
            AtomicOperation::Sum if self.is_one_step() => Change::Add(operand),
            AtomicOperation::Cswap if self.is_one_step() => {
                Change::Swap { expected: compare, value: operand }
            }
            _ => Change::Swap { expected: guess, value: self.after(guess, operand, compare) },
        }
    }

    /// What it makes of a word.
    fn after(self, current: u64, operand: u64, compare: u64) -> u64 {
        let words = [current, operand, compare];
        match self.datatype {
            Datatype::Int64 => after_as::<i64>(self.operation, words),
            Datatype::Double => after_as::<f64>(self.operation, words),
            Datatype::FloatComplex => after_as::<Complex<f32>>(self.operation, words),
            // The call was checked: it has 8 bytes.
            _ => after_as::<u64>(self.operation, words),
        }
    }
}

fn after_as<V: Cell + Value>(operation: AtomicOperation, words: [u64; 3]) -> u64 {
    let [current, operand, compare] = words.map(|word| V::load(&[word], 0));
    let mut next = [words[0]];
    if let Some(value) = V::combine(operation, current, operand, compare) {
        value.store(&mut next, 0);
    }
    next[0]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::protocol::atomic::Form;

    fn call(operation: AtomicOperation, datatype: Datatype, form: Form) -> AtomicCall {
        AtomicCall { operation, datatype, form }
    }

    #[test]
    fn what_an_adapter_can_do_at_once_is_one_step() {
        let step = |operation, datatype, form| call(operation, datatype, form).step(5, 7, 9);
        let fetch = |operation, datatype| step(operation, datatype, Form::Fetch);
        assert_eq!(fetch(AtomicOperation::Sum, Datatype::Int64), Change::Add(5));
        assert_eq!(fetch(AtomicOperation::Read, Datatype::Double), Change::Add(0));
        let swap = step(AtomicOperation::Cswap, Datatype::Uint64, Form::Compare);
        assert_eq!(swap, Change::Swap { expected: 7, value: 5 });
        // What it is computed from has to be there.
        let product = fetch(AtomicOperation::Prod, Datatype::Uint64);
        assert_eq!(product, Change::Swap { expected: 9, value: 45 });
        let least = fetch(AtomicOperation::Max, Datatype::Uint64);
        assert_eq!(least, Change::Swap { expected: 9, value: 9 });
    }

    #[test]
    fn floats_are_computed_as_such() {
        let bits = |value: f64| u64::from_ne_bytes(value.to_ne_bytes());
        let sum = call(AtomicOperation::Sum, Datatype::Double, Form::Base);
        let expected = Change::Swap { expected: bits(1.5), value: bits(4.0) };
        assert_eq!(sum.step(bits(2.5), 0, bits(1.5)), expected);
        // Equal, and of other bits.
        let swap = call(AtomicOperation::Cswap, Datatype::Double, Form::Compare);
        let expected = Change::Swap { expected: bits(-0.0), value: bits(3.0) };
        assert_eq!(swap.step(bits(3.0), bits(0.0), bits(-0.0)), expected);
    }

    #[test]
    fn only_single_elements_of_8_bytes_are_for_adapters() {
        for &datatype in Datatype::ALL {
            let sum = call(AtomicOperation::Sum, datatype, Form::Base);
            let expected = (datatype.size() == 8).then_some(1);
            assert_eq!(sum.adapter_count_max(), expected, "{datatype:?}");
        }
        let none = call(AtomicOperation::Bor, Datatype::Double, Form::Base);
        assert_eq!(none.adapter_count_max(), None);
    }
}

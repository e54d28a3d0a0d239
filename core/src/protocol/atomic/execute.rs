//! A whole call on a stretch of a region.

#[cfg(target_arch = "x86_64")]
use super::long_double::LongDouble;
use super::{
    AtomicCall, Datatype,
    cell::Cell,
    combine::{Complex, Value},
};
use crate::memory_region::access::{Access, Refusal};

/// Executes `call` on `length` bytes of elements from byte `offset` of a region
/// on. `operands` holds the first operands, then what is compared with; the
/// values from before go to `results`.
///
/// # Errors
/// [`Refusal::Bounds`] if an element does not lie in one piece: the elements in
/// front of it are done then. [`Refusal::Unsupported`] if this processor does not have the type.
#[inline(never)]
pub fn execute(
    call: AtomicCall,
    access: &Access<'_>,
    offset: u64,
    length: usize,
    operands: &[u64],
    results: &mut [u64],
) -> Result<(), Refusal> {
    let run = match call.datatype {
        Datatype::Int8 => run::<i8>,
        Datatype::Uint8 => run::<u8>,
        Datatype::Int16 => run::<i16>,
        Datatype::Uint16 => run::<u16>,
        Datatype::Int32 => run::<i32>,
        Datatype::Uint32 => run::<u32>,
        Datatype::Int64 => run::<i64>,
        Datatype::Uint64 => run::<u64>,
        Datatype::Float => run::<f32>,
        Datatype::Double => run::<f64>,
        Datatype::FloatComplex => run::<Complex<f32>>,
        Datatype::DoubleComplex => run::<Complex<f64>>,
        Datatype::Int128 => run::<i128>,
        Datatype::Uint128 => run::<u128>,
        #[cfg(target_arch = "x86_64")]
        Datatype::LongDouble => run::<LongDouble>,
        #[cfg(target_arch = "x86_64")]
        Datatype::LongDoubleComplex => run::<Complex<LongDouble>>,
        #[cfg(not(target_arch = "x86_64"))]
        Datatype::LongDouble | Datatype::LongDoubleComplex => return Err(Refusal::Unsupported),
    };
    run(call, access, offset, length, operands, results)
}

fn run<V: Cell + Value>(
    call: AtomicCall,
    access: &Access<'_>,
    offset: u64,
    length: usize,
    operands: &[u64],
    results: &mut [u64],
) -> Result<(), Refusal> {
    let size = size_of::<V>();
    let has_operand = call.payload(length) > 0;
    let compares = call.payload(length) > length;
    for at in (0..length).step_by(size) {
        let piece = access.contiguous(offset + at as u64, size as u64);
        if piece.len() != size {
            return Err(Refusal::Bounds);
        }
        // What is not there is not looked at.
        let operand = V::load(operands, if has_operand { at } else { 0 });
        let compare = V::load(operands, if compares { length + at } else { 0 });
        let before =
            V::update(piece, |current| V::combine(call.operation, current, operand, compare));
        before.store(results, at);
    }
    Ok(())
}

//! Atomic operations as plain arithmetic on bytes: what the cases compare with.
//! Written for wide integers and for pairs of floats, unlike what it checks.

use kestrel_core::protocol::atomic::{AtomicCall, AtomicOperation as Op, Datatype};

/// What `call` makes of one element that is `current`.
pub fn after(call: AtomicCall, current: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
    use Datatype::*;
    match call.datatype {
        Int8 | Int16 | Int32 | Int64 | Int128 => {
            let [a, b, c] = [current, operand, compare].map(signed);
            let next = whole(call.operation, a, b, c, (a.cmp(&b), c.cmp(&a)));
            next.to_le_bytes()[..current.len()].to_vec()
        }
        Uint8 | Uint16 | Uint32 | Uint64 | Uint128 => {
            let [a, b, c] = [current, operand, compare].map(unsigned);
            let order = (a.cmp(&b), c.cmp(&a));
            let next = whole(call.operation, a as i128, b as i128, c as i128, order);
            next.to_le_bytes()[..current.len()].to_vec()
        }
        Float | FloatComplex => floating::<4>(call, current, operand, compare),
        Double | DoubleComplex => floating::<8>(call, current, operand, compare),
        LongDouble | LongDoubleComplex => floating::<16>(call, current, operand, compare),
    }
}

/// Whether the bits of the result are nobody's to say: arithmetic on what is no number gives
/// something else that is none.
pub fn is_vague(call: AtomicCall, current: &[u8]) -> bool {
    use Datatype::*;
    let width = match call.datatype {
        Float | FloatComplex => 4,
        Double | DoubleComplex => 8,
        _ => return false,
    };
    let is_none = |word: &[u8]| match width {
        4 => f32::from_le_bytes(word.try_into().unwrap()).is_nan(),
        _ => f64::from_le_bytes(word.try_into().unwrap()).is_nan(),
    };
    matches!(call.operation, Op::Sum | Op::Prod) && current.chunks_exact(width).any(is_none)
}

fn unsigned(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte))
}

fn signed(bytes: &[u8]) -> i128 {
    let spare = 128 - 8 * bytes.len() as u32;
    ((unsigned(bytes) << spare) as i128) >> spare
}

type Orders = (std::cmp::Ordering, std::cmp::Ordering);

fn whole(op: Op, a: i128, b: i128, c: i128, (ab, ca): Orders) -> i128 {
    let pick = |swap: bool| if swap { b } else { a };
    match op {
        Op::Min => pick(ab.is_gt()),
        Op::Max => pick(ab.is_lt()),
        Op::Sum => a.wrapping_add(b),
        Op::Prod => a.wrapping_mul(b),
        Op::Lor => i128::from(a != 0 || b != 0),
        Op::Land => i128::from(a != 0 && b != 0),
        Op::Lxor => i128::from((a != 0) ^ (b != 0)),
        Op::Bor => a | b,
        Op::Band => a & b,
        Op::Bxor => a ^ b,
        Op::Read => a,
        Op::Write => b,
        Op::Cswap => pick(ca.is_eq()),
        Op::CswapNe => pick(ca.is_ne()),
        Op::CswapLe => pick(ca.is_le()),
        Op::CswapLt => pick(ca.is_lt()),
        Op::CswapGe => pick(ca.is_ge()),
        Op::CswapGt => pick(ca.is_gt()),
        Op::Mswap => (b & c) | (a & !c),
    }
}

/// Real or complex, in floats of `N` bytes; a real one has no imaginary part.
fn floating<const N: usize>(call: AtomicCall, a: &[u8], b: &[u8], c: &[u8]) -> Vec<u8> {
    // What the cases do to extended numbers is exact in doubles.
    let round = |value: f64| if N == 4 { f64::from(value as f32) } else { value };
    let part = |bytes: &[u8]| match N {
        4 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        16 => from_extended(bytes),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    };
    let parts = |bytes: &[u8]| -> [f64; 2] {
        [part(&bytes[..N]), if bytes.len() > N { part(&bytes[N..]) } else { 0.0 }]
    };
    let ([ar, ai], [br, bi], [cr, ci]) = (parts(a), parts(b), parts(c));
    let (a_true, b_true) = ((ar, ai) != (0.0, 0.0), (br, bi) != (0.0, 0.0));
    let bytes = |value: f64| match N {
        4 => (value as f32).to_le_bytes().to_vec(),
        16 => extended(value).to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    let computed = |next: [f64; 2]| next.into_iter().take(a.len() / N).flat_map(bytes).collect();
    let truth = |value: bool| computed([f64::from(u8::from(value)), 0.0]);
    // Bit for bit: what is no number has many forms, and arithmetic would change them.
    let pick = |swap: bool| if swap { b.to_vec() } else { a.to_vec() };
    match call.operation {
        Op::Min => pick(br < ar),
        Op::Max => pick(br > ar),
        Op::Sum => computed([ar + br, ai + bi]),
        Op::Prod => {
            let real = round(round(ar * br) - round(ai * bi));
            computed([real, round(ar * bi) + round(ai * br)])
        }
        Op::Lor => truth(a_true || b_true),
        Op::Land => truth(a_true && b_true),
        Op::Lxor => truth(a_true != b_true),
        Op::Read => pick(false),
        Op::Write => pick(true),
        Op::Cswap => pick((cr, ci) == (ar, ai)),
        Op::CswapNe => pick((cr, ci) != (ar, ai)),
        Op::CswapLe => pick(cr <= ar),
        Op::CswapLt => pick(cr < ar),
        Op::CswapGe => pick(cr >= ar),
        Op::CswapGt => pick(cr > ar),
        op => unreachable!("{op:?} is not for floats"),
    }
}

/// A double as an extended number: the leading bit is written out, and the
/// exponent has more room.
pub fn extended(value: f64) -> [u8; 16] {
    let bits = value.to_bits();
    let mut bytes = [0; 16];
    if value != 0.0 {
        let significand = 1 << 63 | (bits & ((1 << 52) - 1)) << 11;
        bytes[..8].copy_from_slice(&u64::to_le_bytes(significand));
    }
    let exponent = if value == 0.0 { 0 } else { (bits >> 52 & 0x7ff) + 0x3fff - 0x3ff };
    let word = exponent as u16 | ((bits >> 63) as u16) << 15;
    bytes[8..10].copy_from_slice(&word.to_le_bytes());
    bytes
}

fn from_extended(bytes: &[u8]) -> f64 {
    let significand = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let word = u16::from_le_bytes(bytes[8..10].try_into().unwrap());
    let size = significand as f64 * 2f64.powi(i32::from(word & 0x7fff) - 0x3fff - 63);
    if word >> 15 == 1 { -size } else { size }
}

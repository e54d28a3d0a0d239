//! Contents of messages: made, and compared.

/// Bytes that only `seed` has.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Compares without printing a megabyte. One byte after the other only where they differ: unoptimized, that
/// takes a hundred times as long.
#[track_caller]
pub fn same(found: &[u8], expected: &[u8], what: &str) {
    if found != expected {
        let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "{what}: the first byte that differs");
        assert_eq!(found.len(), expected.len(), "{what}: length");
    }
}

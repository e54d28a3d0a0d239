//! Numbers for people.

/// `4 KiB`, `1 MiB`, `100 B`.
pub fn bytes(count: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if count >= 1 << shift && count.trailing_zeros() >= shift {
            return format!("{} {unit}", count >> shift);
        }
    }
    format!("{count} B")
}

/// `43.2 ns`, `1.20 µs`, `3.4 ms`.
pub fn nanoseconds(value: f64) -> String {
    match value {
        v if v < 1_000.0 => format!("{v:.1} ns"),
        v if v < 1e6 => format!("{:.2} µs", v / 1e3),
        v if v < 1e9 => format!("{:.2} ms", v / 1e6),
        v => format!("{:.2} s", v / 1e9),
    }
}

/// `22.1 M`, `310 k`.
pub fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// Parses `4096`, `4K`, `4KiB`, `1M`, `1g`: powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" | "kb" => 10,
        "m" | "mib" | "mb" => 20,
        "g" | "gib" | "gb" => 30,
        other => {
            return Err(format!("unknown unit {other:?}; use a number with K, M or G"));
        }
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("{text:?} is not a size: use 8, 64K, 1M"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        for (text, value) in
            [("0", 0), ("8", 8), ("64K", 64 << 10), ("1MiB", 1 << 20), ("2 g", 2 << 30)]
        {
            assert_eq!(parse_bytes(text), Ok(value));
        }
        for bad in ["", "K", "-1", "1.5K", "8X", "99999999999G", "0x10"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(4097), "4097 B");
        assert_eq!(nanoseconds(1234.0), "1.23 µs");
    }
}

//! The types that parameters have, and how their values are written.

use std::fmt;

/// The most cores that a list may name: as many as Linux can be built for.
const CORE_COUNT_MAX: usize = 8192;

/// The longest name that the kernel gives an RDMA device (IB_DEVICE_NAME_MAX less the end).
const NAME_LENGTH_MAX: usize = 63;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It is none, or a plain number.
    None,
    /// Bytes.
    Bytes,
    /// Thousandths of a second.
    Milliseconds,
    /// Millionths of a second.
    Microseconds,
}

/// A parameter's type, with its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "bounds are bounds")]
pub enum Kind {
    /// A whole number; `K`, `M` and `G` multiply by 1024 each.
    Integer { min: u64, max: u64 },
    /// Such a number with one bit set.
    PowerOfTwo { min: u64, max: u64 },
    /// One of these words, in lower or upper case.
    Choice(&'static [&'static str]),
    /// Cores, as in `2,4-7`.
    Cores,
    /// Names, as the kernel gives them to devices and interfaces, or all but some; or nothing.
    Names,
    /// A number that fits into a byte; or nothing.
    Byte { max: u8 },
    /// A P_Key of InfiniBand, hexadecimal or decimal; or nothing.
    PartitionKey,
}

/// A parsed value, of its parameter's kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A whole number.
    Integer(u64),
    /// The position among the choices.
    Choice(usize),
    /// Cores; none where nothing was named.
    Cores(CoreSet),
    /// Names; any where nothing was named.
    Names(Names),
    /// A number, if there is one.
    Byte(Option<u8>),
    /// A P_Key, if one was named.
    PartitionKey(Option<u16>),
}

/// Some of a host's devices, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// It is all devices but these.
    are_left_out: bool,
    names: Vec<String>,
}

impl Names {
    /// Whether a device of that name is among them.
    pub fn admit(&self, name: &str) -> bool {
        self.are_any() || self.names.iter().any(|it| it == name) != self.are_left_out
    }

    /// Whether it is all there are, as where nothing was named.
    pub fn are_any(&self) -> bool {
        self.names.is_empty()
    }
}

/// As a user writes them.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let but = if self.are_left_out { "^" } else { "" };
        write!(f, "{but}{}", self.names.join(","))
    }
}

/// Some of a host's cores, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreSet(Vec<usize>);

impl CoreSet {
    /// The numbers of the cores, as Linux counts them.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// A parameter's kind decides which of these its `store` calls; the tests of
// the table set every parameter, so none can call the wrong one unseen.
impl Value {
    pub(super) fn integer(self) -> u64 {
        if let Value::Integer(number) = self { number } else { 0 }
    }

    pub(super) fn size(self) -> usize {
        usize::try_from(self.integer()).unwrap_or(usize::MAX)
    }

    pub(super) fn choice(self) -> usize {
        if let Value::Choice(position) = self { position } else { 0 }
    }

    pub(super) fn names(self) -> Names {
        if let Value::Names(names) = self { names } else { Names::default() }
    }

    pub(super) fn byte(self) -> Option<u8> {
        if let Value::Byte(byte) = self { byte } else { None }
    }

    pub(super) fn partition_key(self) -> Option<u16> {
        if let Value::PartitionKey(key) = self { key } else { None }
    }

    pub(super) fn cores(self) -> CoreSet {
        if let Value::Cores(cores) = self { cores } else { CoreSet::default() }
    }
}

impl Kind {
    /// Reads a value, or says in a few words what is wrong with it.
    pub(super) fn parse(&self, text: &str) -> Result<Value, &'static str> {
        match *self {
            Kind::Integer { min, max } => parse_within(text, min, max).map(Value::Integer),
            Kind::PowerOfTwo { min, max } => {
                let number = parse_within(text, min, max)?;
                let suits = number.is_power_of_two();
                suits.then_some(Value::Integer(number)).ok_or("it is no power of two")
            }
            Kind::Choice(words) => words
                .iter()
                .position(|word| word.eq_ignore_ascii_case(text))
                .map(Value::Choice)
                .ok_or("it is none of the choices"),
            Kind::Cores => parse_cores(text).map(Value::Cores),
            Kind::Names => parse_names(text).map(Value::Names),
            Kind::Byte { .. } if text.is_empty() => Ok(Value::Byte(None)),
            Kind::Byte { max } => {
                parse_bits(text, u16::from(max)).map(|bits| Value::Byte(u8::try_from(bits).ok()))
            }
            Kind::PartitionKey => parse_partition_key(text).map(Value::PartitionKey),
        }
    }
}

fn parse_names(text: &str) -> Result<Names, &'static str> {
    if text.is_empty() {
        return Ok(Names::default());
    }
    let (are_left_out, list) = match text.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let inside = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.len() <= NAME_LENGTH_MAX
            && name.chars().all(inside)
    };
    let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
    let are_names = names.iter().all(|name| is_name(name));
    are_names.then_some(Names { are_left_out, names }).ok_or("no device has such a name")
}

/// The highest bit tells full from limited members, and the others the partition.
fn parse_partition_key(text: &str) -> Result<Option<u16>, &'static str> {
    if text.is_empty() {
        return Ok(None);
    }
    match parse_bits(text, u16::MAX)? {
        key if key & 0x7fff == 0 => Err("no partition has the number 0"),
        key => Ok(Some(key)),
    }
}

/// A number that is hexadecimal or decimal.
fn parse_bits(text: &str, max: u16) -> Result<u16, &'static str> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hexadecimal.map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` takes a sign as well.
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err("it is no number");
    }
    let number = u16::from_str_radix(digits, radix).ok().filter(|number| *number <= max);
    number.ok_or("it is too large")
}

fn parse_within(text: &str, min: u64, max: u64) -> Result<u64, &'static str> {
    match parse_number(text)? {
        number if number < min => Err("it is too small"),
        number if number > max => Err("it is too large"),
        number => Ok(number),
    }
}

/// Reads digits and, after them, nothing or one of K, M, G, KiB and so on.
fn parse_number(text: &str) -> Result<u64, &'static str> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    if digits.is_empty() {
        return Err("it is no number");
    }
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("behind its digits stands none of K, M and G"),
    };
    // Digits alone, so an error means too many of them.
    let number: u64 = digits.parse().map_err(|_| "it is too large")?;
    number.checked_mul(1 << shift).ok_or("it is too large")
}

fn parse_cores(text: &str) -> Result<CoreSet, &'static str> {
    const MALFORMED: &str = "it is no list of cores";
    let core = |text: &str| match text.trim().parse::<usize>() {
        Ok(core) if core < CORE_COUNT_MAX => Ok(core),
        Ok(_) => Err("no host has that core"),
        Err(_) => Err(MALFORMED),
    };
    let mut cores = std::collections::BTreeSet::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        match part.split_once('-') {
            None => _ = cores.insert(core(part)?),
            Some((first, last)) => {
                let (first, last) = (core(first)?, core(last)?);
                if first > last {
                    return Err(MALFORMED);
                }
                cores.extend(first..=last);
            }
        }
    }
    Ok(CoreSet(cores.into_iter().collect()))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Integer { min, max } => write!(f, "a number from {min} to {max}"),
            Kind::PowerOfTwo { min, max } => write!(f, "a power of two from {min} to {max}"),
            Kind::Choice([head @ .., last]) if !head.is_empty() => {
                write!(f, "{} or {last}", head.join(", "))
            }
            Kind::Choice(words) => f.write_str(&words.join(", ")),
            Kind::Cores => f.write_str("a list of cores, as in 2,4-7"),
            Kind::Names => {
                f.write_str("names, as in mlx5_0,mlx5_1, or all but some, as in ^mlx5_2")
            }
            Kind::Byte { max } => write!(f, "a number from 0 to {max}"),
            Kind::PartitionKey => f.write_str("a P_Key of 16 bits, as in 0x8001"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::None => "",
            Unit::Bytes => " bytes",
            Unit::Milliseconds => " milliseconds",
            Unit::Microseconds => " microseconds",
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_binary_suffixes() {
        for (text, number) in [
            ("0", 0),
            ("17", 17),
            ("2k", 2048),
            ("2K", 2048),
            ("3KiB", 3072),
            ("1M", 1 << 20),
            ("1gib", 1 << 30),
            ("007", 7),
        ] {
            assert_eq!(parse_number(text), Ok(number), "{text}");
        }
        for text in ["", "k", "-1", "+1"] {
            assert_eq!(parse_number(text), Err("it is no number"), "{text}");
        }
        for text in ["1.5", "1 k", "1kb", "0x10", "1T"] {
            let none = "behind its digits stands none of K, M and G";
            assert_eq!(parse_number(text), Err(none), "{text}");
        }
        assert_eq!(parse_number("18446744073709551616"), Err("it is too large"));
        assert_eq!(parse_number("17179869184G"), Err("it is too large"));
    }

    #[test]
    fn bounds_are_inclusive_and_powers_exact() {
        let kind = Kind::PowerOfTwo { min: 4, max: 64 };
        assert_eq!(kind.parse("4"), Ok(Value::Integer(4)));
        assert_eq!(kind.parse("64"), Ok(Value::Integer(64)));
        assert_eq!(kind.parse("2"), Err("it is too small"));
        assert_eq!(kind.parse("65"), Err("it is too large"));
        assert_eq!(kind.parse("48"), Err("it is no power of two"));
        assert_eq!(Kind::Integer { min: 4, max: 64 }.parse("48"), Ok(Value::Integer(48)));
    }

    #[test]
    fn choices_ignore_case() {
        let kind = Kind::Choice(&["auto", "off"]);
        assert_eq!(kind.parse("OFF"), Ok(Value::Choice(1)));
        assert!(kind.parse("of").is_err());
        assert_eq!(kind.to_string(), "auto or off");
    }

    #[test]
    fn names_are_those_that_devices_have() {
        let names = |text: &str| Kind::Names.parse(text).map(Value::names);
        for text in ["", "mlx5_0", "rxe-d.1", &"a".repeat(63), "mlx5_0,mlx5_1", "^mlx5_0,rxe0"] {
            assert_eq!(names(text).unwrap().to_string(), text);
        }
        for text in
            ["-1", "a b", "a/b", "_x", "ä", &"a".repeat(64), "a,,b", "a,", "^", "^^a", "a,^b"]
        {
            assert_eq!(names(text), Err("no device has such a name"), "{text}");
        }
        let admitted = |text: &str| {
            let names = names(text).unwrap();
            ["mlx5_0", "mlx5_1", "rxe0"].map(|name| names.admit(name))
        };
        assert_eq!(admitted(""), [true; 3]);
        assert_eq!(admitted("mlx5_1"), [false, true, false]);
        assert_eq!(admitted("rxe0, mlx5_0"), [true, false, true]);
        assert_eq!(admitted("^rxe0,mlx5_0"), [false, true, false]);
    }

    #[test]
    fn a_byte_is_there_or_not() {
        let byte = |text: &str| Kind::Byte { max: 15 }.parse(text).map(Value::byte);
        assert_eq!((byte(""), byte("0"), byte("15")), (Ok(None), Ok(Some(0)), Ok(Some(15))));
        assert_eq!((byte("0xf"), byte("0x10")), (Ok(Some(15)), Err("it is too large")));
        assert_eq!((byte("16"), byte("x")), (Err("it is too large"), Err("it is no number")));
    }

    #[test]
    fn partition_keys_are_hexadecimal_or_decimal() {
        let key = |text: &str| Kind::PartitionKey.parse(text).map(Value::partition_key);
        for (text, expected) in
            [("0x8001", 0x8001), ("0XfFfF", 0xffff), ("0x1", 1), ("32769", 0x8001), ("512", 512)]
        {
            assert_eq!(key(text), Ok(Some(expected)), "{text}");
        }
        assert_eq!(key(""), Ok(None));
        for text in ["0x", "8001h", "-1", "+1", "0x+1", "ffff", "1K"] {
            assert_eq!(key(text), Err("it is no number"), "{text}");
        }
        assert_eq!(key("0x10000"), Err("it is too large"));
        assert_eq!(key("0x8000"), Err("no partition has the number 0"));
        assert_eq!(key("0"), Err("no partition has the number 0"));
    }

    #[test]
    fn core_lists_are_sorted_sets() {
        let cores = |text| parse_cores(text).map(|cores| cores.iter().collect::<Vec<_>>());
        assert_eq!(cores(""), Ok(vec![]));
        assert_eq!(cores("7, 2,4-6,5"), Ok(vec![2, 4, 5, 6, 7]));
        for text in ["a", "1-", "-1", "5-4", "1,,2", ",", "1-2-3"] {
            assert_eq!(cores(text), Err("it is no list of cores"), "{text}");
        }
        assert_eq!(cores("8192"), Err("no host has that core"));
    }
}

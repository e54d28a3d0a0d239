//! Kinds of packets, for those who send whatever they like.

use kestrel_core::wire::Kind;

use crate::random::Random;

/// What ends a connection wherever it is out of turn, or by what it says.
const FINAL: [Kind; 6] =
    [Kind::Bye, Kind::Request, Kind::Accept, Kind::Reject, Kind::Established, Kind::Context];

/// Every kind that a receiver knows.
pub fn kinds() -> impl Iterator<Item = Kind> {
    (0..=u8::MAX).filter_map(Kind::from_byte)
}

/// The kind of a packet: any there is, seldom one that ends the connection, and now and then none.
pub fn kind(random: &mut Random) -> u8 {
    let known: Vec<Kind> = kinds().collect();
    let none = known.len() as u64 + 1;
    if random.once_in(100) {
        return random.between(none, u8::MAX.into()) as u8;
    }
    let last = random.once_in(8);
    let fitting: Vec<Kind> =
        known.into_iter().filter(|kind| last || !FINAL.contains(kind)).collect();
    fitting[random.below(fitting.len() as u64) as usize] as u8
}

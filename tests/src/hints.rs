//! What the example programs are told by their environment.

use std::{env, num::ParseIntError};

use kestrel_core::info::Hints;

/// Asks for the traffic class that TRAFFIC_CLASS says, if it says one: the number that libfabric
/// has for it.
///
/// # Errors
/// It is no number.
pub fn with_class(hints: Hints) -> Result<Hints, ParseIntError> {
    match env::var("TRAFFIC_CLASS") {
        Ok(class) => Ok(hints.traffic_class(class.parse::<u32>()?)),
        Err(_) => Ok(hints),
    }
}

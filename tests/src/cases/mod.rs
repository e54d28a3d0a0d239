//! The cases, by subject. Each is a function of the bed that it runs on.

pub mod messages;
pub mod sizes;
pub mod truncation;

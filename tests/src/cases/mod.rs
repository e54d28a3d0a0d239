//! The cases, by subject. Each is a function of the bed that it runs on.

pub mod cancel;
pub mod levels;
pub mod messages;
pub mod multi_receive;
pub mod order;
pub mod peek;
pub mod sizes;
pub mod truncation;

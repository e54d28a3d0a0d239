//! Atomic operations. Reference: fi_atomic(3).
//!
//! Core does not have them yet, so nobody is offered them.

use crate::abi::{atomic::OpsAtomic, constants::NOSYS};

pub static OPERATIONS: OpsAtomic = OpsAtomic::refusing::<NOSYS>();

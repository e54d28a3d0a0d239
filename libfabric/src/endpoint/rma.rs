//! One-sided reads and writes. Reference: fi_rma(3).
//!
//! Core does not have them yet, so nobody is offered them.

use crate::abi::{constants::NOSYS, transfer::OpsRma};

pub static OPERATIONS: OpsRma = OpsRma::refusing::<NOSYS>();

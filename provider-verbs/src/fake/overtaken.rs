//! Writes of credit that take their time, and are overtaken by later ones of their queue pair.
//!
//! A network that routes each packet anew may bring them in another order, and devices carry them out as they
//! come. Completions come in order all the same.

use std::collections::HashMap;

use super::fabric::{State, Waiting};
use crate::verbs::{Role, Verb};

/// Looks for completions after which a write is there, if nothing has overtaken it.
const LOOKS: u32 = 64;

/// One write of each queue pair at most.
#[derive(Default)]
pub struct Overtaken {
    is_enabled: bool,
    looks: u32,
    late: HashMap<u32, Waiting>,
}

impl Overtaken {
    pub fn enable(&mut self, is_enabled: bool) {
        self.is_enabled |= is_enabled;
    }

    pub fn has(&self, number: u32) -> bool {
        self.late.contains_key(&number)
    }

    pub fn take(&mut self, number: u32) -> Option<Waiting> {
        self.late.remove(&number)
    }
}

impl State {
    /// The request, unless it is under way for a while, or has overtaken an earlier one and both are done.
    pub(super) fn unless_late(&mut self, number: u32, waiting: Waiting) -> Option<Waiting> {
        let receives = self.pairs.get(&number).is_some_and(|pair| pair.role == Role::Receives);
        let is_credit = matches!(waiting.request.verb, Verb::Write(_)) && !waiting.bytes.is_empty();
        if !self.overtaken.is_enabled || !receives || !is_credit {
            return Some(waiting);
        }
        let Some(earlier) = self.overtaken.take(number) else {
            self.overtaken.late.insert(number, waiting);
            return None;
        };
        self.tally.overtaken += 1;
        let later = self.carry_out(number, &waiting);
        let outcome = self.carry_out(number, &earlier);
        self.conclude(number, earlier.request, outcome);
        self.conclude(number, waiting.request, later);
        None
    }

    /// Somebody looks for completions: in the end everything arrives.
    pub(super) fn note_look(&mut self) {
        self.overtaken.looks += 1;
        if !self.held && self.overtaken.looks.is_multiple_of(LOOKS) {
            for (number, late) in std::mem::take(&mut self.overtaken.late) {
                let outcome = self.carry_out(number, &late);
                self.conclude(number, late.request, outcome);
            }
        }
    }
}

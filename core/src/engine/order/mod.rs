//! Completions in order: FI_ORDER_STRICT. Reference: fi_endpoint(3), "comp_order".
//!
//! "Strict completion ordering may require that providers queue completed operations": each peer has
//! a line of what is not reported yet. What is over before its turn keeps its place there, with all
//! that is to be told of it, until those before it are over. Who did not ask for an order has no
//! lines, and what finds its line empty enters it only if it is not over at once.
//!
//! In reading order: this is what lines are, [`transmit`] is what is submitted, and [`receive`] is
//! what is matched. [`data`] is another order: in which received bytes are written (FI_ORDER_DATA).

pub mod data;
pub mod receive;
pub mod transmit;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use self::{data::DataOrder, receive::Waiting, transmit::Outcome};

/// What waits for its turn, where an order is kept.
#[derive(Default)]
pub(crate) struct Orders {
    /// What is submitted and not reported.
    pub transmit: Option<Box<Order<Outcome>>>,
    /// What is matched and not reported.
    pub receive: Option<Box<Order<Waiting>>>,
    /// What is matched and not written.
    pub data: Option<Box<DataOrder>>,
}

/// Lines of operations, each told of by a `T`.
pub(crate) struct Order<T> {
    lines: Vec<Line<T>>,
    /// Where an operation that is under way has its place: line, and number there.
    places: FxHashMap<u64, (u32, u64)>,
    /// How many are over and wait for their turn.
    held: usize,
}

/// What is not reported yet, oldest first.
struct Line<T> {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Place<T>>,
}

enum Place<T> {
    /// It is under way.
    Taken,
    /// It is over, and waits for its turn.
    Over(Box<T>),
    /// It does not wait any more.
    Left,
}

impl<T> Order<T> {
    pub fn new() -> Self {
        Order { lines: Vec::new(), places: FxHashMap::default(), held: 0 }
    }

    /// How many operations are over and not reported.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether nothing of a line is left to report.
    pub fn is_empty(&self, line: u32) -> bool {
        self.lines.get(line as usize).is_none_or(|line| line.places.is_empty())
    }

    /// The lines of which something is left to report.
    pub fn lines_in_use(&self) -> impl Iterator<Item = u32> {
        (0..self.lines.len() as u32).filter(|&line| !self.is_empty(line))
    }

    /// Gives an operation that is under way the last place of a line.
    pub fn enter(&mut self, line: u32, operation: u32) {
        let at = self.line(line);
        let place = at.first + at.places.len() as u64;
        at.places.push_back(Place::Taken);
        self.places.insert(operation.into(), (line, place));
    }

    fn line(&mut self, line: u32) -> &mut Line<T> {
        let new = || Line { first: 0, places: VecDeque::new() };
        if self.lines.len() <= line as usize {
            self.lines.resize_with(line as usize + 1, new);
        }
        &mut self.lines[line as usize]
    }

    /// An operation is over. It comes back if its turn is now, or if it has no place.
    pub fn over(&mut self, operation: u32, outcome: T) -> Option<T> {
        let Some((line, place)) = self.places.remove(&operation.into()) else {
            return Some(outcome);
        };
        let line = &mut self.lines[line as usize];
        if place == line.first {
            line.drop_first();
            return Some(outcome);
        }
        line.places[(place - line.first) as usize] = Place::Over(Box::new(outcome));
        self.held += 1;
        None
    }

    /// Something is over that was not under way: it is the last of its line, or comes back if that
    /// is empty.
    pub fn append(&mut self, line: u32, outcome: T) -> Option<T> {
        if self.is_empty(line) {
            return Some(outcome);
        }
        self.line(line).places.push_back(Place::Over(Box::new(outcome)));
        self.held += 1;
        None
    }

    /// An operation that is under way goes by another number from now on.
    pub fn rename(&mut self, operation: u32, new: u32) {
        if let Some(place) = self.places.remove(&operation.into()) {
            self.places.insert(new.into(), place);
        }
    }

    /// Whether an operation has a place.
    pub fn has(&self, operation: u32) -> bool {
        self.places.contains_key(&operation.into())
    }

    /// An operation gives its place up: nobody waits for it any more.
    pub fn leave(&mut self, operation: u32) {
        if let Some((line, place)) = self.places.remove(&operation.into()) {
            let line = &mut self.lines[line as usize];
            line.places[(place - line.first) as usize] = Place::Left;
            // Behind one that is never over, those that come and go would be more and more.
            while let Some(Place::Left) = line.places.back() {
                line.places.pop_back();
            }
        }
    }

    /// The next of a line, if its turn has come.
    pub fn next(&mut self, line: u32) -> Option<T> {
        let line = self.lines.get_mut(line as usize)?;
        loop {
            if let Some(Place::Taken) = line.places.front() {
                return None;
            }
            if let Place::Over(outcome) = line.drop_first()? {
                self.held -= 1;
                return Some(*outcome);
            }
        }
    }
}

impl<T> Line<T> {
    fn drop_first(&mut self) -> Option<Place<T>> {
        let place = self.places.pop_front()?;
        self.first += 1;
        Some(place)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Order;

    /// All that is told of a line now.
    fn told(order: &mut Order<u32>, first: Option<u32>, line: u32) -> Vec<u32> {
        let mut told = Vec::from_iter(first);
        told.extend(std::iter::from_fn(|| order.next(line)));
        told
    }

    #[test]
    fn what_is_over_early_waits_for_those_before_it() {
        let mut order = Order::new();
        for operation in [1, 2, 3] {
            order.enter(0, operation);
        }
        assert_eq!(order.over(3, 3), None);
        assert_eq!(order.append(0, 4), None);
        assert_eq!((order.held(), order.next(0)), (2, None));
        let first = order.over(1, 1);
        assert_eq!(told(&mut order, first, 0), [1]);
        let first = order.over(2, 2);
        assert_eq!(told(&mut order, first, 0), [2, 3, 4]);
        assert!(order.is_empty(0) && order.held() == 0);
    }

    #[test]
    fn who_comes_and_goes_behind_one_that_stays_leaves_no_place() {
        let mut order = Order::new();
        order.enter(0, 1);
        for operation in 2..100 {
            order.enter(0, operation);
            order.leave(operation);
        }
        assert_eq!(order.line(0).places.len(), 1);
        // One between two that stay keeps its place until those before it are over.
        [2, 3].into_iter().for_each(|operation| order.enter(0, operation));
        order.leave(2);
        assert_eq!(order.over(3, 3), None);
        let first = order.over(1, 1);
        assert_eq!(told(&mut order, first, 0), [1, 3]);
    }

    #[test]
    fn who_waits_for_nobody_comes_back_at_once() {
        let mut order = Order::new();
        assert_eq!(order.append(5, 1), Some(1));
        order.enter(5, 2);
        assert_eq!(order.over(2, 2), Some(2));
        assert_eq!(order.append(5, 3), Some(3));
        // Lines do not wait for each other.
        order.enter(0, 4);
        assert_eq!(order.append(5, 5), Some(5));
        assert_eq!(order.append(0, 6), None);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let mut order = Order::new();
        order.enter(0, 1);
        order.enter(0, 2);
        assert_eq!(order.append(0, 3), None);
        order.leave(2);
        assert_eq!(order.over(2, 2), Some(2));
        assert_eq!(order.next(0), None);
        order.leave(1);
        assert_eq!(told(&mut order, None, 0), [3]);
        assert!(order.is_empty(0));
    }

    #[test]
    fn who_goes_by_another_number_keeps_its_place() {
        let mut order = Order::new();
        order.enter(0, 1);
        order.enter(0, 2);
        order.rename(1, 7);
        assert!(order.has(7) && !order.has(1));
        assert_eq!(order.over(2, 2), None);
        let first = order.over(7, 7);
        assert_eq!(told(&mut order, first, 0), [7, 2]);
    }

    #[test]
    fn an_index_that_is_used_again_has_a_place_of_its_own() {
        let mut order = Order::new();
        order.enter(0, 1);
        order.enter(0, 2);
        assert_eq!(order.over(2, 20), None);
        order.enter(0, 2);
        let first = order.over(1, 10);
        assert_eq!(told(&mut order, first, 0), [10, 20]);
        assert_eq!(order.over(2, 21), Some(21));
    }
}

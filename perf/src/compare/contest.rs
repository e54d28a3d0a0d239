//! Who works in turns on the same two cores, and what their rounds say.
//!
//! In each round everyone does the same work once, with the floor in between;
//! the next round begins with the next. A ratio is one round's: what the
//! machine does meanwhile meets both.

use super::{Findings, Request};
use crate::door::DoorOptions;
use crate::door::providers::KESTREL;
use crate::floor::Task;
use crate::measure::Work;
use crate::report::{Against, Row};
use crate::session::{Session, SessionError};
use crate::statistics::{Beside, Ratio, median};
use std::ops::RangeInclusive;

/// kestrel without libfabric.
pub const NATIVE: &str = "native API";

/// Through what somebody works.
#[derive(Clone, Copy)]
enum Way {
    Native,
    Door(usize),
}

struct Contender {
    name: String,
    way: Way,
}

/// kestrel through libfabric first, then all others.
pub struct Contest {
    contenders: Vec<Contender>,
}

/// What one contender's rounds were.
pub struct Series {
    pub name: String,
    pub samples: Vec<Beside>,
}

impl Contest {
    /// Opens everyone's endpoints; nothing, and a line about it, without kestrel.
    pub fn open(
        session: &mut Session,
        request: &Request,
        one_sided: bool,
        findings: &mut Findings,
    ) -> Option<Contest> {
        if let Err(reason) = request.library() {
            findings.leave_out("libfabric's C interface", reason);
            return None;
        }
        let mut contenders = Vec::new();
        let names = std::iter::once(KESTREL).chain(request.providers.iter().map(String::as_str));
        for (number, name) in names.enumerate() {
            let provider = name.to_owned();
            let automatic_progress = session.options.fabric.automatic_progress;
            let options = DoorOptions { provider, one_sided, automatic_progress };
            if let Err(error) = session.open_door(number, &options) {
                findings.leave_out(name, error);
                // Where one rank could open it and the other could not.
                let _ = session.close_door(number);
                if number == 0 {
                    return None;
                }
                continue;
            }
            contenders.push(Contender { name: name.to_owned(), way: Way::Door(number) });
        }
        contenders.insert(1, Contender { name: NATIVE.to_owned(), way: Way::Native });
        Some(Contest { contenders })
    }

    /// As many rounds as there is time for. Who fails, but for kestrel, goes, and
    /// the rounds start anew.
    pub fn rounds(
        &mut self,
        session: &mut Session,
        work: &Work,
        floor: &Task,
        count: RangeInclusive<usize>,
        findings: &mut Findings,
    ) -> Result<Vec<Series>, SessionError> {
        loop {
            match self.try_rounds(session, work, floor, count.clone()) {
                Ok(series) => return Ok(series),
                Err((index, error)) => {
                    let Some(&Contender { way: Way::Door(number), .. }) =
                        self.contenders.get(index).filter(|_| index > 0)
                    else {
                        return Err(error);
                    };
                    let gone = self.contenders.remove(index);
                    findings.leave_out(&gone.name, error);
                    session.close_door(number)?;
                }
            }
        }
    }

    /// The rounds, or who failed. The floor is everyone's, and so the first's.
    fn try_rounds(
        &self,
        session: &mut Session,
        work: &Work,
        floor: &Task,
        count: RangeInclusive<usize>,
    ) -> Result<Vec<Series>, (usize, SessionError)> {
        let named =
            |contender: &Contender| Series { name: contender.name.clone(), samples: Vec::new() };
        let mut series: Vec<Series> = self.contenders.iter().map(named).collect();
        for round in 0..*count.end() {
            if round >= *count.start() && session.bar.is_late() {
                break;
            }
            let mut before = session.floor(floor).map_err(|error| (0, error))?[0];
            for turn in 0..self.contenders.len() {
                let index = (round + turn) % self.contenders.len();
                let sample = match self.contenders[index].way {
                    Way::Native => session.work(work),
                    Way::Door(number) => session.work_through(number, work),
                };
                let value = sample.map_err(|error| (index, error))?.ns;
                let after = session.floor(floor).map_err(|error| (0, error))?[0];
                series[index].samples.push(Beside { before, value, after });
                before = after;
            }
        }
        Ok(series)
    }

    /// Closes what was opened.
    pub fn close(self, session: &mut Session) -> Result<(), SessionError> {
        for contender in self.contenders {
            if let Way::Door(number) = contender.way {
                session.close_door(number)?;
            }
        }
        Ok(())
    }
}

/// Messages from here on are beside a copy. Unit: bytes.
pub const LONG: usize = 1024;
/// So many steady rounds outweigh all the others.
const STEADY_MIN: usize = 5;

/// The rounds of two in which the floor stood still around both, or all if those
/// are too few (then the second value is false).
fn pairs(ours: &Series, theirs: &Series) -> (Vec<(Beside, Beside)>, bool) {
    let all = || ours.samples.iter().copied().zip(theirs.samples.iter().copied());
    let steady: Vec<_> =
        all().filter(|(one, other)| one.is_steady() && other.is_steady()).collect();
    if steady.len() < STEADY_MIN { (all().collect(), false) } else { (steady, true) }
}

/// The first of `series` against each of the others, of messages of `size` bytes. The rows' floor is a time
/// that `task` took, if that is one of as much: a bounce is none of long messages.
pub fn rows(series: &[Series], what: &str, (label, size): (&str, usize), task: &Task) -> Vec<Row> {
    let Some((ours, others)) = series.split_first() else {
        return Vec::new();
    };
    let is_floor = size < LONG || !matches!(task, Task::Bounce { .. });
    let row = |theirs: &Series| {
        let (pairs, steady) = pairs(ours, theirs);
        let of = |value: fn(&(Beside, Beside)) -> f64| pairs.iter().map(value).collect::<Vec<_>>();
        let (ns, floor) = (median(&of(|pair| pair.0.value)), median(&of(|pair| pair.0.floor())));
        let ratio = Ratio::of(&of(|pair| pair.0.value / pair.1.value))?;
        let against =
            Against { name: theirs.name.clone(), ns: median(&of(|pair| pair.1.value)), ratio };
        // Ranks on different hosts have none.
        let measured = Some(floor).filter(|floor| floor.is_finite());
        let floor = measured.filter(|_| is_floor);
        let doubt = if steady || measured.is_none() { "" } else { ", the floor unsteady" };
        Some(Row {
            size: Some(size as u64),
            ns: Some(ns),
            floor,
            ratio: floor.map(|floor| ns / floor),
            against: Some(against),
            note: format!("{} of {} rounds{doubt}", pairs.len(), ours.samples.len()),
            ..Row::new(what, label)
        })
    };
    others.iter().filter_map(row).collect()
}

/// What the first takes above the floor, as a share of what another takes above it. Nothing where one took
/// less than the floor, on a machine so noisy that there is nothing to compare.
pub fn excess_of(series: &[Series], name: &str) -> Option<f64> {
    let (ours, others) = series.split_first()?;
    let theirs = others.iter().find(|series| series.name == name)?;
    let (pairs, _) = pairs(ours, theirs);
    let ours = median(&pairs.iter().map(|pair| pair.0.excess()).collect::<Vec<_>>());
    let theirs = median(&pairs.iter().map(|pair| pair.1.excess()).collect::<Vec<_>>());
    (ours > 0.0 && theirs > 0.0).then_some(ours / theirs)
}

/// The median ratio of the row against `name`.
pub fn ratio_to(rows: &[Row], name: &str) -> Option<f64> {
    let against = rows.iter().filter_map(|row| row.against.as_ref());
    against.filter(|against| against.name == name).map(|against| against.ratio.median).next()
}

#[cfg(test)]
mod tests {
    use super::super::door::BOUNCE;
    use super::*;

    fn series(name: &str, samples: &[(f64, f64, f64)]) -> Series {
        let sample = |&(before, value, after)| Beside { before, value, after };
        Series { name: name.to_owned(), samples: samples.iter().map(sample).collect() }
    }

    #[test]
    fn rounds_become_rows_of_ratios() {
        let mut ours = vec![(50.0, 100.0, 50.0); 4];
        let mut theirs = vec![(50.0, 200.0, 50.0); 4];
        // One with an unsteady floor here, one there.
        ours.extend([(50.0, 900.0, 90.0), (50.0, 110.0, 50.0), (60.0, 110.0, 60.0)]);
        theirs.extend([(90.0, 200.0, 90.0), (50.0, 900.0, 20.0), (60.0, 210.0, 60.0)]);
        let all = [series("kestrel", &ours), series("shm", &theirs)];
        let rows = rows(&all, "half round trip", ("8 B", 8), &BOUNCE);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].ns, rows[0].floor), (Some(100.0), Some(50.0)));
        assert_eq!(rows[0].note, "5 of 7 rounds");
        let against = rows[0].against.as_ref().expect("a ratio");
        assert_eq!((against.ratio.median, against.ratio.p10), (0.5, 0.5));
        assert!(against.ratio.p90 > 0.5);
        assert_eq!(ratio_to(&rows, "shm"), Some(0.5));
        assert_eq!(ratio_to(&rows, "tcp"), None);
        assert_eq!(excess_of(&all, "shm"), Some(50.0 / 150.0));
        assert_eq!(excess_of(&all, "tcp"), None);
    }

    #[test]
    fn an_excess_below_the_floor_is_compared_with_nothing() {
        let of = |ours, theirs| {
            let one = |value| [(50.0, value, 50.0)];
            excess_of(&[series("kestrel", &one(ours)), series("shm", &one(theirs))], "shm")
        };
        assert_eq!(of(60.0, 70.0), Some(0.5));
        for (ours, theirs) in [(40.0, 70.0), (60.0, 40.0), (40.0, 30.0), (60.0, 50.0)] {
            assert_eq!(of(ours, theirs), None, "{ours}, {theirs}");
        }
        assert_eq!(of(60.0, f64::NAN), None);
    }

    #[test]
    fn nothing_is_said_of_a_floor_that_is_not_there() {
        let none = [(f64::NAN, 100.0, f64::NAN); 3];
        let all = [series("kestrel", &none), series("shm", &none)];
        let row = &rows(&all, "x", ("8 B", 8), &BOUNCE)[0];
        assert_eq!((row.note.as_str(), row.floor, row.ratio), ("3 of 3 rounds", None, None));
    }

    #[test]
    fn a_bounce_is_no_floor_of_long_messages() {
        let samples = [(50.0, 100.0, 50.0); 5];
        let all = [series("kestrel", &samples), series("shm", &samples)];
        let row = &rows(&all, "x", ("8 MiB", 8 << 20), &BOUNCE)[0];
        assert_eq!((row.note.as_str(), row.floor, row.ratio), ("5 of 5 rounds", None, None));
    }

    #[test]
    fn a_floor_that_is_hardly_ever_steady_is_told() {
        let ours = [(50.0, 100.0, 50.0), (50.0, 100.0, 80.0), (50.0, 100.0, 80.0)];
        let theirs = [(50.0, 200.0, 50.0), (50.0, 400.0, 80.0), (50.0, 400.0, 80.0)];
        let all = [series("kestrel", &ours), series("shm", &theirs)];
        let row = &rows(&all, "x", ("8 B", 8), &BOUNCE)[0];
        assert!(row.note.starts_with("3 of 3") && row.note.contains("unsteady"), "{}", row.note);
        assert_eq!(row.against.as_ref().map(|against| against.ratio.median), Some(0.25));
    }
}

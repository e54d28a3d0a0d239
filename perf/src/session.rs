//! Rank 0's view of a run: the other ranks, the floor, the peer, the options.

use crate::cli::Options;
use crate::door::DoorOptions;
use crate::fabric::{FabricError, FabricOptions};
use crate::floor::{Floor, Task};
use crate::link::{Link, LinkError};
use crate::measure::{Sample, Work};
use crate::peer::{Peer, PeerError};
use crate::progress::Bar;
use crate::worker::{Answer, Order, Worker};
use kestrel::composite::Traffic;
use kestrel_core::config::TransportChoice;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest that a rank may take for one order.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(120);
/// What a row takes, if it has these samples by then: an emulated device is a thousand times slower
/// than memory, and a table that says nothing before all rows are there is no use.
const ROW_MAX: Duration = Duration::from_secs(2);
const SAMPLES_MIN: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{0}")]
    Rank(String),
    #[error("rank {rank}: {source}")]
    Link { rank: usize, source: LinkError },
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("rank {rank} answered something else than asked: another version?")]
    Confused { rank: usize },
    #[error("{needed} ranks are needed and {have} are here")]
    TooFewRanks { needed: usize, have: usize },
}

pub struct Session {
    pub options: Options,
    pub bar: Bar,
    pub cores: Vec<usize>,
    pub peer: Option<Peer>,
    worker: Worker,
    /// To ranks 1, 2, …
    links: Vec<Link>,
    /// How many ranks have an open endpoint.
    opened: usize,
    pub floor_missing: Option<String>,
    /// The cores that ranks 0 and 1 are pinned to, if they are of one host and have one each.
    pair: Option<[usize; 2]>,
}

impl Session {
    pub fn new(
        options: Options,
        cores: Vec<usize>,
        links: Vec<Link>,
        libfabric: Option<PathBuf>,
    ) -> Session {
        Session {
            options,
            bar: Bar::new(),
            cores,
            peer: None,
            worker: Worker::new(0, libfabric),
            links,
            opened: 0,
            floor_missing: Some("not shared yet".to_owned()),
            pair: None,
        }
    }

    pub fn ranks(&self) -> usize {
        self.links.len() + 1
    }

    pub fn has_floor(&self) -> bool {
        self.floor_missing.is_none()
    }

    /// Shares memory with rank 1. Ranks of different hosts, or of one core, have no
    /// floor: the reason is kept, and ratios stay away.
    pub fn share_floor(&mut self) -> Result<(), SessionError> {
        let (floor, token) = match Floor::create() {
            Ok(created) => created,
            Err(error) => {
                self.floor_missing = Some(error.to_string());
                return Ok(());
            }
        };
        self.worker.floor = Some(floor);
        let own = token.core;
        (self.floor_missing, self.pair) = match self.tell(1, &Order::JoinFloor(token))? {
            Answer::Failed { reason, .. } => (Some(reason), None),
            Answer::Joined(other) => (None, own.zip(other).map(|(own, other)| [own, other])),
            _ => return Err(SessionError::Confused { rank: 1 }),
        };
        Ok(())
    }

    /// The cores that ranks 0 and 1 sit on, as far as that is known: a launcher, or the second of two shells,
    /// has its own.
    pub fn cores_of_pair(&self) -> Vec<usize> {
        self.pair.map_or_else(|| self.cores.clone(), Vec::from)
    }

    /// The cores for a peer that takes the ranks' place.
    ///
    /// # Errors
    /// Why it could not take it.
    pub fn cores_for_peer(&self) -> Result<Vec<usize>, PeerError> {
        if let Some(reason) = &self.floor_missing {
            return Err(PeerError::Apart(reason.clone()));
        }
        match self.options.fabric.transport()? {
            TransportChoice::Verbs => Err(PeerError::Apart("the ranks use verbs".to_owned())),
            _ => Ok(self.cores_of_pair()),
        }
    }

    /// Opens and connects endpoints of ranks 0 to `count - 1`.
    pub fn open(&mut self, count: usize) -> Result<(), SessionError> {
        if count > self.ranks() {
            return Err(SessionError::TooFewRanks { needed: count, have: self.ranks() });
        }
        self.close()?;
        let fabric: FabricOptions = self.options.fabric.clone();
        let mut addresses = Vec::new();
        for (rank, answer) in self.all(count, &Order::Open(fabric))?.into_iter().enumerate() {
            match answer {
                Answer::Address(address) => addresses.push(address),
                _ => return Err(SessionError::Confused { rank }),
            }
        }
        self.all(count, &Order::Connect(addresses))?;
        self.opened = count;
        Ok(())
    }

    /// Closes the endpoints that are open, with what only one may have at a time, as a core.
    pub fn close(&mut self) -> Result<(), SessionError> {
        match std::mem::take(&mut self.opened) {
            0 => Ok(()),
            count => self.all(count, &Order::Close).map(drop),
        }
    }

    /// What rank 0 has sent since its endpoint was opened, and through which transport.
    pub fn traffic(&self) -> Option<Traffic> {
        self.worker.traffic()
    }

    /// One measurement by the ranks that are open; rank 0's figure.
    pub fn work(&mut self, work: &Work) -> Result<Sample, SessionError> {
        Ok(self.samples(work)?[0])
    }

    /// Whether a row that began then and has so many samples makes do with them: time is short,
    /// or a transport is so slow that more of them would take minutes.
    pub fn is_enough(&self, samples: usize, began: Instant) -> bool {
        self.bar.is_late() || samples >= SAMPLES_MIN && began.elapsed() > ROW_MAX
    }

    /// As [`Self::is_enough`], where a peer's turns take part of the time: those are not ours to cut.
    pub fn is_enough_of_ours(&self, samples: usize, began: Instant) -> bool {
        self.bar.is_late() || self.peer.is_none() && self.is_enough(samples, began)
    }

    /// Up to `count` measurements, fewer if time is short; rank 0's figures.
    pub fn several(&mut self, count: usize, work: &Work) -> Result<Vec<f64>, SessionError> {
        self.figures(count, |session| Ok(session.work(work)?.ns))
    }

    /// As [`Self::several`]; the figures of the slowest rank.
    pub fn several_slowest(&mut self, count: usize, work: &Work) -> Result<Vec<f64>, SessionError> {
        self.figures(count, |session| session.work_slowest(work))
    }

    fn figures(
        &mut self,
        count: usize,
        measure: impl Fn(&mut Session) -> Result<f64, SessionError>,
    ) -> Result<Vec<f64>, SessionError> {
        let (began, mut figures) = (Instant::now(), vec![measure(self)?]);
        while figures.len() < count && !self.is_enough(figures.len(), began) {
            figures.push(measure(self)?);
        }
        Ok(figures)
    }

    /// One measurement; the figure of the slowest rank.
    pub fn work_slowest(&mut self, work: &Work) -> Result<f64, SessionError> {
        Ok(self.samples(work)?.iter().map(|sample| sample.ns).fold(0.0, f64::max))
    }

    fn samples(&mut self, work: &Work) -> Result<Vec<Sample>, SessionError> {
        let answers = self.all(self.opened, &Order::Work(work.clone()))?;
        let sample = |(rank, answer)| match answer {
            Answer::Sample(sample) => Ok(sample),
            _ => Err(SessionError::Confused { rank }),
        };
        answers.into_iter().enumerate().map(sample).collect()
    }

    /// Opens and connects endpoints of the first two ranks behind libfabric.
    pub fn open_door(&mut self, number: usize, options: &DoorOptions) -> Result<(), SessionError> {
        let mut addresses = Vec::new();
        let answers = self.all(2, &Order::OpenDoor(number, options.clone()))?;
        for (rank, answer) in answers.into_iter().enumerate() {
            match answer {
                Answer::Address(address) => addresses.push(address),
                _ => return Err(SessionError::Confused { rank }),
            }
        }
        self.all(2, &Order::ConnectDoor(number, addresses))?;
        Ok(())
    }

    /// The version of the libfabric that is loaded, if one is.
    pub fn libfabric_version(&self) -> Option<String> {
        self.worker.library.as_ref().map(|library| library.version())
    }

    pub fn close_door(&mut self, number: usize) -> Result<(), SessionError> {
        self.all(2, &Order::CloseDoor(number)).map(drop)
    }

    /// As [`Self::work`], through such endpoints.
    pub fn work_through(&mut self, number: usize, work: &Work) -> Result<Sample, SessionError> {
        match self.all(2, &Order::WorkThrough(number, work.clone()))?.swap_remove(0) {
            Answer::Sample(sample) => Ok(sample),
            _ => Err(SessionError::Confused { rank: 0 }),
        }
    }

    /// The floor's figures, or as many times "not a number" without a floor.
    pub fn floor(&mut self, task: &Task) -> Result<Vec<f64>, SessionError> {
        if !self.has_floor() {
            return Ok(vec![
                f64::NAN;
                if let Task::Copies { plans, .. } = task { plans.len() } else { 1 }
            ]);
        }
        match self.all(2, &Order::Floor(task.clone()))?.swap_remove(0) {
            Answer::Figures(figures) => Ok(figures),
            _ => Err(SessionError::Confused { rank: 0 }),
        }
    }

    pub fn peer_latency_ns(&self, size: usize) -> Result<f64, SessionError> {
        Ok(self.peer.as_ref().ok_or(PeerError::NotFound)?.latency_ns(size)?)
    }

    pub fn peer_rate_ns(&self, size: usize) -> Result<f64, SessionError> {
        Ok(self.peer.as_ref().ok_or(PeerError::NotFound)?.rate_ns(size)?)
    }

    /// Ends the other ranks; whoever is gone already is fine.
    pub fn quit(&mut self) {
        for link in &mut self.links {
            let _ = link.send(&Order::Quit);
        }
    }

    /// Gives ranks 0 to `count - 1` the same order at once. Every answer is
    /// awaited, also when one failed.
    fn all(&mut self, count: usize, order: &Order) -> Result<Vec<Answer>, SessionError> {
        let links = &mut self.links[..count - 1];
        for (index, link) in links.iter_mut().enumerate() {
            link.send(order).map_err(|source| SessionError::Link { rank: index + 1, source })?;
        }
        let mut answers = vec![Ok(self.worker.obey(order))];
        for (index, link) in links.iter_mut().enumerate() {
            let answer = link.receive(ANSWER_WAIT_MAX);
            answers.push(answer.map_err(|source| SessionError::Link { rank: index + 1, source }));
        }
        unless_failed(answers)
    }

    fn tell(&mut self, rank: usize, order: &Order) -> Result<Answer, SessionError> {
        let have = self.ranks();
        let link = self
            .links
            .get_mut(rank - 1)
            .ok_or(SessionError::TooFewRanks { needed: rank + 1, have })?;
        link.send(order)
            .and_then(|()| link.receive(ANSWER_WAIT_MAX))
            .map_err(|source| SessionError::Link { rank, source })
    }
}

/// The answers, or the first failure: of those who did not merely wait for the one that failed, if there
/// are any.
fn unless_failed(answers: Vec<Result<Answer, SessionError>>) -> Result<Vec<Answer>, SessionError> {
    let (mut found, mut stall) = (Vec::new(), None);
    for answer in answers {
        match answer? {
            Answer::Failed { reason, stalled: true } => {
                stall.get_or_insert(reason);
            }
            Answer::Failed { reason, stalled: false } => return Err(SessionError::Rank(reason)),
            answer => found.push(answer),
        }
    }
    stall.map_or(Ok(found), |reason| Err(SessionError::Rank(reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_told_rather_than_who_waited_for_it() {
        let failed =
            |reason: &str, stalled| Ok(Answer::Failed { reason: reason.to_owned(), stalled });
        let told = |answers| unless_failed(answers).expect_err("one failed").to_string();
        assert_eq!(told(vec![failed("waited", true), failed("broke", false)]), "broke");
        assert_eq!(told(vec![failed("waited", true), Ok(Answer::Done)]), "waited");
        let gone = || Err(SessionError::Link { rank: 1, source: LinkError::Closed });
        assert!(
            told(vec![failed("waited", true), gone()]).contains("rank 1: the other rank is gone")
        );
        assert!(
            unless_failed(vec![Ok(Answer::Done), Ok(Answer::Done)]).is_ok_and(|it| it.len() == 2)
        );
    }
}

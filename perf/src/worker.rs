//! What one rank does when it is told to: its half of the floor, its endpoint,
//! its share of each measurement.

use crate::buffer::Buffer;
use crate::cores;
use crate::door::{self, DoorOptions, Library};
use crate::fabric::{FabricOptions, Side};
use crate::floor::region::RegionToken;
use crate::floor::{Floor, FloorError, Task};
use crate::link::Link;
use crate::measure::{self, MeasureError, Rank, Sample, Work};
use kestrel::composite::Traffic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// A rank that hears nothing for this long takes rank 0 for lost.
const ORDERS_WAIT_MAX: Duration = Duration::from_secs(900);

const NOT_FOR_COMPARE: &str = "it was not started for a comparison, and so loads no libfabric: start it by \
     kestrel-perf compare --connect HOST:PORT, with the --libfabric and --library of its host";

/// Rank 0's orders.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    JoinFloor(RegionToken),
    Floor(Task),
    Open(FabricOptions),
    /// The addresses of all ranks that take part, by rank.
    Connect(Vec<Vec<u8>>),
    Work(Work),
    /// Opens an endpoint behind libfabric, known by a number.
    OpenDoor(usize, DoorOptions),
    ConnectDoor(usize, Vec<Vec<u8>>),
    WorkThrough(usize, Work),
    CloseDoor(usize),
    Close,
    Quit,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    /// To [`Order::JoinFloor`]: the core that the rank is pinned to.
    Joined(Option<usize>),
    Figures(Vec<f64>),
    Address(Vec<u8>),
    Sample(Sample),
    /// Whether it only waited in vain: another rank knows the cause then.
    Failed {
        reason: String,
        stalled: bool,
    },
}

fn is_stall(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(MeasureError::Stalled { .. }))
        || matches!(error.downcast_ref(), Some(FloorError::Stalled))
}

pub struct Worker {
    rank: usize,
    pub floor: Option<Floor>,
    side: Option<Side>,
    peers: Vec<u64>,
    /// What is open behind libfabric, with its peers.
    doors: BTreeMap<usize, (door::Side, Vec<u64>)>,
    pub library: Option<Library>,
    /// Where that is, by this rank's own command line: whoever gives orders names no file to load.
    libfabric: Option<PathBuf>,
    outgoing: Buffer,
    incoming: Buffer,
}

impl Worker {
    /// `libfabric` is what may be loaded; none for whom nothing may.
    pub fn new(rank: usize, libfabric: Option<PathBuf>) -> Worker {
        Worker {
            rank,
            floor: None,
            side: None,
            peers: Vec::new(),
            doors: BTreeMap::new(),
            library: None,
            libfabric,
            outgoing: Buffer::new(1 << 20),
            incoming: Buffer::new(1 << 20),
        }
    }

    /// What this rank sent, and through which transport, if its endpoint is open.
    pub fn traffic(&self) -> Option<Traffic> {
        self.side.as_ref()?.traffic().ok()
    }

    /// Carries an order out. Failures are sentences: they may have to travel.
    pub fn obey(&mut self, order: &Order) -> Answer {
        self.try_obey(order).unwrap_or_else(|error| Answer::Failed {
            reason: format!("rank {}: {error}", self.rank),
            stalled: is_stall(&*error),
        })
    }

    fn try_obey(&mut self, order: &Order) -> Result<Answer, Box<dyn Error>> {
        match order {
            Order::JoinFloor(token) => {
                let floor = Floor::join(token)?;
                let own = cores::only();
                if let Some(core) = token.core.filter(|core| own == Some(*core)) {
                    return Err(format!("it shares core {core} with rank 0").into());
                }
                self.floor = Some(floor);
                Ok(Answer::Joined(own))
            }
            Order::Floor(task) => match &mut self.floor {
                Some(floor) => Ok(Answer::Figures(floor.run(task)?)),
                None => Err("there is no shared floor".into()),
            },
            Order::Open(options) => {
                self.side = None;
                let side = Side::open(options)?;
                let address = side.address()?;
                self.side = Some(side);
                Ok(Answer::Address(address))
            }
            Order::Connect(addresses) => {
                let side = self.side.as_mut().ok_or("no endpoint is open")?;
                self.peers = addresses
                    .iter()
                    .map(|address| side.insert(address))
                    .collect::<Result<_, _>>()?;
                Ok(Answer::Done)
            }
            Order::Work(work) => {
                let side = self.side.as_mut().ok_or("no endpoint is open")?;
                let rank = Rank {
                    side,
                    rank: self.rank,
                    peers: &self.peers,
                    outgoing: &mut self.outgoing,
                    incoming: &mut self.incoming,
                };
                Ok(Answer::Sample(measure::run(work, rank)?))
            }
            Order::OpenDoor(..)
            | Order::ConnectDoor(..)
            | Order::WorkThrough(..)
            | Order::CloseDoor(_) => self.try_obey_at_door(order),
            Order::Close | Order::Quit => {
                self.side = None;
                self.doors.clear();
                Ok(Answer::Done)
            }
        }
    }

    fn try_obey_at_door(&mut self, order: &Order) -> Result<Answer, Box<dyn Error>> {
        let unknown = "no such door is open";
        match order {
            Order::OpenDoor(number, options) => {
                self.doors.remove(number);
                let library = match self.library {
                    Some(library) => library,
                    None => {
                        let path = self.libfabric.as_deref().ok_or(NOT_FOR_COMPARE)?;
                        *self.library.insert(Library::open(path)?)
                    }
                };
                let side = door::Side::open(library, options)?;
                let address = side.address()?;
                self.doors.insert(*number, (side, Vec::new()));
                Ok(Answer::Address(address))
            }
            Order::ConnectDoor(number, addresses) => {
                let (side, peers) = self.doors.get_mut(number).ok_or(unknown)?;
                *peers = addresses
                    .iter()
                    .map(|address| side.insert(address))
                    .collect::<Result<_, _>>()?;
                Ok(Answer::Done)
            }
            Order::WorkThrough(number, work) => {
                let (side, peers) = self.doors.get_mut(number).ok_or(unknown)?;
                let rank = Rank {
                    side,
                    rank: self.rank,
                    peers,
                    outgoing: &mut self.outgoing,
                    incoming: &mut self.incoming,
                };
                Ok(Answer::Sample(measure::run(work, rank)?))
            }
            Order::CloseDoor(number) => {
                self.doors.remove(number);
                Ok(Answer::Done)
            }
            _ => Err("this order is not for a door".into()),
        }
    }

    /// Serves rank 0 until it says to quit or goes away.
    pub fn serve(mut self, mut link: Link) -> Result<(), crate::link::LinkError> {
        loop {
            let order: Order = link.receive(ORDERS_WAIT_MAX)?;
            let answer = self.obey(&order);
            link.send(&answer)?;
            if matches!(order, Order::Quit) {
                return Ok(());
            }
        }
    }
}

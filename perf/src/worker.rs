//! What one rank does when it is told to: its half of the floor, its endpoint,
//! its share of each measurement.

use crate::buffer::Buffer;
use crate::fabric::{FabricOptions, Side};
use crate::floor::region::RegionToken;
use crate::floor::{Floor, Task};
use crate::link::Link;
use crate::measure::{self, Rank, Sample, Work};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A rank that hears nothing for this long takes rank 0 for lost.
const ORDERS_WAIT_MAX: Duration = Duration::from_secs(900);

/// Rank 0's orders.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    JoinFloor(RegionToken),
    Floor(Task),
    Open(FabricOptions),
    /// The addresses of all ranks that take part, by rank.
    Connect(Vec<Vec<u8>>),
    Work(Work),
    Close,
    Quit,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Figures(Vec<f64>),
    Address(Vec<u8>),
    Sample(Sample),
    Failed(String),
}

pub struct Worker {
    rank: usize,
    pub floor: Option<Floor>,
    side: Option<Side>,
    peers: Vec<u64>,
    outgoing: Buffer,
    incoming: Buffer,
}

impl Worker {
    pub fn new(rank: usize) -> Worker {
        Worker {
            rank,
            floor: None,
            side: None,
            peers: Vec::new(),
            outgoing: Buffer::new(1 << 20),
            incoming: Buffer::new(1 << 20),
        }
    }

    /// Carries an order out. Failures are sentences: they may have to travel.
    pub fn obey(&mut self, order: &Order) -> Answer {
        self.try_obey(order)
            .unwrap_or_else(|error| Answer::Failed(format!("rank {}: {error}", self.rank)))
    }

    fn try_obey(&mut self, order: &Order) -> Result<Answer, Box<dyn std::error::Error>> {
        match order {
            Order::JoinFloor(token) => {
                self.floor = Some(Floor::join(*token)?);
                Ok(Answer::Done)
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
            Order::Close | Order::Quit => {
                self.side = None;
                Ok(Answer::Done)
            }
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

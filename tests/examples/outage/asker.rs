//! Who asks: it keeps operations of every kind under way until one fails.

use std::{collections::BTreeMap, time::Instant};

use kestrel::{FI_ADDR_UNSPEC, PostError};
use kestrel_core::{
    error::{Errno, HasErrno},
    one_sided::RemoteSegment,
    protocol::atomic::{AtomicCall, AtomicOperation, Datatype, Form},
};
use kestrel_tests::{
    bed::{Memory, pattern},
    one_sided::Atomic,
};

use crate::{
    COUNTER, ENOUGH, Failure, HELLO, KINDS, Kind, LEFT, Node, PATIENCE, SHARE, TAKEN, TOLD,
};

/// How an operation of ours has ended: well, or why not.
type Outcome = (Kind, Result<(), String>);

pub struct Asker {
    node: Node,
    /// Where the peer's region begins, and its key.
    region: (u64, u64),
    operand: Memory,
    before: Memory,
    /// How many of each kind have ended well.
    good: BTreeMap<Kind, u64>,
}

impl Asker {
    /// Until the peer is reached again.
    pub fn run(node: Node) -> Result<(), Failure> {
        Asker::until_all_have_ended(node)?.reach_again()
    }

    /// Until every operation of every kind has ended: what is left.
    pub fn until_all_have_ended(node: Node) -> Result<Asker, Failure> {
        let region = Asker::told(&node)?;
        let (operand, before) = (Memory::from(1_u64.to_le_bytes().to_vec()), Memory::zeroed(8));
        let mut asker = Asker { node, region, operand, before, good: BTreeMap::new() };
        let mut posted: Vec<Kind> = KINDS.to_vec();
        for &kind in &posted {
            asker.post(kind)?;
        }
        let start = Instant::now();
        let (mut last, mut is_told) = (Instant::now(), false);
        // Until the first fails.
        let (kind, reason) = loop {
            match asker.next(&mut posted)? {
                Some((kind, Ok(()))) => {
                    last = Instant::now();
                    asker.post(kind)?;
                    posted.push(kind);
                }
                Some((kind, Err(reason))) => break (kind, reason),
                None => {}
            }
            // Those that end by themselves.
            let ended = |kind: &Kind| asker.good.get(kind).is_some_and(|&good| good >= ENOUGH);
            if !is_told && KINDS.iter().filter(|kind| ended(kind)).count() == KINDS.len() - 2 {
                println!("all kinds are under way");
                is_told = true;
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("nothing fails: {:?} ended well", asker.good).into());
            }
        };
        Asker::failed(kind, &reason, last);
        while !posted.is_empty() {
            if let Some((kind, Err(reason))) = asker.next(&mut posted)? {
                Asker::failed(kind, &reason, last);
            }
            if last.elapsed() > PATIENCE {
                return Err(format!("{posted:?} do not end").into());
            }
        }
        println!("all have ended {} ms after the last success", last.elapsed().as_millis());
        Ok(asker)
    }

    /// The endpoint.
    pub fn node(&self) -> &Node {
        &self.node
    }

    fn failed(kind: Kind, reason: &str, last: Instant) {
        println!("{kind:?} failed after {} ms: {reason}", last.elapsed().as_millis());
    }

    /// Asks the peer for its region.
    pub fn told(node: &Node) -> Result<(u64, u64), Failure> {
        node.endpoint.receive(vec![0; 16], FI_ADDR_UNSPEC, TOLD)?;
        node.endpoint.send(vec![0; 8], node.peer, HELLO)?;
        let start = Instant::now();
        // Where a packet is lost, the answer may come before the question is known to have arrived.
        let (mut asked, mut answer) = (false, None);
        while start.elapsed() < PATIENCE {
            match node.next()? {
                Some((HELLO, ended)) => asked = ended.map(|_| true)?,
                Some((_, ended)) => answer = ended?.take_buffer(),
                None => {}
            }
            if let (true, Some(told)) = (asked, &answer) {
                let word = |at| u64::from_le_bytes(told[at..at + 8].try_into().expect("8 bytes"));
                return Ok((word(0), word(8)));
            }
        }
        Err("the peer says nothing".into())
    }

    /// Posts one as soon as there is room.
    fn post(&self, kind: Kind) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            match self.try_to_post(kind) {
                Err(error) if error.errno() == Errno::AGAIN && start.elapsed() < PATIENCE => {
                    std::thread::yield_now();
                }
                posted => return Ok(posted?),
            }
        }
    }

    fn try_to_post(&self, kind: Kind) -> Result<(), PostError> {
        let (endpoint, to) = (&self.node.endpoint, self.node.peer);
        let ((base, key), context) = (self.region, kind as u64);
        let posted = match kind {
            Kind::Short => endpoint.send_tagged(vec![1; 64], to, TAKEN, context),
            Kind::Long => endpoint.send_tagged(vec![1; SHARE], to, TAKEN, context),
            Kind::Unmatched => endpoint.send_tagged(vec![1; SHARE], to, LEFT, context),
            Kind::Write => {
                let share = base + SHARE as u64;
                endpoint.write(pattern(2, SHARE), to, share, key, context)
            }
            Kind::Read => endpoint.read(vec![0; SHARE], to, base, key, context),
            Kind::Receive => endpoint.receive_tagged(vec![0; 8], to, LEFT, 0, context),
            Kind::FetchAdd => return self.fetch_and_add(to, base + COUNTER, key, context),
        };
        posted.map_err(|refused| refused.error)
    }

    fn fetch_and_add(
        &self,
        to: u64,
        address: u64,
        key: u64,
        context: u64,
    ) -> Result<(), PostError> {
        let (operation, datatype, form) = (AtomicOperation::Sum, Datatype::Uint64, Form::Fetch);
        let segments = &[RemoteSegment { address, length: 8, key }];
        let (operands, results) = (self.operand.all(), self.before.all());
        let call = AtomicCall { operation, datatype, form };
        let atomic = Atomic { operands, results, segments, context, ..Atomic::new(call) };
        self.node.endpoint.post_atomic(atomic.post(to))
    }

    /// The next of our operations that has ended, taken from those that are under way.
    fn next(&mut self, posted: &mut Vec<Kind>) -> Result<Option<Outcome>, Failure> {
        let Some((context, ended)) = self.node.next()? else {
            return Ok(None);
        };
        let nth = posted.iter().position(|&kind| kind as u64 == context);
        let kind = posted.swap_remove(nth.ok_or(format!("{context} has ended twice"))?);
        let mut entry = match ended {
            Ok(entry) => entry,
            Err(reason) => return Ok(Some((kind, Err(reason)))),
        };
        if [Kind::Unmatched, Kind::Receive].contains(&kind) {
            return Err(format!("{kind:?} ended well").into());
        }
        let read = (kind == Kind::Read).then(|| entry.take_buffer()).flatten();
        if read.is_some_and(|read| read != pattern(1, COUNTER as usize + 8)[..SHARE]) {
            return Err("what was read is another".into());
        }
        *self.good.entry(kind).or_default() += 1;
        Ok(Some((kind, Ok(()))))
    }

    /// Sends until the peer, or who came in its place, has a message.
    fn reach_again(&self) -> Result<(), Failure> {
        let (start, mut attempts) = (Instant::now(), 0);
        while start.elapsed() < PATIENCE {
            attempts += 1;
            self.post(Kind::Short)?;
            let ended = loop {
                match self.node.next()? {
                    Some((context, ended)) if context == Kind::Short as u64 => break ended,
                    _ if start.elapsed() > PATIENCE => return Err("a send does not end".into()),
                    _ => {}
                }
            };
            if ended.is_ok() {
                println!("reached again by attempt {attempts}");
                return Ok(());
            }
        }
        Err("the peer is never reached again".into())
    }
}

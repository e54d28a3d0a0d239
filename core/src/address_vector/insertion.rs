//! Inserting addresses: one, many, a range of nodes and services, or with
//! the results as events.

use super::writer::Writer;
use super::{
    Address, AddressError, AddressVector, AddressVectorError, AddressVectorFlags, FI_ADDR_NOTAVAIL,
    FiAddr, SymmetricRange,
};
use crate::error::HasErrno;
use crate::event_queue::{ErrorEvent, Event};

/// What became of each address of one insertion, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Insertion {
    /// The number that it has in the vector, or why it has none.
    pub results: Vec<Result<FiAddr, AddressVectorError>>,
}

impl Insertion {
    /// How many were inserted: what `fi_av_insert` returns.
    pub fn count(&self) -> usize {
        self.results.iter().filter(|result| result.is_ok()).count()
    }

    /// What `fi_av_insert` writes to its `fi_addr` array: failed entries are [`FI_ADDR_NOTAVAIL`].
    pub fn fi_addrs(&self) -> impl Iterator<Item = FiAddr> {
        self.results.iter().map(|result| *result.as_ref().unwrap_or(&FI_ADDR_NOTAVAIL))
    }

    /// What `FI_SYNC_ERR` writes: "Successful insertions will be updated to
    /// 0. Failures will contain a fabric errno code."
    pub fn sync_errors(&self) -> impl Iterator<Item = i32> {
        self.results.iter().map(|result| result.as_ref().err().map_or(0, |error| error.errno().0))
    }
}

/// What is to be inserted.
#[derive(Clone, Debug)]
pub enum Candidate {
    /// One address.
    Address(Address),
    /// All addresses of a range, in its order.
    Range(SymmetricRange),
    /// So many addresses of which this is known.
    Failed {
        /// Why each of them is not inserted.
        error: AddressVectorError,
        /// How many.
        count: usize,
    },
}

impl From<Address> for Candidate {
    fn from(address: Address) -> Self {
        Candidate::Address(address)
    }
}

impl From<SymmetricRange> for Candidate {
    fn from(range: SymmetricRange) -> Self {
        Candidate::Range(range)
    }
}

impl From<Result<Address, AddressError>> for Candidate {
    fn from(address: Result<Address, AddressError>) -> Self {
        match address {
            Ok(address) => Candidate::Address(address),
            Err(error) => Candidate::Failed { error: error.into(), count: 1 },
        }
    }
}

impl Candidate {
    /// How many addresses it stands for.
    pub fn count(&self) -> usize {
        match self {
            Candidate::Address(_) => 1,
            Candidate::Range(range) => range.len(),
            Candidate::Failed { count, .. } => *count,
        }
    }
}

/// What comes along with the addresses of an insertion.
#[derive(Default)]
pub enum Marks<'a> {
    /// Nothing.
    #[default]
    None,
    /// Nothing, and nobody is told the numbers: each address has that of its position, so one that
    /// fails leaves a number unused until the call is over. Not in vectors with a name, whose
    /// numbers others take as well.
    Places,
    /// What completions call the address at a position: FI_AV_USER_ID.
    UserIds(&'a mut dyn FnMut(usize) -> FiAddr),
    /// The handle of the authorization key that the address at a position is for: FI_AUTH_KEY.
    AuthKeys(&'a mut dyn FnMut(usize) -> FiAddr),
}

/// One insertion under way: the holder of the writer mutex.
struct Inserter<'a, 'm, R> {
    vector: &'a AddressVector,
    writer: &'a mut Writer,
    marks: Marks<'m>,
    /// Takes what became of each address.
    report: R,
    at: usize,
    count: usize,
    /// Numbers that are left unused.
    places: Vec<FiAddr>,
    /// Addresses that failed since the last one that did not: only what follows shifts without them.
    failed: usize,
}

impl<R: FnMut(Result<FiAddr, AddressVectorError>)> Inserter<'_, '_, R> {
    fn insert(&mut self, candidate: Candidate) {
        match candidate {
            Candidate::Address(address) => self.insert_address(address),
            Candidate::Range(range) => self.insert_range(range),
            Candidate::Failed { error, count } => self.fail(&error, count),
        }
    }

    fn fail(&mut self, error: &AddressVectorError, count: usize) {
        for _ in 0..count {
            self.tell(Err(error.clone()));
        }
    }

    fn insert_address(&mut self, address: Address) {
        self.hold_places();
        // Before the result is told: the two may be in one place.
        let result = match &mut self.marks {
            Marks::None | Marks::Places => self.vector.insert_locked(self.writer, address),
            Marks::UserIds(id_at) => {
                let id = id_at(self.at);
                let result = self.vector.insert_locked(self.writer, address);
                if let Ok(fi_addr) = &result {
                    self.vector.name_locked(self.writer, *fi_addr, id);
                }
                result
            }
            Marks::AuthKeys(handle_at) => {
                let handle = handle_at(self.at);
                self.vector.insert_for_key(self.writer, address, handle)
            }
        };
        self.tell(result);
    }

    fn insert_range(&mut self, range: SymmetricRange) {
        self.hold_places();
        let run = match &self.marks {
            Marks::None | Marks::Places => self.vector.insert_run(self.writer, range),
            Marks::UserIds(_) | Marks::AuthKeys(_) => None,
        };
        match run {
            Some(first) => (first..).take(range.len()).for_each(|fi_addr| self.tell(Ok(fi_addr))),
            None => {
                self.vector.expect(self.writer, range.len());
                range.addresses().for_each(|address| self.insert_address(address));
            }
        }
    }

    /// Leaves the numbers unused that those which failed would have had.
    fn hold_places(&mut self) {
        for _ in 0..std::mem::take(&mut self.failed) {
            let place = self.vector.hold_place(self.writer, self.places.len());
            self.places.extend(place);
        }
    }

    fn tell(&mut self, result: Result<FiAddr, AddressVectorError>) {
        self.failed += usize::from(result.is_err() && matches!(self.marks, Marks::Places));
        self.at += 1;
        self.count += usize::from(result.is_ok());
        (self.report)(result);
    }
}

impl AddressVector {
    /// Inserts one address and answers the lowest unused number, its own now.
    ///
    /// Cost: control path; takes the writer mutex, may allocate.
    /// # Errors
    /// [`AddressVectorError::Wildcard`], [`AddressVectorError::Full`],
    /// [`AddressVectorError::OutOfMemory`], and what keeps a shared vector from being written: another
    /// thread of this process, too, if it inserts for longer than others wait.
    /// # Reference
    /// fi_av(3), `fi_av_insert`
    pub fn insert_one(&self, address: Address) -> Result<FiAddr, AddressVectorError> {
        let _held = self.hold()?;
        let mut writer = self.lock();
        self.insert_locked(&mut writer, address)
    }

    /// Inserts addresses in order; one that fails does not stop the next, and the answer has the
    /// error of each, as [`Self::insert_one`] has it. Cost: as there, once for all.
    /// Reference: fi_av(3), `fi_av_insert`.
    pub fn insert(&self, addresses: &[Address]) -> Insertion {
        let mut results = Vec::with_capacity(addresses.len());
        self.insert_each(addresses.iter().copied(), Marks::None, |result| results.push(result));
        Insertion { results }
    }

    /// Inserts what may or may not have been an address, in order, and tells
    /// `report` of each result. Answers how many were inserted.
    ///
    /// `report` and what `marks` asks are called under the writer mutex and must not come back
    /// here; each mark is asked for before its result is told. A vector that was opened with
    /// `USER_ID` takes no ids here: see [`Self::set_user_id`].
    pub fn insert_each(
        &self,
        candidates: impl IntoIterator<Item = impl Into<Candidate>>,
        marks: Marks<'_>,
        report: impl FnMut(Result<FiAddr, AddressVectorError>),
    ) -> usize {
        let held = self.hold().and_then(|held| match marks {
            // "Using the FI_AV_USER_ID flag per insert is invalid if the AV was opened with the
            // FI_AV_USER_ID or if the corresponding domain was configured with FI_AV_AUTH_KEY."
            Marks::UserIds(_) if self.has_user_ids() || self.has_auth_keys() => {
                Err(AddressVectorError::UserIdAtInsertion)
            }
            Marks::AuthKeys(_) if !self.has_auth_keys() => Err(AddressVectorError::NoAuthKeys),
            _ => Ok(held),
        });
        let writer = &mut *self.lock();
        let places = Vec::new();
        let mut inserter =
            Inserter { vector: self, writer, marks, report, at: 0, count: 0, places, failed: 0 };
        for candidate in candidates.into_iter().map(Into::into) {
            match &held {
                Ok(_) => inserter.insert(candidate),
                Err(error) => inserter.fail(error, candidate.count()),
            }
        }
        let Inserter { writer, places, count, .. } = inserter;
        self.free_places(writer, &places);
        count
    }

    /// Whether insertions report through an event queue.
    pub fn is_asynchronous(&self) -> bool {
        self.attributes.flags.contains(AddressVectorFlags::EVENT)
    }

    /// Inserts at once, and reports as an address vector opened with `FI_EVENT` does:
    /// "There will be one EQ error entry generated for each failed address
    /// insertion, followed by one non-error event". The error's `data` is the
    /// address's position, the event's the number inserted.
    ///
    /// # Errors
    /// [`AddressVectorError::NoEventQueue`] before a queue is bound, and nothing is inserted.
    pub fn insert_with_events(
        &self,
        candidates: impl IntoIterator<Item = impl Into<Candidate>>,
        context: u64,
        marks: Marks<'_>,
        mut report: impl FnMut(Result<FiAddr, AddressVectorError>),
    ) -> Result<(), AddressVectorError> {
        let (queue, fid) = self.reporter().ok_or(AddressVectorError::NoEventQueue)?;
        let mut failures = Vec::new();
        let mut at = 0;
        let count = self.insert_each(candidates, marks, |result| {
            if let Err(error) = &result {
                let failure = ErrorEvent::new(*fid, context, error.errno());
                failures.push(ErrorEvent { data: at, reason: error.to_string(), ..failure });
            }
            at += 1;
            report(result);
        });
        // After the mutex is free: the queue's notify hook may run anything.
        for failure in failures {
            queue.push_error(failure);
        }
        queue.push(Event::AddressVectorComplete { fid: *fid, context, data: count as u64 });
        Ok(())
    }
}

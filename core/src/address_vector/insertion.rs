//! Inserting addresses: one, many, a range of nodes and services, or with
//! the results as events.

use super::{
    Address, AddressError, AddressVector, AddressVectorError, AddressVectorFlags, FI_ADDR_NOTAVAIL,
    FiAddr, SymmetricRange,
};
use crate::error::HasErrno;
use crate::event_queue::{ErrorEvent, Event};

/// What became of each address of one insertion, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Insertion {
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

impl AddressVector {
    /// Inserts one address and answers the lowest unused number, its own now.
    ///
    /// Cost: control path; takes the writer mutex, may allocate.
    /// # Errors
    /// [`AddressVectorError::Wildcard`], [`AddressVectorError::Full`], [`AddressVectorError::OutOfMemory`].
    pub fn insert_one(&self, address: Address) -> Result<FiAddr, AddressVectorError> {
        self.insert_locked(&mut self.lock(), address)
    }

    /// Inserts addresses in order; one that fails does not stop the next.
    pub fn insert(&self, addresses: &[Address]) -> Insertion {
        let mut results = Vec::with_capacity(addresses.len());
        self.insert_each(addresses.iter().copied().map(Ok), |result| results.push(result));
        Insertion { results }
    }

    /// Inserts a range of nodes and services: see [`SymmetricRange`].
    pub fn insert_symmetric(&self, range: SymmetricRange) -> Insertion {
        let mut results = Vec::with_capacity(range.len());
        self.insert_each(range.addresses().map(Ok), |result| results.push(result));
        Insertion { results }
    }

    /// Inserts what may or may not have been an address, in order, and tells
    /// `report` of each result. Answers how many were inserted.
    ///
    /// `report` is called under the writer mutex and must not come back here.
    pub fn insert_each(
        &self,
        addresses: impl IntoIterator<Item = Result<Address, AddressError>>,
        mut report: impl FnMut(Result<FiAddr, AddressVectorError>),
    ) -> usize {
        let mut writer = self.lock();
        let mut count = 0;
        for address in addresses {
            let result = match address {
                Ok(address) => self.insert_locked(&mut writer, address),
                Err(error) => Err(error.into()),
            };
            count += usize::from(result.is_ok());
            report(result);
        }
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
        addresses: impl IntoIterator<Item = Result<Address, AddressError>>,
        context: u64,
        mut report: impl FnMut(Result<FiAddr, AddressVectorError>),
    ) -> Result<(), AddressVectorError> {
        let (queue, fid) = self.events.get().ok_or(AddressVectorError::NoEventQueue)?;
        let mut failures = Vec::new();
        let mut at = 0;
        let count = self.insert_each(addresses, |result| {
            if let Err(error) = &result {
                failures
                    .push(ErrorEvent { data: at, ..ErrorEvent::new(*fid, context, error.errno()) });
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

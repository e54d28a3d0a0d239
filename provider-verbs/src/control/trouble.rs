//! What the device says of itself: a station whose device or queue is gone parts with its peers, since
//! nothing that is under way with them completes any more, not even in error.

use std::{os::fd::BorrowedFd, sync::Arc};

use rustix::event::epoll::{self, EventFlags};

use super::{
    error::ConnectError,
    thread::{ControlThread, Token},
};
use crate::{
    station::StationEvent,
    trouble::Trouble,
    verbs::{Queues as _, Verbs},
};

/// Where a device tells of trouble.
#[allow(unsafe_code)]
fn channel_of<V: Verbs>(device: &V) -> BorrowedFd<'_> {
    // SAFETY: the channel is open as long as the device.
    unsafe { BorrowedFd::borrow_raw(device.trouble_channel()) }
}

impl<V: Verbs> ControlThread<V> {
    /// Listens to a station's device, which is that of all.
    pub(super) fn watch_device(&mut self, device: &Arc<V>) {
        if self.device.is_some() {
            return;
        }
        let channel = channel_of(&**device);
        match epoll::add(&self.epoll, channel, Token::Device.data(), EventFlags::IN) {
            Ok(()) => self.device = Some(device.clone()),
            Err(errno) => tracing::error!("a device's end will not be noticed: epoll: {errno}"),
        }
    }

    pub(super) fn device_readable(&mut self) {
        let Some(device) = self.device.clone() else {
            return;
        };
        while let Some(trouble) = device.next_trouble() {
            match trouble {
                Trouble::Device(what) => {
                    tracing::error!(device = device.name(), "the device has failed: {what}");
                    let stations: Vec<u64> = self.stations.keys().copied().collect();
                    stations.into_iter().for_each(|id| self.give_up_station(id, &what));
                    // Its channel is readable for ever.
                    let _ = epoll::delete(&self.epoll, channel_of(&*device));
                    self.device_failed = Some(what);
                    return;
                }
                Trouble::Queue { name, what } => {
                    let mut records = self.stations.values();
                    if let Some(hit) = records.find(|record| record.shared.queues.has(name)) {
                        let (id, address) = (hit.id, hit.address);
                        tracing::error!(device = device.name(), %address, "a queue has failed: {what}");
                        self.give_up_station(id, &what);
                    }
                }
                Trouble::Port(what) => tracing::warn!(device = device.name(), "{what}"),
                Trouble::Other(what) => tracing::debug!(device = device.name(), "{what}"),
            }
        }
    }

    /// Parts with all peers of a station, without a word that this is in order, and has no others.
    pub(super) fn give_up_station(&mut self, station: u64, what: &str) {
        let Some(record) = self.stations.get_mut(&station).filter(|it| it.failed.is_none()) else {
            return;
        };
        record.failed = Some(what.into());
        for id in self.outgoing_of(station) {
            self.fail_by_device(id);
        }
        for id in self.incoming_of(station) {
            self.take_incoming(id);
        }
        for link in self.links_of(station) {
            self.link_failed(link, what.into());
        }
        if let Some(record) = self.stations.get(&station)
            && let Err(reason) = record.check()
        {
            record.shared.push(StationEvent::GivenUp { reason });
        }
    }

    /// A connection is over, and not in order.
    pub(super) fn link_failed(&mut self, link: u64, reason: String) {
        let station = self.links.get(&link).map(|link| link.station);
        if let Some(record) = station.and_then(|station| self.stations.get(&station)) {
            record.shared.push(StationEvent::Lost { link, reason });
        }
        self.end_link(link, None);
    }

    fn fail_by_device(&mut self, id: u64) {
        let Some((station, to)) = self.outgoing.get(&id).map(|it| (it.station, it.to)) else {
            return;
        };
        if let Some(Err(source)) = self.stations.get(&station).map(|record| record.check()) {
            self.fail(id, ConnectError::Verbs { to, source });
        }
    }
}

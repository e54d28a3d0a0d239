//! The same through the connection manager: a request, our answer, the peer's last word.

use std::{net::SocketAddr, time::Instant};

use super::{Asker, Connected, Incoming};
use crate::{
    control::{
        ManagedIdOf, StationRecord,
        offer::{Answer, Caller},
        private::{Ask, Parties, Reply, encode_refusal},
        thread::ControlThread,
        wire::{RejectReason, WireError},
    },
    manager::{Happening, ManagedId},
    receive_pool::BUFFER_BYTES,
    station::{PeerIdentity, StationEvent},
    verbs::Verbs,
};

/// A request as the connection manager hands it over.
struct Request<'a> {
    from: SocketAddr,
    queue_pair: u32,
    data: &'a [u8],
}

/// What a request is answered.
struct Answering {
    queue_pair: u32,
    reply: Vec<u8>,
}

/// Why there is no connection, and what the peer is told of it.
type Refusal = (Option<RejectReason>, String);

impl<V: Verbs> ControlThread<V> {
    /// Somebody asks for a connection.
    pub(in crate::control) fn asked(
        &mut self,
        station: u64,
        mut managed: ManagedIdOf<V>,
        from: SocketAddr,
        queue_pair: u32,
        data: &[u8],
    ) {
        if !self.may_answer(station, from.ip()) || !self.has_place() {
            // It hears that we have let go of it, and comes again.
            return tracing::debug!(%from, "too many handshakes are under way");
        }
        let id = self.next_id();
        managed.rename(id);
        let Some(record) = self.stations.get(&station) else {
            return;
        };
        let (confirm_wait, listens) = (record.confirm_wait, record.keys.told().is_some());
        let (request, connected) = (Request { from, queue_pair, data }, &mut self.connected);
        let answered = match join(record, id, &managed, &request, connected) {
            Ok((answer, Answering { queue_pair, reply })) => {
                match managed.answer(queue_pair, &reply) {
                    Ok(()) => Ok(answer),
                    Err(error) => {
                        self.abandon(station, from.ip(), answer);
                        Err((None, error.to_string()))
                    }
                }
            }
            Err(refusal) => Err(refusal),
        };
        match answered {
            Ok(answer) => {
                let (asker, answer) = (Asker::Managed(managed), Some(answer));
                let since = Instant::now();
                self.incoming.insert(id, Incoming { station, asker, from, since, answer });
                self.set_timer(id, Some(since + confirm_wait));
            }
            Err((reason, why)) => {
                // Whoever comes before somebody listens asks again and again.
                if !listens {
                    tracing::debug!(%from, "a connection was dropped: {why}");
                } else {
                    tracing::info!(%from, "a connection was dropped: {why}");
                }
                if let Some(reason) = reason
                    && let Err(error) = managed.refuse(&encode_refusal(reason))
                {
                    tracing::debug!("{error}");
                }
            }
        }
    }

    pub(in crate::control) fn incoming_managed(
        &mut self,
        id: u64,
        happening: Happening<ManagedIdOf<V>>,
    ) {
        match happening {
            Happening::Established => self.confirmed(id),
            Happening::Disconnected => self.left_early(id),
            Happening::Failed(why) => self.drop_incoming(id, &why),
            _ => self.drop_incoming(id, "it hung up"),
        }
    }
}

impl<V: Verbs> ControlThread<V> {
    /// The peer has let go of a connection before its last word of the handshake came: if that was lost,
    /// what it sent has come all the same.
    fn left_early(&mut self, id: u64) {
        let Some(Incoming { station, answer, .. }) = self.incoming.remove(&id) else {
            return;
        };
        self.set_timer(id, None);
        if let (Some(event), Some(record)) =
            (answer.and_then(Answer::left), self.stations.get(&station))
        {
            record.shared.push(event);
            record.shared.push(StationEvent::Disconnected { link: id });
        }
        self.resume_listening();
    }
}

/// Checks a request, and joins a queue pair with its sender's. What is to be answered, besides.
fn join<V: Verbs>(
    record: &StationRecord<V>,
    id: u64,
    managed: &ManagedIdOf<V>,
    request: &Request<'_>,
    connected: &mut Connected,
) -> Result<(Answer<V>, Answering), Refusal> {
    let Request { from, queue_pair, data } = *request;
    let ask = Ask::decode(data).map_err(|error| match error {
        WireError::OtherVersion { .. } => (Some(RejectReason::Version), error.to_string()),
        _ => (None, error.to_string()),
    })?;
    let Some(keys) = record.keys.told() else {
        return Err((None, "the endpoint is not enabled, and has no key yet".into()));
    };
    let parties = Parties::new(from.ip(), record.address, queue_pair);
    let proved = keys.proved(|key| Ask::is_proved(data, key, &parties));
    let refused = |reason: RejectReason| (Some(reason), reason.to_string());
    let key = proved.and_then(|number| keys.get(number));
    let key = key.ok_or_else(|| refused(RejectReason::Key))?;
    if usize::from(ask.buffer_bytes) != BUFFER_BYTES {
        return Err(refused(RejectReason::Limits));
    }
    let mut address = from;
    address.set_port(ask.port);
    let peer = PeerIdentity { address, incarnation: ask.incarnation, key: key.number };
    let caller = Caller { peer, credit: ask.credit, place: None };
    let origin = &record.shared.origin;
    let mut mtu_bytes = 0;
    let (made, end) = Answer::new(record, id, &caller, connected, |pair, _| {
        let agreement = managed.join(pair, origin.marks, origin.port.mtu_bytes)?;
        if agreement.is_narrowed {
            mtu_bytes = agreement.mtu_bytes as u16;
        }
        Ok(Some(agreement))
    })
    .map_err(|(reason, why)| (Some(reason), why))?;
    let reply = Reply {
        incarnation: record.incarnation,
        port: record.address.port(),
        buffer_bytes: BUFFER_BYTES as u16,
        mtu_bytes,
    };
    let reply = reply.encode(key.bytes(), &parties, data, end.queue_pair);
    Ok((made, Answering { queue_pair: end.queue_pair, reply }))
}

//! What drives socket endpoints while the application is elsewhere.
//!
//! What a socket has taken leaves, and its descriptor shows what arrives, without a call of the
//! application's: so there is one helper a domain, from its first socket endpoint on. It sleeps
//! on the bells, and keeps away from an application that polls, as that of automatic progress.

use std::{
    ops::ControlFlow,
    os::fd::RawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use super::socket::Socket;
use crate::{
    completion_queue::QueueWait,
    domain::OpenError,
    engine::progress::{Helper, SLEEP_MAX, STAY_AWAY},
    threads,
    transport::{Provider, Transport},
};

/// Empty looks before the helper sleeps, at all socket endpoints together.
const LOOKS: usize = 50;

/// The socket endpoints of a domain, and the thread that drives them.
pub(crate) struct SocketDriver<P: Provider> {
    sockets: Arc<Sockets<P>>,
    /// Its `Drop` ends the thread.
    helper: Helper,
}

/// They are driven under the lock, and never kept by the thread: whoever drops the last one may
/// drop the domain, which waits for the thread.
struct Sockets<P: Provider>(Mutex<Vec<Arc<Socket<P>>>>);

impl<P: Provider> SocketDriver<P> {
    pub(crate) fn start(provider: &Arc<P>) -> Result<Self, OpenError> {
        let sockets = Arc::new(Sockets(Mutex::default()));
        let driven = sockets.clone();
        let helper = Helper::start(provider, "kestrel-sockets", move |stop, bell| {
            let mut polls = 0;
            threads::take_turns("the thread of socket endpoints", || {
                // Before all looks, so that what rang is found.
                bell.drain();
                if stop.load(Ordering::Acquire) {
                    return ControlFlow::Break(());
                }
                if (0..driven.rounds()).any(|_| driven.drive()) {
                    return ControlFlow::Continue(());
                }
                let now = driven.polls();
                if now.is_some_and(|now| std::mem::replace(&mut polls, now) != now) {
                    P::Transport::sleep(&[bell.fd()], Some(STAY_AWAY));
                    return ControlFlow::Continue(());
                }
                if let Some((waits, long)) = driven.prepare_wait() {
                    let mut bells: Vec<RawFd> =
                        waits.iter().flat_map(QueueWait::descriptors).collect();
                    bells.push(bell.fd());
                    P::Transport::sleep(&bells, Some(long));
                }
                ControlFlow::Continue(())
            });
        })?;
        Ok(SocketDriver { sockets, helper })
    }

    pub(super) fn add(&self, socket: &Arc<Socket<P>>) {
        self.sockets.lock().push(socket.clone());
        self.helper.nudge();
    }

    pub(super) fn remove(&self, socket: &Arc<Socket<P>>) {
        self.sockets.lock().retain(|known| !Arc::ptr_eq(known, socket));
    }

    /// Has the helper look at once: somebody is going to sleep.
    pub(super) fn nudge(&self) {
        self.helper.nudge();
    }
}

impl<P: Provider> Sockets<P> {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Socket<P>>>> {
        // Nothing under it panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rounds(&self) -> usize {
        1 + LOOKS / self.lock().len().max(1)
    }

    fn drive(&self) -> bool {
        self.lock().iter().fold(false, |moved, socket| moved | socket.drive_by_helper())
    }

    /// How often the application has called them; none if it waits for one of them elsewhere.
    fn polls(&self) -> Option<u64> {
        self.lock().iter().try_fold(0_u64, |all, socket| Some(all.wrapping_add(socket.polls()?)))
    }

    /// None: there is something to do. Else what to sleep on, and for how long at most.
    fn prepare_wait(&self) -> Option<(Vec<QueueWait<P>>, Duration)> {
        let sockets = self.lock();
        let waits = sockets.iter().map(|socket| socket.prepare_nap());
        let waits = waits.collect::<Option<Vec<_>>>()?;
        let looks_again = waits.iter().any(QueueWait::waits_for_room);
        Some((waits, if looks_again { STAY_AWAY } else { SLEEP_MAX }))
    }
}

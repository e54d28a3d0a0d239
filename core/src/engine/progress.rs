//! Automatic progress: helper threads.
//!
//! One helper that sleeps on the bells is the default: it costs nothing while
//! nothing arrives, so eight ranks on two cores do not start eight spinning
//! threads. While the application polls by itself the helper keeps out of the
//! way: it asks for no bell, and looks again a millisecond later.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use core_affinity::CoreId;

use crate::{
    domain::OpenError,
    driven_units::DrivenUnits,
    error::{Cause, Errno},
    threads,
    transport::{Bell, CoreClaim, Provider, Transport},
};

/// How long the helper stays away from an application that polls.
pub(crate) const STAY_AWAY: Duration = Duration::from_millis(1);
/// The longest sleep, as a bound on whatever might go wrong with a bell.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Empty polls of units before the helper sleeps.
const SPINS: usize = 200;

/// A progress thread. Dropping it ends the thread.
pub struct Helper {
    stop: Arc<AtomicBool>,
    bell: Arc<dyn Bell>,
    thread: Option<JoinHandle<()>>,
    /// Where the thread runs: a forked child has none to wait for.
    process: u32,
}

impl Helper {
    /// Starts a helper that sleeps while there is nothing to do.
    pub fn sleeping<P: Provider>(
        provider: &Arc<P>,
        units: Arc<DrivenUnits<P>>,
    ) -> Result<Helper, OpenError> {
        Helper::start(provider, "kestrel-progress", move |stop, bell| {
            let mut polls = units.polls();
            threads::take_turns("a progress thread", || {
                // Before all looks, so that what rang is found.
                bell.drain();
                if stop.load(Ordering::Acquire) {
                    return ControlFlow::Break(());
                }
                let spins = SPINS / units.count().max(1) + 1;
                if (0..spins).any(|_| units.progress_by_helper()) {
                    return ControlFlow::Continue(());
                }
                let now = units.polls();
                if std::mem::replace(&mut polls, now) != now {
                    P::Transport::sleep(&[bell.fd()], Some(STAY_AWAY));
                    return ControlFlow::Continue(());
                }
                let armed = units.arm();
                if armed.is_quiet() {
                    let mut bells = armed.bells();
                    bells.push(bell.fd());
                    let long = if armed.waits_for_room() { STAY_AWAY } else { SLEEP_MAX };
                    P::Transport::sleep(&bells, Some(long));
                }
                ControlFlow::Continue(())
            });
        })
    }

    /// Starts a helper that spins on the first of `cores` that nobody on this host has claimed, run to
    /// completion. Where all are claimed it is one that sleeps: ranks that share their environment
    /// name the same cores.
    pub fn spinning<P: Provider>(
        provider: &Arc<P>,
        units: Arc<DrivenUnits<P>>,
        cores: &[usize],
    ) -> Result<Helper, OpenError> {
        let mut last = String::new();
        for &core in cores {
            match provider.claim_core(core) {
                Ok(claim) => return Helper::spinning_on(provider, units, core, claim),
                Err(taken) if taken.errno == Errno::BUSY => {
                    tracing::info!("{}", taken.reason);
                    last = taken.reason;
                }
                Err(reason) => return Err(reason.into()),
            }
        }
        tracing::warn!(
            "FI_KESTREL_CORES: none of {cores:?} can be had, and progress sleeps instead; the last one: {last}"
        );
        Helper::sleeping(provider, units)
    }

    fn spinning_on<P: Provider>(
        provider: &Arc<P>,
        units: Arc<DrivenUnits<P>>,
        core: usize,
        claim: Box<dyn CoreClaim>,
    ) -> Result<Helper, OpenError> {
        let (tell, pinned) = mpsc::channel();
        let helper = Helper::start(provider, "kestrel-lcore", move |stop, _| {
            // Ours as long as the thread runs.
            let _claim = claim;
            let result = pin(core);
            let is_pinned = result.is_ok();
            // Whoever started it waits for that.
            let _ = tell.send(result);
            threads::take_turns("a progress thread", || {
                while is_pinned && !stop.load(Ordering::Acquire) {
                    if !units.progress_by_helper() {
                        std::hint::spin_loop();
                    }
                }
                ControlFlow::Break(())
            });
        })?;
        let gone = |_| OpenError::NoThread("it ended at once".into());
        pinned.recv().map_err(gone)??;
        Ok(helper)
    }

    pub(crate) fn start<P: Provider>(
        provider: &Arc<P>,
        name: &str,
        run: impl FnOnce(&AtomicBool, &dyn Bell) + Send + 'static,
    ) -> Result<Helper, OpenError> {
        let stop = Arc::new(AtomicBool::new(false));
        let bell: Arc<dyn Bell> = Arc::from(provider.new_bell()?);
        let (thread_stop, thread_bell) = (stop.clone(), bell.clone());
        let builder = std::thread::Builder::new().name(name.into());
        let thread = threads::start(builder, move || run(&thread_stop, &*thread_bell))
            .map_err(|error| OpenError::NoThread(error.to_string()))?;
        Ok(Helper { stop, bell, thread: Some(thread), process: std::process::id() })
    }
}

impl Helper {
    /// Has a sleeping helper look again: there is a unit that it does not know.
    pub fn nudge(&self) {
        self.bell.ring();
    }
}

/// Pins the calling thread to a core.
fn pin(core: usize) -> Result<(), Cause> {
    // The set of cores that is passed on holds no higher number, and panics.
    let has_place = core < rustix::thread::CpuSet::MAX_CPU;
    if has_place && core_affinity::set_for_current(CoreId { id: core }) {
        return Ok(());
    }
    let usable = core_affinity::get_core_ids().unwrap_or_default();
    let usable: Vec<_> = usable.into_iter().map(|core| core.id).collect();
    let reason =
        format!("FI_KESTREL_CORES: this process may not run on core {core}; it may on {usable:?}");
    Err(Cause { errno: Errno::INVAL, reason })
}

impl Drop for Helper {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // It ends by no panic: see `threads::take_turns`.
            let _ = thread.join();
        }
    }
}

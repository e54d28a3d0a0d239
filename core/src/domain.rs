//! Domains: what endpoints, queues and vectors are opened on, and what decides
//! who may call them and who drives them. Reference: fi_domain(3).

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use crate::{
    bind_count::{BindCount, BindError},
    config::Config,
    counter::CounterCell,
    driven_units::DrivenUnits,
    engine::{progress::Helper, unit::Unit},
    error::{Cause, Errno, HasErrno},
    event_queue::EventQueue,
    info::MemoryRegionMode,
    memory_region::MemoryRegionRegistry,
    operation::IOV_LIMIT,
    protocol::atomic::AtomicCall,
    socket_endpoint::driver::SocketDriver,
    transport::Provider,
    triggered::Deferrals,
};

/// Who may call a domain's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One thread at a time, as the application promised (`FI_THREAD_DOMAIN`).
    Exclusive,
    /// Any thread at any time.
    Shared,
}

/// Why an object could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The transport or the system refused.
    #[error("{}", .0.reason)]
    Refused(Cause),
    /// The process is a forked child of the one that opened the domain.
    #[error("a forked child cannot use its parent's domain")]
    ForkedChild,
    /// The domain is closed.
    #[error("the domain is closed")]
    Closed,
    /// More contexts than an endpoint can have.
    #[error("{count} contexts are more than the {limit} that an endpoint may have")]
    TooManyContexts {
        /// As given.
        count: usize,
        /// Of either direction.
        limit: usize,
    },
    /// A size in the options of an endpoint is one that no endpoint can have.
    #[error("{option} is {value}: an endpoint has {least} to {most}")]
    BadSize {
        /// Which option.
        option: &'static str,
        /// As given.
        value: usize,
        /// The least that it may be.
        least: usize,
        /// The most.
        most: usize,
    },
    /// Connected endpoints and those of datagrams have one context.
    #[error("endpoints of this type have one context of each direction")]
    NotScalable,
    /// A progress thread could not be started.
    #[error("no progress thread: {0}")]
    NoThread(String),
}

impl From<Cause> for OpenError {
    fn from(reason: Cause) -> Self {
        OpenError::Refused(reason)
    }
}

impl HasErrno for OpenError {
    fn errno(&self) -> Errno {
        match self {
            OpenError::Refused(reason) => reason.errno,
            OpenError::ForkedChild => Errno::OPNOTSUPP,
            OpenError::Closed => Errno::BADF,
            OpenError::TooManyContexts { .. } | OpenError::BadSize { .. } => Errno::INVAL,
            OpenError::NotScalable => Errno::OPNOTSUPP,
            OpenError::NoThread(_) => Errno::AGAIN,
        }
    }
}

/// Who moves messages while the application is elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressMode {
    /// The thread that polls (fi_domain(3), FI_PROGRESS_MANUAL).
    #[default]
    Manual,
    /// One helper that sleeps on the bells (FI_PROGRESS_AUTO).
    Automatic,
    /// One helper that spins, pinned to the first of these cores that nobody on this host has; one that
    /// sleeps where there is none.
    Spinning(Vec<usize>),
}

/// How a domain works.
#[derive(Clone, Debug)]
pub struct DomainOptions {
    /// Who drives the endpoints.
    pub progress: ProgressMode,
    /// Unexpected payload that each endpoint holds at most. Units: bytes.
    pub unexpected_budget: u64,
    /// How long a call that waits polls before it sleeps.
    pub spin: Duration,
    /// What packets of endpoints are marked with that say nothing themselves; 0: nothing.
    /// Reference: fi_domain(3), `tclass`.
    pub traffic_class: u32,
    /// What the application does when it registers memory, as negotiated: with
    /// `PROV_KEY` keys are ours, with `VIRT_ADDR` remote addresses are the target's own, and with
    /// `ALLOCATED` devices reach the memory, which keeps its pages while it is registered.
    pub memory_region_mode: MemoryRegionMode,
}

impl Default for DomainOptions {
    fn default() -> Self {
        let config = Config::default();
        DomainOptions {
            progress: ProgressMode::Manual,
            unexpected_budget: config.unexpected_budget_bytes as u64,
            spin: Duration::from_micros(config.spin_us),
            traffic_class: 0,
            memory_region_mode: MemoryRegionMode::BASIC_EQUIVALENT,
        }
    }
}

/// A domain over one provider.
///
/// No call on a domain's objects is made from inside of another one, unless that one says that it may. A
/// subscriber of `tracing` is called from inside, so it makes none. In a domain that threads share such a
/// call may wait for itself for ever; in one that was opened with [`Domain::open_exclusive`] it is
/// undefined behaviour.
pub struct Domain<P: Provider> {
    provider: Arc<P>,
    adapter_atomics: bool,
    sharing: Sharing,
    options: DomainOptions,
    units: Arc<DrivenUnits<P>>,
    /// Its `Drop` ends the thread.
    helper: Option<Helper>,
    memory_regions: Arc<MemoryRegionRegistry>,
    /// Counters that drive all endpoints: their sleepers have to hear of a new one.
    watchers: Mutex<Vec<Weak<CounterCell>>>,
    /// Who drives its socket endpoints, from the first on.
    sockets: OnceLock<SocketDriver<P>>,
    /// Deferred work, whichever endpoint it is for.
    works: Arc<Deferrals>,
    /// Where endpoints report that have no event queue of their own.
    events: OnceLock<Arc<EventQueue>>,
    open: BindCount,
}

impl<P: Provider> fmt::Debug for Domain<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.count();
        f.debug_struct("Domain")
            .field("sharing", &self.sharing)
            .field("options", &self.options)
            .field("open", &open)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> Domain<P> {
    /// Opens a domain whose objects any thread may use at any time
    /// (`FI_THREAD_SAFE`).
    ///
    /// # Errors
    /// [`OpenError`]: the provider is a parent process's; the thread that drives it cannot be had, or
    /// not where it was asked for.
    /// # Reference
    /// fi_domain(3), `fi_domain`
    pub fn open(provider: Arc<P>, options: DomainOptions) -> Result<Arc<Self>, OpenError> {
        Self::open_as(provider, options, Sharing::Shared)
    }

    /// Opens a domain whose objects are used by one thread at a time
    /// (`FI_THREAD_DOMAIN`): nothing on the data path is atomic then. With
    /// automatic progress the domain is shared all the same.
    ///
    /// # Errors
    /// As [`Self::open`].
    /// # Safety
    /// No two threads are inside calls on objects of this domain, or drop them,
    /// at the same time; a hand-over between threads synchronises. With connected endpoints (not
    /// with socket endpoints) that holds as well for the event queues that those report to, and for
    /// the passive endpoints that report there, though none of these belongs to the domain: they
    /// drive the endpoints, which complete into the domain's queues.
    ///
    /// Nor is any such call made from inside of another one, unless that one says that it may. A
    /// subscriber of `tracing` is called from inside, so it makes none. Builds with debug assertions
    /// panic where an endpoint is called so.
    pub unsafe fn open_exclusive(
        provider: Arc<P>,
        options: DomainOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let sharing = match options.progress {
            ProgressMode::Manual => Sharing::Exclusive,
            ProgressMode::Automatic | ProgressMode::Spinning(_) => Sharing::Shared,
        };
        Self::open_as(provider, options, sharing)
    }

    fn open_as(
        provider: Arc<P>,
        options: DomainOptions,
        sharing: Sharing,
    ) -> Result<Arc<Self>, OpenError> {
        if provider.forked() {
            return Err(OpenError::ForkedChild);
        }
        let units = Arc::new(DrivenUnits::new(sharing));
        let helper = match &options.progress {
            ProgressMode::Manual => None,
            ProgressMode::Automatic => Some(Helper::sleeping(&provider, units.clone())?),
            ProgressMode::Spinning(cores) => {
                Some(Helper::spinning(&provider, units.clone(), cores)?)
            }
        };
        let open = BindCount::default();
        let mode = options.memory_region_mode;
        let memory_regions = Arc::new(MemoryRegionRegistry::new(mode, IOV_LIMIT));
        let (watchers, sockets) = (Mutex::default(), OnceLock::new());
        Ok(Arc::new(Domain {
            adapter_atomics: provider.adapter_atomics(),
            provider,
            sharing,
            options,
            units,
            helper,
            memory_regions,
            watchers,
            sockets,
            works: Arc::default(),
            events: OnceLock::new(),
            open,
        }))
    }

    /// Whether atomic operations are for adapters alone.
    pub(crate) fn adapter_atomics(&self) -> bool {
        self.adapter_atomics
    }

    /// How many elements an atomic operation of that kind may have; none if it is not supported.
    #[inline]
    pub fn atomic_count_max(&self, call: AtomicCall) -> Option<usize> {
        if self.adapter_atomics { call.adapter_count_max() } else { call.count_max() }
    }

    /// What makes this domain's transports.
    pub fn provider(&self) -> &Arc<P> {
        &self.provider
    }

    /// How long a call that waits polls before it sleeps.
    pub(crate) fn spin(&self) -> Duration {
        self.options.spin
    }

    /// Who may touch the domain's objects.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// How the domain works.
    pub fn options(&self) -> &DomainOptions {
        &self.options
    }

    /// What is open on the domain.
    pub(crate) fn uses(&self) -> &BindCount {
        &self.open
    }

    /// The memory that peers may reach.
    pub(crate) fn memory_regions(&self) -> &Arc<MemoryRegionRegistry> {
        &self.memory_regions
    }

    /// Binds the event queue of endpoints that have none of their own when they are enabled.
    /// False the second time.
    ///
    /// # Errors
    /// [`BindError::Closed`]: the queue is.
    /// # Reference
    /// fi_domain(3), `fi_domain_bind`: "the default EQ associated with asynchronous control events
    /// that occur on the domain or active endpoints allocated on a domain. This includes CM events."
    pub fn bind_event_queue(&self, queue: &Arc<EventQueue>) -> Result<bool, BindError> {
        queue.binds().bind()?;
        let is_first = self.events.set(queue.clone()).is_ok();
        if !is_first {
            // Counted above, so this cannot fail.
            let _ = queue.binds().unbind();
        }
        Ok(is_first)
    }

    /// The event queue that is bound to it.
    pub fn event_queue(&self) -> Option<&Arc<EventQueue>> {
        self.events.get()
    }

    /// The deferred work of the whole domain.
    pub(crate) fn works(&self) -> &Arc<Deferrals> {
        &self.works
    }

    /// Every endpoint of the domain.
    pub(crate) fn units(&self) -> &DrivenUnits<P> {
        &self.units
    }

    /// Who drives the socket endpoints.
    pub(crate) fn socket_driver(&self) -> Result<&SocketDriver<P>, OpenError> {
        if let Some(driver) = self.sockets.get() {
            return Ok(driver);
        }
        // Of two at once one is dropped, which ends its thread.
        let driver = SocketDriver::start(&self.provider)?;
        Ok(self.sockets.get_or_init(|| driver))
    }

    /// Wakes the sleepers of `counter` whenever there is an endpoint more.
    pub(crate) fn tell_of_units(&self, counter: &Arc<CounterCell>) {
        // Nothing that is done under it panics half-way.
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|known| known.strong_count() > 0 && known.as_ptr() != Arc::as_ptr(counter));
        watchers.push(Arc::downgrade(counter));
    }

    pub(crate) fn add_unit(&self, unit: &Arc<Unit<P>>) {
        self.units.add(unit);
        for watcher in self.watchers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Some(counter) = watcher.upgrade() {
                counter.tell_of_units();
            }
        }
        if let Some(helper) = &self.helper {
            helper.nudge();
        }
    }

    /// Whether a thread of ours drives its endpoints, too.
    pub(crate) fn has_helper(&self) -> bool {
        self.helper.is_some()
    }

    pub(crate) fn remove_unit(&self, unit: &Arc<Unit<P>>) {
        self.units.remove(unit);
    }

    /// Closes the domain.
    ///
    /// # Errors
    /// [`BindError::Busy`] while endpoints or contexts are open or memory is registered on it,
    /// [`BindError::Closed`] the second time.
    pub fn close(&self) -> Result<(), BindError> {
        self.open.close()?;
        if let Some(queue) = self.events.get() {
            // Counted when it was bound, so this cannot fail.
            let _ = queue.binds().unbind();
        }
        Ok(())
    }
}

//! Shared receive contexts: receives are posted to them, and complete at the endpoints that they
//! are bound to. Reference: fi_endpoint(3), `fi_srx_context`.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use kestrel::{Provider, ReceivePost, SharedReceive, objects};
use kestrel_core::{
    endpoint::{OptionName, PostError},
    error::Errno,
    flags::Flags,
    triggered::Threshold,
};

use crate::{
    abi::{
        constants::{NOSYS, command},
        control::{OpsEp, OpsFid},
        fid::{Fid, FidDomain, FidEp, FidSrx, class},
        info::RxAttr,
    },
    endpoint::{
        message,
        options::{self, ChangeableOptions, Options, getopt, setopt},
        receives::Receives,
        tagged,
    },
    memory_region::DescriptorLists,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done, guarded},
    refused::{self, closed},
};

/// What we keep of a shared receive context.
pub struct State {
    pub context: Arc<SharedReceive>,
    /// How many receives may be posted: what `fi_rx_size_left` tells.
    size: usize,
    /// Whether lists of descriptors are followed.
    lists: DescriptorLists,
    _domain: Use,
}

static FID: OpsFid = OpsFid { close: object::close::<FidSrx>, control, ..FID_NOSYS };
static OPERATIONS: OpsEp = OpsEp {
    cancel,
    getopt: getopt::<FidSrx>,
    setopt: setopt::<FidSrx>,
    rx_size_left,
    ..OpsEp::refusing::<NOSYS>()
};

impl Header for FidSrx {
    type State = State;
    const NAME: &'static str = "shared receive context";

    fn fid(&mut self) -> &mut Fid {
        &mut self.0.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.0.ops = &raw const closed::EP;
        self.0.msg = &raw const closed::MSG;
        self.0.tagged = &raw const closed::TAGGED;
    }
    fn close(state: &State) -> Result<(), Failure> {
        Ok(state.context.close()?)
    }
}

impl Receives for State {
    #[inline(always)]
    fn default_flags(&self, family: Flags) -> Flags {
        self.context.default_flags().receive_of(family)
    }

    #[inline(always)]
    fn ignores_buffers(&self, flags: Flags) -> bool {
        // Endpoints that buffer share no receives.
        flags.contains(Flags::DISCARD)
    }

    fn capabilities(&self) -> Flags {
        self.context.capabilities()
    }

    #[inline(always)]
    fn lists(&self) -> DescriptorLists {
        self.lists
    }

    #[inline(always)]
    fn post_receive(&self, post: ReceivePost<'_>) -> Result<(), PostError> {
        self.context.post_receive(post)
    }

    fn trigger_receive(
        &self,
        post: ReceivePost<'_>,
        when: &Threshold<Provider>,
    ) -> Result<(), PostError> {
        self.context.trigger_receive(post, when)
    }
}

impl Options for State {
    fn option(&self, name: OptionName) -> Result<usize, Failure> {
        Ok(self.context.option(name)?)
    }
}

impl ChangeableOptions for State {
    fn set_option(&self, name: OptionName, value: usize) -> Result<(), Failure> {
        Ok(self.context.set_option(name, value)?)
    }
}

/// Reference: fi_endpoint(3), `fi_srx_context`.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut RxAttr,
    srx: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    done("fi_srx_context", || {
        // SAFETY: C passes an open domain and valid pointers or null.
        unsafe {
            let (place, parent) = (object::out(srx)?, object::owned(domain)?);
            let (info, named) = parent.whole().shared_receive(attr)?;
            let in_use = Use::of(&parent.uses)?;
            let options = objects::endpoint_options(&info);
            let opened = SharedReceive::open(&parent.domain, options)?;
            opened.direct_by(named);
            let header = FidSrx(FidEp {
                fid: object::fid::<FidSrx>(class::SRX_CTX, context),
                ops: &raw const OPERATIONS,
                cm: &raw const refused::CM,
                msg: &raw const message::SHARED,
                rma: &raw const refused::RMA,
                tagged: &raw const tagged::SHARED,
                atomic: &raw const refused::ATOMIC,
                collective: &raw const refused::COLLECTIVE,
            });
            let state = State {
                context: opened,
                size: info.receive.size,
                lists: DescriptorLists::of(parent.version),
                _domain: in_use,
            };
            *place = object::create(header, state).cast();
        }
        Ok(())
    })
}

/// It is used as soon as it is open, so that enabling it has nothing left to do.
unsafe extern "C" fn control(srx: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        // SAFETY: C passes an open context; the argument of the other commands is a `uint64_t *`.
        let (state, flags) =
            unsafe { (object::owned(srx.cast::<FidSrx>())?, argument.cast::<u64>().as_mut()) };
        if command == command::ENABLE {
            return Ok(());
        }
        let flags = flags.ok_or_else(|| Failure::null("the argument"))?;
        if !matches!(command, command::SETOPSFLAG | command::GETOPSFLAG) {
            let reason = format!("command {command} of a shared receive context");
            return Err(Failure::new(Errno::NOSYS, reason));
        }
        let (defaults, asked) = (state.context.default_flags(), Flags::from_bits_retain(*flags));
        if !asked.contains(Flags::RECV) {
            return Err(Failure::flags("a shared receive context", asked.bits()));
        }
        match command {
            command::SETOPSFLAG => defaults.set(asked)?,
            _ => *flags = defaults.get(asked)?.bits(),
        }
        Ok(())
    })
}

unsafe extern "C" fn cancel(srx: *mut Fid, context: *mut c_void) -> isize {
    guarded("fi_cancel", || {
        // SAFETY: C passes an open context.
        let state = unsafe { object::owned(srx.cast::<FidSrx>()) }?;
        options::check_cancelable(context)?;
        state.context.cancel(context as u64)?;
        Ok(0)
    })
}

/// As of an endpoint: more than that many can always be posted.
unsafe extern "C" fn rx_size_left(srx: *mut FidEp) -> isize {
    guarded("fi_rx_size_left", || {
        // SAFETY: C passes an open context.
        Ok(unsafe { object::owned(srx.cast::<FidSrx>()) }?.size as isize)
    })
}

//! Multicast groups. Reference: fi_cm(3), `fi_join`.

use std::{
    ffi::{c_int, c_void},
    sync::OnceLock,
};

use kestrel::Provider;
use kestrel_core::{endpoint::Group, error::Errno, flags::Flags};

use crate::{
    abi::{
        control::OpsFid,
        fid::{Fid, FidEp, FidMc, class},
    },
    endpoint::connection::named,
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
};

/// What we keep of a group. Fields drop in this order: the endpoint is left before it is free.
pub struct State {
    group: OnceLock<Group<Provider>>,
    _endpoint: Use,
}

static FID: OpsFid = OpsFid { close: object::close::<FidMc>, ..FID_NOSYS };

impl Header for FidMc {
    type State = State;
    const NAME: &'static str = "multicast group";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {}
    /// Leaving is what the end of the state does.
    fn close(_: &State) -> Result<(), Failure> {
        Ok(())
    }
}

/// Joins a group: to send and to receive as far as the endpoint can, or one of it.
pub unsafe extern "C" fn join(
    ep: *mut FidEp,
    target: *const c_void,
    flags: u64,
    mc: *mut *mut FidMc,
    context: *mut c_void,
) -> c_int {
    done("fi_join", || {
        let flags = Flags::from_bits_retain(flags);
        // Then `target` is no address, but a struct fi_collective_addr.
        if flags.contains(Flags::COLLECTIVE) {
            return Err(Failure::new(Errno::NOSYS, "FI_COLLECTIVE: kestrel has no collectives"));
        }
        // SAFETY: C passes an open endpoint, an address in its format and a valid place, or null.
        let (place, parent) = unsafe { (object::out(mc)?, object::owned(ep)?) };
        // SAFETY: as above.
        let group = unsafe { named(parent.format(), target, None) }?;
        let fid = object::fid::<FidMc>(class::MC, context);
        let state = State { group: OnceLock::new(), _endpoint: Use::of(parent.uses())? };
        let object = object::create(FidMc { fid, fi_addr: u64::MAX }, state);
        match parent.endpoint.join(group, flags) {
            Ok(joined) => {
                // SAFETY: made just now, and nobody else knows it yet.
                unsafe {
                    (*object).fi_addr = joined.address();
                    *place = object;
                    let group = &object::owned(object)?.group;
                    // Who reads of it may use it, or close it, at once.
                    group.get_or_init(|| joined).announce(object as u64, context as u64);
                }
                Ok(())
            }
            Err(error) => {
                // SAFETY: made just now, and not given away.
                unsafe { object::close::<FidMc>(object.cast()) };
                Err(error.into())
            }
        }
    })
}

//! Endpoints. Reference: fi_endpoint(3).
//!
//! The data path is in [`message`] and [`tagged`], over [`post`], and in [`rma`] and
//! [`atomic`], over [`remote`]; all else is the control path.

pub mod atomic;
pub mod atomic_query;
pub mod buffers;
pub mod connection;
pub mod defaults;
pub mod limits;
pub mod message;
pub mod options;
pub mod post;
pub mod receives;
pub mod remote;
pub mod rma;
pub mod setup;
pub mod tagged;

use std::sync::Arc;

use kestrel::Endpoint;
use kestrel_core::{address::AddressFormat, bind_count::BindCount, endpoint::DefaultFlags};

use self::limits::Limits;
use crate::{
    abi::{
        control::OpsFid,
        fid::{Fid, FidEp},
    },
    connection_request::Handle,
    memory_region::DescriptorLists,
    object::{self, FID_NOSYS, Header, Use},
    outcome::Failure,
    refused::closed,
};

/// What we keep of an endpoint.
pub struct State {
    pub endpoint: Arc<Endpoint>,
    /// The flags of calls that name none: each alias has its own.
    defaults: DefaultFlags,
    /// Counts the aliases of the endpoint and its groups, which only it is closed after.
    aliases: Arc<BindCount>,
    is_alias: bool,
    /// How its addresses are written.
    format: AddressFormat,
    /// What it was opened from, until it accepts.
    request: Request,
    /// What `fi_getopt` and `fi_rx_size_left` tell.
    limits: Limits,
    /// Whether lists of descriptors are followed.
    lists: DescriptorLists,
    /// The domain, or the endpoint that this is an alias of.
    _parent: Use,
}

/// The handle of the request that an endpoint was opened from, if it was.
#[derive(Default)]
pub struct Request(Option<Handle>);

impl Request {
    /// Of a new endpoint.
    pub fn of(handle: Option<Handle>) -> Request {
        Request(handle)
    }

    /// Closes the handle, unless that is done: the request is accepted, or the endpoint closed.
    pub fn settle(&self) {
        if let Some(handle) = &self.0 {
            handle.close();
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.settle();
    }
}

static FID: OpsFid = OpsFid {
    close: object::close::<FidEp>,
    bind: setup::bind,
    control: setup::control,
    ..FID_NOSYS
};

impl State {
    /// Whether lists of descriptors are followed.
    #[inline(always)]
    pub fn lists(&self) -> DescriptorLists {
        self.lists
    }

    /// How its addresses are written.
    pub fn format(&self) -> AddressFormat {
        self.format
    }

    /// Counts what is open on the endpoint: aliases, and groups that it has joined.
    pub fn uses(&self) -> &Arc<BindCount> {
        &self.aliases
    }
}

impl Header for FidEp {
    type State = State;
    const NAME: &'static str = "endpoint";

    fn fid(&mut self) -> &mut Fid {
        &mut self.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.ops = &raw const closed::EP;
        self.cm = &raw const closed::CM;
        self.msg = &raw const closed::MSG;
        self.rma = &raw const closed::RMA;
        self.tagged = &raw const closed::TAGGED;
        self.atomic = &raw const closed::ATOMIC;
        self.collective = &raw const closed::COLLECTIVE;
    }
    /// "All allocated aliases must be closed for the underlying endpoint to be released."
    fn close(state: &State) -> Result<(), Failure> {
        if !state.is_alias {
            state.aliases.close()?;
            state.endpoint.close();
        }
        Ok(())
    }
}

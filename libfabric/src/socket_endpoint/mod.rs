//! Socket endpoints: calls that are over when they return. Reference: fi_endpoint(3), "SOCKET
//! ENDPOINTS".
//!
//! To C they are endpoints whose other tables refuse; [`transfer`] has the calls that are left.

mod transfer;

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use kestrel::{Domain, SocketEndpoint, objects};
use kestrel_core::{
    address::{Address, AddressFormat},
    connection::CM_DATA_SIZE,
    endpoint::OptionName,
    error::Errno,
    info,
    socket_endpoint::SocketKind,
};

use crate::{
    abi::{
        constants::{NOSYS, command, wait},
        control::{OpsCm, OpsEp, OpsFid},
        fid::{Fid, FidAv, FidEp, FidEq, FidSocket, class},
    },
    connection_request::Origin,
    endpoint::{
        Request,
        connection::{self, Connects, Named},
        options::{self, Options},
    },
    object::{self, FID_NOSYS, Header, Use},
    outcome::{Failure, done},
    refused::{self, closed},
};

/// What we keep of a socket endpoint.
pub struct State {
    socket: SocketEndpoint,
    /// Of the request that it was opened from, until it accepts.
    request: Request,
    format: AddressFormat,
    _domain: Use,
}

static FID: OpsFid = OpsFid { close: object::close::<FidSocket>, bind, control, ..FID_NOSYS };
static OPERATIONS: OpsEp =
    OpsEp { getopt: options::getopt::<FidSocket>, ..OpsEp::refusing::<NOSYS>() };
static CM: OpsCm = connection::operations::<FidSocket>();

impl Header for FidSocket {
    type State = State;
    const NAME: &'static str = "socket endpoint";

    fn fid(&mut self) -> &mut Fid {
        &mut self.0.fid
    }
    fn operations() -> *const OpsFid {
        &raw const FID
    }
    fn refuse(&mut self) {
        self.0.ops = &raw const closed::EP;
        self.0.cm = &raw const closed::CM;
        self.0.msg = &raw const closed::MSG;
    }
    fn close(state: &State) -> Result<(), Failure> {
        state.socket.close();
        Ok(())
    }
}

impl Options for State {
    fn option(&self, name: OptionName) -> Result<usize, Failure> {
        match (name, self.socket.kind()) {
            (OptionName::CmDataSize, SocketKind::Stream) => Ok(CM_DATA_SIZE),
            (OptionName::CmDataSize, SocketKind::Datagram) => Ok(0),
            (
                OptionName::MinMultiRecv
                | OptionName::BufferedMin
                | OptionName::BufferedLimit
                | OptionName::SharedMemoryPermitted,
                _,
            ) => Err(Failure::new(Errno::NOPROTOOPT, "socket endpoints have no posted receives")),
        }
    }
}

impl Named for State {
    fn format(&self) -> AddressFormat {
        self.format
    }
    fn address(&self) -> Address {
        self.socket.address()
    }
    fn set_address(&self, address: Address) -> Result<(), Failure> {
        Ok(self.socket.set_address(address)?)
    }
}

impl Connects for State {
    fn peer(&self) -> Result<Address, Failure> {
        Ok(self.socket.peer()?)
    }
    fn connect(&self, address: Address, data: &[u8]) -> Result<(), Failure> {
        Ok(self.socket.connect(address, data)?)
    }
    fn accept(&self, data: &[u8]) -> Result<(), Failure> {
        self.socket.accept(data)?;
        self.request.settle();
        Ok(())
    }
    fn shutdown(&self) -> Result<(), Failure> {
        Ok(self.socket.shutdown()?)
    }
}

/// Opens one, for `fi_endpoint`.
pub fn open(
    domain: &Arc<Domain>,
    kind: SocketKind,
    info: &info::Info,
    context: *mut c_void,
    parent: Use,
) -> Result<*mut FidEp, Failure> {
    let options = || objects::endpoint_options(info);
    let origin = match kind {
        SocketKind::Stream => Origin::of(info.handle as *mut Fid)?,
        SocketKind::Datagram => Origin::None,
    };
    let mut request = Request::default();
    let socket = match origin {
        Origin::None => objects::open_socket(domain, info)?,
        Origin::Passive(passive) => SocketEndpoint::open_instead_of(domain, options(), &passive)?,
        Origin::Request(asked, handle) => {
            let socket = SocketEndpoint::open_for(domain, options(), asked)?;
            request = Request::of(Some(handle));
            socket
        }
    };
    let header = FidSocket(FidEp {
        fid: object::fid::<FidSocket>(class::EP, context),
        ops: &raw const OPERATIONS,
        cm: &raw const CM,
        msg: &raw const transfer::OPERATIONS,
        rma: &raw const refused::RMA,
        tagged: &raw const refused::TAGGED,
        atomic: &raw const refused::ATOMIC,
        collective: &raw const refused::COLLECTIVE,
    });
    let state = State { socket, request, format: info.address_format, _domain: parent };
    let created = object::create(header, state);
    // SAFETY: just made.
    unsafe { object::owned(created) }?.socket.announce_as(created as u64);
    Ok(created.cast())
}

/// "Socket endpoints are not associated with completion queues or counters"; they "are
/// associated with event queues and address vectors".
unsafe extern "C" fn bind(ep: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    done("fi_ep_bind", || {
        if other.is_null() {
            return Err(Failure::null("what to bind"));
        }
        if flags != 0 {
            return Err(Failure::flags("fi_ep_bind", flags));
        }
        // SAFETY: C passes open objects, each of the kind whose table it points to.
        unsafe {
            let socket = &object::owned(ep.cast::<FidSocket>())?.socket;
            if (*other).ops == FidAv::operations() {
                let vector = object::checked::<FidAv>(other)?.vector_for(socket.domain())?;
                return Ok(socket.bind_address_vector(vector)?);
            }
            if (*other).ops == FidEq::operations() {
                let queue = object::checked::<FidEq>(other)?.queue();
                return Ok(socket.bind_event_queue(queue, ep as u64)?);
            }
        }
        Err(Failure::new(Errno::INVAL, "an object that socket endpoints are not bound to"))
    })
}

unsafe extern "C" fn control(ep: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    done("fi_control", || {
        // SAFETY: C passes an open endpoint.
        let state = unsafe { object::owned(ep.cast::<FidSocket>()) }?;
        if command == command::ENABLE {
            return Ok(state.socket.enable()?);
        }
        if argument.is_null() {
            return Err(Failure::null("the argument"));
        }
        match command {
            command::GETWAIT => {
                let fd = state.socket.descriptor()?;
                // SAFETY: the argument of this command is an `int *`.
                unsafe { argument.cast::<c_int>().write(fd) };
            }
            command::GETWAITOBJ => {
                // SAFETY: the argument of this command is an `enum fi_wait_obj *`.
                unsafe { argument.cast::<u32>().write(wait::FD) };
            }
            _ => {
                let reason = format!("command {command} of a socket endpoint");
                return Err(Failure::new(Errno::NOSYS, reason));
            }
        }
        Ok(())
    })
}

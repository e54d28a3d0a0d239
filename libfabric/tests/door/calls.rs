//! Every call of the data path, each with the same arguments, so that all of them can be
//! asked for the same thing.

use std::{ffi::c_void, ptr::null_mut};

use crate::abi::{
    atomic::{Ioc, MsgAtomic, RmaIoc},
    attributes::Iovec,
    fid::FidEp,
    message::{Msg, MsgRma, MsgTagged, RmaIov},
};

const UINT64: u32 = 7;
const SUM: u32 = 2;
const CSWAP: u32 = 12;
const NONE: *mut c_void = null_mut();

/// What all calls are called with.
#[derive(Clone, Copy)]
pub struct Arguments {
    pub buffer: *mut c_void,
    /// Units: bytes. Atomics have a count of elements instead.
    pub length: usize,
    pub elements: usize,
    /// Lists: `count` entries, none if null.
    pub iov: *const Iovec,
    pub ioc: *mut Ioc,
    pub count: usize,
    pub remote: *const RmaIov,
    pub remote_elements: *const RmaIoc,
    pub remote_count: usize,
    /// The messages of `…msg` calls are null.
    pub no_message: bool,
    pub to: u64,
    pub flags: u64,
}

/// Something for ever: these calls keep no pointer after they are refused, and tests are short.
fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

impl Arguments {
    /// One buffer of one element, for peer 0.
    pub fn good() -> Arguments {
        let buffer = leak(0_u64).cast::<c_void>();
        Arguments {
            buffer,
            length: 8,
            elements: 1,
            iov: leak([Iovec { base: buffer, len: 8 }; 9]).cast(),
            ioc: leak([Ioc { addr: buffer, count: 1 }; 9]).cast(),
            count: 1,
            remote: leak([RmaIov { addr: 0, len: 8, key: 1 }; 9]).cast(),
            remote_elements: leak([RmaIoc { addr: 0, count: 1, key: 1 }; 9]).cast(),
            remote_count: 1,
            no_message: false,
            to: 0,
            flags: 0,
        }
    }

    fn give<T>(&self, message: T) -> *const T {
        if self.no_message { null_mut() } else { leak(message) }
    }

    fn msg(&self) -> *const Msg {
        self.give(Msg {
            msg_iov: self.iov,
            desc: null_mut(),
            iov_count: self.count,
            addr: self.to,
            context: NONE,
            data: 0,
        })
    }

    fn tagged(&self) -> *const MsgTagged {
        self.give(MsgTagged {
            msg_iov: self.iov,
            desc: null_mut(),
            iov_count: self.count,
            addr: self.to,
            tag: 0,
            ignore: 0,
            context: NONE,
            data: 0,
        })
    }

    fn rma(&self) -> *const MsgRma {
        self.give(MsgRma {
            msg_iov: self.iov,
            desc: null_mut(),
            iov_count: self.count,
            addr: self.to,
            rma_iov: self.remote,
            rma_iov_count: self.remote_count,
            context: NONE,
            data: 0,
        })
    }

    fn atomic(&self, op: u32) -> *const MsgAtomic {
        self.give(MsgAtomic {
            msg_iov: self.ioc,
            desc: null_mut(),
            iov_count: self.count,
            addr: self.to,
            rma_iov: self.remote_elements,
            rma_iov_count: self.remote_count,
            datatype: UINT64,
            op,
            context: NONE,
            data: 0,
        })
    }
}

/// A call with its arguments, but for the endpoint.
pub struct Call {
    pub name: &'static str,
    call: Box<dyn Fn(*mut FidEp) -> isize>,
}

impl Call {
    /// What it answers. The endpoint is open, or closed a moment ago.
    pub fn on(&self, ep: *mut FidEp) -> isize {
        (self.call)(ep)
    }

    pub fn receives(&self) -> bool {
        self.name.contains(".recv")
    }

    /// Whether it takes a `…msg` struct, and so flags of its own.
    pub fn has_flags(&self) -> bool {
        self.name.ends_with("msg")
    }

    /// Whether it takes remote segments.
    pub fn has_segments(&self) -> bool {
        let is_remote = self.name.starts_with("rma.") || self.name.starts_with("atomic.");
        self.has_flags() && is_remote
    }

    /// Whether it takes lists, itself or in its message.
    pub fn has_list(&self) -> bool {
        self.has_flags() || (self.name.ends_with('v') && !self.name.ends_with(".recv"))
    }
}

macro_rules! calls {
    ($($table:ident.$call:ident($($argument:expr),* $(,)?);)*) => {
        vec![$(Call {
            name: concat!(stringify!($table), ".", stringify!($call)),
            // SAFETY: the endpoint is as `on` says; all that is pointed to lives for ever.
            call: Box::new(move |ep| unsafe { ((*(*ep).$table).$call)(ep, $($argument),*) }),
        }),*]
    };
}

/// Every call that posts something.
pub fn all(arguments: Arguments) -> Vec<Call> {
    let Arguments { buffer, length, iov, count, to, flags, .. } = arguments;
    let descs = null_mut();
    let (msg, tagged, rma) = (arguments.msg(), arguments.tagged(), arguments.rma());
    let mut calls = calls! {
        msg.recv(buffer, length, NONE, to, NONE);
        msg.recvv(iov, descs, count, to, NONE);
        msg.recvmsg(msg, flags);
        msg.send(buffer, length, NONE, to, NONE);
        msg.sendv(iov, descs, count, to, NONE);
        msg.sendmsg(msg, flags);
        msg.inject(buffer, length, to);
        msg.senddata(buffer, length, NONE, 0, to, NONE);
        msg.injectdata(buffer, length, 0, to);
        tagged.recv(buffer, length, NONE, to, 0, 0, NONE);
        tagged.recvv(iov, descs, count, to, 0, 0, NONE);
        tagged.recvmsg(tagged, flags);
        tagged.send(buffer, length, NONE, to, 0, NONE);
        tagged.sendv(iov, descs, count, to, 0, NONE);
        tagged.sendmsg(tagged, flags);
        tagged.inject(buffer, length, to, 0);
        tagged.senddata(buffer, length, NONE, 0, to, 0, NONE);
        tagged.injectdata(buffer, length, 0, to, 0);
        rma.read(buffer, length, NONE, to, 0, 1, NONE);
        rma.readv(iov, descs, count, to, 0, 1, NONE);
        rma.readmsg(rma, flags);
        rma.write(buffer, length, NONE, to, 0, 1, NONE);
        rma.writev(iov, descs, count, to, 0, 1, NONE);
        rma.writemsg(rma, flags);
        rma.inject(buffer, length, to, 0, 1);
        rma.writedata(buffer, length, NONE, 0, to, 0, 1, NONE);
        rma.injectdata(buffer, length, 0, to, 0, 1);
    };
    calls.extend(atomics(arguments));
    calls
}

fn atomics(arguments: Arguments) -> Vec<Call> {
    let Arguments { buffer, elements, ioc, count, to, flags, .. } = arguments;
    let descs = null_mut();
    let (sum, swap) = (arguments.atomic(SUM), arguments.atomic(CSWAP));
    calls! {
        atomic.write(buffer, elements, NONE, to, 0, 1, UINT64, SUM, NONE);
        atomic.writev(ioc, descs, count, to, 0, 1, UINT64, SUM, NONE);
        atomic.writemsg(sum, flags);
        atomic.inject(buffer, elements, to, 0, 1, UINT64, SUM);
        atomic.readwrite(buffer, elements, NONE, buffer, NONE, to, 0, 1, UINT64, SUM, NONE);
        atomic.readwritev(ioc, descs, count, ioc, descs, count, to, 0, 1, UINT64, SUM, NONE);
        atomic.readwritemsg(sum, ioc, descs, count, flags);
        atomic.compwrite(buffer, elements, NONE, buffer, NONE, buffer, NONE, to, 0, 1, UINT64,
            CSWAP, NONE);
        atomic.compwritev(ioc, descs, count, ioc, descs, count, ioc, descs, count, to, 0, 1,
            UINT64, CSWAP, NONE);
        atomic.compwritemsg(swap, ioc, descs, count, ioc, descs, count, flags);
    }
}

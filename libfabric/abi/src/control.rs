//! The calls of the control path and of queues.

use std::ffi::{c_char, c_int, c_void};

use super::{
    attributes::{
        AvAttr, CntrAttr, CqAttr, CqErrEntry, EqAttr, EqErrEntry, Iovec, MrAttr, WaitAttr,
    },
    fid::{
        Fid, FidAv, FidCntr, FidCq, FidDomain, FidEp, FidEq, FidFabric, FidMc, FidMr, FidPep,
        FidPoll, FidStx, FidWait,
    },
    info::{Info, RxAttr, TxAttr},
};

/// Something that kestrel never looks into.
type Opaque = *mut c_void;

operations! {
    /// `struct fi_ops`: what every object has.
    pub struct OpsFid {
        close(fid: *mut Fid) -> c_int;
        bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int;
        control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int;
        ops_open(fid: *mut Fid, name: *const c_char, flags: u64, ops: *mut Opaque, context: Opaque) -> c_int;
        tostr(fid: *const Fid, buffer: *mut c_char, length: usize) -> c_int;
        ops_set(fid: *mut Fid, name: *const c_char, flags: u64, ops: Opaque, context: Opaque) -> c_int;
    }

    pub struct OpsFabric {
        domain(fabric: *mut FidFabric, info: *mut Info, domain: *mut *mut FidDomain, context: Opaque) -> c_int;
        passive_ep(fabric: *mut FidFabric, info: *mut Info, pep: *mut *mut FidPep, context: Opaque) -> c_int;
        eq_open(fabric: *mut FidFabric, attr: *mut EqAttr, eq: *mut *mut FidEq, context: Opaque) -> c_int;
        wait_open(fabric: *mut FidFabric, attr: *mut WaitAttr, wait: *mut *mut FidWait) -> c_int;
        trywait(fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int;
        domain2(fabric: *mut FidFabric, info: *mut Info, domain: *mut *mut FidDomain, flags: u64, context: Opaque) -> c_int;
    }

    pub struct OpsDomain {
        av_open(domain: *mut FidDomain, attr: *mut AvAttr, av: *mut *mut FidAv, context: Opaque) -> c_int;
        cq_open(domain: *mut FidDomain, attr: *mut CqAttr, cq: *mut *mut FidCq, context: Opaque) -> c_int;
        endpoint(domain: *mut FidDomain, info: *mut Info, ep: *mut *mut FidEp, context: Opaque) -> c_int;
        scalable_ep(domain: *mut FidDomain, info: *mut Info, ep: *mut *mut FidEp, context: Opaque) -> c_int;
        cntr_open(domain: *mut FidDomain, attr: *mut CntrAttr, cntr: *mut *mut FidCntr, context: Opaque) -> c_int;
        poll_open(domain: *mut FidDomain, attr: Opaque, poll: *mut *mut FidPoll) -> c_int;
        stx_ctx(domain: *mut FidDomain, attr: *mut TxAttr, stx: *mut *mut FidStx, context: Opaque) -> c_int;
        srx_ctx(domain: *mut FidDomain, attr: *mut RxAttr, ep: *mut *mut FidEp, context: Opaque) -> c_int;
        query_atomic(domain: *mut FidDomain, datatype: u32, op: u32, attr: *mut super::atomic::AtomicAttr, flags: u64) -> c_int;
        query_collective(domain: *mut FidDomain, collective: u32, attr: Opaque, flags: u64) -> c_int;
        endpoint2(domain: *mut FidDomain, info: *mut Info, ep: *mut *mut FidEp, flags: u64, context: Opaque) -> c_int;
        xpu_ctx(domain: *mut FidDomain, attr: Opaque, xpu: *mut Opaque, context: Opaque) -> c_int;
    }

    pub struct OpsMr {
        reg(fid: *mut Fid, buffer: *const c_void, length: usize, access: u64, offset: u64, key: u64, flags: u64, mr: *mut *mut FidMr, context: Opaque) -> c_int;
        regv(fid: *mut Fid, iov: *const Iovec, count: usize, access: u64, offset: u64, key: u64, flags: u64, mr: *mut *mut FidMr, context: Opaque) -> c_int;
        regattr(fid: *mut Fid, attr: *const MrAttr, flags: u64, mr: *mut *mut FidMr) -> c_int;
    }

    pub struct OpsAv {
        insert(av: *mut FidAv, addresses: *const c_void, count: usize, fi_addr: *mut u64, flags: u64, context: Opaque) -> c_int;
        insertsvc(av: *mut FidAv, node: *const c_char, service: *const c_char, fi_addr: *mut u64, flags: u64, context: Opaque) -> c_int;
        insertsym(av: *mut FidAv, node: *const c_char, node_count: usize, service: *const c_char, service_count: usize, fi_addr: *mut u64, flags: u64, context: Opaque) -> c_int;
        remove(av: *mut FidAv, fi_addr: *mut u64, count: usize, flags: u64) -> c_int;
        lookup(av: *mut FidAv, fi_addr: u64, address: *mut c_void, length: *mut usize) -> c_int;
        straddr(av: *mut FidAv, address: *const c_void, buffer: *mut c_char, length: *mut usize) -> *const c_char;
        av_set(av: *mut FidAv, attr: Opaque, set: *mut Opaque, context: Opaque) -> c_int;
        insert_auth_key(av: *mut FidAv, key: *const c_void, length: usize, fi_addr: *mut u64, flags: u64) -> c_int;
        lookup_auth_key(av: *mut FidAv, fi_addr: u64, key: *mut c_void, length: *mut usize) -> c_int;
        set_user_id(av: *mut FidAv, fi_addr: u64, user_id: u64, flags: u64) -> c_int;
        lookup2(av: *mut FidAv, fi_addr: u64, buffer: *mut c_void, length: *mut usize, flags: u64, xpu: Opaque) -> c_int;
    }

    pub struct OpsEq {
        read(eq: *mut FidEq, event: *mut u32, buffer: *mut c_void, length: usize, flags: u64) -> isize;
        readerr(eq: *mut FidEq, buffer: *mut EqErrEntry, flags: u64) -> isize;
        write(eq: *mut FidEq, event: u32, buffer: *const c_void, length: usize, flags: u64) -> isize;
        sread(eq: *mut FidEq, event: *mut u32, buffer: *mut c_void, length: usize, timeout_ms: c_int, flags: u64) -> isize;
        strerror(eq: *mut FidEq, prov_errno: c_int, err_data: *const c_void, buffer: *mut c_char, length: usize) -> *const c_char;
    }

    pub struct OpsCq {
        read(cq: *mut FidCq, buffer: *mut c_void, count: usize) -> isize;
        readfrom(cq: *mut FidCq, buffer: *mut c_void, count: usize, sources: *mut u64) -> isize;
        readerr(cq: *mut FidCq, buffer: *mut CqErrEntry, flags: u64) -> isize;
        sread(cq: *mut FidCq, buffer: *mut c_void, count: usize, condition: *const c_void, timeout_ms: c_int) -> isize;
        sreadfrom(cq: *mut FidCq, buffer: *mut c_void, count: usize, sources: *mut u64, condition: *const c_void, timeout_ms: c_int) -> isize;
        signal(cq: *mut FidCq) -> c_int;
        strerror(cq: *mut FidCq, prov_errno: c_int, err_data: *const c_void, buffer: *mut c_char, length: usize) -> *const c_char;
        export_xpu(cq: *mut FidCq, flags: u64, xpu: Opaque) -> c_int;
    }

    pub struct OpsCntr {
        read(cntr: *mut FidCntr) -> u64;
        readerr(cntr: *mut FidCntr) -> u64;
        add(cntr: *mut FidCntr, value: u64) -> c_int;
        set(cntr: *mut FidCntr, value: u64) -> c_int;
        wait(cntr: *mut FidCntr, threshold: u64, timeout_ms: c_int) -> c_int;
        adderr(cntr: *mut FidCntr, value: u64) -> c_int;
        seterr(cntr: *mut FidCntr, value: u64) -> c_int;
        export_xpu(cntr: *mut FidCntr, flags: u64, xpu: Opaque) -> c_int;
    }

    pub struct OpsWait {
        wait(wait: *mut FidWait, timeout_ms: c_int) -> c_int;
    }

    pub struct OpsPoll {
        poll(poll: *mut FidPoll, contexts: *mut Opaque, count: c_int) -> c_int;
        poll_add(poll: *mut FidPoll, fid: *mut Fid, flags: u64) -> c_int;
        poll_del(poll: *mut FidPoll, fid: *mut Fid, flags: u64) -> c_int;
    }

    pub struct OpsEp {
        cancel(fid: *mut Fid, context: Opaque) -> isize;
        getopt(fid: *mut Fid, level: c_int, name: c_int, value: *mut c_void, length: *mut usize) -> c_int;
        setopt(fid: *mut Fid, level: c_int, name: c_int, value: *const c_void, length: usize) -> c_int;
        tx_ctx(ep: *mut FidEp, index: c_int, attr: *mut TxAttr, tx: *mut *mut FidEp, context: Opaque) -> c_int;
        rx_ctx(ep: *mut FidEp, index: c_int, attr: *mut RxAttr, rx: *mut *mut FidEp, context: Opaque) -> c_int;
        rx_size_left(ep: *mut FidEp) -> isize;
        tx_size_left(ep: *mut FidEp) -> isize;
        export_xpu(ep: *mut FidEp, flags: u64, xpu: Opaque) -> c_int;
    }

    pub struct OpsCm {
        setname(fid: *mut Fid, address: *mut c_void, length: usize) -> c_int;
        getname(fid: *mut Fid, address: *mut c_void, length: *mut usize) -> c_int;
        getpeer(ep: *mut FidEp, address: *mut c_void, length: *mut usize) -> c_int;
        connect(ep: *mut FidEp, address: *const c_void, data: *const c_void, length: usize) -> c_int;
        listen(pep: *mut FidPep) -> c_int;
        accept(ep: *mut FidEp, data: *const c_void, length: usize) -> c_int;
        reject(pep: *mut FidPep, handle: *mut Fid, data: *const c_void, length: usize) -> c_int;
        shutdown(ep: *mut FidEp, flags: u64) -> c_int;
        join(ep: *mut FidEp, address: *const c_void, flags: u64, mc: *mut *mut FidMc, context: Opaque) -> c_int;
    }
}

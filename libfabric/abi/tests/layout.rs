//! Our structs against the C compiler's view of the installed libfabric headers, and
//! against the sizes that the newest interface has.
//!
//! Sizes and offsets are asked of a C program that includes the real headers, of
//! whichever version is installed; where these or a C compiler are missing, the test
//! says so and is skipped. `KESTREL_LIBFABRIC_INCLUDE` names a folder with headers of
//! another version.

use std::{env, fmt::Write as _, fs, mem::offset_of, path::PathBuf, process::Command};

use kestrel_core::flags::Flags;
use kestrel_fi_abi::{
    atomic::*, attributes::*, control::*, fid::*, info::*, message::*, transfer::*, trigger::*,
};

/// One number to compare: a C expression and what Rust computed for it.
struct Fact {
    c: String,
    rust: usize,
}

/// The members' offsets of each listed struct, in Rust's and (after `=`) C's words.
macro_rules! offsets {
    ($($rust:ident = $c:ident { $($member:ident $(= $c_member:ident)?),+ $(,)? })+) => {
        vec![$($(Fact {
            c: format!("offsetof(struct {}, {})", stringify!($c),
                [stringify!($member) $(, stringify!($c_member))?].last().unwrap()),
            rust: offset_of!($rust, $member),
        },)+)+]
    };
}

/// The size of each struct: Rust's, and what it is in versions 1.17 and 2.6.
macro_rules! sizes {
    ($($rust:ident = $c:ident: $before:literal, $now:literal;)+) => {
        vec![$((stringify!($c), size_of::<$rust>(), $before, $now),)+]
    };
}

fn all_sizes() -> Vec<(&'static str, usize, usize, usize)> {
    let mut sizes = sizes_of_objects();
    sizes.extend(sizes_of_triggers());
    sizes
}

fn sizes_of_triggers() -> Vec<(&'static str, usize, usize, usize)> {
    sizes! {
        TriggerThreshold = fi_trigger_threshold: 16, 16;
        TriggeredContext = fi_triggered_context: 32, 32;
        MsgFetch = fi_msg_fetch: 24, 24;
        MsgCompare = fi_msg_compare: 24, 24;
        OpMsg = fi_op_msg: 64, 64;
        OpTagged = fi_op_tagged: 80, 80;
        OpRma = fi_op_rma: 80, 80;
        OpAtomic = fi_op_atomic: 88, 88;
        OpFetchAtomic = fi_op_fetch_atomic: 112, 112;
        OpCompareAtomic = fi_op_compare_atomic: 136, 136;
        OpCntr = fi_op_cntr: 16, 16;
        DeferredWork = fi_deferred_work: 104, 104;
    }
}

fn sizes_of_objects() -> Vec<(&'static str, usize, usize, usize)> {
    sizes! {
        Info = fi_info: 120, 120;
        TxAttr = fi_tx_attr: 80, 80;
        RxAttr = fi_rx_attr: 64, 64;
        EpAttr = fi_ep_attr: 96, 104;
        DomainAttr = fi_domain_attr: 192, 232;
        FabricAttr = fi_fabric_attr: 32, 32;
        DeviceAttr = fi_device_attr: 48, 48;
        BusAttr = fi_bus_attr: 12, 12;
        LinkAttr = fi_link_attr: 40, 40;
        Fid = fid: 24, 24;
        FidFabric = fid_fabric: 40, 40;
        FidDomain = fid_domain: 40, 40;
        FidEp = fid_ep: 80, 80;
        FidAv = fid_av: 32, 32;
        FidMr = fid_mr: 40, 40;
        FidMc = fid_mc: 32, 32;
        FidEq = fid_eq: 32, 32;
        FidCq = fid_cq: 32, 32;
        FidCntr = fid_cntr: 32, 32;
        FidWait = fid_wait: 32, 32;
        FidPoll = fid_poll: 32, 32;
        Provider = fi_provider: 72, 72;
        Alias = fi_alias: 16, 16;
        AvAttr = fi_av_attr: 48, 48;
        CqAttr = fi_cq_attr: 40, 48;
        CntrAttr = fi_cntr_attr: 24, 32;
        EqAttr = fi_eq_attr: 32, 32;
        WaitAttr = fi_wait_attr: 16, 16;
        WaitPollFd = fi_wait_pollfd: 24, 24;
        MrAttr = fi_mr_attr: 80, 112;
        MrRawAttr = fi_mr_raw_attr: 32, 32;
        MrMapRaw = fi_mr_map_raw: 40, 40;
        CqTaggedEntry = fi_cq_tagged_entry: 48, 48;
        CqErrEntry = fi_cq_err_entry: 80, 88;
        EqEntry = fi_eq_entry: 24, 24;
        EqErrEntry = fi_eq_err_entry: 48, 48;
        EqCmEntry = fi_eq_cm_entry: 16, 16;
        Msg = fi_msg: 48, 48;
        MsgTagged = fi_msg_tagged: 64, 64;
        MsgRma = fi_msg_rma: 64, 64;
        RmaIov = fi_rma_iov: 24, 24;
        MsgAtomic = fi_msg_atomic: 72, 72;
        Ioc = fi_ioc: 16, 16;
        RmaIoc = fi_rma_ioc: 24, 24;
        AtomicAttr = fi_atomic_attr: 16, 16;
        OpsFid = fi_ops: 56, 56;
        OpsFabric = fi_ops_fabric: 56, 56;
        OpsDomain = fi_ops_domain: 96, 104;
        OpsMr = fi_ops_mr: 32, 32;
        OpsAv = fi_ops_av: 64, 96;
        OpsEq = fi_ops_eq: 48, 48;
        OpsCq = fi_ops_cq: 64, 72;
        OpsCntr = fi_ops_cntr: 64, 72;
        OpsWait = fi_ops_wait: 16, 16;
        OpsPoll = fi_ops_poll: 32, 32;
        OpsEp = fi_ops_ep: 64, 72;
        OpsCm = fi_ops_cm: 80, 80;
        OpsMsg = fi_ops_msg: 80, 80;
        OpsTagged = fi_ops_tagged: 80, 80;
        OpsRma = fi_ops_rma: 80, 80;
        OpsAtomic = fi_ops_atomic: 112, 112;
        OpsCollective = fi_ops_collective: 96, 96;
    }
}

fn attributes() -> Vec<Fact> {
    offsets! {
        Info = fi_info { next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr,
            dest_addr, handle, tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic }
        TxAttr = fi_tx_attr { caps, mode, op_flags, msg_order, comp_order, inject_size, size,
            iov_limit, rma_iov_limit, tclass }
        RxAttr = fi_rx_attr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv,
            size, iov_limit }
        EpAttr = fi_ep_attr { kind = type, protocol, protocol_version, max_msg_size,
            msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size,
            mem_tag_format, tx_ctx_cnt, rx_ctx_cnt, auth_key_size, auth_key }
        DomainAttr = fi_domain_attr { domain, name, threading, control_progress, data_progress,
            resource_mgmt, av_type, mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt,
            tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx,
            max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key, auth_key_size,
            max_err_data, mr_cnt, tclass }
        FabricAttr = fi_fabric_attr { fabric, name, prov_name, prov_version, api_version }
        DeviceAttr = fi_device_attr { name, device_id, device_version, vendor_id, driver, firmware }
        LinkAttr = fi_link_attr { address, mtu, speed, state, network_type }
        FidNic = fid_nic { fid, device_attr, bus_attr, link_attr, prov_attr }
        Provider = fi_provider { version, fi_version, context, name, getinfo, fabric, cleanup }
        AvAttr = fi_av_attr { kind = type, rx_ctx_bits, count, ep_per_node, name, map_addr,
            flags }
        CqAttr = fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond,
            wait_set }
        CntrAttr = fi_cntr_attr { events, wait_obj, wait_set, flags }
        EqAttr = fi_eq_attr { size, flags, wait_obj, signaling_vector, wait_set }
        WaitAttr = fi_wait_attr { wait_obj, flags }
        WaitPollFd = fi_wait_pollfd { change_index, nfds, fd }
        MrRawAttr = fi_mr_raw_attr { flags, base_addr, raw_key, key_size }
        MrMapRaw = fi_mr_map_raw { flags, base_addr, raw_key, key_size, key }
        MrAttr = fi_mr_attr { mr_iov, iov_count, access, offset, requested_key, context,
            auth_key_size, auth_key, iface, device }
    }
}

fn entries_and_messages() -> Vec<Fact> {
    offsets! {
        CqTaggedEntry = fi_cq_tagged_entry { op_context, flags, len, buf, data, tag }
        CqErrEntry = fi_cq_err_entry { op_context, flags, len, buf, data, tag, olen, err,
            prov_errno, err_data, err_data_size }
        EqEntry = fi_eq_entry { fid, context, data }
        EqErrEntry = fi_eq_err_entry { fid, context, data, err, prov_errno, err_data,
            err_data_size }
        EqCmEntry = fi_eq_cm_entry { fid, info }
        Msg = fi_msg { msg_iov, desc, iov_count, addr, context, data }
        MsgTagged = fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
        MsgRma = fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context,
            data }
        MsgAtomic = fi_msg_atomic { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count,
            datatype, op, context, data }
        RmaIov = fi_rma_iov { addr, len, key }
        RmaIoc = fi_rma_ioc { addr, count, key }
        Ioc = fi_ioc { addr, count }
        AtomicAttr = fi_atomic_attr { count, size }
        TriggerThreshold = fi_trigger_threshold { cntr, threshold }
        TriggeredContext = fi_triggered_context { event_type, trigger }
        MsgFetch = fi_msg_fetch { msg_iov, desc, iov_count }
        MsgCompare = fi_msg_compare { msg_iov, desc, iov_count }
        OpMsg = fi_op_msg { ep, msg, flags }
        OpTagged = fi_op_tagged { ep, msg, flags }
        OpRma = fi_op_rma { ep, msg, flags }
        OpAtomic = fi_op_atomic { ep, msg, flags }
        OpFetchAtomic = fi_op_fetch_atomic { ep, msg, fetch, flags }
        OpCompareAtomic = fi_op_compare_atomic { ep, msg, fetch, compare, flags }
        OpCntr = fi_op_cntr { cntr, value }
        DeferredWork = fi_deferred_work { context, threshold, triggering_cntr, completion_cntr,
            op_type, op }
        Fid = fid { fclass, context, ops }
        FidFabric = fid_fabric { fid, ops, api_version }
        FidDomain = fid_domain { fid, ops, mr }
        FidEp = fid_ep { fid, ops, cm, msg, rma, tagged, atomic, collective }
        FidMr = fid_mr { fid, mem_desc, key }
        FidMc = fid_mc { fid, fi_addr }
        FidCq = fid_cq { fid, ops }
    }
}

fn calls() -> Vec<Fact> {
    offsets! {
        OpsFid = fi_ops { size, close, bind, control, ops_open, tostr, ops_set }
        OpsFabric = fi_ops_fabric { domain, passive_ep, eq_open, wait_open, trywait, domain2 }
        OpsDomain = fi_ops_domain { av_open, cq_open, endpoint, scalable_ep, cntr_open,
            poll_open, stx_ctx, srx_ctx, query_atomic, query_collective, endpoint2 }
        OpsMr = fi_ops_mr { reg, regv, regattr }
        OpsAv = fi_ops_av { insert, insertsvc, insertsym, remove, lookup, straddr, av_set }
        OpsEq = fi_ops_eq { read, readerr, write, sread, strerror }
        OpsCq = fi_ops_cq { read, readfrom, readerr, sread, sreadfrom, signal, strerror }
        OpsCntr = fi_ops_cntr { read, readerr, add, set, wait, adderr, seterr }
        OpsWait = fi_ops_wait { wait }
        OpsPoll = fi_ops_poll { poll, poll_add, poll_del }
        OpsEp = fi_ops_ep { cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left }
        OpsCm = fi_ops_cm { setname, getname, getpeer, connect, listen, accept, reject,
            shutdown, join }
        OpsMsg = fi_ops_msg { recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata,
            injectdata }
        OpsTagged = fi_ops_tagged { recv, recvv, recvmsg, send, sendv, sendmsg, inject,
            senddata, injectdata }
        OpsRma = fi_ops_rma { read, readv, readmsg, write, writev, writemsg, inject, writedata,
            injectdata }
        OpsAtomic = fi_ops_atomic { write, writev, writemsg, inject, readwrite, readwritev,
            readwritemsg, compwrite, compwritev, compwritemsg, writevalid, readwritevalid,
            compwritevalid }
        OpsCollective = fi_ops_collective { barrier, broadcast, alltoall, allreduce, allgather,
            reduce_scatter, reduce, scatter, gather, msg, barrier2 }
    }
}

/// Numbers that are written out in our sources.
fn numbers() -> Vec<Fact> {
    use kestrel_fi_abi::constants::{
        BADF, NOSYS, NUMERICHOST, OPT_ENDPOINT, PROV_ATTR_ONLY, command, wait,
    };
    let pairs = [
        ("FI_NUMERICHOST", NUMERICHOST as usize),
        ("FI_PROV_ATTR_ONLY", PROV_ATTR_ONLY as usize),
        ("FI_WAIT_NONE", wait::NONE as usize),
        ("FI_WAIT_UNSPEC", wait::UNSPEC as usize),
        ("FI_WAIT_SET", wait::SET as usize),
        ("FI_WAIT_FD", wait::FD as usize),
        ("FI_WAIT_YIELD", wait::YIELD as usize),
        ("FI_WAIT_POLLFD", wait::POLLFD as usize),
        ("FI_GETOPSFLAG", command::GETOPSFLAG as usize),
        ("FI_SETOPSFLAG", command::SETOPSFLAG as usize),
        ("FI_GETWAIT", command::GETWAIT as usize),
        ("FI_ENABLE", command::ENABLE as usize),
        ("FI_GETWAITOBJ", command::GETWAITOBJ as usize),
        ("FI_OPT_ENDPOINT", OPT_ENDPOINT as usize),
        ("FI_CLASS_FABRIC", class::FABRIC),
        ("FI_CLASS_DOMAIN", class::DOMAIN),
        ("FI_CLASS_EP", class::EP),
        ("FI_CLASS_AV", class::AV),
        ("FI_CLASS_MR", class::MR),
        ("FI_CLASS_EQ", class::EQ),
        ("FI_CLASS_CQ", class::CQ),
        ("FI_CLASS_CNTR", class::CNTR),
        ("FI_CLASS_WAIT", class::WAIT),
        ("FI_CLASS_POLL", class::POLL),
        ("FI_CLASS_NIC", class::NIC),
        ("FI_DUP", command::DUP as usize),
        ("FI_TRIGGER_THRESHOLD", event::THRESHOLD as usize),
        ("FI_QUEUE_WORK", command::QUEUE_WORK as usize),
        ("FI_CANCEL_WORK", command::CANCEL_WORK as usize),
        ("FI_FLUSH_WORK", command::FLUSH_WORK as usize),
        ("FI_OP_RECV", op::RECV as usize),
        ("FI_OP_SEND", op::SEND as usize),
        ("FI_OP_TRECV", op::TRECV as usize),
        ("FI_OP_TSEND", op::TSEND as usize),
        ("FI_OP_READ", op::READ as usize),
        ("FI_OP_WRITE", op::WRITE as usize),
        ("FI_OP_ATOMIC", op::ATOMIC as usize),
        ("FI_OP_FETCH_ATOMIC", op::FETCH_ATOMIC as usize),
        ("FI_OP_COMPARE_ATOMIC", op::COMPARE_ATOMIC as usize),
        ("FI_OP_CNTR_SET", op::CNTR_SET as usize),
        ("FI_OP_CNTR_ADD", op::CNTR_ADD as usize),
        ("FI_ENOSYS", NOSYS as usize),
        ("FI_EBADF", BADF as usize),
    ];
    pairs.into_iter().map(|(c, rust)| Fact { c: c.to_owned(), rust }).collect()
}

#[test]
fn structs_have_the_sizes_of_the_newest_interface() {
    for (name, ours, _, newest) in all_sizes() {
        assert_eq!(ours, newest, "struct {name}");
    }
}

#[test]
fn the_structs_have_the_layout_of_the_installed_headers() {
    let name = "the_structs_have_the_layout_of_the_installed_headers";
    if let Err(reason) = ask_c(&[]) {
        println!("SKIPPED {name}: {reason}");
        return;
    }
    let mut facts = attributes();
    facts.extend(entries_and_messages());
    facts.extend(calls());
    facts.extend(numbers());
    let measured = ask_c(&facts).expect("the C program that prints the facts");
    let mut wrong = String::new();
    for (fact, measured) in facts.iter().zip(&measured) {
        if fact.rust != *measured {
            writeln!(wrong, "{}: {measured} in C, {} here", fact.c, fact.rust).unwrap();
        }
    }
    assert!(wrong.is_empty() && measured.len() == facts.len(), "{wrong}");
}

/// What version 2.1 has another size of than version 1.17.
const SIZES_OF_2_1: [(&str, usize); 4] =
    [("fi_domain_attr", 208), ("fi_mr_attr", 112), ("fi_cq_err_entry", 88), ("fi_ops_av", 88)];

/// A struct is as large as its version says, and never larger than ours.
#[test]
fn the_installed_headers_have_the_sizes_of_their_version() {
    let sizes = all_sizes();
    let fact = |c: String| Fact { c, rust: 0 };
    let mut facts = vec![fact("FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)".into())];
    facts.extend(sizes.iter().map(|(name, ..)| fact(format!("sizeof(struct {name})"))));
    let measured = match ask_c(&facts) {
        Ok(measured) => measured,
        Err(reason) => {
            let name = "the_installed_headers_have_the_sizes_of_their_version";
            return println!("SKIPPED {name}: {reason}");
        }
    };
    let version = measured[0];
    for ((name, ours, before, newest), measured) in sizes.iter().zip(&measured[1..]) {
        assert!(measured <= ours, "struct {name} has {measured} bytes in C, {ours} here");
        if version <= 1 << 16 | 17 {
            assert_eq!(measured, before, "struct {name} of version 1.17");
        } else if version == 2 << 16 | 1 {
            let grown = SIZES_OF_2_1.iter().find(|(grown, _)| grown == name);
            let size = grown.map_or(before, |(_, size)| size);
            assert_eq!(measured, size, "struct {name} of version 2.1");
        } else if version >= 2 << 16 | 6 {
            assert_eq!(measured, newest, "struct {name} of version 2.6");
        }
    }
}

/// Capabilities that came after version 1.17, in headers that have them: core's numbers are written out in
/// its flags, without a header beside them.
#[test]
fn newer_capabilities_have_their_bits() {
    let bits = [
        ("FI_TAGGED_DIRECTED_RECV", Flags::TAGGED_DIRECTED_RECV),
        ("FI_TAGGED_MULTI_RECV", Flags::TAGGED_MULTI_RECV),
        ("FI_AV_USER_ID", Flags::AV_USER_ID),
    ];
    for (name, flag) in bits {
        let fact = Fact { c: name.into(), rust: flag.bits() as usize };
        match ask_c(std::slice::from_ref(&fact)) {
            Ok(measured) => assert_eq!(measured, [fact.rust], "{name}"),
            Err(reason) => println!("SKIPPED newer_capabilities_have_their_bits: {reason}"),
        }
    }
}

/// What came with user ids and authorization keys of address vectors, in headers that have it.
#[test]
fn newer_calls_lie_where_newer_headers_have_them() {
    let version = Fact { c: "FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)".into(), rust: 0 };
    let skipped = match ask_c(&[version]) {
        Ok(version) if version[0] < 1 << 16 | 20 => "the headers are older than 1.20".into(),
        Ok(_) => String::new(),
        Err(reason) => reason,
    };
    if !skipped.is_empty() {
        return println!("SKIPPED newer_calls_lie_where_newer_headers_have_them: {skipped}");
    }
    let facts = offsets! {
        OpsAv = fi_ops_av { insert_auth_key, lookup_auth_key, set_user_id }
    };
    let measured = ask_c(&facts).expect("the C program that prints the facts");
    let ours: Vec<usize> = facts.iter().map(|fact| fact.rust).collect();
    assert_eq!(measured, ours);
}

const INCLUDES: &str = "#include <stddef.h>\n#include <stdio.h>\n\
    #include <rdma/fabric.h>\n#include <rdma/fi_atomic.h>\n#include <rdma/fi_cm.h>\n\
    #include <rdma/fi_collective.h>\n#include <rdma/fi_domain.h>\n\
    #include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_errno.h>\n\
    #include <rdma/fi_rma.h>\n#include <rdma/fi_tagged.h>\n#include <rdma/fi_trigger.h>\n\
    #include <rdma/providers/fi_prov.h>\n";

/// What a C program that includes libfabric's headers says of these expressions.
fn ask_c(facts: &[Fact]) -> Result<Vec<usize>, String> {
    let mut program = format!("{INCLUDES}int main(void) {{\n");
    for fact in facts {
        writeln!(program, "printf(\"%zu\\n\", (size_t)({}));", fact.c).unwrap();
    }
    program.push_str("return 0; }\n");
    let folder = Folder::new();
    let (source, binary) = (folder.0.join("layout.c"), folder.0.join("layout"));
    fs::write(&source, program).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    if let Ok(include) = env::var("KESTREL_LIBFABRIC_INCLUDE") {
        compiler.arg("-I").arg(include);
    }
    let compiled = compiler.arg("-w").arg("-o").arg(&binary).arg(&source).output();
    let compiled = compiled.map_err(|error| format!("no C compiler: {error}"))?;
    if !compiled.status.success() {
        let text = String::from_utf8_lossy(&compiled.stderr).into_owned();
        let reason = text.lines().find(|line| line.contains("error")).unwrap_or("cc failed");
        return Err(format!("no C compiler with libfabric's headers: {reason}"));
    }
    let output = Command::new(&binary).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.parse().map_err(|_| format!("not a number: {line}"))).collect()
}

/// A folder of a test's own, removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "-");
        let name = format!("kestrel-layout-{}-{thread}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder under the target directory");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left over is in the target directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

//! The checked-in bindings against the C compiler's view of the installed headers.
//!
//! Sizes and offsets are asked of a C program that includes the real headers;
//! where these or a C compiler are missing, the test says so and is skipped.

use std::{fmt::Write as _, fs, mem::offset_of, path::Path, process::Command};

use rdma_core_sys::{rdmacm::*, verbs::*};

/// One number to compare: a C expression and what Rust computed for it.
struct Fact {
    c: String,
    rust: usize,
}

/// The size and the members' offsets of each listed type, in C and in Rust.
macro_rules! layouts {
    ($($kind:tt $name:ident { $($field:ident),+ })+) => {
        vec![$(
            Fact {
                c: concat!("sizeof(", stringify!($kind), " ", stringify!($name), ")").to_string(),
                rust: size_of::<$name>(),
            },
            $(offset!($kind $name $field),)+
        )+]
    };
}

/// The members' offsets of each listed type, and that it is in C at least as long as in Rust: who fills it is
/// told its length, and newer releases add to its end.
macro_rules! layouts_that_grow {
    ($($kind:tt $name:ident { $($field:ident),+ })+) => {
        vec![$(
            Fact {
                c: format!("sizeof({} {}) >= {}", stringify!($kind), stringify!($name), size_of::<$name>()),
                rust: 1,
            },
            $(offset!($kind $name $field),)+
        )+]
    };
}

macro_rules! offset {
    ($kind:tt $name:ident $field:ident) => {
        Fact {
            c: format!(
                "offsetof({} {}, {})",
                stringify!($kind),
                stringify!($name),
                stringify!($field)
            ),
            rust: offset_of!($name, $field),
        }
    };
}

/// Distances from `context`, which ends the table: newer releases add to its front.
macro_rules! extended_operations {
    ($($field:ident),+) => {
        vec![$(Fact {
            c: format!("offsetof(struct verbs_context, context) - offsetof(struct verbs_context, {})",
                stringify!($field)),
            rust: offset_of!(verbs_context, context) - offset_of!(verbs_context, $field),
        }),+]
    };
}

macro_rules! constants {
    ($($name:ident),+) => {
        vec![$(Fact { c: stringify!($name).to_string(), rust: $name as usize }),+]
    };
}

/// Devices, addresses and completions.
fn device_types() -> Vec<Fact> {
    layouts! {
        union ibv_gid { raw, global }
        struct ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap,
            vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge,
            max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom,
            max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee,
            max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp,
            max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
            max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        struct ibv_odp_caps { general_caps, per_transport_caps }
        struct ibv_async_event { element, event_type }
        struct ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits }
        struct ibv_pd { context, handle }
        struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        struct ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        struct ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    }
}

/// What devices and ports say of themselves.
fn answer_types() -> Vec<Fact> {
    layouts_that_grow! {
        struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        struct ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask,
            hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq,
            packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size,
            pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex }
        struct ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags,
            max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc,
            max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed,
            phys_state, link_layer, flags, port_cap_flags2 }
    }
}

/// Queues, work requests and the operations tables.
fn queue_types() -> Vec<Fact> {
    layouts! {
        struct ibv_srq_attr { max_wr, max_sge, srq_limit }
        struct ibv_srq_init_attr { srq_context, attr }
        struct ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
            max_inline_data }
        struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        struct ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn,
            sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index,
            alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit }
        struct ibv_sge { addr, length, lkey }
        struct ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type }
        struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
        struct ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        struct ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state,
            qp_type, mutex, cond, events_completed }
        struct ibv_comp_channel { context, fd, refcnt }
        struct ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond,
            comp_events_completed, async_events_completed }
        struct ibv_ah { context, pd, handle }
        struct ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        struct ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
            _compat_async_event }
        struct ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
            }
        struct ibv_sa_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit,
            traffic_class, reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector,
            rate, packet_life_time_selector, packet_life_time, preference }
    }
}

/// What librdmacm adds.
fn connection_types() -> Vec<Fact> {
    layouts! {
        struct rdma_ib_addr { sgid, dgid, pkey }
        struct rdma_addr { addr }
        struct rdma_route { addr, path_rec, num_paths }
        struct rdma_event_channel { fd }
        struct rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event,
            send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type }
        struct rdma_conn_param { private_data, private_data_len, responder_resources,
            initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num }
        struct rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        struct rdma_cm_event { id, listen_id, event, status, param }
    }
}

fn facts() -> Vec<Fact> {
    let mut facts = device_types();
    facts.extend(answer_types());
    facts.extend(queue_types());
    facts.extend(connection_types());
    facts.extend(extended_operations!(query_port, advise_mr, query_device_ex, create_qp_ex, sz));
    facts.extend(constants!(
        IBV_QPT_RC,
        IBV_QPT_UD,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_ERR,
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_SEND_SIGNALED,
        IBV_SEND_INLINE,
        IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_RELAXED_ORDERING,
        IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_LINK_LAYER_ETHERNET,
        IBV_GID_TYPE_ROCE_V2,
        RDMA_PS_TCP,
        RDMA_CM_EVENT_ESTABLISHED,
        RDMA_CM_EVENT_TIMEWAIT_EXIT
    ));
    facts
}

#[test]
fn the_bindings_have_the_layout_of_the_installed_headers() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if let Err(reason) = headers_compile(directory) {
        println!("SKIPPED the_bindings_have_the_layout_of_the_installed_headers: {reason}");
        return;
    }
    let facts = facts();
    let measured = ask_c(directory, &facts).expect("the C program that prints the facts");
    assert_eq!(measured.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(&measured)
        .filter(|(fact, c)| fact.rust as i64 != **c)
        .map(|(fact, c)| format!("{}: C {c}, Rust {}", fact.c, fact.rust))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_comparison_sees_a_wrong_number() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if let Err(reason) = headers_compile(directory) {
        println!("SKIPPED the_comparison_sees_a_wrong_number: {reason}");
        return;
    }
    let fact = Fact { c: "sizeof(union ibv_gid) + 1".to_string(), rust: size_of::<ibv_gid>() };
    let measured = ask_c(directory, &[fact]).expect("the C program that prints the fact");
    assert_eq!(measured, [17]);
}

const INCLUDES: &str = "#include <stddef.h>\n#include <stdio.h>\n\
    #include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n";

fn headers_compile(directory: &Path) -> Result<(), String> {
    let program = format!("{INCLUDES}int main(void) {{ return 0; }}\n");
    compile(directory, &program)
        .map(|_| ())
        .map_err(|reason| format!("no C compiler with the headers of rdma-core: {reason}"))
}

fn ask_c(directory: &Path, facts: &[Fact]) -> Result<Vec<i64>, String> {
    let mut program = format!("{INCLUDES}int main(void) {{\n");
    for fact in facts {
        writeln!(program, "printf(\"%lld\\n\", (long long)({}));", fact.c).unwrap();
    }
    program.push_str("return 0; }\n");
    let binary = compile(directory, &program)?;
    let output = Command::new(binary.path()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
    text.lines().map(|line| line.parse().map_err(|_| format!("not a number: {line}"))).collect()
}

/// Compiles a program in a folder of its own, since tests run side by side.
fn compile(directory: &Path, program: &str) -> Result<Binary, String> {
    let binary = Binary::new(directory);
    let source = binary.0.join("layout.c");
    fs::write(&source, program).map_err(|error| error.to_string())?;
    let output = Command::new("cc")
        .arg("-o")
        .arg(binary.path())
        .arg(&source)
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        return Ok(binary);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(text.lines().find(|line| line.contains("error")).unwrap_or("cc failed").to_string())
}

/// A folder with a compiled program, removed with the value.
struct Binary(std::path::PathBuf);

impl Binary {
    fn new(directory: &Path) -> Self {
        let thread = format!("layout-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = directory.join(thread.replace(['(', ')'], "-"));
        fs::create_dir_all(&folder).expect("a folder under the target directory");
        Self(folder)
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.join("layout")
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

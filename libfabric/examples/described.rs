//! Prints what discovery finds, each field as `fi_info -v` names it: so that a test can hold what
//! libfabric shows against it.

use kestrel_core::{
    flags::Flags,
    info::{Hints, Info, Mode},
};

fn main() {
    // As fi_info asks: any mode, and nothing else.
    let hints = Hints::new().mode(Mode::from_bits_retain(!0));
    match kestrel::discovery::discover(Some(&hints)) {
        Ok(found) => found.iter().for_each(describe),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

fn flags(flags: Flags) -> String {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| format!("FI_{name}")).collect();
    names.join(", ")
}

fn describe(info: &Info) {
    println!("---");
    println!("fi_info.caps: {}", flags(info.caps));
    println!("fi_info.addr_format: {}", info.address_format.name());
    let (tx, rx) = (&info.transmit, &info.receive);
    println!("fi_tx_attr.caps: {}", flags(tx.caps));
    println!("fi_rx_attr.caps: {}", flags(rx.caps));
    numbers(
        "fi_tx_attr",
        &[
            ("inject_size", tx.inject_size),
            ("size", tx.size),
            ("iov_limit", tx.iov_limit),
            ("rma_iov_limit", tx.rma_iov_limit),
        ],
    );
    let buffered = ("total_buffered_recv", rx.total_buffered_recv);
    numbers("fi_rx_attr", &[buffered, ("size", rx.size), ("iov_limit", rx.iov_limit)]);
    let ep = &info.endpoint;
    println!("fi_ep_attr.type: {}", ep.kind);
    println!("fi_ep_attr.mem_tag_format: {:#018x}", ep.tag_format);
    numbers(
        "fi_ep_attr",
        &[
            ("protocol_version", ep.protocol_version as usize),
            ("max_msg_size", ep.max_msg_size),
            ("msg_prefix_size", ep.msg_prefix_size),
            ("max_order_raw_size", ep.max_order_raw_size),
            ("max_order_war_size", ep.max_order_war_size),
            ("max_order_waw_size", ep.max_order_waw_size),
            ("tx_ctx_cnt", ep.tx_ctx_count),
            ("rx_ctx_cnt", ep.rx_ctx_count),
        ],
    );
    domain(info);
    println!("fi_fabric_attr.name: {}", info.fabric.name);
    if let Some(nic) = &info.nic {
        println!("fi_device_attr.name: {}\nfi_link_attr.mtu: {}", nic.name, nic.mtu);
    }
}

fn domain(info: &Info) {
    let domain = &info.domain;
    println!("fi_domain_attr.name: {}", domain.name);
    println!("fi_domain_attr.threading: {}", domain.threading);
    println!("fi_domain_attr.control_progress: {}", domain.control_progress);
    println!("fi_domain_attr.data_progress: {}", domain.data_progress);
    println!("fi_domain_attr.resource_mgmt: {}", domain.resource_management);
    println!("fi_domain_attr.av_type: {}", domain.address_vector_kind);
    numbers(
        "fi_domain_attr",
        &[
            ("mr_key_size", domain.mr_key_size),
            ("cq_data_size", domain.cq_data_size),
            ("cq_cnt", domain.cq_count),
            ("ep_cnt", domain.endpoint_count),
            ("tx_ctx_cnt", domain.tx_ctx_count),
            ("rx_ctx_cnt", domain.rx_ctx_count),
            ("max_ep_tx_ctx", domain.max_ep_tx_ctx),
            ("max_ep_rx_ctx", domain.max_ep_rx_ctx),
            ("max_ep_stx_ctx", domain.max_ep_stx_ctx),
            ("max_ep_srx_ctx", domain.max_ep_srx_ctx),
            ("cntr_cnt", domain.counter_count),
            ("mr_iov_limit", domain.mr_iov_limit),
            ("max_err_data", domain.max_err_data),
            ("mr_cnt", domain.mr_count),
        ],
    );
}

fn numbers(section: &str, fields: &[(&str, usize)]) {
    for (field, value) in fields {
        println!("{section}.{field}: {value}");
    }
}

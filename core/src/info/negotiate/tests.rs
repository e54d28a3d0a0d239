//! Negotiation against the rules of fi_getinfo(3), and against what real clients ask for.

use crate::address::{Address, AddressFormat};
use crate::flags::Flags;
use crate::info::*;
use std::net::SocketAddr;

mod capabilities;
mod orders;
mod receives;

const V1_4: ApiVersion = ApiVersion::new(1, 4);
const V1_17: ApiVersion = ApiVersion::new(1, 17);

fn accepted(hints: &Hints) -> Info {
    negotiate(&Offer::rdm(), Some(hints), V1_17).unwrap()
}

fn rejected(hints: &Hints) -> Vec<&'static str> {
    let rejections = negotiate(&Offer::rdm(), Some(hints), V1_17).unwrap_err();
    rejections.iter().map(|rejection| rejection.field).collect()
}

#[test]
fn no_hints_get_everything() {
    let offer = Offer::rdm();
    let info = negotiate(&offer, None, V1_17).unwrap();
    assert_eq!(info, offer.template);
    assert_eq!(
        (info.transmit.size, info.receive.size, info.transmit.inject_size),
        (1024, 1024, 16384)
    );
    assert!(info.caps.contains(Flags::LOCAL_COMM | Flags::REMOTE_COMM | Flags::MULTI_RECV));
    assert!(info.caps.contains(Flags::RMA | Flags::ATOMIC | Flags::RMA_EVENT));
    assert!(info.transmit.rma_iov_limit >= 4);
    assert_eq!(info.domain.data_progress, Progress::Manual);
    let old = negotiate(&offer, None, V1_4).unwrap();
    assert_eq!(old.domain.memory_region_mode, MemoryRegionMode::BASIC);
    assert_eq!(old.fabric.api_version, V1_4);
}

#[test]
fn every_rejected_hint_is_named_with_value_and_offer() {
    let mut hints = Hints::new()
        .caps(Flags::TAGGED | Flags::RMA | Flags::from_bits_retain(1 << 47))
        .endpoint_type(EndpointType::Dgram)
        .inject_size(20_000)
        .cq_data_size(16);
    hints.domain.max_ep_srx_ctx = Some(1);
    let rejections = negotiate(&Offer::rdm(), Some(&hints), V1_17).unwrap_err();
    let fields: Vec<&str> = rejections.iter().map(|rejection| rejection.field).collect();
    let expected = ["caps", "tx_attr->inject_size", "ep_attr->type", "domain_attr->cq_data_size"];
    assert_eq!(fields, expected);
    let caps = rejections[0].to_string();
    let begins =
        "hint caps asks for FI_HMEM (of FI_RMA | FI_TAGGED | FI_HMEM), kestrel offers FI_MSG |";
    assert!(caps.starts_with(begins), "{caps}");
    let inject = "hint tx_attr->inject_size asks for 20000, kestrel offers at most 16384 bytes \
                  (FI_KESTREL_INJECT_SIZE)";
    assert_eq!(rejections[1].to_string(), inject);
    assert_eq!(
        rejections[2].to_string(),
        "hint ep_attr->type asks for FI_EP_DGRAM, kestrel offers FI_EP_RDM"
    );
}

/// What kestrel has, and the endpoint was not asked for, is not said to be missing.
#[test]
fn a_side_that_asks_for_more_than_its_endpoint_is_told_what_to_ask_for() {
    for side in ["tx_attr->caps", "rx_attr->caps"] {
        let mut hints = Hints::new().caps(Flags::MSG);
        match side {
            "tx_attr->caps" => hints.transmit.caps = Flags::MSG | Flags::RMA,
            _ => hints.receive.caps = Flags::MSG | Flags::RMA,
        }
        let rejections = negotiate(&Offer::rdm(), Some(&hints), V1_17).unwrap_err();
        let text = format!(
            "hint {side} asks for FI_RMA, kestrel offers that to who asks for it in hint caps as well"
        );
        assert_eq!(rejections[0].to_string(), text);
    }
}

#[test]
fn models_are_echoed_and_manual_progress_is_usual() {
    for threading in [
        Threading::Safe,
        Threading::Fid,
        Threading::Domain,
        Threading::Completion,
        Threading::Endpoint,
    ] {
        assert_eq!(accepted(&Hints::new().threading(threading)).domain.threading, threading);
    }
    assert_eq!(accepted(&Hints::new()).domain.threading, Threading::Safe);
    for (asked, answer) in [
        (Progress::Unspec, Progress::Manual),
        (Progress::Manual, Progress::Manual),
        (Progress::Auto, Progress::Auto),
    ] {
        let domain = accepted(&Hints::new().data_progress(asked).control_progress(asked)).domain;
        assert_eq!((domain.data_progress, domain.control_progress), (answer, answer));
    }
    let kind = |kind| accepted(&Hints::new().address_vector_kind(kind)).domain.address_vector_kind;
    assert_eq!(kind(AddressVectorKind::Map), AddressVectorKind::Map);
    assert_eq!(kind(AddressVectorKind::Table), AddressVectorKind::Table);
    let rm = Hints::new().resource_management(ResourceManagement::Disabled);
    assert_eq!(accepted(&rm).domain.resource_management, ResourceManagement::Enabled);
}

#[test]
fn a_weaker_offer_is_rejected_where_a_harder_promise_is_asked() {
    let mut offer = Offer::rdm();
    offer.maximum.domain.threading = Threading::Domain;
    offer.maximum.domain.data_progress = Progress::Manual;
    offer.maximum.domain.resource_management = ResourceManagement::Disabled;
    offer.maximum.domain.address_vector_kind = AddressVectorKind::Table;
    let hints = Hints::new()
        .threading(Threading::Completion)
        .data_progress(Progress::Auto)
        .resource_management(ResourceManagement::Enabled)
        .address_vector_kind(AddressVectorKind::Map);
    let rejections = negotiate(&offer, Some(&hints), V1_17).unwrap_err();
    let fields: Vec<&str> = rejections.iter().map(|rejection| rejection.field).collect();
    let expected = ["threading", "data_progress", "resource_mgmt", "av_type"];
    assert_eq!(fields, expected.map(|name| format!("domain_attr->{name}")));
    let lenient = Hints::new().threading(Threading::Domain).data_progress(Progress::Manual);
    negotiate(&offer, Some(&lenient), V1_17).unwrap();
}

#[test]
fn sizes_are_granted_as_asked_up_to_the_maximum() {
    let info = accepted(&Hints::new().tx_size(65_536).rx_size(16).inject_size(64));
    assert_eq!(
        (info.transmit.size, info.receive.size, info.transmit.inject_size),
        (65_536, 16, 64)
    );
    let zero = accepted(&Hints::new().tx_size(0).max_msg_size(1 << 40));
    assert_eq!((zero.transmit.size, zero.endpoint.max_msg_size), (1024, 1 << 40));
    let too_much = Hints::new().tx_size(65_537).rx_size(65_537).max_msg_size((1 << 40) + 1);
    assert_eq!(rejected(&too_much), ["tx_attr->size", "rx_attr->size", "ep_attr->max_msg_size"]);
    // What is no resource is returned in full to who asks for less.
    let mut hints = Hints::new().cq_data_size(4);
    hints.transmit.iov_limit = Some(2);
    let info = accepted(&hints);
    assert_eq!((info.domain.cq_data_size, info.transmit.iov_limit), (8, 8));
    hints.receive.iov_limit = Some(9);
    assert_eq!(rejected(&hints), ["rx_attr->iov_limit"]);
}

#[test]
fn order_and_default_flags_must_be_offered() {
    // What is not asked for costs: nobody gets it who has named what he needs.
    for (asked, told) in [
        (MessageOrder::SAS, MessageOrder::SAS),
        (MessageOrder::SAS | MessageOrder::WAW, MessageOrder::SAS | MessageOrder::WAW),
        (MessageOrder::empty(), MessageOrder::all()),
    ] {
        let info = accepted(&Hints::new().message_order(asked));
        assert_eq!([info.transmit.message_order, info.receive.message_order], [told; 2]);
    }
    let unknown = MessageOrder::from_bits_retain(1 << 40);
    let hints = Hints::new().message_order(MessageOrder::SAS | unknown);
    assert_eq!(rejected(&hints), ["tx_attr->msg_order", "rx_attr->msg_order"]);
    let flags = Flags::COMPLETION | Flags::DELIVERY_COMPLETE | Flags::COMMIT_COMPLETE;
    assert_eq!(accepted(&Hints::new().tx_op_flags(flags)).transmit.op_flags, flags);
    assert_eq!(accepted(&Hints::new()).transmit.op_flags, Flags::empty());
    assert_eq!(rejected(&Hints::new().tx_op_flags(Flags::MULTICAST)), ["tx_attr->op_flags"]);
    let multi = Hints::new().rx_op_flags(Flags::MULTI_RECV);
    assert_eq!(accepted(&multi).receive.op_flags, Flags::MULTI_RECV);
    // What is posted there are tags, without buffers.
    let buffered = multi.clone().mode(Mode::BUFFERED_RECV | Mode::CONTEXT);
    assert_eq!(rejected(&buffered), ["rx_attr->op_flags"]);
    // A type that has multicast needs the capability for it.
    let offer = Offer::datagrams(1 << 12).with_groups();
    let mut hints = Hints::new().caps(Flags::MSG).tx_op_flags(Flags::MULTICAST);
    hints.endpoint.kind = offer.maximum.endpoint.kind;
    let refused = negotiate(&offer, Some(&hints), V1_17).unwrap_err();
    assert_eq!(refused.iter().map(|it| it.field).collect::<Vec<_>>(), ["tx_attr->op_flags"]);
    hints.caps = Flags::MSG | Flags::MULTICAST;
    assert_eq!(negotiate(&offer, Some(&hints), V1_17).err(), None);
}

#[test]
fn a_required_mode_must_be_supported() {
    let mut offer = Offer::rdm();
    for info in [&mut offer.template, &mut offer.maximum] {
        info.mode = Mode::CONTEXT;
        info.transmit.mode = Mode::CONTEXT;
    }
    let rejections = negotiate(&offer, Some(&Hints::new()), V1_17).unwrap_err();
    assert_eq!(rejections[0].offered, "nothing without FI_CONTEXT");
    assert_eq!(rejections.len(), 2);
    let hints = Hints::new().mode(Mode::CONTEXT | Mode::CONTEXT2);
    assert_eq!(negotiate(&offer, Some(&hints), V1_17).unwrap().mode, Mode::CONTEXT);
    assert_eq!(accepted(&hints).mode, Mode::empty());
}

#[test]
fn messages_are_buffered_for_who_asks_until_version_two() {
    const V2: ApiVersion = ApiVersion::new(2, 0);
    let buffered = Hints::new().mode(Mode::BUFFERED_RECV | Mode::CONTEXT);
    let info = accepted(&buffered);
    assert_eq!((info.mode, info.receive.mode), (Mode::BUFFERED_RECV, Mode::BUFFERED_RECV));
    assert!(!info.caps.contains(Flags::VARIABLE_MSG), "nobody asked for it");
    let none = [Hints::new(), Hints::new().mode(Mode::CONTEXT)];
    let anything = Hints::new().mode(Mode::from_bits_retain(!0));
    let mut elsewhere = buffered.clone();
    elsewhere.receive.mode = Mode::CONTEXT;
    for hints in none.iter().chain([&anything, &elsewhere]) {
        assert_eq!(accepted(hints).mode, Mode::empty(), "{hints:?}");
    }
    assert_eq!(negotiate(&Offer::rdm(), Some(&buffered), V2).unwrap().mode, Mode::empty());
    for sockets in [Offer::stream(), Offer::socket_datagrams(1 << 12)] {
        let mut hints = buffered.clone();
        hints.endpoint.kind = sockets.maximum.endpoint.kind;
        let info = negotiate(&sockets, Some(&hints), V1_17).unwrap();
        assert_eq!(
            (info.mode, info.receive.mode),
            (Mode::empty(), Mode::empty()),
            "no completions"
        );
    }
    let variable = Hints::new().caps(Flags::MSG | Flags::VARIABLE_MSG);
    let info = accepted(&variable);
    assert!(info.caps.contains(Flags::VARIABLE_MSG) && info.receive.caps == info.caps & RX_CAPS);
    // The bit is FI_EXACT_DIRECTED_RECV since.
    let refused = negotiate(&Offer::rdm(), Some(&variable), V2).unwrap_err();
    assert_eq!(refused[0].field, "caps");
    assert!(negotiate(&Offer::datagrams(1 << 12), Some(&variable), V1_17).is_err());
    for mut hints in [buffered, variable] {
        hints.endpoint.rx_ctx_count = Some(SHARED_CONTEXT);
        assert_eq!(rejected(&hints), ["ep_attr->rx_ctx_cnt"]);
    }
}

#[test]
fn registration_modes_are_ours_and_the_hints() {
    let mode = |hint: MemoryRegionMode, caps| {
        let hints = Hints::new().caps(caps).memory_region_mode(hint);
        negotiate(&Offer::rdm(), Some(&hints), V1_17).map(|info| info.domain.memory_region_mode)
    };
    type Modes = MemoryRegionMode;
    let all = Modes::LOCAL | Modes::ENDPOINT | Modes::RAW | Modes::BASIC_EQUIVALENT;
    assert_eq!(mode(all, Flags::RMA), Ok(Modes::BASIC_EQUIVALENT));
    assert_eq!(mode(Modes::PROV_KEY, Flags::RMA), Ok(Modes::PROV_KEY));
    // A hint of 0 is answered with 0: offsets from zero and keys of the user's choice.
    assert_eq!(mode(Modes::empty(), Flags::RMA), Ok(Modes::empty()));
    // Who does not say gets what suits us, whatever it asks for else.
    assert_eq!(accepted(&Hints::new()).domain.memory_region_mode, Modes::BASIC_EQUIVALENT);
    let unsaid = accepted(&Hints::new().caps(Flags::TAGGED));
    assert_eq!(unsaid.domain.memory_region_mode, Modes::BASIC_EQUIVALENT);
    // Nobody's target: devices still go by the regions that its own operations name.
    assert_eq!(mode(all, Flags::TAGGED), Ok(Modes::ALLOCATED));
    assert_eq!(mode(all, Flags::RMA | Flags::READ), Ok(Modes::ALLOCATED));
    assert_eq!(mode(Modes::ENDPOINT, Flags::TAGGED), Ok(Modes::empty()));
    assert_eq!(mode(Modes::BASIC, Flags::RMA), Ok(Modes::BASIC));
    assert_eq!(mode(Modes::SCALABLE, Flags::RMA), Ok(Modes::SCALABLE));
    for mixed in
        [Modes::BASIC | Modes::SCALABLE, Modes::BASIC | Modes::LOCAL, Modes::SCALABLE | Modes::RAW]
    {
        assert_eq!(mode(mixed, Flags::RMA).unwrap_err()[0].field, "domain_attr->mr_mode");
    }
}

#[test]
fn required_registration_modes_must_be_covered() {
    let mut offer = Offer::rdm();
    offer.memory_region_mode_required = MemoryRegionMode::BASIC_EQUIVALENT;
    let ask = |caps, mode, version| {
        let hints = Hints::new().caps(caps).memory_region_mode(mode);
        negotiate(&offer, Some(&hints), version)
    };
    type Modes = MemoryRegionMode;
    let refused = ask(Flags::RMA, Modes::PROV_KEY, V1_17).unwrap_err();
    assert_eq!(refused[0].asked, "FI_MR_PROV_KEY");
    assert_eq!(
        refused[0].offered,
        "nothing without FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY"
    );
    assert!(ask(Flags::RMA, Modes::SCALABLE, V1_17).is_err());
    ask(Flags::RMA, Modes::BASIC, V1_17).unwrap();
    ask(Flags::TAGGED, Modes::empty(), V1_17).unwrap();
    // Who asked for no capability gets those that work without registration.
    let caps = ask(Flags::empty(), Modes::empty(), V1_17).unwrap().caps;
    assert!(caps.contains(Flags::TAGGED) && !caps.intersects(Flags::RMA | Flags::REMOTE_READ));
    ask(Flags::RMA, Modes::empty(), V1_4).unwrap();
}

#[test]
fn before_1_5_the_mode_is_one_of_three() {
    let ask = |mode| {
        let hints = Hints::new().memory_region_mode(mode);
        negotiate(&Offer::rdm(), Some(&hints), V1_4).map(|info| info.domain.memory_region_mode)
    };
    assert_eq!(ask(MemoryRegionMode::empty()), Ok(MemoryRegionMode::BASIC));
    let unsaid = negotiate(&Offer::rdm(), Some(&Hints::new()), V1_4).unwrap();
    assert_eq!(unsaid.domain.memory_region_mode, MemoryRegionMode::BASIC);
    assert_eq!(ask(MemoryRegionMode::BASIC), Ok(MemoryRegionMode::BASIC));
    assert_eq!(ask(MemoryRegionMode::SCALABLE), Ok(MemoryRegionMode::SCALABLE));
    assert_eq!(ask(MemoryRegionMode::LOCAL).unwrap_err()[0].field, "domain_attr->mr_mode");
}

#[test]
fn local_registration_can_be_promised_the_old_way() {
    let mut offer = Offer::rdm();
    offer.memory_region_mode_required = MemoryRegionMode::LOCAL;
    let refused = negotiate(&offer, Some(&Hints::new()), V1_17).unwrap_err();
    assert_eq!(refused[0].field, "domain_attr->mr_mode");
    negotiate(&offer, Some(&Hints::new().mode(Mode::LOCAL_MR)), V1_17).unwrap();
    let local = Hints::new().memory_region_mode(MemoryRegionMode::LOCAL);
    negotiate(&offer, Some(&local), V1_17).unwrap();
}

#[test]
fn addresses_decide_the_format_or_must_fit_it() {
    let v6 = Address::from("[::1]:5".parse::<SocketAddr>().unwrap());
    let v4 = Address::from("1.2.3.4:5".parse::<SocketAddr>().unwrap());
    let info = accepted(&Hints::new().source(v6));
    assert_eq!((info.address_format, info.source), (AddressFormat::In6, Some(v6)));
    assert_eq!(accepted(&Hints::new().destination(v4)).address_format, AddressFormat::In);
    let text = accepted(&Hints::new().source(v6).address_format(AddressFormat::Str));
    assert_eq!(text.address_format, AddressFormat::Str);
    let misfit = Hints::new().source(v6).destination(v4).address_format(AddressFormat::In);
    assert_eq!(rejected(&misfit), ["src_addr"]);
    let mut handle = Hints::new();
    handle.handle = 77;
    assert_eq!(accepted(&handle).handle, 77);
}

/// fi_domain(3): "Providers which support authorization keys and connectionless endpoint must
/// support this option."
#[test]
fn keys_of_vectors_are_for_who_has_vectors() {
    let ask = |offer: Offer, key: &[u8], most: usize| {
        let mut hints = Hints::new();
        (hints.domain.vector_keys, hints.domain.max_ep_auth_key) = (true, Some(most));
        hints.endpoint.auth_key = key.to_vec();
        hints.endpoint.kind = offer.template.endpoint.kind;
        let found = negotiate(&offer, Some(&hints), V1_17);
        let keys = |info: Info| (info.domain.vector_keys, info.domain.max_ep_auth_key);
        found.map(keys).map_err(|rejections| rejections[0].field)
    };
    for offer in [Offer::rdm, || Offer::datagrams(1024)] {
        assert_eq!(ask(offer(), b"", 64), Ok((true, 64)));
        assert_eq!(ask(offer(), b"", 65), Err("domain_attr->max_ep_auth_key"));
        assert_eq!(ask(offer(), b"key", 0), Err("ep_attr->auth_key_size"));
    }
    assert_eq!(ask(Offer::msg(), b"", 0), Err("domain_attr->auth_key_size"));
    // Nothing says which of them a message to a group proves.
    let groups = |caps: Flags, vector_keys| {
        let mut hints = Hints::new().caps(caps);
        (hints.domain.vector_keys, hints.endpoint.kind) = (vector_keys, EndpointType::Dgram);
        let found = negotiate(&Offer::datagrams(1024).with_groups(), Some(&hints), V1_17);
        let has = |caps: Flags| caps.contains(Flags::MULTICAST);
        found.map(|info| (has(info.caps), has(info.transmit.caps))).map_err(|why| why[0].field)
    };
    let asked = Flags::MSG | Flags::MULTICAST;
    assert_eq!((groups(asked, false), groups(asked, true)), (Ok((true, true)), Err("caps")));
    let open = [groups(Flags::empty(), false), groups(Flags::empty(), true)];
    assert_eq!(open, [Ok((true, true)), Ok((false, false))]);
}

#[test]
fn contexts_names_and_the_rest() {
    let offer = Offer::rdm().named("ib0", "mlx5_0").sized(512, 256, 128);
    let ask = |change: fn(&mut Hints)| {
        let mut hints = Hints::new();
        change(&mut hints);
        match negotiate(&offer, Some(&hints), V1_17) {
            Ok(_) => "",
            Err(rejections) => rejections[0].field,
        }
    };
    assert_eq!(ask(|h| h.domain.name = Some("mlx5_0".into())), "");
    assert_eq!(ask(|h| h.domain.name = Some("mlx5_1".into())), "domain_attr->name");
    assert_eq!(ask(|h| h.fabric.name = Some("ib1".into())), "fabric_attr->name");
    assert_eq!(ask(|h| h.endpoint.tx_ctx_count = Some(256)), "");
    assert_eq!(ask(|h| h.endpoint.tx_ctx_count = Some(257)), "ep_attr->tx_ctx_cnt");
    assert_eq!(ask(|h| h.endpoint.rx_ctx_count = Some(SHARED_CONTEXT)), "");
    let mixed = |h: &mut Hints| {
        (h.endpoint.tx_ctx_count, h.endpoint.rx_ctx_count) = (Some(SHARED_CONTEXT), Some(4));
    };
    assert_eq!(ask(mixed), "");
    assert_eq!(ask(|h| h.domain.max_ep_rx_ctx = Some(257)), "domain_attr->max_ep_rx_ctx");
    assert_eq!(ask(|h| h.endpoint.rx_ctx_count = Some(1)), "");
    assert_eq!(ask(|h| h.endpoint.protocol = Some(3)), "ep_attr->protocol");
    assert_eq!(ask(|h| h.endpoint.auth_key = vec![1; 512]), "");
    assert_eq!(ask(|h| h.endpoint.auth_key = vec![1; 513]), "ep_attr->auth_key_size");
    assert_eq!(ask(|h| h.domain.auth_key = vec![1; 513]), "domain_attr->auth_key_size");
    assert_eq!(ask(|h| h.transmit.op_flags = Flags::MATCH_COMPLETE), "");
    assert_eq!(ask(|h| h.domain.traffic_class = Some(0x206)), "domain_attr->tclass");
    assert_eq!(ask(|h| h.domain.traffic_class = Some(0x140)), "domain_attr->tclass");
    assert_eq!(ask(|h| h.transmit.traffic_class = Some(0x100 | 46)), "");
    assert_eq!(ask(|h| h.transmit.traffic_class = Some(0x200)), "");
    assert_eq!(
        ask(|h| h.fabric.provider_version = Some(ApiVersion::new(9, 0))),
        "fabric_attr->prov_version"
    );
    let info = negotiate(&offer, Some(&Hints::new()), V1_17).unwrap();
    assert_eq!((info.transmit.size, info.receive.size, info.transmit.inject_size), (512, 256, 128));
    let mut tags = Hints::new();
    tags.endpoint.tag_format = Some(0x30ff);
    let answer = negotiate(&offer, Some(&tags), V1_17).unwrap().endpoint.tag_format;
    assert_eq!(answer, 0xffff_ffff_ffff_f0ff, "leading zeroes are bits that are ignored");
    tags.endpoint.tag_format = Some(1 << 63);
    assert_eq!(negotiate(&offer, Some(&tags), V1_17).unwrap().endpoint.tag_format, 1 << 63);
    let refused = negotiate(&Offer::datagrams(4096), Some(&tags), V1_17).unwrap_err();
    assert_eq!(refused[0].field, "ep_attr->mem_tag_format", "datagrams have no tags");
}

/// The hints of Open MPI 4.1's `mtl/ofi` and of MPICH's `ch4:ofi`, as `notes/clients.md` has them.
#[test]
fn open_mpi_and_mpich_are_served() {
    let order = MessageOrder::SAS;
    let reach = Flags::LOCAL_COMM | Flags::REMOTE_COMM;
    let mut open_mpi = Hints::new()
        .endpoint_type(EndpointType::Rdm)
        .caps(Flags::TAGGED | reach | Flags::DIRECTED_RECV)
        .mode(Mode::CONTEXT | Mode::CONTEXT2)
        .message_order(order)
        .tx_op_flags(Flags::COMPLETION)
        .rx_op_flags(Flags::COMPLETION)
        .resource_management(ResourceManagement::Enabled)
        .cq_data_size(4)
        .memory_region_mode(MemoryRegionMode::empty())
        .threading(Threading::Domain);
    open_mpi.domain.control_progress = Progress::Manual;
    let info = accepted(&open_mpi);
    assert_eq!(info.domain.threading, Threading::Domain);
    assert_eq!(info.domain.memory_region_mode, MemoryRegionMode::empty());
    assert!(info.domain.max_ep_tx_ctx == 256 && info.endpoint.tag_format.leading_zeros() == 0);

    let mpich = Hints::new()
        .caps(Flags::MSG | Flags::TAGGED | Flags::MULTI_RECV | Flags::DIRECTED_RECV)
        .mode(Mode::CONTEXT | Mode::CONTEXT2 | Mode::ASYNC_IOV | Mode::RX_CQ_DATA)
        .address_vector_kind(AddressVectorKind::Table)
        .resource_management(ResourceManagement::Enabled)
        .data_progress(Progress::Manual)
        .message_order(order)
        .tx_op_flags(Flags::COMPLETION | Flags::DELIVERY_COMPLETE)
        .memory_region_mode(MemoryRegionMode::ENDPOINT)
        .threading(Threading::Domain);
    let info = accepted(&mpich);
    assert_eq!(info.domain.address_vector_kind, AddressVectorKind::Table);
    assert_eq!(info.domain.memory_region_mode, MemoryRegionMode::empty());
    assert_eq!(info.endpoint.max_order_raw_size, usize::MAX);
}

//! Transmit and receive contexts, and the endpoint that they belong to.

use super::Negotiation;
use super::capabilities::{ONE_SIDED, grant, side};
use crate::flags::Flags;
use crate::info::attributes::SHARED_CONTEXT;
use crate::info::hints::EndpointHints;
use crate::info::modes::{CompletionOrder, MessageOrder, Mode};
use crate::info::offer::{AUTH_KEY_SIZE_MAX, RX_CAPS, TX_CAPS};
use crate::info::rejection::flags_text;
use crate::info::traffic_class::traffic_class_of_dscp;
use crate::info::values::{ApiVersion, EndpointType};

/// "Traffic classes can be a differentiated services code point (DSCP) value, one of the
/// following defined labels, or a provider-specific definition": six bits of DSCP under the
/// first, six labels from the second on. A transport that knows no classes serves all alike.
const DSCP: std::ops::Range<u32> = traffic_class_of_dscp(0)..traffic_class_of_dscp(64);
const LABELS: std::ops::Range<u32> = 0x200..0x206;

/// FI_TAG_MPI and FI_TAG_CCL.
const TAG_FORMATS: [u64; 2] = [1, 2];
/// FI_TAG_MAX_FORMAT.
const TAG_MAX_FORMAT: u64 = 1 << 16;

impl Negotiation<'_> {
    /// What a side may name: "The capabilities must be a subset of those requested of the
    /// associated endpoint" (fi_endpoint(3)). What means nothing on that side is not granted there.
    fn side_caps(&mut self, field: &'static str, asked: Flags) {
        let requested = self.hints.caps | self.info.caps;
        let unrequested = asked.difference(requested) & self.offer.maximum.caps;
        if !unrequested.is_empty() {
            let offered = "that to who asks for it in hint caps as well";
            return self.reject(field, flags_text(unrequested), offered);
        }
        self.flags_within(field, asked, requested);
    }

    pub(super) fn transmit(&mut self) {
        let (asked, most) = (&self.hints.transmit, &self.offer.maximum.transmit);
        let offered = side(self.info.caps, TX_CAPS);
        self.side_caps("tx_attr->caps", asked.caps);
        // What the endpoint cannot do no call of it does by default.
        let cannot = Flags::MULTICAST.difference(self.info.caps);
        self.flags_within("tx_attr->op_flags", asked.op_flags, most.op_flags.difference(cannot));
        self.bits_within(
            "tx_attr->msg_order",
            "FI_ORDER_",
            asked.message_order,
            most.message_order,
        );
        let order = asked.completion_order;
        self.bits_within("tx_attr->comp_order", "FI_ORDER_", order, most.completion_order);
        self.within("tx_attr->iov_limit", asked.iov_limit, most.iov_limit);
        self.within("tx_attr->rma_iov_limit", asked.rma_iov_limit, most.rma_iov_limit);
        self.traffic_class("tx_attr->tclass", asked.traffic_class);
        let usual = &self.offer.template.transmit;
        let inject = self.size_of(
            ("tx_attr->inject_size", asked.inject_size),
            most.inject_size,
            usual.inject_size,
            format_args!("{} bytes (FI_KESTREL_INJECT_SIZE)", most.inject_size),
        );
        let size = self.size("tx_attr->size", asked.size, most.size, usual.size);
        let answer = &mut self.info.transmit;
        answer.caps = grant(asked.caps, offered);
        answer.op_flags = asked.op_flags;
        answer.message_order = asked.message_order.granted(answer.message_order);
        answer.completion_order = order.granted();
        // Unset it stays: an endpoint has the class of the domain that it is opened on.
        answer.traffic_class = asked.traffic_class.unwrap_or_default();
        answer.inject_size = inject;
        answer.size = size;
    }

    pub(super) fn receive(&mut self) {
        let (asked, most) = (&self.hints.receive, &self.offer.maximum.receive);
        let offered = side(self.info.caps, RX_CAPS);
        self.side_caps("rx_attr->caps", asked.caps);
        // Nor where messages are buffered: what is posted there are tags, without buffers.
        let cannot = if self.buffers() { Flags::MULTI_RECV } else { Flags::empty() };
        self.flags_within("rx_attr->op_flags", asked.op_flags, most.op_flags.difference(cannot));
        let order = asked.completion_order;
        self.bits_within(
            "rx_attr->msg_order",
            "FI_ORDER_",
            asked.message_order,
            most.message_order,
        );
        // Data ordering applies "between operations if message ordering is guaranteed", and a
        // write may be done before the rest of a message in front of it has come.
        let writes_in_order = order.contains(CompletionOrder::DATA);
        if writes_in_order && asked.message_order.contains(MessageOrder::WAS) {
            let offered = "no FI_ORDER_WAS where data is written in order (FI_ORDER_DATA)";
            self.reject("rx_attr->msg_order", "FI_ORDER_WAS", offered);
        }
        self.bits_within("rx_attr->comp_order", "FI_ORDER_", order, most.completion_order);
        self.within("rx_attr->iov_limit", asked.iov_limit, most.iov_limit);
        let size =
            self.size("rx_attr->size", asked.size, most.size, self.offer.template.receive.size);
        let answer = &mut self.info.receive;
        answer.caps = grant(asked.caps, offered);
        answer.op_flags = asked.op_flags;
        answer.message_order = asked.message_order.granted(answer.message_order);
        answer.completion_order = order.granted();
        if writes_in_order {
            answer.message_order.remove(MessageOrder::WAS);
        }
        answer.size = size;
        // "The provider may adjust or ignore this value."
        answer.total_buffered_recv =
            asked.total_buffered_recv.unwrap_or(answer.total_buffered_recv);
    }

    pub(super) fn endpoint(&mut self, asked: &EndpointHints, api_version: ApiVersion) {
        let most = &self.offer.maximum.endpoint;
        if asked.kind != EndpointType::Unspec && asked.kind != most.kind {
            self.reject("ep_attr->type", asked.kind, most.kind);
        }
        if let Some(protocol) = asked.protocol.filter(|&p| p != 0 && p != most.protocol) {
            self.reject(
                "ep_attr->protocol",
                format!("{protocol:#x}"),
                format!("{:#x}", most.protocol),
            );
        }
        // Endpoints of other versions are refused when they meet, so that none is promised here.
        if let Some(version) = asked.protocol_version.filter(|&v| v != most.protocol_version) {
            self.reject("ep_attr->protocol_version", version, most.protocol_version);
        }
        self.within("ep_attr->max_msg_size", asked.max_msg_size, most.max_msg_size);
        if self.info.caps.intersects(ONE_SIDED) {
            self.within(
                "ep_attr->max_order_raw_size",
                asked.max_order_raw_size,
                most.max_order_raw_size,
            );
            self.within(
                "ep_attr->max_order_war_size",
                asked.max_order_war_size,
                most.max_order_war_size,
            );
            self.within(
                "ep_attr->max_order_waw_size",
                asked.max_order_waw_size,
                most.max_order_waw_size,
            );
        }
        let key_size = Some(asked.auth_key.len());
        self.within("ep_attr->auth_key_size", key_size, AUTH_KEY_SIZE_MAX);
        self.info.endpoint.auth_key = asked.auth_key.clone();
        let domain = &self.offer.maximum.domain;
        let tx = (asked.tx_ctx_count, domain.max_ep_tx_ctx, domain.max_ep_stx_ctx);
        let rx = (asked.rx_ctx_count, domain.max_ep_rx_ctx, domain.max_ep_srx_ctx);
        self.info.endpoint.tx_ctx_count = self.contexts("ep_attr->tx_ctx_cnt", tx);
        self.info.endpoint.rx_ctx_count = self.contexts("ep_attr->rx_ctx_cnt", rx);
        if self.buffers() && self.info.endpoint.rx_ctx_count == SHARED_CONTEXT {
            let offered = "no shared receives where messages are buffered";
            self.reject("ep_attr->rx_ctx_cnt", "FI_SHARED_CONTEXT", offered);
        }
        self.tag_format(asked.tag_format.unwrap_or(0), api_version);
    }

    /// Whether messages are buffered until the application asks for them.
    fn buffers(&self) -> bool {
        self.info.mode.contains(Mode::BUFFERED_RECV) || self.info.caps.contains(Flags::VARIABLE_MSG)
    }

    /// Any mask of any bits is matched, so whatever fields are asked for exist where there are
    /// tags. No bit is ignored: the first field is all that is left above the others.
    ///
    /// Since version 2.0 small values are names of formats: "If the value of mem_tag_format is >=
    /// FI_TAG_MAX_FORMAT, the tag format is treated as a set of bit fields" (fi_endpoint(3)). Each of
    /// them is a "constrained usage of FI_TAG_BITS", whose name is 0.
    fn tag_format(&mut self, asked: u64, api_version: ApiVersion) {
        let tags = self.offer.maximum.endpoint.tag_format != 0;
        let is_name = api_version.major() >= 2 && (1..TAG_MAX_FORMAT).contains(&asked);
        match asked.checked_ilog2() {
            Some(_) if tags && is_name && !TAG_FORMATS.contains(&asked) => {
                let offered = "FI_TAG_BITS, FI_TAG_MPI, FI_TAG_CCL and bit fields";
                self.reject("ep_attr->mem_tag_format", asked, offered);
            }
            Some(_) if tags && is_name => self.info.endpoint.tag_format = asked,
            Some(first) if tags => self.info.endpoint.tag_format = asked | u64::MAX << first,
            Some(_) => {
                self.reject("ep_attr->mem_tag_format", format!("{asked:#x}"), "no tags");
            }
            None => {}
        }
    }

    /// How many contexts an endpoint gets, or [`SHARED_CONTEXT`].
    fn contexts(
        &mut self,
        field: &'static str,
        (asked, most, sharing): (Option<usize>, usize, usize),
    ) -> usize {
        match asked {
            Some(SHARED_CONTEXT) if sharing > 0 => SHARED_CONTEXT,
            Some(SHARED_CONTEXT) => {
                self.reject(field, "FI_SHARED_CONTEXT", "no shared contexts");
                1
            }
            asked => self.size(field, asked, most, 1),
        }
    }

    pub(super) fn traffic_class(&mut self, field: &'static str, asked: Option<u32>) {
        let known = |class: &u32| *class == 0 || DSCP.contains(class) || LABELS.contains(class);
        if let Some(class) = asked.filter(|class| !known(class)) {
            self.reject(field, format!("{class:#x}"), "the labels FI_TC_… and DSCP values");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::info::{Hints, Offer, TAG_FORMAT_GENERIC, negotiate};

    const V1_17: ApiVersion = ApiVersion::new(1, 17);
    const V2: ApiVersion = ApiVersion::new(2, 0);

    /// FI_TAG_MPI, FI_TAG_CCL and FI_TAG_MAX_FORMAT.
    #[test]
    fn tag_formats_have_names_since_version_two() {
        let ask = |format, version| {
            let mut hints = Hints::new();
            hints.endpoint.tag_format = Some(format);
            let found = negotiate(&Offer::rdm(), Some(&hints), version);
            found.map(|info| info.endpoint.tag_format).map_err(|rejections| rejections[0].field)
        };
        for name in [1, 2] {
            assert_eq!(ask(name, V2), Ok(name));
            assert_eq!(ask(name, V1_17), Ok(u64::MAX << (name - 1)));
        }
        assert_eq!(ask(0, V2), Ok(TAG_FORMAT_GENERIC));
        for unknown in [3, 0x30ff, 0xffff] {
            assert_eq!(ask(unknown, V2), Err("ep_attr->mem_tag_format"));
            assert!(ask(unknown, V1_17).is_ok());
        }
        assert_eq!(ask(1 << 16, V2), Ok(u64::MAX << 16));
    }

    #[test]
    fn there_are_no_groups_of_peers() {
        let mut hints = Hints::new();
        hints.domain.max_group_id = Some(1);
        let rejected = negotiate(&Offer::rdm(), Some(&hints), V2).unwrap_err();
        assert_eq!(rejected[0].field, "domain_attr->max_group_id");
    }
}

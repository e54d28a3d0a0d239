//! Domains and fabrics: what is promised about threads and progress, how
//! many objects there are, and their names.

use super::{Negotiation, at_most};
use crate::info::hints::DomainHints;
use crate::info::offer::AUTH_KEY_SIZE_MAX;
use crate::info::values::{AddressVectorKind, Progress, Threading};

impl Negotiation<'_> {
    /// What is promised about threads, progress, queues and address vectors.
    pub(super) fn models(&mut self, asked: &DomainHints) {
        let (most, usual) = (&self.offer.maximum.domain, &self.offer.template.domain);
        let threading = (asked.threading, most.threading, usual.threading);
        self.info.domain.threading =
            self.model("domain_attr->threading", threading, Threading::leniency);
        let control = (asked.control_progress, most.control_progress, usual.control_progress);
        self.info.domain.control_progress =
            self.model("domain_attr->control_progress", control, Progress::leniency);
        let data = (asked.data_progress, most.data_progress, usual.data_progress);
        self.info.domain.data_progress =
            self.model("domain_attr->data_progress", data, Progress::leniency);
        let (rm, rm_most) = (asked.resource_management, most.resource_management);
        if rm.leniency() < rm_most.leniency() {
            self.reject("domain_attr->resource_mgmt", rm, rm_most);
        }
        let (kind, ours) = (asked.address_vector_kind, most.address_vector_kind);
        let any = AddressVectorKind::Unspec;
        if kind != any && ours != any && kind != ours {
            self.reject("domain_attr->av_type", kind, ours);
        }
        if kind != any {
            self.info.domain.address_vector_kind = kind;
        }
    }

    pub(super) fn domain(&mut self, asked: &DomainHints) {
        let most = &self.offer.maximum.domain;
        self.flags_within("domain_attr->caps", asked.caps, most.caps);
        for (field, asked, most) in [
            ("domain_attr->mr_key_size", asked.mr_key_size, most.mr_key_size),
            ("domain_attr->cq_data_size", asked.cq_data_size, most.cq_data_size),
            ("domain_attr->cq_cnt", asked.cq_count, most.cq_count),
            ("domain_attr->ep_cnt", asked.endpoint_count, most.endpoint_count),
            ("domain_attr->tx_ctx_cnt", asked.tx_ctx_count, most.tx_ctx_count),
            ("domain_attr->rx_ctx_cnt", asked.rx_ctx_count, most.rx_ctx_count),
            ("domain_attr->max_ep_tx_ctx", asked.max_ep_tx_ctx, most.max_ep_tx_ctx),
            ("domain_attr->max_ep_rx_ctx", asked.max_ep_rx_ctx, most.max_ep_rx_ctx),
            ("domain_attr->max_ep_stx_ctx", asked.max_ep_stx_ctx, most.max_ep_stx_ctx),
            ("domain_attr->max_ep_srx_ctx", asked.max_ep_srx_ctx, most.max_ep_srx_ctx),
            ("domain_attr->cntr_cnt", asked.counter_count, most.counter_count),
            ("domain_attr->mr_iov_limit", asked.mr_iov_limit, most.mr_iov_limit),
            ("domain_attr->max_err_data", asked.max_err_data, most.max_err_data),
            ("domain_attr->mr_cnt", asked.mr_count, most.mr_count),
            ("domain_attr->max_ep_auth_key", asked.max_ep_auth_key, most.max_ep_auth_key),
            ("domain_attr->auth_key_size", Some(asked.auth_key.len()), AUTH_KEY_SIZE_MAX),
        ] {
            self.within(field, asked, most);
        }
        // "Providers that cannot meet the requested max_group_id will fail fi_getinfo()."
        if let Some(group) = asked.max_group_id {
            self.reject("domain_attr->max_group_id", group, "no groups of peers");
        }
        self.traffic_class("domain_attr->tclass", asked.traffic_class);
        self.info.domain.auth_key = asked.auth_key.clone();
        self.vector_keys(asked);
        self.info.domain.traffic_class = asked.traffic_class.unwrap_or_default();
    }

    /// "Providers which support authorization keys and connectionless endpoint must support this
    /// option": where there are no vectors there is none. "If the domain is opened with
    /// FI_AV_AUTH_KEY", no object has a key of its own.
    fn vector_keys(&mut self, asked: &DomainHints) {
        if asked.vector_keys && self.offer.maximum.domain.max_ep_auth_key == 0 {
            let ours = "keys of endpoints: there is no address vector";
            self.reject("domain_attr->auth_key_size", "FI_AV_AUTH_KEY", ours);
        }
        if asked.vector_keys && !self.hints.endpoint.auth_key.is_empty() {
            let size = self.hints.endpoint.auth_key.len();
            self.reject("ep_attr->auth_key_size", size, "0: keys are those of address vectors");
        }
        self.info.domain.vector_keys = asked.vector_keys;
    }

    pub(super) fn names(&mut self) {
        let (asked, ours) = (&self.hints.fabric, &self.offer.template.fabric);
        if let Some(name) = asked.name.as_ref().filter(|name| **name != ours.name) {
            self.reject("fabric_attr->name", name, &ours.name);
        }
        if let Some(version) = asked.provider_version.filter(|&v| v > ours.provider_version) {
            self.reject("fabric_attr->prov_version", version, at_most(ours.provider_version));
        }
        let domain = &self.offer.template.domain.name;
        if let Some(name) = self.hints.domain.name.as_ref().filter(|name| *name != domain) {
            self.reject("domain_attr->name", name, domain);
        }
    }
}

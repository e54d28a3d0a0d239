//! The suite on this machine's RDMA device, where there is one: `scripts/soft-roce -- …` runs it
//! where there is none. Where the device must be, `SOFT_ROCE_DEVICE` says so.

use std::sync::Arc;

use kestrel_core::{config::Config, domain::Sharing};
use kestrel_tests::{bed::Bed, conformance, scale::CONNECT_PATIENCE};
use kestrel_verbs::{VerbsOptions, VerbsProvider};

/// As the environment sets it up.
fn options() -> VerbsOptions {
    let config = Config::from_lookup(|name| std::env::var(name).ok());
    VerbsOptions::from(&config.expect("the settings are good"))
}

fn bed(sharing: Sharing) -> Option<Bed<VerbsProvider>> {
    open(options(), sharing)
}

/// Where atomic operations are the device's alone.
fn atomics_bed() -> Option<Bed<VerbsProvider>> {
    open(VerbsOptions { nic_atomics: true, ..options() }, Sharing::Exclusive)
}

fn open(options: VerbsOptions, sharing: Sharing) -> Option<Bed<VerbsProvider>> {
    let device = std::env::var("SOFT_ROCE_DEVICE").ok();
    let must = device.is_some();
    let (connect_timeout, shares_receives) = (CONNECT_PATIENCE, options.shared_receives);
    match VerbsProvider::new(VerbsOptions { device, connect_timeout, ..options }) {
        Ok(provider) => {
            // The device of the tests can share receives.
            assert!(!must || provider.device().shares_receives() == shares_receives);
            Some(Bed { provider: Arc::new(provider), sharing })
        }
        Err(error) if must => panic!("{}", error.reason),
        Err(error) => {
            println!("{}", error.reason);
            None
        }
    }
}

mod exclusive {
    use super::*;
    conformance!(bed(Sharing::Exclusive));
    conformance!(datagrams over bed(Sharing::Exclusive));
    conformance!(multicast over bed(Sharing::Exclusive));
    conformance!(adapter_atomics over atomics_bed());
}

mod shared {
    use super::*;
    conformance!(bed(Sharing::Shared));
    conformance!(datagrams over bed(Sharing::Shared));
}

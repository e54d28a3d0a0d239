//! What the environment asks for: the table of `kestrel_core::config`, turned
//! into the options of the crates below.

use std::{sync::Once, time::Duration};

use kestrel_core::{
    config::{Config, ConfigError, PARAMETERS, PREFIX, Parameter, TransportChoice},
    domain::{DomainOptions, ProgressMode},
    error::{Errno, HasErrno},
    info::Progress,
};
use kestrel_shm::{ShmOptions, copy::Copier};

/// Parameters that have values which cannot be used, all of them.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct BadSettings(pub Vec<ConfigError>);

impl HasErrno for BadSettings {
    fn errno(&self) -> Errno {
        Errno::INVAL
    }
}

/// The parameters as the process's environment gives them. The first call warns of variables whose names
/// begin as theirs do and are none.
///
/// # Errors
/// As [`from_lookup`].
pub fn from_environment() -> Result<Config, BadSettings> {
    static WARNED: Once = Once::new();
    WARNED.call_once(warn_of_unknown);
    from_lookup(|name| std::env::var(name).ok())
}

/// The parameters as `lookup` gives them, held against this machine.
///
/// # Errors
/// [`BadSettings`] names each bad parameter, its value and what is allowed.
pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Config, BadSettings> {
    let config = Config::from_lookup(&lookup).map_err(BadSettings)?;
    let copy = Copier::choose(config.copy).err().and_then(|why| {
        ConfigError::of("FI_KESTREL_COPY", config.copy.to_owned(), why.to_string())
    });
    let misfit = shm_options(&config).lane_chunks_misfit();
    let lane_chunks =
        misfit.filter(|_| config.transport != TransportChoice::Verbs).and_then(|why| {
            let given = lookup("FI_KESTREL_LANE_CHUNKS").unwrap_or_default();
            ConfigError::of("FI_KESTREL_LANE_CHUNKS", given, why)
        });
    let bad: Vec<_> = copy.into_iter().chain(lane_chunks).collect();
    if bad.is_empty() { Ok(config) } else { Err(BadSettings(bad)) }
}

/// Logs each variable of the environment that somebody seems to have taken for a parameter.
pub fn warn_of_unknown() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for unknown in names.filter_map(|name| unknown(&name)) {
        tracing::warn!("{unknown}");
    }
}

/// What is to be said of a variable that begins as parameters do, and is none.
fn unknown(name: &str) -> Option<String> {
    let is_ours = |parameter: &Parameter| parameter.name == name;
    if !name.starts_with(PREFIX) || PARAMETERS.iter().any(is_ours) {
        return None;
    }
    let distance = |parameter: &&Parameter| strsim::osa_distance(parameter.name, name);
    let meant = PARAMETERS.iter().min_by_key(distance).filter(|near| distance(near) <= 3);
    let advice = match meant {
        Some(meant) => format!("did you mean {}?", meant.name),
        None => "fi_kestrel(7) and fi_info -e list those there are".into(),
    };
    Some(format!("{name} is no parameter of kestrel and has no effect: {advice}"))
}

/// What a choice of transports means for peers.
pub fn transports(choice: TransportChoice) -> &'static str {
    match choice {
        TransportChoice::Auto => "peers of this host through shared memory, others through RDMA",
        TransportChoice::Shm => "peers of this host through shared memory, others not at all",
        TransportChoice::Verbs => "all peers through RDMA",
    }
}

/// The shared-memory transport's options.
pub fn shm_options(config: &Config) -> ShmOptions {
    ShmOptions::from(config)
}

/// A domain's options: cores that are named are spun on if progress is to be
/// automatic; without them, one helper sleeps.
pub fn domain_options(config: &Config, progress: Progress) -> DomainOptions {
    let progress = match progress {
        Progress::Auto if config.cores.is_empty() => ProgressMode::Automatic,
        Progress::Auto => ProgressMode::Spinning(config.cores.iter().collect()),
        _ => ProgressMode::Manual,
    };
    DomainOptions {
        progress,
        unexpected_budget: config.unexpected_budget_bytes as u64,
        spin: Duration::from_micros(config.spin_us),
        ..DomainOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma;
    use kestrel_core::{
        config::Kind,
        endpoint::EndpointOptions,
        info::{EndpointType, Offer},
    };
    use kestrel_shm::copy::{CopyError, Routine};

    fn config(name: &'static str, value: &'static str) -> Result<Config, BadSettings> {
        Config::from_lookup(|asked| (asked == name).then(|| value.into())).map_err(BadSettings)
    }

    /// The same where all peers are behind a device.
    fn far_config(name: &'static str, value: &'static str) -> Result<Config, BadSettings> {
        let lookup = |asked: &str| match asked {
            _ if asked == name => Some(value.into()),
            "FI_KESTREL_TRANSPORT" => Some("verbs".into()),
            _ => None,
        };
        Config::from_lookup(lookup).map_err(BadSettings)
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_allowed() {
        let text = config("FI_KESTREL_COPY", "fastest").unwrap_err().to_string();
        for part in ["FI_KESTREL_COPY", "fastest", "avx512"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_variable_that_is_no_parameter_is_told_of_with_the_one_that_is_meant() {
        assert_eq!(unknown("FI_KESTREL_TRANSPORT"), None);
        assert_eq!(unknown("FI_PROVIDER"), None);
        let text = unknown("FI_KESTREL_TRANSPRT").unwrap();
        assert!(text.ends_with("did you mean FI_KESTREL_TRANSPORT?"), "{text}");
        let text = unknown("FI_KESTREL_GREENER").unwrap();
        assert!(text.contains("FI_KESTREL_GREENER") && text.contains("fi_info -e"), "{text}");
    }

    /// What this processor does not have is told where parameters are read, and not when an endpoint opens.
    #[test]
    fn a_copy_routine_that_this_processor_lacks_is_a_bad_value() {
        for routine in Routine::ALL {
            let named = |asked: &str| asked == "FI_KESTREL_COPY";
            let read = from_lookup(|asked| named(asked).then(|| routine.name().into()));
            match (read, routine.function()) {
                (Ok(_), Ok(_)) => {}
                (Err(error), Err(_)) => {
                    let text = error.to_string();
                    let begins = format!("FI_KESTREL_COPY={}: the copy routine", routine.name());
                    assert!(text.starts_with(&begins), "{text}");
                }
                (read, _) => panic!("{routine}: {read:?}"),
            }
        }
    }

    /// Chunks that a pair cannot have are no silent "off" where somebody asked for them.
    #[test]
    fn chunks_of_lanes_fit_or_are_a_bad_value() {
        for choice in ["auto", "off", "on", "turns"] {
            for size in ["4K", "16K", "32K", "64K", "128K", "4M"] {
                let read = from_lookup(|asked| match asked {
                    "FI_KESTREL_LANE_CHUNKS" => Some(choice.into()),
                    "FI_KESTREL_CHUNK_SIZE" => Some(size.into()),
                    _ => None,
                });
                let misfits = match choice {
                    "on" => ["128K", "4M"].contains(&size),
                    "turns" => !["32K", "64K"].contains(&size),
                    _ => false,
                };
                assert_eq!(read.is_err(), misfits, "{choice} {size}: {read:?}");
                if let Err(error) = read {
                    let begins = format!("FI_KESTREL_LANE_CHUNKS={choice}: ");
                    assert!(error.to_string().starts_with(&begins), "{error}");
                }
            }
        }
    }

    #[test]
    fn the_backlog_is_configured() {
        let mut hints = kestrel_core::info::Hints::default();
        hints.endpoint.kind = EndpointType::Msg;
        let info = crate::discover(Some(&hints)).unwrap().remove(0);
        for value in [1, 128, 65_536] {
            let config = Config { backlog: value, ..Config::default() };
            let passive = crate::objects::open_passive_endpoint_with(&info, &config).unwrap();
            assert_eq!(passive.backlog(), value as usize);
        }
        assert_eq!(config("FI_KESTREL_BACKLOG", "7").unwrap().backlog, 7);
        assert!(config("FI_KESTREL_BACKLOG", "0").is_err());
    }

    /// The transport's routines have their names in the table, and no others are there.
    #[test]
    fn the_copy_routines_of_the_table_are_those_of_the_transport() {
        let is_copy = |parameter: &&Parameter| parameter.name == "FI_KESTREL_COPY";
        let Kind::Choice(choices) = PARAMETERS.iter().find(is_copy).unwrap().kind else {
            panic!("no choice of routines");
        };
        let names: Vec<_> = ["auto"].into_iter().chain(Routine::ALL.map(Routine::name)).collect();
        assert_eq!(choices, names);
        for &name in choices {
            let options = shm_options(&config("FI_KESTREL_COPY", name).unwrap());
            assert_eq!(options.copy, name);
            let known = Copier::choose(&options.copy);
            assert!(!matches!(known, Err(CopyError::Unknown { .. })), "{name}: {known:?}");
        }
    }

    /// Discovery's options are these of the table's defaults: nowhere else is there a second one.
    #[test]
    fn the_defaults_of_the_crates_below_are_those_of_the_table() {
        let config = Config::default();
        assert_eq!(ShmOptions::default().chunk_bytes, config.chunk_size);
        let (ours, theirs) = (domain_options(&config, Progress::Manual), DomainOptions::default());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        let endpoint = EndpointOptions::default();
        assert_eq!(endpoint.transmit_size, config.tx_size);
        assert_eq!(endpoint.inject_size, config.inject_size);
        assert_eq!(Offer::rdm(), Offer::rdm().sized(1024, 1024, config.inject_size));
        assert_eq!((config.tx_size, config.rx_size), (1024, 1024));
    }

    /// Each parameter of the table, with another value, changes what something is opened with.
    #[test]
    fn every_parameter_acts() {
        let everything = |config: &Config| {
            let domains = [Progress::Manual, Progress::Auto].map(|p| domain_options(config, p));
            let offer = crate::discovery::offer(config, "domain", EndpointType::Rdm);
            let (devices, way) = (rdma::tests::chosen(config), transports(config.transport));
            let (near, far) = (shm_options(config), rdma::verbs_options(config, "rxe1", &[]));
            format!("{near:?} {far:?} {domains:?} {offer:?} {devices:?} {way}")
        };
        let usual = everything(&far_config("", "").unwrap());
        // The backlog is no option, but a call: see the_backlog_is_configured.
        let all = &kestrel_core::config::PARAMETERS;
        for parameter in all.iter().filter(|it| it.name != "FI_KESTREL_BACKLOG") {
            let other = match parameter.name {
                "FI_KESTREL_TRANSPORT" => "auto",
                "FI_KESTREL_DEVICE" => "rxe2",
                "FI_KESTREL_INTERFACE" => "^eth0",
                "FI_KESTREL_CORES" => "1",
                "FI_KESTREL_CMA"
                | "FI_KESTREL_FETCH"
                | "FI_KESTREL_LANE_CHUNKS"
                | "FI_KESTREL_SRQ" => "off",
                "FI_KESTREL_COPY" => "memcpy",
                "FI_KESTREL_PKEY" => "0x8001",
                "FI_KESTREL_GID_INDEX" | "FI_KESTREL_TRAFFIC_CLASS" | "FI_KESTREL_SL" => "2",
                "FI_KESTREL_CONNECT_BY" => "tcp",
                "FI_KESTREL_NIC_ATOMICS" => "exclusive",
                _ => "512K",
            };
            let other = if far_config(parameter.name, other).is_ok() { other } else { "512" };
            let changed = everything(&far_config(parameter.name, other).unwrap());
            assert_ne!(changed, usual, "{} changes nothing", parameter.name);
        }
    }

    #[test]
    fn cores_spin_only_if_progress_is_automatic() {
        let config = config("FI_KESTREL_CORES", "1").unwrap();
        let progress = |wanted| domain_options(&config, wanted).progress;
        assert_eq!(progress(Progress::Auto), ProgressMode::Spinning(vec![1]));
        assert_eq!(progress(Progress::Manual), ProgressMode::Manual);
        let automatic = domain_options(&Config::default(), Progress::Auto).progress;
        assert_eq!(automatic, ProgressMode::Automatic);
    }
}

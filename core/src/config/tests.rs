//! The table against what it says, and values of all kinds against the table.

use super::{table::COPY, *};

fn with(name: &str, value: &str) -> Result<Config, Vec<ConfigError>> {
    Config::from_lookup(|asked| (asked == name).then(|| value.to_owned()))
}

#[test]
fn defaults_are_within_their_own_bounds() {
    let config = Config::from_lookup(|_| None).unwrap();
    assert_eq!(config, Config::default());
    let expected = Config {
        transport: TransportChoice::Auto,
        device: Names::default(),
        interface: Names::default(),
        cores: CoreSet::default(),
        unexpected_budget_bytes: 64 << 20,
        chunk_size: 32 << 10,
        chunk_count: 64,
        lane_chunks: LaneChunks::Auto,
        cma: CmaPolicy::Auto,
        copy: "auto",
        partition_key: None,
        gid_index: None,
        traffic_class: None,
        service_level: None,
        shared_receives: true,
        connect_by: ConnectBy::Auto,
        connect_timeout_ms: 5000,
        peer_timeout_ms: 6400,
        spin_us: 50,
        tx_size: 1024,
        rx_size: 1024,
        inject_size: 16384,
        fetch: FetchPolicy::Auto,
        fetch_min: 256 << 10,
        mr_cache_bytes: 1 << 30,
        nic_atomics: false,
        backlog: 128,
    };
    assert_eq!(config, expected);
    assert_eq!(with("FI_KESTREL_TX_SIZE", "  "), Ok(expected));
}

/// Other values than the defaults.
const OTHERS: [(&str, &str); PARAMETERS.len()] = [
    ("TRANSPORT", "verbs"),
    ("DEVICE", "mlx5_0"),
    ("INTERFACE", "^docker0"),
    ("CORES", "1,4-6"),
    ("UNEXPECTED_BUDGET", "1G"),
    ("CHUNK_SIZE", "8192"),
    ("CHUNK_COUNT", "12"),
    ("LANE_CHUNKS", "on"),
    ("CMA", "off"),
    ("COPY", "avx512"),
    ("PKEY", "0x8001"),
    ("GID_INDEX", "3"),
    ("TRAFFIC_CLASS", "106"),
    ("SL", "2"),
    ("SRQ", "off"),
    ("CONNECT_BY", "rdma_cm"),
    ("CONNECT_TIMEOUT", "100"),
    ("PEER_TIMEOUT", "30000"),
    ("SPIN", "0"),
    ("TX_SIZE", "65536"),
    ("RX_SIZE", "1"),
    ("INJECT_SIZE", "64"),
    ("FETCH", "off"),
    ("FETCH_MIN", "1M"),
    ("MR_CACHE", "0"),
    ("NIC_ATOMICS", "exclusive"),
    ("BACKLOG", "3"),
];

#[test]
fn each_parameter_sets_its_own_value() {
    let mut expected = Config::default();
    let mut set = std::collections::BTreeMap::new();
    for (name, value) in OTHERS {
        set.insert(format!("FI_KESTREL_{name}"), value.to_owned());
    }
    assert_eq!(set.len(), PARAMETERS.len());
    let config = Config::from_lookup(|name| set.get(name).cloned()).unwrap();
    assert_eq!(config.cores.iter().collect::<Vec<_>>(), [1, 4, 5, 6]);
    assert_eq!(config.device.to_string(), "mlx5_0");
    assert_eq!(config.interface.to_string(), "^docker0");
    expected.transport = TransportChoice::Verbs;
    expected.device = config.device.clone();
    expected.interface = config.interface.clone();
    expected.cores = config.cores.clone();
    expected.unexpected_budget_bytes = 1 << 30;
    expected.chunk_size = 8192;
    expected.chunk_count = 12;
    expected.lane_chunks = LaneChunks::On;
    expected.cma = CmaPolicy::Off;
    expected.copy = "avx512";
    expected.partition_key = Some(0x8001);
    expected.gid_index = Some(3);
    expected.traffic_class = Some(106);
    expected.service_level = Some(2);
    expected.shared_receives = false;
    expected.connect_by = ConnectBy::RdmaCm;
    expected.connect_timeout_ms = 100;
    expected.peer_timeout_ms = 30_000;
    expected.spin_us = 0;
    expected.tx_size = 65_536;
    expected.rx_size = 1;
    expected.inject_size = 64;
    expected.fetch = FetchPolicy::Off;
    expected.fetch_min = 1 << 20;
    expected.mr_cache_bytes = 0;
    expected.nic_atomics = true;
    expected.backlog = 3;
    assert_eq!(config, expected);
    for &routine in COPY {
        assert_eq!(with("FI_KESTREL_COPY", routine).unwrap().copy, routine);
    }
}

#[test]
fn errors_name_parameter_value_and_bounds_and_come_all_at_once() {
    let error = with("FI_KESTREL_CONNECT_TIMEOUT", "99").unwrap_err().remove(0);
    assert_eq!(
        error.to_string(),
        "FI_KESTREL_CONNECT_TIMEOUT=99: it is too small; a number from 100 to 3600000 \
         milliseconds is expected (default: 5000)"
    );
    assert_eq!(error.errno(), Errno::INVAL);
    let error = with("FI_KESTREL_COPY", "fast").unwrap_err().remove(0);
    assert_eq!(
        error.to_string(),
        "FI_KESTREL_COPY=fast: it is none of the choices; auto, memcpy, rep-movsb, avx2, \
         avx512 or graded is expected (default: auto)"
    );
    let errors = Config::from_lookup(|_| Some("-1".to_owned())).unwrap_err();
    assert_eq!(errors.len(), PARAMETERS.len());
}

#[test]
fn atomics_by_the_device_alone_need_all_peers_behind_it() {
    for transport in ["auto", "shm", "verbs"] {
        let lookup = |name: &str| match name {
            "FI_KESTREL_NIC_ATOMICS" => Some("exclusive".to_owned()),
            "FI_KESTREL_TRANSPORT" => Some(transport.to_owned()),
            _ => None,
        };
        let read = Config::from_lookup(lookup);
        assert_eq!(read.is_ok(), transport == "verbs", "{transport}: {read:?}");
        for error in read.err().into_iter().flatten() {
            let told = error.to_string();
            assert!(told.contains("NIC_ATOMICS=exclusive: it needs FI_KESTREL_TRANSPORT=verbs"));
        }
    }
}

#[test]
fn the_table_is_in_good_order() {
    for parameter in &PARAMETERS {
        assert!(parameter.name.starts_with("FI_KESTREL_"));
        assert!(parameter.help.ends_with('.'), "{}", parameter.name);
        let same = PARAMETERS.iter().filter(|other| other.name == parameter.name);
        assert_eq!(same.count(), 1, "{}", parameter.name);
    }
    assert_eq!(PARAMETERS[4].short_name(), "unexpected_budget");
    assert_eq!(PARAMETERS[5].allowed(), "a power of two from 4096 to 4194304 bytes");
    assert!(PARAMETERS[3].describe().contains("default: none"));
}

/// More than a peer would take is refused by the names of what asks for it.
#[test]
fn chunks_have_so_many_bytes_together() {
    let with = |count: &str| {
        Config::from_lookup(|name| match name {
            "FI_KESTREL_CHUNK_SIZE" => Some("4M".to_owned()),
            "FI_KESTREL_CHUNK_COUNT" => Some(count.to_owned()),
            _ => None,
        })
    };
    assert!(with("16K").is_ok());
    let told = with("16385").unwrap_err().iter().map(ToString::to_string).collect::<String>();
    assert!(told.contains("FI_KESTREL_CHUNK_COUNT=16385: so many chunks of"), "{told}");
}

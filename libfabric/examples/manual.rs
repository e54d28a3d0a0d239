//! Prints the manual page `fi_kestrel.7`. Endpoint types, capabilities and address formats come from
//! what discovery offers, and the parameters from the one table in `kestrel_core::config`.

use kestrel_core::{
    config::PARAMETERS,
    flags::Flags,
    info::{Offer, Threading},
};

const BEFORE: &str = r#".TH fi_kestrel 7 "" "kestrel" "Libfabric providers"
.nh
.SH NAME
fi_kestrel \- the kestrel fabric provider
.SH OVERVIEW
kestrel connects processes: those of one host through shared memory, and those of different hosts
through RDMA devices. Applications of libfabric use it without change; messages, tagged messages,
remote memory access and atomic operations are done in user space, without a system call for each.
.SH SUPPORTED FEATURES
"#;

const FEATURES: &str = r#".TP
.B Addresses
An endpoint that asks for no address listens at one of its domain's device or, over shared memory
alone, at one of 127.64.0.0/10 that the host chose, at a port that is free. Endpoints of one host find each other by the address and
the port exactly as given, within one network namespace.
.TP
.B Domains
One for each RDMA device, and kestrel-shm, which reaches this host alone. That one is found by who names
it or kestrel (FI_PROVIDER, or the hints' provider, fabric or domain), sets FI_KESTREL_TRANSPORT to shm,
asks for FI_LOCAL_COMM and not for FI_REMOTE_COMM, or for no capabilities. Who has no hints at all, and
names nobody, is told of it without one-sided operations. Where a device's domain fits,
naming kestrel is not enough.
.TP
.B Progress
FI_PROGRESS_MANUAL, unless FI_PROGRESS_AUTO is asked for.
.TP
.B Wait objects
FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_POLLFD, FI_WAIT_SET and FI_WAIT_YIELD, of completion
queues, event queues and counters.
.TP
.B Modes
No mode is required of applications. Memory has to be registered only where peers read
it or write to it.
.TP
.B Multicast
Datagram endpoints join groups, over shared memory and over RDMA devices; on InfiniBand those with an
address of IP over InfiniBand, where librdmacm is installed. At most
1024 endpoints of a user hear one group over shared memory.
.SH LIMITATIONS
Collectives and device memory are not supported: hints that ask for them find nothing, and calls
answer \-FI_ENOSYS.
Message prefixes (FI_MSG_PREFIX) are never asked for, and endpoints connect to those of kestrel alone.
.SH RUNTIME PARAMETERS
.I fi_info \-e
lists them with their values. Numbers may end in K, M or G (or KiB, MiB, GiB): powers of 1024. A value
that cannot be used is named in libfabric's log, with what is allowed, and so is a variable that begins with
FI_KESTREL_ and is none of these. The log is off unless FI_LOG_LEVEL says otherwise:
.B FI_LOG_LEVEL=warn
shows both. Without it programs see no more than that there is no provider (\-FI_ENODATA).
"#;

const AFTER: &str = r#".SH TROUBLESHOOTING
.B FI_LOG_LEVEL=info FI_LOG_PROV=kestrel
tells for each hint that cannot be met what was asked for and what there is.
.SH SEE ALSO
.BR fabric (7),
.BR fi_provider (7),
.BR fi_getinfo (3)
"#;

/// The longest datagram, which no list tells.
const DATAGRAM_MAX: usize = 1 << 12;

fn main() {
    print!("{BEFORE}");
    let offers = [
        Offer::rdm(),
        Offer::msg(),
        Offer::datagrams(DATAGRAM_MAX).with_groups(),
        Offer::stream(),
        Offer::socket_datagrams(DATAGRAM_MAX),
    ];
    for Offer { maximum, .. } in &offers {
        let (kind, caps) = (maximum.endpoint.kind.name(), capabilities(maximum.caps));
        println!(".TP\n.B {kind}\n{}", escaped(&caps));
    }
    let formats: Vec<_> = offers[0].address_formats.iter().map(|format| format.name()).collect();
    println!(".TP\n.B Address formats\n{}", escaped(&formats.join(", ")));
    println!(".TP\n.B Threading\n{}", escaped(&threading()));
    print!("{FEATURES}");
    for parameter in &PARAMETERS {
        println!(".TP\n.B {}\n{}", parameter.name, escaped(&parameter.describe()));
    }
    print!("{AFTER}");
}

fn capabilities(caps: Flags) -> String {
    assert!(Flags::all().contains(caps), "{caps:?} has bits without a name");
    let names: Vec<_> = caps.iter_names().map(|(name, _)| format!("FI_{name}")).collect();
    names.join(", ")
}

fn threading() -> String {
    let models: Vec<_> = (0..).map_while(|value| Threading::try_from(value).ok()).collect();
    let names: Vec<_> = models.into_iter().skip(1).map(Threading::name).collect();
    format!("{}. FI_THREAD_DOMAIN with manual progress is the fastest.", names.join(", "))
}

/// A line of text in which troff sees no request and no escape.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

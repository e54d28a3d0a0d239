//! Prints the manual page `fi_kestrel.7`, of which the parameters come from the one table
//! in `kestrel_core::config`.

use kestrel_core::config::PARAMETERS;

const BEFORE: &str = r#".TH fi_kestrel 7 "" "kestrel" "Libfabric providers"
.SH NAME
fi_kestrel \- the kestrel fabric provider
.SH OVERVIEW
kestrel connects the processes of one host through shared memory. Applications of
libfabric use it without change; messages, tagged messages, remote memory access and
atomic operations are done in user space, without a system call for each.
.SH SUPPORTED FEATURES
.TP
.B Endpoint types
FI_EP_RDM: reliable datagrams, in order.
.TP
.B Capabilities
FI_MSG, FI_TAGGED, FI_RMA, FI_ATOMIC, FI_DIRECTED_RECV, FI_MULTI_RECV, FI_SOURCE,
FI_RMA_EVENT, FI_FENCE, FI_LOCAL_COMM and FI_REMOTE_COMM.
.TP
.B Addressing
FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6 and FI_ADDR_STR. An endpoint that asks for
no address listens at 127.0.0.1, at a port that is free. Endpoints find each other by the
address and the port exactly as given, within one network namespace.
.TP
.B Progress
FI_PROGRESS_MANUAL, unless FI_PROGRESS_AUTO is asked for.
.TP
.B Threading
All models. FI_THREAD_DOMAIN with manual progress is the fastest.
.TP
.B Wait objects
FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD (completion and event queues, wait sets),
FI_WAIT_SET and FI_WAIT_YIELD.
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
.SH RUNTIME PARAMETERS
.I fi_info \-e
lists them with their values. A value that cannot be used is named in libfabric's log,
with what is allowed.
"#;

const AFTER: &str = r#".SH TROUBLESHOOTING
.B FI_LOG_LEVEL=info FI_LOG_PROV=kestrel
tells for each hint that cannot be met what was asked for and what there is.
.SH SEE ALSO
.BR fabric (7),
.BR fi_provider (7),
.BR fi_getinfo (3)
"#;

fn main() {
    print!("{BEFORE}");
    for parameter in &PARAMETERS {
        println!(".TP\n.B {}\n{}", parameter.name, escaped(&parameter.describe()));
    }
    print!("{AFTER}");
}

/// A line of text in which troff sees no request and no escape.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

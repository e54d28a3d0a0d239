//! `fi_getinfo`: what there is that fits, and why the rest does not.
//! Reference: fi_getinfo(3).

use std::{
    ffi::{CString, c_char, c_int},
    net::{IpAddr, Ipv6Addr},
    ptr::{null, null_mut},
};

use kestrel::{
    DiscoveryError,
    discovery::{self, Asker, FABRIC, Place},
    settings::BadSettings,
};
use kestrel_core::{
    address::{Address, AddressFormat},
    error::Errno,
    flags::Flags,
    info::{ApiVersion, Hints, Info, Progress},
};

use crate::{
    abi::{
        constants::{
            CORE_PROVIDER_ONLY, HOST_FLAGS, NUMERICHOST, PROGRESS_CONTROL_UNIFIED, PROV_ATTR_ONLY,
            RESCAN,
        },
        fid::{FidDomain, FidFabric},
        info::{DomainAttr, Info as CInfo},
    },
    answer,
    hints::{self, Ignored},
    host, instances,
    outcome::{Failure, done},
    parameters,
    provider::NAME,
};

/// Reference: fi_getinfo(3).
pub unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const CInfo,
    info: *mut *mut CInfo,
) -> c_int {
    done("fi_getinfo", || {
        // A utility provider that wants to put itself over us gets nothing: it would
        // be listed before us, and be slower.
        if flags & CORE_PROVIDER_ONLY != 0 {
            return Err(Failure::new(Errno::NODATA, "kestrel serves applications only"));
        }
        check_flags(flags, !node.is_null() || !service.is_null())?;
        // SAFETY: libfabric passes valid pointers or null.
        let (info, asked) = unsafe { (info.as_mut(), hints.as_ref()) };
        let info = info.ok_or_else(|| Failure::null("where the list goes"))?;
        let asked = asked.filter(|_| flags & PROV_ATTR_ONLY == 0);
        // SAFETY: as above.
        let (node, service) = unsafe { (hints::text(node), hints::text(service)) };
        *info = find(ApiVersion(version), node, service, flags, asked)?;
        Ok(())
    })
}

/// "FI_SOURCE: … If specified, either the node and/or service parameter must be non-NULL." Devices
/// are looked for each time, so that FI_RESCAN asks for nothing more.
fn check_flags(flags: u64, has_place: bool) -> Result<(), Failure> {
    let source = Flags::SOURCE.bits();
    let known = NUMERICHOST | PROV_ATTR_ONLY | RESCAN | HOST_FLAGS | source;
    if flags & !known != 0 {
        return Err(Failure::flags("fi_getinfo", flags & !known));
    }
    if flags & source != 0 && !has_place {
        return Err(Failure::new(Errno::INVAL, "FI_SOURCE, and neither a node nor a service"));
    }
    Ok(())
}

/// Which address of the hints a node or a service stands instead of: "src_addr […] will be ignored in
/// hints if FI_SOURCE flag is set", and "dest_addr […] will be ignored in hints unless the node and
/// service parameters are NULL or FI_SOURCE flag is set."
fn ignored(flags: u64, has_place: bool) -> Ignored {
    match flags & Flags::SOURCE.bits() != 0 {
        true => Ignored::Source,
        false if has_place => Ignored::Destination,
        false => Ignored::Nothing,
    }
}

fn find(
    version: ApiVersion,
    node: Option<String>,
    service: Option<String>,
    flags: u64,
    asked: Option<&CInfo>,
) -> Result<*mut CInfo, Failure> {
    let config = parameters::config().inspect_err(log_bad_settings)?;
    let ignored = ignored(flags, node.is_some() || service.is_some());
    // SAFETY: libfabric passes valid hints.
    let read = asked.map(|asked| unsafe { hints::read(asked, ignored, version) });
    let (mut hints, unknown) = match read {
        Some((hints, unknown)) => (Some(hints), unknown),
        None => (None, Vec::new()),
    };
    for failure in &unknown {
        tracing::info!("nothing was chosen: {}", failure.reason);
    }
    let instances = Instances::of(asked, hints.as_mut())?;
    let format = hints.as_ref().map_or(AddressFormat::Unspec, |hints| hints.address_format);
    let place = place(node.as_deref(), service.as_deref(), flags, format)?;
    // Rejections are logged there, one line each: also of hints beside others that nobody knows.
    let asker = asker(asked, hints.as_ref(), &instances);
    let found = discovery::discover_with(&config, version, asker, hints.as_ref(), place);
    let mut found = match found {
        Ok(found) if unknown.is_empty() => found,
        Ok(_) | Err(DiscoveryError::Rejected(_)) => {
            return Err(Failure::new(Errno::NODATA, "the hints cannot be met"));
        }
        Err(error) => return Err(Failure::new(Errno::NODATA, error.to_string())),
    };
    found.iter_mut().for_each(add_source);
    let list = answer::list(&found, asked.map_or(std::ptr::null_mut(), |asked| asked.handle))?;
    echo_control_progress(asked, list);
    instances.name_in(&found, list);
    Ok(list)
}

/// Whether the user or the program chose kestrel, by its name or by what is named in its answers.
fn asker(asked: Option<&CInfo>, hints: Option<&Hints>, instances: &Instances) -> Asker {
    // SAFETY: libfabric passes valid hints.
    let fabric = asked.and_then(|asked| unsafe { asked.fabric_attr.as_ref() });
    // SAFETY: as above.
    let provider = fabric.and_then(|fabric| unsafe { hints::text(fabric.prov_name) });
    let names_fabric = hints.is_some_and(|hints| hints.fabric.name.as_deref() == Some(FABRIC));
    let is_named = |names: Option<String>| names.is_some_and(|names| names_us(&names));
    let has_ours = !instances.fabric.is_null();
    match has_ours || names_fabric || is_named(provider) || is_named(host::providers()) {
        true => Asker::OfKestrel,
        false => Asker::OfAnybody,
    }
}

/// Whether a list of providers to choose from has ours, in any layers: "kestrel;ofi_hook_trace,tcp". One that
/// begins with ^ has those that are not to be chosen. Reference: fabric(7), fi_provider(7).
fn names_us(providers: &str) -> bool {
    let ours = |name: &str| name.trim().as_bytes().eq_ignore_ascii_case(NAME.to_bytes());
    !providers.trim_start().starts_with('^') && providers.split([',', ';']).any(ours)
}

/// The objects that hints name, or null.
struct Instances {
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
    /// What the domain was opened with.
    opened_with: Option<Info>,
}

impl Instances {
    /// "On input to fi_getinfo, a user may set this to an opened domain instance to restrict output
    /// to the given domain" (fi_domain(3)); and likewise with fabrics (fi_fabric(3)).
    fn of(asked: Option<&CInfo>, hints: Option<&mut Hints>) -> Result<Instances, Failure> {
        let (mut fabric, mut domain, mut opened_with) = (null_mut(), null_mut(), None);
        // SAFETY: libfabric passes valid hints.
        if let Some(attr) = asked.and_then(|asked| unsafe { asked.fabric_attr.as_ref() }) {
            fabric = attr.fabric;
        }
        // SAFETY: as above.
        if let Some(attr) = asked.and_then(|asked| unsafe { asked.domain_attr.as_ref() }) {
            domain = attr.domain;
        }
        if !fabric.is_null() && !instances::has_fabric(fabric) {
            return Err(no_instance("fabric_attr->fabric", "no fabric of kestrel that is open"));
        }
        if let (false, Some(hints)) = (domain.is_null(), hints) {
            let Some((info, on)) = instances::domain(domain) else {
                return Err(no_instance(
                    "domain_attr->domain",
                    "no domain of kestrel that is open",
                ));
            };
            if !fabric.is_null() && on != fabric {
                return Err(no_instance("domain_attr->domain", "a domain of another fabric"));
            }
            let asked = hints.domain.name.replace(info.domain.name.clone());
            if asked.is_some_and(|asked| asked != info.domain.name) {
                return Err(no_instance("domain_attr->domain", "a domain of another name"));
            }
            (fabric, opened_with) = (on, Some(info));
        }
        Ok(Instances { fabric, domain, opened_with })
    }

    /// "On output from fi_getinfo, if no domain was specified, but the user has an opened instance of
    /// the named domain, this will reference the first opened instance": some open on it what they
    /// found, so that it has to be one that serves that.
    fn name_in(&self, found: &[Info], list: *mut CInfo) {
        let fabric = match self.fabric.is_null() {
            true => instances::first_fabric(),
            false => self.fabric,
        };
        let mut next = list;
        for info in found {
            // SAFETY: the list was just made of what was found, with all attributes, and is ours alone.
            unsafe {
                (*(*next).fabric_attr).fabric = fabric;
                (*(*next).domain_attr).domain = match &self.opened_with {
                    // One that was opened otherwise restricts the names alone: Open MPI 5 names that
                    // of its messages when it asks for what registers memory, and opens another.
                    Some(open) if instances::serves(open, info) => self.domain,
                    _ => instances::first_domain(fabric, info),
                };
                next = (*next).next;
            }
        }
    }
}

fn no_instance(field: &str, what: &str) -> Failure {
    Failure::new(Errno::NODATA, format!("hint {field} is {what}"))
}

/// The address that node and service stand for, of those that the hints' format can tell: ours with
/// FI_SOURCE, else the peer's.
fn place(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    format: AddressFormat,
) -> Result<Option<Place>, Failure> {
    check_numeric(node, flags)?;
    Ok(Place::resolve(format, node, service, flags & Flags::SOURCE.bits() != 0)?)
}

/// Tells where endpoints listen that are asked for nowhere: applications print it, some
/// without looking whether it is there.
fn add_source(info: &mut Info) {
    let ip = match (info.address_format, info.destination) {
        (AddressFormat::In6, _) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        (_, Some(peer)) if peer.ip().is_ipv6() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        _ => discovery::own_ip(),
    };
    info.source.get_or_insert(Address::new(ip, 0));
}

fn log_bad_settings(error: &BadSettings) {
    for error in &error.0 {
        tracing::warn!("{error}");
    }
}

/// "FI_NUMERICHOST: … the node parameter is a numeric string representation of a fabric
/// address … Use of this flag will prohibit any form of name resolution."
fn check_numeric(node: Option<&str>, flags: u64) -> Result<(), Failure> {
    match node {
        Some(node) if flags & NUMERICHOST != 0 && !is_numeric(node) => {
            Err(Failure::new(Errno::NODATA, format!("node {node:?} is no number")))
        }
        _ => Ok(()),
    }
}

/// A number, alone, with a scope or in a short form, or in an address of FI_ADDR_STR, which has no names.
fn is_numeric(node: &str) -> bool {
    if node.parse::<Address>().is_ok() {
        return true;
    }
    let Ok(node) = CString::new(node) else {
        return false;
    };
    // SAFETY: zeroes are the defaults, the node is a string, and what is found is freed once.
    unsafe {
        let hints = libc::addrinfo { ai_flags: libc::AI_NUMERICHOST, ..std::mem::zeroed() };
        let mut found = null_mut();
        let status = libc::getaddrinfo(node.as_ptr(), null(), &raw const hints, &raw mut found);
        if status == 0 {
            libc::freeaddrinfo(found);
        }
        status == 0
    }
}

/// Core knows no unified control progress: it is manual progress, by another name. Newer headers call both
/// fields by one: who asks may have set either.
fn echo_control_progress(asked: Option<&CInfo>, list: *mut CInfo) {
    // SAFETY: libfabric passes valid hints.
    let attr: Option<&DomainAttr> = asked.and_then(|asked| unsafe { asked.domain_attr.as_ref() });
    let is_unified = |of: fn(&DomainAttr) -> u32| attr.map(of) == Some(PROGRESS_CONTROL_UNIFIED);
    let [control, data] = [is_unified(|it| it.control_progress), is_unified(|it| it.data_progress)];
    let echo = |asked: bool, answered: &mut u32| {
        if asked && *answered == Progress::Manual.value() {
            *answered = PROGRESS_CONTROL_UNIFIED;
        }
    };
    let mut next = list;
    while !next.is_null() {
        // SAFETY: the list was just made, with all attributes, and is ours alone.
        let answer = unsafe { &mut *(*next).domain_attr };
        echo(control, &mut answer.control_progress);
        echo(data, &mut answer.data_progress);
        // SAFETY: as above.
        next = unsafe { (*next).next };
    }
}

#[cfg(test)]
mod tests {
    use super::names_us;

    #[test]
    fn a_list_of_providers_names_us_or_not() {
        for names in ["kestrel", "KESTREL", "tcp,kestrel", "kestrel;ofi_hook_trace", " kestrel "] {
            assert!(names_us(names), "{names}");
        }
        for names in ["", "tcp", "^kestrel", "^tcp,kestrel", "kestrels", "kestrel2;ofi_rxm"] {
            assert!(!names_us(names), "{names}");
        }
    }
}

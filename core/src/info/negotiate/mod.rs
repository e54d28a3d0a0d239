//! From an offer and hints to what both agree on, by the rules of fi_getinfo(3).
//!
//! Every hint is looked at, also after one was rejected, so that a user
//! learns all that stands in the way at once.

mod capabilities;
mod domain;
mod endpoint;

use super::attributes::Info;
use super::hints::Hints;
use super::modes::Mode;
use super::offer::Offer;
use super::rejection::{Rejection, bits_text, flags_text};
use super::values::ApiVersion;
use crate::address::AddressFormat;
use crate::flags::Flags;

use capabilities::{MR_MODE_BITS_SINCE, legacy_mode};

#[cfg(all(test, not(loom)))]
mod tests;

/// What an offer and an application's hints agree on; no hints at all ask for everything.
///
/// Cost: cold; allocates.
/// # Errors
/// Every hint that cannot be met, as a [`Rejection`]. The C door answers FI_ENODATA and logs them.
/// # Reference
/// fi_getinfo(3)
pub fn negotiate(
    offer: &Offer,
    hints: Option<&Hints>,
    api_version: ApiVersion,
) -> Result<Info, Vec<Rejection>> {
    let mut info = offer.template.clone();
    info.fabric.api_version = api_version;
    let Some(hints) = hints else {
        if api_version < MR_MODE_BITS_SINCE {
            info.domain.memory_region_mode = legacy_mode(info.domain.memory_region_mode);
        }
        return Ok(info);
    };
    let mut talks = Negotiation { offer, hints, info, rejections: Vec::new() };
    talks.caps(api_version);
    talks.memory_region_mode(api_version);
    talks.modes();
    talks.buffering(api_version);
    talks.addresses();
    talks.transmit();
    talks.receive();
    talks.endpoint(&hints.endpoint, api_version);
    talks.models(&hints.domain);
    talks.domain(&hints.domain);
    talks.names();
    if talks.rejections.is_empty() { Ok(talks.info) } else { Err(talks.rejections) }
}

struct Negotiation<'a> {
    offer: &'a Offer,
    hints: &'a Hints,
    info: Info,
    rejections: Vec<Rejection>,
}

/// What is missing first, of all that was asked for.
fn missing_of(missing: String, asked: String) -> String {
    if missing == asked { missing } else { format!("{missing} (of {asked})") }
}

fn at_most(most: impl ToString) -> String {
    format!("at most {}", most.to_string())
}

impl Negotiation<'_> {
    fn reject(&mut self, field: &'static str, asked: impl ToString, offered: impl ToString) {
        let (asked, offered) = (asked.to_string(), offered.to_string());
        self.rejections.push(Rejection { field, asked, offered });
    }

    /// What was asked for if we have that much, `usual` if nothing was.
    fn size(
        &mut self,
        field: &'static str,
        asked: Option<usize>,
        most: usize,
        usual: usize,
    ) -> usize {
        self.size_of((field, asked), most, usual, most)
    }

    /// The same, where `most` is told in words.
    fn size_of(
        &mut self,
        (field, asked): (&'static str, Option<usize>),
        most: usize,
        usual: usize,
        told: impl ToString,
    ) -> usize {
        match asked {
            None | Some(0) => usual,
            Some(asked) if asked <= most => asked,
            Some(asked) => {
                self.reject(field, asked, at_most(told));
                usual
            }
        }
    }

    /// Rejects more than `most`. What we have is returned to who asks for less.
    fn within(&mut self, field: &'static str, asked: Option<usize>, most: usize) {
        self.size(field, asked, most, most);
    }

    fn flags_within(&mut self, field: &'static str, asked: Flags, offered: Flags) {
        let missing = asked.difference(offered);
        if !missing.is_empty() {
            self.reject(
                field,
                missing_of(flags_text(missing), flags_text(asked)),
                flags_text(offered),
            );
        }
    }

    fn bits_within<F>(&mut self, field: &'static str, prefix: &str, asked: F, offered: F)
    where
        F: bitflags::Flags + Copy,
        F::Bits: Into<u64>,
    {
        let missing = asked.difference(offered);
        if !missing.is_empty() {
            let asked = missing_of(bits_text(prefix, missing), bits_text(prefix, asked));
            self.reject(field, asked, bits_text(prefix, offered));
        }
    }

    /// The value that was asked for, `usual` if none was. Lower leniency is a harder promise.
    fn model<T: Copy + PartialEq + Default + ToString>(
        &mut self,
        field: &'static str,
        (asked, strictest, usual): (T, T, T),
        leniency: fn(T) -> u32,
    ) -> T {
        if leniency(asked) < leniency(strictest) {
            self.reject(field, asked, strictest);
        }
        if asked == T::default() { usual } else { asked }
    }

    fn modes(&mut self) {
        let (hints, maximum) = (self.hints, &self.offer.maximum);
        // "A mode value of 0 will be ignored on input to fi_getinfo(3), with
        // the mode value of the fi_info structure used instead."
        let or_info = |mode: Mode| if mode.is_empty() { hints.mode } else { mode };
        let pairs = [
            ("mode", hints.mode, maximum.mode),
            ("tx_attr->mode", or_info(hints.transmit.mode), maximum.transmit.mode),
            ("rx_attr->mode", or_info(hints.receive.mode), maximum.receive.mode),
            ("domain_attr->mode", or_info(hints.domain.mode), maximum.domain.mode),
        ];
        for (field, supported, required) in pairs {
            if !required.difference(supported).is_empty() {
                let offered = format!("nothing without {}", bits_text("FI_", required));
                self.reject(field, bits_text("FI_", supported), offered);
            }
        }
    }

    fn addresses(&mut self) {
        let (hints, formats) = (self.hints, self.offer.address_formats);
        let asked = hints.address_format;
        if asked != AddressFormat::Unspec && !formats.contains(&asked) {
            let names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
            self.reject("addr_format", asked.name(), names.join(", "));
        }
        for (field, address) in [("src_addr", hints.source), ("dest_addr", hints.destination)] {
            if let Some(address) = address.filter(|address| !asked.holds(address)) {
                self.reject(
                    field,
                    address,
                    format!("{} addresses, as addr_format asks", asked.name()),
                );
            }
        }
        let info = &mut self.info;
        info.source = hints.source.or(info.source);
        info.destination = hints.destination.or(info.destination);
        info.handle = hints.handle;
        info.address_format = match asked {
            AddressFormat::Unspec => info.format_of_addresses().unwrap_or(info.address_format),
            _ => asked,
        };
    }
}

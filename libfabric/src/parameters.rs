//! The `FI_KESTREL_*` parameters: declared to libfabric and read from it, all from
//! core's one table.

use std::ffi::CString;

use kestrel::settings::{self, BadSettings};
use kestrel_core::config::{Config, PARAMETERS};

use crate::host;

/// Declares every parameter, so that `fi_info -e` lists it, and warns of variables that are taken for one.
pub fn define() {
    settings::warn_of_unknown();
    for parameter in &PARAMETERS {
        if let (Ok(name), Ok(help)) =
            (CString::new(parameter.short_name()), CString::new(parameter.describe()))
        {
            host::define_parameter(&name, &help);
        }
    }
}

/// The parameters as the user set them.
///
/// # Errors
/// [`BadSettings`] names each bad parameter, its value and what is allowed.
pub fn config() -> Result<Config, BadSettings> {
    let lookup = |name: &str| {
        let parameter = PARAMETERS.iter().find(|parameter| parameter.name == name)?;
        host::parameter(&CString::new(parameter.short_name()).ok()?, name)
    };
    settings::from_lookup(lookup)
}

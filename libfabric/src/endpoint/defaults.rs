//! Flags of calls that name none, and aliases: other ways to an endpoint, with such flags of their
//! own. Reference: fi_endpoint(3), `fi_ep_alias`, FI_SETOPSFLAG, FI_GETOPSFLAG.

use std::ffi::{c_int, c_void};

use kestrel_core::{
    endpoint::{DefaultFlags, EndpointOptions},
    error::Errno,
    flags::Flags,
};

use crate::{
    abi::{attributes::Alias, constants::command, fid::Fid},
    object::{self, Header},
    outcome::Failure,
};

/// Whoever can have aliases: "An alias EP differs from its parent endpoint only by its default data
/// transfer flags."
pub trait Aliased: Header {
    /// The flags that it has, and no other alias.
    fn defaults(state: &Self::State) -> &DefaultFlags;
    /// What the endpoint was opened with.
    fn options(state: &Self::State) -> &EndpointOptions;
    /// Another way to the endpoint, of which one is `fid`.
    fn alias(state: &Self::State, fid: &Fid, defaults: DefaultFlags) -> Result<*mut Self, Failure>;
}

/// The commands of `fi_control` that concern these flags.
///
/// # Safety
/// `object` is open, and `argument` null or what the command takes.
pub unsafe fn control<H: Aliased>(
    object: *mut H,
    command: c_int,
    argument: *mut c_void,
) -> Result<(), Failure> {
    if command == command::ALIAS {
        // SAFETY: the argument of this command is a `struct fi_alias *`.
        return unsafe { alias(object, argument.cast()) };
    }
    // SAFETY: the argument of the others is a `uint64_t *`.
    let (state, flags) = unsafe { (object::owned(object)?, argument.cast::<u64>().as_mut()) };
    let flags = || flags.ok_or_else(|| Failure::null("the argument"));
    let defaults = H::defaults(state);
    match command {
        command::SETOPSFLAG => set::<H>(state, defaults, *flags()?),
        command::GETOPSFLAG => {
            let flags = flags()?;
            *flags = defaults.get(Flags::from_bits_retain(*flags))?.bits();
            Ok(())
        }
        _ => {
            let reason = format!("there is no command {command} of what is a {}", H::NAME);
            Err(Failure::new(Errno::NOSYS, reason))
        }
    }
}

/// Reference: fi_endpoint(3), `fi_ep_alias`: "By default, an alias EP inherits the same data
/// transfer flags as the parent endpoint."
///
/// # Safety
/// `object` is open; `asked` is null or valid, and so is the place that it names.
unsafe fn alias<H: Aliased>(object: *mut H, asked: *mut Alias) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it; every object starts with a `struct fid`.
    let (state, asked, fid) =
        unsafe { (object::owned(object)?, asked.as_ref(), &*object.cast::<Fid>()) };
    let asked = asked.ok_or_else(|| Failure::null("the argument"))?;
    // SAFETY: as above.
    let place = unsafe { object::out(asked.fid) }?;
    let defaults = H::defaults(state).clone();
    set::<H>(state, &defaults, asked.flags)?;
    *place = H::alias(state, fid, defaults)?.cast();
    Ok(())
}

/// Sets the flags of one direction. With FI_TRIGGER, of an endpoint that can, the context of each
/// call says when.
fn set<H: Aliased>(state: &H::State, defaults: &DefaultFlags, flags: u64) -> Result<(), Failure> {
    let (options, flags) = (H::options(state), Flags::from_bits_retain(flags));
    let side = if flags.contains(Flags::RECV) { options.receives() } else { options.transmits() };
    Ok(defaults.set_with(flags, side & Flags::TRIGGER)?)
}

//! Address vectors: a process's own, or with a name, shared with others of its user on this host.

use std::sync::Arc;

use kestrel_core::{
    address_vector::{
        AddressVector, AddressVectorAttributes, AddressVectorError, AddressVectorFlags,
    },
    error::{Errno, HasErrno},
};
use kestrel_shm::{NamedMemory, NamedMemoryError, named_memory::Opening};

/// Why an address vector could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenVectorError {
    /// The vector says so.
    #[error(transparent)]
    Vector(#[from] AddressVectorError),
    /// Its shared memory says so.
    #[error(transparent)]
    Memory(#[from] NamedMemoryError),
}

impl HasErrno for OpenVectorError {
    fn errno(&self) -> Errno {
        match self {
            OpenVectorError::Vector(error) => error.errno(),
            OpenVectorError::Memory(error) => error.errno(),
        }
    }
}

/// Opens the address vector that processes "which access the same named domain on the same node"
/// (fi_av(3)) know by `name`, and makes it if there is none, unless the flags have `READ`.
///
/// It lives as long as one process has it open.
///
/// # Errors
/// [`OpenVectorError`], with the reason in words.
pub fn open_named(
    domain: &str,
    name: &str,
    attributes: AddressVectorAttributes,
) -> Result<AddressVector, OpenVectorError> {
    let reads = attributes.flags.contains(AddressVectorFlags::READ);
    let opening = if reads { Opening::Read } else { Opening::Write };
    let memory = NamedMemory::open(&format!("{domain}/{name}"), attributes.count, opening)?;
    Ok(AddressVector::open_shared(attributes, Arc::new(memory))?)
}

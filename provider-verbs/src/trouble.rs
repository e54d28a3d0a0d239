//! What a device says of itself, beside what completions say.

/// Something that has happened to a device, and what it means for those who use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing that was made on it works any more. What is under way does not even fail.
    Device(String),
    /// The same of one queue of an endpoint, as the device calls it.
    Queue { name: u64, what: String },
    /// A port comes or goes, or is known by other names from now on. Completions tell of what is lost; who reads
    /// of that wants to know why.
    Port(String),
    /// Nothing has to be done: completions tell of what is lost, if anything is.
    Other(String),
}

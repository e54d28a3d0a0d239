//! kestrel-core: objects, matching, protocol and engine, for any transport.
//!
//! The interface is what the crate `kestrel` re-exports. Everything else here serves kestrel's own
//! crates, the C door and the tests among them, and may change without notice.
//!
//! In reading order, which is that of the declarations below:
//!
//! 1. What everything speaks of: [`address`], [`flags`], [`error`], [`config`].
//! 2. What a transport is, and what core asks of it: [`transport`], [`window`].
//! 3. What an application opens: [`domain`], [`endpoint`], [`completion_queue`], [`address_vector`], …
//! 4. What drives it: [`engine`].
//! 5. What it says to peers: [`protocol`], in the packets of [`wire`].
//! 6. How messages meet receives: [`tag_match`].
//! 7. What operations are made of: [`operation`], [`one_sided`], [`memory`].
//! 8. The small structures below all that: [`ring`], [`pool`], …
//!
//! `docs/glossary.md` has kestrel's own words beside the usual terms, and `docs/architecture.md` the
//! reasons.

#![deny(unsafe_code)]
#![warn(missing_docs)]

// 1. What everything speaks of.
pub mod address;
pub mod auth_key;
pub mod config;
pub mod error;
pub mod flags;

// 2. What a transport is.
pub mod group;
pub mod transport;
pub mod window;

// 3. Objects that an application opens.
pub mod address_vector;
pub mod completion_counter;
pub mod completion_queue;
pub mod connection;
pub mod counter;
#[allow(unsafe_code)]
pub mod domain;
pub mod endpoint;
pub mod event_queue;
pub mod info;
pub mod memory_region;
pub mod scalable_endpoint;
pub mod shared_context;
pub mod socket_endpoint;
pub mod triggered;

// 4. What drives them.
mod arming;
#[allow(unsafe_code)]
pub mod driven_units;
pub mod engine;
mod rota;

// 5. What is said to peers.
pub mod buffering;
pub mod protocol;
pub mod wire;

// 6. How messages meet receives.
pub mod tag_match;

// 7. What operations are made of.
pub mod attachment;
#[allow(unsafe_code)]
pub mod memory;
pub mod one_sided;
pub mod operation;

// 8. Small structures below all that.
pub mod bind_count;
pub mod contained;
pub mod pool;
#[allow(unsafe_code)]
pub mod prefetch;
pub mod primitive;
#[allow(unsafe_code)]
pub mod ring;
#[allow(unsafe_code)]
pub mod settled;
pub mod sleepers;

// Claimed cores, forked children, open files, and threads of ours.
pub mod core_claim;
#[allow(unsafe_code)]
pub mod fork_guard;
pub mod open_files;
#[allow(unsafe_code)]
pub mod threads;

// What tests drive it all with. Not an interface.
#[allow(unsafe_code)]
#[doc(hidden)]
pub mod mock;

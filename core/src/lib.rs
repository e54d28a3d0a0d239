//! kestrel-core: objects, matching, protocol and engine, for any transport.
//!
//! The interface is what the crate `kestrel` re-exports. Everything else here serves kestrel's own
//! crates, the C door and the tests among them, and may change without notice.
//!
//! In reading order: what a transport is ([`transport`]), what an application
//! opens ([`domain`], [`endpoint`], [`completion_queue`], …), what drives it
//! ([`engine`]), what it says on the wire ([`wire`], [`protocol`]), how messages
//! meet receives ([`tag_match`]), and the small structures below all that.

#![deny(unsafe_code)]

// What everything speaks of.
pub mod address;
pub mod auth_key;
pub mod config;
pub mod error;
pub mod flags;

// Objects that an application opens.
pub mod address_vector;
pub mod bind_count;
pub mod buffering;
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

// What drives them.
pub mod engine;
pub mod group;
pub mod protocol;
pub mod tag_match;
pub mod transport;
pub mod window;
pub mod wire;

// What operations are made of.
#[allow(unsafe_code)]
pub mod memory;
pub mod one_sided;
pub mod operation;
pub mod owned;
#[allow(unsafe_code)]
pub mod poll_set;
pub mod pool;
#[allow(unsafe_code)]
pub mod prefetch;
pub mod primitive;
#[allow(unsafe_code)]
pub mod ring;
pub mod sleepers;

// Forked children, open files, and threads of ours.
#[allow(unsafe_code)]
pub mod fork_guard;
pub mod open_files;
#[allow(unsafe_code)]
pub mod threads;

// What tests drive it all with. Not an interface.
#[allow(unsafe_code)]
#[doc(hidden)]
pub mod mock;

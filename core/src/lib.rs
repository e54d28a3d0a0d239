//! kestrel-core: objects, matching, protocol and engine, for any transport.

#![deny(unsafe_code)]

pub mod address;
pub mod address_vector;
pub mod bind_count;
pub mod config;
pub mod counter;
pub mod error;
pub mod event_queue;
pub mod flags;
pub mod info;
pub mod memory_region;
pub mod primitive;
pub mod tag_match;

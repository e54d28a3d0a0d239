//! kestrel-fi: kestrel as a provider that stock libfabric loads.
//!
//! This crate translates and does nothing else; behaviour lives in `kestrel-core`.
//! In reading order: how libfabric finds us ([`provider`]) and what we ask of it
//! ([`host`], [`parameters`], [`logging`]); discovery ([`getinfo`], [`hints`], [`answer`],
//! [`versioned`], `nic`, `instances`); the objects, one module each, over what all of them share
//! ([`object`], [`outcome`]); and libfabric's own types ([`abi`]).
//!
//! Calls of the data path are one cast away from core, and abort on a panic. All
//! others catch panics and answer -FI_EOTHER, but those that give a text, in which nothing panics.
//!
//! # Safety of exported functions
//! What C passes is what the manual pages of libfabric ask for: pointers are null or
//! valid for the call, objects are those that this library has made. Null is checked
//! for; a closed object answers errors for a while (see [`object`]); a pointer to
//! something else cannot be told from a good one.

// Every function that C calls has the same contract, which the crate's documentation states.
#![allow(clippy::missing_safety_doc)]

pub use kestrel_fi_abi as abi;

// Between libfabric and us.
pub mod host;
pub mod logging;
pub mod parameters;
pub mod provider;

// Discovery.
pub mod answer;
pub mod context_attributes;
pub mod getinfo;
pub mod hints;
mod instances;
mod nic;
pub mod versioned;

// What all objects share.
pub mod address;
mod descriptor;
pub mod object;
pub mod outcome;
mod per_process;
mod raw_keys;
mod reasons;
mod refused;
pub mod waiting;
pub mod words;

// The objects.
pub mod address_vector;
pub mod completion_queue;
mod connection_request;
pub mod counter;
mod deferred_work;
pub mod domain;
pub mod endpoint;
pub mod event_queue;
pub mod fabric;
pub mod memory_region;
mod multicast;
mod passive_endpoint;
pub mod poll_set;
pub mod scalable_endpoint;
pub mod shared_receive;
pub mod shared_transmit;
pub mod socket_endpoint;
mod triggered;
pub mod wait_kind;
pub mod wait_set;

//! The cases, by subject. Each is a function of the bed that it runs on.

pub mod addresses;
pub mod atomic;
pub mod auth_keys;
pub mod binding;
pub mod buffered;
pub mod cancel;
pub mod connections;
pub mod counters;
pub mod datagrams;
pub mod levels;
pub mod load;
pub mod messages;
pub mod multi_receive;
pub mod multicast;
pub mod order;
pub mod peek;
pub mod progress;
pub mod queues;
pub mod rma;
pub mod scalable;
pub mod shared_contexts;
pub mod sizes;
pub mod socket_datagrams;
pub mod sockets;
pub mod triggered;
pub mod truncation;

//! The protocol: what the engine does with sends, packets and receives.
//!
//! Eager messages are one packet. Long ones start with a prefix that needs no
//! consent; the rest follows when the receiver has matched them. Credit bounds
//! what a receiver must hold that nobody has asked for. One-sided operations ask
//! the target's engine, which executes them in the order of the lane. Datagrams are eager messages
//! without credit, that may be lost. An endpoint that buffers announces messages to its application. `docs/protocol.md` has
//! the whole story; each file here is one chapter of it.

pub mod arrive;
pub mod atomic;
pub mod buffered;
pub mod claim;
pub mod claimed;
pub mod confirm;
pub mod connect;
pub mod contest;
pub mod context;
pub mod credit;
pub mod datagram;
pub mod fence;
pub mod fetch;
pub mod give_up;
pub mod in_sight;
pub mod long;
pub mod members;
pub mod multi_receive;
pub mod multicast;
pub mod place;
pub mod pump;
pub mod receive;
pub mod remote_access;
pub mod send;
pub mod shared;
pub mod single_copy;
pub mod window;

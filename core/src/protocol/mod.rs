//! The protocol: what the engine does with sends, packets and receives.
//!
//! An eager message is one packet. A long one starts with a prefix that needs no consent; the rest
//! follows when the receiver has matched it. Credit bounds what a receiver must hold that nobody has
//! asked for. A one-sided operation asks the target's engine, which executes it in the order of the
//! lane. A datagram is an eager message without credit, and may be lost. An endpoint that buffers
//! announces messages to its application. `docs/protocol.md` has the whole story; each file here is
//! one chapter of it:
//!
//! 1. Sending: [`send`] posts, [`pump`] pushes what waits, [`credit`] bounds it. [`confirm`] waits for
//!    the peer's device to have it; [`fence`] holds back what is behind a fence.
//! 2. Receiving: [`receive`] posts, [`arrive`] takes packets, [`place`] puts the bytes in place.
//!    [`multi_receive`] is one buffer for many messages, [`shared`] receives of a shared context.
//! 3. Long messages: [`long`] in parts, [`in_sight`] while the sender still copies, [`single_copy`]
//!    from one process's memory to the other's, [`fetch`] by the receiver's device; [`contest`]
//!    finds out what is fastest.
//! 4. One-sided operations: [`remote_access`] and [`atomic`] as packets, [`window`] by a device, or by
//!    the initiator's own thread.
//! 5. Announced and claimed messages: [`buffered`], [`claim`], [`claimed`].
//! 6. Connections and contexts: [`connect`], [`context`], [`give_up`].
//! 7. Datagrams: [`datagram`], and the groups of [`multicast`] with their [`members`].

// 1. Sending.
pub mod confirm;
pub mod credit;
pub mod fence;
pub mod pump;
pub mod send;

// 2. Receiving.
pub mod arrive;
pub mod multi_receive;
pub mod place;
pub mod receive;
pub mod shared;

// 3. Long messages.
pub mod contest;
pub mod fetch;
pub mod in_sight;
pub mod long;
pub mod single_copy;

// 4. One-sided operations.
pub mod atomic;
pub mod remote_access;
pub mod window;

// 5. Announced and claimed messages.
pub mod buffered;
pub mod claim;
pub mod claimed;

// 6. Connections and contexts.
pub mod connect;
pub mod context;
pub mod give_up;

// 7. Datagrams.
pub mod datagram;
pub mod members;
pub mod multicast;

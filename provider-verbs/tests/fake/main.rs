//! The verbs transport over an in-process fake of a device and of its connection manager.
//!
//! One program for all: each makes the whole engine anew for the fake.

mod chaos;
mod common;
mod datagrams;
mod faults;
mod foreign;
mod gone;
mod groups;
mod handshake;
mod held_up;
mod hostile;
mod kept_buffers;
mod managed;
mod mute;
mod paths;
mod traffic_class;

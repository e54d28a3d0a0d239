//! What the integration, fault and conformance tests share.
//!
//! In reading order: how long a test may take ([`scale`]), processes that are
//! this same test binary ([`process`]) or forked ([`fork`]), an endpoint with all
//! that belongs to it ([`node`]), messages that check themselves ([`traffic`]), and what a process
//! leaves behind ([`figures`], [`arena`]) or asks of the kernel ([`trace`]).
//!
//! The conformance suite is what every provider must do, once: [`bed`] is what
//! cases stand on, [`cases`] are the cases by subject, and [`conformance!`], in a module of that
//! name, makes tests of all of them for one provider.

pub mod arena;
pub mod arithmetic;
pub mod bed;
pub mod bytes;
pub mod cases;
pub mod completion;
mod conformance;
pub mod contexts;
pub mod driven;
pub mod echo;
pub mod endless;
pub mod fake;
pub mod figures;
pub mod fork;
pub mod hints;
pub mod lanes;
pub mod liar;
pub mod link;
pub mod long_first;
pub mod mapped;
pub mod mock;
pub mod node;
pub mod one_sided;
pub mod opened;
pub mod packets;
pub mod process;
pub mod random;
pub mod reach;
pub mod reserved;
pub mod scale;
pub mod shm_reach;
pub mod socket;
pub mod station;
pub mod trace;
pub mod traffic;
pub mod watched;

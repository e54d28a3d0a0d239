//! What the integration and fault tests share.
//!
//! In reading order: how long a test may take ([`scale`]), processes that are
//! this same test binary ([`process`]), an endpoint with all that belongs to it
//! ([`node`]), messages that check themselves ([`traffic`]), and what a process
//! leaves behind ([`figures`]) or asks of the kernel ([`trace`]).

pub mod figures;
pub mod node;
pub mod process;
pub mod random;
pub mod scale;
pub mod trace;
pub mod traffic;

//! What the integration, fault and conformance tests share.
//!
//! In reading order: how long a test may take ([`scale`]), processes that are
//! this same test binary ([`process`]), an endpoint with all that belongs to it
//! ([`node`]), messages that check themselves ([`traffic`]), and what a process
//! leaves behind ([`figures`]) or asks of the kernel ([`trace`]).
//!
//! The conformance suite is what every provider must do, once: [`bed`] is what
//! cases stand on, [`cases`] are the cases by subject, and [`conformance!`] makes
//! tests of all of them for one provider.

pub mod bed;
pub mod cases;
pub mod figures;
pub mod node;
pub mod process;
pub mod random;
pub mod scale;
pub mod trace;
pub mod traffic;

/// Makes a test of every case, on the bed that an expression gives.
#[macro_export]
macro_rules! conformance {
    ($bed:expr) => {
        $crate::conformance! { @each $bed;
            messages:
                every_send_call_reaches_every_receive_call,
                entries_tell_all_there_is,
                vectors_of_any_cut_arrive_whole,
                an_injected_buffer_is_free_at_once,
                what_is_too_long_to_inject_is_refused,
                an_injected_message_writes_no_entry,
                more_is_only_a_hint,
                nonsense_is_refused,
                an_endpoint_sends_to_itself;
            sizes:
                expected_messages_of_every_size,
                unexpected_messages_of_every_size,
                messages_that_cross,
                large_messages;
            truncation:
                what_does_not_fit_is_counted;
        }
    };
    (@each $bed:expr; $($module:ident: $($case:ident),+;)+) => {
        $(mod $module {
            use super::*;
            $(#[test]
            fn $case() {
                $crate::cases::$module::$case(&$bed);
            })+
        })+
    };
}

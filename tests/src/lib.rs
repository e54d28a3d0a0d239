//! What the integration, fault and conformance tests share.
//!
//! In reading order: how long a test may take ([`scale`]), processes that are
//! this same test binary ([`process`]) or forked ([`fork`]), an endpoint with all
//! that belongs to it ([`node`]), messages that check themselves ([`traffic`]), and what a process
//! leaves behind ([`figures`], [`arena`]) or asks of the kernel ([`trace`]).
//!
//! The conformance suite is what every provider must do, once: [`bed`] is what
//! cases stand on, [`cases`] are the cases by subject, and [`conformance!`] makes
//! tests of all of them for one provider.

pub mod arena;
pub mod arithmetic;
pub mod bed;
pub mod bytes;
pub mod cases;
pub mod completion;
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
pub mod socket;
pub mod station;
pub mod trace;
pub mod traffic;
pub mod watched;

/// Makes a test of every case, on the bed that an expression gives; of none if it gives none.
#[macro_export]
macro_rules! conformance {
    ($bed:expr) => {
        $crate::conformance! { @each $bed;
            messages:
                every_send_call_reaches_every_receive_call,
                entries_tell_all_there_is,
                vectors_of_any_cut_arrive_whole,
                owned_buffers_come_back_as_they_were,
                an_injected_buffer_is_free_at_once,
                an_injected_message_needs_its_sender_no_more,
                what_is_too_long_to_inject_is_refused,
                an_injected_message_writes_no_entry,
                more_is_only_a_hint,
                nonsense_is_refused,
                an_endpoint_sends_to_itself;
            sizes:
                expected_messages_of_every_size,
                unexpected_messages_of_every_size,
                messages_that_cross,
                one_length_again_and_again,
                large_messages;
            truncation:
                what_does_not_fit_is_counted;
            levels:
                transmit_needs_no_receive_for_a_short_message,
                who_closes_has_said_what_was_delivered,
                delivery_waits_for_the_receivers_engine,
                match_waits_until_matched,
                acknowledged_messages_arrive_whole_however_the_room,
                a_selective_queue_tells_of_remote_data,
                selective_binding_suppresses_success_alone;
            multi_receive:
                messages_fill_a_buffer_one_after_the_other,
                the_release_waits_for_rendezvous_in_flight,
                suppressed_messages_still_release,
                what_overflows_the_last_slot_is_cut_and_released,
                cancel_releases_a_buffer_once,
                cancel_waits_for_rendezvous_in_flight,
                a_safe_buffer_comes_back_with_the_release,
                tagged_buffers_take_what_matches,
                the_minimum_is_an_option;
            cancel:
                a_posted_receive_is_canceled,
                one_of_several_is_canceled,
                what_has_completed_is_unaffected,
                a_matched_receive_is_not_canceled,
                sends_that_still_queue_are_canceled,
                an_injected_send_is_canceled_by_its_context;
            order:
                messages_of_one_tag_keep_their_order,
                matching_takes_the_earliest_receive,
                directed_receives_take_from_their_source,
                tags_count_in_all_64_bits,
                a_source_is_ignored_without_directed_receives,
                a_fence_waits_for_its_own_peer_alone;
            fences:
                a_fence_waits_for_every_context_of_its_peer,
                a_fence_waits_for_every_key_of_its_peer,
                a_canceled_fence_keeps_nothing_back,
                one_sided_operations_wait_for_every_context;
            completion_order:
                sends_complete_in_the_order_of_submission,
                operations_of_all_kinds_keep_one_order,
                errors_keep_their_places,
                what_waits_for_a_peer_that_goes_completes,
                what_waits_has_a_place_in_the_queue,
                counters_count_in_turn,
                a_canceled_operation_waits_for_nobody,
                connected_endpoints_keep_an_order,
                contexts_keep_an_order;
            matching_order:
                receives_complete_in_the_order_of_matching,
                errors_of_receives_keep_their_places,
                what_is_reported_last_releases_a_buffer,
                shared_receives_complete_in_order;
            data_order:
                a_message_is_written_from_its_first_byte_to_its_last,
                a_write_is_placed_in_order_and_before_what_follows,
                messages_are_written_in_the_order_of_matching,
                what_has_come_of_a_sender_that_goes_is_written,
                shared_receives_are_written_in_order,
                claims_are_written_in_order,
                a_receive_context_has_an_order_of_its_own,
                a_context_that_closes_ends_the_turns_of_its_messages;
            buffered:
                messages_are_announced_and_claimed,
                a_claim_completes_with_the_posted_tags_context,
                what_is_discarded_is_free,
                announcements_keep_the_order_of_messages,
                a_posted_tag_takes_one_message,
                what_does_not_fit_a_claim_is_counted,
                what_nobody_claims_stops_its_sender,
                the_limits_are_options,
                what_no_buffering_endpoint_takes_is_refused,
                an_announcement_is_an_entry_however_it_is_bound,
                a_message_is_counted_when_it_is_claimed,
                a_sender_that_closes_fails_the_claims_of_its_messages,
                a_receiver_that_closes_lets_go_of_its_senders,
                announcements_go_with_their_endpoint,
                variable_messages_have_no_limit,
                connected_endpoints_announce_too,
                a_receive_context_announces_for_itself;
            peek:
                a_miss_is_a_completion,
                who_only_peeks_finds_what_comes,
                a_peek_tells_and_leaves,
                what_is_claimed_is_one_receivers,
                what_is_discarded_is_gone,
                discarding_gives_the_credit_back,
                a_peek_into_a_short_buffer_is_no_error,
                a_claim_needs_no_source,
                a_context_claims_one_message,
                what_is_claimed_of_a_sender_that_closes_fails,
                a_discard_of_a_claim_may_be_silent;
            queues:
                read_takes_what_fits_in_order,
                reading_nothing_drives_progress,
                an_error_at_the_head_stops_reading,
                a_small_queue_never_overruns,
                a_blocked_reader_times_out,
                a_signal_is_remembered,
                a_signal_wakes_a_sleeper,
                a_message_wakes_a_sleeper,
                two_sleepers_do_not_put_each_other_to_rest,
                each_producers_entries_stay_in_order;
            counters:
                every_success_counts_once,
                a_discarded_claim_counts_and_a_peek_does_not,
                what_is_injected_counts_at_its_default_level,
                errors_count_apart_and_end_waits,
                an_error_is_there_when_its_counter_tells_of_it,
                a_wait_times_out,
                who_sleeps_drives_what_the_counter_is_bound_to,
                a_bound_counter_does_not_close;
            triggered:
                a_send_waits_for_its_threshold,
                what_is_due_already_starts_at_once,
                thresholds_come_in_order,
                a_receive_is_posted_when_its_time_has_come,
                a_shared_receive_is_posted_when_its_time_has_come,
                a_shared_receive_may_be_due_within_a_poll,
                what_cannot_be_triggered_at_a_shared_context_is_refused,
                one_sided_operations_wait_too,
                an_operation_starts_the_next,
                what_waits_is_canceled,
                what_goes_wrong_when_it_starts_is_reported,
                what_waits_goes_with_its_endpoint,
                what_cannot_be_triggered_is_refused,
                an_injected_buffer_is_free_while_it_waits,
                any_thread_starts_what_waits,
                a_shutdown_cancels_what_waits,
                what_starts_without_a_connection_fails;
            deferred_work:
                operations_are_counted_by_a_counter_of_their_own,
                one_sided_work_is_counted_too,
                entries_are_for_who_asks,
                a_received_message_is_passed_on_by_nobody,
                errors_trigger_and_are_counted,
                counters_are_set_and_added_to,
                work_is_canceled_and_flushed,
                what_cannot_be_work_is_refused;
            auth_keys:
                peers_talk_by_a_key_that_both_have,
                who_proves_no_key_is_not_heard,
                a_peer_by_two_keys_is_two_sources,
                a_receive_by_key_takes_from_all_who_prove_it,
                a_buffered_tag_is_directed_by_key,
                a_shared_receive_by_key_takes_from_all_who_prove_it,
                a_shared_context_has_the_keys_of_its_endpoints,
                only_the_keys_of_the_enabling_count,
                a_key_is_removed_when_its_endpoints_are_closed,
                a_stranger_comes_with_the_key_that_it_proved,
                enabling_takes_a_key,
                regions_are_for_those_who_prove_a_key,
                datagrams_come_by_a_key;
            binding:
                other_keys_do_not_talk,
                what_is_bound_twice_is_refused,
                a_side_can_what_its_own_attributes_say,
                what_nobody_can_receive_is_refused,
                a_domains_class_is_the_default,
                another_domains_objects_are_refused,
                enabling_needs_queues_and_a_vector,
                what_is_in_use_is_busy,
                a_dropped_endpoint_lets_go_of_everything,
                closing_drops_what_is_pending,
                a_closed_receiver_fails_its_senders,
                an_address_is_reopened,
                a_domains_event_queue_is_the_default,
                who_is_bound_to_a_shared_context_says_whom_receives_are_for;
            addresses:
                a_removed_address_is_unknown,
                duplicates_reach_the_same_peer,
                a_mapped_address_is_the_same_peer,
                a_source_is_known_once_it_is_inserted,
                completions_name_a_source_as_its_insertion_said,
                a_vector_with_user_ids_names_no_source_until_told,
                a_symmetric_vector_reaches_everybody,
                receive_context_bits_are_ignored,
                nobody_there_is_an_error_of_the_operation;
            sources:
                a_stranger_comes_with_its_address,
                a_strangers_messages_fill_a_buffer,
                a_strangers_remote_data_is_told,
                a_strangers_key_is_called_what_the_user_said,
                who_has_no_name_yet_is_no_stranger,
                a_peek_finds_what_a_stranger_sent,
                a_receive_context_tells_of_strangers;
            load:
                a_full_transmit_queue_has_no_side_effect,
                what_is_left_counts_operations_of_all_kinds,
                what_is_left_may_be_posted_while_others_drive,
                an_exhausted_budget_loses_and_blocks_nothing,
                fifty_endpoints_talk_all_to_all,
                stuck_peers_do_not_stop_the_others,
                a_window_of_everything_at_once;
            rma:
                every_size_is_written_and_read,
                one_length_is_written_and_read_again_and_again,
                vectors_meet_vectors,
                an_injected_write_is_free_at_once,
                an_injected_write_needs_its_sender_no_more,
                what_is_not_allowed_is_refused,
                nonsense_is_refused_at_once,
                an_endpoint_that_is_no_target_refuses,
                nothing_is_a_length_too,
                a_closed_region_is_out_of_reach,
                keys_are_chosen_or_given,
                operations_follow_each_other,
                a_message_follows_the_writes_before_it,
                a_fenced_operation_waits,
                what_still_queues_is_canceled,
                a_safe_buffer_comes_back,
                suppressed_operations_complete_all_the_same,
                both_ends_count;
            remote_data:
                remote_data_needs_no_receive,
                what_is_refused_in_part_tells_no_data,
                data_that_nobody_reads_waits,
                who_sleeps_hears_of_what_waited_behind_data;
            segments:
                remote_data_tells_the_whole_length,
                regions_count_operations,
                what_is_refused_in_part_is_not_counted,
                what_fails_midway_is_counted,
                what_is_refused_in_part_is_not_kept;
            persistence:
                what_is_committed_has_arrived,
                atomic_operations_commit_too,
                who_does_not_commit_is_as_ever,
                volatile_memory_commits_nothing,
                only_what_changes_memory_commits,
                by_default_everything_commits_that_can;
            atomic:
                every_call_does_what_it_says,
                who_closes_has_sent_what_was_fetched, elements_lie_anywhere,
                sums_of_many_add_up,
                what_is_not_supported_is_refused,
                operations_play_in_order;
            connection_events:
                a_connection_is_told_of_before_the_next_request,
                who_accepts_and_goes_is_told_of,
                who_accepted_goes_while_the_listener_is_driven,
                who_asks_a_closed_listener_is_refused,
                who_is_refused_is_not_enabled,
                a_rejection_leaves_by_itself,
                who_takes_over_has_its_own_key;
            connections:
                data_travels_both_ways,
                every_call_works_over_a_connection,
                a_rejection_carries_its_data,
                nobody_listens,
                a_full_backlog_rejects,
                once_in_a_lifetime,
                nothing_is_sent_without_a_connection,
                shutdown_cancels_and_is_seen,
                what_was_sent_before_a_shutdown_arrives,
                an_abrupt_close_is_a_shutdown,
                a_request_that_is_dropped_is_rejected,
                a_request_whose_sender_is_gone,
                errors_say_why,
                a_request_can_be_rejected_until_it_is_accepted,
                a_closed_listener_leaves_connections_alone,
                names_are_set_before_listening,
                a_passive_endpoint_is_taken_over,
                strangers_are_not_heard,
                a_connected_endpoint_needs_an_event_queue;
            sockets:
                bytes_arrive_in_order_however_they_are_cut,
                a_buffer_is_free_when_the_call_returns,
                a_full_buffer_takes_no_more,
                both_directions_may_be_full,
                nothing_is_a_length,
                the_descriptor_shows_what_there_is,
                a_descriptor_wakes_who_sleeps_on_it,
                an_end_comes_after_the_last_byte,
                a_closed_stream_has_delivered_what_was_taken,
                what_cannot_be_delivered_is_told,
                a_loss_is_no_end,
                a_loss_is_told_before_the_rest_is_read,
                an_end_is_found_behind_what_waits,
                nothing_is_received_behind_an_end,
                a_wait_for_events_keeps_no_domain,
                what_is_no_segment_ends_the_stream,
                nothing_passes_without_a_connection,
                what_streams_have_not_is_refused,
                a_wait_ends_with_what_it_waits_for,
                a_stream_takes_a_passive_endpoint_over,
                many_streams_share_a_domain;
            scalable:
                a_named_context_gets_what_is_for_it, the_first_context_gets_what_names_none,
                a_directed_receive_takes_from_every_context,
                a_directed_receive_fails_with_the_last_context,
                who_names_no_context_that_exists_is_told,
                one_sided_operations_go_to_a_context,
                a_context_has_one_direction,
                a_context_may_have_less_than_its_endpoint,
                contexts_close_before_their_endpoint,
                closing_a_context_leaves_the_other_one,
                what_a_closed_context_had_begun_is_let_go,
                ports_follow_each_other,
                a_name_is_set_before_contexts_are_enabled,
                contexts_are_used_by_threads_of_their_own;
            context_pairs:
                closing_a_receive_context_keeps_what_its_sibling_sends,
                closing_a_transmit_context_keeps_what_its_sibling_receives,
                what_was_injected_survives_its_context,
                a_closed_receive_context_refuses_what_comes,
                closing_a_context_keeps_its_siblings_one_sided_operations,
                what_is_canceled_is_the_contexts_own,
                a_context_that_is_opened_again_names_by_itself,
                contexts_have_the_keys_of_the_first,
                the_least_of_a_buffer_is_the_receive_contexts;
            shared_contexts:
                every_endpoint_takes_shared_receives,
                connections_share_receives,
                the_earliest_receive_and_message_match,
                a_directed_receive_takes_from_its_source,
                messages_of_all_endpoints_fill_one_buffer,
                a_receive_is_canceled_once,
                what_is_not_shared_is_refused,
                a_context_is_closed_after_its_endpoints,
                a_closed_endpoint_takes_nothing_along,
                threads_post_and_poll_at_once,
                endpoints_send_by_a_shared_context;
            mixed_contexts:
                a_context_that_was_never_enabled_leaves_nothing,
                receives_scale_beside_a_shared_transmit_context,
                transmits_scale_beside_a_shared_receive_context,
                what_came_before_its_context_takes_a_shared_receive,
                a_shared_receive_is_due_within_a_poll,
                endpoints_of_two_types_share_receives,
                an_endpoint_shares_one_side_of_what_it_can,
                a_receive_is_directed_before_an_endpoint_is_enabled,
                what_a_scalable_endpoint_cannot_share_is_refused;
            shared_peeks:
                a_peek_finds_what_waits_at_any_endpoint,
                who_only_peeks_finds_what_comes,
                what_is_claimed_is_one_receivers,
                what_is_discarded_is_gone,
                a_miss_is_told_by_the_first_endpoint,
                threads_claim_each_message_once,
                a_claim_outlives_its_sender,
                a_claim_needs_no_source;
            progress:
                a_sleeping_helper_delivers, a_spinning_helper_delivers,
                a_delivery_completes_while_its_receiver_sleeps,
                a_domain_closes_under_its_helper,
                who_always_finds_a_completion_drives,
                four_threads_post_poll_and_cancel,
                each_threads_messages_stay_in_order;
        }
    };
    (datagrams over $bed:expr) => {
        $crate::conformance! { @each $bed;
            datagrams:
                messages_of_every_length_arrive_whole,
                vectors_are_one_datagram,
                who_closes_at_once_is_heard,
                what_is_longer_is_refused,
                a_silent_receiver_stops_nobody,
                each_peer_has_a_place_of_its_own,
                who_is_gone_leaves_no_more_than_its_place,
                nobody_there_is_no_error,
                what_is_held_is_canceled,
                what_needs_an_answer_is_refused,
                receives_are_as_ever,
                buffered_ones_are_announced,
                strangers_are_heard,
                an_endpoint_reaches_itself,
                a_peer_that_goes_fails_nothing,
                other_keys_are_not_heard,
                reliable_endpoints_are_not_reached,
                a_datagram_wakes_a_sleeper,
                threads_may_send_at_once,
                completions_keep_one_order;
            datagram_contexts:
                endpoints_share_receives,
                endpoints_share_a_transmit_context;
            socket_datagrams:
                datagrams_are_whole_and_have_a_source,
                a_short_buffer_cuts_a_datagram,
                a_datagram_is_shown_by_the_descriptor,
                who_receives_nothing_stops_nobody,
                what_datagram_sockets_have_not_is_refused;
        }
    };
    (adapter_atomics over $bed:expr) => {
        $crate::conformance! { @each $bed;
            adapter_atomics:
                every_call_of_8_bytes_is_played,
                sums_add_up,
                each_sees_what_those_before_it_left,
                what_is_refused_is_refused_as_ever,
                what_no_adapter_does_is_not_offered,
                a_word_may_come_in_pieces,
                swaps_of_many_lose_nothing,
                a_message_follows_the_atomics_before_it;
        }
    };
    (multicast over $bed:expr) => {
        $crate::conformance! { @each $bed;
            multicast:
                a_group_hears_what_is_sent_to_it,
                a_group_is_one_however_it_is_written,
                a_member_may_only_send_or_only_receive,
                an_endpoint_joins_as_far_as_it_goes,
                joining_is_reported_or_refused,
                who_leaves_hears_no_more,
                groups_take_what_peers_take,
                senders_are_told_apart,
                other_keys_are_other_groups,
                calls_without_flags_may_mean_groups,
                who_joins_later_hears_what_follows,
                a_send_to_many_is_one_operation,
                what_is_left_may_be_sent_to_a_group,
                who_closes_at_once_is_heard;
        }
    };
    (@each $bed:expr; $($module:ident: $($case:ident),+;)+) => {
        $(mod $module {
            use super::*;
            $(#[test]
            fn $case() {
                let bed: Option<$crate::bed::Bed<_>> = $bed.into();
                match bed {
                    Some(bed) => $crate::cases::$module::$case(&bed),
                    None => $crate::scale::skip(stringify!($case), "there is no device"),
                }
            })+
        })+
    };
}

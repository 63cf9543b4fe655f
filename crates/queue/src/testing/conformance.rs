//! The suite that every store must pass. A case is a sentence about a store; it gets an empty one on a [`Bench`].
//!
//! A store runs the suite with one line in its tests:
//!
//! ```text
//! async fn bench() -> Bench { Bench::new(Arc::new(MyStore::open().await)) }
//! longhaul_queue::conformance_tests!(bench);
//! ```

use std::pin::Pin;

use super::Bench;

mod admin;
mod claim;
mod edit;
mod enqueue;
mod events;
mod export;
mod fairness;
mod graph;
mod lease;
mod lists;
mod park;
mod process;
mod records;
mod results;
mod schedule;
mod settle;
mod sweep;
mod unique;

/// One case.
pub struct Case {
    /// `topic::sentence`.
    pub name: &'static str,
    run: for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
}

impl Case {
    /// Runs the case; panics when the store breaks it.
    pub async fn run(&self, bench: &Bench) {
        (self.run)(bench).await;
    }
}

/// Runs the case of that name.
pub async fn run(name: &str, bench: Bench) {
    let case = CASES.iter().find(|case| case.name == name).expect("the case is on the list");
    case.run(&bench).await;
}

/// The one list of cases, handed to the macro named first.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ($then:ident $(, $make:path)?) => {
        $crate::$then! { [$($make)?]
            enqueue {
                a_job_that_waits_for_nothing_is_ready,
                a_job_for_later_is_scheduled,
                a_time_that_has_passed_is_ready_at_once,
                a_job_with_an_unmet_dependency_is_blocked,
                everything_given_is_stored,
                a_payload_keeps_its_text,
                seq_counts_up_in_submission_order,
                seq_is_not_reused_after_a_deletion,
                the_same_id_with_the_same_content_is_a_no_op,
                the_same_id_with_other_content_is_refused,
                a_repeated_submission_with_edges_is_a_no_op,
                a_job_without_id_is_refused,
                an_id_given_twice_in_one_submission_is_refused,
                a_cycle_is_refused,
                an_unknown_parent_is_refused_by_name,
                a_deleted_parent_is_refused_by_name,
                nothing_may_be_enqueued,
                many_jobs_go_in_at_once,
            }
            claim {
                a_claim_makes_a_job_running_under_a_lease,
                a_job_is_handed_out_once,
                the_order_is_priority_then_time_then_submission,
                queues_come_in_the_order_given,
                only_the_kinds_asked_for_are_handed_out,
                a_claim_takes_no_more_than_its_limit,
                one_claim_takes_at_most_a_thousand,
                a_paused_queue_hands_out_nothing,
                a_queues_limit_holds_over_all_workers,
                a_job_past_its_expiry_is_cancelled_instead_of_handed_out,
                no_more_suspects_than_asked_for_are_handed_out,
                a_kind_named_twice_is_served_once,
                what_has_expired_hides_nobody,
                what_an_expiry_releases_waits_for_the_next_claim,
                the_fence_rises_with_each_claim_and_never_falls,
                a_checkpoint_comes_with_the_next_claim,
                a_claim_behind_a_settle_sees_the_job_that_continues,
                a_claim_behind_a_settle_sees_the_child_it_releases,
                a_claim_behind_a_settle_sees_its_follow_ups,
                a_claim_behind_a_settle_sees_a_park_whose_signal_was_there,
            }
            fairness {
                keys_take_turns_whatever_their_backlog,
                turns_go_on_where_the_last_claim_ended,
                the_key_with_the_fewest_running_jobs_comes_first,
                jobs_without_a_key_take_turns_as_one,
                a_key_that_comes_late_waits_one_round,
                within_a_key_the_order_is_priority_then_time_then_submission,
                a_keys_limit_holds_over_all_workers,
                a_key_at_its_limit_keeps_nobody_else_waiting,
                jobs_without_a_key_have_no_key_limit,
                a_limit_that_is_raised_counts_at_once,
                turns_look_at_the_kinds_asked_for_only,
                what_has_expired_costs_its_key_no_turn,
                suspects_of_a_key_wait_without_holding_it,
                a_job_that_comes_back_has_its_key_still,
                with_ageing_a_long_wait_makes_up_for_priority,
                ageing_ranks_within_each_key,
                ageing_can_be_lifted,
            }
            lease {
                a_renewal_reaches_as_far_as_a_claim,
                a_renewed_job_is_not_rescued_however_long_it_runs,
                a_lease_past_its_time_but_not_rescued_still_holds,
                a_rescued_lease_is_lost_for_every_write,
                late_settle_after_rescue_changes_nothing,
                the_same_worker_name_does_not_revive_an_old_lease,
                a_fence_from_the_future_is_lost,
                a_job_that_is_gone_is_a_lost_lease,
                a_crash_counts_apart_from_failures,
                three_crashes_in_a_row_are_poison,
                new_data_sets_crashes_back,
                the_same_data_again_is_no_progress,
                data_survives_a_crash,
                progress_and_log_are_kept_up_to_their_bound,
                rescue_takes_the_oldest_leases_first_and_says_when_to_come_back,
            }
            settle {
                done_succeeds_with_its_result,
                continue_is_ready_again_or_later_and_costs_nothing,
                retries_are_spent_one_by_one,
                a_throttle_waits_as_told_and_costs_no_attempt,
                fail_ends_it_at_once,
                a_release_is_ready_again_and_costs_nothing,
                the_worker_ends_a_cancelled_run,
                done_wins_over_a_cancel_request,
                anything_but_an_end_becomes_cancelled_on_request,
                each_item_is_answered_for_itself,
                refused_follow_ups_leave_the_lease_as_it_was,
                a_follow_up_may_wait_for_the_job_that_enqueued_it,
                a_settlement_names_usage_in_the_history,
                the_history_keeps_the_newest_runs,
                delete_on_success_leaves_no_row,
                each_goes_or_stays_by_its_own_rule_when_many_end_at_once,
            }
            graph {
                the_last_parents_success_releases_the_child,
                children_may_come_before_their_parents,
                a_diamond_joins_once,
                a_released_child_still_waits_for_its_time,
                a_parent_that_succeeded_before_is_no_wait,
                a_parent_that_failed_before_acts_by_its_edge,
                a_failed_parent_cancels_its_children_and_theirs,
                a_cancelled_parent_counts_as_failed,
                a_run_edge_is_satisfied_by_any_end,
                a_child_learns_why_its_parent_ended_without_its_handler,
                a_late_child_learns_why_its_parent_failed,
                a_run_child_runs_again_after_the_parents_next_end,
                a_retried_parent_takes_back_only_what_has_not_begun,
                a_run_child_comes_back_with_its_own_unique_key,
                a_long_chain_falls_in_one_call,
                a_held_child_waits_until_the_parent_is_retried,
                unhold_drops_the_edges_that_hold,
                unhold_refuses_what_is_not_held,
                a_parent_that_holds_a_child_cannot_be_deleted,
                retrying_a_parent_revives_the_children_it_cancelled,
                a_child_of_two_failed_parents_comes_back_with_the_second,
                retrying_a_child_waits_for_unfinished_parents_only,
                deleting_a_parent_never_starves_a_child,
                a_child_that_ended_before_gets_no_second_end,
                a_child_that_fell_with_a_member_waits_for_no_older_parent,
                a_new_job_with_a_deleted_parents_id_is_not_the_parent,
            }
            park {
                park_waits_without_a_lease_and_costs_nothing,
                resume_runs_it_again_with_the_value,
                a_crash_keeps_the_value_and_an_answer_drops_it,
                a_value_goes_with_the_end_of_its_job,
                a_job_named_twice_is_woken_once,
                a_signal_may_end_the_job,
                a_signal_may_count_a_failure,
                a_signal_may_fail_the_job,
                a_signal_before_the_park_is_kept_for_it,
                a_final_signal_before_the_park_ends_the_job,
                the_first_signal_counts,
                a_signal_is_forgotten_after_its_time,
                one_signal_wakes_all_that_wait_for_it,
                unpark_by_id_ignores_what_is_not_parked,
                unpark_of_waiting_jobs_looks_at_the_key_too,
                a_park_past_its_time_resumes_by_default,
                a_park_past_its_time_fails_or_retries_if_it_says_so,
                a_park_without_end_waits_for_ever,
                a_cancelled_park_takes_no_signal,
                a_parked_job_cannot_be_deleted,
            }
            unique {
                a_second_job_with_the_key_is_skipped,
                the_scope_is_queue_and_kind,
                within_one_submission_the_second_sees_the_first,
                an_ended_job_frees_its_key,
                replace_gives_a_waiting_job_the_new_payload,
                replace_gives_a_payload_of_any_size,
                replace_leaves_a_job_alone_that_has_run,
                replace_leaves_a_retried_job_alone,
                debounce_pushes_the_start_back_up_to_its_cap,
                debounce_leaves_a_blocked_job_blocked,
                debounce_never_pulls_a_retry_forward,
                a_window_after_enqueue_outlives_the_job,
                a_window_after_success_is_a_cooldown,
                a_window_survives_pruning,
                a_retry_is_refused_while_another_job_has_the_key,
                a_child_of_a_skipped_job_is_refused,
                a_reply_tells_where_a_later_member_put_the_job,
            }
            process {
                a_process_counts_its_jobs_by_state,
                a_process_exists_while_it_has_jobs_or_is_open,
                processes_are_listed_page_by_page,
                a_continuation_runs_after_the_last_job,
                an_open_process_keeps_its_continuation_waiting,
                sealing_an_idle_process_releases_its_continuation,
                helpers_hold_nobody_up,
                a_finished_process_is_no_wait,
                an_unknown_process_is_refused,
                a_job_may_not_wait_for_its_own_process,
                follow_ups_join_before_the_process_can_end,
                a_continuation_waits_for_its_parents_too,
                a_cascade_that_ends_the_process_releases_its_continuation,
                the_end_that_finishes_a_process_releases_its_continuation,
                a_process_that_has_just_gone_is_unknown,
            }
            results {
                results_come_in_submission_order,
                a_page_knows_whether_there_is_another,
                helpers_and_unfinished_jobs_are_no_results,
                consume_deletes_exactly_what_it_names,
                consume_again_is_a_no_op,
                unfinished_jobs_are_refused_and_listed,
                a_consumed_job_leaves_only_its_place_in_the_ledger,
            }
            admin {
                cancel_ends_every_waiting_job,
                cancel_asks_a_running_job_to_end,
                a_cancelled_job_whose_worker_died_ends_at_the_rescue,
                retry_puts_a_failed_job_back_with_fresh_budgets,
                retry_drops_the_checkpoint_when_told,
                retry_refuses_every_other_state_by_name,
                a_retried_job_that_had_expired_may_run,
                get_answers_in_the_order_asked,
                counts_follow_every_change,
                a_job_tells_when_its_state_last_changed,
                queues_show_settings_and_counts,
                a_queue_with_neither_jobs_nor_settings_is_none,
                workers_are_listed_while_they_are_heard_of,
                finished_jobs_do_not_get_in_the_way_of_claims,
            }
            edit {
                a_change_touches_what_it_names_and_nothing_else,
                a_new_priority_moves_a_job_in_the_line,
                a_job_that_runs_or_has_succeeded_cannot_be_changed,
                the_payload_of_a_job_that_has_run_changes_only_after_its_end,
                a_failed_job_runs_again_with_another_payload,
                an_enqueue_is_compared_with_what_was_changed,
            }
            lists {
                a_list_filters_by_everything_at_once,
                a_list_finds_the_jobs_of_every_state,
                a_list_by_id_takes_the_start_of_it,
                a_search_looks_into_payload_title_error_and_id,
                a_search_finds_all_of_its_texts,
                what_is_hidden_is_found_by_those_only_who_may_see_it,
                jobs_of_hidden_queues_are_neither_listed_nor_found,
                a_search_takes_fields_of_the_payload,
                a_list_goes_page_by_page_both_ways,
                a_walk_from_page_to_page_meets_every_job_once,
                a_page_has_at_least_one_and_at_most_a_thousand_rows,
            }
            sweep {
                a_due_job_becomes_ready,
                a_scheduled_job_can_be_started_now,
                a_sweep_cut_by_its_limit_wants_to_come_back_at_once,
                jobs_that_never_started_expire_in_every_waiting_state,
                a_job_that_has_started_is_not_bound_to_its_expiry,
                a_backlog_of_expired_jobs_keeps_no_claim_from_live_ones,
                a_running_job_does_not_expire,
                a_sweep_that_finds_nothing_changes_nothing,
                a_clock_that_steps_back_harms_nothing,
                ended_jobs_go_when_their_time_is_over,
                a_job_of_a_process_waits_for_its_consumer,
                a_jobs_own_retention_wins_over_its_queues,
                retention_never_takes_a_parent_that_holds_a_child,
                a_retried_job_is_not_pruned,
                a_pruned_signal_is_forgotten,
                nothing_stays_running_after_its_worker_died,
            }
            schedule {
                schedules_are_kept_by_name,
                a_firing_enqueues_and_moves_the_next_time,
                two_leaders_fire_once,
                a_schedule_that_is_gone_does_not_fire,
                a_firing_with_an_invalid_job_leaves_the_schedule_alone,
            }
            records {
                a_record_is_written_by_who_knows_its_version,
                a_record_wakes_nobody,
            }
            export {
                everything_that_lasts_is_exported_once_in_pages_of_any_size,
                an_import_gives_back_what_was_exported,
                an_import_is_no_event,
                a_repeated_import_changes_nothing,
                a_job_that_comes_twice_in_one_import_is_stored_once,
                a_running_job_is_not_imported,
                an_imported_store_lives_on_like_its_original,
                an_imported_job_is_recognised_when_it_is_enqueued_again,
            }
            events {
                a_call_makes_one_event_with_all_its_changes,
                an_event_names_the_first_changes_and_counts_the_rest,
                events_are_read_after_a_cursor,
                progress_is_news,
                what_changes_nothing_is_no_event,
                an_event_goes_once_every_job_that_it_names_is_gone,
                a_claim_that_finds_nothing_wakes_nobody,
                a_change_wakes_whoever_watches,
                the_ledger_counts_every_end_by_day,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_array {
    ([] $($topic:ident { $($case:ident,)* })*) => {
        /// All cases, by topic.
        pub const CASES: &[Case] = &[$($(
            Case {
                name: concat!(stringify!($topic), "::", stringify!($case)),
                run: |bench| Box::pin($topic::$case(bench)),
            },
        )*)*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_functions {
    ([$make:path] $($topic:ident { $($case:ident,)* })*) => {$(
        mod $topic {
            #[allow(unused_imports, reason = "the maker may be named by a path of its own")]
            use super::*;
            $(
                #[tokio::test]
                async fn $case() {
                    let name = concat!(stringify!($topic), "::", stringify!($case));
                    $crate::testing::conformance::run(name, $make().await).await;
                }
            )*
        }
    )*};
}

/// One `#[tokio::test]` for each case. Takes an `async fn() -> Bench` that makes a bench with an empty store.
#[macro_export]
macro_rules! conformance_tests {
    ($make:path) => {
        $crate::conformance_list!(conformance_functions, $make);
    };
}

conformance_list!(conformance_array);

"""The long tier is shared out whole over a week, and nothing leaves the first tier unseen."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import pytest

from harness.tiers import DAYS, collected, majors_by_tier, of_share, parse_share, share_of

_TESTS: Final = Path(__file__).parents[1]

#: Tests of which `make test` runs nothing at all, by why that may be. A feature whose only test
#: would stand here needs a smaller one beside it.
LONG_ALONE: Final = {
    "two minutes of Spark; the first tier has who is set aside, in "
    "unit/lake/test_refused_values.py": {
        "integration/lake/test_odd_names.py::test_two_tables_whose_names_are_one_text",
    },
    "ten seconds of waiting; the first tier has who says nothing at all, in the same file": {
        (
            "integration/walsender/test_half_open_connections.py"
            "::test_a_login_has_one_time_for_all_of_it"
        ),
    },
    "one of two publications; the first tier has the only one, in the same file": {
        "integration/apply/test_dropped_publication.py::test_one_of_two",
    },
    "DDL in another order, of roles and of tables under load; the first tier has the usual "
    "one, in the same files": {
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_a_partition_of_a_partition_that_is_detached"
        ),
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_a_table_is_attached_that_the_target_lacks"
        ),
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_a_table_that_is_published_by_being_attached"
        ),
        (
            "integration/apply/test_publications_that_change.py"
            "::test_publishing_by_another_way_copies_nothing"
        ),
        "integration/apply/test_schema_changes.py::test_a_table_that_takes_anothers_name_is_copied",
        "integration/apply/test_setting_aside.py::test_a_right_that_was_taken",
        "integration/apply/test_swapped_names.py::test_names_at_random",
    },
    "waits of half a minute; the first tier has shorter ones of the same kind, in the same files": {
        "integration/receiver/test_walreceiver.py::test_killed_again_and_again",
        "integration/test_locked_metadata.py::test_its_metrics_and_its_end_wait_for_nobody",
        "integration/test_preview.py::test_a_transaction_is_passed_over",
        "integration/test_restart_database.py::test_what_can_not_be_decoded",
        "integration/test_source_stands_still.py::test_a_service_that_reads_its_catalog_ends",
    },
    "a source that is away until somebody is told; the first tier has it on the page, in "
    "browser/test_alert_pages.py, and states in integration/test_alert_states.py": {
        (
            "integration/test_alerts.py"
            "::test_a_source_that_is_down_is_told_once_and_told_when_it_is_over"
        ),
    },
    "two servers in encodings of each kind, and a target that is set back; the first tier has"
    " text that is converted, positions and rows that differ, in the same files": {
        "integration/apply/test_database_encodings.py::test_as_postgresql",
        (
            "integration/apply/test_subscription_postgres.py"
            "::test_a_target_that_lost_commits_is_not_gone_on_with"
        ),
        "integration/apply/test_verify_and_repair.py::test_as_of_one_lsn_while_rows_are_written",
    },
    "half a minute of Spark; the first tier has changes of rows, and jobs that are killed, in"
    " the same folder": {
        "integration/lake/test_job.py::test_tables_without_a_primary_key",
        "integration/lake/test_materialize.py::test_a_table_that_a_killed_job_had_begun",
    },
    "10,000 rows, and a role made for it; the first tier has what is written meanwhile, and whose "
    "rows are repaired, in the same files": {
        "integration/apply/test_repaired_rows.py::test_a_role_that_may_use_no_origins_is_told",
        "integration/apply/test_verify_and_repair.py::test_more_rows_than_are_looked_at",
    },
    "a minute of Spark behind the pages; the first tier has the pages in the same file, and the "
    "same way by command in integration/test_quickstart": {
        "browser/test_wizards.py::test_a_newcomer_gets_to_a_lake_table",
    },
    "servers with each setting that is not the usual one; the first tier has what ends sessions, "
    "in the same file": {
        "integration/apply/test_set_otherwise.py::test_what_arrives_is_what_was_sent",
    },
    "waits of half a minute and more; the first tier has locked tables, a store that is down and a "
    "catalog that is being read, in the same files": {
        "integration/test_locked_metadata.py::test_a_file_that_another_program_has_locked",
        "integration/test_locked_metadata.py::test_a_store_that_stands_still",
        "integration/test_source_stands_still.py::test_a_service_that_takes_a_snapshot_ends",
    },
    "DDL in another order, of partitions and under other names; the first tier has the usual one, "
    "in the same files": {
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_a_partition_of_a_prepared_transaction"
        ),
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_a_partition_of_a_root_that_is_being_copied"
        ),
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_a_partition_of_another_table_by_now"
        ),
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_the_root_is_set_aside_for_its_partitions_ddl"
        ),
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_the_targets_root_has_other_partitions"
        ),
        (
            "integration/apply/test_publications_that_change.py"
            "::test_a_refresh_forgets_though_the_program_is_killed"
        ),
        (
            "integration/apply/test_publications_that_change.py"
            "::test_a_table_that_is_renamed_on_both_sides_goes_on"
        ),
        (
            "integration/apply/test_publications_that_change.py"
            "::test_what_was_dropped_on_the_source_has_its_last_rows"
        ),
        "integration/apply/test_schema_changes.py::test_ddl_between_the_rows_of_what_is_skipped",
        "integration/apply/test_schema_changes.py::test_under_other_names_on_the_target",
        "integration/apply/test_schema_changes.py::test_what_the_script_of_an_extension_does",
        "integration/apply/test_setting_aside.py::test_a_column_that_is_missing",
        "integration/apply/test_swapped_names.py::test_a_table_that_takes_the_place_of_another",
        "integration/apply/test_swapped_names.py::test_columns_that_get_the_names_of_others",
    },
    "runs of Spark and of the command; the first tier has lake verify in lake/test_iceberg": {
        "integration/lake/test_verify.py::test_what_has_no_current_table_is_told",
    },
    "names that somebody gave on the target first, or at each pause, and a column that is there "
    "besides; the first tier has those that change hands by themselves, in the same file": {
        "integration/apply/test_swapped_names.py::test_a_column_that_the_target_has_besides",
        "integration/apply/test_swapped_names.py::test_names_that_are_given_by_hand_at_each_pause",
        "integration/apply/test_swapped_names.py::test_names_that_were_given_on_the_target_first",
    },
    "tables that wait for their merge when a job begins, change their shape or fail; the first "
    "tier has a merge at its own pace, in the same file": {
        (
            "integration/lake/test_own_pace.py"
            "::test_another_shape_while_a_merge_has_not_had_its_turn"
        ),
        "integration/lake/test_own_pace.py::test_compared_while_its_merge_fails",
        (
            "integration/lake/test_own_pace.py"
            "::test_merges_of_a_table_while_the_rest_of_its_round_is_at_work"
        ),
        "integration/lake/test_own_pace.py::test_set_aside_in_another_shape",
        "integration/lake/test_own_pace.py::test_waited_since_before_the_lakes_position",
    },
    "clusters that take each other's place under a source's name, minutes of Spark; the first "
    "tier has what is refused, in unit/lake/test_source_history.py, and whom the snapshot is asked "
    "of, in integration/test_held_snapshots.py": {
        "integration/lake/test_source_made_anew.py::test_made_anew_of_a_dump",
    },
    "five runs of a job for the freshness of a table that is set aside; the first tier has what is "
    "told of it, in unit/lake/test_lake_metrics.py": {
        "integration/lake/test_job.py::test_a_table_that_is_set_aside_is_not_told_as_fresh",
    },
    "a full disk under one of two jobs, a minute of Spark; the first tier has what a job writes "
    "first, in the same file": {
        "integration/lake/test_lake_disk.py::test_one_of_two_jobs",
    },
    "a pause that says all; the first tier has the partition that is made, in the same file": {
        (
            "integration/apply/test_partitions_that_come_and_go.py"
            "::test_a_partitioned_table_is_attached_that_the_target_lacks"
        ),
    },
    "other waits of a program that is told to end, ten seconds each; the first tier has the lock "
    "that its main session waits for, in the same file": {
        "integration/apply/test_stopped_while_waiting.py::test_change_by_change_by_sigint",
        "integration/apply/test_stopped_while_waiting.py::test_its_lanes_wait",
        "integration/apply/test_stopped_while_waiting.py::test_one_in_progress_waits_in_a_trigger",
        "integration/apply/test_stopped_while_waiting.py::test_a_prepare_waits",
        (
            "integration/apply/test_stopped_while_waiting.py"
            "::test_the_request_to_cancel_does_not_arrive"
        ),
        "integration/apply/test_stopped_while_waiting.py::test_the_target_stands_still",
        "integration/apply/test_stopped_while_waiting.py::test_another_program_has_it",
    },
    "three runs of the command each; the first tier has what either side refuses in "
    "apply/test_verify_and_repair": {
        "integration/apply/test_verify_refused.py::test_each_is_told_and_mended",
        "integration/apply/test_verify_refused.py::test_one_that_somebody_has_locked",
    },
    "runs of Spark; the first tier has what is copied in oracle/test_copied_rows, and what is "
    "compared in integration/test_row_checksums": {
        "integration/lake/test_sql_ascii.py::test_loaded_followed_and_compared",
    },
    "servers that are restored, half a minute each; the first tier has a target with an older "
    "position in apply/test_subscription_postgres, and copies that begin anew in test_table_sync": {
        "integration/apply/test_another_server.py::test_it_was_restored_from_a_base_backup",
        "integration/apply/test_another_server.py::test_a_standby_took_over_that_lacked_commits",
        "integration/apply/test_another_server.py::test_it_lost_its_origins",
        "integration/apply/test_another_server.py::test_it_was_restored_from_a_dump",
        "integration/apply/test_another_server.py::test_what_lies_between_is_gone",
        "integration/apply/test_another_server.py::test_it_was_restored_to_the_midst_of_a_copy",
        "integration/apply/test_another_server.py::test_the_source_is_another",
    },
    "runs of Spark; the first tier has unit/lake/test_resync_wishes, and the rest of "
    "lake/test_resync": {
        "integration/lake/test_resync.py::test_killed",
        "integration/lake/test_resync.py::test_a_wish_is_taken_back",
    },
    "ten seconds to half a minute each; the first tier has the other tests of their files": {
        "integration/apply/test_prepared_beside_copies.py::test_prepared_before_and_rolled_back",
        "integration/apply/test_prepared_beside_copies.py::test_prepared_meanwhile",
        "integration/apply/test_setting_aside.py::test_ddl_meanwhile",
        "integration/apply/test_setting_aside.py::test_ddl_that_is_a_pause",
        "integration/apply/test_setting_aside.py::test_killed_as_it_is_set_aside",
        "integration/apply/test_setting_aside.py::test_other_troubles",
        "integration/apply/test_setting_aside.py::test_what_is_prepared",
        "integration/apply/test_setting_aside.py::test_without_it_the_subscription_waits",
        "browser/test_check_the_lake.py::test_a_path_that_can_not_be_written",
        "browser/test_check_the_lake.py::test_a_path_that_is_relative",
        "browser/test_frozen.py::test_a_service_that_refuses_to_be_followed",
        "browser/test_frozen.py::test_a_service_that_sees_nothing",
        "browser/test_lists.py::test_a_table_is_loaded_anew_from_its_row",
        "integration/apply/test_checklist_more.py::test_035_a_row_that_somebody_else_deleted",
        (
            "integration/apply/test_schema_changes.py::"
            "test_a_rename_in_a_transaction_that_is_skipped_and_gone"
        ),
        (
            "integration/apply/test_schema_changes.py::"
            "test_a_table_that_was_renamed_while_nobody_applied"
        ),
        (
            "integration/apply/test_schema_changes.py::"
            "test_of_a_table_that_lacks_what_came_since_its_copy"
        ),
        ("integration/apply/test_subscription_postgres.py::test_a_transaction_larger_than_a_group"),
        (
            "integration/apply/test_subscription_postgres.py::"
            "test_dropped_while_its_target_is_out_of_reach"
        ),
        "integration/apply/test_target_keys.py::test_an_operator_class_without_equality",
        "integration/catalog/test_replay.py::test_random_ddl_step_by_step",
        "integration/terraform/test_terraform_subscription.py::test_an_apply_waits_for_the_program",
        "integration/test_certify_wire.py::test_live_traffic",
        "integration/apply/test_set_otherwise.py::test_nothing_that_ends_sessions_ends_ours",
        "integration/apply/test_database_encodings.py::test_a_name_that_is_no_text",
        (
            "integration/apply/test_database_encodings.py"
            "::test_names_that_are_no_text_while_others_stream"
        ),
        (
            "integration/apply/test_checklist_more.py"
            "::test_029_what_is_skipped_in_pieces_and_with_truncate"
        ),
        "integration/apply/test_checklist_more.py::test_029_a_prepare_that_is_skipped",
        (
            "integration/apply/test_table_sync.py::"
            "test_a_program_ends_by_sigterm_while_its_own_thread_catches_up_and_waits"
        ),
        "integration/apply/test_target_keys.py::test_a_replica_identity_that_is_another_since",
        "integration/apply/test_target_keys.py::test_a_table_that_is_truncated_and_referred_to",
        "integration/apply/test_verify_and_repair.py::test_rows_in_each_others_way",
        "integration/apply/test_schema_changes.py::test_ddl_of_what_is_skipped_that_is_not_done",
        "integration/apply/test_subscription_postgres.py::test_a_target_that_was_made_anew",
        "integration/lake/test_lake_comparison.py::test_a_source_without_an_encoding",
        "browser/test_frozen.py::test_a_connection_whose_service_is_gone",
        "browser/test_frozen.py::test_charts_that_do_not_come",
        (
            "fault/test_moved_state.py"
            "::test_what_comes_after_a_moved_state_is_decoded_as_the_server_does"
        ),
        (
            "integration/apply/test_schema_changes.py::"
            "test_a_pause_of_a_table_that_lacks_what_came_since_its_copy"
        ),
        "integration/catalog/test_bootstrap.py::test_raw_without_full_page_writes",
        "integration/walsender/test_create_subscription.py::test_killed_before_a_drop_is_answered",
    },
    "a server and a service, whose backend is stopped; the first tier has in "
    "unit/walsender/test_printing that a source which hangs holds up nobody": {
        "integration/walsender/test_session_state.py::test_a_session_that_hangs_and_a_stream",
    },
    "Azure's emulator, 360 MB of packages; the first tier has what a store does and refuses, of "
    "S3, in unit/lake/test_storage": {
        "integration/lake/test_object_store.py::test_a_lake_in_a_container_of_azure",
        "unit/lake/test_storage.py::test_a_wrong_key_is_told",
    },
    "S3's jars, a quarter of a gigabyte; the first tier has directories in the same file, and "
    "buckets in unit/lake/test_storage": {
        "browser/test_check_the_lake.py::test_a_bucket_that_can_not_be_reached",
        "browser/test_check_the_lake.py::test_a_bucket_that_hangs",
    },
    "a minute of waiting until what is wrong is said; the first tier has each sign on stages, and "
    "alerts beside a real service in test_alerts": {
        "integration/apply/test_signs_agree.py::test_all_places_say_the_same_of_each_state",
    },
    "many runs of Spark; the first tier has the rest of lake/test_iceberg_rest, and what its "
    "commits are made of in lake/test_iceberg": {
        "integration/lake/test_iceberg_rest.py::test_killed_around_the_commit",
        "integration/lake/test_iceberg_rest.py::test_several_commits_of_a_table",
    },
    "another server or a Spark of its own, or a minute; the first tier has what they stand on: "
    "lake/test_catalogs (Glue, and a catalog that is away), the first test of "
    "lake/test_own_pace, test_lists, and walsender/test_create_subscription": {
        "browser/test_lists.py::test_nothing_jumps_in_a_minute",
        "integration/lake/test_catalogs.py::test_a_hive_metastore",
        "integration/lake/test_own_pace.py::test_no_table_waits_for_another",
        "integration/lake/test_spark_cluster.py::test_two_workers_of_which_one_is_killed",
        "integration/walsender/test_pg_createsubscriber.py::test_through_the_port",
        "integration/walsender/test_pg_createsubscriber.py::test_made_at_the_primary_then_moved",
    },
    "many runs of Spark; the first tier has unit/lake/test_merge_by_position, "
    "unit/lake/test_iceberg_by_position, unit/lake/test_special_changes, "
    "unit/lake/test_direct_merge_rows, unit/lake/test_refused_values, unit/lake/test_poison, "
    "unit/lake/test_plain_appends, lake/test_materialize, "
    "lake/test_crash and what lake/test_schema_evolution sets aside": {
        "integration/lake/test_materialize.py::test_a_paused_table_waits_and_loses_nothing",
        "integration/lake/test_materialize.py::test_unchanged_toast_values_and_truncate",
        "integration/lake/test_ddl.py::test_fast_defaults",
        "integration/lake/test_direct_merge.py::test_a_batch_without_effect",
        "integration/lake/test_initial_load.py::test_one_tables_values_stop_no_other",
        "integration/lake/test_initial_load.py::test_files_are_what_spark_would_write",
        "integration/lake/test_job.py::test_a_small_bound_makes_many_batches",
        "integration/lake/test_job.py::test_changes_that_come_again_change_nothing",
        "integration/lake/test_maintenance.py::test_plain_parquet_keeps_its_history",
        "integration/lake/test_many_tables.py::test_small_parts_beside_large_ones",
        (
            "integration/lake/test_materialize.py::"
            "test_a_value_that_the_plugin_refuses_stops_its_table_alone"
        ),
        "integration/lake/test_position_job.py::test_iceberg_over_a_jobs_life",
        "integration/lake/test_position_job.py::test_partitions",
        "integration/lake/test_position_job.py::test_spark_reads_and_merges_what_is_marked",
        "integration/lake/test_position_job.py::test_what_was_left_between_history_and_current",
        "integration/lake/test_position_merge_in_spark.py::test_spark_reads_and_writes",
    },
    "runs of Spark once more; the first tier makes such tables and follows them by "
    "lake/test_partition_root, lake/test_masks and lake/test_soft_deletes": {
        "integration/lake/test_masks.py::test_a_difference_in_a_masked_column_is_found",
        "integration/lake/test_masks.py::test_a_table_that_is_set_aside_keeps_what_is_masked",
        "integration/lake/test_masks.py::test_masks_of_a_table_that_is_there",
        "integration/lake/test_partition_root.py::test_a_table_with_rows_is_attached",
        ("integration/lake/test_partition_root.py::test_one_is_attached_while_the_table_is_loaded"),
        "integration/lake/test_partition_root.py::test_partitions_that_tell_rows_otherwise",
        "integration/lake/test_partition_root.py::test_rows_move_and_partitions_come_and_go",
        "integration/lake/test_soft_deletes.py::test_a_table_that_is_there_gets_them",
        "integration/lake/test_soft_deletes.py::test_what_has_no_key_keeps_nothing",
    },
    "a dozen tables in two formats, minutes of Spark; the first tier has five of them in the same "
    "file": {
        "integration/lake/test_replica_identity.py::test_a_key_that_is_another_column",
        "integration/lake/test_replica_identity.py::test_each_way_to_it_and_its_way_back",
    },
    "five tables loaded twice by Spark; the first tier has what is decided, in "
    "unit/lake/test_schema_policy": {
        "integration/lake/test_printed_keys.py::test_rows_are_not_sought_under_what_was_printed",
    },
    "every page once more, as pictures; the first tier sees that a change would be seen": {
        "browser/test_pictures.py::test_pages_look_as_they_did",
    },
    "many tables; the first tier copies and follows a few": {
        "integration/apply/test_subscription_postgres.py::test_five_hundred_tables",
        "integration/walsender/test_create_subscription.py::test_five_hundred_tables",
    },
    "kills, again and again; the first tier kills at chosen points: lake/test_crash, "
    "unit/lake/test_merge_by_position, fault/test_serve_killed, "
    "receiver/test_walreceiver, "
    "walsender/test_create_subscription and walsender/test_pgjdbc": {
        "fault/test_carried_killed.py::test_open_transactions_survive",
        "integration/apply/test_in_progress.py::test_killed_in_the_middle",
        "integration/apply/test_in_progress.py::test_prepared_already_when_it_comes_again",
        "integration/apply/test_subscription_postgres.py::test_kills_under_load",
        "fault/test_killed_in_the_middle.py::test_prepared_and_streamed_over_kills",
        "fault/test_lake_killed.py::test_killed_in_merges",
        "fault/test_lake_killed.py::test_the_command_and_its_jvm",
        "fault/test_lake_killed.py::test_the_three_that_keep_it",
        "fault/test_serve_killed.py::test_no_committed_change_is_lost",
        "unit/lake/test_position_merge_beside_others.py::test_killed_at_any_instant",
        "integration/lake/test_ddl.py::test_killed_after_the_rewrite",
        "integration/lake/test_iceberg.py::test_killed_between_commits",
        "integration/lake/test_initial_load.py::test_failures",
        "integration/lake/test_initial_load.py::test_killed",
        "integration/lake/test_maintenance.py::test_what_is_set_aside",
        "integration/walsender/test_create_subscription.py::test_killed",
        "integration/walsender/test_table_sync_slots.py::test_a_service_that_dies_first",
        "integration/walsender/test_debezium.py::test_over_kills",
        # A promotion: receiver/test_walreceiver::test_follows_a_promotion, without clients.
        "integration/walsender/test_failover.py::test_a_standby_takes_over",
    },
    "one trouble of a target after the other, each seconds until its program is started again; "
    "integration/apply/test_target_remedies has what each is called": {
        f"integration/apply/test_troubled_targets.py::{name}"
        for name in (
            "test_out_of_reach",
            "test_read_only",
            "test_a_standby_that_is_promoted",
            "test_a_table_that_is_missing",
            "test_a_column_that_is_missing",
            "test_a_type_that_does_not_take_a_value",
            "test_a_row_in_the_way",
            "test_a_full_disk",
            "test_a_right_that_is_taken_away",
            "test_a_deadlock_is_tried_again",
            "test_a_serialization_failure_is_tried_again",
        )
    },
    "subscriptions more, each with a program to start; the first tier has the others of the file": {
        "integration/apply/test_checklist_more.py::test_005_encodings",
        "integration/apply/test_checklist_more.py::test_010_two_subscriptions_of_one_table",
        (
            "integration/apply/test_checklist_more.py"
            "::test_026_029_an_error_disables_counts_and_is_skipped"
        ),
        "integration/apply/test_checklist_more.py::test_030_origins_are_left_out_on_every_major",
        "integration/apply/test_modest_role.py::test_rows_arrive",
        (
            "integration/apply/test_merged_columns.py"
            "::test_in_a_transaction_that_is_applied_in_progress"
        ),
    },
    "random, by seed; the first tier has the same comparisons with what is written down": {
        "integration/apply/test_random_workload.py::test_between_majors",
        "integration/apply/test_random_workload.py::test_both_sides_write_and_agree",
        "integration/apply/test_random_workload.py::test_conflicts_and_kills",
        "integration/apply/test_random_workload.py::test_equal_at_the_end_of_many",
        "integration/lake/test_random_changes.py::test_loads_in_between",
        "integration/lake/test_random_changes.py::test_random_changes",
        "integration/test_certify_wire.py::test_more_seeds_are_equal",
        "oracle/test_random_seeds.py::test_seeds_equal_the_server",
        "oracle/test_replay.py::test_random_seeds",
    },
    "majors between, and large or rare amounts": {
        "integration/catalog/test_bootstrap.py::test_other_majors_under_load",
        "integration/test_certify_wire.py::test_another_cluster_is_refused",
        "integration/test_decode.py::test_backups_under_load",
        "oracle/test_decoder.py::test_equals_the_server_on_other_majors",
        "oracle/test_large_values.py::test_values_of_200_mb",
        "oracle/test_replay.py::test_xids_wrap_around",
    },
    "of a bucket the first tier has unit/lake/test_storage and unit/lake/test_iceberg_objects, on "
    "the same S3 server; these are Spark's own access to it, minutes each": {
        "integration/lake/test_object_store.py::test_a_job_at_work_in_a_bucket",
        "integration/lake/test_object_store.py::test_a_lake_in_a_bucket",
        "integration/lake/test_object_store.py::test_a_source_and_its_lake_in_a_bucket",
        "integration/lake/test_object_store.py::test_an_iceberg_lake_in_a_bucket",
        (
            "integration/lake/test_object_store.py::"
            "test_what_was_decided_of_a_wish_may_be_gone_when_it_is_read"
        ),
    },
    "more of what its file's other tests have": {
        "integration/walsender/test_client_encoding.py::test_no_other_character_has_an_equivalent",
        "integration/lake/test_ddl.py::test_copies_of_rows_get_the_default",
        "integration/lake/test_direct_merge.py::test_both_merge_into_one_table",
        "integration/lake/test_direct_merge.py::test_tables_that_ask_for_more_are_merged_by_spark",
        "integration/lake/test_iceberg.py::test_a_catalog_by_name",
        "integration/lake/test_iceberg.py::test_a_part_of_the_old_key",
        "integration/lake/test_iceberg.py::test_columns_by_id",
        "integration/lake/test_iceberg.py::test_maintenance",
        "integration/lake/test_iceberg.py::test_only_touched_files_are_written_anew",
        "integration/lake/test_iceberg_rest.py::test_loaded_beside_commits_of_all",
        "integration/lake/test_initial_load.py::test_added_later_and_loaded_again",
        "integration/lake/test_initial_load.py::test_columns_change_after_the_load",
        "integration/lake/test_initial_load.py::test_ddl_goes_first",
        "integration/lake/test_initial_load.py::test_loaded_anew_with_other_partitions",
        "integration/lake/test_job.py::test_columns_come_and_go",
        "integration/lake/test_layout.py::test_maintenance_clusters",
        "integration/lake/test_layout.py::test_rows_move_between_partitions",
        "integration/lake/test_layout.py::test_the_column_of_a_partition_goes",
        "integration/lake/test_maintenance.py::test_rounds",
        "integration/lake/test_materialize.py::test_no_name_of_a_column_is_one_of_the_lakes_own",
        "integration/lake/test_materialize.py::test_one_tables_poison_stops_no_other",
        "integration/lake/test_read.py::test_a_table_that_was_being_loaded_is_left_out",
        "integration/lake/test_read.py::test_parquet_forgets",
        "integration/lake/test_read.py::test_points_are_bounded",
        "integration/lake/test_resync.py::test_what_is_in_the_way_is_told",
        "integration/lake/test_schema_evolution.py::test_ddl_of_a_source",
        "integration/lake/test_schema_evolution.py::test_wider_and_created_again",
        "integration/test_tls.py::test_an_expired_certificate_is_said",
        "integration/walsender/test_create_subscription.py::test_a_slot_that_can_not_be_made_anew",
        "integration/walsender/test_create_subscription.py::test_options",
        "integration/walsender/test_create_subscription.py::test_while_a_table_is_copied",
        "integration/walsender/test_create_subscription.py::test_while_the_source_is_down",
        "integration/apply/test_schema_changes.py::test_a_schema_that_is_renamed",
        (
            "integration/apply/test_schema_changes.py"
            "::test_a_table_that_a_refresh_adds_is_copied_beside_the_others"
        ),
        "integration/apply/test_schema_changes.py::test_names_and_values_that_need_quotes",
        (
            "integration/apply/test_schema_changes.py"
            "::test_of_a_partitioned_table_with_a_partition_that_lacks_what_came_since_its_copy"
        ),
    },
    "the first tier goes the same way elsewhere: both directions of a "
    "move are in apply/test_subscription_postgres; a subscription keeps a lake in "
    "browser/test_wizards, one is verified in lake/test_iceberg, by a program in "
    "unit/subscriber/test_verifier, and compared in "
    "lake/test_lake_comparison, names are odd in unit/lake/test_plain_appends; the provider is in "
    "terraform/test_terraform_protocol, replays in oracle/test_replay, a newcomer's commands in "
    "test_quickstart, the demo at a terminal in test_demo, a subscription moves in "
    "walsender/test_create_subscription_page": {
        "integration/apply/test_move_page.py::test_there_and_back_under_load",
        "integration/lake/test_many_slots.py::test_two_and_one_that_is_not_there_yet",
        "integration/lake/test_odd_names.py::test_names_with_dots_and_quotes",
        "integration/lake/test_query_how_to.py::test_with_duckdb",
        "integration/lake/test_query_how_to.py::test_with_polars",
        "integration/lake/test_query_how_to.py::test_with_spark",
        "integration/lake/test_replay_job.py::test_a_replay_equals_the_stream",
        "integration/lake/test_spark_connect.py::test_batch_and_streaming",
        (
            "integration/lake/test_subscription_lake.py"
            "::test_a_lake_is_kept_through_kills_and_mistakes"
        ),
        "integration/lake/test_subscription_lake.py::test_formats_have_their_layouts",
        (
            "integration/lake/test_subscription_lake.py::"
            "test_a_lake_is_compared_and_mended_by_the_service"
        ),
        "integration/lake/test_verify.py::test_one_that_is_killed_leaves_nothing_for_ever",
        "integration/lake/test_verify.py::test_source_and_lake_while_both_go_on",
        "integration/lake/test_verify.py::test_what_differs_is_found",
        "integration/terraform/test_terraform_alerts.py::test_with_the_command_line",
        "integration/terraform/test_terraform_cli.py::test_from_nothing_to_nothing",
        "integration/terraform/test_terraform_lake.py::test_the_example_fills_a_lake",
        "integration/test_demo.py::test_an_interrupt_in_between_leaves_nothing",
        "integration/test_demo.py::test_everything_agrees",
        "integration/test_demo.py::test_without_a_terminal_it_stays_up_when_told",
        "integration/walsender/test_create_subscription.py::test_moved_from_the_primary",
    },
    "runs of Spark, up to two minutes each; the first tier loads a table in lake/test_resync and "
    "lake/test_iceberg, reads points in lake/test_own_pace, and follows DDL in "
    "lake/test_ddl_source and lake/test_schema_evolution": {
        "integration/lake/test_ddl.py::test_renamed_dropped_and_added_again",
        "integration/lake/test_initial_load.py::test_loaded_while_written_to",
        "integration/lake/test_read.py::test_tables_of_one_lsn",
    },
    "a minute of tables that come and go; the first tier has what a service keeps in "
    "oracle/test_memory": {
        "oracle/test_memory_of_ddl.py::test_tables_that_come_and_go_leave_nothing",
    },
    "the benchmark is a program for developers": {
        "integration/lake/test_lake_benchmark.py::test_lake",
        "integration/lake/test_lake_benchmark.py::test_load",
        "integration/lake/test_lake_benchmark.py::test_many_tables",
        "integration/test_benchmark.py::test_ranges",
        "integration/test_benchmark.py::test_scenarios",
        "integration/test_benchmark.py::test_starts",
    },
}


@pytest.fixture
def found(request: pytest.FixtureRequest) -> dict[str, bool]:
    """Every test that pytest collected, and whether it is long."""
    return {
        nodeid.removeprefix("tests/"): long
        for nodeid, long in request.config.stash[collected].items()
        if nodeid.startswith("tests/")
    }


def is_whole(found: dict[str, bool]) -> bool:
    files = {path.relative_to(_TESTS).as_posix() for path in _TESTS.rglob("test_*.py")}
    return files == {nodeid.partition("::")[0] for nodeid in found}


def test_nothing_leaves_the_first_tier_unseen(found: dict[str, bool]) -> None:
    tests: defaultdict[str, list[bool]] = defaultdict(list)
    for nodeid, long in found.items():
        tests[nodeid.partition("[")[0]].append(long)
    alone = {name for name, params in tests.items() if all(params)}
    reviewed = {name for names in LONG_ALONE.values() for name in names}
    assert alone <= reviewed, "say in LONG_ALONE why the first tier can do without"
    # Of what was not collected, nothing can be said.
    assert {name for name in reviewed if name in tests or is_whole(found)} <= alone
    assert len(reviewed) == sum(map(len, LONG_ALONE.values()))


def test_a_week_has_all_of_the_long_tier(found: dict[str, bool]) -> None:
    names = [f"tests/{nodeid}" for nodeid, long in found.items() if long]
    # Such as come when only this file is run.
    names += [f"tests/integration/test_x.py::test_y[{i}]" for i in range(700)]
    by_share = Counter(share_of(name, DAYS) for name in names)
    assert set(by_share) == set(range(1, DAYS + 1))
    assert min(by_share.values()) > len(names) / DAYS / 3
    week = {parse_share("today", 86_400 * day + 3600) for day in range(20_780, 20_780 + DAYS)}
    assert week == {(number, DAYS) for number in by_share}
    # The day's, from its first second to its last.
    assert len({parse_share("today", 86_400 * 20_780 + s) for s in (0, 0.5, 86_399.9)}) == 1


def test_comparisons_stay_with_their_module() -> None:
    many = [f"tests/oracle/test_decoder.py::test_x[a{i}-pg14]" for i in range(50)]
    assert len({share_of(name, DAYS) for name in many}) == 1


@pytest.mark.parametrize("text", ["", "0/7", "8/7", "3", "3/0", "3/7/1", "yesterday", "-1/7"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_share(text)


def test_the_newest_major_is_first() -> None:
    *older, newest = majors_by_tier([18, 14, 15])
    assert newest == 18
    assert [(one.values, [mark.name for mark in one.marks]) for one in older] == [
        ((14,), ["long"]),
        ((15,), ["long"]),
    ]


def test_a_share_and_the_first_tier_part_the_suite() -> None:
    def item(name: str, *, long: bool) -> pytest.Item:
        marker = pytest.mark.long.mark if long else None
        stand_in = SimpleNamespace(nodeid=name, get_closest_marker=lambda _: marker)
        return cast("pytest.Item", stand_in)

    items = [item(f"tests/test_a.py::test_b[{i}]", long=i % 2 == 1) for i in range(100)]
    first = items[::2]
    seen: list[pytest.Item] = []
    for number in range(1, DAYS + 1):
        kept, left = of_share(items, (number, DAYS))
        assert sorted(map(id, kept + left)) == sorted(map(id, items))
        assert [one for one in kept if one in first] == first
        seen += [one for one in kept if one not in first]
    assert sorted(map(id, seen)) == sorted(map(id, items[1::2]))


def pytest_says(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *arguments],
        cwd=_TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_pytest_takes_the_share() -> None:
    file = "tests/unit/test_tiers.py"
    code, said = pytest_says("--share", "9/7", file)
    assert code == pytest.ExitCode.USAGE_ERROR, said
    assert "'9/7' is no share; say 3/7 for the third of seven, or today" in said
    file = "tests/fuzz/test_walker_fuzz.py"
    names = [f"{file}::test_damage[{major}]" for major in (14, 15, 16, 17)]
    number = share_of(names[0], DAYS)
    mine = [name for name in names if share_of(name, DAYS) == number]
    assert mine != names, "choose another file"
    code, said = pytest_says("-m", "long", "--share", f"{number}/{DAYS}", file)
    assert code == pytest.ExitCode.OK, said
    assert [line for line in said.splitlines() if line.startswith(file)] == mine

//! Faults that people who run gateways have met, by kind and number, and the tests that show them absent here.

use std::collections::HashSet;

use crate::gateway::repository;

/// Kind, number, and the tests: `file::name` in `tests/it`, or a path below `src`.
type Case = (&'static str, &'static str, &'static [&'static str]);

const CASES: [Case; 34] = [
    (
        "HTTP sessions",
        "C001",
        &[
            "upstream_sessions::c001_a_lost_upstream_session_is_reopened_once_and_unseen",
            "cases_http::c001_a_lost_session_is_opened_anew_step_by_step_and_each_call_runs_once",
        ],
    ),
    (
        "HTTP sessions",
        "C003",
        &[
            "upstream_sessions::c003_only_what_speaks_of_the_session_reopens_it",
            "cases_http::c003_every_kind_of_request_recovers",
        ],
    ),
    (
        "HTTP sessions",
        "C005",
        &["cases_http::c005_an_expired_session_is_told_before_any_limit_and_takes_no_room"],
    ),
    (
        "HTTP sessions",
        "C007",
        &[
            "sessions::c007_what_is_refused_allocates_nothing",
            "cases_http::c007_hundreds_of_probes_of_each_kind_leave_nothing",
        ],
    ),
    (
        "SSE framing",
        "C010",
        &[
            "hostile::c010_characters_cut_anywhere_arrive_whole",
            "stdio::c010_characters_cut_anywhere_arrive_whole",
            "stdio::c010_invalid_utf8_fails_that_call_and_no_other",
            "cases_http::c010_invalid_utf8_on_a_stream_fails_that_call_and_no_other",
        ],
    ),
    (
        "SSE framing",
        "C012",
        &[
            "hostile::c012_an_initialize_stream_may_begin_with_an_empty_event",
            "cases_http::c012_the_stream_of_a_call_may_begin_with_an_empty_event",
        ],
    ),
    (
        "SSE framing",
        "C014",
        &[
            "sessions::an_idle_stream_gets_comments_between_events",
            "legacy_sse::an_idle_stream_gets_comments_and_one_without_initialize_ends",
            "cases_http::c014_no_comment_comes_between_the_lines_of_an_event",
        ],
    ),
    (
        "SSE resume and disconnect",
        "C016",
        &["resume::c016_only_the_events_of_that_stream_are_replayed"],
    ),
    (
        "SSE resume and disconnect",
        "C018",
        &["resume::c018_a_standing_stream_is_resumed_with_what_came_meanwhile_and_nothing_twice"],
    ),
    (
        "SSE resume and disconnect",
        "C020",
        &[
            "resume::c020_an_id_that_is_not_kept_any_more_gives_live_events_at_once",
            "cases_http::c020_after_long_absence_a_stream_goes_on_without_anything_old_or_twice",
            "cases_http::c020_without_sessions_nothing_is_resumed",
        ],
    ),
    (
        "legacy HTTP+SSE",
        "C023",
        &["cases_older::c023_the_endpoint_is_found_by_its_name_wherever_it_stands"],
    ),
    ("legacy HTTP+SSE", "C025", &["cases_older::c025_fields_of_an_event_may_come_in_any_order"]),
    (
        "progress and cancellation",
        "C045",
        &[
            "calls::c045_progress_reaches_its_caller_alone_with_its_own_token",
            "cases_modern::c045_one_token_of_clients_of_both_eras_is_told_apart",
        ],
    ),
    ("progress and cancellation", "C047", &["calls::c047_progress_after_the_answer_is_dropped"]),
    (
        "notifications",
        "C049",
        &[
            "aggregation::c049_changes_reach_everyone_and_updates_only_subscribers",
            "cases_route::c049_a_tool_that_changes_everything_is_told_to_everyone_and_lists_are_fresh",
        ],
    ),
    (
        "server to client",
        "C052",
        &[
            "calls::c052_questions_reach_the_client_whose_call_it_is",
            "calls::c052_a_child_of_its_own_may_ask_and_a_shared_one_never_crosses",
            "modern_flow::c052_questions_reach_the_call_that_caused_them",
            "src/upstream/http/tests/beside.rs::a_question_is_refused_where_nobody_knows_whose_it_is",
        ],
    ),
    (
        "lists and pagination",
        "C054",
        &[
            "aggregation::c054_a_long_list_comes_in_pages_of_the_gateways_own",
            "cases_route::c054_a_tool_that_comes_between_two_pages_makes_no_duplicate",
        ],
    ),
    (
        "lists and pagination",
        "C056",
        &["aggregation::c056_all_pages_of_an_upstream_are_drained_with_its_cursors_unchanged"],
    ),
    (
        "names",
        "C058",
        &[
            "aggregation::c058_uris_pass_unchanged_and_lead_to_their_owner",
            "cases_route::c058_an_address_is_the_same_wherever_it_is_shown_and_leads_to_one_owner",
            "cases_route::c058_the_page_of_a_tool_leads_to_the_upstream_of_the_tool",
        ],
    ),
    (
        "names",
        "C060",
        &[
            "aggregation::c060_a_clash_ends_the_same_way_whoever_answers_first",
            "aggregation::c060_two_tools_of_one_name_in_one_upstream_are_listed_once",
            "cases_route::c060_the_check_warns_of_names_that_can_meet",
        ],
    ),
    (
        "capabilities and version",
        "C061",
        &[
            "aggregation::c061_an_error_on_one_kind_of_list_empties_that_kind_only",
            "cases_route::c061_a_kind_of_list_that_is_refused_is_not_asked_for_at_every_turn",
        ],
    ),
    (
        "capabilities and version",
        "C063",
        &[
            "aggregation::c063_capabilities_are_the_union_of_what_can_be_routed",
            "cases_route::c063_what_an_upstream_refuses_is_told_and_not_made_an_empty_success",
        ],
    ),
    (
        "capabilities and version",
        "C065",
        &[
            "sessions::c065_the_version_header_is_checked_after_initialize_only",
            "modern_edge::c065_a_version_that_is_not_served_is_refused_with_those_that_are",
            "cases_modern::c065_an_unknown_revision_is_refused_with_those_that_are_served",
        ],
    ),
    (
        "2026-07-28 bridging",
        "C067",
        &[
            "modern_edge::c067_headers_towards_an_upstream_are_made_from_what_it_gets",
            "cases_modern::c067_headers_are_made_anew_from_what_goes_out",
        ],
    ),
    (
        "2026-07-28 bridging",
        "C069",
        &[
            "modern_flow::c069_hanging_up_cancels_within_half_a_second_whoever_is_upstream",
            "cases_modern::c069_a_cancelled_call_ends_upstream_by_the_means_of_its_era_over_http",
            "cases_modern::c069_a_cancelled_call_ends_at_a_child_of_either_era",
        ],
    ),
    (
        "HTTP header rules",
        "C071, C073, C075",
        &[
            "limits::c071_the_media_type_of_a_post_is_checked",
            "src/upstream/http/tests/answers.rs::odd_spellings_of_media_types_are_read",
            "calls::the_answer_suits_what_the_client_accepts",
            "limits::c075_origin_is_always_checked_and_host_on_loopback",
            "calls::the_upstream_sees_its_own_host_and_nothing_of_the_clients_headers",
        ],
    ),
    (
        "HTTP plumbing",
        "C083, C085, C087, C089, C091",
        &[
            "hostile::c083_an_upstream_that_refuses_connections_is_unavailable_at_once",
            "cases_bytes::c083_a_refusing_status_is_told_in_the_error_and_the_next_call_works",
            "hostile::c085_redirects_of_the_same_origin_are_followed_with_the_whole_body",
            "hostile::c085_a_redirect_loop_ends_in_an_error_that_names_no_place",
            "hostile::c087_an_encoding_nobody_asked_for_costs_only_that_upstream",
            "cases_bytes::c087_a_call_that_is_answered_in_an_encoding_nobody_asked_for_names_it",
            "limits::c089_bodies_are_limited_by_length_and_while_they_are_read",
            "encodings::compressed_bodies_are_inflated_within_the_limit_of_their_content",
            "cases_bytes::c091_a_call_that_is_answered_by_no_answer_gets_one_error",
        ],
    ),
    (
        "network and TLS",
        "C133, C135",
        &[
            "tls::c133_upstreams_are_believed_by_authority_name_and_time_and_asked_with_a_certificate",
            "tls::wrong_files_are_found_by_check_with_line_and_key",
            "unix::c135_a_socket_is_served_with_its_mode_and_removed_and_what_is_alive_is_not_taken_over",
            "unix::c135_a_socket_that_nobody_serves_is_replaced_and_anything_else_is_left_alone",
            "unix::event_streams_and_sessions_work_over_a_socket",
            "unix::upstreams_are_dialled_over_sockets_with_a_path_behind",
        ],
    ),
    (
        "JSON fidelity",
        "C101, C103, C105",
        &[
            "calls::c101_arguments_and_results_pass_to_the_byte",
            "cases_bytes::c101_numbers_pass_in_every_list_and_between_the_eras",
            "calls::c103_results_pass_whole_whatever_they_hold",
            "cases_bytes::c103_every_kind_of_content_passes_whole_and_so_do_errors",
            "calls::c105_a_body_that_can_be_read_in_two_ways_is_refused",
            "cases_bytes::c105_one_reading_decides_in_either_era_and_no_depth_does_harm",
        ],
    ),
    (
        "schemas",
        "C107",
        &[
            "aggregation::tools_are_chosen_renamed_and_passed_on_as_they_are",
            "cases_bytes::c107_schemas_pass_untouched_however_large_and_recursive",
        ],
    ),
    (
        "WebSocket",
        "C114",
        &[
            "ws_mcp::c114_the_subprotocol_is_echoed_only_if_it_was_offered",
            "ws_frames::what_is_offered_beside_is_taken_or_left",
            "ws_frames::an_upgrade_must_be_asked_for_rightly",
        ],
    ),
    (
        "WebSocket",
        "C116",
        &["ws_frames::c116_a_silent_client_is_asked_and_one_that_does_not_answer_is_dropped"],
    ),
    (
        "shutdown",
        "C124",
        &[
            "drain::c124_calls_in_flight_finish_and_nothing_is_left",
            "ws::c124_a_drain_lets_calls_finish_takes_no_more_and_says_why_it_closes",
        ],
    ),
    (
        "memory and slow readers",
        "C125",
        &[
            "limits::c125_a_client_that_does_not_read_neither_swells_memory_nor_slows_others",
            "ws_frames::c125_a_client_that_does_not_read_is_bounded_in_bytes_and_closed_with_the_reason",
            "ws_mcp::c125_what_belongs_to_no_request_ends_a_client_that_does_not_read_and_nobody_else",
        ],
    ),
];

/// The text of the file of a test, and its name.
fn place(test: &str) -> (String, &str) {
    let (file, name) = test.rsplit_once("::").expect("a test has a place");
    let path = match file.strip_suffix(".rs") {
        Some(_) => file.to_owned(),
        None => format!("tests/it/{file}.rs"),
    };
    let text = std::fs::read_to_string(repository(&path));
    (text.unwrap_or_else(|error| panic!("{path}: {error}")), name)
}

#[test]
fn every_case_has_tests_that_are_there() {
    let mut seen = HashSet::new();
    for (kind, number, tests) in CASES {
        assert!(!tests.is_empty(), "{kind}: {number} has no test");
        for test in tests {
            let (text, name) = place(test);
            let is_there = text.contains(&format!("fn {name}(")) && text.contains("#[tokio::test");
            assert!(is_there, "{kind}: {number}: there is no test {test}");
            assert!(seen.insert(test), "{test} stands there twice");
        }
    }
}

//! Failures, silent peers and blocked streams under random schedules.

use conformance::sim::directed;

#[test]
fn failed_request_holds_its_stream_until_it_is_handled_and_queue_pairs_recover() {
    gds_sim::seeds(200, directed::failure);
}

#[test]
fn silent_peer_is_a_typed_error_within_the_time_limit() {
    gds_sim::seeds(200, directed::silence);
}

#[test]
fn completion_entries_of_a_held_stream_are_not_reused() {
    gds_sim::seeds(200, directed::held_stream);
}

#[test]
fn wait_for_a_held_send_is_not_omitted() {
    gds_sim::seeds(200, directed::held_sends);
}

/// Every policy of consistency in turn, with payload that arrives after its completion.
#[test]
fn payload_in_gpu_memory_is_visible_after_its_completion() {
    gds_sim::seeds(200, directed::consistency);
}

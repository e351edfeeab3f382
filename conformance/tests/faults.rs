//! Failures, silent peers and blocked streams under random schedules.

use conformance::sim::directed;

#[test]
fn a_failure_holds_its_stream_until_it_is_looked_after_and_the_queue_pairs_recover() {
    gds_sim::seeds(200, directed::failure);
}

#[test]
fn a_silent_peer_is_a_typed_error_within_the_time_limit() {
    gds_sim::seeds(200, directed::silence);
}

#[test]
fn a_held_stream_is_never_overtaken() {
    gds_sim::seeds(200, directed::held_stream);
}

#[test]
fn a_wait_for_a_held_send_is_never_omitted() {
    gds_sim::seeds(200, directed::held_sends);
}

/// Every policy of consistency in turn, with payload that arrives after its completion.
#[test]
fn payload_in_the_gpu_is_seen_behind_its_completion() {
    gds_sim::seeds(200, directed::consistency);
}

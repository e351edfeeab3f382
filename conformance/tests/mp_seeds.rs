//! Messages under random schedules: each seed draws a program, the settings of the contexts, and
//! the order in which machines step.

use conformance::sim::mp;

#[test]
fn stencil_equals_the_serial_run_under_every_schedule() {
    gds_sim::seeds(160, mp::halo::run);
}

#[test]
fn every_message_arrives_for_any_program_and_schedule() {
    gds_sim::seeds(200, mp::messages::run);
}

/// The word of a message becomes visible after its payload, even if WRITEs are reordered.
#[test]
fn stencil_equals_the_serial_run_with_writes_out_of_order() {
    gds_sim::seeds(100, mp::halo::run_in_disorder);
}

#[test]
fn stencil_of_26_neighbours_equals_the_serial_run_under_every_schedule() {
    gds_sim::seeds(200, mp::halo3d::run);
}

#[test]
fn stencil_of_26_neighbours_equals_the_serial_run_with_writes_out_of_order() {
    gds_sim::seeds(100, mp::halo3d::run_in_disorder);
}

#[test]
fn particles_equal_the_serial_run_under_every_schedule() {
    gds_sim::seeds(200, mp::particles::run);
}

#[test]
fn particles_equal_the_serial_run_with_writes_out_of_order() {
    gds_sim::seeds(60, mp::particles::run_in_disorder);
}

#[test]
fn every_message_arrives_with_writes_out_of_order() {
    gds_sim::seeds(100, mp::messages::run_in_disorder);
}

#[test]
fn ready_words_of_a_slot_keep_their_order_across_queue_pairs() {
    gds_sim::seeds(24, mp::late::run);
}

#[test]
fn windows_have_the_bytes_of_the_program_under_every_schedule() {
    gds_sim::seeds(200, mp::windows::run);
}

#[test]
fn windows_have_the_bytes_of_the_program_where_writes_are_placed_out_of_order() {
    gds_sim::seeds(100, mp::windows::run_in_disorder);
}

#[test]
fn neighbours_have_the_data_of_the_serial_run_under_every_schedule() {
    gds_sim::seeds(200, mp::neighbours::run);
}

#[test]
fn neighbours_have_the_data_of_the_serial_run_with_writes_out_of_order() {
    gds_sim::seeds(100, mp::neighbours::run_in_disorder);
}

#[test]
fn collective_calls_have_the_results_of_the_serial_run_under_every_schedule() {
    gds_sim::seeds(200, mp::collectives::run);
}

#[test]
fn collective_calls_have_the_results_of_the_serial_run_where_writes_are_placed_out_of_order() {
    gds_sim::seeds(100, mp::collectives::run_in_disorder);
}

#[test]
fn seed_replays_exactly() {
    for seed in [1, 2, 3, 4] {
        for run in [
            mp::halo::run,
            mp::messages::run,
            mp::loss::run,
            mp::halo3d::run,
            mp::halo3d::run_until_a_rank_dies,
            mp::particles::run,
            mp::particles::run_until_a_rank_dies,
            mp::windows::run,
            mp::neighbours::run,
            mp::collectives::run,
        ] {
            let [first, second] = [(); 2].map(|()| run(seed).unwrap());
            assert_eq!(first, second);
        }
    }
}

#[test]
fn messages_progress_while_the_enqueuing_threads_sleep() {
    gds_sim::seeds(8, mp::offload::run);
}

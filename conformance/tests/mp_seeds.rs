//! Messages under random schedules: each seed draws a program, the settings of the contexts, and
//! the order in which machines step.

use conformance::sim::mp::{self, Wire};
use gds_sim::{SimError, SimReport};

type Scenario = fn(u64, Wire) -> Result<SimReport, SimError>;

fn in_order(count: u64, run: Scenario) {
    gds_sim::seeds(count, |seed| run(seed, Wire::InOrder));
}

fn out_of_order(count: u64, run: Scenario) {
    gds_sim::seeds(count, |seed| run(seed, Wire::OutOfOrder));
}

fn by_mapped_memory(count: u64, run: Scenario) {
    gds_sim::seeds(count, |seed| run(seed, Wire::Mapped));
}

#[test]
fn every_message_arrives_by_mapped_memory() {
    by_mapped_memory(200, mp::messages::run);
}

#[test]
fn messages_in_graphs_arrive_at_every_replay() {
    gds_sim::seeds(300, mp::graphs::run);
}

#[test]
fn zero_sm_messages_arrive_whichever_half_is_first() {
    gds_sim::seeds(400, mp::zero_sm::run);
}

#[test]
fn messages_of_a_sender_that_is_ahead_arrive_by_mapped_memory() {
    by_mapped_memory(200, mp::ahead::run);
}

#[test]
fn messages_of_a_sender_that_is_ahead_arrive_with_writes_out_of_order() {
    out_of_order(100, mp::ahead::run);
}

#[test]
fn stencil_equals_the_serial_run_by_mapped_memory() {
    by_mapped_memory(100, mp::halo::run);
}

#[test]
fn particles_equal_the_serial_run_by_mapped_memory() {
    by_mapped_memory(60, mp::particles::run);
}

#[test]
fn stencil_of_26_neighbours_equals_the_serial_run_by_mapped_memory() {
    by_mapped_memory(100, mp::halo3d::run);
}

#[test]
fn windows_have_the_bytes_of_the_program_by_mapped_memory() {
    by_mapped_memory(200, mp::windows::run);
}

#[test]
fn neighbours_have_the_data_of_the_serial_run_by_mapped_memory() {
    by_mapped_memory(200, mp::neighbours::run);
}

#[test]
fn collective_calls_have_the_results_of_the_serial_run_by_mapped_memory() {
    by_mapped_memory(200, mp::collectives::run);
}

#[test]
fn stencil_equals_the_serial_run_under_every_schedule() {
    in_order(160, mp::halo::run);
}

#[test]
fn every_message_arrives_for_any_program_and_schedule() {
    in_order(200, mp::messages::run);
}

/// The word of a message becomes visible after its payload, even if WRITEs are reordered.
#[test]
fn stencil_equals_the_serial_run_with_writes_out_of_order() {
    out_of_order(100, mp::halo::run);
}

#[test]
fn stencil_of_26_neighbours_equals_the_serial_run_under_every_schedule() {
    in_order(200, mp::halo3d::run);
}

#[test]
fn stencil_of_26_neighbours_equals_the_serial_run_with_writes_out_of_order() {
    out_of_order(100, mp::halo3d::run);
}

#[test]
fn particles_equal_the_serial_run_under_every_schedule() {
    in_order(200, mp::particles::run);
}

#[test]
fn particles_equal_the_serial_run_with_writes_out_of_order() {
    out_of_order(60, mp::particles::run);
}

#[test]
fn every_message_arrives_with_writes_out_of_order() {
    out_of_order(100, mp::messages::run);
}

#[test]
fn ready_words_of_a_slot_keep_their_order_across_queue_pairs() {
    gds_sim::seeds(24, mp::late::run);
}

#[test]
fn windows_have_the_bytes_of_the_program_under_every_schedule() {
    in_order(200, mp::windows::run);
}

#[test]
fn windows_have_the_bytes_of_the_program_where_writes_are_placed_out_of_order() {
    out_of_order(100, mp::windows::run);
}

#[test]
fn neighbours_have_the_data_of_the_serial_run_under_every_schedule() {
    in_order(200, mp::neighbours::run);
}

#[test]
fn neighbours_have_the_data_of_the_serial_run_with_writes_out_of_order() {
    out_of_order(100, mp::neighbours::run);
}

#[test]
fn collective_calls_have_the_results_of_the_serial_run_under_every_schedule() {
    in_order(200, mp::collectives::run);
}

#[test]
fn collective_calls_have_the_results_of_the_serial_run_where_writes_are_placed_out_of_order() {
    out_of_order(100, mp::collectives::run);
}

#[test]
fn seed_replays_exactly() {
    let replay = |run: &dyn Fn(u64) -> Result<SimReport, SimError>| {
        for seed in [1, 2, 3, 4] {
            let [first, second] = [(); 2].map(|()| run(seed).unwrap());
            assert_eq!(first, second);
        }
    };
    let scenarios: [Scenario; 7] = [
        mp::halo::run,
        mp::messages::run,
        mp::halo3d::run,
        mp::particles::run,
        mp::windows::run,
        mp::neighbours::run,
        mp::collectives::run,
    ];
    for run in scenarios {
        replay(&|seed| run(seed, Wire::InOrder));
    }
    replay(&|seed| mp::messages::run(seed, Wire::Mapped));
    replay(&|seed| mp::windows::run(seed, Wire::Mapped));
    replay(&mp::loss::run);
    replay(&mp::halo3d::run_until_a_rank_dies);
    replay(&mp::particles::run_until_a_rank_dies);
}

#[test]
fn messages_progress_while_the_enqueuing_threads_sleep() {
    gds_sim::seeds(8, mp::offload::run);
}

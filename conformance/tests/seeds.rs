//! Random programs under random schedules with weak memory: two hundred seeds, each replayable,
//! and as many of datagrams.

#[test]
fn every_byte_arrives_for_any_program_and_schedule() {
    gds_sim::seeds(200, conformance::sim::exchange::run);
}

#[test]
fn datagrams_arrive_or_are_dropped_under_any_schedule() {
    gds_sim::seeds(200, conformance::sim::directed::datagrams);
}

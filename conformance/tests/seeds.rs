//! Random programs under random schedules with weak memory: two hundred seeds, each replayable.

#[test]
fn every_byte_arrives_whatever_the_program_and_the_schedule() {
    gds_driver::sim::seeds(200, conformance::exchange::run);
}

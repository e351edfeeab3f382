//! Random commands, ioctls, memory and work requests, against a model of the existing objects: the
//! target of the fuzzer with random input. It is the only test in the file because it counts the
//! descriptors of the process.
//!
//! `GDS_SEED` replays a run.
#![allow(dead_code, unreachable_pub, reason = "the fuzzer's target")]

#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/uverbs/mod.rs"]
mod uverbs;
#[path = "rig/mod.rs"]
mod uverbs_rig;

#[test]
fn random_commands_do_no_harm() {
    // A re-registration whose answer could not be written had changed the region.
    let known = fastrand::Rng::with_seed(462962618844108463);
    for mut random in [known, uverbs_rig::random()] {
        for _ in 0..500 {
            let bytes = std::iter::repeat_with(|| random.u8(..)).take(3000);
            uverbs::run(&bytes.collect::<Vec<_>>());
        }
    }
}

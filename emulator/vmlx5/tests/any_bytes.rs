//! Random bytes in entries, records, doorbells and frames that the NIC reads. The hosts of the
//! fuzzer's targets check the effects; here a generator supplies the bytes.
//!
//! `GDS_CASES` sets the number of cases of each test.

mod hostile;
#[path = "../../../fuzz/src/input.rs"]
#[allow(dead_code, reason = "the fuzzer's targets use the rest")]
mod input;
#[path = "../../../fuzz/src/nic.rs"]
#[allow(unreachable_pub, reason = "the fuzzer's target")]
mod nic;
mod rig;

use proptest::prelude::*;

fn cases() -> ProptestConfig {
    let cases = std::env::var("GDS_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases.unwrap_or(256))
    }
}

/// Bytes for many acts; each act decodes its own part.
fn acts() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..1200)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn random_entries_keep_all_rules(bytes in acts()) {
        hostile::wqe::run(&bytes);
    }

    #[test]
    fn random_doorbells_keep_all_rules(bytes in acts()) {
        hostile::doorbell::run(&bytes);
    }

    #[test]
    fn random_frames_keep_all_rules(bytes in acts()) {
        nic::run(&bytes);
    }
}

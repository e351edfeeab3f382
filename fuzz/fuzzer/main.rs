//! The coverage-guided driver of one target, whose name is its last argument, behind
//! `-ignore_remaining_args=1`: see `fuzz/run`.
#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

/// The target that the last argument names.
fn chosen() -> &'static Target {
    let name = std::env::args().next_back().unwrap_or_default();
    fuzz::find(&name).unwrap_or_else(|| panic!("no target {name:?}"))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.get_or_init(chosen).run)(data));

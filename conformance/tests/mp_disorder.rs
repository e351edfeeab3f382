//! The matrix of messages where NICs place WRITEs out of order: each setting once on the software
//! GPU, and every pair of settings with `--pairwise`. It takes the options of `conformance mp`.

fn main() {
    conformance::hardware::play_role();
    // SAFETY: no other thread has been started yet.
    unsafe {
        std::env::set_var("GDS_PROVIDER", "emulated");
        std::env::set_var("GDS_FAULTS", "ooo=0.5,seed=57");
        std::env::set_var("MP_PATH", "nic");
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments
        .iter()
        .filter(|word| *word != "--pairwise")
        .cloned();
    let few = (rest.clone().count() == arguments.len()).then(|| "--few".to_owned());
    let words = ["--gpu", "soft"].map(str::to_owned);
    conformance::hardware::mp::command(words.into_iter().chain(few).chain(rest))
}

//! The matrix of messages: a pairwise cover of it, on every GPU runtime of this machine.
//! `./build.sh test --long` runs the whole matrix. It takes the options of `conformance mp`.

fn main() {
    conformance::hardware::play_role();
    conformance::hardware::mp::command(std::env::args().skip(1))
}

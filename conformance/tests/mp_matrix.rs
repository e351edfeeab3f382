//! The matrix of messages: a pairwise cover of it, on every GPU runtime that is here. The whole
//! matrix is run by `./build.sh test --long`. It takes what `conformance mp` does.

fn main() {
    conformance::hardware::play_role();
    conformance::hardware::mp::command(std::env::args().skip(1))
}

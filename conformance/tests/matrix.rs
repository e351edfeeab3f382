//! The matrix of what can be switched on the soft GPU, over the linked-in virtual NIC. It takes what
//! `conformance matrix` does.

fn main() {
    conformance::hardware::play_role();
    conformance::hardware::matrix::command(std::env::args().skip(1))
}

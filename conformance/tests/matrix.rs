//! The matrix of the soft GPU's capabilities, over the linked-in virtual NIC. It takes the options
//! of `conformance matrix`.

fn main() {
    conformance::hardware::play_role();
    conformance::hardware::matrix::command(std::env::args().skip(1))
}

//! The trials of the program `conformance`, over every GPU runtime of this machine.

fn main() {
    conformance::hardware::main()
}

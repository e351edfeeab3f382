//! The trials of the program `conformance`, over every GPU runtime that is here.

fn main() {
    conformance::hardware::main()
}

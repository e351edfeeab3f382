//! `conformance`: the trials of [`conformance::hardware`], as a program that needs nothing beside
//! itself. `--help` says how to choose among them.

fn main() {
    conformance::hardware::main()
}

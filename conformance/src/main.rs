//! `conformance`: the trials of [`conformance::hardware`], as a program that needs no other file.
//! `--help` lists the options that select trials.

fn main() {
    conformance::hardware::main()
}

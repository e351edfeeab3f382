// The program kernels: each runs a list of operations, step by step, on one block of 32
// threads. They differ in the maximal number of operations of their parameter.
#include "gds_program.hpp"

GDS_KERNEL(gds_program_8, gds::Program<8>, p) { gds::run_program(p); }
GDS_KERNEL(gds_program_40, gds::Program<40>, p) { gds::run_program(p); }
GDS_KERNEL(gds_program, gds::Program<120>, p) { gds::run_program(p); }

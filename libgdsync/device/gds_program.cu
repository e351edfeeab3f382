// The program kernel: runs a list of operations on one warp, phase after phase. Launched with
// one block of 32 threads.
#include "gds_program.hpp"

GDS_KERNEL(gds_program, gds::Program, p) {
    const unsigned lane = threadIdx.x;
    unsigned begin = 0;
    while (begin < p.count) {
        unsigned end = begin + 1;
        while (end < p.count && p.ops[end].phase == p.ops[begin].phase) end++;
        for (unsigned i = begin + lane; i < end; i += 32) gds::run(p.ops[i]);
        // What this phase wrote is visible before the next one writes.
        gds::fence_sys();
        __syncthreads();
        begin = end;
    }
}

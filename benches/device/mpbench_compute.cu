// A kernel that computes in registers, as a load beside messages: each thread runs four chains of
// multiplications and stores their sum. benches/src/kernel.rs computes the same.
#include "pattern.hpp"

namespace mpbench {

struct Compute {
    u32* sums;   // one a thread
    u64 rounds;  // steps of each chain
};

static_assert(sizeof(Compute) == 16, "layout");

// A step of a chain; `by` differs for each.
GDS_DEVICE u32 mix(u32 x, u32 by) { return (x ^ by) * 0x2c1b3c6du; }

}  // namespace mpbench

GDS_KERNEL(mpbench_compute, mpbench::Compute, c) {
    const mpbench::u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    mpbench::u32 a = i, b = i + 1, d = i + 2, e = i + 3;
    GDS_NO_UNROLL
    for (mpbench::u32 r = 0; r < c.rounds; r++) {
        a = mpbench::mix(a, r);
        b = mpbench::mix(b, r);
        d = mpbench::mix(d, r);
        e = mpbench::mix(e, r);
    }
    c.sums[i] = a + b + d + e;
}

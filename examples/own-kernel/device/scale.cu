// Multiplies every number of an array by a factor.
#include "gds_device.hpp"

struct Scale {  // the same fields in the same order as in src/main.rs
    float* numbers;
    gds::u64 count;
    float factor;
    gds::u32 unused;
};

GDS_KERNEL(scale, Scale, p) {
    const gds::u64 threads = gridDim.x * blockDim.x;
    for (gds::u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += threads) {
        p.numbers[i] *= p.factor;
    }
}

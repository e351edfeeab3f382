// Adds a number to every word of an array: any number of blocks and threads.
#include "gds_device.hpp"

namespace examples {

// The same layout stands in examples/src/kernels.rs.
struct Add {
    gds::u64* words;
    gds::u64 count;
    gds::u64 value;
};

static_assert(sizeof(Add) == 24, "layout");

}  // namespace examples

GDS_KERNEL(examples_add, examples::Add, p) {
    const gds::u64 threads = static_cast<gds::u64>(gridDim.x) * blockDim.x;
    const gds::u64 first = static_cast<gds::u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (gds::u64 i = first; i < p.count; i += threads) p.words[i] += p.value;
}

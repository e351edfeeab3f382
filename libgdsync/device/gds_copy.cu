// A copy between two ranges that do not overlap: any number of blocks and threads.
#include "gds_device.hpp"

namespace gds {

// libgdsync/src/kernels/params.rs has the same layout.
struct Copy {
    u64 to;
    u64 from;
    u64 len;
};

static_assert(sizeof(Copy) == 24, "layout");

// Copies the whole words of type T, distributed over the threads.
template <class T>
GDS_DEVICE void copy_words(const Copy& p) {
    const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
    const u64 first = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    T* to = reinterpret_cast<T*>(p.to);
    const T* from = reinterpret_cast<const T*>(p.from);
    const u64 words = p.len / sizeof(T);
    for (u64 i = first; i < words; i += threads) to[i] = from[i];
    // The last, incomplete word.
    auto* bytes = reinterpret_cast<unsigned char*>(p.to);
    const auto* source = reinterpret_cast<const unsigned char*>(p.from);
    for (u64 i = words * sizeof(T) + first; i < p.len; i += threads) bytes[i] = source[i];
}

}  // namespace gds

GDS_KERNEL(gds_copy, gds::Copy, p) {
    const gds::u64 both = p.to | p.from;
    if ((both & 7) == 0) {
        gds::copy_words<gds::u64>(p);
    } else if ((both & 3) == 0) {
        gds::copy_words<gds::u32>(p);
    } else {
        gds::copy_words<unsigned char>(p);
    }
}

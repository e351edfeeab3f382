// A pattern in memory, written and verified: any number of blocks and threads.
#include "gds_device.hpp"

namespace gds {

// libgdsync/src/kernels/params.rs has the same layouts.
struct Fill {
    u64 at;
    u64 len;
    u64 seed;
};

// Counts wrong bytes and keeps the offset of the first.
struct Report {
    u64 wrong;
    u64 first;
};

struct Verify {
    u64 at;
    u64 len;
    u64 seed;
    Report* report;
};

static_assert(sizeof(Fill) == 24 && sizeof(Verify) == 32 && sizeof(Report) == 16, "layout");

// A generator that can start at any index: a mixed counter (splitmix64). `pattern` in
// libgdsync/src/kernels/params.rs is the same function.
GDS_DEVICE u64 pattern(u64 seed, u64 word) {
    u64 z = seed + (word + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// Whether the words of a buffer can be accessed as such.
GDS_DEVICE bool aligned(u64 at) { return (at & 7) == 0; }

GDS_DEVICE u64 least(u64 a, u64 b) { return a < b ? a : b; }

// Calls `f(first byte, bytes, pattern)` for each word of `len` bytes that belongs to this thread.
template <class F>
GDS_DEVICE void each_word(u64 len, u64 seed, F f) {
    const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; 8 * i < len; i += threads) {
        f(8 * i, least(8, len - 8 * i), pattern(seed, i));
    }
}

}  // namespace gds

GDS_KERNEL(gds_fill, gds::Fill, p) {
    auto* to = reinterpret_cast<unsigned char*>(p.at);
    const bool whole = gds::aligned(p.at);
    gds::each_word(p.len, p.seed, [=](gds::u64 first, gds::u64 bytes, gds::u64 word) {
        if (whole && bytes == 8) {
            *reinterpret_cast<gds::u64*>(to + first) = word;
            return;
        }
        GDS_NO_UNROLL
        for (gds::u64 i = 0; i < bytes; i++) to[first + i] = static_cast<unsigned char>(word >> 8 * i);
    });
}

GDS_KERNEL(gds_verify, gds::Verify, p) {
    const auto* from = reinterpret_cast<const unsigned char*>(p.at);
    const bool whole = gds::aligned(p.at);
    gds::u64 wrong = 0, least = ~0ull;
    gds::each_word(p.len, p.seed, [&](gds::u64 first, gds::u64 bytes, gds::u64 word) {
        if (whole && bytes == 8 && *reinterpret_cast<const gds::u64*>(from + first) == word) return;
        GDS_NO_UNROLL
        for (gds::u64 i = 0; i < bytes; i++) {
            if (from[first + i] == static_cast<unsigned char>(word >> 8 * i)) continue;
            wrong++;
            least = gds::least(least, first + i);
        }
    });
    if (wrong != 0) {
        atomicAdd(&p.report->wrong, wrong);
        atomicMin(&p.report->first, least);
    }
}

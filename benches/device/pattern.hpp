// The contents of payloads: a pseudo-random word for every (tag, index). It is cheap, so that
// memory limits the speed of writing and checking. benches/src/pattern.rs has the same
// functions.
#pragma once

#include "gds_device.hpp"

namespace mpbench {

using gds::u32;
using gds::u64;

constexpr u64 kGolden = 0x9e3779b97f4a7c15ull;

// Seeds of different tags are far apart, so no payload is a shifted copy of another.
GDS_DEVICE u64 pattern_seed(u64 tag) {
    u64 x = (tag + 1) * kGolden;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Bytes 8 * index and on of the payload, lowest address in the lowest bits.
GDS_DEVICE u64 pattern_word(u64 seed, u64 index) {
    const u64 x = (seed + index) * kGolden;
    return x ^ (x >> 29);
}

}  // namespace mpbench

// Copies of any alignment and length, distributed over some threads of a block.
#pragma once

#include "mp_wire.hpp"

namespace mp {

// The widest word: one access if it is aligned.
struct alignas(16) Wide {
    u64 low, high;
};

// The threads of a copy: this thread is number `first` of `step`.
struct Share {
    u32 first;
    u32 step;
};

// `to` and `from` have the same distance from a multiple of T's size. `check` is called once, behind the first loads
// and in front of the first store, so that its own loads overlap with them; false: it was, and nothing is stored.
template <class T, class Check>
GDS_DEVICE bool copy_as(unsigned char* to, const unsigned char* from, u64 len, Share s, Check check) {
    const u64 head = least(len, -reinterpret_cast<u64>(to) & (sizeof(T) - 1));
    const u64 words = (len - head) / sizeof(T), tail = (len - head) % sizeof(T);
    T* w = reinterpret_cast<T*>(to + head);
    const T* v = reinterpret_cast<const T*>(from + head);
    u64 i = s.first;
    bool checked = false;
    // Four at once, so that the loads overlap.
    GDS_NO_UNROLL
    for (; i + 3ull * s.step < words; i += 4ull * s.step) {
        const T a = v[i], b = v[i + s.step], c = v[i + 2ull * s.step], d = v[i + 3ull * s.step];
        if (!checked && !check()) return false;
        checked = true;
        w[i] = a;
        w[i + s.step] = b;
        w[i + 2ull * s.step] = c;
        w[i + 3ull * s.step] = d;
    }
    if (!checked && !check()) return false;
    GDS_NO_UNROLL
    for (; i < words; i += s.step) w[i] = v[i];
    // The bytes before and after the whole words.
    GDS_NO_UNROLL
    for (u64 j = s.first; j < head + tail; j += s.step) {
        const u64 at = j < head ? j : len - head - tail + j;
        to[at] = from[at];
    }
    return true;
}

// As `copy_as`, for any addresses.
template <class Check>
GDS_DEVICE bool copy_if(u64 to, u64 from, u64 len, Share s, Check check) {
    auto* t = reinterpret_cast<unsigned char*>(to);
    const auto* f = reinterpret_cast<const unsigned char*>(from);
#if defined(GDS_SOFT)
    if (s.step == 1) {
        const bool good = check();
        if (good) memcpy(t, f, len);
        return good;
    }
#endif
    const u64 skew = to ^ from;
    if ((skew & 15) == 0) return copy_as<Wide>(t, f, len, s, check);
    if ((skew & 7) == 0) return copy_as<u64>(t, f, len, s, check);
    if ((skew & 3) == 0) return copy_as<u32>(t, f, len, s, check);
    return copy_as<unsigned char>(t, f, len, s, check);
}

GDS_DEVICE void copy(u64 to, u64 from, u64 len, Share s) {
    copy_if(to, from, len, s, [] { return true; });
}

}  // namespace mp

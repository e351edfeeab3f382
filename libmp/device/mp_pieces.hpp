// Pieces of one length at equal distances, and the copy between them and packed bytes.
#pragma once

#include "mp_copy.hpp"

namespace mp {

// The same layout stands in libmp/src/kernels/params.rs, with what the fields mean.
struct Pieces {
    u64 first;
    u64 packed;
    u64 len;
    u64 block;
    u64 row;
    u64 plane;
    u64 arrival;
    u64 result;
    u32 rows;
    u32 scatters;
};

static_assert(sizeof(Pieces) == 72, "layout");

// The address of piece `i`.
GDS_DEVICE u64 piece(const Pieces& p, u32 i) { return p.first + i / p.rows * p.plane + i % p.rows * p.row; }

// Moves words of type T, to which all addresses, lengths and distances are aligned, and what `len`
// leaves behind the last of them.
template <class T>
GDS_DEVICE void move_as(const Pieces& p, u64 len, bool gathers, Share s) {
    const u32 words = static_cast<u32>(len / sizeof(T)), per = static_cast<u32>(p.block / sizeof(T));
    GDS_NO_UNROLL
    for (u32 i = s.first; i < words; i += s.step) {
        T* own = reinterpret_cast<T*>(piece(p, i / per)) + i % per;
        T* packed = reinterpret_cast<T*>(p.packed) + i;
        *(gathers ? packed : own) = *(gathers ? own : packed);
    }
    const u32 from = words * static_cast<u32>(sizeof(T)), block = static_cast<u32>(p.block);
    GDS_NO_UNROLL
    for (u32 i = from + s.first; i < len; i += s.step) {
        auto* own = reinterpret_cast<unsigned char*>(piece(p, i / block)) + i % block;
        auto* packed = reinterpret_cast<unsigned char*>(p.packed) + i;
        *(gathers ? packed : own) = *(gathers ? own : packed);
    }
}

GDS_DEVICE void move(const Pieces& p, u64 len, bool gathers, Share s) {
#if defined(GDS_SOFT)
    if (s.step == 1) {
        for (u64 at = 0; at < len; at += p.block) {
            const u64 own = piece(p, static_cast<u32>(at / p.block)), packed = p.packed + at;
            copy(gathers ? packed : own, gathers ? own : packed, least(p.block, len - at), s);
        }
        return;
    }
#endif
    const u64 all = p.first | p.packed | p.block | p.row | p.plane;
    if ((all & 15) == 0) {
        move_as<Wide>(p, len, gathers, s);
    } else if ((all & 7) == 0) {
        move_as<u64>(p, len, gathers, s);
    } else if ((all & 3) == 0) {
        move_as<u32>(p, len, gathers, s);
    } else {
        move_as<unsigned char>(p, len, gathers, s);
    }
}

}  // namespace mp

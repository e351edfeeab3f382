// Pieces of one length at equal distances: a send gathers them into packed bytes before it posts
// these; a receive scatters the bytes behind the kernel that took the message in. mp_strided does
// this for one message: any number of blocks; one block, of any number of threads, if it stores a
// result. mp_moves does it for any number of messages whose bytes are in place, in any number of
// blocks.
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

GDS_DEVICE void strided(const Pieces& p) {
    const Share all{blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
    if (p.arrival == 0) {
        move(p, p.len, true, all);
        return;
    }
    // How the message ended: the kernel that took it in has stored it.
    const u64 end = own_word(p.arrival);
    if (end >> 48 == kSuccess) move(p, least(end & kLenMask, p.len), false, all);
    if (p.result == 0) return;
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x == 0) gds::store_release_sys(word_at(p.result), end);
}

// The same layout stands in libmp/src/kernels/params.rs.
struct Moves {
    u64 table;
    u32 count;
    u32 blocks;
};

static_assert(sizeof(Moves) == 16, "layout");

// Group i of `blocks` blocks executes the moves i, i + groups, ... of the table.
GDS_DEVICE void move_all(const Moves& p) {
    const Share s{blockIdx.x % p.blocks * blockDim.x + threadIdx.x, p.blocks * blockDim.x};
    const Pieces* table = reinterpret_cast<const Pieces*>(p.table);
    GDS_NO_UNROLL
    for (u32 i = blockIdx.x / p.blocks; i < p.count; i += gridDim.x / p.blocks) {
        const Pieces one = table[i];
        move(one, one.len, one.scatters == 0, s);
    }
}

}  // namespace mp

GDS_KERNEL(mp_moves, mp::Moves, p) { mp::move_all(p); }
GDS_KERNEL(mp_strided, mp::Pieces, p) { mp::strided(p); }

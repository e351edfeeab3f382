// Puts by copies: WQEs in pinned memory, in their order. One block of any number of threads for each
// group; a single WQE whose end is not reported may have any number of blocks.
#include "mp_copy.hpp"
#include "mp_tasks.hpp"

namespace mp {

// A segment of this rank's memory; its fields are big-endian.
struct PutPiece {
    u32 length;
    u32 key;
    u64 address;
};

// libmp/src/path/copy/wqe.rs has the same layout. The fields of a work request, which the sender's
// kernel may have patched, are big-endian.
struct PutWqe {
    u32 control;
    u32 remote_key;
    u64 remote_address;
    u32 pieces;
    u32 reserved[3];
    PutPiece piece[30];
};

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
struct Puts {
    u64 failed;
    u64 done;
    u64 serial;
    u32 count;
    u32 words;
    u64 wqe[4];
};

static_assert(sizeof(PutWqe) == 512 && sizeof(Puts) == 64, "layout");

template <class T>
GDS_DEVICE T field(const T* at) {
    return swap_bytes(gds::load_acquire_sys(at));
}

// Words for which streams and the CPU wait: each is stored at once.
GDS_DEVICE void copy_words(u64 to, u64 from, u64 len, Share s) {
    GDS_NO_UNROLL
    for (u64 i = s.first; i < len / 8; i += s.step) {
        gds::store_relaxed_sys(word_at(to) + i, gds::load_acquire_sys(word_at(from) + i));
    }
}

GDS_DEVICE void put(const PutWqe& r, bool words, Share s) {
    // A NOP.
    if ((field(&r.control) & 0xff) == 0) return;
    u64 to = field(&r.remote_address);
    GDS_NO_UNROLL
    for (u32 i = 0; i < r.pieces; i++) {
        const u64 from = field(&r.piece[i].address), len = field(&r.piece[i].length);
        if (words) {
            copy_words(to, from, len, s);
        } else {
            copy(to, from, len, s);
        }
        to += len;
    }
}

// Selects without an index that is known only at run time: such an index copies the parameters to
// the stack.
GDS_DEVICE const PutWqe& wqe(const Puts& p, u32 i) {
    const u64 low = i == 0 ? p.wqe[0] : p.wqe[1], high = i == 2 ? p.wqe[2] : p.wqe[3];
    return *reinterpret_cast<const PutWqe*>(i < 2 ? low : high);
}

GDS_DEVICE bool lane_failed(const Puts& p) {
    return gds::load_acquire_sys(reinterpret_cast<const u32*>(p.failed)) != 0;
}

GDS_DEVICE void put_group(const Puts& p, Share all) {
    // A thread that finds the lane failed puts nothing. After the next barrier all threads find it,
    // so no word is put without its payload.
    bool failed = lane_failed(p);
    GDS_NO_UNROLL
    for (u32 i = 0; i < p.count; i++) {
        const bool words = p.words >> i & 1;
        if (words) {
            // An observer of a word also observes all earlier puts.
            if (blockDim.x > 1) __syncthreads();
            gds::fence_sys();
            failed |= lane_failed(p);
        }
        if (!failed) put(wqe(p, i), words, all);
    }
    if (p.done == 0) return;
    if (blockDim.x > 1) __syncthreads();
    // Skipped puts are not reported as done.
    failed |= lane_failed(p);
    if (threadIdx.x == 0 && !failed) gds::store_release_sys(word_at(p.done), p.serial);
}

template <u32 Capacity>
using PutTasks = Tasks<Puts, Capacity>;

static_assert(sizeof(PutTasks<8>) == 520 && sizeof(PutTasks<63>) == 4040, "layout");

// A task of a launch of several: groups have no order among each other.
GDS_DEVICE void put_task(const Puts& p) { put_group(p, {threadIdx.x, blockDim.x}); }

}  // namespace mp

GDS_KERNEL(mp_put, mp::Puts, p) {
    mp::put_group(p, {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x});
}
GDS_KERNEL(mp_put_all_8, mp::PutTasks<8>, p) { mp::run_all<mp::put_task>(p); }
GDS_KERNEL(mp_put_all_63, mp::PutTasks<63>, p) { mp::run_all<mp::put_task>(p); }

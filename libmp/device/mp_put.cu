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
    return swap_bytes(gds::load_relaxed_sys(at));
}

// The fields of a WQE with one piece, or with the first of several, in the byte order of the GPU. The
// WQE is in host memory, where a load takes a bus round trip: one thread reads it for all.
struct Order {
    u64 to;
    u64 from;
    u64 len;
    u32 pieces;
};

GDS_DEVICE Order order_of(const PutWqe& r) {
    // Independent loads overlap.
    const u32 control = field(&r.control), len = field(&r.piece[0].length);
    const u64 to = field(&r.remote_address), from = field(&r.piece[0].address);
    const u32 pieces = gds::load_relaxed_sys(&r.pieces);
    // A NOP has no pieces.
    return {to, from, len, (control & 0xff) == 0 ? 0 : pieces};
}

// Words for which streams and the CPU wait: each is stored at once. An observer of a word also observes
// all earlier puts.
GDS_DEVICE void copy_words(u64 to, u64 from, u64 len, Share s) {
    if (s.first >= len / 8) return;
    gds::fence_sys();
    GDS_NO_UNROLL
    for (u64 i = s.first; i < len / 8; i += s.step) {
        gds::store_whole_sys(word_at(to) + i, gds::load_acquire_sys(word_at(from) + i));
    }
}

GDS_DEVICE void put(const PutWqe& r, const Order& o, bool words, Share s) {
    u64 to = o.to, from = o.from, len = o.len;
    GDS_NO_UNROLL
    for (u32 i = 0; i < o.pieces; i++) {
        if (i > 0) {
            from = field(&r.piece[i].address);
            len = field(&r.piece[i].length);
        }
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

struct Orders {
    Order order[4];
    u32 failed;
};

GDS_DEVICE void put_group(const Puts& p, Share all) {
    GDS_SHARED(Orders, orders);
    // The tasks of a block use the orders in turn.
    if (blockDim.x > 1) __syncthreads();
    // Up to five threads load at once.
    GDS_NO_UNROLL
    for (u32 i = threadIdx.x; i <= p.count; i += blockDim.x) {
        if (i < p.count) {
            orders.order[i] = order_of(wqe(p, i));
        } else {
            orders.failed = lane_failed(p);
        }
    }
    if (blockDim.x > 1) __syncthreads();
    // A lane that has failed puts nothing, and does not report it as done.
    if (orders.failed) return;
    GDS_NO_UNROLL
    for (u32 i = 0; i < p.count; i++) {
        const bool words = p.words >> i & 1;
        if (words && blockDim.x > 1) __syncthreads();
        put(wqe(p, i), orders.order[i], words, all);
    }
    if (p.done == 0) return;
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x == 0) gds::store_release_sys(word_at(p.done), p.serial);
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

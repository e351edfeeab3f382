// The kernels of src/kernel/tests.rs; each `Params` has its twin there.
#include "gds_device.hpp"

GDS_DEVICE unsigned global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

struct Vectors {
    const float* a;
    const float* b;
    float* sum;
    uint32_t n;
};
GDS_KERNEL(softgpu_test_add, Vectors, p) {
    const unsigned i = global_thread();
    if (i < p.n) p.sum[i] = __ldg(p.a + i) + __ldg(p.b + i);
}

// Each thread counts itself at its place in three dimensions.
struct Counters {
    uint32_t* count;
};
GDS_KERNEL(softgpu_test_where, Counters, p) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    atomicAdd(&p.count[block * (blockDim.x * blockDim.y * blockDim.z) + thread], 1);
}

// The sum of a block's values, by a tree in shared memory.
struct Reduction {
    const uint32_t* in;
    uint64_t* out;
};
GDS_KERNEL(softgpu_test_reduce, Reduction, p) {
    GDS_SHARED(uint64_t[1024], tile);
    tile[threadIdx.x] = p.in[global_thread()];
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) tile[threadIdx.x] += tile[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) p.out[blockIdx.x] = tile[0];
}

// Reverses a block through dynamic shared memory; a second variable must not overlap it.
struct Reversal {
    const uint32_t* in;
    uint32_t* out;
};
GDS_KERNEL(softgpu_test_reverse, Reversal, p) {
    GDS_DYNAMIC_SHARED(uint32_t, turned);
    GDS_SHARED(uint32_t, last);
    turned[blockDim.x - 1 - threadIdx.x] = p.in[global_thread()];
    if (threadIdx.x == 0) last = blockIdx.x;
    __syncthreads();
    p.out[global_thread()] = turned[threadIdx.x] + last;
}

// The initial value of a shared variable in a block.
struct Fresh {
    uint32_t* out;
};
GDS_KERNEL(softgpu_test_fresh, Fresh, p) {
    GDS_SHARED(uint32_t, stale);
    p.out[blockIdx.x] = stale;
    stale = blockIdx.x;
}

struct Votes {
    uint32_t* out;  // or, and, count for each thread
};
GDS_KERNEL(softgpu_test_votes, Votes, p) {
    const unsigned t = threadIdx.x;
    p.out[3 * t] = static_cast<uint32_t>(__syncthreads_or(t == 7));
    p.out[3 * t + 1] = static_cast<uint32_t>(__syncthreads_and(t != 7));
    p.out[3 * t + 2] = static_cast<uint32_t>(__syncthreads_count(t % 3 == 0));
}

// One warp operation a row, one lane a column.
struct Warps {
    uint64_t* out;
};
GDS_KERNEL(softgpu_test_warp, Warps, p) {
    const unsigned lane = threadIdx.x, warp = static_cast<unsigned>(warpSize);
    const uint64_t all = ~0ull;
    const uint64_t v = 1000 + lane;
    uint64_t* out = p.out + lane;
    *out = __shfl_sync(all, v, 5), out += warp;
    *out = __shfl_sync(all, v, static_cast<int>(lane) + 3, 8), out += warp;
    *out = __shfl_up_sync(all, v, 4), out += warp;
    *out = __shfl_up_sync(all, v, 3, 16), out += warp;
    *out = __shfl_down_sync(all, v, 4), out += warp;
    *out = __shfl_down_sync(all, v, 3, 16), out += warp;
    *out = __shfl_xor_sync(all, v, 9), out += warp;
    *out = __shfl_xor_sync(all, v, 9, 8), out += warp;
    *out = __ballot_sync(all, lane % 5 == 1), out += warp;
    *out = static_cast<uint64_t>(__any_sync(all, lane + 1 == warp)), out += warp;
    *out = static_cast<uint64_t>(__all_sync(all, lane + 1 == warp)), out += warp;
    // Even and odd lanes part, each with a mask of its own.
    const uint64_t mine = lane % 2 == 0 ? 0x5555555555555555ull : 0xaaaaaaaaaaaaaaaaull;
    *out = __ballot_sync(mine, lane < 8), out += warp;
    *out = __shfl_sync(mine, static_cast<int8_t>(-static_cast<int>(lane)), static_cast<int>(lane) ^ 2) & 0xff, out += warp;
    *out = __shfl_sync(all, 0.5 + lane, 7) == 7.5, out += warp;
    __syncwarp();
    *out = static_cast<uint64_t>(__popcll(__activemask()));
}

// Lane 0 votes with lane 2 while lane 1 already waits for it, then with lane 1.
struct Masks {
    uint32_t* out;
};
GDS_KERNEL(softgpu_test_masks, Masks, p) {
    const unsigned lane = threadIdx.x;
    if (lane != 1) p.out[lane] = static_cast<uint32_t>(__ballot_sync(0x5u, lane == 2));
    if (lane != 2) p.out[lane + 3] = static_cast<uint32_t>(__ballot_sync(0x3u, 1));
}

// Lanes from `first_gone` up return at once; the others still vote and meet.
struct Early {
    uint32_t* out;
    uint32_t first_gone;
};
GDS_KERNEL(softgpu_test_early_exit, Early, p) {
    if (threadIdx.x >= p.first_gone) return;
    const uint64_t votes = __ballot_sync(~0ull, 1);
    const int there = __syncthreads_count(1);
    p.out[threadIdx.x] = static_cast<uint32_t>(__popcll(votes)) + 1000 * static_cast<uint32_t>(there);
}

// Half of the block takes one barrier, half another that the first half never reaches.
struct Divergence {
    uint32_t kind;
};
GDS_KERNEL(softgpu_test_diverge, Divergence, p) {
    const bool low = threadIdx.y * blockDim.x + threadIdx.x < 16;
    switch (p.kind) {
        case 0:  // a barrier of the block against one of the warp
            if (low) __syncthreads();
            else __syncwarp();
            break;
        case 1:  // two barriers of the block
            if (low) __syncthreads();
            else __syncthreads_or(1);
            break;
        case 2:  // a mask that leaves out the caller
            __syncwarp(0xfffffffeu);
            break;
        case 3:  // too much shared memory
        {
            GDS_SHARED(char[48 * 1024], one);
            GDS_SHARED(char[16], two);
            one[0] = two[0] = 1;
            break;
        }
        default: __trap();
    }
}

// Waits for a word, and tells what it saw.
struct Spin {
    const uint32_t* flag;
    uint32_t* out;
    uint64_t timeout_ns;
};
GDS_KERNEL(softgpu_test_spin, Spin, p) {
    const bool seen = GDS_SPIN_UNTIL(gds::load_acquire_sys(p.flag) == 1, p.timeout_ns);
    if (seen) atomicAdd(p.out, 1);
    else atomicAdd(p.out, 1000);
}

// Passes numbers through a box of one word and a pair of flags.
struct Channel {
    uint32_t* full;
    uint32_t* empty;
    uint64_t* box;
    uint64_t* out;
    uint32_t n;
};
GDS_KERNEL(softgpu_test_produce, Channel, p) {
    for (uint32_t i = 1; i <= p.n; ++i) {
        GDS_SPIN_UNTIL(gds::load_acquire_sys(p.empty) == i - 1, 0);
        *p.box = i * 7ull;
        gds::store_release_sys(p.full, i);
    }
}
GDS_KERNEL(softgpu_test_consume, Channel, p) {
    uint64_t sum = 0;
    for (uint32_t i = 1; i <= p.n; ++i) {
        GDS_SPIN_UNTIL(gds::load_acquire_sys(p.full) == i, 0);
        sum += *p.box;
        gds::store_release_sys(p.empty, i);
    }
    *p.out = sum;
}

// Every block waits until `blocks` blocks have come.
struct Gather {
    uint32_t* count;
    uint32_t blocks;
};
GDS_KERNEL(softgpu_test_gather, Gather, p) {
    if (threadIdx.x == 0) {
        atomicAdd(p.count, 1);
        GDS_SPIN_UNTIL(gds::load_acquire_sys(p.count) >= p.blocks, 0);
    }
    __syncthreads();
}

// A block that never rests and one that it waits for.
struct Busy {
    uint32_t* flag;
    uint32_t* ping;
};
GDS_KERNEL(softgpu_test_busy, Busy, p) {
    if (blockIdx.x == 0) {
        while (gds::load_acquire_sys(p.flag) == 0) __syncthreads();
    } else {
        GDS_SPIN_UNTIL(gds::load_acquire_sys(p.ping) == 1, 0);
        gds::store_release_sys(p.flag, 1u);
    }
}

// The order in which threads reach a counter, before and after a barrier.
struct Trace {
    uint32_t* next;
    uint32_t* order;
};
GDS_KERNEL(softgpu_test_trace, Trace, p) {
    p.order[atomicAdd(p.next, 1)] = global_thread();
    __syncthreads();
    p.order[atomicAdd(p.next, 1)] = global_thread();
    __syncwarp();
    p.order[atomicAdd(p.next, 1)] = global_thread();
}

// Threads that never wait: the order they run in, and one look at the clock each.
struct Looks {
    uint32_t* next;
    uint32_t* order;
    uint64_t* seen;
};
GDS_KERNEL(softgpu_test_look, Looks, p) {
    p.order[atomicAdd(p.next, 1)] = global_thread();
    p.seen[global_thread()] = gds::globaltimer_ns();
}

// Two stores, a fence, two stores, a release.
struct Stores {
    uint32_t* a;
    gds::u64* b;
    uint32_t* read_back;
};
GDS_KERNEL(softgpu_test_stores, Stores, p) {
    gds::store_relaxed_sys(p.a, 1);
    gds::store_relaxed_sys(p.b, 2);
    gds::fence_sys();
    gds::store_relaxed_sys(p.a, 3);
    *p.read_back = gds::load_acquire_sys(p.a);
    gds::store_release_sys(p.b, 4);
    atomicAdd(p.b, 5);
    __threadfence_system();
}

// Atomics on one word of each size.
struct Atomics {
    uint32_t* w;  // add, max, min, or, and, exch, cas
    gds::u64* d;
    float* f;
};
GDS_KERNEL(softgpu_test_atomics, Atomics, p) {
    const unsigned t = threadIdx.x;
    atomicAdd(p.w + 0, t);
    atomicMax(p.w + 1, t);
    atomicMin(p.w + 2, t);
    atomicOr(p.w + 3, 1u << (t % 32));
    atomicAnd(p.w + 4, ~(1u << (t % 32)));
    atomicAdd(p.w + 5, atomicExch(p.w + 6, t));
    atomicCAS(p.w + 7, t, t + 1);
    atomicAdd(p.d + 0, static_cast<gds::u64>(t) << 32);
    atomicMax(p.d + 1, static_cast<gds::u64>(t) << 40);
    atomicAdd(p.f, 0.5f);
}

// Sleeps, and watches the clock for as long as it says.
struct Clock {
    uint64_t* woke;
    uint64_t* watched;
    uint64_t ns;
};
GDS_KERNEL(softgpu_test_clock, Clock, p) {
    __nanosleep(static_cast<unsigned>(p.ns));
    *p.woke = gds::globaltimer_ns();
    const long long start = clock64();
    while (clock64() - start < static_cast<long long>(p.ns)) {
    }
    *p.watched = gds::globaltimer_ns();
}

// A little work for one warp, for measurements.
struct Work {
    uint32_t* data;
};
GDS_KERNEL(softgpu_test_work, Work, p) {
    const unsigned i = global_thread();
    p.data[i] = p.data[i] * 1664525u + 1013904223u;
}
